//! The root reducer of this process: its orders, its relays' data links, and what it has to tell.

use super::failure::Failure;
use crate::Input;
use crate::shell::limits::PARTING;
use crate::shell::{DataLink, Event, Reducer, ToRoot};
use async_channel::{Receiver, Sender};
use core::time::Duration;
use flodl_relay::root::{Codec, Outer, Root as Reduce};
use flodl_relay::shell::{DataLink as RelayLink, Report, RootHandle, start_root_as};
use flodl_wire::SessionId;
use flodl_wire::message::Control;
use flodl_wire::message::control::RoundOutcome;
use flodl_wire::message::record::Reason;
use flodl_worker::checkpoint::write_outer;
use futures_lite::io::{AsyncRead, AsyncWrite};
use smol::{Task, Timer};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A hold on the root.
#[derive(Clone)]
pub(crate) struct Root {
    handle: RootHandle,
    events: Sender<Event>,
    /// One a data link; dropping it closes the link.
    links: Arc<Mutex<BTreeMap<SessionId, Task<()>>>>,
    /// Where the outer optimizer's state is kept during the run.
    keep: Option<PathBuf>,
}

/// How averages become the consensus, and how they travel.
pub(crate) struct Reduction {
    /// The outer optimizer, if any.
    pub(crate) outer: Option<Box<dyn Outer>>,
    /// Its state, if it has a past.
    pub(crate) past: Vec<u8>,
    /// Where its state is kept during the run.
    pub(crate) keep: Option<PathBuf>,
    /// How sums and averages travel between hosts.
    pub(crate) codec: Codec,
}

/// The outer optimizer's state is kept every so many averages.
const OUTER_EVERY: u64 = 16;

impl Root {
    /// Starts the root. What it tells goes to `events`.
    pub(crate) fn start(patience: Duration, reduction: Reduction, events: Sender<Event>) -> Result<Root, Failure> {
        let Reduction { outer, past, keep, codec } = reduction;
        let keep = keep.filter(|_| outer.is_some());
        let reducer = Reduce::new(patience).with_codec(codec).with_past(past);
        let reducer = match outer {
            Some(outer) => reducer.with_outer(outer),
            None => reducer,
        };
        let (handle, reports) = start_root_as(reducer)
            .map_err(|error| Failure::failed(format!("the root reducer's thread cannot be started: {error}")))?;
        smol::spawn(tell(reports, events.clone())).detach();
        Ok(Root { handle, events, links: Arc::default(), keep })
    }

    /// The root's handle.
    pub(crate) fn handle(&self) -> &RootHandle {
        &self.handle
    }

    /// Gives the root a relay's data link.
    pub(crate) fn serve<S>(&self, session: SessionId, link: RelayLink<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (handle, events) = (self.handle.clone(), self.events.clone());
        let task = smol::spawn(async move {
            let end = handle.serve(session, link).await;
            // A relay that is done closes both its connections, and what it said last is on the other one.
            Timer::after(PARTING).await;
            let error = format!("its data connection ended: {end}");
            events.send(Event::Closed { session, error }).await.ok();
        });
        self.links().insert(session, task);
    }

    /// Gives the root every data link that comes in by the door.
    pub(crate) async fn serve_all(self, links: Receiver<DataLink>) {
        while let Ok(DataLink { session, link }) = links.recv().await {
            self.serve(session, RelayLink::Sealed(Box::new(link)));
        }
    }

    /// Writes the outer optimizer's state down, for the controller after this one.
    fn keep_outer(&self) {
        let Some(path) = self.keep.clone() else { return };
        let (asked, events) = (self.handle.outer_state(), self.events.clone());
        let write = async move {
            let Ok(Some((version, state))) = asked.await else { return };
            if state.is_empty() {
                return;
            }
            let written = smol::unblock(move || write_outer(&path, version.0, &state)).await;
            if let Err(error) = written {
                let text = format!("the outer optimizer's state cannot be kept: {error}");
                events.send(Event::Notice(Reason::new("outer-not-kept", text))).await.ok();
            }
        };
        smol::spawn(write).detach();
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<SessionId, Task<()>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reducer for Root {
    fn order(&mut self, order: ToRoot) -> Result<(), String> {
        match order {
            ToRoot::Layout(sizes) => self.handle.layout(sizes).map_err(|gone| gone.to_string()),
            ToRoot::Control(control) => {
                let version = match &control {
                    Control::RoundDone { outcome: RoundOutcome::Committed { version }, .. } => Some(*version),
                    _ => None,
                };
                self.handle.control(control).map_err(|gone| gone.to_string())?;
                if version.is_some_and(|version| version.0.is_multiple_of(OUTER_EVERY)) {
                    self.keep_outer();
                }
                Ok(())
            }
            ToRoot::Restore { session, round, version, digest } => {
                self.handle.restore((session, round), (version, digest)).map_err(|gone| gone.to_string())
            }
            ToRoot::Left(session) => {
                if let Some(link) = self.links().remove(&session) {
                    smol::spawn(part(link)).detach();
                }
                Ok(())
            }
        }
    }
}

/// Closes the link of a session that is over, once its relay has had time to read on the other connection why.
async fn part(link: Task<()>) {
    Timer::after(PARTING).await;
    drop(link);
}

async fn tell(reports: Receiver<Report>, events: Sender<Event>) {
    while let Ok(report) = reports.recv().await {
        let event = match report {
            Report::Folded(folded) => Event::Input(Input::Folded(folded)),
            Report::Restored { version, result } => Event::Input(Input::Restored { version, result }),
            Report::Warning(text) => Event::Notice(Reason::new("root", text)),
            Report::Waiting { round, rank, chunk } => Event::Input(Input::RootWaits { round, rank, chunk }),
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

//! The thread that talks to the relay: it reads, writes and beats its heart whatever the training thread does.

use super::clock::{instant, time_since};
use super::dial::Links;
use super::talk::{Events, Shared, Voice, talk};
use crate::session::Lost;
use crate::user_code::panic_message;
use crate::worker::Event;
use async_channel::{Receiver, Sender, TryRecvError, bounded};
use async_io::{Timer, block_on};
use core::cell::Cell;
use core::convert::Infallible;
use flodl_wire::Time;
use flodl_wire::message::{Data, Report};
use futures_lite::future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Events that wait for the training thread, beside one whole result.
const EVENTS_MAX: usize = 256;

/// Reports that wait for the connection.
const REPORTS_MAX: usize = 64;

/// Chunks that wait for the connection: enough to keep it busy while the next ones are made.
const CHUNKS_MAX: usize = 8;

/// What wakes the training thread where it shares memory with its relay: both ring it.
#[cfg(target_os = "linux")]
pub(super) type Wakeup = flodl_cpureduce::shm::Bell;

/// There is none.
#[cfg(not(target_os = "linux"))]
#[derive(Clone)]
pub(super) enum Wakeup {}

#[cfg(not(target_os = "linux"))]
impl Wakeup {
    pub(super) fn ring(&self) {
        match *self {}
    }

    fn wait(&self, _: core::time::Duration, _: impl FnMut() -> bool) -> bool {
        match *self {}
    }
}

/// What the training thread goes on with.
pub(super) enum Next {
    /// Something has come.
    Event(Event),
    /// There is work to do without.
    Work,
    /// The deadline has passed.
    Late,
}

/// The training thread's end of the connection.
pub(super) struct IoThread {
    wakeup: Option<Wakeup>,
    events: Receiver<Event>,
    reports: Sender<Report>,
    data: Sender<Data>,
    ahead: Sender<Data>,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    ended: Receiver<Infallible>,
    /// The end of the events was made an event.
    told: Cell<bool>,
    voice: Voice,
}

impl IoThread {
    /// Starts it. `chunks`: how many a result has, so that a whole one always finds room.
    ///
    /// # Errors
    /// The system's, where it gives no thread.
    pub(super) fn start(
        links: Links,
        voice: Voice,
        chunks: usize,
        wakeup: Option<Wakeup>,
    ) -> std::io::Result<IoThread> {
        let (event_in, events) = bounded(EVENTS_MAX.saturating_add(chunks));
        let (reports, report_out) = bounded(REPORTS_MAX);
        let (data, data_out) = bounded(CHUNKS_MAX);
        let (ahead, ahead_out) = bounded(chunks.max(CHUNKS_MAX));
        let (alive, ended) = bounded::<Infallible>(1);
        let shared = Arc::new(Shared::new(time_since(voice.origin)));
        let (theirs, sleeper) = (Arc::clone(&shared), wakeup.clone());
        let thread = thread::Builder::new().name("flodl-io".to_owned()).spawn(move || {
            let events = Events { to: event_in, sleeper };
            let conversation = talk(links, voice, &theirs, &events, (report_out, [data_out, ahead_out]));
            let lost = match catch_unwind(AssertUnwindSafe(|| block_on(conversation))) {
                Ok(lost) => lost,
                Err(payload) => Some(Lost::IoThread { error: panic_message(&*payload) }),
            };
            // The training thread may have ended already; then nobody wants to know.
            lost.map(|lost| block_on(events.send(Event::Lost(lost))));
            drop(alive);
        })?;
        Ok(IoThread { wakeup, events, reports, data, ahead, shared, thread, ended, told: Cell::new(false), voice })
    }

    /// Closes when the thread is about to end.
    pub(super) fn gone(&self) -> Receiver<Infallible> {
        self.ended.clone()
    }

    /// When anything last came.
    pub(super) fn heard(&self) -> Time {
        self.shared.heard()
    }

    /// Tells the heartbeat how many steps are done.
    pub(super) fn set_steps(&self, steps: u64) {
        self.shared.set_steps(steps);
    }

    /// The next event that is here already.
    pub(super) fn try_event(&self) -> Option<Event> {
        match self.events.try_recv() {
            Ok(event) => Some(event),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => self.silent_end(),
        }
    }

    /// The next event, or work that there is without one, or at `deadline` neither.
    pub(super) fn event_before(&self, deadline: Instant, mut has_work: impl FnMut() -> bool) -> Next {
        if let Some(wakeup) = &self.wakeup {
            let limit = deadline.saturating_duration_since(Instant::now());
            let quiet = || self.events.is_empty() && !self.events.is_closed();
            let ready = wakeup.wait(limit, || !quiet() || has_work());
            return match self.try_event() {
                Some(event) => Next::Event(event),
                None if ready || Instant::now() < deadline => Next::Work,
                None => Next::Late,
            };
        }
        let event = async { self.events.recv().await.ok().or_else(|| self.silent_end()) };
        let event = block_on(future::or(event, async {
            Timer::at(deadline).await;
            None
        }));
        event.map_or(Next::Late, Next::Event)
    }

    /// A thread that ends without a last event is an event, once.
    fn silent_end(&self) -> Option<Event> {
        let error = || "it ended without saying why".to_owned();
        (!self.told.replace(true)).then(|| Event::Lost(Lost::IoThread { error: error() }))
    }

    /// Sends a report. The event to handle where that was not possible and no other will say so.
    pub(super) fn report(&self, report: Report) -> Option<Event> {
        self.send(&self.reports, report)
    }

    /// The same for a chunk.
    pub(super) fn data(&self, data: Data) -> Option<Event> {
        self.send(&self.data, data)
    }

    /// The same for a chunk of a rank that trains on: a whole contribution finds room, however slowly the others give theirs.
    pub(super) fn data_ahead(&self, data: Data) -> Option<Event> {
        self.send(&self.ahead, data)
    }

    /// Waits for room as long as the relay gives signs of life: another rank's chunk may be what it waits for itself.
    fn send<M>(&self, channel: &Sender<M>, message: M) -> Option<Event> {
        // Where the thread has ended, its last event says why.
        let sent = async { channel.send(message).await.map_or(None, |()| None) };
        let silence = async {
            loop {
                let until = instant(self.voice.origin, self.heard().plus(self.voice.patience));
                if Instant::now() >= until {
                    return Some(Event::Lost(Lost::Silent { patience: self.voice.patience }));
                }
                Timer::at(until).await;
            }
        };
        block_on(future::or(sent, silence))
    }

    /// Lets it send what is queued, and waits for its end, at most the patience.
    pub(super) fn finish(self) {
        self.reports.close();
        self.data.close();
        self.ahead.close();
        self.events.close();
        let ended = async { self.ended.recv().await.is_err() };
        let late = async {
            Timer::after(self.voice.patience).await;
            false
        };
        if block_on(future::or(ended, late)) {
            // A panic in it was caught there and became an event: there is nothing to learn from its result.
            drop(self.thread.join());
        }
    }
}

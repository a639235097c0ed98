//! The one task that owns the core: takes events, hands them over as inputs, and carries out what the core asks for.

use super::clock::Clock;
use super::edge;
use super::limits;
use crate::{Coordinator, Input, Output, SaveRequest};
use async_channel::{Receiver, Sender, TrySendError};
use core::time::Duration;
use flodl_wire::codec::EncodeError;
use flodl_wire::message::Control;
use flodl_wire::message::Record;
use flodl_wire::message::join::LayoutSizes;
use flodl_wire::message::record::{Body, Event as RecordEvent, EventKind, Reason};
use flodl_wire::{Frame, Stream};
use flodl_wire::{HostId, Incarnation, Rank, SessionId};
use smol::Timer;
use smol::future;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What reaches the driver.
#[derive(Debug)]
pub enum Event {
    /// A relay's control connection is authenticated.
    Opened(Opened),
    /// A frame of that connection.
    Frame {
        /// Its session.
        session: SessionId,
        /// The frame, opened.
        frame: Frame,
    },
    /// That connection is over.
    Closed {
        /// Its session.
        session: SessionId,
        /// A sentence.
        error: String,
    },
    /// Something for the core that comes from no connection: `Folded`, `Saved`, `Stop`.
    Input(Input),
    /// Something a person should know, seen outside the core.
    Notice(Reason),
}

/// A new control connection, as the driver needs it.
#[derive(Debug)]
pub struct Opened {
    pub(crate) session: SessionId,
    pub(crate) host: HostId,
    pub(crate) rank_count: u32,
    /// Frames to send; when it is dropped they still go out, then the connection is closed.
    pub(crate) queue: Sender<Frame>,
    /// Dropped when the connection's reader is to end.
    #[expect(dead_code, reason = "it is there to be dropped")]
    pub(crate) open: Sender<()>,
}

/// What the root reducer is told.
#[derive(Clone, Debug, PartialEq)]
pub enum ToRoot {
    /// The sizes of the model.
    Layout(LayoutSizes),
    /// What every relay hears too.
    Control(Control),
    /// A relay is gone: nothing more comes from it.
    Left(SessionId),
}

/// Where the driver's work goes.
#[derive(Debug)]
pub struct Ports {
    /// The monitor. A full one loses records, and is told how many.
    pub records: Sender<Record>,
    /// The root reducer.
    pub root: Sender<ToRoot>,
    /// Whoever writes checkpoint sets; answers with [`Input::Saved`].
    pub saves: Sender<Box<SaveRequest>>,
}

/// The owner of a [`Coordinator`].
pub struct Driver {
    core: Coordinator,
    clock: Clock,
    ports: Ports,
    peers: BTreeMap<SessionId, Opened>,
    /// What carrying out an output brought about; the core hears it once its outputs are all taken.
    pending: VecDeque<Input>,
    /// Whose frames were refused before, so that each is reported once.
    refused: BTreeSet<(SessionId, Rank, Incarnation)>,
    records_lost: u64,
    ended: Option<i32>,
}

impl Driver {
    /// A driver for `core`, whose times are `clock`'s.
    #[must_use]
    pub fn new(core: Coordinator, clock: Clock, ports: Ports) -> Driver {
        Driver {
            core,
            clock,
            ports,
            peers: BTreeMap::new(),
            pending: VecDeque::new(),
            refused: BTreeSet::new(),
            records_lost: 0,
            ended: None,
        }
    }

    /// Runs until the core ends the run; the exit status. Connections that still have something to send are left to
    /// send it: their queues are dropped with the driver.
    pub async fn drive(mut self, events: Receiver<Event>) -> i32 {
        self.drain();
        loop {
            if let Some(exit) = self.ended {
                return exit;
            }
            match self.next(&events).await {
                Some(event) => self.event(event),
                None => self.core.tick(self.clock.now()),
            }
            self.drain();
        }
    }

    /// The next event; `None` when the core's deadline comes first.
    async fn next(&self, events: &Receiver<Event>) -> Option<Event> {
        let deadline = self.core.next_deadline();
        if deadline.is_some_and(|at| at <= self.clock.now()) {
            return None;
        }
        let event = async {
            match events.recv().await {
                Ok(event) => Some(event),
                // Everybody who could tell something is gone; only time is left.
                Err(_) => future::pending().await,
            }
        };
        match deadline.and_then(|at| self.clock.instant(at)) {
            Some(at) => {
                let timer = async {
                    Timer::at(at).await;
                    None
                };
                future::or(event, timer).await
            }
            None => event.await,
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Opened(opened) => self.open(opened),
            Event::Frame { session, frame } => self.frame(session, &frame),
            Event::Closed { session, error } => self.lose(session, error),
            Event::Input(input) => self.pending.push_back(input),
            Event::Notice(reason) => self.notice(reason),
        }
    }

    fn open(&mut self, opened: Opened) {
        let (session, host, rank_count) = (opened.session, opened.host, opened.rank_count);
        self.peers.insert(session, opened);
        self.pending.push_back(Input::HostConnected { session, host, rank_count });
    }

    fn frame(&mut self, session: SessionId, frame: &Frame) {
        if !self.peers.contains_key(&session) {
            return;
        }
        let input = match edge::input(session, frame) {
            Ok(input) => input,
            Err(error) => return self.lose(session, format!("it sent {error}")),
        };
        match edge::speaker(&input) {
            Some((rank, incarnation)) if !self.core.speaks_for(session, rank, incarnation) => {
                self.refuse(session, rank, incarnation);
            }
            _ => self.pending.push_back(input),
        }
    }

    fn refuse(&mut self, session: SessionId, rank: Rank, incarnation: Incarnation) {
        if self.refused.len() < limits::REFUSED_SPEAKERS && self.refused.insert((session, rank, incarnation)) {
            let host = self.peers.get(&session).map_or_else(String::new, |peer| peer.host.name());
            let text =
                format!("host {host} spoke for {rank} ({incarnation}), which is not its own: its frames are dropped");
            self.notice(Reason::new("not-its-rank", text).about([rank]));
        }
    }

    /// The drain invariant: one input, then every output is carried out, until there is neither.
    fn drain(&mut self) {
        loop {
            while let Some(output) = self.core.poll() {
                self.carry_out(output);
            }
            match self.pending.pop_front() {
                Some(input) => self.core.handle(input, self.clock.now()),
                None => return,
            }
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::ToHost { session, control } => self.send(session, Stream::Host, Incarnation(0), &control),
            Output::ToRank { session, rank, incarnation, control } => {
                self.send(session, Stream::Rank(rank), incarnation, &control);
            }
            Output::Broadcast(control) => self.broadcast(control),
            Output::Layout(layout) => self.tell_root(ToRoot::Layout(layout)),
            Output::CloseHost { session } => {
                if self.peers.remove(&session).is_some() {
                    self.tell_root(ToRoot::Left(session));
                }
            }
            Output::Save(request) => self.save(request),
            Output::Record(body) => self.record(body),
            Output::End { exit } => self.ended = Some(exit),
        }
    }

    fn broadcast(&mut self, control: Control) {
        let frame = Frame::control(Stream::AllRanks, Incarnation(0), &control);
        for session in self.peers.keys().copied().collect::<Vec<_>>() {
            self.enqueue(session, frame.clone());
        }
        self.tell_root(ToRoot::Control(control));
    }

    fn send(&mut self, session: SessionId, stream: Stream, incarnation: Incarnation, control: &Control) {
        self.enqueue(session, Frame::control(stream, incarnation, control));
    }

    /// Queues a frame. A relay that takes none, or a frame that cannot be made, ends the connection: skipping a control
    /// message would leave both sides with different ideas of the run.
    fn enqueue(&mut self, session: SessionId, frame: Result<Frame, EncodeError>) {
        let Some(peer) = self.peers.get(&session) else { return };
        let error = match frame.map(|frame| peer.queue.try_send(frame)) {
            Ok(Ok(())) => return,
            Ok(Err(TrySendError::Full(_))) => {
                format!("it took none of the last {} control messages", limits::CONTROL_QUEUE)
            }
            Ok(Err(TrySendError::Closed(_))) => "its connection is closed".to_owned(),
            Err(error) => format!("a message for it cannot be sent: {error}"),
        };
        self.lose(session, error);
    }

    /// The connection is over, as far as the controller is concerned.
    fn lose(&mut self, session: SessionId, error: String) {
        if self.peers.remove(&session).is_some() {
            self.tell_root(ToRoot::Left(session));
            self.pending.push_back(Input::HostLost { session, error });
        }
    }

    fn tell_root(&mut self, order: ToRoot) {
        if self.ports.root.try_send(order).is_err() {
            // Without the root nothing can be averaged; the core's own deadline for the round says so if this did not.
            self.notice(Reason::new("root-gone", "the root reducer takes no orders any more"));
        }
    }

    fn save(&mut self, request: Box<SaveRequest>) {
        if let Err(error) = self.ports.saves.try_send(request) {
            let version = error.into_inner().version;
            let result = Err("the checkpoint before this one is still being written".to_owned());
            self.pending.push_back(Input::Saved { version, result });
        }
    }

    fn notice(&mut self, reason: Reason) {
        self.record(Body::Event(Box::new(RecordEvent { kind: EventKind::Alert, reason: Some(reason) })));
    }

    /// Hands a record to the monitor, and never waits for it.
    fn record(&mut self, body: Body) {
        let at = self.clock.now();
        if self.records_lost > 0 {
            let text = format!("the monitor is too slow: {} records are not in the timeline", self.records_lost);
            let reason = Some(Reason::new("records-lost", text));
            let body = Body::Event(Box::new(RecordEvent { kind: EventKind::Alert, reason }));
            if self.ports.records.try_send(Record { at, body }).is_ok() {
                self.records_lost = 0;
            }
        }
        if self.ports.records.try_send(Record { at, body }).is_err() {
            self.records_lost += 1;
        }
    }
}

/// Waits until whoever still holds a sender of `busy` is done, at most `at_most`.
pub async fn settle(busy: Receiver<()>, at_most: Duration) {
    let done = async { while busy.recv().await.is_ok() {} };
    let timer = async {
        Timer::after(at_most).await;
    };
    future::or(done, timer).await;
}

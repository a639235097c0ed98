//! The one task that owns the core: takes events, hands them over as inputs, and carries out what the core asks for.

use super::clock::Clock;
use super::edge;
use super::limits;
use crate::journal::Entry;
use crate::{Coordinator, Input, Output, SaveRequest};
use async_channel::{Receiver, Sender, TrySendError};
use core::time::Duration;
use flodl_wire::codec::EncodeError;
use flodl_wire::message::Control;
use flodl_wire::message::Record;
use flodl_wire::message::join::LayoutSizes;
use flodl_wire::message::record::{Body, Event as RecordEvent, EventKind, Reason};
use flodl_wire::{Frame, Stream};
use flodl_wire::{HostId, Incarnation, Rank, Round, SessionId, Version};
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
    pub(crate) entrance: Entrance,
    /// Frames to send; when it is dropped they still go out, then the connection is closed.
    pub(crate) queue: Sender<Frame>,
    /// Dropped when the connection's reader is to end.
    #[expect(dead_code, reason = "it is there to be dropped")]
    pub(crate) open: Sender<()>,
}

/// How a relay comes in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// For the first time, with so many ranks.
    With(u32),
    /// Again, after its link was lost; its first session was this.
    Again(SessionId),
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
    /// After a restart: that session's relay is asked for the consensus in force.
    Restore {
        /// The session.
        session: SessionId,
        /// The number that its chunks will have.
        round: Round,
        /// The consensus.
        version: Version,
        /// Its digest.
        digest: u64,
    },
}

/// The root reducer, as the driver needs it.
pub trait Reducer: Send {
    /// Takes an order at once, before any relay hears of it: what a relay sends for a round must find the round open.
    ///
    /// # Errors
    /// A sentence, where it takes none any more.
    fn order(&mut self, order: ToRoot) -> Result<(), String>;
}

/// What writes checkpoint sets.
pub trait Saves: Send {
    /// Writes the set of the consensus that the root has when this is called, whatever it commits afterwards. It takes its
    /// time elsewhere, and answers with [`Input::Saved`].
    ///
    /// # Errors
    /// A sentence, where it takes none now.
    fn save(&mut self, request: Box<SaveRequest>) -> Result<(), String>;
}

/// Where the driver's work goes.
pub struct Ports {
    /// The monitor. A full one loses records, and is told how many.
    pub records: Sender<Record>,
    /// The root reducer.
    pub root: Box<dyn Reducer>,
    /// Whoever writes checkpoint sets.
    pub saves: Box<dyn Saves>,
    /// Whoever writes the journal, where there is one. A full one loses entries, and is told everything again later.
    pub journal: Option<Sender<Entry>>,
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
        let (session, host, entrance) = (opened.session, opened.host, opened.entrance);
        let input = match entrance {
            Entrance::With(rank_count) => Input::HostConnected { session, host, rank_count },
            Entrance::Again(first) => {
                let older = self.peers.values().find(|peer| peer.host == host).map(|peer| peer.session);
                if let Some(older) = older {
                    self.lose(older, "its relay has connected anew".to_owned());
                }
                Input::HostResumed { session, host, first }
            }
        };
        self.peers.insert(session, opened);
        self.pending.push_back(input);
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
            Some((rank, incarnation))
                if !self.core.speaks_for(session, rank, incarnation) && !self.core.outlived(rank, incarnation) =>
            {
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
            Output::Restore { session, round, version, digest } => {
                self.tell_root(ToRoot::Restore { session, round, version, digest });
            }
            Output::Journal(entry) => self.journal(entry),
            Output::Record(body) => self.record(body),
            Output::End { exit } => self.ended = Some(exit),
        }
    }

    fn broadcast(&mut self, control: Control) {
        let frame = Frame::control(Stream::AllRanks, Incarnation(0), &control);
        self.tell_root(ToRoot::Control(control));
        for session in self.peers.keys().copied().collect::<Vec<_>>() {
            self.enqueue(session, frame.clone());
        }
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
        if let Err(error) = self.ports.root.order(order) {
            // Nothing can be averaged without it; the gate's own report says what is missing.
            self.notice(Reason::new("root-gone", error));
        }
    }

    fn save(&mut self, request: Box<SaveRequest>) {
        let version = request.version;
        if let Err(error) = self.ports.saves.save(request) {
            self.pending.push_back(Input::Saved { version, result: Err(error) });
        }
    }

    /// Hands an entry to the journal, and never waits for it: a change that is lost is made good by the next complete record.
    fn journal(&mut self, entry: Entry) {
        let Some(journal) = &self.ports.journal else { return };
        if journal.try_send(entry).is_err() {
            self.notice(Reason::new("journal-late", "the journal is too slow: it misses an entry"));
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

/// Waits until whoever still holds a sender of `busy` is done, at most `at_most`. Whether that was in time.
pub async fn settle(busy: &Receiver<()>, at_most: Duration) -> bool {
    let done = async {
        while busy.recv().await.is_ok() {}
        true
    };
    let late = async {
        Timer::after(at_most).await;
        false
    };
    future::or(done, late).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Duties, Membership, Scheduling, Slowing};
    use flodl_wire::message::{HostReport, Report};
    use flodl_wire::{RunId, Time};

    const SESSION: SessionId = SessionId(4);

    /// A driver with one relay of two ranks, and the far ends of its channels.
    struct Rig {
        driver: Driver,
        queued: Receiver<Frame>,
        records: Receiver<Record>,
        root: Receiver<ToRoot>,
        saves: Receiver<Box<SaveRequest>>,
    }

    struct Orders(Sender<ToRoot>);

    impl Reducer for Orders {
        fn order(&mut self, order: ToRoot) -> Result<(), String> {
            self.0.try_send(order).map_err(|error| error.to_string())
        }
    }

    struct Sets(Sender<Box<SaveRequest>>);

    impl Saves for Sets {
        fn save(&mut self, request: Box<SaveRequest>) -> Result<(), String> {
            self.0.try_send(request).map_err(|_| "busy".to_owned())
        }
    }

    impl Rig {
        fn new(queue: usize) -> Rig {
            let config = Config {
                run_id: RunId([1; 16]),
                world_size: 2,
                min_ranks: 1,
                mode: flodl_elche::Mode::CpuCadence,
                epochs: None,
                epoch_splits: 1,
                batch_size: None,
                seed: 0,
                patience: Duration::from_secs(10),
                slow: Slowing::default(),
                membership: Membership::default(),
                scheduling: Scheduling::default(),
                duties: Duties::default(),
            };
            let core = Coordinator::new(config, Time::ZERO).expect("is sound");
            let (record, records) = async_channel::bounded(100);
            let (orders, root) = async_channel::bounded(100);
            let (request, saves) = async_channel::bounded(1);
            let ports = Ports {
                records: record,
                root: Box::new(Orders(orders)),
                saves: Box::new(Sets(request)),
                journal: None,
            };
            let mut driver = Driver::new(core, Clock::new(), ports);
            let (queue, queued) = async_channel::bounded(queue);
            let (open, _) = async_channel::bounded(1);
            let host = HostId::from_name("a").expect("is a name");
            driver.event(Event::Opened(Opened { session: SESSION, host, entrance: Entrance::With(2), queue, open }));
            driver.drain();
            Rig { driver, queued, records, root, saves }
        }

        fn sends(&mut self, frame: Frame) {
            self.driver.event(Event::Frame { session: SESSION, frame });
            self.driver.drain();
        }

        fn alerts(&self) -> Vec<String> {
            let alert = |record: Record| match record.body {
                Body::Event(event) if event.kind == EventKind::Alert => event.reason.map(|reason| reason.code),
                _ => None,
            };
            core::iter::from_fn(|| self.records.try_recv().ok()).filter_map(alert).collect()
        }
    }

    #[test]
    fn a_relay_is_admitted_through_its_queue() {
        let rig = Rig::new(10);
        let frame = rig.queued.try_recv().expect("something is queued");
        assert_eq!(frame.stream, Stream::Host);
        assert!(matches!(frame.to_control(), Ok(Control::Admit(admit)) if admit.ids.len() == 2));
    }

    #[test]
    fn a_rank_of_another_host_is_refused_once_and_the_link_stays() {
        let mut rig = Rig::new(10);
        for rank in [7, 7, 7] {
            rig.sends(Frame::report(Rank(rank), Incarnation(1), &Report::Heartbeat { step: 1 }).expect("fits"));
        }
        assert_eq!(rig.alerts(), ["not-its-rank"]);
        rig.sends(Frame::report(Rank(1), Incarnation(1), &Report::Heartbeat { step: 1 }).expect("fits"));
        assert_eq!(rig.alerts(), [""; 0]);
        assert!(!rig.queued.is_closed());
    }

    #[test]
    fn what_cannot_be_read_closes_the_connection() {
        let mut rig = Rig::new(10);
        let mut frame = Frame::host_report(&HostReport::Heartbeat).expect("fits");
        frame.payload = vec![0xff; 30].into();
        rig.sends(frame);
        assert!(rig.queued.is_closed(), "its writer ends");
        assert_eq!(rig.root.try_recv(), Ok(ToRoot::Left(SESSION)));
    }

    #[test]
    fn a_relay_that_takes_nothing_is_closed_when_its_queue_is_full() {
        let mut rig = Rig::new(2);
        rig.driver.broadcast(Control::Heartbeat);
        assert!(!rig.queued.is_closed());
        rig.driver.broadcast(Control::Heartbeat);
        assert!(rig.queued.is_closed());
        assert_eq!(rig.queued.len(), 2, "what was queued before still goes out");
    }

    #[test]
    fn broadcasts_reach_the_root_too() {
        let mut rig = Rig::new(10);
        rig.driver.broadcast(Control::Shutdown);
        assert_eq!(rig.root.try_recv(), Ok(ToRoot::Control(Control::Shutdown)));
        let last = core::iter::from_fn(|| rig.queued.try_recv().ok()).last().expect("is queued");
        assert_eq!((last.stream, last.to_control()), (Stream::AllRanks, Ok(Control::Shutdown)));
    }

    #[test]
    fn records_that_do_not_fit_are_counted_and_told() {
        let mut rig = Rig::new(10);
        rig.alerts();
        for _ in 0..103 {
            rig.driver.notice(Reason::new("test", "a test"));
        }
        assert_eq!(rig.alerts().len(), 100);
        rig.driver.notice(Reason::new("test", "a test"));
        assert_eq!(rig.alerts(), ["records-lost", "test"]);
    }

    #[test]
    fn a_second_checkpoint_while_one_is_written_is_an_answer_not_a_wait() {
        let mut rig = Rig::new(10);
        let request = || {
            Box::new(SaveRequest {
                version: flodl_wire::Version(1),
                tensors: Vec::new(),
                epoch: flodl_wire::Epoch(0),
                epochs: 1,
                global_step: 0,
                seed: 0,
                dataset_len: 1,
                epoch_len: 1,
                batch_size: 1,
                coverage: Vec::new(),
                anchor: 1,
                why: String::new(),
            })
        };
        rig.driver.save(request());
        rig.driver.save(request());
        assert_eq!(rig.saves.len(), 1);
        assert!(matches!(rig.driver.pending.pop_front(), Some(Input::Saved { result: Err(_), .. })));
    }
}

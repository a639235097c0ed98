//! A host's process: the production relay and fold, and around them what the shell and the agent of processes do.

use super::fabric::{Event, Fabric};
use super::mutant::Mutant;
use super::net::{ConnId, Lane, Node, Packet};
use super::rounding::Shadow;
use super::violation::Rule;
use flodl_cpureduce::Codec;
use flodl_relay::fold::{self, HostFold, Order};
use flodl_relay::limits::DIAL_PAUSE;
use flodl_relay::relay::{self, Answer, Closing, Newest, Relay, Warning};
use flodl_relay::routes::{Connection, Peer};
use flodl_wire::handshake::Channel;
use flodl_wire::message::{Control, Data, Report};
use flodl_wire::{Frame, Incarnation, Rank, Round, SessionId, Stream};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

type Life = (Rank, Incarnation);

/// What came on a rank's data connection and is not folded yet.
#[derive(Debug, Default)]
struct Source {
    inbox: VecDeque<Data>,
    /// Nothing more comes.
    ended: bool,
}

/// The process of one relay.
pub(crate) struct Host {
    me: u32,
    /// Which relay of this host it is.
    number: u32,
    relay: Relay,
    fold: HostFold,
    /// What its sums must look like where they are rounded.
    shadow: Option<Shadow>,
    /// Control and data to the controller, while there is a link.
    uplink: Option<(ConnId, ConnId)>,
    conns: BTreeMap<ConnId, (Life, Lane)>,
    sources: BTreeMap<Life, Source>,
    /// The process of each life that was started.
    pub(crate) seats: BTreeMap<Life, u32>,
    round: Option<Round>,
    /// What its ranks said of windows and rounds, and how far it sent which round: nothing of it goes up twice.
    sent: Sent,
    pub(crate) ended: bool,
    newest: Newest,
    /// It has been with that controller.
    generation: u64,
    /// It has just reached one that it does not listen to.
    pub(crate) astray: bool,
}

/// What went up, through whatever link.
#[derive(Debug, Default)]
struct Sent {
    words: BTreeSet<(Rank, Incarnation, Vec<u8>)>,
    chunk: Option<(Round, u32)>,
    /// The last word of a window or round.
    last: Option<Frame>,
}

impl Sent {
    /// What goes up twice, if this does.
    fn frame(&mut self, frame: &Frame) -> Option<String> {
        let Stream::Rank(rank) = frame.stream else { return None };
        match frame.to_report() {
            Ok(Report::WindowReport(_) | Report::SnapshotReady { .. } | Report::SyncAck(_) | Report::NcclAck(_)) => {
                self.last = Some(frame.clone());
                let word = (rank, frame.incarnation, frame.payload.to_vec());
                (!self.words.insert(word)).then(|| format!("a report of {rank} goes up twice"))
            }
            _ => None,
        }
    }

    fn data(&mut self, data: &Data) -> Option<String> {
        let Data::Contribution(chunk) = data else { return None };
        let before = self.chunk.replace((chunk.round, chunk.chunk));
        let twice = before.is_some_and(|before| before >= (chunk.round, chunk.chunk));
        twice.then(|| format!("chunk {} of {} goes up after {before:?}", chunk.chunk, chunk.round))
    }
}

impl Host {
    /// A relay whose handshakes with the controller are done.
    pub(crate) fn new(fab: &mut Fabric, me: u32, number: u32, conns: (ConnId, ConnId)) -> Host {
        let patience = fab.options.work.patience;
        let relay = Relay::new(patience, fab.local(Node::Host(me)))
            .of_session(SessionId(u64::from(conns.0.0)))
            .resuming(true)
            .restarting(fab.options.work.restarts);
        let codec = fab.options.wire;
        let mut host = Host {
            me,
            number,
            relay,
            fold: HostFold::new(patience),
            shadow: (codec != Codec::F32).then(|| Shadow::new(codec, HostFold::new(patience))),
            uplink: Some(conns),
            conns: BTreeMap::new(),
            sources: BTreeMap::new(),
            seats: BTreeMap::new(),
            round: None,
            sent: Sent::default(),
            ended: false,
            newest: Newest::new(0),
            generation: 0,
            astray: false,
        };
        host.feed(fab, relay::Input::Wire(codec));
        host
    }

    /// The same, under the run's so-manieth controller.
    pub(crate) fn under(self, generation: u64) -> Host {
        Host { newest: Newest::new(generation), generation, ..self }
    }

    fn node(&self) -> Node {
        Node::Host(self.me)
    }

    /// A rank's process has connected, with both connections.
    pub(crate) fn welcome(&mut self, fab: &mut Fabric, (rank, incarnation): Life, (control, data): (ConnId, ConnId)) {
        let session = SessionId(u64::from(control.0));
        for (conn, lane, channel) in [(control, Lane::Control, Channel::Control), (data, Lane::Data, Channel::Data)] {
            self.conns.insert(conn, ((rank, incarnation), lane));
            let peer = Peer { rank, incarnation, channel, session };
            self.feed(fab, relay::Input::Connected { connection: connection(conn), peer });
        }
        self.sources.insert((rank, incarnation), Source::default());
    }

    pub(crate) fn arrive(&mut self, fab: &mut Fabric, conn: ConnId, packet: Packet) {
        if self.ended {
            return;
        }
        if self.uplink.is_some_and(|(control, data)| conn == control || conn == data) {
            return self.controller_says(fab, packet);
        }
        let Some(&((rank, incarnation), lane)) = self.conns.get(&conn) else { return };
        match (lane, packet) {
            (Lane::Control, Packet::Frame(frame)) => {
                self.feed(fab, relay::Input::RankFrame { connection: connection(conn), frame });
            }
            (Lane::Data, Packet::Data(data)) => {
                if let Some(source) = self.sources.get_mut(&(rank, incarnation)) {
                    source.inbox.push_back(data);
                }
                self.pump(fab);
            }
            (lane, Packet::End(why)) => {
                if lane == Lane::Data
                    && let Some(source) = self.sources.get_mut(&(rank, incarnation))
                {
                    source.ended = true;
                }
                self.conns.remove(&conn);
                self.feed(fab, relay::Input::Closed { connection: connection(conn), why: why.to_owned() });
            }
            (Lane::Control, Packet::Data(_)) | (Lane::Data, Packet::Frame(_)) | (_, Packet::Sealed { .. }) => {
                fab.ledger.broken(Rule::Growth, "a packet came on the wrong connection");
            }
        }
    }

    fn controller_says(&mut self, fab: &mut Fabric, packet: Packet) {
        match packet {
            Packet::Frame(frame) => {
                let is_end = matches!(frame.to_control(), Ok(Control::Shutdown));
                self.round_ends(fab, &frame);
                self.feed(fab, relay::Input::Upstream(frame));
                if is_end
                    && fab.off(Mutant::Dismissal)
                    && let Ok(frame) = Frame::control(Stream::Host, Incarnation(0), &Control::Dismissed)
                {
                    self.feed(fab, relay::Input::Upstream(frame));
                }
            }
            Packet::Data(data) => self.feed(fab, relay::Input::Result(data)),
            Packet::End(_) if fab.off(Mutant::ControllerWatch) => {}
            Packet::End(why) => self.feed(fab, relay::Input::UpstreamLost { why: why.to_owned() }),
            Packet::Sealed { .. } => {}
        }
    }

    /// Which of what it lost by rounding counts from now on.
    fn round_ends(&mut self, fab: &mut Fabric, frame: &Frame) {
        let Some(shadow) = &mut self.shadow else { return };
        if let (Stream::AllRanks | Stream::Host, Ok(Control::RoundDone { round, outcome, .. })) =
            (frame.stream, fab.control(frame))
        {
            let ranks: Vec<Rank> = fab.ranks_of(self.me).collect();
            shadow.ends(&fab.ledger, (round, outcome), &ranks);
        }
    }

    /// The agent of processes has something to tell.
    pub(crate) fn told(&mut self, fab: &mut Fabric, number: u32, input: relay::Input) {
        if number == self.number && !self.ended {
            self.feed(fab, input);
        }
    }

    pub(crate) fn wake(&mut self, fab: &mut Fabric) {
        if self.ended {
            return;
        }
        let now = fab.local(self.node());
        if fab.off(Mutant::ControllerWatch)
            && let Ok(frame) = Frame::control(Stream::AllRanks, Incarnation(0), &Control::Heartbeat)
        {
            self.relay.handle(relay::Input::Upstream(frame), now);
        }
        if self.fold.next_deadline().is_some_and(|at| at <= now) {
            self.fold(fab, fold::Input::Tick);
        }
        self.feed(fab, relay::Input::Tick);
    }

    /// Gives the relay an input and what follows from it.
    fn feed(&mut self, fab: &mut Fabric, input: relay::Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            if let relay::Input::Closed { connection, .. } = &input {
                fab.close(self.node(), conn(*connection), "its relay closed it");
            }
            self.relay.handle(input, fab.local(self.node()));
            while let Some(output) = self.relay.poll() {
                self.act(fab, output, &mut inputs);
            }
        }
        self.pump(fab);
        let node = self.node();
        fab.wake(node, self.relay.next_deadline().filter(|_| !self.ended));
        fab.wake(node, self.fold.next_deadline().filter(|_| !self.ended));
    }

    fn act(&mut self, fab: &mut Fabric, output: relay::Output, inputs: &mut VecDeque<relay::Input>) {
        let me = self.node();
        match output {
            relay::Output::Up(frame) => self.up(fab, frame),
            relay::Output::Fold(order) => inputs.extend(self.order(fab, order)),
            relay::Output::ToRank { connection, frame } => fab.frame(me, conn(connection), frame),
            relay::Output::Result { connection, chunk } => fab.chunk(me, conn(connection), chunk),
            relay::Output::Start { rank, incarnation, .. } => {
                let again = if incarnation.0 > 1 { fab.options.starting_ns } else { 0 };
                let spawning = again + fab.rng.within(1_000_000, 50_000_000);
                let (host, relay) = (self.me, self.number);
                fab.after(spawning, Event::Start { host, relay, life: (rank, incarnation) });
            }
            relay::Output::Kill { rank, incarnation } => {
                if let Some(&seat) = self.seats.get(&(rank, incarnation))
                    && !fab.off(Mutant::KillTheDead)
                {
                    fab.after(100_000, Event::Kill(Node::Seat(seat)));
                }
            }
            relay::Output::Close { connection, .. } => fab.close(me, conn(connection), "its relay closed it"),
            relay::Output::Redial { session } => self.redial(fab, session),
            relay::Output::Offer(chunks) => {
                for (chunk, (_, uplink)) in chunks.into_iter().filter_map(|chunk| Some((chunk, self.uplink?))) {
                    fab.send(me, uplink, Packet::Data(Data::Contribution(chunk)));
                }
            }
            relay::Output::Warn(warning) => self.warned(fab, &warning),
            relay::Output::End(how) => {
                fab.say(|| format!("host {} ends: {how:?}", self.me));
                self.ended = true;
            }
        }
    }

    fn up(&mut self, fab: &mut Fabric, frame: Frame) {
        if let Some((control, _)) = self.uplink {
            let twice = self.sent.frame(&frame);
            twice.into_iter().for_each(|what| fab.ledger.broken(Rule::Reattach, what));
            fab.frame(self.node(), control, frame);
        }
    }

    /// A relay warns of what should not be: that is somebody's fault, or the relay's own.
    fn warned(&self, fab: &mut Fabric, warning: &Warning) {
        fab.say(|| format!("host {} warns: {warning}", self.me));
        let innocent = !fab.ranks_of(self.me).any(|rank| fab.forged.contains(&rank));
        let accuses = matches!(
            warning,
            Warning::Closed(Closing::Breach(_) | Closing::Data(_)) | Warning::Misplaced(_) | Warning::Undecodable(_)
        );
        if innocent && accuses {
            let what = format!("the relay of host {} warns of {warning}, and nothing was done there", self.me);
            fab.ledger.broken(Rule::Innocence, what);
        }
    }

    fn order(&mut self, fab: &mut Fabric, order: Order) -> Vec<relay::Input> {
        if let Order::Open { round, .. } = &order {
            self.round = Some(*round);
        }
        if matches!(order, Order::Drop { .. }) && fab.off(Mutant::FoldDrop) {
            return Vec::new();
        }
        if let (Order::Close { round }, true) = (&order, fab.off(Mutant::LostAtCommit)) {
            let early = Order::Commit { round: *round, chunks: u32::MAX };
            self.fold.handle(fold::Input::Order(early), fab.local(self.node()));
        }
        self.fold(fab, fold::Input::Order(order))
    }

    /// Gives the fold what it wants of what has come.
    fn pump(&mut self, fab: &mut Fabric) {
        let mut told = Vec::new();
        let has_more = |(_, source): &(&Life, &Source)| source.ended || !source.inbox.is_empty();
        let lives: Vec<Life> = self.sources.iter().filter(has_more).map(|(&life, _)| life).collect();
        for (rank, incarnation) in lives {
            while let Some(source) = self.sources.get_mut(&(rank, incarnation)) {
                let data = if self.fold.wants(rank) { source.inbox.pop_front() } else { None };
                let input = match data {
                    Some(data) => {
                        let data = relabelled(fab, self.round, data);
                        fold::Input::Data { rank, incarnation, data }
                    }
                    None if source.ended && source.inbox.is_empty() => {
                        self.sources.remove(&(rank, incarnation));
                        if fab.off(Mutant::FoldDrop) {
                            break;
                        }
                        fold::Input::Ended { rank, incarnation }
                    }
                    None => break,
                };
                told.extend(self.fold(fab, input));
            }
        }
        for input in told {
            self.feed(fab, input);
        }
    }

    /// One input of the fold; what it tells the relay is given back.
    fn fold(&mut self, fab: &mut Fabric, input: fold::Input) -> Vec<relay::Input> {
        let me = self.node();
        let now = fab.local(me);
        self.shadow.iter_mut().for_each(|shadow| shadow.hears(&input, now));
        self.fold.handle(input, now);
        let mut told = Vec::new();
        while let Some(output) = self.fold.poll() {
            match output {
                fold::Output::Up(data) => {
                    let wrong = self.shadow.as_mut().and_then(|shadow| shadow.sends(&fab.ledger, &data));
                    wrong.into_iter().for_each(|what| fab.ledger.broken(Rule::Average, what));
                    let data = doubled(fab, data);
                    // Sums of a round that goes on without this host are of no use to anybody.
                    if let Some((_, uplink)) = self.uplink {
                        let twice = self.sent.data(&data);
                        twice.into_iter().for_each(|what| fab.ledger.broken(Rule::Reattach, what));
                        fab.send(me, uplink, Packet::Data(data));
                    }
                }
                output => told.push(relay::Input::Fold(output)),
            }
        }
        told
    }

    /// Its connections to the controller, while there is a link.
    pub(crate) fn upstream(&self) -> Option<(ConnId, ConnId)> {
        self.uplink
    }

    /// Lets go of a broken link and dials again.
    fn redial(&mut self, fab: &mut Fabric, first: SessionId) {
        let Some(conns) = self.uplink.take() else { return };
        self.hangs_up(fab, conns);
        // Two handshakes of a round trip and a half each, one after the other.
        let trips = 3.0 * (fab.options.wide[0].latency_ns + fab.options.wide[1].latency_ns);
        let dialling = fab.rng.within(100_000, 5_000_000) + trips as u64;
        fab.after(dialling, Event::Redial { host: self.me, relay: self.number, first });
    }

    /// What the controller would say once it knew where each rank stands.
    fn attach_all(&mut self, fab: &mut Fabric) {
        for (rank, incarnation) in self.seats.keys().copied().collect::<Vec<Life>>() {
            if let Ok(frame) = Frame::control(Stream::Rank(rank), incarnation, &Control::ControllerBack) {
                self.feed(fab, relay::Input::Upstream(frame));
            }
        }
    }

    fn hangs_up(&self, fab: &mut Fabric, (control, data): (ConnId, ConnId)) {
        for conn in [control, data] {
            fab.close(self.node(), conn, "its relay closed it");
        }
    }

    /// The run's so-manieth controller, to which it was last connected.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The controller's door is open again.
    pub(crate) fn resumed(&mut self, fab: &mut Fabric, conns: (ConnId, ConnId), (generation, first): (u64, SessionId)) {
        let answer = match self.newest.answers(generation) {
            Answer::Outlived if fab.off(Mutant::Generation) => Answer::Same,
            answer => answer,
        };
        if answer == Answer::Outlived {
            fab.say(|| format!("host {} does not listen to controller {generation}", self.me));
            self.hangs_up(fab, conns);
            self.astray = true;
            return fab.after(DIAL_PAUSE.as_nanos() as u64, Event::Redial { host: self.me, relay: self.number, first });
        }
        (self.uplink, self.generation, self.astray) = (Some(conns), generation, false);
        let anew = answer == Answer::Anew;
        if anew {
            // Another controller has heard nothing yet.
            self.sent = Sent::default();
        }
        self.feed(fab, relay::Input::Resumed { session: SessionId(u64::from(conns.0.0)), anew });
        if fab.off(Mutant::Attachment) {
            self.attach_all(fab);
        }
        if fab.off(Mutant::NothingTwice)
            && let Some(frame) = self.sent.last.clone()
        {
            self.up(fab, frame);
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// A rank's process runs.
    pub(crate) fn seated(&mut self, fab: &mut Fabric, life: Life, seat: u32) {
        self.seats.insert(life, seat);
        let (rank, incarnation) = life;
        self.feed(fab, relay::Input::Started { rank, incarnation, pid: 1000 + seat });
    }
}

fn connection(conn: ConnId) -> Connection {
    Connection(u64::from(conn.0))
}

fn conn(connection: Connection) -> ConnId {
    ConnId(connection.0 as u32)
}

/// What a fold without the check of rounds would take.
fn relabelled(fab: &Fabric, open: Option<Round>, mut data: Data) -> Data {
    if let (true, Some(open), Data::Contribution(chunk)) = (fab.off(Mutant::RoundNumber), open, &mut data) {
        chunk.round = open;
    }
    data
}

/// What a source that scales once too often would send.
fn doubled(fab: &Fabric, mut data: Data) -> Data {
    if let (true, Data::Contribution(chunk)) = (fab.off(Mutant::MassDivision), &mut data) {
        chunk.mass *= 2.0;
    }
    data
}

//! One whole round through both tiers in memory: two relays with their folds, and the root, with ranks that are only
//! data. What a process would send is given to the cores; what they give back is carried on by hand.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use core::time::Duration;
use flodl_cpureduce::{Digest, Mass, contribution_chunk};
use flodl_relay::fold::{self, HostFold, Order};
use flodl_relay::relay::{self, Relay};
use flodl_relay::root::{self, Codec, Root};
use flodl_relay::routes::{Connection, Peer};
use flodl_wire::frame::{Frame, Stream};
use flodl_wire::handshake::Channel;
use flodl_wire::message::control::{Next, Part, RosterEntry, RoundOutcome};
use flodl_wire::message::data::{self, AbsentWhy, Chunk};
use flodl_wire::message::join::{Admit, LayoutSizes, RunConfig};
use flodl_wire::message::record::Reason;
use flodl_wire::message::report::{Folded, FoldedPart};
use flodl_wire::message::{Control, Data};
use flodl_wire::{Incarnation, Rank, Round, RunId, SessionId, Time, Version};
use std::collections::BTreeMap;

const LIFE: Incarnation = Incarnation(1);
const PATIENCE: Duration = Duration::from_secs(10);
const NOW: Time = Time(5);
/// Two chunks of parameters, the second of one element.
const SIZES: LayoutSizes = LayoutSizes { parameters: 65_537, buffers: 0, integers: 0 };

/// A host's relay and fold, driven together as a shell does.
struct Host {
    relay: Relay,
    fold: HostFold,
}

/// Everything from the ranks' sockets to the commit.
struct Tiers {
    hosts: BTreeMap<SessionId, Host>,
    root: Root,
    /// Whole results, as each rank received them.
    received: BTreeMap<Connection, Vec<Chunk>>,
    /// What the root was told is missing.
    dropped: Vec<(Rank, u32, AbsentWhy)>,
    folded: Vec<Folded>,
    /// How far the values of a contribution lie apart.
    spread: f32,
    /// Bytes of elements that went up and down since they were last looked at.
    carried: [usize; 2],
    /// Up to which chunk what a relay lost by rounding counts.
    commits: Vec<(SessionId, u32)>,
    /// Rounds that were opened.
    opened: u64,
}

impl Tiers {
    fn new(ranks: &[(SessionId, &[u32])]) -> Tiers {
        Tiers::coded(ranks, Codec::F32)
    }

    fn coded(ranks: &[(SessionId, &[u32])], codec: Codec) -> Tiers {
        let mut tiers = Tiers {
            hosts: BTreeMap::new(),
            root: Root::new(PATIENCE).with_codec(codec),
            received: BTreeMap::new(),
            dropped: Vec::new(),
            folded: Vec::new(),
            spread: 0.0,
            carried: [0; 2],
            commits: Vec::new(),
            opened: 0,
        };
        tiers.root.handle(root::Input::Layout(SIZES), NOW);
        for &(session, ranks) in ranks {
            let host = Host { relay: Relay::new(PATIENCE, NOW), fold: HostFold::new(PATIENCE) };
            tiers.hosts.insert(session, host);
            tiers.relay(session, relay::Input::Wire(codec));
            let ids = ranks.iter().map(|&rank| (Rank(rank), LIFE)).collect();
            let admit = Control::Admit(Admit { session, ids, world_size: 3 });
            tiers.order(session, Stream::Host, &admit);
            for &rank in ranks {
                for (offset, channel) in [(0, Channel::Control), (1, Channel::Data)] {
                    let connection = Connection(u64::from(rank) * 2 + offset);
                    let peer = Peer { rank: Rank(rank), incarnation: LIFE, channel, session: SessionId(rank.into()) };
                    tiers.relay(session, relay::Input::Connected { connection, peer });
                }
                tiers.order(session, Stream::Rank(Rank(rank)), &Control::Admitted(Box::new(config())));
            }
        }
        tiers
    }

    fn order(&mut self, session: SessionId, stream: Stream, control: &Control) {
        let incarnation = if matches!(stream, Stream::Rank(_)) { LIFE } else { Incarnation(0) };
        let frame = Frame::control(stream, incarnation, control).unwrap();
        self.relay(session, relay::Input::Upstream(frame));
    }

    /// Everything that the coordinator tells all: the root first, then every relay.
    fn broadcast(&mut self, control: &Control) {
        self.opened += u64::from(matches!(control, Control::RequestParams { .. }));
        self.root.handle(root::Input::Control(control.clone()), NOW);
        self.drain_root();
        let sessions: Vec<SessionId> = self.hosts.keys().copied().collect();
        sessions.into_iter().for_each(|session| self.order(session, Stream::AllRanks, control));
    }

    fn relay(&mut self, session: SessionId, input: relay::Input) {
        let host = self.hosts.get_mut(&session).unwrap();
        host.relay.handle(input, NOW);
        let mut orders = Vec::new();
        while let Some(output) = host.relay.poll() {
            match output {
                relay::Output::Fold(order) => {
                    if let Order::Commit { chunks, .. } = &order {
                        self.commits.push((session, *chunks));
                    }
                    orders.push(order);
                }
                relay::Output::Result { connection, chunk } => self.received.entry(connection).or_default().push(chunk),
                _ => {}
            }
        }
        orders.into_iter().for_each(|order| self.fold(session, fold::Input::Order(order)));
    }

    fn fold(&mut self, session: SessionId, input: fold::Input) {
        let fold = &mut self.hosts.get_mut(&session).unwrap().fold;
        fold.handle(input, NOW);
        let mut up = Vec::new();
        while let Some(output) = fold.poll() {
            match output {
                fold::Output::Up(data) => up.push(data),
                other => panic!("{other:?}"),
            }
        }
        for data in up {
            if let Data::Dropped { rank, from_chunk, why, .. } = data {
                self.dropped.push((rank, from_chunk, why));
            }
            if let Data::Contribution(chunk) = &data {
                self.carried[0] += chunk.bytes.len();
            }
            self.root.handle(root::Input::Data { session, data }, NOW);
            self.drain_root();
        }
    }

    fn drain_root(&mut self) {
        let mut results = Vec::new();
        while let Some(output) = self.root.poll() {
            match output {
                root::Output::Result { session, chunk } => {
                    self.carried[1] += chunk.bytes.len();
                    results.push((session, Data::Consensus(chunk)));
                }
                root::Output::LeftOut { session, data } => results.push((session, data)),
                root::Output::Folded(folded) => self.folded.push(folded),
                other => panic!("{other:?}"),
            }
        }
        for (session, data) in results {
            self.relay(session, relay::Input::Result(data));
        }
    }

    fn contribute(&mut self, session: SessionId, rank: u32, index: u32, (mass, value): (f64, f32)) {
        let elements = if index == 0 { 65_536 } else { 1 };
        let values: Vec<f32> = (0..elements).map(|at| value + self.spread * (at % 13) as f32).collect();
        let (bytes, _) = contribution_chunk(&values, Mass::new(mass).unwrap());
        let (round, version, codec) = (self.round(), Version(0), data::Codec::Exact);
        let data = Data::Contribution(Chunk { round, version, chunk: index, mass, codec, bytes });
        self.fold(session, fold::Input::Data { rank: Rank(rank), incarnation: LIFE, data });
    }

    fn round(&self) -> Round {
        Round(self.opened - 1)
    }

    /// A rank's whole result: its bytes and the masses of its chunks.
    fn result_of(&mut self, rank: u64) -> (Bytes, Vec<f64>) {
        let chunks = self.received.remove(&Connection(rank * 2 + 1)).unwrap_or_default();
        let bytes = chunks.iter().flat_map(|chunk| chunk.bytes.iter().copied()).collect();
        (bytes, chunks.iter().map(|chunk| chunk.mass).collect())
    }
}

fn config() -> RunConfig {
    RunConfig {
        run_id: RunId([0; 16]),
        world_size: 3,
        mode: "cpu-cadence".to_owned(),
        epochs: 1,
        batch_size: 1,
        seed: 0,
        dataset_len: 1,
        epoch_len: 1,
        layout: SIZES,
        patience: PATIENCE,
        emulation: None,
        deterministic: false,
        pass_len: 1,
        epoch_splits: 1,
    }
}

fn roster(parts: [Part; 3]) -> Vec<RosterEntry> {
    let sessions = [A, B, A];
    let entry = |(rank, (session, part))| RosterEntry { rank: Rank(rank), incarnation: LIFE, session, part };
    (0..).zip(sessions.into_iter().zip(parts)).map(entry).collect()
}

/// Ranks 0 and 2 are under relay A, rank 1 is under relay B.
const A: SessionId = SessionId(11);
const B: SessionId = SessionId(12);

#[test]
fn rounds_pass_through_both_tiers_and_a_death_in_mid_round_is_told_at_both() {
    let mut tiers = Tiers::new(&[(A, &[0, 2]), (B, &[1])]);

    // Round 0: rank 0 is the source, the others receive and need not say anything.
    let parts = [Part::Source, Part::Receive, Part::Receive];
    tiers.broadcast(&Control::RequestParams { round: Round(0), roster: roster(parts) });
    tiers.contribute(A, 0, 0, (1.0, 0.5));
    tiers.contribute(A, 0, 1, (1.0, 0.5));
    let first = tiers.folded[0].clone();
    assert!(first.any_mass);
    let told: Vec<FoldedPart> = first.ranks.iter().map(|&(_, _, part)| part).collect();
    assert_eq!(told, [FoldedPart::Whole, FoldedPart::None, FoldedPart::None]);
    assert_eq!(tiers.dropped, [(Rank(1), 0, AbsentWhy::Joining), (Rank(2), 0, AbsentWhy::Joining)]);
    for rank in 0..3 {
        let (bytes, masses) = tiers.result_of(rank);
        assert_eq!((Digest::of(&bytes), masses), (first.digest, vec![1.0, 1.0]), "rank {rank}");
    }
    let committed = |version| RoundOutcome::Committed { version: Version(version) };
    tiers.broadcast(&Control::RoundDone { round: Round(0), outcome: committed(0), next: Next::Window });

    // Round 1: rank 2 dies after its first chunk; the others' results are whole and equal.
    tiers.dropped.clear();
    tiers.broadcast(&Control::RequestParams { round: Round(1), roster: roster([Part::Contribute; 3]) });
    tiers.contribute(A, 0, 0, (1.0, 2.0));
    tiers.contribute(B, 1, 0, (2.0, 5.0));
    tiers.contribute(A, 2, 0, (1.0, 4.0));
    tiers.contribute(A, 0, 1, (1.0, 2.0));
    tiers.contribute(B, 1, 1, (2.0, 5.0));
    assert_eq!(tiers.folded.len(), 1, "rank 2 is waited for");
    tiers.relay(A, relay::Input::Closed { connection: Connection(5), why: "end of file".to_owned() });
    tiers.fold(A, fold::Input::Ended { rank: Rank(2), incarnation: LIFE });
    assert_eq!(tiers.dropped, [(Rank(2), 1, AbsentWhy::LinkLost)]);
    let second = tiers.folded[1].clone();
    let told: Vec<FoldedPart> = second.ranks.iter().map(|&(_, _, part)| part).collect();
    assert_eq!(told, [FoldedPart::Whole, FoldedPart::Whole, FoldedPart::Chunks(1)]);
    let expected = [vec![4.0_f32; 65_536], vec![4.0]].concat();
    let expected: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
    for rank in 0..2 {
        let (bytes, masses) = tiers.result_of(rank);
        assert_eq!(masses, [4.0, 3.0], "rank {rank}");
        assert!(bytes == expected && Digest::of(&bytes) == second.digest, "rank {rank}");
    }
    assert_eq!(tiers.result_of(2).1, [4.0], "it had died before the second chunk");
    tiers.broadcast(&Control::RoundDone { round: Round(1), outcome: committed(1), next: Next::Final });
    assert_eq!(tiers.root.consensus_bytes(), Some((Version(1), Bytes::from(expected))));
    assert_eq!(tiers.root.consensus_digest(), Some(second.digest));
}

impl Tiers {
    /// A round to which every rank gives its value; what came of it, by rank.
    fn whole_round(&mut self, values: [f32; 3], outcome: Option<RoundOutcome>) -> Vec<Bytes> {
        let round = Round(self.opened);
        self.carried = [0; 2];
        self.broadcast(&Control::RequestParams { round, roster: roster([Part::Contribute; 3]) });
        for index in 0..2 {
            for (session, rank) in [(A, 0), (B, 1), (A, 2)] {
                self.contribute(session, rank, index, (1.0 + f64::from(rank), values[rank as usize]));
            }
        }
        if let Some(outcome) = outcome {
            self.broadcast(&Control::RoundDone { round, outcome, next: Next::Window });
        }
        (0..3).map(|rank| self.result_of(rank).0).collect()
    }

    /// Round 0, in which nothing is rounded.
    fn first_round(&mut self) {
        let parts = [Part::Source, Part::Receive, Part::Receive];
        self.broadcast(&Control::RequestParams { round: Round(0), roster: roster(parts) });
        (0..2).for_each(|index| self.contribute(A, 0, index, (1.0, 0.5)));
        self.broadcast(&Control::RoundDone { round: Round(0), outcome: committed(0), next: Next::Window });
        (0..3).for_each(|rank| drop(self.result_of(rank)));
    }
}

fn committed(version: u64) -> RoundOutcome {
    RoundOutcome::Committed { version: Version(version) }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn rounded_both_ways_everybody_holds_the_same_bits_and_nothing_is_lost() {
    for (codec, most) in [(Codec::Bf16, 2.001), (Codec::Int8, 1.04)] {
        let mut tiers = Tiers::coded(&[(A, &[0, 2]), (B, &[1])], codec);
        tiers.spread = 0.013_7;
        tiers.first_round();
        let elements = 65_537.0;
        for version in 1..=40 {
            let results = tiers.whole_round([1.0, 2.0, 3.0], Some(committed(version)));
            let bytes = tiers.root.consensus_bytes().unwrap().1;
            assert!(results.iter().all(|result| *result == bytes), "{codec}, version {version}");
            // Two relays, each way.
            let each = tiers.carried.map(|bytes| bytes as f64 / 2.0 / elements);
            assert!(each.iter().all(|bytes| *bytes <= most && *bytes >= 1.0), "{codec}: {each:?} bytes an element");
        }
        let (_, bytes) = tiers.root.consensus_bytes().unwrap();
        for (at, value) in floats(&bytes)[..65_536].iter().enumerate() {
            let average = 14.0 / 6.0 + 0.013_7 * (at % 13) as f32;
            assert!((value - average).abs() < 2e-6, "{codec}: {value} is not {average}");
        }
    }
}

#[test]
fn what_was_lost_by_rounding_counts_from_the_commit_on_only() {
    for codec in [Codec::Bf16, Codec::Int8] {
        let twice = |abandoned: bool| {
            let mut tiers = Tiers::coded(&[(A, &[0, 2]), (B, &[1])], codec);
            tiers.spread = 0.013_7;
            tiers.first_round();
            tiers.whole_round([1.1, 2.2, 3.3], Some(committed(1)));
            if abandoned {
                tiers.whole_round([7.7, -5.5, 0.3], Some(RoundOutcome::Again));
            }
            tiers.whole_round([1.3, 2.1, 3.2], Some(committed(2)))
        };
        assert!(twice(false) == twice(true), "{codec}");
    }
}

#[test]
fn who_lacks_the_base_is_answered_as_it_is_and_its_differences_are_not_taken() {
    let mut tiers = Tiers::coded(&[(A, &[0, 2]), (B, &[1])], Codec::Bf16);
    tiers.spread = 0.013_7;
    tiers.first_round();
    // B has another consensus under that version.
    let round = Round(1);
    tiers.broadcast(&Control::RequestParams { round, roster: roster([Part::Contribute; 3]) });
    let holds = Data::Holds { round, version: Version(0), digest: 1 };
    tiers.root.handle(root::Input::Data { session: B, data: holds }, NOW);
    for index in 0..2 {
        for (session, rank) in [(A, 0), (B, 1), (A, 2)] {
            tiers.contribute(session, rank, index, (1.0, 2.0 + rank as f32));
        }
    }
    let folded = tiers.folded.last().unwrap().clone();
    let told: Vec<FoldedPart> = folded.ranks.iter().map(|&(_, _, part)| part).collect();
    assert_eq!(told, [FoldedPart::Whole, FoldedPart::None, FoldedPart::Whole]);
    tiers.broadcast(&Control::RoundDone { round, outcome: committed(1), next: Next::Window });
    let results: Vec<Bytes> = (0..3).map(|rank| tiers.result_of(rank).0).collect();
    assert!(results.iter().all(|result| *result == tiers.root.consensus_bytes().unwrap().1));
    // From the next round on it holds what the others hold.
    tiers.whole_round([1.0, 2.0, 3.0], Some(committed(2)));
    assert!(tiers.carried.iter().all(|bytes| *bytes < 5 * 65_537), "{:?}", tiers.carried);
}

#[test]
fn what_a_relay_lost_of_chunks_that_the_root_did_not_take_does_not_count() {
    let mut tiers = Tiers::coded(&[(A, &[0, 2]), (B, &[1])], Codec::Int8);
    tiers.first_round();
    assert_eq!(tiers.commits, [], "nothing was rounded");
    tiers.whole_round([1.0, 2.0, 3.0], Some(committed(1)));
    assert_eq!(tiers.commits.split_off(0), [(A, u32::MAX), (B, u32::MAX)]);
    let round = Round(2);
    tiers.broadcast(&Control::RequestParams { round, roster: roster([Part::Contribute; 3]) });
    tiers.contribute(A, 0, 0, (1.0, 0.5));
    tiers.contribute(B, 1, 0, (1.0, 0.5));
    tiers.contribute(A, 2, 0, (1.0, 0.5));
    // The root holds B's rank for dead before its relay does.
    let why = Reason::new("silent", "it is silent");
    let dead = Control::DeclareDead { rank: Rank(1), incarnation: LIFE, why };
    tiers.root.handle(root::Input::Control(dead), NOW);
    tiers.contribute(A, 0, 1, (1.0, 0.5));
    tiers.contribute(A, 2, 1, (1.0, 0.5));
    tiers.contribute(B, 1, 1, (1.0, 0.5));
    tiers.broadcast(&Control::RoundDone { round, outcome: committed(2), next: Next::Window });
    assert_eq!(tiers.commits, [(A, u32::MAX), (B, 1)]);
}

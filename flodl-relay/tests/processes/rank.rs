//! A rank that speaks the protocol and trains nothing: its replica is its number plus one, everywhere.

use crate::lanes::Lanes;
use flodl_cpureduce::{ChunkSpec, Digest, Layout, Mass, contribution_chunk};
use flodl_wire::frame::{Frame, Stream};
use flodl_wire::handshake::{Capabilities, Channel, Hello, Role};
use flodl_wire::io::{FrameReader, FrameWriter, connect};
use flodl_wire::message::control::Part;
use flodl_wire::message::data::{AbsentWhy, Chunk, Codec};
use flodl_wire::message::report::{Received, SyncAck, SyncOutcome};
use flodl_wire::message::{Control, Data, Report};
use flodl_wire::secret::{DialKeys, RankKeys};
use flodl_wire::{HostId, Incarnation, Rank, Round, RunId, SessionId, Version};
use smol::net::unix::UnixStream;
use std::env;
use std::process::ExitCode;
use std::time::Duration;

/// Parameters of the model: two full chunks and a short one.
pub(crate) const PARAMETERS: u64 = 65_536 * 2 + 1;

struct Worker {
    /// Where it shares memory with its relay.
    lanes: Option<Lanes>,
    /// Its replica is of many values, and its mass its number plus one.
    odd: bool,
    rank: Rank,
    life: Incarnation,
    /// What it does that a good rank does not.
    plan: String,
    control: (FrameReader<UnixStream>, FrameWriter<UnixStream>),
    data: (FrameReader<UnixStream>, FrameWriter<UnixStream>),
}

fn number(name: &str) -> u32 {
    env::var(name).unwrap().parse().unwrap()
}

/// What a rank holds in a chunk.
pub(crate) fn replica(rank: Rank, spec: &ChunkSpec) -> Vec<f32> {
    let odd = env::args().any(|arg| arg.contains("odd"));
    let value = |i: u64| match odd {
        true => ((i + u64::from(rank.0) * 977) % 1013) as f32 / 7.0 - 50.1,
        false => rank.0 as f32 + 1.0,
    };
    (spec.first_element..).take(spec.elements as usize).map(value).collect()
}

/// The rank's whole life. `plan` is words with blanks between: `R:die` (rank R kills itself in the middle of round 1),
/// `R:stall`, `R:scribble` (there it does nothing more, or spoils its lane), `R:impostor` (it speaks for another); `lanes`: all
/// share memory with their relay; `odd`: their replicas are of many values and their masses unequal.
pub(crate) fn main(plan: &str) -> ExitCode {
    let rank = Rank(number("FLODL_RANK"));
    let mine = plan.split(' ').filter_map(|word| word.split_once(':')).find(|(who, _)| *who == rank.0.to_string());
    let lanes = if plan.contains("lanes") { Lanes::take_up() } else { None };
    let odd = plan.contains("odd");
    smol::block_on(async {
        let worker = Worker::connect(rank, mine.map_or("", |(_, plan)| plan)).await;
        let mut worker = Worker { lanes, odd, ..worker };
        let [local, here, all] = ["FLODL_LOCAL_RANK", "FLODL_LOCAL_WORLD_SIZE", "FLODL_WORLD_SIZE"].map(number);
        println!("local {local} of {here} here and {all} in all");
        worker.work().await
    })
}

impl Worker {
    async fn connect(rank: Rank, plan: &str) -> Worker {
        let life = Incarnation(number("FLODL_INCARNATION"));
        let keys = std::fs::read(format!("/proc/self/fd/{}", number("FLODL_KEY_FD"))).unwrap();
        let keys = RankKeys::from_bytes(&keys.try_into().unwrap());
        let hex = env::var("FLODL_RUN_ID").unwrap();
        let run_id = RunId(u128::from_str_radix(&hex, 16).unwrap().to_be_bytes());
        let host_id = HostId::from_name(&env::var("FLODL_HOST_ID").unwrap()).unwrap();
        let role = Role::Rank { rank, incarnation: life };
        let mut hello = Hello {
            role,
            channel: Channel::Control,
            session: SessionId(0),
            run_id,
            host_id,
            capabilities: Capabilities::NONE,
        };
        let dial = DialKeys { gate: keys.gate_key, peer: keys.rank_key.into() };
        let mut links = Vec::new();
        for channel in [Channel::Control, Channel::Data] {
            hello.channel = channel;
            let stream = UnixStream::connect(env::var_os("FLODL_SOCKET").unwrap()).await.unwrap();
            let mut nonce = [0; 32];
            getrandom::fill(&mut nonce).unwrap();
            let link = connect(stream, hello, dial.clone(), nonce).await.unwrap();
            hello.session = link.session;
            links.push(link.split_with(|stream| (stream.clone(), stream)));
        }
        let (data, control) = (links.remove(1), links.remove(0));
        Worker { lanes: None, odd: false, rank, life, plan: plan.to_owned(), control, data }
    }

    async fn work(&mut self) -> ExitCode {
        self.report(&Report::Heartbeat { step: 0 }).await;
        loop {
            let frame = self.control.0.next().await.unwrap().expect("the relay stays until Shutdown");
            match frame.to_control().unwrap() {
                Control::RequestParams { round, roster } => {
                    let part = roster.iter().find(|entry| entry.rank == self.rank).unwrap().part;
                    self.contribute(round, part).await;
                    let ack = self.receive(round).await;
                    self.report(&Report::SyncAck(ack)).await;
                }
                Control::Shutdown => {
                    self.report(&Report::Finished { version: None, replica_digest: 0 }).await;
                    return ExitCode::SUCCESS;
                }
                _ => {}
            }
        }
    }

    async fn report(&mut self, report: &Report) {
        let mut frame = Frame::report(self.rank, self.life, report).unwrap();
        if self.plan == "impostor" && matches!(report, Report::SyncAck(_)) {
            frame.stream = Stream::Rank(Rank(self.rank.0 + 1));
        }
        self.control.1.send(&frame).await.unwrap();
        self.control.1.flush().await.unwrap();
    }

    async fn contribute(&mut self, round: Round, part: Part) {
        let mass = if self.odd { Mass::new(f64::from(self.rank.0) + 1.0).unwrap() } else { Mass::ONE };
        if let Some(lanes) = &mut self.lanes
            && part != Part::Receive
        {
            return lanes.contribute(round, self.rank, (mass, &self.plan));
        }
        if part == Part::Receive {
            let absent = Data::Absent { round, from_chunk: 0, why: AbsentWhy::Joining };
            self.data.1.send_data(Stream::Rank(self.rank), self.life, &absent).await.unwrap();
        } else {
            for spec in Layout::new(PARAMETERS, 0, 0).unwrap().iter() {
                if self.plan == "die" && round == Round(1) && spec.index == 1 {
                    self.data.1.flush().await.unwrap();
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
                }
                let (bytes, _) = contribution_chunk(&replica(self.rank, &spec), mass);
                let (version, codec, mass) = (Version(0), Codec::Exact, mass.value());
                let chunk = Data::Contribution(Chunk { round, version, chunk: spec.index, mass, codec, bytes });
                self.data.1.send_data(Stream::Rank(self.rank), self.life, &chunk).await.unwrap();
            }
        }
        self.data.1.flush().await.unwrap();
    }

    async fn receive(&mut self, round: Round) -> SyncAck {
        if let Some(lanes) = &mut self.lanes {
            return answer(round, lanes.receive(round));
        }
        let mut digest = Digest::new();
        for index in 0..Layout::new(PARAMETERS, 0, 0).unwrap().chunks() {
            let frame = self.data.0.next().await.unwrap().expect("results come whole");
            match frame.to_data().unwrap() {
                Data::Consensus(chunk) if (chunk.round, chunk.chunk) == (round, index) => digest.update(&chunk.bytes),
                other => panic!("chunk {index} of {round} was awaited, not {other:?}"),
            }
        }
        let received = Received { digest: digest.finish(), divergence: None, pre_norm: 0.0, post_norm: 0.0 };
        answer(round, received)
    }
}

fn answer(round: Round, received: Received) -> SyncAck {
    let outcome = SyncOutcome::Whole(received);
    SyncAck { round, outcome, waited: Duration::ZERO, copied: Duration::ZERO }
}

//! Whole relays over real processes and sockets, with a controller that is a script.

use crate::Case;
use crate::rank::PARAMETERS;
use crate::support::{LONG, Lines, config, processes_of, this_program, until};
use async_io::Timer;
use flodl_relay::relay::RelayError;
use flodl_relay::shell::{Consensus, DataLink, RelayConfig, Report as RootReport, RootHandle, RunError, Upstream};
use flodl_relay::shell::{local_data_link, run, start_root};
use flodl_wire::frame::{Frame, Kind, Stream};
use flodl_wire::handshake::{Accept, Admission, Capabilities, Channel, HandshakeError, Hello, Role};
use flodl_wire::io::{Duplex, FrameReader, FrameWriter, Link, accept, connect, duplex};
use flodl_wire::message::control::{Next, Part, RosterEntry, RoundOutcome};
use flodl_wire::message::join::{Admit, LayoutSizes, RunConfig};
use flodl_wire::message::record::Reason;
use flodl_wire::message::report::{ExitStatus, Folded, FoldedPart};
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::secret::{DialKeys, GateKey, Secret};
use flodl_wire::{HostId, Incarnation, Rank, Round, RunId, SessionId, Version};
use futures_lite::future;
use futures_lite::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use smol::Task;
use smol::net::unix::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[
    ("relays::a_run_of_three_ranks_folds_commits_and_ends_with_nothing_left", whole_run),
    ("relays::a_rank_killed_in_mid_round_is_partial_and_the_others_finish_within_a_second", mid_round_death),
    ("relays::an_impostor_is_closed_and_the_run_goes_on", impostor),
    ("relays::strangers_at_the_socket_are_turned_away_and_the_run_is_unharmed", strangers),
    ("relays::a_crowd_of_strangers_does_not_push_a_rank_out_that_is_coming_in", crowd),
    ("relays::a_lost_controller_ends_the_ranks_with_an_error", lost_controller),
    ("relays::a_program_that_is_not_there_is_reported", missing_program),
];

pub(crate) const RUN: RunId = RunId([0x5a; 16]);
pub(crate) const SESSION: SessionId = SessionId(77);
pub(crate) const LIFE: Incarnation = Incarnation(1);
const PATIENCE: Duration = Duration::from_secs(20);
const SIZES: LayoutSizes = LayoutSizes { parameters: PARAMETERS, buffers: 0, integers: 0 };

pub(crate) fn secret() -> Secret {
    Secret::from_bytes([9; 32])
}

pub(crate) fn host() -> HostId {
    HostId::from_name("box").unwrap()
}

/// Lets the one relay in.
pub(crate) struct Policy(GateKey);

impl Policy {
    pub(crate) fn new() -> Policy {
        Policy(secret().gate_key())
    }
}

fn hello(role: Role) -> Hello {
    let (channel, session, capabilities) = (Channel::Control, SessionId(0), Capabilities::NONE);
    Hello { role, channel, session, run_id: RUN, host_id: host(), capabilities }
}

impl Admission for Policy {
    fn gate_key(&self) -> &GateKey {
        &self.0
    }

    fn decide(&self, hello: &Hello) -> Result<Accept, String> {
        hello.check_run(RUN)?;
        Ok(Accept { key: secret().host_key(RUN, hello.host_id).into(), session: SESSION })
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn generation(&self) -> u64 {
        1
    }
}

pub(crate) fn nonce() -> [u8; 32] {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).unwrap();
    nonce
}

pub(crate) fn relay_config(plan: &str, directory: &Path, lines: &Lines) -> RelayConfig {
    RelayConfig {
        host: host(),
        run_id: RUN,
        host_key: secret().host_key(RUN, host()),
        gate_key: secret().gate_key(),
        agent: config(this_program(&["as-rank", plan]), directory, lines),
        restarts: 0,
        leave: None,
        shares_memory: true,
    }
}

/// The script's end of everything.
pub(crate) struct Controller<S> {
    reader: FrameReader<ReadHalf<S>>,
    writer: FrameWriter<WriteHalf<S>>,
    root: RootHandle,
    reports: async_channel::Receiver<RootReport>,
    /// Everything that was said, heartbeats excepted.
    log: Vec<Said>,
    _serving: Task<()>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Host(HostReport),
    Rank(Rank, Report),
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Controller<S> {
    pub(crate) fn new(control: Link<S>, data: DataLink<S>) -> Controller<S> {
        let (root, reports) = start_root(PATIENCE).unwrap();
        root.layout(SIZES).unwrap();
        let (reader, writer) = control.split();
        let serving = smol::spawn({
            let root = root.clone();
            async move { drop(root.serve(SESSION, data).await) }
        });
        Controller { reader, writer, root, reports, log: Vec::new(), _serving: serving }
    }

    async fn order(&mut self, stream: Stream, control: &Control) {
        let incarnation = if matches!(stream, Stream::Rank(_)) { LIFE } else { Incarnation(0) };
        self.writer.send(&Frame::control(stream, incarnation, control).unwrap()).await.unwrap();
        self.writer.flush().await.unwrap();
    }

    pub(crate) async fn broadcast(&mut self, control: &Control) {
        self.root.control(control.clone()).unwrap();
        self.order(Stream::AllRanks, control).await;
    }

    /// Reads until somebody says what `wanted` takes.
    pub(crate) async fn hear<T>(&mut self, what: &str, mut wanted: impl FnMut(&Said) -> Option<T>) -> T {
        let hearing = async {
            loop {
                let frame = self.reader.next().await.unwrap().expect("the relay stays");
                let said = match (frame.kind, frame.stream) {
                    (Kind::HostReport, _) => Said::Host(frame.to_host_report().unwrap()),
                    (_, Stream::Rank(rank)) => Said::Rank(rank, frame.to_report().unwrap()),
                    other => panic!("{other:?}"),
                };
                if said != Said::Host(HostReport::Heartbeat) {
                    self.log.push(said.clone());
                }
                if let Some(found) = wanted(&said) {
                    return found;
                }
            }
        };
        within(what, LONG, hearing).await
    }

    async fn admit(&mut self, ranks: u32) {
        let ids = (0..ranks).map(|rank| (Rank(rank), LIFE)).collect();
        self.order(Stream::Host, &Control::Admit(Admit { session: SESSION, ids, world_size: ranks })).await;
    }

    /// Admits the ranks, waits for each one's first word, and tells them the settings.
    pub(crate) async fn form(&mut self, ranks: u32) {
        self.admit(ranks).await;
        let mut ready = 0;
        self.hear("all ranks", |said| {
            ready += u32::from(matches!(said, Said::Rank(_, Report::Heartbeat { .. })));
            (ready == ranks).then_some(())
        })
        .await;
        for rank in 0..ranks {
            self.order(Stream::Rank(Rank(rank)), &Control::Admitted(Box::new(run_config(ranks)))).await;
        }
    }

    pub(crate) async fn open(&mut self, round: u64, parts: &[Part]) {
        let entry = |(rank, &part)| RosterEntry { rank: Rank(rank), incarnation: LIFE, session: SESSION, part };
        let roster = (0..).zip(parts).map(entry).collect();
        self.broadcast(&Control::RequestParams { round: Round(round), roster }).await;
    }

    /// Takes the root's word that it waits too.
    pub(crate) async fn root_waits(&mut self) {
        let report = within("the root's report", LONG, self.reports.recv()).await.unwrap();
        assert!(matches!(report, RootReport::Waiting { .. }), "{report:?}");
    }

    pub(crate) async fn folded(&mut self) -> Folded {
        let reports = self.reports.clone();
        match within("the root's report", LONG, reports.recv()).await.unwrap() {
            RootReport::Folded(folded) => folded,
            other => panic!("{other:?}"),
        }
    }

    /// What the root holds.
    pub(crate) async fn consensus(&self) -> Consensus {
        self.root.consensus().await.unwrap().unwrap()
    }

    /// Waits for the answers of so many ranks and checks that their results are the root's.
    pub(crate) async fn acks(&mut self, ranks: usize, digest: u64) {
        let mut acks = Vec::new();
        self.hear("every rank's answer", |said| {
            if let Said::Rank(_, Report::SyncAck(ack)) = said {
                acks.push(ack.received().unwrap().digest);
            }
            (acks.len() == ranks).then_some(())
        })
        .await;
        assert_eq!(acks, vec![digest; ranks]);
    }

    pub(crate) async fn commit(&mut self, round: u64, next: Next) {
        let outcome = RoundOutcome::Committed { version: Version(round) };
        self.broadcast(&Control::RoundDone { round: Round(round), outcome, next }).await;
    }

    /// Two rounds and the end, as they go where nothing happens.
    pub(crate) async fn whole_run(&mut self, ranks: u32) {
        self.form(ranks).await;
        let others = ranks as usize - 1;
        self.open(0, &[vec![Part::Source], vec![Part::Receive; others]].concat()).await;
        let folded = self.folded().await;
        assert!(folded.any_mass);
        self.acks(ranks as usize, folded.digest).await;
        self.commit(0, Next::Window).await;
        self.open(1, &vec![Part::Contribute; ranks as usize]).await;
        let folded = self.folded().await;
        assert!(folded.ranks.iter().all(|&(_, _, part)| part == FoldedPart::Whole), "{folded:?}");
        self.acks(ranks as usize, folded.digest).await;
        self.commit(1, Next::Final).await;
        let consensus = self.root.consensus().await.unwrap().unwrap();
        let mean = (1..=ranks).map(|value| value as f32).sum::<f32>() / ranks as f32;
        assert_eq!((consensus.version, consensus.digest), (Version(1), folded.digest));
        assert!(consensus.bytes.chunks(4).all(|value| value == mean.to_le_bytes()));
        self.shut_down(ranks).await;
    }

    pub(crate) async fn shut_down(&mut self, ranks: u32) {
        self.broadcast(&Control::Shutdown).await;
        let mut ended = 0;
        self.hear("every rank's end", |said| {
            let good = matches!(said, Said::Host(HostReport::RankExited { status: ExitStatus::Code(0), .. }));
            ended += u32::from(good);
            (ended == ranks).then_some(())
        })
        .await;
        let finished = self.log.iter().filter(|said| matches!(said, Said::Rank(_, Report::Finished { .. }))).count();
        assert_eq!(finished, ranks as usize);
    }

    /// How a rank's process ended, whether or not that was said already.
    pub(crate) async fn exit_of(&mut self, who: u32) -> ExitStatus {
        let exit = |said: &Said| match said {
            Said::Host(HostReport::RankExited { rank, status, .. }) if rank.0 == who => Some(*status),
            _ => None,
        };
        match self.log.iter().find_map(exit) {
            Some(status) => status,
            None => self.hear("a rank's exit", exit).await,
        }
    }

    pub(crate) fn lost(&self) -> Vec<Rank> {
        let lost = self.log.iter().filter_map(|said| match said {
            Said::Host(HostReport::RankLost { rank, .. }) => Some(*rank),
            _ => None,
        });
        lost.collect()
    }
}

pub(crate) async fn within<T>(what: &str, limit: Duration, work: impl Future<Output = T>) -> T {
    let late = async {
        Timer::after(limit).await;
        panic!("{what}: not within {limit:?}")
    };
    future::or(work, late).await
}

fn run_config(world_size: u32) -> RunConfig {
    RunConfig {
        run_id: RUN,
        world_size,
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

/// A relay and its controller in this process, as in `flodl run`.
pub(crate) struct Local {
    pub(crate) controller: Controller<Duplex>,
    relay: Task<Result<(), RunError>>,
    directory: tempfile::TempDir,
    lines: Lines,
}

impl Local {
    pub(crate) async fn start(plan: &str) -> Local {
        Local::start_with(plan, |_| {}).await
    }

    pub(crate) async fn start_with(plan: &str, change: impl FnOnce(&mut RelayConfig)) -> Local {
        let directory = tempfile::tempdir().unwrap();
        let lines = Lines::default();
        let mut config = relay_config(plan, directory.path(), &lines);
        change(&mut config);
        let (near, far) = duplex(1 << 16);
        let role = Role::Relay { rank_count: 3 };
        let hello = hello(role);
        let keys = DialKeys { gate: config.gate_key.clone(), peer: config.host_key.clone().into() };
        let policy = Policy::new();
        let shake = future::zip(connect(near, hello, keys, nonce()), accept(far, &policy, nonce()));
        let (control, accepted) = shake.await;
        let (relay_data, root_data) = local_data_link();
        let relay = smol::spawn(run(config, Upstream { control: control.unwrap(), data: relay_data }));
        Local { controller: Controller::new(accepted.unwrap().0, root_data), relay, directory, lines }
    }

    /// The relay's own end, and that nothing is left.
    pub(crate) async fn end(self) -> Result<(), RunError> {
        let end = within("the relay's end", LONG, self.relay).await;
        let left = || processes_of(self.directory.path());
        until("no process left", Duration::from_secs(5), || left().is_empty().then_some(()));
        assert_eq!(sockets(self.directory.path()), [""; 0].map(PathBuf::from), "its socket's directory is gone");
        end
    }

    /// Its controller goes, and its ranks with it.
    pub(crate) async fn loses_its_controller(self) {
        let Local { controller, relay, directory, .. } = self;
        drop(controller);
        let end = within("the relay's end", LONG, relay).await;
        assert!(matches!(end, Err(RunError::Ended(RelayError::ControllerLost { .. }))), "{end:?}");
        let left = || processes_of(directory.path());
        until("no process left", Duration::from_secs(5), || left().is_empty().then_some(()));
    }
}

/// The relays' sockets in a run directory.
fn sockets(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().filter_map(Result::ok);
    entries.map(|entry| entry.path().join("socket")).filter(|path| path.exists()).collect()
}

fn whole_run() {
    smol::block_on(async {
        let mut local = Local::start("").await;
        local.controller.whole_run(3).await;
        assert_eq!(local.controller.lost(), []);
        let ups = local.controller.log.iter().filter(|said| matches!(said, Said::Host(HostReport::RankUp { .. })));
        assert_eq!(ups.count(), 3);
        let lines = local.lines.all();
        assert!(lines.contains(&"rank 2 | local 2 of 3 here and 3 in all".to_owned()), "{lines:?}");
        local.end().await.unwrap();
    });
}

fn mid_round_death() {
    smol::block_on(async {
        let mut local = Local::start("1:die").await;
        let controller = &mut local.controller;
        controller.form(3).await;
        controller.open(0, &[Part::Source, Part::Receive, Part::Receive]).await;
        let digest = controller.folded().await.digest;
        controller.acks(3, digest).await;
        controller.commit(0, Next::Window).await;

        let start = Instant::now();
        controller.open(1, &[Part::Contribute; 3]).await;
        let folded = controller.folded().await;
        let parts: Vec<FoldedPart> = folded.ranks.iter().map(|&(_, _, part)| part).collect();
        assert_eq!(parts, [FoldedPart::Whole, FoldedPart::Chunks(1), FoldedPart::Whole]);
        controller.acks(2, folded.digest).await;
        let took = start.elapsed();
        assert!(took < Duration::from_secs(1), "survivors took {took:?}");
        assert_eq!(controller.exit_of(1).await, ExitStatus::Signal(9));
        assert_eq!(controller.lost(), [Rank(1)]);
        let why = Reason::new("process-exited", "killed by signal 9");
        controller.broadcast(&Control::DeclareDead { rank: Rank(1), incarnation: LIFE, why }).await;
        controller.commit(1, Next::Final).await;
        controller.shut_down(2).await;
        local.end().await.unwrap();
    });
}

fn impostor() {
    smol::block_on(async {
        let mut local = Local::start("2:impostor").await;
        let controller = &mut local.controller;
        controller.form(3).await;
        controller.open(0, &[Part::Source, Part::Receive, Part::Receive]).await;
        let digest = controller.folded().await.digest;
        let mut acks = 0;
        let error = controller.hear("two answers and a loss", |said| {
            acks += usize::from(matches!(said, Said::Rank(_, Report::SyncAck(_))));
            match said {
                Said::Host(HostReport::RankLost { rank: Rank(2), error, .. }) => Some(error.clone()),
                _ => None,
            }
        });
        let error = error.await;
        assert!(error.contains("rank 2") && error.contains("speaks for itself only"), "{error}");
        let left = 2 - acks;
        controller.acks(left, digest).await;
        let why = Reason::new("lost", "it broke the protocol");
        controller.broadcast(&Control::DeclareDead { rank: Rank(2), incarnation: LIFE, why }).await;
        controller.commit(0, Next::Final).await;
        controller.shut_down(2).await;
        local.end().await.unwrap();
    });
}

fn strangers() {
    smol::block_on(async {
        let mut local = Local::start("").await;
        local.controller.form(3).await;
        let path = sockets(local.directory.path()).remove(0);
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(UnixStream::connect(&path).await.unwrap());
        }
        let mut garbage = UnixStream::connect(&path).await.unwrap();
        garbage.write_all(&[b'G'; 4096]).await.unwrap();
        let mut answer = Vec::new();
        // A reset says the same as an end: not a byte of answer.
        match garbage.read_to_end(&mut answer).await {
            Ok(_) | Err(_) => assert_eq!(answer, b""),
        }
        for (rank, key_of, said) in [(1, 1, "already here"), (9, 9, "does not run under this relay"), (1, 2, "already")]
        {
            let role = Role::Rank { rank: Rank(rank), incarnation: LIFE };
            let hello = hello(role);
            let key = secret().host_key(RUN, host()).rank_key(Rank(key_of), LIFE);
            let keys = DialKeys { gate: secret().gate_key(), peer: key.into() };
            let refused = connect(UnixStream::connect(&path).await.unwrap(), hello, keys, nonce()).await;
            match refused.unwrap_err() {
                HandshakeError::Refused(why) => assert!(why.contains(said), "{why}"),
                other => panic!("{other:?}"),
            }
        }
        local.controller.open(0, &[Part::Source, Part::Receive, Part::Receive]).await;
        let digest = local.controller.folded().await.digest;
        local.controller.acks(3, digest).await;
        local.controller.commit(0, Next::Final).await;
        local.controller.shut_down(3).await;
        drop(silent);
        local.end().await.unwrap();
    });
}

/// A crowd comes while a rank is between the relay's challenge and its answer. The rank holds its connection for made then,
/// and lost it once: a run waited for a rank that had no data connection any more.
fn crowd() {
    smol::block_on(async {
        // The test is the rank; its process only has to live.
        let sleeps = |config: &mut RelayConfig| {
            config.agent.program.path = "sleep".into();
            config.agent.program.args = vec!["1000".into()];
        };
        let mut local = Local::start_with("", sleeps).await;
        local.controller.admit(1).await;
        let up = |said: &Said| matches!(said, Said::Host(HostReport::RankUp { .. })).then_some(());
        local.controller.hear("its process", up).await;

        let path = sockets(local.directory.path()).remove(0);
        let role = Role::Rank { rank: Rank(0), incarnation: LIFE };
        let hello = hello(role);
        let key = secret().host_key(RUN, host()).rank_key(Rank(0), LIFE);
        let keys = DialKeys { gate: secret().gate_key(), peer: key.into() };
        let mut hello_and_answer = UnixStream::connect(&path).await.unwrap();
        let (near, far) = duplex(1 << 16);
        let shake = smol::spawn(connect(near, hello, keys, nonce()));
        let (mut from_rank, mut to_rank) = futures_lite::io::split(far);
        let mut bytes = [0; 4096];
        let n = from_rank.read(&mut bytes).await.unwrap();
        hello_and_answer.write_all(&bytes[..n]).await.unwrap();
        let n = hello_and_answer.read(&mut bytes).await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..200 {
            silent.push(UnixStream::connect(&path).await.unwrap());
        }
        to_rank.write_all(&bytes[..n]).await.unwrap();
        let (_reader, mut writer) = shake.await.unwrap().split();
        writer.send(&Frame::report(Rank(0), LIFE, &Report::Heartbeat { step: 0 }).unwrap()).await.unwrap();
        writer.flush().await.unwrap();
        let n = from_rank.read(&mut bytes).await.unwrap();
        hello_and_answer.write_all(&bytes[..n]).await.unwrap();
        let heartbeat = |said: &Said| matches!(said, Said::Rank(Rank(0), Report::Heartbeat { .. })).then_some(());
        local.controller.hear("the rank's first word", heartbeat).await;
        local.loses_its_controller().await;
        drop((hello_and_answer, silent));
    });
}

fn lost_controller() {
    smol::block_on(async {
        let mut local = Local::start("").await;
        local.controller.form(3).await;
        local.loses_its_controller().await;
    });
}

fn missing_program() {
    smol::block_on(async {
        let missing = |config: &mut RelayConfig| config.agent.program.path = "/no/such/trainer".into();
        let mut local = Local::start_with("", missing).await;
        local.controller.admit(1).await;
        let error = local.controller.hear("that it was not started", |said| match said {
            Said::Host(HostReport::RankNotStarted { error, .. }) => Some(error.clone()),
            _ => None,
        });
        assert!(error.await.contains("/no/such/trainer"));
        local.controller.broadcast(&Control::Shutdown).await;
        local.end().await.unwrap();
    });
}

//! A rank's process side against a relay of the test's own: real unix sockets, real threads, real time.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may")]

mod common;

use async_io::{Async, Timer, block_on};
use common::{roster, run_config};
use flodl_wire::frame::{Frame, Stream};
use flodl_wire::handshake::{Accept, Admission, Channel, Hello};
use flodl_wire::io::{FrameReader, FrameWriter, accept};
use flodl_wire::message::control::{Next, Part, RoundOutcome, WindowPlan};
use flodl_wire::message::data::Chunk;
use flodl_wire::message::join::{Dtype, Emulation, RunConfig, Section, TensorSpec, TrainerSettings};
use flodl_wire::message::{Control, Data, Report};
use flodl_wire::secret::{GateKey, PeerKey, RankKeys, Secret};
use flodl_wire::{Epoch, HostId, Incarnation, Range, Rank, Round, RunId, SessionId, Version, WindowId};
use flodl_worker::dataset::Dataset;
use flodl_worker::session::{End, Failure, Lost};
use flodl_worker::shell::{DialError, Environment, TrainError, run};
use flodl_worker::trainee::{
    EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
};
use flodl_worker::worker::{Callbacks, Job};
use futures_lite::future;
use futures_lite::io::{ReadHalf, WriteHalf};
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::io::{Seek, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

const RANK: Rank = Rank(0);
const LIFE: Incarnation = Incarnation(1);
const RUN: RunId = RunId([7; 16]);

fn secret() -> Secret {
    Secret::from_bytes([3; 32])
}

fn host() -> HostId {
    HostId::from_name("here").unwrap()
}

fn rank_keys(secret: &Secret) -> RankKeys {
    RankKeys { rank_key: secret.host_key(RUN, host()).rank_key(RANK, LIFE), gate_key: secret.gate_key() }
}

/// The environment of a rank whose keys are of `secret`.
fn environment(socket: &Path, secret: &Secret, patience: Duration) -> Environment {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&*rank_keys(secret).to_bytes()).unwrap();
    file.rewind().unwrap();
    Environment {
        rank: RANK,
        incarnation: LIFE,
        run_id: RUN,
        host_id: host(),
        socket: socket.to_owned(),
        key_fd: file.into_raw_fd(),
        shm_fds: None,
        patience,
    }
}

/// What happens in a step, by the number of those before it.
type Stepping = fn(u64) -> Result<(), Fault>;

/// One weight for each of `len` places, which each step moves by the sum of its batch.
struct Adder {
    theta: Vec<f32>,
    step: Stepping,
    steps: u64,
}

impl Trainee for Adder {
    type Batch = f32;

    fn manifest(&self) -> Vec<TensorSpec> {
        let shape = vec![self.theta.len() as u64];
        vec![TensorSpec { name: "theta".to_owned(), dtype: Dtype::F32, shape, section: Section::Parameters }]
    }

    fn step(&mut self, batch: &f32, _: &StepContext) -> Result<StepOutcome, Fault> {
        (self.step)(self.steps)?;
        self.steps += 1;
        self.theta.iter_mut().for_each(|value| *value += batch);
        Ok(StepOutcome { loss_sum: 1.0, samples: 1 })
    }

    fn evaluate(&mut self, _: &f32) -> Result<EvalOutcome, Fault> {
        Ok(EvalOutcome { loss_sum: 1.0, correct: None, samples: 1 })
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        reader.read(TensorRef::F32(&self.theta));
        Ok(())
    }

    fn lends_in_place(&self) -> bool {
        true
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        writer.write(TensorMut::F32(&mut self.theta));
        Ok(())
    }
}

/// Samples that are their own indices.
struct Numbers;

impl Dataset for Numbers {
    type Batch = f32;

    fn len(&self) -> u64 {
        16
    }

    fn signature(&self) -> [u8; 32] {
        [1; 32]
    }

    fn batch(&self, indices: &[u64]) -> Result<f32, Fault> {
        Ok(indices.iter().map(|&index| index as f32).sum())
    }
}

fn job(len: usize, step: Stepping) -> Job<'static, Adder> {
    Job {
        trainee: Adder { theta: vec![0.0; len], step, steps: 0 },
        train_set: Box::new(Numbers),
        eval_set: None,
        schedule: Box::new(|_| 0.1),
        settings: TrainerSettings { batch_size: Some(4), epochs: Some(1), augment: None },
        callbacks: Callbacks::default(),
    }
}

/// Lets the rank in, or refuses it with a sentence.
struct Gate {
    gate: GateKey,
    key: PeerKey,
    patience: Duration,
    refuse: Option<&'static str>,
}

impl Admission for Gate {
    fn gate_key(&self) -> &GateKey {
        &self.gate
    }

    fn decide(&self, hello: &Hello) -> Result<Accept, String> {
        match self.refuse {
            Some(why) => Err(why.to_owned()),
            None if hello.channel == Channel::Data && hello.session != SessionId(1) => {
                Err("no such session".to_owned())
            }
            None => Ok(Accept { key: self.key.clone(), session: SessionId(1) }),
        }
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn generation(&self) -> u64 {
        1
    }
}

type Reader = FrameReader<ReadHalf<Async<UnixStream>>>;
type Writer = FrameWriter<WriteHalf<Async<UnixStream>>>;

/// A relay with one rank.
struct Relay {
    control: (Reader, Writer),
    data: (Reader, Writer),
    /// The data connection below its frames.
    raw: UnixStream,
}

impl Relay {
    async fn accept(listener: &Async<UnixListener>, gate: &Gate) -> Relay {
        let (mut links, mut raw) = (Vec::new(), None);
        for nonce in [[1; 32], [2; 32]] {
            let (stream, _) = listener.accept().await.unwrap();
            set_socket_send_buffer_size(stream.get_ref(), 4096).unwrap();
            raw = Some(stream.get_ref().try_clone().unwrap());
            let (link, _) = accept(stream, gate, nonce).await.unwrap();
            links.push(link.split());
        }
        let data = links.pop().unwrap();
        Relay { control: links.pop().unwrap(), data, raw: raw.unwrap() }
    }

    async fn order(&mut self, message: &Control) {
        let frame = Frame::control(Stream::Rank(RANK), LIFE, message).unwrap();
        self.control.1.send(&frame).await.unwrap();
        self.control.1.flush().await.unwrap();
    }

    /// The next report that is no heartbeat.
    async fn report(&mut self) -> Report {
        loop {
            match self.control.0.next().await.unwrap().unwrap().to_report().unwrap() {
                Report::Heartbeat { .. } => {}
                report => return report,
            }
        }
    }

    /// Admits the rank and ends round 0 with it as the source.
    async fn form(&mut self, change: impl FnOnce(&mut RunConfig)) {
        let Report::Ready(ready) = self.report().await else { panic!("a rank begins with Ready") };
        let mut run = run_config(&ready, 1, 1);
        change(&mut run);
        self.order(&Control::Admitted(Box::new(run))).await;
        self.round(0, Part::Source).await;
    }

    /// One round of one rank: what it sends is divided by its mass and sent back.
    async fn round(&mut self, round: u64, part: Part) {
        let round = Round(round);
        self.order(&Control::RequestParams { round, roster: roster(1, |_| part) }).await;
        assert!(matches!(self.report().await, Report::SnapshotReady { .. }));
        let version = Version(round.0);
        // Each chunk goes back as soon as it is here, while the rank is still sending.
        let mut chunk_bytes = flodl_cpureduce::CHUNK_BYTES as usize;
        while chunk_bytes == flodl_cpureduce::CHUNK_BYTES as usize {
            let Data::Contribution(chunk) = self.data.0.next().await.unwrap().unwrap().to_data().unwrap() else {
                panic!("a contribution was to come")
            };
            chunk_bytes = chunk.bytes.len();
            let mass = chunk.mass as f32;
            let floats = chunk.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes) / mass);
            let bytes: Vec<u8> = floats.flat_map(f32::to_le_bytes).collect();
            let result = Data::Consensus(Chunk { version, bytes: bytes.into(), ..chunk });
            self.data.1.send_data(Stream::AllRanks, LIFE, &result).await.unwrap();
            self.data.1.flush().await.unwrap();
        }
        assert!(matches!(self.report().await, Report::SyncAck(_)));
        let outcome = RoundOutcome::Committed { version };
        self.order(&Control::RoundDone { round, outcome, next: Next::Window }).await;
    }

    async fn window(&mut self, id: u64, leases: Vec<Range>) {
        self.order(&Control::Window(WindowPlan {
            window: WindowId(id),
            epoch: Epoch(0),
            leases,
            quota: 4,
            quota_max: 4,
            budget: None,
            global_step: 0,
            quota_sum: 4,
            overlap: None,
        }))
        .await;
    }
}

const WHOLE_EPOCH: Range = Range { start: 0, end: 16 };

/// Runs `job` on a thread of its own against `relay`, and answers with how it ended.
fn against<R: Send>(
    job: impl FnOnce() -> Job<'static, Adder> + Send,
    patience: Duration,
    relay: impl AsyncFnOnce(Relay) -> R + Send,
) -> (Result<(Adder, End), TrainError>, R) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("relay.sock");
    let listener = Async::new(UnixListener::bind(&socket).unwrap()).unwrap();
    let environment = environment(&socket, &secret(), Duration::from_secs(5));
    let keys = rank_keys(&secret());
    let gate = Gate { gate: keys.gate_key, key: keys.rank_key.into(), patience, refuse: None };
    std::thread::scope(|scope| {
        let rank = scope.spawn(move || run(&environment, job()));
        let answer = block_on(async { relay(Relay::accept(&listener, &gate).await).await });
        (rank.join().unwrap(), answer)
    })
}

fn failure(result: Result<(Adder, End), TrainError>) -> Failure {
    match result {
        Err(TrainError::Ended { failure, .. }) => failure,
        Err(other) => panic!("{other}"),
        Ok((_, end)) => panic!("{end:?}"),
    }
}

const SECONDS: Duration = Duration::from_secs(10);

#[test]
fn a_rank_trains_until_the_shutdown() {
    // Twelve chunks and a half, in both directions at once, through a buffer of 4 KiB.
    let len = 820_000;
    let (result, ()) = against(
        move || job(len, |_| Ok(())),
        SECONDS,
        async |mut relay| {
            relay.form(|_| {}).await;
            relay.window(1, vec![WHOLE_EPOCH]).await;
            let Report::WindowReport(report) = relay.report().await else { panic!("a report was to come") };
            assert_eq!((report.batches, report.samples, &report.used[..]), (4, 16, &[WHOLE_EPOCH][..]));
            relay.round(1, Part::Contribute).await;
            relay.order(&Control::Shutdown).await;
            let Report::Finished { version, .. } = relay.report().await else { panic!("the end was to come") };
            assert_eq!(version, Some(Version(1)));
            // Whoever ends in order closes in order.
            assert!(relay.control.0.next().await.unwrap().is_none());
        },
    );
    let (trainee, end) = result.unwrap();
    assert_eq!(end, End::Finished { version: Some(Version(1)) });
    assert_eq!(trainee.theta, vec![120.0; len]);
}

#[test]
fn the_heart_beats_through_a_long_step() {
    let (result, beats) = against(
        || {
            job(1, |_| {
                std::thread::sleep(Duration::from_millis(600));
                Ok(())
            })
        },
        Duration::from_secs(1),
        async |mut relay| {
            relay.form(|_| {}).await;
            relay.window(1, vec![Range { start: 0, end: 4 }]).await;
            let mut beats = 0;
            let beat = async {
                while let Report::Heartbeat { .. } = relay.control.0.next().await.unwrap().unwrap().to_report().unwrap()
                {
                    beats += 1;
                }
            };
            beat.await;
            relay.order(&Control::Shutdown).await;
            relay.report().await;
            beats
        },
    );
    assert!(result.is_ok());
    assert!((2..60).contains(&beats), "one every 100 ms of at least 600: {beats}");
}

#[test]
fn a_relay_that_closes_is_the_coordinator_lost() {
    let (result, ()) = against(|| job(1, |_| Ok(())), SECONDS, async |mut relay| relay.form(|_| {}).await);
    let Failure::CoordinatorLost(Lost::Closed { .. }) = failure(result) else { panic!("another failure") };
}

#[test]
fn a_relay_that_falls_silent_is_the_coordinator_lost() {
    let patience = Duration::from_millis(300);
    let begun = Instant::now();
    let (result, _relay) = against(
        || job(1, |_| Ok(())),
        patience,
        async |mut relay| {
            relay.form(|_| {}).await;
            relay
        },
    );
    assert_eq!(failure(result), Failure::CoordinatorLost(Lost::Silent { patience }));
    assert!(begun.elapsed() >= patience);
}

#[test]
fn garbage_is_the_coordinator_lost() {
    let (result, ()) = against(
        || job(1, |_| Ok(())),
        SECONDS,
        async |mut relay| {
            relay.form(|_| {}).await;
            relay.raw.write_all(&[0xa5; 100]).unwrap();
            while let Ok(Some(_)) = relay.control.0.next().await {}
        },
    );
    let failure = failure(result);
    assert!(matches!(&failure, Failure::CoordinatorLost(Lost::Broken { channel: "data", .. })), "{failure}");
}

#[test]
fn errors_and_panics_of_the_model_are_told_before_the_end() {
    let cases: [(Stepping, &str); 2] = [
        (
            |steps| if steps == 2 { Err("the disk with the data is gone".into()) } else { Ok(()) },
            "a training step failed: the disk with the data is gone",
        ),
        (
            |steps| {
                assert!(steps != 2, "index {} out of bounds", 7);
                Ok(())
            },
            "panicked: index 7 out of bounds",
        ),
    ];
    for (step, expect) in cases {
        let (result, told) = against(
            move || job(1, step),
            SECONDS,
            async |mut relay| {
                relay.form(|_| {}).await;
                relay.window(1, vec![WHOLE_EPOCH]).await;
                relay.report().await
            },
        );
        assert_eq!(told, Report::Failed { error: expect.to_owned() });
        assert_eq!(failure(result).to_string(), expect);
    }
}

#[test]
fn an_emulated_rank_takes_its_time_and_wakes_when_the_relay_is_gone() {
    let emulation = |step_at_least, slowdown| {
        move |run: &mut RunConfig| run.emulation = Some(Emulation { step_at_least, slowdown })
    };
    let (result, report) = against(
        || job(1, |_| Ok(())),
        SECONDS,
        async |mut relay| {
            relay.form(emulation(Duration::from_millis(20), 2.0)).await;
            relay.window(1, vec![WHOLE_EPOCH]).await;
            let report = relay.report().await;
            relay.order(&Control::Shutdown).await;
            relay.report().await;
            report
        },
    );
    assert!(result.is_ok());
    let Report::WindowReport(report) = report else { panic!("{report:?}") };
    let all = report.first + report.rest;
    assert!(all >= Duration::from_millis(160) && all < Duration::from_millis(1500), "4 batches of 40 ms: {all:?}");

    let begun = Instant::now();
    let (result, ()) = against(
        || job(1, |_| Ok(())),
        SECONDS,
        async |mut relay| {
            relay.form(emulation(Duration::from_secs(60), 1.0)).await;
            relay.window(1, vec![WHOLE_EPOCH]).await;
        },
    );
    assert!(matches!(failure(result), Failure::CoordinatorLost(Lost::Closed { .. })));
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn c9_nobody_at_the_socket_is_an_error_after_the_patience() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("relay.sock");
    let patience = Duration::from_millis(350);
    let begun = Instant::now();
    let error = run(&environment(&socket, &secret(), patience), job(1, |_| Ok(()))).map(|_| ()).unwrap_err();
    assert!(begun.elapsed() >= patience - Duration::from_millis(100), "{:?}", begun.elapsed());
    assert!(matches!(&error, TrainError::Dial(DialError::NobodyThere { .. })), "{error}");
    let message = error.to_string();
    assert!(message.contains(&format!("{}: tried for 350ms", socket.display())), "{message}");
}

#[test]
fn another_secret_and_a_refusal_are_told_apart() {
    let refused = "rank 0 is already here";
    for (secret_of_rank, refuse, expect) in
        [(Secret::from_bytes([9; 32]), None, "closed without an answer"), (secret(), Some(refused), refused)]
    {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("relay.sock");
        let listener = Async::new(UnixListener::bind(&socket).unwrap()).unwrap();
        let environment = environment(&socket, &secret_of_rank, Duration::from_secs(5));
        let keys = rank_keys(&secret());
        let gate = Gate { gate: keys.gate_key, key: keys.rank_key.into(), patience: SECONDS, refuse };
        let error = std::thread::scope(|scope| {
            let rank = scope.spawn(move || run(&environment, job(1, |_| Ok(()))).map(|_| ()).unwrap_err().to_string());
            block_on(future::or(
                async {
                    let (stream, _) = listener.accept().await.unwrap();
                    assert!(accept(stream, &gate, [1; 32]).await.is_err());
                },
                async {
                    Timer::after(SECONDS).await;
                },
            ));
            rank.join().unwrap()
        });
        assert!(error.contains("did not take the control connection") && error.contains(expect), "{error}");
    }
}

//! The host: a relay with its ranks, the root, and the script.

use crate::Options;
use crate::rank::{SAMPLES, nanoseconds};
use async_channel::Receiver;
use flodl_relay::agent::{AgentConfig, Program};
use flodl_relay::shell::RelayConfig;
use flodl_relay::shell::{Report as RootReport, RootHandle, Upstream, local_data_link, run, start_root};
use flodl_wire::frame::{Frame, Kind, Stream};
use flodl_wire::handshake::{Accept, Admission, Channel, Hello, Role};
use flodl_wire::io::{Duplex, FrameReader, FrameWriter, accept, connect, duplex};
use flodl_wire::message::control::{Next, Part, RosterEntry, RoundOutcome, WindowPlan};
use flodl_wire::message::join::{Admit, LayoutSizes, RunConfig};
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::secret::{DialKeys, GateKey, Secret};
use flodl_wire::{Capabilities, Epoch, HostId, Incarnation, Range, Rank, Round, RunId, SessionId, Version, WindowId};
use futures_lite::io::{ReadHalf, WriteHalf};
use rustix::time::ClockId;
use smol::future;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const RUN: RunId = RunId([0x42; 16]);
const SESSION: SessionId = SessionId(1);
const LIFE: Incarnation = Incarnation(1);
const PATIENCE: Duration = Duration::from_secs(30);
/// Rounds before the measurement, in which memory is touched for the first time.
const WARM_UP: u64 = 3;

type Failed = Box<dyn Error>;

fn secret() -> Secret {
    Secret::from_bytes([5; 32])
}

fn host() -> Result<HostId, Failed> {
    HostId::from_name("bench").ok_or_else(|| "the host has no name".into())
}

/// Lets the one relay in.
struct Policy(GateKey);

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

fn nonce() -> Result<[u8; 32], Failed> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|error| error.to_string())?;
    Ok(nonce)
}

/// One line about an average of so many bytes.
pub(crate) fn measure(options: &Options, bytes: u64) -> Result<serde_json::Value, Failed> {
    let directory = std::env::temp_dir().join(format!("flodl-reduce-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let measured = smol::block_on(rounds(options, bytes, &directory));
    let row = measured.and_then(|cpu| summary(options, bytes, cpu, &directory));
    std::fs::remove_dir_all(&directory)?;
    row
}

fn relay_config(options: &Options, bytes: u64, directory: &Path) -> Result<RelayConfig, Failed> {
    let own = std::env::current_exe()?;
    let agent = AgentConfig {
        program: Program::new(own.clone(), ["as-rank".to_owned(), bytes.to_string()]),
        guard: Program::new(own, ["as-guard"]),
        run_dir: directory.to_owned(),
        sink: Arc::new(|line| eprintln!("{line}")),
        shown: None,
    };
    Ok(RelayConfig {
        host: host()?,
        run_id: RUN,
        host_key: secret().host_key(RUN, host()?),
        gate_key: secret().gate_key(),
        agent,
        restarts: 0,
        leave: None,
        shares_memory: options.shares_memory,
    })
}

/// All rounds; this process's CPU nanoseconds over those that are measured.
async fn rounds(options: &Options, bytes: u64, directory: &Path) -> Result<u64, Failed> {
    let config = relay_config(options, bytes, directory)?;
    let (near, far) = duplex(1 << 16);
    let role = Role::Relay { rank_count: options.ranks };
    let (channel, session, capabilities) = (Channel::Control, SessionId(0), Capabilities::NONE);
    let hello = Hello { role, channel, session, run_id: RUN, host_id: host()?, capabilities };
    let keys = DialKeys { gate: config.gate_key.clone(), peer: config.host_key.clone().into() };
    let policy = Policy(secret().gate_key());
    let (control, accepted) = future::zip(connect(near, hello, keys, nonce()?), accept(far, &policy, nonce()?)).await;
    let (relay_data, root_data) = local_data_link::<Duplex, Duplex>();
    let upstream = Upstream { control: control?, data: relay_data };
    let relay = std::thread::Builder::new().name("flodl-relay".to_owned());
    let relay = relay.spawn(move || smol::block_on(run(config, upstream)).map_err(|error| error.to_string()))?;
    let (root, reports) = start_root(PATIENCE)?;
    let sizes = LayoutSizes { parameters: (bytes / 4).max(1), buffers: 0, integers: 0 };
    root.layout(sizes)?;
    let serving = smol::spawn({
        let root = root.clone();
        async move { drop(root.serve(SESSION, root_data).await) }
    });
    let (reader, writer) = accepted?.0.split();
    let mut script = Script { reader, writer, root, reports, ranks: options.ranks };
    let cpu = script.play(sizes, options.seconds).await?;
    relay.join().map_err(|_| "the relay panicked")??;
    drop(serving);
    Ok(cpu)
}

/// What stands in the coordinator's place.
struct Script {
    reader: FrameReader<ReadHalf<Duplex>>,
    writer: FrameWriter<WriteHalf<Duplex>>,
    root: RootHandle,
    reports: Receiver<RootReport>,
    ranks: u32,
}

impl Script {
    async fn play(&mut self, sizes: LayoutSizes, seconds: f64) -> Result<u64, Failed> {
        self.form(sizes).await?;
        let mut parts = vec![Part::Receive; self.ranks as usize];
        parts[0] = Part::Source;
        self.round(0, &parts).await?;
        let (mut last, mut cpu) = (WARM_UP, (0, 0));
        let mut round = 1;
        while round <= last {
            self.window(round).await?;
            let began = nanoseconds(ClockId::Monotonic);
            self.round(round, &vec![Part::Contribute; self.ranks as usize]).await?;
            if round == WARM_UP {
                let took = (nanoseconds(ClockId::Monotonic) - began) as f64 / 1e9;
                last += (seconds / took.max(1e-6)).clamp(5.0, 2000.0) as u64;
                cpu.0 = nanoseconds(ClockId::ProcessCPUTime);
            }
            round += 1;
        }
        cpu.1 = nanoseconds(ClockId::ProcessCPUTime);
        self.broadcast(&Control::Shutdown).await?;
        let mut ended = 0;
        while ended < self.ranks {
            let frame = self.frame().await?;
            ended += u32::from(
                frame.kind == Kind::HostReport && matches!(frame.to_host_report()?, HostReport::RankExited { .. }),
            );
        }
        Ok(cpu.1 - cpu.0)
    }

    async fn frame(&mut self) -> Result<Frame, Failed> {
        self.reader.next().await?.ok_or_else(|| "the relay is gone".into())
    }

    async fn order(&mut self, stream: Stream, control: &Control) -> Result<(), Failed> {
        let incarnation = if matches!(stream, Stream::Rank(_)) { LIFE } else { Incarnation(0) };
        self.writer.send(&Frame::control(stream, incarnation, control)?).await?;
        Ok(self.writer.flush().await?)
    }

    async fn broadcast(&mut self, control: &Control) -> Result<(), Failed> {
        self.root.control(control.clone())?;
        self.order(Stream::AllRanks, control).await
    }

    /// Waits until every rank has said what `wanted` takes.
    async fn all(&mut self, wanted: impl Fn(&Report) -> bool) -> Result<(), Failed> {
        let mut said = 0;
        while said < self.ranks {
            let frame = self.frame().await?;
            match (frame.kind, frame.stream) {
                (Kind::HostReport, _) => match frame.to_host_report()? {
                    HostReport::RankLost { error, .. } => return Err(error.into()),
                    _ => continue,
                },
                _ => match frame.to_report()? {
                    Report::Failed { error } => return Err(error.into()),
                    report => said += u32::from(wanted(&report)),
                },
            }
        }
        Ok(())
    }

    async fn form(&mut self, sizes: LayoutSizes) -> Result<(), Failed> {
        let ids = (0..self.ranks).map(|rank| (Rank(rank), LIFE)).collect();
        self.order(Stream::Host, &Control::Admit(Admit { session: SESSION, ids, world_size: self.ranks })).await?;
        self.all(|report| matches!(report, Report::Ready(_))).await?;
        let run = RunConfig {
            run_id: RUN,
            world_size: self.ranks,
            mode: "cpu-cadence".to_owned(),
            epochs: 1,
            batch_size: 1,
            seed: 0,
            dataset_len: SAMPLES,
            epoch_len: SAMPLES,
            pass_len: SAMPLES,
            epoch_splits: 1,
            layout: sizes,
            patience: PATIENCE,
            emulation: None,
            deterministic: false,
        };
        for rank in 0..self.ranks {
            self.order(Stream::Rank(Rank(rank)), &Control::Admitted(Box::new(run.clone()))).await?;
        }
        Ok(())
    }

    /// One step of every rank.
    async fn window(&mut self, window: u64) -> Result<(), Failed> {
        for rank in 0..self.ranks {
            let start = window * u64::from(self.ranks) + u64::from(rank);
            let plan = WindowPlan {
                window: WindowId(window),
                epoch: Epoch(0),
                leases: vec![Range { start, end: start + 1 }],
                quota: 1,
                quota_max: 1,
                budget: None,
                global_step: window * u64::from(self.ranks),
                quota_sum: u64::from(self.ranks),
                overlap: None,
            };
            self.order(Stream::Rank(Rank(rank)), &Control::Window(plan)).await?;
        }
        self.all(|report| matches!(report, Report::WindowReport(_))).await
    }

    /// A round and its commit, once the root has folded it and every rank has its result.
    async fn round(&mut self, round: u64, parts: &[Part]) -> Result<(), Failed> {
        let entry = |(rank, &part)| RosterEntry { rank: Rank(rank), incarnation: LIFE, session: SESSION, part };
        let roster = (0..).zip(parts).map(entry).collect();
        self.broadcast(&Control::RequestParams { round: Round(round), roster }).await?;
        self.all(|report| matches!(report, Report::SyncAck(ack) if ack.received().is_some())).await?;
        loop {
            match self.reports.recv().await? {
                RootReport::Folded(folded) if folded.any_mass => break,
                RootReport::Waiting { .. } => {}
                other => return Err(format!("the root says {other:?}").into()),
            }
        }
        let outcome = RoundOutcome::Committed { version: Version(round) };
        self.broadcast(&Control::RoundDone { round: Round(round), outcome, next: Next::Window }).await
    }
}

/// One rank's measured rounds: seconds, and CPU nanoseconds from the last of the warm-up to the last round.
fn of_rank(log: &Path) -> Result<(Vec<f64>, u64), Failed> {
    let text = std::fs::read_to_string(log)?;
    let rounds = text.lines().filter_map(|line| line.strip_prefix("round "));
    let numbers = |line: &str| line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>();
    let rounds = rounds.map(numbers).collect::<Result<Vec<_>, _>>()?;
    let measured = rounds.get(WARM_UP as usize + 1..).filter(|rounds| !rounds.is_empty()).ok_or("too few rounds")?;
    let cpu = |round: &[u64]| round.get(2).copied().unwrap_or(0);
    let took = |round: &Vec<u64>| (round[1] - round[0]) as f64 / 1e9;
    let used = cpu(&measured[measured.len() - 1]) - cpu(&rounds[WARM_UP as usize]);
    Ok((measured.iter().map(took).collect(), used))
}

fn summary(options: &Options, bytes: u64, cpu: u64, directory: &Path) -> Result<serde_json::Value, Failed> {
    let logs = (0..options.ranks).map(|rank| of_rank(&directory.join(format!("rank{rank}.log"))));
    let ranks = logs.collect::<Result<Vec<_>, _>>()?;
    let count = ranks.iter().map(|(rounds, _)| rounds.len()).min().unwrap_or(0);
    let slowest = |round: usize| ranks.iter().map(|(rounds, _)| rounds[round]).fold(0.0, f64::max);
    let mut took: Vec<f64> = (0..count).map(slowest).collect();
    took.sort_by(f64::total_cmp);
    let cpu = cpu + ranks.iter().map(|(_, cpu)| cpu).sum::<u64>();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Ok(serde_json::json!({
        "peer": "flodl",
        "form": if options.shares_memory { "copied" } else { "sockets" },
        "tuned": true,
        "ranks": options.ranks,
        "bytes": bytes,
        "rounds": count,
        "median_s": took[count / 2],
        "min_s": took[0],
        "max_s": took[count - 1],
        "cpu_s": cpu as f64 / 1e9 / count as f64,
        "relay_and_root_peak_rss_kib": kib("VmHWM:"),
    }))
}

//! What a seed draws before anything happens: the cluster, its links, the work, and which faults there will be.

use super::class::Class;
use super::mutant::Mutant;
use super::rng::Rng;
use crate::{Duties, Duty, Elect, MaxFailure, Scheduling};
use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;
use flodl_cpureduce::Codec;
use flodl_elche::{AnchorSettings, Mode, Passes};
use flodl_wire::Rank;

const MS: f64 = 1e6;

/// What the caller fixes; the seed draws the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The seed.
    pub seed: u64,
    /// The fewest and the most ranks.
    pub ranks: (u32, u32),
    /// The classes a seed may enable; `None`: all.
    pub classes: Option<Vec<Class>>,
    /// A protection to turn off.
    pub mutant: Option<Mutant>,
    /// 0, or which other timing of the same work: devices, links and faults are drawn anew, and nothing else.
    pub timing: u64,
}

impl Request {
    /// The seed with everything else left to it.
    #[must_use]
    pub fn new(seed: u64, ranks: (u32, u32)) -> Request {
        Request { seed, ranks, classes: None, mutant: None, timing: 0 }
    }
}

/// How a kind of link behaves.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Plane {
    /// One way, without load.
    pub(crate) latency_ns: f64,
    /// The deviation of the latency's logarithm.
    pub(crate) jitter: f64,
    /// Bytes a second.
    pub(crate) bandwidth: f64,
}

/// How a rank's device behaves.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Speed {
    /// A batch, on the average and without throttling.
    pub(crate) batch_ns: f64,
    /// The deviation of a batch's logarithm.
    pub(crate) jitter: f64,
    /// How much slower it is after an hour, as a factor.
    pub(crate) drift: f64,
    /// The fraction of the time that it is throttled.
    pub(crate) throttled: f64,
    /// How much slower it is then.
    pub(crate) throttle: f64,
}

/// The work and its settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) mode: Mode,
    pub(crate) epochs: u64,
    pub(crate) samples: u64,
    /// Epochs of a pass over them.
    pub(crate) epoch_splits: u32,
    pub(crate) batch_size: u32,
    pub(crate) parameters: u32,
    pub(crate) patience: Duration,
    /// How often each rank is started again.
    pub(crate) restarts: u32,
    pub(crate) max_failure: MaxFailure,
}

/// Everything a seed has drawn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) request: Request,
    /// Ranks of each host.
    pub(crate) hosts: Vec<u32>,
    pub(crate) speeds: Vec<Speed>,
    /// Between hosts: control, then data.
    pub(crate) wide: [Plane; 2],
    /// Inside a host.
    pub(crate) local: Plane,
    pub(crate) work: Work,
    pub(crate) scheduling: Scheduling,
    pub(crate) duties: Duties,
    pub(crate) classes: Vec<Class>,
    /// As what sums and results travel between hosts.
    pub(crate) wire: Codec,
    /// How many times faults strike.
    pub(crate) strikes: u32,
    /// How long a process takes to its first word where it is not its rank's first.
    pub(crate) starting_ns: u64,
}

impl Options {
    /// What the request's seed draws.
    pub(crate) fn draw(request: Request, rng: &mut Rng) -> Options {
        let ranks = rng.within(u64::from(request.ranks.0), u64::from(request.ranks.1)) as u32;
        let hosts = spread(ranks, rng);
        let fastest = rng.log_within(8.0 * MS, 400.0 * MS);
        let spread = rng.log_within(1.0, 10.0);
        let (jitter, throttled) = (rng.unit() * 0.2, if rng.chance(0.3) { 0.05 } else { 0.0 });
        let speeds = (0..ranks).map(|_| Speed {
            batch_ns: fastest * rng.log_within(1.0, spread.max(1.000_001)),
            jitter,
            drift: rng.log_within(0.8, 1.25),
            throttled,
            throttle: 1.6,
        });
        let speeds: Vec<Speed> = speeds.collect();
        let latency = rng.log_within(0.05 * MS, 40.0 * MS);
        let wide = Plane { latency_ns: latency, jitter: rng.unit() * 0.5, bandwidth: rng.log_within(1e6, 1e9) };
        let wide = [wide, Plane { latency_ns: latency * rng.log_within(0.5, 4.0), ..wide }];
        let local = Plane { latency_ns: rng.log_within(0.01 * MS, 0.2 * MS), jitter: rng.unit() * 0.3, bandwidth: 3e9 };
        let mut work = Work::draw(ranks, rng).split(&request);
        let mut classes = enabled(&request, rng);
        choose_nccl(&request, &mut work, &mut classes);
        let strikes = if classes.is_empty() { 0 } else { rng.within(1, 2 + u64::from(ranks.ilog2())) as u32 };
        let duties = duties(&request, ranks);
        let wire = wire(&request, work.mode);
        let scheduling = scheduling(&request, (ranks, work.mode));
        Options {
            request,
            hosts,
            speeds,
            wide,
            local,
            work,
            scheduling,
            duties,
            classes,
            wire,
            strikes,
            starting_ns: 0,
        }
    }

    /// The same work at another time, where the request asks for that: the draws that are left are others too.
    pub(crate) fn timed(mut self, rng: Rng) -> (Options, Rng) {
        let Request { seed, timing, .. } = self.request;
        if timing == 0 {
            return (self, rng);
        }
        let mut rng = Rng::new(seed ^ (TIMING << 32) ^ timing);
        self.speeds.iter_mut().for_each(|speed| speed.batch_ns *= rng.log_within(0.5, 2.0));
        self.wide.iter_mut().for_each(|plane| plane.latency_ns *= rng.log_within(0.3, 3.0));
        (self, rng)
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.hosts.iter().sum()
    }

    /// How fast that rank's device is. Ranks that come later than the cluster was drawn have devices like the first ones.
    pub(crate) fn speed(&self, rank: Rank) -> Speed {
        self.speeds[rank.0 as usize % self.speeds.len()]
    }

    pub(crate) fn has(&self, class: Class) -> bool {
        self.classes.contains(&class)
    }

    /// About how long the run takes where nothing happens, in nanoseconds.
    pub(crate) fn expected_ns(&self) -> f64 {
        let rate: f64 = self.speeds.iter().map(|speed| 1.0 / speed.batch_ns).sum();
        let batches = self.work.epochs * self.work.samples.div_ceil(u64::from(self.work.batch_size));
        batches as f64 / rate + 20.0 * self.wide[1].latency_ns
    }

    /// The line that repeats this run.
    pub(crate) fn repeat(&self) -> String {
        let Request { seed, ranks: (low, high), classes, mutant, timing } = &self.request;
        let mut line = format!("cargo xtask sim --seed {seed} --ranks {low}..{high}");
        if let Some(classes) = classes {
            let names: Vec<&str> = classes.iter().map(|class| class.name()).collect();
            line.push_str(&format!(" --faults {}", names.join(",")));
        }
        if let Some(mutant) = mutant {
            line.push_str(&format!(" --mutant {}", mutant.name()));
        }
        if *timing > 0 {
            line.push_str(&format!(" --timing {timing}"));
        }
        line
    }
}

impl Work {
    fn draw(ranks: u32, rng: &mut Rng) -> Work {
        let mode = match rng.below(20) {
            0..=2 => Mode::CpuSync,
            3..=8 => Mode::CpuAsync,
            _ => Mode::CpuCadence,
        };
        let batch_size = rng.within(1, 8) as u32;
        // So many batches a rank, over all epochs; a round a step is dearer to simulate.
        let each = match mode {
            Mode::CpuSync => rng.within(6, 20),
            _ => rng.within(20, 100),
        };
        let epochs = rng.within(1, 4);
        let batches = (u64::from(ranks) * each).div_ceil(epochs).max(1);
        // Never a round number, so that the last batch of an epoch is short.
        let samples = (batches * u64::from(batch_size)).saturating_sub(rng.below(u64::from(batch_size))).max(1);
        // Thousands of ranks are not run with heartbeats of milliseconds.
        let least = if ranks > 512 { 10_000.0 } else { 500.0 };
        let patience = Duration::from_millis(rng.log_within(least, 20_000.0) as u64);
        let parameters = rng.within(1, 40) as u32;
        let restarts = if rng.chance(0.4) { rng.within(1, 3) as u32 } else { 0 };
        let max_failure = match rng.below(20) {
            0 => MaxFailure::Absolute(rng.within(1, u64::from(ranks)) as u32),
            1 => MaxFailure::Percent(rng.within(10, 90) as u8),
            _ => MaxFailure::None,
        };
        Work { mode, epochs, samples, epoch_splits: 1, batch_size, parameters, patience, restarts, max_failure }
    }
}

impl Work {
    /// In one seed in six an epoch is a part of a pass.
    fn split(mut self, request: &Request) -> Work {
        let mut rng = Rng::new(request.seed ^ (SPLITS << 32));
        if rng.chance(1.0 / 6.0) {
            self.epoch_splits = rng.within(2, 5) as u32;
            self.epochs *= rng.within(1, u64::from(self.epoch_splits));
        }
        self
    }

    /// How its epochs cut its passes.
    pub(crate) fn passes(&self) -> Passes {
        Passes::new(self.samples, self.epoch_splits)
    }
}

/// Ranks over hosts: one host, one rank a host, or anything between.
fn spread(ranks: u32, rng: &mut Rng) -> Vec<u32> {
    // Nobody has a machine of hundreds of devices, and thousands of machines are many.
    let least = 1 + ranks / 512;
    let most = match rng.below(4) {
        0 => ranks.min(64),
        1 => 1 + ranks / 32,
        _ => 8.max(4 * least),
    };
    let mut left = ranks;
    let mut hosts = Vec::new();
    while left > 0 {
        let here = rng.within(u64::from(least), u64::from(most.max(least))) as u32;
        hosts.push(here.min(left));
        left -= here.min(left);
    }
    hosts
}

/// What distinguishes draws about duties from the others of a seed.
const DUTIES: u64 = 0x6475_7479;

/// What distinguishes draws about other timings, about runs that are to be bit-equal, and about epochs that are parts of passes.
const TIMING: u64 = 0x7469_6d65;
const SPLITS: u64 = 0x7370_6c74;
const BITS: u64 = 0x6669_7864;

/// One seed in seven is to be bit-equal whatever the timing.
fn scheduling(request: &Request, (ranks, mode): (u32, Mode)) -> Scheduling {
    let mut rng = Rng::new(request.seed ^ (BITS << 32));
    // What NCCL adds first is its own affair.
    if !rng.chance(1.0 / 7.0) || !mode.is_cpu() {
        return Scheduling::default();
    }
    let start = (mode != Mode::CpuSync && rng.chance(0.5)).then(|| rng.within(1, 8) as u32);
    let hinted: Vec<Rank> = (0..ranks.min(64)).map(Rank).filter(|_| rng.chance(0.3)).collect();
    let speeds = hinted.into_iter().map(|rank| (rank, rng.log_within(0.3, 3.0))).collect();
    let anchor = AnchorSettings { start, ..AnchorSettings::default() };
    Scheduling { deterministic: true, anchor, speeds, ..Scheduling::default() }
}

/// Half of the seeds evaluate and save during the run, by whom and how often they draw.
fn duties(request: &Request, ranks: u32) -> Duties {
    let mut rng = Rng::new(request.seed ^ (DUTIES << 32));
    let mut duty = || {
        let by = if rng.chance(0.5) { Elect::Fastest } else { Elect::Rank(Rank(rng.below(u64::from(ranks)) as u32)) };
        let every = |rng: &mut Rng, most| NonZeroU64::new(rng.within(1, most)).filter(|_| rng.chance(0.6));
        Duty { by, epochs: every(&mut rng, 2), rounds: every(&mut rng, 6) }
    };
    let (evaluation, checkpoint) = (duty(), duty());
    let wanted = request.classes.as_ref().is_some_and(|classes| classes.iter().any(|class| class.is_of_duties()));
    if wanted || rng.chance(0.5) { Duties { evaluation, checkpoint } } else { Duties::default() }
}

/// What distinguishes the draw of the codec from the others of a seed.
const WIRE: u64 = 0x7769_7265;

/// A third of the seeds that fold round what travels between hosts.
fn wire(request: &Request, mode: Mode) -> Codec {
    let mut rng = Rng::new(request.seed ^ (WIRE << 32));
    match rng.below(6) {
        _ if !mode.is_cpu() => Codec::F32,
        0 => Codec::Bf16,
        1 => Codec::Int8,
        _ => Codec::F32,
    }
}

/// What distinguishes draws about NCCL from the others of a seed.
const NCCL: u64 = 0x6e63_636c;

/// A quarter of the seeds averages over NCCL, and all that are asked for its faults.
fn choose_nccl(request: &Request, work: &mut Work, classes: &mut Vec<Class>) {
    let mut rng = Rng::new(request.seed ^ (NCCL << 32));
    let wanted = request.classes.as_ref().is_some_and(|classes| classes.iter().any(|class| class.is_of_nccl()));
    if rng.chance(0.25) || wanted {
        work.mode = if work.mode == Mode::CpuSync { Mode::NcclSync } else { Mode::NcclCadence };
        classes.retain(|class| !class.needs_folds());
    } else {
        classes.retain(|class| !class.is_of_nccl());
    }
}

/// Swarm testing (Groce and others, "Swarm testing", ISSTA 2012): leaving faults out finds what all of them together hide.
fn enabled(request: &Request, rng: &mut Rng) -> Vec<Class> {
    let density = *rng.pick(&[0.0, 0.1, 0.25, 0.5]).unwrap_or(&0.1);
    let mut classes = Vec::new();
    // A draw of their own, so that these kinds of faults change nothing about the others.
    let mut apart = Rng::new(request.seed ^ DUTIES);
    let mut nccl = Rng::new(request.seed ^ NCCL);
    for class in Class::ALL {
        let rng = match class {
            class if class.is_of_duties() => &mut apart,
            class if class.is_of_nccl() || class == Class::StopTwice => &mut nccl,
            _ => &mut *rng,
        };
        let drawn = rng.chance(if class.is_rare() { density / 5.0 } else { density });
        let wanted = request.classes.as_ref().map(|wanted| wanted.contains(&class));
        if wanted.unwrap_or(drawn) {
            classes.push(class);
        }
    }
    classes
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Work { mode, epochs, samples, epoch_splits, batch_size, parameters, patience, restarts, max_failure } =
            &self.work;
        let batch = |pick: fn(f64, f64) -> f64, start| self.speeds.iter().map(|s| s.batch_ns / MS).fold(start, pick);
        let names: Vec<&str> = self.classes.iter().map(|class| class.name()).collect();
        write!(
            f,
            "seed {}: {} ranks on {} hosts, {mode}, {epochs} epochs of {samples}/{epoch_splits} samples in batches of {batch_size}, \
             {parameters} parameters, patience {patience:?}, {restarts} restarts, max failure {max_failure}, batches of {:.1}..{:.1} ms, links of {:.2} and {:.2} ms, \
             {}{} strikes of [{}], {} between hosts",
            self.request.seed,
            self.ranks(),
            self.hosts.len(),
            batch(f64::min, f64::INFINITY),
            batch(f64::max, 0.0),
            self.wide[0].latency_ns / MS,
            self.wide[1].latency_ns / MS,
            told(&self.duties) + if self.scheduling.deterministic { "deterministic, " } else { "" },
            self.strikes,
            names.join(" "),
            self.wire
        )
    }
}

/// What is evaluated and saved during the run, if anything.
fn told(duties: &Duties) -> String {
    let duty = |name: &str, Duty { by, epochs, rounds }: Duty| {
        let every = |every: Option<NonZeroU64>, what| every.map(|every| format!(" every {every} {what}"));
        let parts: Vec<String> = [every(epochs, "epochs"), every(rounds, "rounds")].into_iter().flatten().collect();
        if parts.is_empty() { String::new() } else { format!("{name} by {by}{}, ", parts.concat()) }
    };
    duty("evaluation", duties.evaluation) + &duty("checkpoint", duties.checkpoint)
}

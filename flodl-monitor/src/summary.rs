//! What a run came to: one value, written as JSON for programs and shown as text for people (`report.rs`).

use crate::figures::Figures;
use crate::rank::RankLog;
use crate::store::{Evaluated, Losses, Store};
use core::time::Duration;
use flodl_wire::Rank;
use flodl_wire::message::join::Emulation;
use flodl_wire::message::record::EpochMetrics;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A run's summary; `None` (JSON `null`) where a figure is not known, never NaN. Fields are only ever appended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Fraction of test samples that the final evaluation classified rightly, 0..=1.
    pub accuracy: Option<f64>,
    /// Mean loss per test sample of the final evaluation.
    pub loss: Option<f64>,
    /// Rounds after round 0 that ended, with a result or without.
    pub rounds: u64,
    /// The newest committed version; `None` where not even round 0 committed.
    pub version: Option<u64>,
    /// Distinct (epoch, position) pairs committed.
    pub samples_committed: u64,
    /// Epochs times positions of an epoch.
    pub samples_expected: Option<u64>,
    /// Samples trained once more because a death left their round with part of them.
    pub repeats: u64,
    /// Samples set aside for good.
    pub quarantined: u64,
    /// Whether every rank received every result as the root sent it, and its replica equalled it after applying it.
    pub digests_equal: Option<bool>,
    /// Committed samples a second of `wall_s`.
    pub throughput: Option<f64>,
    /// What the ranks do without waiting, in samples a second; see [`Figures::ceiling`].
    pub ceiling: Option<f64>,
    /// `throughput / ceiling`.
    pub ceiling_fraction: Option<f64>,
    /// Every rank that took part, by number.
    pub per_rank: Vec<RankSummary>,
    /// The deaths, in order; at most [`LISTED`](crate::store::LISTED).
    pub deaths: Vec<Loss>,
    /// Seconds from the first window to the end of the last round.
    pub wall_s: Option<f64>,
    /// Some rank died, was refused or is missing from the start.
    pub degraded: bool,
    /// The exit status.
    pub exit: Option<i32>,
    /// As what sums and averages travelled between hosts. The store does not know it: the caller sets it.
    #[serde(default)]
    pub wire: Option<String>,
    /// How the run started.
    #[serde(flatten)]
    pub start: Start,
    /// What it left.
    #[serde(flatten)]
    pub files: Files,
    /// Why it ended, where there is more to say than the status does.
    #[serde(default)]
    pub why: Option<String>,
    /// What these ranks could reach at best in lockstep, where each step waits for the slowest, in samples a second: their
    /// number times the batch size over the slowest one's batch time. `None` of one rank, and where one was not measured.
    #[serde(default)]
    pub lockstep: Option<f64>,
    /// `throughput / lockstep`.
    #[serde(default)]
    pub over_lockstep: Option<f64>,
    /// The users' own figures of the last epoch that is over, by their declared reductions.
    #[serde(default)]
    pub scalars: BTreeMap<String, f64>,
    /// The epochs that are over, in order; the last [`LISTED`](crate::store::LISTED).
    #[serde(default)]
    pub epochs: Vec<EpochSummary>,
    /// The evaluations that found something, in order; the last [`LISTED`](crate::store::LISTED).
    #[serde(default)]
    pub evaluations: Vec<EvaluationSummary>,
}

/// An epoch that is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochSummary {
    /// Which, from 0.
    pub epoch: u64,
    /// The consensus at its end.
    pub version: Option<u64>,
    /// From its first window's orders to its end, in seconds.
    pub wall_s: f64,
    /// Rounds in it.
    pub rounds: u64,
    /// Samples committed in it.
    pub committed: u64,
    /// Mean training loss per sample.
    pub loss: Option<f64>,
    /// The longest time that a rank was between windows, in milliseconds.
    pub wait_ms: f64,
    /// Averaging, in milliseconds.
    pub reduce_ms: f64,
    /// The largest distance of a replica from an average, relative to it.
    pub divergence: Option<f64>,
    /// The users' own figures.
    pub scalars: BTreeMap<String, f64>,
}

/// An evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationSummary {
    /// Of which consensus.
    pub version: Option<u64>,
    /// On which rank.
    pub rank: u32,
    /// Mean loss per sample.
    pub loss: Option<f64>,
    /// Fraction classified rightly, 0..=1.
    pub accuracy: Option<f64>,
    /// Samples evaluated.
    pub samples: u64,
}

/// One rank's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankSummary {
    /// Who.
    pub rank: u32,
    /// Batches trained.
    pub batches: u64,
    /// The median of its batch times, in milliseconds; see [`BatchTimes`](crate::median::BatchTimes).
    pub batch_ms: Option<f64>,
    /// Waiting between windows over the whole run, in milliseconds.
    pub wait_ms: f64,
    /// Its fraction of the committed samples; all shares add up to 1. `None` where nothing is committed.
    pub share: Option<f64>,
    /// Samples of its own that are committed.
    #[serde(default)]
    pub committed: u64,
    /// Where the rank was slowed on purpose.
    #[serde(default)]
    pub emulated: Option<EmulatedRank>,
}

/// How a rank was slowed on purpose.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmulatedRank {
    /// A step took at least so many milliseconds before it was stretched.
    pub step_ms: f64,
    /// Then each step was stretched to this many times its length.
    pub slowdown: Option<f64>,
}

/// A rank that the run lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Who.
    pub rank: u32,
    /// A sentence.
    pub why: String,
}

/// How the run started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Ranks that were to start.
    #[serde(default)]
    pub world_size: Option<u32>,
    /// Ranks that started.
    #[serde(default)]
    pub started: Option<u64>,
    /// Ranks that were refused, in order; at most [`LISTED`](crate::store::LISTED).
    #[serde(default)]
    pub refused: Vec<Loss>,
}

/// What the run left in its folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// The saved model.
    #[serde(default)]
    pub model: Option<String>,
    /// The timeline's first file. The store does not know it: the caller sets it.
    #[serde(default)]
    pub timeline: Option<String>,
    /// The newest checkpoint set's directory.
    #[serde(default)]
    pub checkpoint: Option<String>,
    /// The version in it.
    #[serde(default)]
    pub saved_version: Option<u64>,
    /// Why the newest version is not in it, where that failed.
    #[serde(default)]
    pub not_saved: Option<String>,
}

impl Summary {
    /// What `store`'s records come to.
    #[must_use]
    pub fn of(store: &Store) -> Summary {
        let Figures { wall, throughput, ceiling, fraction } = Figures::of(store);
        let (rounds, outcome) = (store.rounds(), store.outcome());
        let start = Start {
            world_size: store.meta().map(|meta| meta.world_size),
            started: store.formed().map(|formed| formed as u64),
            refused: losses(store.refused()),
        };
        let missing = match (start.world_size, start.started) {
            (Some(size), Some(started)) => started < u64::from(size),
            _ => false,
        };
        let mut per_rank: Vec<RankSummary> = store
            .ranks()
            .filter(|(_, log)| log.took_part())
            .map(|(rank, log)| rank_summary(store, rank, log))
            .collect();
        share_out(&mut per_rank);
        let lockstep = store.meta().and_then(|meta| lockstep(meta.batch_size, &per_rank));
        Summary {
            accuracy: outcome.evaluation.and_then(|found| found.accuracy).filter(|value| value.is_finite()),
            loss: outcome.evaluation.map(|found| found.loss).filter(|value| value.is_finite()),
            rounds: rounds.ended,
            version: rounds.version.map(|version| version.0),
            samples_committed: rounds.committed,
            samples_expected: store.meta().map(|meta| meta.samples),
            repeats: rounds.repeats,
            quarantined: rounds.quarantined,
            digests_equal: rounds.digests_equal,
            throughput,
            ceiling,
            ceiling_fraction: fraction,
            per_rank,
            deaths: losses(store.deaths()),
            wall_s: wall.map(|wall| wall.as_secs_f64()),
            degraded: missing || !store.deaths().listed.is_empty() || !store.refused().listed.is_empty(),
            exit: outcome.exit,
            wire: None,
            start,
            files: files(store),
            why: outcome.why.clone(),
            lockstep,
            over_lockstep: throughput.zip(lockstep).map(|(throughput, lockstep)| throughput / lockstep),
            scalars: store.history().epochs.back().map(|last| finite(&last.scalars)).unwrap_or_default(),
            epochs: store.history().epochs.iter().map(epoch_summary).collect(),
            evaluations: store.history().evaluations.iter().map(evaluation_summary).collect(),
        }
    }

    /// Writes it to `path` as JSON, whole or not at all: to a temporary file beside it that then takes its name.
    ///
    /// # Errors
    ///
    /// [`WriteError`] where the folder cannot be written; an earlier file at `path` is then untouched.
    pub fn write_json(&self, path: &Path) -> Result<(), WriteError> {
        let failed =
            |error: &io::Error| WriteError { path: path.to_owned(), kind: error.kind(), why: error.to_string() };
        let mut json = serde_json::to_vec_pretty(self).map_err(|error| failed(&error.into()))?;
        json.push(b'\n');
        let Some(name) = path.file_name() else {
            let why = "it has no file name".to_owned();
            return Err(WriteError { path: path.to_owned(), kind: io::ErrorKind::InvalidInput, why });
        };
        let mut beside = name.to_owned();
        beside.push(format!(".{}.part", std::process::id()));
        let beside = path.with_file_name(beside);
        let written = write_synced(&beside, &json).and_then(|()| fs::rename(&beside, path));
        written.map_err(|error| {
            // What is left of the attempt; where it cannot be removed either, the first error is the one to tell.
            fs::remove_file(&beside).ok();
            failed(&error)
        })
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The summary could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the summary cannot be written to {}: {why}; name another file or make its folder writable", path.display())]
pub struct WriteError {
    /// Where it was to go.
    pub path: PathBuf,
    /// What kind of failure.
    pub kind: io::ErrorKind,
    /// The system's words.
    pub why: String,
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn losses(losses: &Losses) -> Vec<Loss> {
    losses.listed.iter().map(|(rank, why)| Loss { rank: rank.0, why: why.clone() }).collect()
}

fn rank_summary(store: &Store, rank: Rank, log: &RankLog) -> RankSummary {
    let slows = |emulation: &Emulation| !emulation.step_at_least.is_zero() || emulation.slowdown != 1.0;
    let emulated = store.meta().and_then(|meta| meta.emulated.iter().find(|(of, how)| *of == rank && slows(how)));
    RankSummary {
        rank: rank.0,
        batches: log.batches,
        batch_ms: log.batch_times.median().map(millis),
        wait_ms: millis(log.idle),
        share: None,
        committed: log.committed,
        emulated: emulated.map(|(_, emulation)| EmulatedRank {
            step_ms: millis(emulation.step_at_least),
            slowdown: Some(emulation.slowdown).filter(|slowdown| slowdown.is_finite()),
        }),
    }
}

fn finite(scalars: &[(String, f64)]) -> BTreeMap<String, f64> {
    scalars.iter().filter(|(_, value)| value.is_finite()).cloned().collect()
}

fn epoch_summary(metrics: &EpochMetrics) -> EpochSummary {
    EpochSummary {
        epoch: metrics.epoch.0,
        version: metrics.version.map(|version| version.0),
        wall_s: metrics.wall.as_secs_f64(),
        rounds: metrics.rounds,
        committed: metrics.committed,
        loss: metrics.loss.filter(|loss| loss.is_finite()),
        wait_ms: millis(metrics.wait),
        reduce_ms: millis(metrics.reduce),
        divergence: metrics.divergence.map(|divergence| divergence.max).filter(|far| far.is_finite()),
        scalars: finite(&metrics.scalars),
    }
}

fn evaluation_summary(Evaluated { version, rank, found }: &Evaluated) -> EvaluationSummary {
    EvaluationSummary {
        version: version.map(|version| version.0),
        rank: rank.0,
        loss: Some(found.loss).filter(|loss| loss.is_finite()),
        accuracy: found.accuracy.filter(|accuracy| accuracy.is_finite()),
        samples: found.samples,
    }
}

fn share_out(ranks: &mut [RankSummary]) {
    let all: f64 = ranks.iter().map(|rank| rank.committed as f64).sum();
    if all > 0.0 {
        ranks.iter_mut().for_each(|rank| rank.share = Some(rank.committed as f64 / all));
    }
}

/// See [`Summary::lockstep`].
fn lockstep(batch_size: u32, ranks: &[RankSummary]) -> Option<f64> {
    let times: Option<Vec<f64>> = ranks.iter().map(|rank| rank.batch_ms.filter(|ms| *ms > 0.0)).collect();
    let times = times.filter(|times| times.len() > 1)?;
    let slowest = times.iter().copied().fold(0.0, f64::max);
    Some(times.len() as f64 * f64::from(batch_size) * 1e3 / slowest)
}

fn files(store: &Store) -> Files {
    let outcome = store.outcome();
    // A failure counts only where no later attempt saved that version or a newer one.
    let not_saved = outcome.not_saved.as_ref().filter(|(failed, _)| {
        let saved = outcome.saved.as_ref().map(|(version, _)| *version);
        saved.is_none_or(|saved| saved < *failed)
    });
    Files {
        model: outcome.saved.as_ref().map(|(_, set)| Path::new(set).join("model.safetensors").display().to_string()),
        timeline: None,
        checkpoint: outcome.saved.as_ref().map(|(_, set)| set.clone()),
        saved_version: outcome.saved.as_ref().map(|(version, _)| version.0),
        not_saved: not_saved.map(|(_, why)| why.clone()),
    }
}

//! The summary as people read it: short, aligned, without colours, and without a figure that is not known.

use crate::summary::{EmulatedRank, Loss, RankSummary, Summary};
use crate::text::{count, plain, rate, scalars};
use core::fmt::{self, Display, Formatter};

/// The most ranks shown one by one; the JSON form has them all.
const ROWS: usize = 64;

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        row(f, "test", &self.evaluation_text())?;
        if !self.scalars.is_empty() {
            row(f, "epoch", &format!("{} in the last one", scalars(self.scalars.iter())))?;
        }
        row(f, "rounds", &self.rounds_text())?;
        row(f, "samples", &self.samples_text())?;
        row(f, "digests", self.digests_text())?;
        row(f, "speed", &self.speed_text())?;
        if let Some(lockstep) = self.lockstep_text() {
            row(f, "", &lockstep)?;
        }
        if let Some(wall) = self.wall_s {
            row(f, "time", &format!("{wall:.2} s from the first window to the end of the last round"))?;
        }
        if let Some(wire) = self.wire.as_ref().filter(|wire| *wire != "f32") {
            row(f, "wire", &format!("{wire} differences between hosts"))?;
        }
        if let Some(short) = self.missing_text() {
            row(f, "start", &short)?;
        }
        table(f, &self.per_rank)?;
        losses(f, "died", &self.deaths)?;
        losses(f, "refused", &self.start.refused)?;
        writeln!(f)?;
        for (name, path) in [("model", &self.files.model), ("timeline", &self.files.timeline)] {
            if let Some(path) = path {
                row(f, name, &plain(path))?;
            }
        }
        if let Some(why) = &self.why {
            row(f, "ended", &plain(why))?;
        }
        writeln!(f, "{}", self.saved_text())
    }
}

fn row(f: &mut Formatter<'_>, name: &str, text: &str) -> fmt::Result {
    writeln!(f, "{name:<10}{text}")
}

impl Summary {
    fn evaluation_text(&self) -> String {
        match (self.accuracy, self.loss) {
            (Some(accuracy), Some(loss)) => format!("accuracy {accuracy:.4}, loss {loss:.4}"),
            (Some(accuracy), None) => format!("accuracy {accuracy:.4}, loss not finite"),
            (None, Some(loss)) => format!("loss {loss:.4}"),
            (None, None) => "the last version was not evaluated".to_owned(),
        }
    }

    fn rounds_text(&self) -> String {
        match self.version {
            Some(version) => format!("{} after round 0, version {version}", self.rounds),
            None => "none committed".to_owned(),
        }
    }

    fn samples_text(&self) -> String {
        let mut text = match self.samples_expected {
            Some(expected) => {
                let settled = self.samples_committed.saturating_add(self.quarantined);
                let verdict = match settled.cmp(&expected) {
                    core::cmp::Ordering::Equal => "exact".to_owned(),
                    core::cmp::Ordering::Less => format!("{} not trained", expected - settled),
                    core::cmp::Ordering::Greater => format!("{} too many", settled - expected),
                };
                format!("{} of {expected} committed ({verdict})", self.samples_committed)
            }
            None => format!("{} committed", self.samples_committed),
        };
        text.push_str(&format!(", {} repeated", self.repeats));
        if self.quarantined > 0 {
            text.push_str(&format!(", {} set aside", self.quarantined));
        }
        text
    }

    fn digests_text(&self) -> &'static str {
        match self.digests_equal {
            Some(true) => "equal on all ranks in all rounds",
            Some(false) => "DIFFER: some rank did not hold the average that the others held",
            None => "none compared",
        }
    }

    fn speed_text(&self) -> String {
        let Some(throughput) = self.throughput else { return "not known: no round ended".to_owned() };
        let mut text = format!("{} samples/s", rate(throughput));
        match (self.ceiling, self.ceiling_fraction) {
            (Some(ceiling), Some(fraction)) => {
                text.push_str(&format!(", ceiling {} samples/s, fraction of the ceiling {fraction:.3}", rate(ceiling)));
            }
            _ => text.push_str(", ceiling not known"),
        }
        text
    }

    fn lockstep_text(&self) -> Option<String> {
        let (lockstep, over) = (self.lockstep?, self.over_lockstep?);
        let ranks = self.per_rank.len();
        Some(format!("{over:.2} times lockstep at its best ({ranks} x the slowest, {} samples/s)", rate(lockstep)))
    }

    fn missing_text(&self) -> Option<String> {
        let (size, started) = (u64::from(self.start.world_size?), self.start.started?);
        (started < size).then(|| format!("only {started} of {} started", count(size, "rank")))
    }

    fn saved_text(&self) -> String {
        let failed = self.files.not_saved.as_deref().map(plain);
        let saved = |path: &String, version| {
            let path = plain(path);
            format!("saved: {path} (version {version}); resuming is not available in this version")
        };
        match (&self.files.model, self.files.saved_version, failed) {
            (Some(path), Some(version), None) => saved(path, version),
            (Some(path), Some(version), Some(why)) => {
                format!("the newest version was not saved: {why}\n{}", saved(path, version))
            }
            (_, _, Some(why)) => format!("nothing was saved: {why}"),
            _ => "nothing was saved".to_owned(),
        }
    }
}

fn table(f: &mut Formatter<'_>, ranks: &[RankSummary]) -> fmt::Result {
    if ranks.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{:>6}{:>10}{:>12}{:>12}{:>9}", "rank", "batches", "ms/batch", "waited s", "share")?;
    for rank in ranks.iter().take(ROWS) {
        let batch = rank.batch_ms.map_or("-".to_owned(), |ms| format!("{ms:.3}"));
        let share = rank.share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 1e2));
        let waited = format!("{:.3}", rank.wait_ms / 1e3);
        write!(f, "{:>6}{:>10}{batch:>12}{waited:>12}{share:>9}", rank.rank, rank.batches)?;
        match &rank.emulated {
            Some(emulated) => writeln!(f, "  {emulated}")?,
            None => writeln!(f)?,
        }
    }
    match ranks.len().saturating_sub(ROWS) {
        0 => Ok(()),
        more => writeln!(f, "       and {} more", count(more as u64, "rank")),
    }
}

fn losses(f: &mut Formatter<'_>, what: &str, losses: &[Loss]) -> fmt::Result {
    if let Some(first) = losses.first() {
        writeln!(f)?;
        row(f, what, &format!("rank {}: {}", first.rank, plain(&first.why)))?;
    }
    for loss in losses.iter().take(ROWS).skip(1) {
        row(f, "", &format!("rank {}: {}", loss.rank, plain(&loss.why)))?;
    }
    match losses.len().saturating_sub(ROWS) {
        0 => Ok(()),
        more => row(f, "", &format!("and {more} more")),
    }
}

impl Display for EmulatedRank {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("emulated:")?;
        let step = (self.step_ms > 0.0).then(|| format!(" step >= {} ms", self.step_ms));
        let slower = self.slowdown.filter(|&slowdown| slowdown > 1.0).map(|slowdown| format!(" x{slowdown} slower"));
        f.write_str(&step.into_iter().chain(slower).collect::<Vec<_>>().join(","))
    }
}

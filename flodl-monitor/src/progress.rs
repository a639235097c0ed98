//! Where a run is: its figures, and how they are put on a plain line, on a terminal's bar, and in an epoch's last words.

use crate::figures::Figures;
use crate::rank::State;
use crate::store::Store;
use crate::text;
use core::time::Duration;
use flodl_wire::{Epoch, Time};

/// Where a run is, in figures. What is not known is `None`.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// No window has been planned yet.
    Starting {
        /// Ranks that are ready.
        ready: usize,
        /// Ranks of the run.
        of: Option<u32>,
    },
    /// It trains, or has trained everything.
    Training(Training),
}

/// The figures of a run that trains.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Training {
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// Epochs in all.
    pub epochs: Option<u64>,
    /// Samples committed, or set aside for good.
    pub done: u64,
    /// Samples of all epochs.
    pub expected: Option<u64>,
    /// Samples/s of about the last ten seconds.
    pub rate: Option<f64>,
    /// Mean training loss of the newest round's window.
    pub loss: Option<f64>,
    /// Accuracy of the newest evaluation, 0..=1, of whatever version.
    pub accuracy: Option<f64>,
    /// Fraction of the ceiling so far.
    pub fraction: Option<f64>,
    /// Time until everything is trained, at the recent speed. `None` until two windows are done, and again after a rank died
    /// or while nothing moves.
    pub left: Option<Duration>,
    /// Ranks that train (or have finished), and ranks that ever did.
    pub ranks: (usize, usize),
    /// Some ranks are slowed on purpose.
    pub emulated: bool,
    /// The users' own figures of the newest epoch that is over.
    pub scalars: Vec<(String, f64)>,
}

impl Progress {
    /// What `store` knows. `now` is the time by the coordinator's clock, as in the records.
    #[must_use]
    pub fn of(store: &Store, now: Time) -> Progress {
        let (rounds, meta) = (store.rounds(), store.meta());
        let count = |wanted: fn(&crate::RankLog) -> bool| store.ranks().filter(|(_, rank)| wanted(rank)).count();
        let Some(epoch) = rounds.epoch else {
            let ready = count(|rank| matches!(rank.state, State::Ready | State::Active));
            return Progress::Starting { ready, of: meta.map(|meta| meta.world_size) };
        };
        let done = rounds.committed.saturating_add(rounds.quarantined);
        let expected = meta.map(|meta| meta.samples);
        let number = epoch.0.saturating_add(1);
        Progress::Training(Training {
            epoch: meta.map_or(number, |meta| number.min(meta.epochs)),
            epochs: meta.map(|meta| meta.epochs),
            done,
            expected,
            rate: store.clock().recent.rate(now),
            loss: rounds.loss,
            accuracy: store.epochs().accuracy,
            fraction: Figures::of(store).fraction,
            left: expected.and_then(|expected| store.clock().recent.until(expected.saturating_sub(done), now)),
            ranks: (
                count(|rank| rank.took_part() && matches!(rank.state, State::Active | State::Finished)),
                count(crate::RankLog::took_part),
            ),
            emulated: meta.is_some_and(|meta| !meta.emulated.is_empty()),
            scalars: store.history().epochs.back().map(|last| last.scalars.clone()).unwrap_or_default(),
        })
    }

    /// All of it on one plain line. What is not known yet is left out, but for the time that is left: `eta -`.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Progress::Starting { ready, of: Some(ranks) } => format!("starting: {ready} of {ranks} ranks ready"),
            Progress::Starting { ready, of: None } => format!("starting: {} ready", text::count(*ready as u64, "rank")),
            Progress::Training(training) => training.line(),
        }
    }

    /// The same for a terminal: one row of at most `columns` columns, all of them ASCII. Where there is not enough room the
    /// figures get shorter, then the less important ones are left out; what room is left has a bar.
    #[must_use]
    pub fn bar(&self, columns: usize) -> String {
        match self {
            Progress::Starting { .. } => self.line().chars().take(columns).collect(),
            Progress::Training(training) => training.bar(columns),
        }
    }
}

/// A figure of the bar, in its long and its short form. Those of the least weight are left out first.
struct Figure {
    weight: u8,
    long: String,
    short: String,
}

impl Figure {
    fn new(weight: u8, long: String, short: String) -> Figure {
        Figure { weight, long, short }
    }
}

/// Columns between two figures.
const GAP: usize = 2;
/// The narrowest and the widest bar with its brackets; where the narrowest does not fit there is none.
const BAR: (usize, usize) = (8, 32);

impl Training {
    fn line(&self) -> String {
        let mut parts = vec![self.epoch_of("epoch ")];
        match self.expected {
            Some(expected) => {
                parts.push(format!("{} of {}", self.done, text::count(expected, "sample")));
                parts.extend(self.percent().map(|percent| format!("{percent} %")));
            }
            None => parts.push(text::count(self.done, "sample")),
        }
        parts.extend(self.rate.map(|rate| format!("{} samples/s", text::rate(rate))));
        parts.extend(self.loss.map(|loss| format!("loss {loss:.4}")));
        parts.extend(self.accuracy.map(|accuracy| format!("test accuracy {accuracy:.4}")));
        if !self.scalars.is_empty() {
            parts.push(self.scalars_text());
        }
        parts.extend(self.fraction.map(|fraction| format!("{fraction:.2} of the ceiling")));
        parts.push(format!("{} of {} ranks", self.ranks.0, self.ranks.1));
        parts.push(format!("eta {}", self.eta()));
        if self.emulated {
            parts.push("emulation".to_owned());
        }
        parts.join(", ")
    }

    fn bar(&self, columns: usize) -> String {
        let mut figures = self.figures();
        let widths = |form: fn(&Figure) -> &String, figures: &[Figure]| {
            figures.iter().map(|figure| form(figure).len() + GAP).sum::<usize>().saturating_sub(GAP)
        };
        let mut form: fn(&Figure) -> &String = |figure| &figure.long;
        if widths(form, &figures) + GAP + BAR.0 > columns {
            form = |figure| &figure.short;
        }
        while widths(form, &figures) > columns {
            let Some(least) = (0..figures.len()).min_by_key(|&index| figures[index].weight) else { break };
            figures.remove(least);
        }
        let room = columns.saturating_sub(widths(form, &figures) + GAP);
        let bar = (room >= BAR.0).then(|| self.drawn(room.min(BAR.1))).flatten();
        let shown = figures.iter().map(|figure| form(figure).clone());
        bar.into_iter().chain(shown).collect::<Vec<_>>().join(&" ".repeat(GAP))
    }

    /// From the left to the right.
    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut add = |weight, long: String, short: String| figures.push(Figure::new(weight, long, short));
        if let Some(percent) = self.percent() {
            add(9, format!("{percent:3}%"), format!("{percent}%"));
        }
        add(8, self.epoch_of("epoch "), self.epoch_of("epoch "));
        let rate = |unit| self.rate.map_or_else(|| format!("-{unit}"), |rate| format!("{}{unit}", text::rate(rate)));
        let short = self.rate.map_or_else(|| "-/s".to_owned(), |rate| format!("{}/s", text::thousands(rate)));
        add(5, rate(" samples/s"), short);
        if let Some(loss) = self.loss {
            add(6, format!("loss {loss:.4}"), format!("loss {loss:.3}"));
        }
        if let Some(accuracy) = self.accuracy {
            add(2, format!("test {accuracy:.4}"), format!("test {accuracy:.3}"));
        }
        if !self.scalars.is_empty() {
            add(0, self.scalars_text(), self.scalars_text());
        }
        if let Some(fraction) = self.fraction {
            add(3, format!("{fraction:.2} of the ceiling"), format!("ceiling {fraction:.2}"));
        }
        let (alive, all) = self.ranks;
        if alive < all {
            add(4, format!("{alive} of {all} ranks"), format!("{alive}/{all} ranks"));
        }
        if self.emulated {
            add(1, "emulation".to_owned(), "emulated".to_owned());
        }
        add(7, format!("eta {}", self.eta()), format!("eta {}", self.eta()));
        figures
    }

    fn scalars_text(&self) -> String {
        text::scalars(self.scalars.iter().map(|(name, value)| (name, value)))
    }

    /// A bar of `columns` columns; `None` where the end is not known.
    fn drawn(&self, columns: usize) -> Option<String> {
        let expected = self.expected.filter(|&expected| expected > 0)?;
        let inside = columns.saturating_sub(2);
        let done = u128::from(self.done.min(expected)) * inside as u128 / u128::from(expected);
        let done = usize::try_from(done).unwrap_or(inside);
        let head = if done < inside { ">" } else { "" };
        Some(format!("[{}{head}{}]", "=".repeat(done), " ".repeat(inside - done - head.len())))
    }

    /// Rounded down, so that 100 means all.
    fn percent(&self) -> Option<u64> {
        let expected = self.expected.filter(|&expected| expected > 0)?;
        u64::try_from(u128::from(self.done.min(expected)) * 100 / u128::from(expected)).ok()
    }

    fn epoch_of(&self, word: &str) -> String {
        match self.epochs {
            Some(epochs) => format!("{word}{}/{epochs}", self.epoch),
            None => format!("{word}{}", self.epoch),
        }
    }

    fn eta(&self) -> String {
        self.left.map_or_else(|| "-".to_owned(), text::clock)
    }
}

/// The last words of the epoch that is over, if `epoch` was the last one that ended: how it went.
#[must_use]
pub fn epoch_done(store: &Store, epoch: Epoch) -> Option<String> {
    let end = store.epochs().done.filter(|end| end.epoch == epoch)?;
    let number = epoch.0.saturating_add(1);
    let mut told = match store.meta() {
        Some(meta) => format!("epoch {number}/{} done in {}", meta.epochs, text::seconds(end.took)),
        None => format!("epoch {number} done in {}", text::seconds(end.took)),
    };
    if let Some(loss) = end.loss {
        told.push_str(&format!(", mean loss {loss:.4}"));
    }
    let own = store.history().epochs.back().filter(|metrics| metrics.epoch == epoch && !metrics.scalars.is_empty());
    if let Some(metrics) = own {
        let scalars = text::scalars(metrics.scalars.iter().map(|(name, value)| (name, value)));
        told.push_str(&format!(", {scalars}"));
    }
    // Parts of a pass differ by a sample at most.
    let length = store.meta().map_or(0, |meta| meta.epoch_len);
    if length > 0 && !end.took.is_zero() {
        told.push_str(&format!(", {} samples/s", text::rate(length as f64 / end.took.as_secs_f64())));
    }
    if let Some(fraction) = Figures::of(store).fraction {
        told.push_str(&format!(", {fraction:.2} of the ceiling so far"));
    }
    Some(told)
}

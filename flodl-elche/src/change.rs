//! Everything the scheduler changes or refuses, with its reason as data. Displayed, each is a sentence.

use std::fmt;
use std::time::Duration;

use crate::guard::{Grounds, Verdict};
use crate::span::Slot;
use crate::speed::ABSENT_MAX;

/// One decision and why it was taken.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A member can be planned for; its relative speed where the settings hint at one.
    Joined {
        /// The member.
        slot: Slot,
        /// The hint.
        hint: Option<f64>,
    },
    /// A member left every computation.
    Left {
        /// The member.
        slot: Slot,
    },
    /// A member has its first estimate.
    Calibrated {
        /// The member.
        slot: Slot,
        /// Its time for a batch.
        batch: Duration,
    },
    /// A member's speed changed for good: the estimate started over.
    Regime {
        /// The member.
        slot: Slot,
        /// The estimate before.
        from: Duration,
        /// The estimate now.
        to: Duration,
    },
    /// A member reported nothing for so long that its estimate was dropped.
    Forgotten {
        /// The member.
        slot: Slot,
    },
    /// A window report was ignored.
    SampleRejected {
        /// Whose report.
        slot: Slot,
        /// What is wrong with it.
        why: Rejected,
    },
    /// A figure of a round was ignored.
    FeedbackRejected {
        /// Which figure.
        what: Figure,
        /// Whose, where it is a member's.
        slot: Option<Slot>,
    },
    /// The member whose batches the anchor counts was elected.
    Elected {
        /// The slowest member.
        slot: Slot,
        /// Who it was before.
        before: Option<Slot>,
        /// Members within 15 % of it, itself included.
        cohort: Vec<Slot>,
        /// Why.
        why: ElectedWhy,
    },
    /// Windows became longer or shorter.
    Anchor {
        /// Batches of the slowest member before.
        from: u32,
        /// And now.
        to: u32,
        /// Why.
        why: AnchorWhy,
    },
    /// Windows should change their length but may not yet.
    AnchorHeld {
        /// Where the anchor stays.
        anchor: u32,
        /// Where it would do what it is for.
        target: u32,
        /// What it is for.
        aim: Aim,
        /// What holds it.
        why: Hold,
    },
    /// A round was not found stable.
    Judged {
        /// Who said so; where both did, who was stricter.
        judge: Judge,
        /// What should happen.
        verdict: Verdict,
        /// Why.
        grounds: Grounds,
    },
    /// After a verdict that was not stable windows may grow again.
    Rearmed {
        /// Stable verdicts in a row since.
        stable: u32,
    },
    /// The guard asked for a nudge by no number.
    NudgeRejected,
    /// Ranks may run further ahead of their windows, or less far.
    Lead {
        /// Batches before.
        from: u32,
        /// And now.
        to: u32,
    },
    /// Another nudge was asked for too soon.
    NudgeSkipped {
        /// Rounds since the last one.
        since: u32,
    },
    /// The epoch ends with this window or the next.
    Tail {
        /// Batches left in the epoch.
        left: u64,
        /// Windows left, this one included.
        windows: u64,
        /// Batches planned for this window.
        planned: u64,
    },
    /// The epoch has fewer batches than full leases would hold.
    LeasesCut {
        /// Batches that full leases hold.
        wanted: u64,
        /// Batches left in the epoch.
        left: u64,
    },
    /// A callback takes a part of a member's window.
    Callback {
        /// The member.
        slot: Slot,
        /// Expected cost.
        cost: Duration,
        /// Batches left to it in this window.
        quota: u32,
    },
    /// A window is planned although no round was committed since the last plan.
    Replan(Replan),
    /// The scheduler goes on from what it knew before a restart.
    Restored {
        /// Batches of the slowest member in a window.
        anchor: u32,
        /// Members whose speed is known from before.
        members: u32,
        /// Whether the guard goes on too; else it is another one and begins anew.
        guard: bool,
    },
    /// From here on the run may differ from another one with the same settings, which it was not to.
    Unrepeatable(Unrepeatable),
}

/// What settings cannot fix.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Unrepeatable {
    /// A member came when windows had been planned.
    Joined(Slot),
    /// A member left.
    Left(Slot),
    /// The scheduler goes on after a restart.
    Restored,
}

/// Who judges a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Judge {
    /// The guard.
    Guard,
    /// The watcher of the learning rate.
    LearningRate,
}

/// What is wrong with a window report.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// It has times but no batches.
    NoBatches,
    /// A batch in less time than can be measured.
    TooShort {
        /// The shorter of the first batch and the others' mean.
        batch: Duration,
    },
    /// A batch longer than a day.
    TooLong {
        /// The longer of the first batch and the others' mean.
        batch: Duration,
    },
    /// The member is not known.
    NotAMember,
}

/// A figure of a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The window's wall time or the reduce time: zero, longer than a day, or the part longer than the whole.
    Timing,
    /// A wait longer than the window.
    Wait,
    /// A divergence that is no finite number of at least 0.
    Divergence,
    /// A norm that is no finite number of at least 0.
    Norm,
    /// A learning rate that is no finite number of at least 0.
    Rate,
}

/// Why a slowest member was elected.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum ElectedWhy {
    /// The first measurements.
    First,
    /// The settings' speed hints.
    Hint,
    /// It is slower than the one before by this factor.
    Slower {
        /// Its batch time over the other's.
        factor: f64,
    },
    /// The one before has left or has no estimate any more.
    Departed,
}

/// What the length of a window is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Aim {
    /// Little of the time is overhead.
    Overhead,
    /// The reduce that goes on behind it is over when it ends (Async).
    Reduce,
}

/// Why the anchor moved.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum AnchorWhy {
    /// Towards the overhead target.
    Overhead {
        /// The part of the last window's wall time in which members waited.
        overhead: f64,
        /// The anchor that meets the target.
        target: u32,
    },
    /// Towards a window that lasts as long as the reduce behind it (Async).
    Reduce {
        /// What a reduce takes.
        reduce: Duration,
        /// The anchor whose window covers it.
        target: u32,
    },
    /// An epoch is no longer than this.
    Epoch {
        /// The anchor whose window holds an epoch.
        cap: u32,
    },
    /// The verdict on a round asked for it.
    Nudged {
        /// By this factor, in [0.1, 1].
        factor: f64,
    },
}

/// What holds the anchor.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Hold {
    /// Too few measurements for a move that is not urgent.
    Early {
        /// Rounds measured.
        calibrations: u32,
        /// The part of the last window's wall time in which members waited.
        overhead: f64,
    },
    /// The guard is not content with this round.
    Guard {
        /// Its verdict.
        verdict: Verdict,
    },
    /// The guard has not been content for long enough.
    Rearming {
        /// Stable verdicts in a row.
        stable: u32,
        /// Stable verdicts needed.
        needed: u32,
    },
}

/// Why a window follows another without a round between them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Replan {
    /// No member trained a batch.
    NothingMoved,
    /// Batches were trained, but no round was committed.
    NoRound,
}

/// A duration in the unit a reader wants.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.0.as_secs_f64() * 1e3)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { slot, hint: None } => write!(f, "{slot} joined, its speed is not known yet"),
            Self::Joined { slot, hint: Some(hint) } => write!(f, "{slot} joined with a speed hint of {hint}"),
            Self::Left { slot } => write!(f, "{slot} left"),
            Self::Calibrated { slot, batch } => write!(f, "{slot} takes {} a batch", Millis(*batch)),
            Self::Regime { slot, from, to } => {
                write!(f, "{slot} now takes {} a batch instead of {}", Millis(*to), Millis(*from))
            }
            Self::Forgotten { slot } => {
                write!(f, "{slot} trained nothing for {ABSENT_MAX} windows, its speed is forgotten")
            }
            Self::SampleRejected { slot, why } => write!(f, "the times reported by {slot} are ignored: {why}"),
            Self::FeedbackRejected { what, slot: None } => write!(f, "a figure of the round is ignored: {what}"),
            Self::FeedbackRejected { what, slot: Some(slot) } => {
                write!(f, "a figure of the round is ignored: {what} of {slot}")
            }
            Self::Elected { slot, before: None, why, .. } => write!(f, "{slot} sets the window's length: {why}"),
            Self::Elected { slot, before: Some(before), why, .. } => {
                write!(f, "{slot} sets the window's length instead of {before}: {why}")
            }
            Self::Anchor { from, to, why } => write!(f, "anchor {from} -> {to}: {why}"),
            Self::AnchorHeld { anchor, target, aim, why } => {
                write!(f, "anchor stays at {anchor} though {target} {aim}: {why}")
            }
            Self::Judged { judge, verdict, grounds } => write!(f, "{judge} finds that {grounds}: {verdict}"),
            Self::Rearmed { stable } => write!(f, "{stable} rounds in a row were stable: windows may grow again"),
            Self::Lead { from, to } => {
                write!(f, "ranks may run {to} batches ahead of their windows instead of {from}")
            }
            Self::NudgeRejected => f.write_str("the guard's nudge is ignored: its factor is not a finite number"),
            Self::NudgeSkipped { since } => {
                write!(f, "the window is not shortened again: the last time was {since} rounds ago")
            }
            Self::Tail { left, windows, planned } => {
                write!(f, "{left} batches left in the epoch, {windows} windows: {planned} batches in this one")
            }
            Self::LeasesCut { wanted, left } => {
                write!(f, "full leases hold {wanted} batches but {left} are left in the epoch")
            }
            Self::Callback { slot, cost, quota } => {
                write!(f, "a callback takes {} of the window of {slot}: {quota} batches are left to it", Millis(*cost))
            }
            Self::Replan(Replan::NothingMoved) => {
                f.write_str("the next window follows without a round: nothing was trained")
            }
            Self::Replan(Replan::NoRound) => f.write_str("the next window follows without a round: none was committed"),
            Self::Restored { anchor, members, guard } => {
                let guard = if *guard { "the guard goes on too" } else { "the guard begins anew" };
                write!(f, "going on with anchor {anchor} and the speeds of {members} members; {guard}")
            }
            Self::Unrepeatable(why) => write!(
                f,
                "{why}: from here on this run need not be bit-equal to another one with the same settings, though \
                 deterministic is set"
            ),
        }
    }
}

impl fmt::Display for Unrepeatable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined(slot) => write!(f, "{slot} came into a run that had begun"),
            Self::Left(slot) => write!(f, "{slot} left"),
            Self::Restored => f.write_str("the controller was restarted"),
        }
    }
}

impl fmt::Display for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Guard => "the guard",
            Self::LearningRate => "the learning rate's watcher",
        })
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBatches => f.write_str("times without a batch"),
            Self::TooShort { batch } => write!(f, "a batch in {batch:?} was not measured"),
            Self::TooLong { batch } => write!(f, "a batch in {batch:?} is over a day"),
            Self::NotAMember => f.write_str("it is not a member"),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timing => "the window's wall time and the reduce time cannot both be right",
            Self::Wait => "a wait longer than the window",
            Self::Divergence => "a divergence that is not a finite number of at least 0",
            Self::Norm => "a norm that is not a finite number of at least 0",
            Self::Rate => "a learning rate that is not a finite number of at least 0",
        })
    }
}

impl fmt::Display for ElectedWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("it is the slowest measured"),
            Self::Hint => f.write_str("it is the slowest by the speed hints"),
            Self::Slower { factor } => write!(f, "it is {factor:.2} times slower"),
            Self::Departed => f.write_str("it is the slowest of those left"),
        }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overhead => "meets the overhead target",
            Self::Reduce => "covers a reduce",
        })
    }
}

impl fmt::Display for AnchorWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overhead { overhead, target } => {
                write!(f, "{:.1} % of the window was overhead and {target} would meet the target", overhead * 100.0)
            }
            Self::Reduce { reduce, target } => {
                write!(f, "a reduce takes {}, and {target} would cover it", Millis(*reduce))
            }
            Self::Epoch { cap } => write!(f, "{cap} covers a whole epoch"),
            Self::Nudged { factor } => write!(f, "shortened by a factor of {factor}"),
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Early { calibrations: 0 | 1, .. } => f.write_str("no more than one round is measured"),
            Self::Early { calibrations, overhead } => {
                write!(
                    f,
                    "only {calibrations} rounds are measured and {:.1} % overhead is not urgent",
                    overhead * 100.0
                )
            }
            Self::Guard { verdict } => write!(f, "the verdict on this round is that {verdict}"),
            Self::Rearming { stable, needed } => write!(f, "{stable} of {needed} rounds in a row were stable"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_read_as_sentences() {
        let ms = Duration::from_millis;
        for (change, sentence) in [
            (Change::Calibrated { slot: Slot(2), batch: ms(8) }, "slot 2 takes 8.0 ms a batch"),
            (
                Change::Anchor { from: 4, to: 8, why: AnchorWhy::Overhead { overhead: 0.2, target: 37 } },
                "anchor 4 -> 8: 20.0 % of the window was overhead and 37 would meet the target",
            ),
            (
                Change::Anchor {
                    from: 4,
                    to: 3,
                    why: AnchorWhy::Reduce { reduce: Duration::from_millis(50), target: 3 },
                },
                "anchor 4 -> 3: a reduce takes 50.0 ms, and 3 would cover it",
            ),
            (
                Change::AnchorHeld {
                    anchor: 4,
                    target: 9,
                    aim: Aim::Reduce,
                    why: Hold::Guard { verdict: Verdict::SuppressGrowth },
                },
                "anchor stays at 4 though 9 covers a reduce: the verdict on this round is that windows may not grow",
            ),
            (
                Change::AnchorHeld {
                    anchor: 4,
                    target: 9,
                    aim: Aim::Overhead,
                    why: Hold::Rearming { stable: 2, needed: 5 },
                },
                "anchor stays at 4 though 9 meets the overhead target: 2 of 5 rounds in a row were stable",
            ),
            (
                Change::Judged {
                    judge: Judge::Guard,
                    verdict: Verdict::NudgeDown { factor: 0.5 },
                    grounds: Grounds::Rising { rounds: 5, divergence: 0.0712, threshold: 0.05 },
                },
                "the guard finds that the divergence rose over 5 rounds to 0.0712, above 0.05: windows become shorter by \
                 a factor of 0.5",
            ),
            (
                Change::Elected { slot: Slot(1), before: Some(Slot(0)), cohort: vec![], why: ElectedWhy::Departed },
                "slot 1 sets the window's length instead of slot 0: it is the slowest of those left",
            ),
            (
                Change::SampleRejected { slot: Slot(3), why: Rejected::TooLong { batch: Duration::from_secs(90_000) } },
                "the times reported by slot 3 are ignored: a batch in 90000s is over a day",
            ),
        ] {
            assert_eq!(change.to_string(), sentence);
        }
    }
}

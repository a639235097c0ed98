//! When a round fires: a pure function of the members and the pool, whose verdict says why.

use crate::members::{Members, State, Work};
use core::fmt;
use flodl_wire::message::record::Reason;
use flodl_wire::{Rank, WindowId};

/// The window is over and somebody moved: average.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fire {
    /// Who trained something.
    pub movers: Vec<Rank>,
}

/// Why no round begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// These have not finished their window.
    Training {
        /// Who, with the batches that they may do.
        ranks: Vec<(Rank, u32)>,
    },
    /// These are out of reach and may come back.
    Detached {
        /// Who.
        ranks: Vec<Rank>,
    },
    /// All are done and none of them trained anything.
    NothingMoved {
        /// Samples that could be leased.
        available: u64,
        /// Samples that somebody still holds.
        outstanding: u64,
    },
    /// Nobody holds the consensus, so nobody can train.
    NobodyActive,
    /// Nobody is in the run; these are on their way into it or out of it.
    NobodyHere {
        /// Who.
        coming: Vec<Rank>,
    },
}

/// What the gate needs to know of the epoch's pool.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolLevel {
    /// Samples that could be leased.
    pub(crate) available: u64,
    /// Samples that somebody holds: leased, trained or in a round.
    pub(crate) outstanding: u64,
}

/// Whether the window `window` is over.
///
/// # Errors
/// The reason why not.
pub(crate) fn ready(members: &Members, window: WindowId, pool: PoolLevel) -> Result<Fire, Hold> {
    let mut training = Vec::new();
    let mut detached = Vec::new();
    let mut movers = Vec::new();
    let mut active = 0;
    let mut syncing = 0;
    let mut coming = Vec::new();
    for member in members.living() {
        match member.state {
            State::Active(work) => {
                active += 1;
                match work {
                    // Without a sample it can make no step: its report of nothing is on its way.
                    Work::Training { leased: 0, .. } => {}
                    Work::Training { quota_max, .. } => training.push((member.rank, quota_max)),
                    Work::Reported { window: reported, batches } if reported == window && batches > 0 => {
                        movers.push(member.rank);
                    }
                    Work::Reported { .. } | Work::Idle => {}
                }
            }
            // Who does not train is not waited for.
            State::Detached { ref was, .. } => {
                if matches!(**was, State::Active(_)) {
                    detached.push(member.rank);
                }
            }
            State::Syncing => syncing += 1,
            State::Held { .. } | State::Starting | State::Joining(_) | State::Leaving { .. } => {
                coming.push(member.rank)
            }
            State::Gone(_) => {}
        }
    }
    if !training.is_empty() {
        return Err(Hold::Training { ranks: training });
    }
    if !detached.is_empty() {
        return Err(Hold::Detached { ranks: detached });
    }
    if active == 0 {
        return Err(if syncing == 0 { Hold::NobodyHere { coming } } else { Hold::NobodyActive });
    }
    if movers.is_empty() {
        return Err(Hold::NothingMoved { available: pool.available, outstanding: pool.outstanding });
    }
    Ok(Fire { movers })
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hold::Training { ranks } => {
                f.write_str("waiting for the window of ")?;
                list(f, ranks, |f, (rank, quota_max)| write!(f, "{rank} (at most {quota_max} batches)"))
            }
            Hold::Detached { ranks } => {
                f.write_str("waiting for the host of ")?;
                list(f, ranks, |f, rank| write!(f, "{rank}"))
            }
            Hold::NothingMoved { available, outstanding } => {
                write!(f, "nobody trained in this window; {available} samples are free, {outstanding} are held")
            }
            Hold::NobodyActive => f.write_str("no rank holds the consensus"),
            Hold::NobodyHere { coming } => {
                f.write_str("no rank is in the run, on their way in or out are ")?;
                list(f, coming, |f, rank| write!(f, "{rank}"))
            }
        }
    }
}

/// Writes at most eight items, then how many more there are.
pub(crate) fn list<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    mut show: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    const SHOWN: usize = 8;
    for (i, item) in items.iter().take(SHOWN).enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        show(f, item)?;
    }
    match items.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

impl fmt::Display for Fire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the window is over for everybody, and trained in it have ")?;
        list(f, &self.movers, |f, rank| write!(f, "{rank}"))
    }
}

impl From<&Fire> for Reason {
    fn from(fire: &Fire) -> Reason {
        Reason::new("window-over", fire.to_string()).about(fire.movers.iter().copied())
    }
}

impl From<&Hold> for Reason {
    fn from(hold: &Hold) -> Reason {
        let text = hold.to_string();
        match hold {
            Hold::Training { ranks } => Reason::new("training", text).about(ranks.iter().map(|&(rank, _)| rank)),
            Hold::Detached { ranks } => Reason::new("detached", text).about(ranks.iter().copied()),
            Hold::NothingMoved { available, outstanding } => Reason::new("nothing-moved", text)
                .with("available", *available as f64)
                .with("outstanding", *outstanding as f64),
            Hold::NobodyActive => Reason::new("nobody-active", text),
            Hold::NobodyHere { coming } => Reason::new("nobody-here", text).about(coming.iter().copied()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::HostLink;
    use crate::stalled::Pace;
    use flodl_wire::{HostId, SessionId, Time};

    const WINDOW: WindowId = WindowId(7);
    const FULL: PoolLevel = PoolLevel { available: 100, outstanding: 0 };

    fn check(states: Vec<State>) -> Result<Fire, Hold> {
        let mut members = Members::default();
        let host = HostId::from_name("a").expect("a name");
        let count = states.len() as u32;
        let link = HostLink { host, ranks: Vec::new(), seen: Time::ZERO };
        members.admit((SessionId(1), link), count, (count, false)).expect("room");
        for (member, state) in members.iter_mut().zip(states) {
            member.state = state;
        }
        ready(&members, WINDOW, FULL)
    }

    fn reported(batches: u32) -> State {
        State::Active(Work::Reported { window: WINDOW, batches })
    }

    fn training(leased: u64) -> State {
        let pace = Pace::start(Time::ZERO, None);
        State::Active(Work::Training { window: WINDOW, quota_max: 5, leased, pace })
    }

    fn detached() -> State {
        State::Detached { until: Time(9), error: "reset".into(), was: Box::new(State::Active(Work::Idle)) }
    }

    #[test]
    fn verdicts() {
        let gone = || State::Gone(crate::Fate::Finished);
        let cases = [
            (vec![reported(3), reported(0), gone()], Ok(Fire { movers: vec![Rank(0)] })),
            (vec![reported(3), State::Syncing], Ok(Fire { movers: vec![Rank(0)] })),
            (vec![reported(3), training(0)], Ok(Fire { movers: vec![Rank(0)] })),
            (vec![reported(3), training(320)], Err(Hold::Training { ranks: vec![(Rank(1), 5)] })),
            (vec![reported(3), detached()], Err(Hold::Detached { ranks: vec![Rank(1)] })),
            (vec![reported(0), reported(0)], Err(Hold::NothingMoved { available: 100, outstanding: 0 })),
            (vec![gone(), State::Syncing], Err(Hold::NobodyActive)),
            (vec![gone(), State::Starting], Err(Hold::NobodyHere { coming: vec![Rank(1)] })),
        ];
        for (states, verdict) in cases {
            assert_eq!(check(states.clone()), verdict, "{states:?}");
        }
    }

    #[test]
    fn a_report_of_another_window_is_not_movement() {
        let old = State::Active(Work::Reported { window: WindowId(6), batches: 3 });
        assert!(matches!(check(vec![old]), Err(Hold::NothingMoved { .. })));
    }

    #[test]
    fn long_lists_are_cut() {
        let ranks = (0..20).map(|rank| (Rank(rank), 4)).collect();
        let text = Hold::Training { ranks }.to_string();
        assert!(text.ends_with("rank 7 (at most 4 batches) and 12 more"), "{text}");
    }
}

//! When a round fires: a pure function of the members and the pool, whose verdict says why.

use crate::roles::name;
use crate::round::Unfinished;
use crate::tally::Tally;
use core::fmt;
use flodl_wire::message::record::{Reason, Role};
use flodl_wire::{Rank, Round, WindowId};
use std::collections::{BTreeMap, BTreeSet};

/// The window is over and somebody moved: average.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fire {
    /// Who trained something.
    pub(crate) movers: Vec<Rank>,
}

/// Why no round begins. It shows whom it is about where they are kept, because there may be thousands and the gate is asked
/// after each input.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hold<'a> {
    /// These have not finished their window.
    Training {
        /// Who, with the batches that they may do.
        ranks: &'a BTreeMap<Rank, u32>,
    },
    /// These are out of reach and may come back.
    Detached {
        /// Who.
        ranks: &'a BTreeSet<Rank>,
    },
    /// All are done, and the round before is still being averaged: there is never more than one.
    InFlight {
        /// That round.
        round: Round,
        /// What it lacks.
        lacks: Unfinished<'a>,
    },
    /// All are done and none of them trained anything.
    NothingMoved {
        /// Samples that could be leased.
        available: u64,
        /// Samples that somebody still holds.
        outstanding: u64,
    },
    /// These do something for all first, which is why their windows are shorter.
    OnDuty {
        /// Who, and what.
        ranks: [Option<(Rank, Role)>; 2],
    },
    /// Nobody holds the consensus, so nobody can train.
    NobodyActive,
    /// Nobody is in the run; these are on their way into it or out of it.
    NobodyHere {
        /// Who.
        coming: &'a BTreeSet<Rank>,
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

/// What arms the gate: whether a round may begin at all.
///
/// Where everybody waits for a round, none is open while windows are trained, and the gate is armed by its end. Where ranks
/// train on, the windows of the next round are over at any time, and it has to wait for the round before.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arming<'a> {
    Armed,
    InFlight(Round, Unfinished<'a>),
}

/// Whether the window `window` is over.
///
/// # Errors
/// The reason why not.
pub(crate) fn ready<'a>(
    tally: &'a Tally,
    window: WindowId,
    pool: PoolLevel,
    arming: Arming<'a>,
) -> Result<Fire, Hold<'a>> {
    if !tally.training.is_empty() {
        return Err(Hold::Training { ranks: &tally.training });
    }
    if !tally.detached.is_empty() {
        return Err(Hold::Detached { ranks: &tally.detached });
    }
    if tally.counts.active == 0 {
        let nobody_here = tally.counts.syncing == 0;
        return Err(if nobody_here { Hold::NobodyHere { coming: &tally.coming } } else { Hold::NobodyActive });
    }
    if tally.movers(window).next().is_none() {
        return Err(Hold::NothingMoved { available: pool.available, outstanding: pool.outstanding });
    }
    match arming {
        Arming::Armed => Ok(Fire { movers: tally.movers(window).collect() }),
        Arming::InFlight(round, lacks) => Err(Hold::InFlight { round, lacks }),
    }
}

impl fmt::Display for Hold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hold::Training { ranks } => {
                f.write_str("waiting for the window of ")?;
                list(f, *ranks, |f, (rank, quota_max)| write!(f, "{rank} (at most {quota_max} batches)"))
            }
            Hold::Detached { ranks } => {
                f.write_str("waiting for the host of ")?;
                list(f, *ranks, |f, rank| write!(f, "{rank}"))
            }
            Hold::InFlight { round, lacks } => write!(f, "every window is over, and {round} is not: {lacks}"),
            Hold::NothingMoved { available, outstanding } => {
                write!(f, "nobody trained in this window; {available} samples are free, {outstanding} are held")
            }
            Hold::OnDuty { ranks } => {
                f.write_str("waiting for ")?;
                let ranks: Vec<(Rank, Role)> = ranks.iter().flatten().copied().collect();
                list(f, ranks, |f, (rank, role)| write!(f, "the {} of {rank}", name(role)))
            }
            Hold::NobodyActive => f.write_str("no rank holds the consensus"),
            Hold::NobodyHere { coming } => {
                f.write_str("no rank is in the run, on their way in or out are ")?;
                list(f, *coming, |f, rank| write!(f, "{rank}"))
            }
        }
    }
}

/// Writes at most eight items, then how many more there are.
pub(crate) fn list<I: IntoIterator<IntoIter: ExactSizeIterator>>(
    f: &mut fmt::Formatter<'_>,
    items: I,
    mut show: impl FnMut(&mut fmt::Formatter<'_>, I::Item) -> fmt::Result,
) -> fmt::Result {
    const SHOWN: usize = 8;
    let mut items = items.into_iter();
    for (i, item) in items.by_ref().take(SHOWN).enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        show(f, item)?;
    }
    match items.len() {
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

/// Ranks as [`list`] writes them.
pub(crate) fn shown(ranks: &[Rank]) -> String {
    struct Shown<'a>(&'a [Rank]);
    impl fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            list(f, self.0, |f, rank| write!(f, "{rank}"))
        }
    }
    Shown(ranks).to_string()
}

impl From<&Hold<'_>> for Reason {
    fn from(hold: &Hold<'_>) -> Reason {
        let text = hold.to_string();
        match hold {
            Hold::Training { ranks } => Reason::new("training", text).about(ranks.keys().copied()),
            Hold::Detached { ranks } => Reason::new("detached", text).about(ranks.iter().copied()),
            Hold::InFlight { lacks, .. } => Reason { code: "in-flight".to_owned(), text, ..Reason::from(lacks) },
            Hold::NothingMoved { available, outstanding } => Reason::new("nothing-moved", text)
                .with("available", *available as f64)
                .with("outstanding", *outstanding as f64),
            Hold::OnDuty { ranks } => Reason::new("on-duty", text).about(ranks.iter().flatten().map(|&(rank, _)| rank)),
            Hold::NobodyActive => Reason::new("nobody-active", text),
            Hold::NobodyHere { coming } => Reason::new("nobody-here", text).about(coming.iter().copied()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Deadlines;
    use crate::members::{HostLink, Members, State, Work};
    use crate::stalled::Pace;
    use core::time::Duration;
    use flodl_wire::{Epoch, HostId, SessionId, Time};

    const WINDOW: WindowId = WindowId(7);
    const FULL: PoolLevel = PoolLevel { available: 100, outstanding: 0 };

    /// The movers, or why no round begins.
    fn check(states: Vec<State>) -> Result<Vec<u32>, String> {
        check_armed(states, Arming::Armed)
    }

    fn check_armed(states: Vec<State>, arming: Arming<'_>) -> Result<Vec<u32>, String> {
        let mut members = Members::new(Deadlines::from_patience(Duration::from_secs(10)));
        let host = HostId::from_name("a").expect("a name");
        let count = states.len() as u32;
        let link = HostLink { host, first: SessionId(0), ranks: Vec::new(), seen: Time::ZERO };
        members.admit((SessionId(1), link), count, (count, false)).expect("room");
        for (rank, state) in (0..).map(Rank).zip(states) {
            members.get_mut(rank).expect("is there").state = state;
        }
        let verdict = ready(members.tally(), WINDOW, FULL, arming);
        verdict.map(|fire| fire.movers.iter().map(|rank| rank.0).collect()).map_err(|hold| hold.to_string())
    }

    fn reported(batches: u32) -> State {
        State::Active(Work::Reported { window: WINDOW, batches })
    }

    fn training(leased: u64) -> State {
        let pace = Pace::start(Time::ZERO, None);
        State::Active(Work::Training { window: WINDOW, epoch: Epoch(0), quota_max: 5, leased, room: 0, pace })
    }

    fn detached() -> State {
        State::Detached { until: Time(9), error: "reset".into(), was: Box::new(State::Active(Work::Idle)) }
    }

    #[test]
    fn verdicts() {
        let gone = || State::Gone(crate::Fate::Finished);
        let cases = [
            (vec![reported(3), reported(0), gone()], Ok(vec![0])),
            (vec![reported(3), State::Syncing], Ok(vec![0])),
            (vec![reported(3), training(0)], Ok(vec![0])),
            (vec![reported(3), training(320)], Err("waiting for the window of rank 1 (at most 5 batches)")),
            (vec![reported(3), detached()], Err("waiting for the host of rank 1")),
            (vec![reported(0), reported(0)], Err("nobody trained in this window; 100 samples are free, 0 are held")),
            (vec![gone(), State::Syncing], Err("no rank holds the consensus")),
            (vec![gone(), State::Starting], Err("no rank is in the run, on their way in or out are rank 1")),
        ];
        for (states, verdict) in cases {
            assert_eq!(check(states.clone()), verdict.map_err(str::to_owned), "{states:?}");
        }
    }

    #[test]
    fn a_report_of_another_window_is_not_movement() {
        let old = State::Active(Work::Reported { window: WindowId(6), batches: 3 });
        assert!(check(vec![old]).is_err_and(|hold| hold.starts_with("nobody trained")));
    }

    #[test]
    fn a_round_in_flight_holds_the_next_one_and_says_what_it_lacks() {
        let missing = [Rank(1)].into();
        let lacks = Unfinished::Acks { missing: &missing };
        let verdict = |states| check_armed(states, Arming::InFlight(Round(4), lacks)).expect_err("one round at a time");
        assert_eq!(
            verdict(vec![reported(3), reported(2)]),
            "every window is over, and round 4 is not: waiting for the acknowledgement of rank 1"
        );
        let reason = Reason::from(&Hold::InFlight { round: Round(4), lacks });
        assert_eq!((reason.code.as_str(), reason.ranks.as_slice()), ("in-flight", [Rank(1)].as_slice()));
        // What does not ask for a round does not wait for one.
        assert!(verdict(vec![reported(3), training(9)]).starts_with("waiting for the window of rank 1"));
        assert!(verdict(vec![reported(0), reported(0)]).starts_with("nobody trained"));
    }

    #[test]
    fn long_lists_are_cut() {
        let ranks = (0..20).map(|rank| (Rank(rank), 4)).collect();
        let text = Hold::Training { ranks: &ranks }.to_string();
        assert!(text.ends_with("rank 7 (at most 4 batches) and 12 more"), "{text}");
    }
}

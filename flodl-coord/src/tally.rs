//! Who stands where, so that no question about all members needs a look at each of them.
//!
//! A member's place follows from its state alone ([`Place::of`]). [`Members`](crate::members::Members) takes it out of the
//! old place and puts it into the new one whenever it lets somebody change a member, and nobody else touches this.

use crate::members::{Member, State, Work};
use flodl_wire::{Rank, WindowId};
use std::collections::{BTreeMap, BTreeSet};

/// After so many rounds in a row without the consensus a rank's life in the run is over: a rank that answers, but whose
/// data path does not work, would keep the others in rounds for ever.
pub(crate) const MISSED_MAX: u32 = 3;

/// All members by where they stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// In a window, with samples, and how many batches each may do.
    pub(crate) training: BTreeMap<Rank, u32>,
    /// Done with that window, having trained something.
    movers: BTreeSet<(WindowId, Rank)>,
    /// Out of reach; they hold the consensus, and may train.
    pub(crate) detached: BTreeSet<Rank>,
    /// Ready, and not in the run.
    pub(crate) joining: BTreeSet<Rank>,
    /// On their way into the run, or out of it; whoever is ready is one of them.
    pub(crate) coming: BTreeSet<Rank>,
    /// Whose life is over.
    pub(crate) gone: BTreeSet<Rank>,
    pub(crate) marked: Marked,
    pub(crate) counts: Counts,
}

/// Living members that something is to be done about, wherever they stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marked {
    /// In a window, and may be given more samples.
    pub(crate) roomy: BTreeSet<Rank>,
    /// They leave by plan.
    pub(crate) leavers: BTreeSet<Rank>,
    /// They missed the consensus too often.
    pub(crate) astray: BTreeSet<Rank>,
}

/// Those that nobody asks for by name.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Who holds the consensus and can train, whether it does or not.
    pub(crate) active: usize,
    /// Those of them that do not leave by plan.
    pub(crate) staying: usize,
    /// Who is in the run without the consensus.
    pub(crate) syncing: usize,
}

impl Counts {
    /// Who can take part in a round.
    pub(crate) fn take_part(self) -> usize {
        self.active + self.syncing
    }
}

/// One member's place, with its marks.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    stands: Stands,
    roomy: bool,
    leaves: bool,
    astray: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Stands {
    Training {
        quota_max: u32,
    },
    Moved(WindowId),
    /// Active, and no step is to be expected of it: without a sample its report of nothing is on its way.
    Idle,
    Syncing,
    Detached,
    Away,
    Joining,
    Coming,
    Gone,
}

impl Place {
    pub(crate) fn of(member: &Member) -> Place {
        let (stands, roomy) = match &member.state {
            State::Active(Work::Training { leased: 0, room, .. }) => (Stands::Idle, *room > 0),
            State::Active(Work::Training { quota_max, room, .. }) => {
                (Stands::Training { quota_max: *quota_max }, *room > 0)
            }
            State::Active(Work::Reported { window, batches }) if *batches > 0 => (Stands::Moved(*window), false),
            State::Active(Work::Reported { .. } | Work::Idle) => (Stands::Idle, false),
            State::Syncing => (Stands::Syncing, false),
            // Who does not train is not waited for.
            State::Detached { was, .. } if matches!(**was, State::Active(_)) => (Stands::Detached, false),
            State::Detached { .. } => (Stands::Away, false),
            State::Joining(_) => (Stands::Joining, false),
            State::Held { .. } | State::Starting | State::Leaving { .. } => (Stands::Coming, false),
            State::Gone(_) => (Stands::Gone, false),
        };
        let lives = stands != Stands::Gone;
        Place { stands, roomy, leaves: lives && member.leaving.is_some(), astray: lives && member.missed >= MISSED_MAX }
    }
}

impl Tally {
    /// Who trained something in that window and is done with it.
    pub(crate) fn movers(&self, window: WindowId) -> impl Iterator<Item = Rank> {
        self.movers.range((window, Rank(0))..=(window, Rank(u32::MAX))).map(|&(_, rank)| rank)
    }

    /// The first rank from `from` on that may be given more samples.
    pub(crate) fn roomy_from(&self, from: Rank) -> Option<Rank> {
        self.marked.roomy.range(from..).next().copied()
    }

    /// A rank stands there now, or no more.
    pub(crate) fn note(&mut self, rank: Rank, place: Place, here: bool) {
        match place.stands {
            Stands::Training { quota_max } if here => {
                self.training.insert(rank, quota_max);
            }
            Stands::Training { .. } => {
                self.training.remove(&rank);
            }
            Stands::Moved(window) => put(&mut self.movers, (window, rank), here),
            Stands::Idle => {}
            Stands::Syncing => count(&mut self.counts.syncing, here),
            Stands::Detached => put(&mut self.detached, rank, here),
            Stands::Joining => put(&mut self.joining, rank, here),
            Stands::Away | Stands::Coming => {}
            Stands::Gone => put(&mut self.gone, rank, here),
        }
        if matches!(place.stands, Stands::Joining | Stands::Coming) {
            put(&mut self.coming, rank, here);
        }
        if matches!(place.stands, Stands::Training { .. } | Stands::Moved(_) | Stands::Idle) {
            count(&mut self.counts.active, here);
            if !place.leaves {
                count(&mut self.counts.staying, here);
            }
        }
        let Marked { roomy, leavers, astray } = &mut self.marked;
        for (set, marked) in [(roomy, place.roomy), (leavers, place.leaves), (astray, place.astray)] {
            if marked {
                put(set, rank, here);
            }
        }
    }
}

fn put<T: Ord>(set: &mut BTreeSet<T>, item: T, here: bool) {
    if here {
        set.insert(item);
    } else {
        set.remove(&item);
    }
}

fn count(number: &mut usize, here: bool) {
    if here {
        *number += 1;
    } else {
        *number -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fate;
    use crate::config::Deadlines;
    use crate::members::{HostLink, Members};
    use crate::stalled::Pace;
    use core::time::Duration;
    use flodl_wire::{Epoch, HostId, SessionId, Time};
    use proptest::prelude::*;

    const RANKS: u32 = 5;

    fn state() -> impl Strategy<Value = State> {
        let training = |(leased, room)| Work::Training {
            window: WindowId(3),
            epoch: Epoch(0),
            quota_max: 5,
            leased,
            room,
            pace: Pace::start(Time::ZERO, None),
        };
        let reported = |(window, batches)| Work::Reported { window: WindowId(window), batches };
        let work = prop_oneof![
            Just(Work::Idle),
            (0u64..2, 0u64..2).prop_map(training),
            (2u64..4, 0u32..2).prop_map(reported),
        ];
        prop_oneof![
            Just(State::Held { until: Time(9) }),
            Just(State::Starting),
            Just(State::Syncing),
            work.prop_map(State::Active),
            any::<bool>().prop_map(|finished| State::Leaving { finished }),
            Just(State::Gone(Fate::Finished)),
            Just(State::Detached { until: Time(7), error: String::new(), was: Box::new(State::Syncing) }),
            Just(State::Detached { until: Time(7), error: String::new(), was: Box::new(State::Active(Work::Idle)) }),
        ]
    }

    proptest! {
        /// Whatever happens to members, who stands where is what a look at everybody says.
        #[test]
        fn the_tally_is_true(changes in prop::collection::vec((0..RANKS, state(), 0u32..5, any::<bool>()), 0..40)) {
            let mut members = Members::new(Deadlines::from_patience(Duration::from_secs(10)));
            let host = HostId::from_name("a").expect("a name");
            let link = HostLink { host, first: SessionId(0), ranks: Vec::new(), seen: Time::ZERO };
            members.admit((SessionId(1), link), RANKS, (RANKS, false)).expect("room");
            for (rank, state, missed, leaves) in changes {
                let rank = Rank(rank);
                if missed == 4 {
                    members.begin((rank, SessionId(1)), state, Time::ZERO);
                } else {
                    let mut member = members.get_mut(rank).expect("is there");
                    (member.state, member.missed) = (state, missed);
                    member.leaving = leaves.then_some(Time(8));
                }
                prop_assert!(members.tally_is_true(), "{:?}", members.tally());
            }
        }
    }
}

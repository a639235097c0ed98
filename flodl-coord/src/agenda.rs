//! Who is to be looked at when: an ordered index of deadlines.
//!
//! Most deadlines move away all the time, because somebody gave a sign of life. The index does not follow them: it holds for
//! each a time that is not later than its deadline, and whoever is due is looked at and entered anew. So a sign of life costs
//! nothing here, and a tick only those that it takes out.

use flodl_wire::Time;
use std::collections::{BTreeMap, BTreeSet};

/// The times at which to look at things with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agenda<K> {
    by_time: BTreeSet<(Time, K)>,
    by_name: BTreeMap<K, Time>,
}

impl<K> Default for Agenda<K> {
    fn default() -> Agenda<K> {
        Agenda { by_time: BTreeSet::new(), by_name: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> Agenda<K> {
    /// It has this deadline now: it will be looked at then or before.
    pub(crate) fn keep(&mut self, name: K, deadline: Option<Time>) {
        match (self.by_name.get(&name).copied(), deadline) {
            (Some(known), Some(at)) if known <= at => return,
            (None, None) => return,
            (Some(known), _) => self.by_time.remove(&(known, name)),
            (None, Some(_)) => false,
        };
        match deadline {
            Some(at) => {
                self.by_name.insert(name, at);
                self.by_time.insert((at, name));
            }
            None => {
                self.by_name.remove(&name);
            }
        }
    }

    /// When to look next.
    pub(crate) fn next(&self) -> Option<Time> {
        self.by_time.first().map(|&(at, _)| at)
    }

    /// Takes out whoever may be due, in order of names. Each is to be entered anew, or it is never looked at again.
    pub(crate) fn take_due(&mut self, now: Time) -> Vec<K> {
        let mut due = Vec::new();
        while let Some(&(at, name)) = self.by_time.first()
            && at <= now
        {
            self.by_time.pop_first();
            self.by_name.remove(&name);
            due.push(name);
        }
        due.sort_unstable();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_deadline_that_moves_away_is_looked_at_when_it_was() {
        let mut agenda = Agenda::default();
        agenda.keep('a', Some(Time(10)));
        agenda.keep('b', Some(Time(20)));
        agenda.keep('a', Some(Time(30)));
        assert_eq!(agenda.next(), Some(Time(10)), "not later than its deadline is enough");
        assert_eq!(agenda.take_due(Time(9)), []);
        assert_eq!(agenda.take_due(Time(10)), ['a']);
        agenda.keep('a', Some(Time(30)));
        agenda.keep('b', Some(Time(5)));
        assert_eq!(agenda.next(), Some(Time(5)), "a deadline that comes nearer counts at once");
        agenda.keep('b', None);
        assert_eq!(agenda.take_due(Time(99)), ['a']);
        assert_eq!(agenda.next(), None);
    }

    proptest! {
        /// Nobody is looked at later than at its deadline.
        #[test]
        fn nobody_is_overlooked(ops in prop::collection::vec((0u8..6, prop::option::of(0u64..50), 0u64..8), 0..60)) {
            let (mut agenda, mut deadlines, mut now) = (Agenda::default(), BTreeMap::new(), 0);
            for (name, deadline, passes) in ops {
                let deadline = deadline.map(|after| Time(now + after));
                agenda.keep(name, deadline);
                deadlines.insert(name, deadline);
                now += passes;
                let due = agenda.take_due(Time(now));
                for (&name, deadline) in &mut deadlines {
                    let is_due = deadline.is_some_and(|at| at <= Time(now));
                    prop_assert!(!is_due || due.contains(&name), "{name} is overlooked");
                    if is_due {
                        *deadline = None;
                    }
                }
                due.iter().for_each(|&name| agenda.keep(name, deadlines[&name]));
                prop_assert!(agenda.next().is_none_or(|at| at > Time(now)));
                let next = deadlines.values().flatten().min();
                prop_assert!(next.is_none_or(|&next| agenda.next().is_some_and(|at| at <= next)));
            }
        }
    }
}

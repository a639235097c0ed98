//! Who may be in the middle of a handshake: connections that have not proved anything yet, counted and bounded.
//!
//! At a cap an older one goes, never the newest, so that silent strangers cannot keep anyone out; and it is one of those who
//! have the most. A good gate tag moves a connection to a budget of its own, so that strangers on a member's address cannot
//! push it out either. Such a tag may have been recorded: there a host has a budget for each address, so that what is
//! replayed pushes out its like.

use super::limits::GATED_PER_KEY;
use super::source::Source;
use core::cmp::Reverse;
use flodl_wire::HostId;
use flodl_wire::limits::{HALF_OPEN_MAX, HALF_OPEN_PER_SOURCE};
use std::collections::BTreeMap;

/// Names a connection that is in the middle of its handshake. Ordered by age.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry(u64);

/// Whom a connection counts for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Once it has said so under a good gate tag.
    host: Option<HostId>,
    source: Source,
}

/// Connections under one cap, and one for each key.
#[derive(Debug)]
struct Crowd<T> {
    per_key: usize,
    entries: BTreeMap<Entry, (Key, T)>,
}

impl<T> Crowd<T> {
    fn of(per_key: usize) -> Crowd<T> {
        Crowd { per_key, entries: BTreeMap::new() }
    }

    /// Takes one in, and lets go of an older one where a cap is reached.
    fn enter(&mut self, entry: Entry, key: Key, item: T) -> Option<T> {
        let of_key = || self.entries.iter().filter(|(_, (of, _))| *of == key).map(|(&entry, _)| entry);
        let older = if of_key().count() >= self.per_key {
            of_key().next()
        } else if self.entries.len() >= HALF_OPEN_MAX {
            self.oldest_of_the_most()
        } else {
            None
        };
        let closed = older.and_then(|older| self.leave(older));
        self.entries.insert(entry, (key, item));
        closed
    }

    fn leave(&mut self, entry: Entry) -> Option<T> {
        self.entries.remove(&entry).map(|(_, item)| item)
    }

    /// How many the key has that has the most, and its oldest one.
    fn most_of_a_key(&self) -> Option<(usize, Entry)> {
        let mut of_key: BTreeMap<Key, (usize, Reverse<Entry>)> = BTreeMap::new();
        for (&entry, (key, _)) in &self.entries {
            of_key.entry(*key).or_insert((0, Reverse(entry))).0 += 1;
        }
        of_key.into_values().max().map(|(size, Reverse(oldest))| (size, oldest))
    }

    /// The oldest one of whoever has the most: of the host, and there of the source.
    fn oldest_of_the_most(&self) -> Option<Entry> {
        let (mut of_host, mut of_key) = (BTreeMap::new(), BTreeMap::new());
        for (key, _) in self.entries.values() {
            *of_host.entry(key.host).or_insert(0) += 1;
            *of_key.entry(*key).or_insert(0) += 1;
        }
        let size = |key: &Key| (of_host.get(&key.host).copied(), of_key.get(key).copied());
        let most = self.entries.iter().max_by_key(|(entry, (key, _))| (size(key), Reverse(**entry)));
        most.map(|(&entry, _)| entry)
    }
}

/// The half-open connections; `T` is what closes one when it is dropped.
#[derive(Debug)]
pub(crate) struct HalfOpen<T> {
    next: u64,
    strangers: Crowd<T>,
    gated: Crowd<T>,
}

impl<T> Default for HalfOpen<T> {
    fn default() -> Self {
        HalfOpen { next: 0, strangers: Crowd::of(HALF_OPEN_PER_SOURCE), gated: Crowd::of(GATED_PER_KEY) }
    }
}

impl<T> HalfOpen<T> {
    /// Takes in a new connection, and lets go of an older one where a cap is reached: the caller drops it.
    pub(crate) fn open(&mut self, source: Source, item: T) -> (Entry, Option<T>) {
        let entry = Entry(self.next);
        self.next += 1;
        let closed = self.strangers.enter(entry, Key { host: None, source }, item);
        (entry, closed)
    }

    /// The connection has shown a good gate tag, and says that it is `host`'s. An older one of the same is let go where that
    /// budget is full.
    pub(crate) fn gate(&mut self, entry: Entry, host: HostId) -> Option<T> {
        let (key, item) = self.strangers.entries.remove(&entry)?;
        self.gated.enter(entry, Key { host: Some(host), ..key }, item)
    }

    /// The handshake is over, one way or the other: what would have closed the connection, unless it has been let go.
    pub(crate) fn close(&mut self, entry: Entry) -> Option<T> {
        self.strangers.leave(entry).or_else(|| self.gated.leave(entry))
    }

    /// Lets go of one, to have its descriptor back: the oldest of whoever holds the most, of strangers among equals.
    pub(crate) fn shed(&mut self) -> Option<T> {
        let (strangers, gated) = (self.strangers.most_of_a_key(), self.gated.most_of_a_key());
        let largest = strangers
            .into_iter()
            .chain(gated)
            .max_by_key(|&(size, entry)| (size, self.strangers.entries.contains_key(&entry)));
        largest.and_then(|(_, entry)| self.close(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn from(last: u8) -> Source {
        Source::from(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    fn host(name: &str) -> HostId {
        HostId::from_name(name).expect("is a name")
    }

    /// Opens a connection that shows a good gate tag; who goes for it.
    fn gated(half: &mut HalfOpen<u32>, (name, source): (&str, u8), item: u32) -> (Entry, Option<u32>) {
        let (entry, _) = half.open(from(source), item);
        (entry, half.gate(entry, host(name)))
    }

    #[test]
    fn at_the_cap_of_a_source_its_oldest_goes() {
        let mut half = HalfOpen::default();
        half.open(from(9), 1000);
        for n in 0..HALF_OPEN_PER_SOURCE {
            assert_eq!(half.open(from(1), n).1, None);
        }
        assert_eq!(half.open(from(1), 77).1, Some(0));
        assert_eq!(half.open(from(1), 78).1, Some(1));
    }

    #[test]
    fn at_the_cap_of_all_the_oldest_of_the_most_goes() {
        let mut half = HalfOpen::default();
        half.open(from(100), 2000);
        for n in 0..HALF_OPEN_MAX - 1 {
            let source = from(u8::try_from(n / HALF_OPEN_PER_SOURCE).expect("is small"));
            assert_eq!(half.open(source, n).1, None);
        }
        for n in 0..HALF_OPEN_PER_SOURCE / 2 {
            let newcomer = from(u8::try_from(200 + n).expect("is small"));
            assert_ne!(half.open(newcomer, 1000).1, Some(2000), "a lone one stays while others have many");
        }
        assert_eq!(half.strangers.entries.len(), HALF_OPEN_MAX);
    }

    #[test]
    fn a_good_gate_tag_takes_a_member_out_of_the_strangers_reach() {
        let mut half = HalfOpen::default();
        let (member, closed) = gated(&mut half, ("a", 1), 0);
        assert_eq!(closed, None);
        for n in 1..=100 {
            assert_ne!(half.open(from(1), n).1, Some(0));
        }
        assert_eq!(half.close(member), Some(0));
        assert_eq!(half.close(member), None, "only once");
    }

    #[test]
    fn what_is_replayed_pushes_out_its_like_alone() {
        for others in [1, 63] {
            let mut half = HalfOpen::default();
            let members = [("a", 1), ("b", 2), ("c", 1)].map(|who| gated(&mut half, who, 0).0);
            for n in 1..=1000 {
                // The hello of `a`, from one address or from many.
                let source = 10 + u8::try_from(n % others).expect("is small");
                gated(&mut half, ("a", source), n);
            }
            assert!(half.gated.entries.len() <= HALF_OPEN_MAX);
            let left = members.map(|member| half.close(member));
            assert_eq!(left[1..], [Some(0), Some(0)], "other hosts stay");
            assert!(others > 1 || left[0].is_some(), "so does the host itself, but for a crowd of addresses");
        }
    }

    #[test]
    fn one_that_was_let_go_cannot_be_gated_or_closed() {
        let mut half = HalfOpen::default();
        let (entry, _) = half.open(from(1), 5);
        assert_eq!(half.shed(), Some(5));
        assert_eq!(half.gate(entry, host("a")), None);
        assert_eq!(half.close(entry), None);
    }

    #[test]
    fn whoever_holds_the_most_is_shed_first_and_gated_ones_as_well() {
        let mut half = HalfOpen::default();
        let member = gated(&mut half, ("a", 1), 0).0;
        half.open(from(2), 7);
        for n in 1..=3 {
            gated(&mut half, ("b", 2), n);
        }
        let shed: Vec<_> = std::iter::from_fn(|| half.shed()).collect();
        assert_eq!(shed, [1, 2, 7, 0, 3], "among equals a stranger goes before a member");
        assert_eq!(half.close(member), None);
    }
}

//! Who may be in the middle of a handshake: connections that have not proved anything yet, counted and bounded.
//!
//! At a cap the oldest one goes, never the newest, so that silent strangers cannot keep anyone out; and a good gate tag
//! moves a connection to a budget of its own, so that strangers on a member's address cannot push it out either.

use flodl_wire::limits;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Names a connection that is in the middle of its handshake. Ordered by age.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry(u64);

/// The half-open connections; `T` is what closes one when it is dropped.
#[derive(Debug)]
pub(crate) struct HalfOpen<T> {
    next: u64,
    strangers: BTreeMap<Entry, (IpAddr, T)>,
    gated: BTreeMap<Entry, (IpAddr, T)>,
}

impl<T> Default for HalfOpen<T> {
    fn default() -> Self {
        HalfOpen { next: 0, strangers: BTreeMap::new(), gated: BTreeMap::new() }
    }
}

impl<T> HalfOpen<T> {
    /// Takes in a new connection, and lets go of the oldest of its source or of all where one cap is reached: the caller
    /// drops (and may report) it.
    pub(crate) fn open(&mut self, source: IpAddr, item: T) -> (Entry, Option<(IpAddr, T)>) {
        let of_source = || self.strangers.iter().filter(|(_, (ip, _))| *ip == source).map(|(&entry, _)| entry);
        let oldest = if of_source().count() >= limits::HALF_OPEN_PER_SOURCE {
            of_source().next()
        } else if self.strangers.len() >= limits::HALF_OPEN_MAX {
            self.strangers.keys().next().copied()
        } else {
            None
        };
        let closed = oldest.and_then(|entry| self.strangers.remove(&entry));
        let entry = Entry(self.next);
        self.next += 1;
        self.strangers.insert(entry, (source, item));
        (entry, closed)
    }

    /// The connection has shown a good gate tag. The oldest gated one is let go where that budget is full.
    pub(crate) fn gate(&mut self, entry: Entry) -> Option<(IpAddr, T)> {
        let item = self.strangers.remove(&entry)?;
        let oldest = if self.gated.len() >= limits::HALF_OPEN_MAX { self.gated.keys().next().copied() } else { None };
        let closed = oldest.and_then(|entry| self.gated.remove(&entry));
        self.gated.insert(entry, item);
        closed
    }

    /// The handshake is over, one way or the other: what would have closed the connection, unless it has been let go.
    pub(crate) fn close(&mut self, entry: Entry) -> Option<T> {
        self.strangers.remove(&entry).or_else(|| self.gated.remove(&entry)).map(|(_, item)| item)
    }

    /// Lets go of the oldest one, to have its descriptor back.
    pub(crate) fn shed(&mut self) -> Option<(IpAddr, T)> {
        self.strangers.pop_first().map(|(_, closed)| closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn ip(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    #[test]
    fn at_the_cap_of_a_source_its_oldest_goes() {
        let mut half = HalfOpen::default();
        half.open(ip(9), 1000);
        for n in 0..limits::HALF_OPEN_PER_SOURCE {
            assert_eq!(half.open(ip(1), n).1, None);
        }
        assert_eq!(half.open(ip(1), 77).1, Some((ip(1), 0)));
        assert_eq!(half.open(ip(1), 78).1, Some((ip(1), 1)));
    }

    #[test]
    fn at_the_cap_of_all_the_oldest_goes() {
        let mut half = HalfOpen::default();
        for n in 0..limits::HALF_OPEN_MAX {
            let source = ip(u8::try_from(n / limits::HALF_OPEN_PER_SOURCE).expect("is small"));
            assert_eq!(half.open(source, n).1, None);
        }
        assert_eq!(half.open(ip(200), 1000).1, Some((ip(0), 0)));
    }

    #[test]
    fn a_good_gate_tag_takes_a_member_out_of_the_strangers_reach() {
        let mut half = HalfOpen::default();
        let (member, _) = half.open(ip(1), 0);
        assert_eq!(half.gate(member), None);
        for n in 1..=100 {
            let closed = half.open(ip(1), n).1;
            assert_ne!(closed, Some((ip(1), 0)));
        }
        assert_eq!(half.close(member), Some(0));
        assert_eq!(half.close(member), None, "only once");
    }

    #[test]
    fn one_that_was_let_go_cannot_be_gated_or_closed() {
        let mut half = HalfOpen::default();
        let (entry, _) = half.open(ip(1), 5);
        assert_eq!(half.shed(), Some((ip(1), 5)));
        assert_eq!(half.gate(entry), None);
        assert_eq!(half.close(entry), None);
    }
}

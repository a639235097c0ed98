//! One line a minute per source and kind of trouble, and so many of all, so that whoever knocks all day, from wherever, fills
//! neither a terminal nor a disk.

use super::source::Source;
use core::fmt;
use core::time::Duration;
use flodl_wire::Time;
use std::collections::BTreeMap;

/// Between two lines about the same.
const EVERY: Duration = Duration::from_secs(60);
/// Troubles remembered at once; the one told longest ago is forgotten first.
const TROUBLES: usize = 1024;
/// Lines about whatever that may come at once.
const BURST: u32 = 32;
/// Between two lines about whatever, once those are used up.
const PAUSE: Duration = Duration::from_secs(3);

/// Who makes what kind of trouble.
type Trouble = (Source, &'static str);

/// Which troubles have had their line.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    said: BTreeMap<Trouble, Said>,
    /// When all of the burst is there again.
    rested: Time,
    /// Lines left out for want of it since the last one.
    left_out: u64,
}

#[derive(Debug)]
struct Said {
    at: Time,
    kept_back: u64,
}

/// What was not told before a line, as it is appended to it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// About the same.
    pub(crate) same: u64,
    /// About whatever else.
    pub(crate) others: u64,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.same > 0 {
            write!(f, " ({} more like this before)", self.same)?;
        }
        if self.others > 0 {
            write!(f, " ({} more about others)", self.others)?;
        }
        Ok(())
    }
}

impl Quiet {
    /// Whether there may be a line about it now; then also what was kept back.
    pub(crate) fn may_say(&mut self, trouble: Trouble, now: Time) -> Option<Kept> {
        if let Some(said) = self.said.get_mut(&trouble)
            && now.since(said.at) < EVERY
        {
            said.kept_back += 1;
            return None;
        }
        if self.rested.since(now) > PAUSE * (BURST - 1) {
            self.left_out += 1;
            return None;
        }
        self.rested = self.rested.max(now).plus(PAUSE);
        let said = self.said.insert(trouble, Said { at: now, kept_back: 0 });
        if self.said.len() > TROUBLES
            && let Some(oldest) = self.said.iter().min_by_key(|(_, said)| said.at).map(|(&trouble, _)| trouble)
        {
            self.said.remove(&oldest);
        }
        let same = said.map_or(0, |said| said.kept_back);
        Some(Kept { same, others: std::mem::take(&mut self.left_out) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    const SECOND: u64 = 1_000_000_000;

    fn from(n: u32) -> Source {
        Source::from(IpAddr::V4(Ipv4Addr::from(n)))
    }

    #[test]
    fn one_line_a_minute_and_a_count_of_the_rest() {
        let (a, b) = ((from(1), "silent"), (from(2), "silent"));
        let mut quiet = Quiet::default();
        let none = Some(Kept::default());
        assert_eq!(quiet.may_say(a, Time(0)), none);
        assert_eq!(quiet.may_say(a, Time(30 * SECOND)), None);
        assert_eq!(quiet.may_say(a, Time(59 * SECOND)), None);
        assert_eq!(quiet.may_say(b, Time(59 * SECOND)), none, "sources are apart");
        assert_eq!(quiet.may_say((from(1), "stranger"), Time(59 * SECOND)), none, "kinds are apart");
        let again = quiet.may_say(a, Time(60 * SECOND)).expect("a minute later");
        assert_eq!(again.to_string(), " (2 more like this before)");
        assert_eq!(quiet.may_say(a, Time(61 * SECOND)), None);
    }

    #[test]
    fn many_sources_share_the_lines_there_are() {
        let mut quiet = Quiet::default();
        let crowd = |quiet: &mut Quiet, second: u64| {
            (0..1000u32).filter_map(|n| quiet.may_say((from(n), "silent"), Time(second * SECOND))).collect::<Vec<_>>()
        };
        let burst = usize::try_from(BURST).expect("is small");
        assert_eq!(crowd(&mut quiet, 0).len(), burst);
        assert_eq!(crowd(&mut quiet, 1), []);
        let later = crowd(&mut quiet, PAUSE.as_secs());
        assert_eq!(later.len(), 1);
        assert_eq!(later[0].others, 2 * (1000 - u64::from(BURST)));
        // After any rest, however long, no more than the burst come at once.
        assert_eq!(crowd(&mut quiet, 1_000_000).len(), burst);
        let all: usize = (0..600).map(|second| crowd(&mut quiet, 2_000_000 + second).len()).sum();
        assert!(all <= burst + 600 / 3, "{all} lines in ten minutes");
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_have_one_line() {
        let mut quiet = Quiet::default();
        let source = |n: u128| Source::from(IpAddr::V6(Ipv6Addr::from(0x2001_0db8 << 96 | n)));
        let said = (0..1000).filter(|&n| quiet.may_say((source(n), "silent"), Time(0)).is_some()).count();
        assert_eq!(said, 1);
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut quiet = Quiet::default();
        for n in 0..5000u32 {
            // As slowly as each gets its line.
            let now = Time(u64::from(n) * 3 * SECOND);
            assert_eq!(quiet.may_say((from(n), "silent"), now), Some(Kept::default()));
        }
        assert_eq!(quiet.said.len(), TROUBLES);
    }
}

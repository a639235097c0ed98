//! One line a minute per source and kind of trouble, so that whoever knocks all day fills neither a terminal nor a disk.

use core::time::Duration;
use flodl_wire::Time;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Between two lines about the same.
const EVERY: Duration = Duration::from_secs(60);
/// Troubles remembered at once; the one told longest ago is forgotten first.
const TROUBLES: usize = 1024;

/// Who makes what kind of trouble.
type Trouble = (IpAddr, &'static str);

/// Which troubles have had their line.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    said: BTreeMap<Trouble, Said>,
}

#[derive(Debug)]
struct Said {
    at: Time,
    kept_back: u64,
}

impl Quiet {
    /// Whether there may be a line about it now; then also how many were kept back since its last one.
    pub(crate) fn may_say(&mut self, trouble: Trouble, now: Time) -> Option<u64> {
        if let Some(said) = self.said.get_mut(&trouble) {
            if now.since(said.at) < EVERY {
                said.kept_back += 1;
                return None;
            }
            let kept_back = said.kept_back;
            *said = Said { at: now, kept_back: 0 };
            return Some(kept_back);
        }
        if self.said.len() >= TROUBLES
            && let Some(oldest) = self.said.iter().min_by_key(|(_, said)| said.at).map(|(&trouble, _)| trouble)
        {
            self.said.remove(&oldest);
        }
        self.said.insert(trouble, Said { at: now, kept_back: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn one_line_a_minute_and_a_count_of_the_rest() {
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let (a, b) = ((here, "silent"), (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), "silent"));
        let mut quiet = Quiet::default();
        assert_eq!(quiet.may_say(a, Time(0)), Some(0));
        assert_eq!(quiet.may_say(a, Time(30 * SECOND)), None);
        assert_eq!(quiet.may_say(a, Time(59 * SECOND)), None);
        assert_eq!(quiet.may_say(b, Time(59 * SECOND)), Some(0), "sources are apart");
        assert_eq!(quiet.may_say((here, "stranger"), Time(59 * SECOND)), Some(0), "kinds are apart");
        assert_eq!(quiet.may_say(a, Time(60 * SECOND)), Some(2));
        assert_eq!(quiet.may_say(a, Time(61 * SECOND)), None);
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut quiet = Quiet::default();
        for n in 0..5000u32 {
            let source = IpAddr::V4(Ipv4Addr::from(n));
            assert_eq!(quiet.may_say((source, "silent"), Time(u64::from(n))), Some(0));
        }
        assert_eq!(quiet.said.len(), TROUBLES);
    }
}

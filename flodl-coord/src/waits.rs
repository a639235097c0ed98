//! Whom the folds of an open round wait for.
//!
//! A fold that waits says so every quarter of the patience, so a wait that is not told any more is over. The root sees
//! only relays; where a relay that it waits for waits for one of its ranks, that rank is the cause, and where it does not,
//! what it sends does not arrive.

use core::time::Duration;
use flodl_wire::{Rank, SessionId, Time};
use std::collections::BTreeMap;

/// One wait, as it was told last.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Wait {
    rank: Rank,
    chunk: u32,
    /// When it was told first.
    since: Time,
    told: Time,
}

/// The waits of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waits {
    patience: Duration,
    of_hosts: BTreeMap<SessionId, Wait>,
    of_root: BTreeMap<SessionId, Wait>,
    /// No wait began earlier.
    oldest: Time,
}

/// Who keeps a fold waiting.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A rank, whose relay waits for that chunk of it.
    Rank(Rank, u32),
    /// The data connection of a session: its relay waits for nobody, and the root for that chunk of it.
    Link(SessionId, u32),
}

impl Waits {
    pub(crate) fn new(patience: Duration) -> Waits {
        Waits { patience, of_hosts: BTreeMap::new(), of_root: BTreeMap::new(), oldest: Time(u64::MAX) }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// The fold of `session`'s host waits for a rank.
    pub(crate) fn of_host(&mut self, session: SessionId, of: (Rank, u32), now: Time) {
        let wait = Wait::again(self.of_hosts.get(&session), of, now, self.patience);
        self.oldest = self.oldest.min(wait.since);
        self.of_hosts.insert(session, wait);
    }

    /// The root waits for `session`, the lowest of whose ranks that are still expected is named.
    pub(crate) fn of_root(&mut self, session: SessionId, of: (Rank, u32), now: Time) {
        let wait = Wait::again(self.of_root.get(&session), of, now, self.patience);
        self.oldest = self.oldest.min(wait.since);
        self.of_root.insert(session, wait);
    }

    /// The causes, ranks first. A wait counts as over where others were told half a patience later.
    pub(crate) fn causes(&self) -> Vec<Cause> {
        self.causes_since(Time(u64::MAX))
    }

    /// The causes that have kept a fold waiting for the whole patience, at `now`. The first word of a wait comes a quarter of
    /// it late.
    pub(crate) fn overdue(&mut self, now: Time) -> Vec<Cause> {
        let silence = u64::try_from((self.patience / 4 * 3).as_nanos()).unwrap_or(u64::MAX);
        // Asked at each wait that is told: they are looked through only where one may be old enough.
        let Some(since) = now.0.checked_sub(silence).map(Time).filter(|since| self.oldest <= *since) else {
            return Vec::new();
        };
        self.forget_what_is_over();
        self.causes_since(since)
    }

    /// Nobody is told of these waits any more, so they are over for good.
    fn forget_what_is_over(&mut self) {
        let newest = self.newest();
        let lasts = |wait: &Wait| newest.is_some_and(|newest| wait.lasts(newest, self.patience));
        self.of_hosts.retain(|_, wait| lasts(wait));
        self.of_root.retain(|_, wait| lasts(wait));
        let waits = self.of_hosts.values().chain(self.of_root.values());
        self.oldest = waits.map(|wait| wait.since).min().unwrap_or(Time(u64::MAX));
    }

    fn newest(&self) -> Option<Time> {
        self.of_hosts.values().chain(self.of_root.values()).map(|wait| wait.told).max()
    }

    fn causes_since(&self, since: Time) -> Vec<Cause> {
        let newest = self.newest();
        let lasts = |wait: &Wait| newest.is_some_and(|newest| wait.lasts(newest, self.patience));
        let old = |wait: &Wait| lasts(wait) && wait.since <= since;
        let ranks = self.of_hosts.values().filter(|wait| old(wait)).map(|wait| Cause::Rank(wait.rank, wait.chunk));
        let waits = |session| self.of_hosts.get(session).is_some_and(lasts);
        let links = self.of_root.iter().filter(|(session, wait)| old(wait) && !waits(session));
        ranks.chain(links.map(|(&session, wait)| Cause::Link(session, wait.chunk))).collect()
    }

    /// The rank to name, with its chunk.
    pub(crate) fn first(&self) -> Option<(Rank, u32)> {
        self.causes().first().and_then(|cause| match cause {
            Cause::Rank(rank, chunk) => Some((*rank, *chunk)),
            Cause::Link(session, chunk) => self.of_root.get(session).map(|wait| (wait.rank, *chunk)),
        })
    }
}

impl Wait {
    /// Whether it goes on, as far as anybody can know at `newest`, when a wait was told last.
    fn lasts(&self, newest: Time, patience: Duration) -> bool {
        newest <= self.told.plus(patience / 2)
    }

    /// A wait that is told now, perhaps not for the first time.
    fn again(before: Option<&Wait>, (rank, chunk): (Rank, u32), now: Time, patience: Duration) -> Wait {
        let goes_on = |wait: &&Wait| wait.chunk == chunk && now <= wait.told.plus(patience / 2);
        Wait { rank, chunk, since: before.filter(goes_on).map_or(now, |wait| wait.since), told: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(8);
    const SECOND: u64 = 1_000_000_000;
    const HERE: SessionId = SessionId(1);
    const THERE: SessionId = SessionId(2);

    #[test]
    fn a_relay_that_waits_for_a_rank_is_not_the_cause() {
        let mut waits = Waits::new(PATIENCE);
        waits.of_root(HERE, (Rank(0), 4), Time(2 * SECOND));
        assert_eq!(waits.causes(), [Cause::Link(HERE, 4)]);
        assert_eq!(waits.first(), Some((Rank(0), 4)));
        waits.of_host(HERE, (Rank(1), 4), Time(2 * SECOND));
        waits.of_root(THERE, (Rank(5), 4), Time(2 * SECOND));
        assert_eq!(waits.causes(), [Cause::Rank(Rank(1), 4), Cause::Link(THERE, 4)]);
        assert_eq!(waits.first(), Some((Rank(1), 4)));
    }

    #[test]
    fn a_wait_that_is_told_no_more_is_over() {
        let mut waits = Waits::new(PATIENCE);
        waits.of_host(HERE, (Rank(1), 0), Time(2 * SECOND));
        waits.of_root(THERE, (Rank(5), 1), Time(9 * SECOND));
        assert_eq!(waits.causes(), [Cause::Link(THERE, 1)]);
        assert_eq!(Waits::new(PATIENCE).causes(), []);
    }

    #[test]
    fn a_wait_is_overdue_after_the_patience_without_a_chunk() {
        let mut waits = Waits::new(PATIENCE);
        let mut told = |second: u64, chunk| {
            waits.of_root(THERE, (Rank(5), chunk), Time(second * SECOND));
            waits.overdue(Time(second * SECOND))
        };
        assert_eq!(told(2, 0), []);
        assert_eq!(told(4, 0), []);
        assert_eq!(told(6, 1), [], "a chunk has come");
        assert_eq!(told(8, 1), []);
        assert_eq!(told(11, 1), []);
        assert_eq!(told(12, 1), [Cause::Link(THERE, 1)]);
        assert_eq!(told(20, 1), [], "it was not told for a while");
    }
}

//! What a folding thread waits for: orders first, then data of whoever it wants data from, until a deadline.

use async_channel::Receiver;
use async_io::Timer;
use futures_lite::{Stream, future};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// What has come.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming<K, O, T> {
    /// An order; it overtakes data, so what an order announces never arrives before it.
    Order(O),
    /// Data of one source.
    Data(K, T),
    /// A source has ended, behind its last data.
    Ended(K),
    /// The deadline has come.
    Tick,
    /// Nobody gives orders any more.
    Closed,
}

/// Orders and the sources of data, each with a bounded queue of its own: a source that is not wanted fills its queue and
/// is then not read, whatever the others do.
pub(super) struct Inbox<K, O, T> {
    orders: Pin<Box<Receiver<O>>>,
    sources: BTreeMap<K, Pin<Box<Receiver<T>>>>,
    /// Who was served last.
    last: Option<K>,
}

impl<K: Ord + Copy, O, T> Inbox<K, O, T> {
    pub(super) fn new(orders: Receiver<O>) -> Inbox<K, O, T> {
        Inbox { orders: Box::pin(orders), sources: BTreeMap::new(), last: None }
    }

    /// Reads from a source from now on, in place of one of that name.
    pub(super) fn add(&mut self, name: K, source: Receiver<T>) {
        self.sources.insert(name, Box::pin(source));
    }

    /// Does not read from that source any more.
    pub(super) fn remove(&mut self, name: K) {
        self.sources.remove(&name);
    }

    /// The next thing, at the latest at `deadline`.
    pub(super) async fn next(&mut self, deadline: Option<Instant>, wants: impl Fn(K) -> bool) -> Incoming<K, O, T> {
        let tick = async {
            match deadline {
                Some(deadline) => Timer::at(deadline).await,
                None => future::pending().await,
            };
            Incoming::Tick
        };
        future::or(future::poll_fn(|cx| self.poll(cx, &wants)), tick).await
    }

    fn poll(&mut self, cx: &mut Context<'_>, wants: &impl Fn(K) -> bool) -> Poll<Incoming<K, O, T>> {
        match self.orders.as_mut().poll_next(cx) {
            Poll::Ready(Some(order)) => return Poll::Ready(Incoming::Order(order)),
            Poll::Ready(None) => return Poll::Ready(Incoming::Closed),
            Poll::Pending => {}
        }
        // Round robin: from the one after the last served, then from the first.
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.sources.range((after, Bound::Unbounded)).map(|(&name, _)| name);
        let order: Vec<K> = later.chain(self.sources.keys().copied()).collect();
        let mut wanted = order.into_iter().take(self.sources.len()).filter(|&name| wants(name));
        let found =
            wanted.find_map(|name| take(name, self.sources.get_mut(&name)?, cx).map(|incoming| (name, incoming)));
        let Some((name, incoming)) = found else { return Poll::Pending };
        self.last = Some(name);
        if matches!(incoming, Incoming::Ended(_)) {
            self.sources.remove(&name);
        }
        Poll::Ready(incoming)
    }
}

fn take<K, O, T>(name: K, source: &mut Pin<Box<Receiver<T>>>, cx: &mut Context<'_>) -> Option<Incoming<K, O, T>> {
    match source.as_mut().poll_next(cx) {
        Poll::Ready(Some(data)) => Some(Incoming::Data(name, data)),
        Poll::Ready(None) => Some(Incoming::Ended(name)),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn next(inbox: &mut Inbox<u32, char, u32>, wants: impl Fn(u32) -> bool) -> Option<Incoming<u32, char, u32>> {
        future::block_on(future::poll_once(inbox.next(None, wants)))
    }

    #[test]
    fn orders_overtake_data_and_sources_take_turns_until_they_end() {
        let (order, orders) = async_channel::bounded(4);
        let mut inbox = Inbox::new(orders);
        let mut senders = Vec::new();
        for name in [1, 2, 3] {
            let (sender, source) = async_channel::bounded(4);
            for value in 0..2 {
                sender.try_send(name * 10 + value).unwrap();
            }
            inbox.add(name, source);
            senders.push(sender);
        }
        order.try_send('a').unwrap();
        assert_eq!(next(&mut inbox, |_| true), Some(Incoming::Order('a')));
        for (name, value) in [(1, 10), (2, 20), (3, 30), (1, 11), (2, 21)] {
            assert_eq!(next(&mut inbox, |_| true), Some(Incoming::Data(name, value)));
        }
        assert_eq!(next(&mut inbox, |name| name != 3), None, "the only one with data is not wanted");
        drop(senders);
        assert_eq!(next(&mut inbox, |_| true), Some(Incoming::Data(3, 31)));
        for name in [1, 2, 3] {
            assert_eq!(next(&mut inbox, |_| true), Some(Incoming::Ended(name)));
        }
        assert_eq!(next(&mut inbox, |_| true), None);
        drop(order);
        assert_eq!(next(&mut inbox, |_| true), Some(Incoming::Closed));
    }

    #[test]
    fn a_deadline_that_has_passed_ticks() {
        let (_order, orders) = async_channel::bounded::<()>(1);
        let mut inbox: Inbox<u32, (), u32> = Inbox::new(orders);
        let past = super::super::clock::now().checked_sub(Duration::from_secs(1));
        assert_eq!(future::block_on(inbox.next(past, |_| true)), Incoming::Tick);
    }
}

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
    /// An order. It overtakes data: what an order announces comes after it, if the order was given first.
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
    sources: BTreeMap<K, Source<T>>,
    /// Who was served last.
    last: Option<K>,
}

struct Source<T> {
    data: Pin<Box<Receiver<T>>>,
    /// What was taken from it when an order came that goes first: data, or its end.
    held: Option<Option<T>>,
}

impl<K: Ord + Copy, O, T> Inbox<K, O, T> {
    pub(super) fn new(orders: Receiver<O>) -> Inbox<K, O, T> {
        Inbox { orders: Box::pin(orders), sources: BTreeMap::new(), last: None }
    }

    /// Reads from a source from now on, in place of one of that name.
    pub(super) fn add(&mut self, name: K, source: Receiver<T>) {
        self.sources.insert(name, Source { data: Box::pin(source), held: None });
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
        if let Some(order) = self.order(cx) {
            return Poll::Ready(order);
        }
        // Round robin: from the one after the last served, then from the first.
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.sources.range((after, Bound::Unbounded)).map(|(&name, _)| name);
        let order: Vec<K> = later.chain(self.sources.keys().copied()).collect();
        let mut wanted = order.into_iter().take(self.sources.len()).filter(|&name| wants(name));
        let found = wanted.find_map(|name| self.sources.get_mut(&name)?.take(cx).map(|taken| (name, taken)));
        let Some((name, taken)) = found else { return Poll::Pending };
        // An order that announces what was just taken may have come since the first look.
        if let Some(order) = self.order(cx) {
            if let Some(source) = self.sources.get_mut(&name) {
                source.held = Some(taken);
            }
            return Poll::Ready(order);
        }
        self.last = Some(name);
        Poll::Ready(match taken {
            Some(data) => Incoming::Data(name, data),
            None => {
                self.sources.remove(&name);
                Incoming::Ended(name)
            }
        })
    }

    fn order(&mut self, cx: &mut Context<'_>) -> Option<Incoming<K, O, T>> {
        match self.orders.as_mut().poll_next(cx) {
            Poll::Ready(order) => Some(order.map_or(Incoming::Closed, Incoming::Order)),
            Poll::Pending => None,
        }
    }
}

impl<T> Source<T> {
    /// Its next data, or `Some(None)` for its end; `None`: nothing yet.
    fn take(&mut self, cx: &mut Context<'_>) -> Option<Option<T>> {
        if let Some(held) = self.held.take() {
            return Some(held);
        }
        match self.data.as_mut().poll_next(cx) {
            Poll::Ready(taken) => Some(taken),
            Poll::Pending => None,
        }
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
    fn an_order_overtakes_what_it_announces_whenever_it_comes() {
        let (order, orders) = async_channel::bounded(1);
        let (data, source) = async_channel::bounded(1);
        let mut inbox = Inbox::new(orders);
        inbox.add(1, source);
        // Between the look for orders and the one for data an order is given and answered.
        let between = |_| order.try_send('a').is_err() || data.try_send(7).is_ok();
        assert_eq!(next(&mut inbox, between), Some(Incoming::Order('a')));
        assert_eq!(next(&mut inbox, |_| false), None, "what is held is not given to who does not want it");
        assert_eq!(next(&mut inbox, |_| true), Some(Incoming::Data(1, 7)));
        drop(data);
        let between = |_| order.try_send('b').is_ok();
        assert_eq!(next(&mut inbox, between), Some(Incoming::Order('b')));
        assert_eq!(next(&mut inbox, |_| true), Some(Incoming::Ended(1)), "an end is held too");
        assert_eq!(next(&mut inbox, |_| true), None);
    }

    #[test]
    fn a_deadline_that_has_passed_ticks() {
        let (_order, orders) = async_channel::bounded::<()>(1);
        let mut inbox: Inbox<u32, (), u32> = Inbox::new(orders);
        let past = super::super::clock::now().checked_sub(Duration::from_secs(1));
        assert_eq!(future::block_on(inbox.next(past, |_| true)), Incoming::Tick);
    }
}

//! The thread that folds a host's ranks.

use super::clock::{Clock, now};
use super::inbox::{Inbox, Incoming};
use crate::fold::{DataBreach, HostFold, Input, Order, Output};
use crate::id;
use crate::limits;
use async_channel::{Receiver, Sender};
use core::task::{Context, Waker};
use core::time::Duration;
use flodl_cpureduce::Rooms;
use flodl_cpureduce::shm::{Bell, LaneReader, NAP, Note, SLOTS, Sent};
use flodl_wire::message::Data;
use flodl_wire::message::data::{AbsentWhy, Chunk, Codec};
use flodl_wire::{Incarnation, Rank, Round, Version};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake};
use std::thread;

/// What the relay's task tells the thread.
pub(super) enum Command {
    /// An order to the fold.
    Order(Order),
    /// A rank has connected: its data comes from here, and ends with it.
    Source {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// Its data.
        data: Receiver<Data>,
    },
    /// A rank is being started that may send its data through this lane.
    Lane {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// Its data.
        lane: LaneReader,
    },
}

/// Which life of which rank.
type Life = (Rank, Incarnation);

/// Starts the thread. It ends when nobody holds the sender that is returned.
///
/// Sums go to `up`, everything else to `tell`. `lanes`: what ranks ring that use lanes, and memory for the sums of what they
/// lend; without any they use sockets.
pub(super) fn start(
    patience: Duration,
    up: Sender<Data>,
    tell: Sender<Output>,
    lanes: Option<(Bell, Rooms)>,
) -> io::Result<Sender<Command>> {
    let (sender, commands) = async_channel::bounded(limits::ORDERS);
    let (clock, inbox) = (Clock::start(), Inbox::new(commands));
    let folding = Folding { fold: HostFold::new(patience), inbox, lanes: BTreeMap::new(), clock, up, tell };
    let main = move || match lanes {
        Some(lanes) => folding.run_with_lanes(lanes),
        None => async_io::block_on(folding.run()),
    };
    thread::Builder::new().name("flodl-fold".to_owned()).spawn(main)?;
    Ok(sender)
}

/// The fold and where its data comes from and goes.
struct Folding {
    fold: HostFold,
    inbox: Inbox<Life, Command, Data>,
    lanes: BTreeMap<Life, LaneReader>,
    clock: Clock,
    up: Sender<Data>,
    tell: Sender<Output>,
}

impl Folding {
    /// All data comes from sockets.
    async fn run(mut self) {
        loop {
            let deadline = self.fold.next_deadline().map(|time| self.clock.instant(time));
            let incoming = self.inbox.next(deadline, |(rank, _)| self.fold.wants(rank)).await;
            if !self.take(incoming) {
                return;
            }
        }
    }

    /// Data comes from lanes too: the thread sleeps on their bell, which everything else rings as well.
    fn run_with_lanes(mut self, (bell, rooms): (Bell, Rooms)) {
        self.fold = self.fold.of_lent(rooms);
        let bell = Arc::new(Ringing { bell, rung: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&bell));
        loop {
            // What a rank sends for a round is there only after the order that opens the round: orders are looked for again.
            let ready = self.ready();
            bell.rung.store(false, Ordering::SeqCst);
            if let Poll::Ready(incoming) = self.poll_inbox(&waker) {
                if !self.take(incoming) {
                    return;
                }
                continue;
            }
            if let Some(life) = ready {
                self.take_from_lane(life);
                continue;
            }
            let deadline = self.fold.next_deadline();
            let limit = deadline.map_or(NAP, |time| self.clock.instant(time).saturating_duration_since(now()));
            bell.bell.wait(limit, || bell.rung.load(Ordering::SeqCst) || self.ready().is_some());
            if deadline.is_some_and(|time| self.clock.instant(time) <= now()) {
                self.feed(Input::Tick);
            }
        }
    }

    /// A life whose lane has something that is wanted now.
    fn ready(&self) -> Option<Life> {
        let mut lanes = self.lanes.iter();
        lanes.find(|((rank, _), lane)| lane.has_next() && self.fold.wants(*rank)).map(|(life, _)| *life)
    }

    fn poll_inbox(&mut self, waker: &Waker) -> Poll<Incoming<Life, Command, Data>> {
        let fold = &self.fold;
        pin!(self.inbox.next(None, |(rank, _)| fold.wants(rank))).poll(&mut Context::from_waker(waker))
    }

    /// False: nobody gives orders any more.
    fn take(&mut self, incoming: Incoming<Life, Command, Data>) -> bool {
        match incoming {
            Incoming::Order(Command::Order(order)) => {
                if let Order::Drop { rank, incarnation, .. } = &order {
                    self.lanes.remove(&(*rank, *incarnation));
                }
                self.feed(Input::Order(order));
            }
            Incoming::Order(Command::Source { rank, incarnation, data }) => self.inbox.add((rank, incarnation), data),
            Incoming::Order(Command::Lane { rank, incarnation, lane }) => {
                self.lanes.insert((rank, incarnation), lane);
            }
            Incoming::Data((rank, incarnation), data) => self.feed(Input::Data { rank, incarnation, data }),
            Incoming::Ended((rank, incarnation)) => {
                // What it sent before its end counts, and the memory outlives it.
                // No more than a lane holds: a rank whose connection is closed may write on.
                for _ in 0..SLOTS {
                    self.take_from_lane((rank, incarnation));
                }
                self.lanes.remove(&(rank, incarnation));
                self.feed(Input::Ended { rank, incarnation });
            }
            Incoming::Tick => self.feed(Input::Tick),
            Incoming::Closed => return false,
        }
        true
    }

    fn take_from_lane(&mut self, (rank, incarnation): Life) {
        let Some(lane) = self.lanes.get_mut(&(rank, incarnation)) else { return };
        match lane.try_next() {
            Ok(None) => {}
            Ok(Some(sent)) => self.feed(Input::Data { rank, incarnation, data: data(sent) }),
            Err(breach) => {
                self.lanes.remove(&(rank, incarnation));
                self.feed(Input::Order(Order::Drop { rank, incarnation, why: AbsentWhy::LinkLost }));
                self.pass_on(Output::Breach { rank, incarnation, why: DataBreach::Lane(breach.to_string()) });
            }
        }
    }

    fn feed(&mut self, input: Input) {
        self.fold.handle(input, self.clock.time());
        while let Some(output) = self.fold.poll() {
            self.pass_on(output);
        }
    }

    /// Where the root is gone or the relay's task has ended there is nobody to tell; the thread ends with its orders.
    fn pass_on(&self, output: Output) {
        match output {
            Output::Up(data) => match self.up.send_blocking(data) {
                Ok(()) | Err(_) => {}
            },
            output => match self.tell.send_blocking(output) {
                Ok(()) | Err(_) => {}
            },
        }
    }
}

/// What a lane brought, as what a socket brings.
fn data(sent: Sent) -> Data {
    match sent {
        Sent::Chunk(Note { round, version, index, mass }, bytes) => {
            let (round, version, codec) = (Round(round), Version(version), Codec::Exact);
            Data::Contribution(Chunk { round, version, chunk: index, mass, codec, bytes })
        }
        Sent::Absent { round, from_chunk, why } => {
            Data::Absent { round: Round(round), from_chunk, why: id::absent_why(why) }
        }
    }
}

/// The bell of the lanes, as the thread is woken by everything else.
struct Ringing {
    bell: Bell,
    rung: AtomicBool,
}

impl Wake for Ringing {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}

//! The thread that folds a host's ranks.

use super::clock::Clock;
use super::inbox::{Inbox, Incoming};
use crate::fold::{HostFold, Input, Order, Output};
use crate::limits;
use async_channel::{Receiver, Sender};
use core::time::Duration;
use flodl_wire::message::Data;
use flodl_wire::{Incarnation, Rank};
use std::io;
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
}

/// Starts the thread. It ends when nobody holds the sender that is returned.
///
/// Sums go to `up`, everything else to `tell`.
pub(super) fn start(patience: Duration, up: Sender<Data>, tell: Sender<Output>) -> io::Result<Sender<Command>> {
    let (sender, commands) = async_channel::bounded(limits::ORDERS);
    let fold = HostFold::new(patience);
    let main = move || async_io::block_on(run(fold, Inbox::new(commands), up, tell));
    thread::Builder::new().name("flodl-fold".to_owned()).spawn(main)?;
    Ok(sender)
}

async fn run(
    mut fold: HostFold,
    mut inbox: Inbox<(Rank, Incarnation), Command, Data>,
    up: Sender<Data>,
    tell: Sender<Output>,
) {
    let clock = Clock::start();
    loop {
        let deadline = fold.next_deadline().map(|time| clock.instant(time));
        let input = match inbox.next(deadline, |(rank, _)| fold.wants(rank)).await {
            Incoming::Order(Command::Order(order)) => Input::Order(order),
            Incoming::Order(Command::Source { rank, incarnation, data }) => {
                inbox.add((rank, incarnation), data);
                continue;
            }
            Incoming::Data((rank, incarnation), data) => Input::Data { rank, incarnation, data },
            Incoming::Ended((rank, incarnation)) => Input::Ended { rank, incarnation },
            Incoming::Tick => Input::Tick,
            Incoming::Closed => return,
        };
        fold.handle(input, clock.time());
        while let Some(output) = fold.poll() {
            // Where the root is gone or the relay's task has ended there is nobody to tell; the thread ends with its orders.
            match output {
                Output::Up(data) => match up.send(data).await {
                    Ok(()) | Err(_) => {}
                },
                output => match tell.send(output).await {
                    Ok(()) | Err(_) => {}
                },
            }
        }
    }
}

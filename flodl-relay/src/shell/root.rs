//! The root's thread and the tasks of its relays' data links.

use super::clock::Clock;
use super::inbox::{Inbox, Incoming};
use super::link::{DataLink, RootEnd};
use super::queue::{ResultReceiver, ResultSender, result_queue};
use crate::limits;
use crate::root::{Input, Output, Root};
use async_channel::{Receiver, Sender};
use bytes::Bytes;
use core::convert::Infallible;
use core::time::Duration;
use flodl_cpureduce::Rooms;
use flodl_wire::message::join::LayoutSizes;
use flodl_wire::message::{Control, Data, report};
use flodl_wire::{Rank, Round, SessionId, Version};
use futures_lite::future;
use futures_lite::io::{AsyncRead, AsyncWrite};
use std::collections::BTreeMap;
use std::io;
use std::thread;

/// What the root tells its coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// A round is folded.
    Folded(report::Folded),
    /// The fold waits for a relay while the rest of the chunk is there.
    Waiting {
        /// The round.
        round: Round,
        /// The lowest rank of that relay whose work is still expected.
        rank: Rank,
        /// Which chunk.
        chunk: u32,
    },
    /// What came of [`RootHandle::restore`].
    Restored {
        /// The version that was asked for.
        version: Version,
        /// A sentence where it is not in force.
        result: Result<(), String>,
    },
    /// Something a person should see, as a sentence.
    Warning(String),
}

/// The consensus in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consensus {
    /// Its version.
    pub version: Version,
    /// xxh3 over its chunks in order.
    pub digest: u64,
    /// All sections in order, little-endian.
    pub bytes: Bytes,
    /// The outer optimizer's state after it; empty where it has none.
    pub outer: Vec<u8>,
}

/// Why the data link of a relay has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct SessionEnd {
    /// A sentence.
    pub why: String,
}

/// The coordinator's hold on the root. The root ends when all of them are dropped.
#[derive(Clone)]
pub struct RootHandle {
    commands: Sender<Command>,
}

/// The root has ended, which it does not do by itself.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the root reducer has ended or takes no orders")]
pub struct RootGone;

enum Command {
    Input(Box<Input>),
    Attach { session: SessionId, data: Receiver<Data>, results: ResultSender<Data>, rooms: Option<Rooms> },
    Detach { session: SessionId },
    Consensus(Sender<Option<Consensus>>),
    Outer(Sender<Option<(Version, Vec<u8>)>>),
}

/// Starts the root's thread. What it has to tell comes from the receiver, which is to be read all the time.
///
/// # Errors
///
/// When no thread can be started.
pub fn start_root(patience: Duration) -> io::Result<(RootHandle, Receiver<Report>)> {
    start_root_as(Root::new(patience))
}

/// The same for a root that is made already.
///
/// # Errors
///
/// When no thread can be started.
pub fn start_root_as(root: Root) -> io::Result<(RootHandle, Receiver<Report>)> {
    let (commands, orders) = async_channel::bounded(limits::ORDERS);
    let (tell, reports) = async_channel::bounded(limits::EVENTS);
    let thread = RootThread { root, inbox: Inbox::new(orders), results: BTreeMap::new(), tell };
    let builder = thread::Builder::new().name("flodl-root".to_owned());
    builder.spawn(move || async_io::block_on(thread.run()))?;
    Ok((RootHandle { commands }, reports))
}

impl RootHandle {
    /// Tells the sizes of the model, before round 0.
    ///
    /// # Errors
    ///
    /// [`RootGone`].
    pub fn layout(&self, sizes: LayoutSizes) -> Result<(), RootGone> {
        self.command(Command::Input(Box::new(Input::Layout(sizes))))
    }

    /// Passes on what is broadcast. Must come before any relay hears of it.
    ///
    /// # Errors
    ///
    /// [`RootGone`].
    pub fn control(&self, control: Control) -> Result<(), RootGone> {
        self.command(Command::Input(Box::new(Input::Control(control))))
    }

    /// After a restart: that session's relay is about to send the consensus in force up, as chunks of `round`. Answered with
    /// [`Report::Restored`].
    ///
    /// # Errors
    ///
    /// [`RootGone`].
    pub fn restore(
        &self,
        (session, round): (SessionId, Round),
        (version, digest): (Version, u64),
    ) -> Result<(), RootGone> {
        self.command(Command::Input(Box::new(Input::Restore { session, round, version, digest })))
    }

    /// The consensus in force after every order given before this is called, and before any that is given after it; `None`
    /// before the first commit. The future, which may be awaited at any time, fails with [`RootGone`].
    pub fn consensus(&self) -> impl Future<Output = Result<Option<Consensus>, RootGone>> + Send + use<> {
        let (answer, answered) = async_channel::bounded(1);
        let asked = self.command(Command::Consensus(answer));
        async move {
            asked?;
            answered.recv().await.map_err(|_| RootGone)
        }
    }

    /// The outer optimizer's state, as [`RootHandle::consensus`] gives it, with the version that it belongs to.
    pub fn outer_state(&self) -> impl Future<Output = Result<Option<(Version, Vec<u8>)>, RootGone>> + Send + use<> {
        let (answer, answered) = async_channel::bounded(1);
        let asked = self.command(Command::Outer(answer));
        async move {
            asked?;
            answered.recv().await.map_err(|_| RootGone)
        }
    }

    /// Makes a relay's data link part of the root at once; the future that is returned carries its data until it ends or the
    /// root closes it, and says why it ended. A session is served once.
    pub fn serve<S>(&self, session: SessionId, link: DataLink<S>) -> impl Future<Output = SessionEnd> + use<S>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let ((data, results, rooms), way) = match link {
            DataLink::Root(RootEnd { up, down, rooms, gone }) => ((up, down, Some(rooms)), Way::Local(gone)),
            link => {
                let (sender, data) = async_channel::bounded(limits::CHUNKS);
                let (results, queue) = result_queue();
                ((data, results, None), Way::Carried(link, sender, queue))
            }
        };
        let attached = self.command(Command::Attach { session, data, results, rooms });
        let root = self.clone();
        async move {
            match (attached, way) {
                (Ok(()), Way::Local(gone)) => {
                    let _attached = Attached { root, session };
                    match gone.recv().await {
                        Ok(never) => match never {},
                        Err(_) => SessionEnd { why: "the relay's end is gone".to_owned() },
                    }
                }
                (Ok(()), Way::Carried(link, sender, queue)) => carry(link, sender, queue).await,
                (Err(gone), _) => SessionEnd { why: gone.to_string() },
            }
        }
    }

    fn command(&self, command: Command) -> Result<(), RootGone> {
        self.commands.try_send(command).map_err(|_| RootGone)
    }
}

/// How data gets from a relay to the root's thread and back.
enum Way<S> {
    /// By itself, until the relay's end is gone.
    Local(Receiver<Infallible>),
    /// By a task.
    Carried(DataLink<S>, Sender<Data>, ResultReceiver<Data>),
}

/// A link that nobody carries: it is part of the root until this is dropped.
struct Attached {
    root: RootHandle,
    session: SessionId,
}

impl Drop for Attached {
    fn drop(&mut self) {
        // A root that has ended, or takes no orders any more, has lost it anyway.
        match self.root.command(Command::Detach { session: self.session }) {
            Ok(()) | Err(RootGone) => {}
        }
    }
}

/// Both directions of a relay's data link, until one has ended.
async fn carry<S>(link: DataLink<S>, to_root: Sender<Data>, results: ResultReceiver<Data>) -> SessionEnd
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut reader, Some(writer)) = link.split() else {
        return SessionEnd { why: "it is not the root's end".to_owned() };
    };
    let up = async {
        loop {
            let message = match reader.next().await {
                Ok(message) => message,
                Err(why) => return why,
            };
            if to_root.send(message).await.is_err() {
                return "the root closed it: it carried data that cannot be folded".to_owned();
            }
        }
    };
    let down = async {
        match writer.send_down(results).await {
            Ok(()) => "the root closed it".to_owned(),
            Err(why) => why,
        }
    };
    SessionEnd { why: future::or(up, down).await }
}

struct RootThread {
    root: Root,
    inbox: Inbox<SessionId, Command, Data>,
    results: BTreeMap<SessionId, ResultSender<Data>>,
    tell: Sender<Report>,
}

impl RootThread {
    async fn run(mut self) {
        let clock = Clock::start();
        loop {
            let deadline = self.root.next_deadline().map(|time| clock.instant(time));
            let input = match self.inbox.next(deadline, |session| self.root.wants(session)).await {
                Incoming::Order(Command::Input(input)) => *input,
                Incoming::Order(Command::Attach { session, data, results, rooms }) => {
                    if let Some(rooms) = rooms {
                        self.root.recycle(rooms);
                    }
                    self.inbox.add(session, data);
                    self.results.insert(session, results);
                    continue;
                }
                Incoming::Order(Command::Detach { session }) => {
                    self.inbox.remove(session);
                    self.results.remove(&session);
                    Input::Lost { session }
                }
                Incoming::Order(Command::Consensus(answer)) => {
                    // Who asked may have stopped waiting.
                    match answer.try_send(self.consensus()) {
                        Ok(()) | Err(_) => continue,
                    }
                }
                Incoming::Order(Command::Outer(answer)) => {
                    let version = self.root.version();
                    match answer.try_send(version.map(|version| (version, self.root.outer_state()))) {
                        Ok(()) | Err(_) => continue,
                    }
                }
                Incoming::Data(session, data) => Input::Data { session, data },
                Incoming::Ended(session) => {
                    self.results.remove(&session);
                    Input::Lost { session }
                }
                Incoming::Tick => Input::Tick,
                Incoming::Closed => return,
            };
            self.root.handle(input, clock.time());
            self.drain().await;
        }
    }

    async fn drain(&mut self) {
        while let Some(output) = self.root.poll() {
            let report = match output {
                Output::Result { session, chunk } => {
                    self.down(session, Data::Consensus(chunk));
                    continue;
                }
                Output::LeftOut { session, data } => {
                    self.down(session, data);
                    continue;
                }
                Output::Folded(folded) => Report::Folded(folded),
                Output::Waiting { round, rank, chunk } => Report::Waiting { round, rank, chunk },
                Output::Restored { version, result } => Report::Restored { version, result },
                Output::Breach { session, why } => {
                    self.inbox.remove(session);
                    self.results.remove(&session);
                    Report::Warning(format!("{session} was closed: {why}"))
                }
                Output::Refused(why) => Report::Warning(why.to_string()),
            };
            // Where the coordinator has ended, the root's orders end too.
            match self.tell.send(report).await {
                Ok(()) | Err(_) => {}
            }
        }
    }

    fn down(&self, session: SessionId, data: Data) {
        if let Some(results) = self.results.get(&session) {
            results.push(data);
        }
    }

    fn consensus(&self) -> Option<Consensus> {
        let (version, bytes) = self.root.consensus_bytes()?;
        Some(Consensus { version, digest: self.root.consensus_digest()?, bytes, outer: self.root.outer_state() })
    }
}

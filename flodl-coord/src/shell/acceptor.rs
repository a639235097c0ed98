//! The one door: accepts connections, never waits for any of them, and hands the authenticated ones on.

use super::clock::Clock;
use super::driver::{Entrance, Event, Opened};
use super::gate::{Door, Gate};
use super::halfopen::Entry;
use super::{limits, link};
use async_channel::{Sender, WeakSender};
use async_io::Async;
use flodl_wire::handshake::StrangerWhy;
use flodl_wire::io::{Link, accept};
use flodl_wire::message::record::Reason;
use flodl_wire::{Channel, HandshakeError, Hello, HostId, Role, SessionId};
use futures_lite::io::{AsyncRead, AsyncWrite};
use smol::{Timer, future};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// A relay's data connection, for the root.
#[derive(Debug)]
pub struct DataLink {
    /// The session of the control connection that it belongs to.
    pub session: SessionId,
    /// The connection.
    pub link: Link<Async<TcpStream>>,
}

/// Takes connections in.
#[derive(Clone, Debug)]
pub struct Acceptor {
    gate: Arc<Gate>,
    clock: Clock,
    events: Sender<Event>,
    data: Sender<DataLink>,
    /// Held by every task that still has something to send; not by the acceptor.
    busy: WeakSender<()>,
}

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum RejectedLink {
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The socket cannot be set up.
    #[error("its socket cannot be set up: {0}")]
    Socket(io::Error),
    /// It had to go, for newer ones.
    #[error("too many unfinished connections: the oldest is closed")]
    Crowded,
    /// Another connection of the same host came first.
    #[error("host {} is already here", .0.name())]
    Duplicate(HostId),
    /// A second data connection, or one for a session that ended.
    #[error("a data connection for {0}, which takes none")]
    NoSuchSession(SessionId),
    /// The machine has no randomness to give.
    #[error("no random bytes to be had from the system: {0}")]
    Random(String),
}

impl RejectedLink {
    /// A stable name for the kind of trouble.
    fn code(&self) -> &'static str {
        match self {
            RejectedLink::Handshake(HandshakeError::Stranger { why: StrangerWhy::NotFlodl }) => "not-flodl",
            RejectedLink::Handshake(HandshakeError::Stranger { why: StrangerWhy::WrongGate }) => "wrong-secret",
            RejectedLink::Handshake(HandshakeError::TurnedAway { .. }) => "turned-away",
            RejectedLink::Handshake(HandshakeError::WrongKey) => "wrong-key",
            RejectedLink::Handshake(HandshakeError::TimedOut { .. }) => "silent",
            RejectedLink::Handshake(_) => "broken-handshake",
            RejectedLink::Socket(_) | RejectedLink::Random(_) => "no-resources",
            RejectedLink::Crowded => "crowded",
            RejectedLink::Duplicate(_) | RejectedLink::NoSuchSession(_) => "turned-away",
        }
    }
}

impl Acceptor {
    /// An acceptor behind `gate`: control connections go to `events`, data connections to `data`. `busy` is held while
    /// something accepted still has something to send.
    #[must_use]
    pub fn new(
        gate: Arc<Gate>,
        clock: Clock,
        events: Sender<Event>,
        data: Sender<DataLink>,
        busy: &Sender<()>,
    ) -> Acceptor {
        Acceptor { gate, clock, events, data, busy: busy.downgrade() }
    }

    /// Accepts for as long as it is polled. No peer and no error of the machine ends it.
    pub async fn listen(self, listener: Async<TcpListener>) {
        loop {
            match listener.accept().await {
                Ok((stream, source)) => {
                    if self.knock(stream, source) {
                        // Who has just come needs a moment to show who it is, before it is the oldest itself.
                        Timer::after(limits::CROWDED_REST).await;
                    }
                }
                Err(error) => self.rest(&error).await,
            }
        }
    }

    /// Joins a relay of this process: the same handshake, the same frames. Its data link is the caller's business; returns
    /// its session.
    ///
    /// # Errors
    /// Why the handshake came to nothing.
    pub async fn adopt<S>(&self, stream: S) -> Result<SessionId, RejectedLink>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let door = Door::new(&self.gate, None);
        let (link, hello) = self.handshake(stream, &door).await?;
        let session = link.session;
        self.enter(link, &hello).await?;
        Ok(session)
    }

    /// Out of descriptors, most likely: the oldest unfinished connection gives its own back, and the loop goes on.
    async fn rest(&self, error: &io::Error) {
        self.gate.shed();
        let source = IpAddr::from([0, 0, 0, 0]);
        self.notice(source, "accept-failed", &format!("a connection could not be accepted: {error}")).await;
        Timer::after(limits::ACCEPT_REST).await;
    }

    /// Takes in a connection. Whether another one had to go for it.
    fn knock(&self, stream: Async<TcpStream>, source: SocketAddr) -> bool {
        let (on_drop, dropped) = async_channel::bounded(1);
        let (entry, closed) = self.gate.knock(source.ip(), on_drop);
        let is_crowded = closed.is_some();
        let this = self.clone();
        smol::spawn(async move {
            if let Some(closed) = closed {
                this.notice(closed, "crowded", &format!("{closed}: {}", RejectedLink::Crowded)).await;
            }
            let outcome = future::or(this.greet(stream, entry), async {
                while dropped.recv().await.is_ok() {}
                Err(RejectedLink::Crowded)
            });
            let outcome = outcome.await;
            this.gate.settle(entry);
            match outcome {
                // Its line is written by the connection that pushed it out.
                Ok(()) | Err(RejectedLink::Crowded) => {}
                Err(error) => this.notice(source.ip(), error.code(), &format!("{source}: {error}")).await,
            }
        })
        .detach();
        is_crowded
    }

    async fn greet(&self, stream: Async<TcpStream>, entry: Entry) -> Result<(), RejectedLink> {
        // A control frame is small and urgent; a bulk writer writes whole chunks.
        stream.get_ref().set_nodelay(true).map_err(RejectedLink::Socket)?;
        let door = Door::new(&self.gate, Some(entry));
        let (link, hello) = self.handshake(stream, &door).await?;
        // Nobody pushes it out from here on, and it must not close before it is handed over.
        let _open = self.gate.settle(entry).ok_or(RejectedLink::Crowded)?;
        match hello.channel {
            Channel::Control => self.enter(link, &hello).await,
            Channel::Data => self.enter_data(link).await,
        }
    }

    async fn handshake<S>(&self, stream: S, door: &Door<'_>) -> Result<(Link<S>, Hello), RejectedLink>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|error| RejectedLink::Random(error.to_string()))?;
        Ok(accept(stream, door, nonce).await?)
    }

    /// Makes an authenticated control connection its host's session.
    async fn enter<S>(&self, link: Link<S>, hello: &Hello) -> Result<(), RejectedLink>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let rank_count = match (hello.role, hello.channel) {
            (Role::Relay { rank_count }, Channel::Control) => rank_count,
            _ => return Err(RejectedLink::NoSuchSession(link.session)),
        };
        let resumed = Some(hello.session).filter(|&first| first != SessionId(0));
        if !self.gate.enter(link.session, (hello.host_id, resumed)) {
            return Err(RejectedLink::Duplicate(hello.host_id));
        }
        let entrance = resumed.map_or(Entrance::With(rank_count), Entrance::Again);
        self.enter_control(link, hello.host_id, entrance).await;
        Ok(())
    }

    /// Gives an authenticated data connection to the root.
    async fn enter_data(&self, link: Link<Async<TcpStream>>) -> Result<(), RejectedLink> {
        let session = link.session;
        if let Some(pending) = self.gate.promised(session) {
            while pending.recv().await.is_ok() {}
        }
        if self.gate.has_left(session) {
            Timer::after(limits::PARTING).await;
            return Ok(());
        }
        if !self.gate.enter_data(session) {
            return Err(RejectedLink::NoSuchSession(session));
        }
        // A root that is gone takes none, and the run ends for that reason.
        self.data.send(DataLink { session, link }).await.ok();
        Ok(())
    }

    async fn enter_control<S>(&self, link: Link<S>, host: HostId, entrance: Entrance)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let session = link.session;
        let (reader, writer) = link.split();
        let (queue, queued) = async_channel::bounded(limits::CONTROL_QUEUE);
        let (open, opened) = async_channel::bounded(1);
        // The driver hears of the connection before it hears anything from it.
        let event = Event::Opened(Opened { session, host, entrance, queue, open });
        if self.events.send(event).await.is_err() {
            return self.gate.leave(session);
        }
        let (gate, events, busy) = (Arc::clone(&self.gate), self.events.clone(), self.busy.upgrade());
        let done = opened.clone();
        smol::spawn(async move {
            let mut reader = reader;
            link::read_control(session, &mut reader, &done, &events).await;
            gate.leave(session);
            link::discard(reader).await;
            drop(busy);
        })
        .detach();
        let (events, busy) = (self.events.clone(), self.busy.upgrade());
        smol::spawn(async move {
            link::write_control(session, writer, (queued, opened), events).await;
            drop(busy);
        })
        .detach();
    }

    /// One line a minute per source and kind of trouble.
    async fn notice(&self, source: IpAddr, code: &'static str, text: &str) {
        if let Some(kept_back) = self.gate.may_say(source, code, self.clock.now()) {
            let more = if kept_back == 0 { String::new() } else { format!(" ({kept_back} more like this before)") };
            let reason = Reason::new(code, format!("{text}{more}"));
            self.events.send(Event::Notice(reason)).await.ok();
        }
    }
}

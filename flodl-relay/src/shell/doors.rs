//! Lets a host's ranks in: accepts, checks the user, shakes hands, and hands over who has proven itself.

use super::socket::same_user;
use crate::agent::Sink;
use crate::limits;
use crate::routes::{Peer, Routes};
use async_channel::Sender;
use async_io::Timer;
use core::time::Duration;
use flodl_wire::handshake::{Accept, Admission, Channel, HandshakeError, Hello, Role};
use flodl_wire::io::{Link, accept};
use flodl_wire::limits::HALF_OPEN_MAX;
use flodl_wire::secret::{GateKey, HostKey, PeerKey};
use flodl_wire::{HostId, RunId, SessionId};
use smol::net::unix::{UnixListener, UnixStream};
use smol::{Executor, Task};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What a relay knows for judging who knocks.
pub(super) struct Doors {
    pub(super) run_id: RunId,
    pub(super) host: HostId,
    pub(super) host_key: HostKey,
    pub(super) gate_key: GateKey,
    pub(super) patience: Duration,
    pub(super) generation: u64,
    /// Who may come in now; the relay's task keeps it up to date.
    pub(super) routes: Mutex<Routes>,
    /// Sessions given so far.
    pub(super) sessions: AtomicU64,
    pub(super) sink: Sink,
}

/// A rank's connection that has finished its handshake.
pub(super) struct Arrival {
    pub(super) peer: Peer,
    pub(super) link: Link<UnixStream>,
    /// The same socket, to be shut down.
    pub(super) stream: UnixStream,
}

/// A handshake, with what is known of who does it.
struct Visitor<'a> {
    doors: &'a Doors,
    known: &'a AtomicBool,
}

impl Admission for Visitor<'_> {
    fn gate_key(&self) -> &GateKey {
        &self.doors.gate_key
    }

    /// Called once the hello has shown the gate's key.
    fn decide(&self, hello: &Hello) -> Result<Accept, String> {
        self.known.store(true, Ordering::Relaxed);
        self.doors.decide(hello)
    }

    fn patience(&self) -> Duration {
        self.doors.patience
    }

    fn generation(&self) -> u64 {
        self.doors.generation
    }
}

/// Handshakes at work.
#[derive(Default)]
struct HalfOpen(VecDeque<(Task<()>, Arc<AtomicBool>)>);

impl HalfOpen {
    /// Makes room for one more: of too many the oldest ends that has not shown the gate's key, and only where all have the
    /// oldest of them. Whoever has shown it may hold the connection for made already, its last word being on the way.
    fn make_room(&mut self) {
        self.0.retain(|(task, _)| !task.is_finished());
        if self.0.len() >= HALF_OPEN_MAX {
            let stranger = self.0.iter().position(|(_, known)| !known.load(Ordering::Relaxed));
            self.0.remove(stranger.unwrap_or(0));
        }
    }
}

impl Doors {
    fn decide(&self, hello: &Hello) -> Result<Accept, String> {
        hello.check_run(self.run_id)?;
        if hello.host_id != self.host {
            return Err(format!("this is host {}, you are on host {}", self.host.name(), hello.host_id.name()));
        }
        let routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let (rank, incarnation) = routes.decide(hello).map_err(|refused| refused.to_string())?;
        let key = PeerKey::Rank(self.host_key.rank_key(rank, incarnation));
        let session = match hello.channel {
            Channel::Control => SessionId(self.sessions.fetch_add(1, Ordering::Relaxed) + 1),
            Channel::Data => hello.session,
        };
        Ok(Accept { key, session })
    }
}

impl Doors {
    /// Accepts until the executor is gone. No peer holds it up: handshakes are tasks of their own, and of too many one ends.
    pub(super) async fn keep(
        self: Arc<Self>,
        listener: UnixListener,
        executor: Weak<Executor<'static>>,
        to: Sender<Arrival>,
    ) {
        let mut half_open = HalfOpen::default();
        let mut told = false;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    told = false;
                    half_open.make_room();
                    // This task runs on that executor: holding it here would keep both alive for ever.
                    let Some(executor) = executor.upgrade() else { return };
                    let known = Arc::new(AtomicBool::new(false));
                    let welcome = Arc::clone(&self).welcome(stream, Arc::clone(&known), to.clone());
                    half_open.0.push_back((executor.spawn(welcome), known));
                }
                Err(error) => {
                    // It is tried again and again, and said once.
                    if !std::mem::replace(&mut told, true) {
                        let hint = "ranks wait until it can; the limit of open files may be reached (ulimit -n)";
                        (self.sink)(&format!("relay: cannot accept a connection: {error}; {hint}"));
                    }
                    Timer::after(limits::ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn welcome(self: Arc<Self>, stream: UnixStream, known: Arc<AtomicBool>, to: Sender<Arrival>) {
        match self.greet(stream, &known).await {
            // Where the relay's task has ended nobody is let in any more.
            Ok(arrival) => match to.send(arrival).await {
                Ok(()) | Err(_) => {}
            },
            Err(why) => (self.sink)(&format!("relay: a connection was not let in: {why}")),
        }
    }

    async fn greet(&self, stream: UnixStream, known: &AtomicBool) -> Result<Arrival, String> {
        match same_user(&stream) {
            Ok(true) => {}
            Ok(false) => return Err("it comes from another user".to_owned()),
            Err(error) => return Err(format!("its user cannot be found out: {error}")),
        }
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|error| format!("the system gives no random bytes: {error}"))?;
        let accepted = accept(stream.clone(), &Visitor { doors: self, known }, nonce).await;
        let (link, hello) = accepted.map_err(|error: HandshakeError| error.to_string())?;
        let Role::Rank { rank, incarnation } = hello.role else { return Err("it is no rank".to_owned()) };
        let peer = Peer { rank, incarnation, channel: hello.channel, session: link.session };
        Ok(Arrival { peer, link, stream })
    }
}

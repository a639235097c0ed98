//! The way up over TCP, for a relay that joins a run.

use super::clock;
use super::{DataLink, Upstream};
use crate::limits;
use async_io::Timer;
use core::time::Duration;
use flodl_wire::SessionId;
use flodl_wire::handshake::{Capabilities, Channel, HandshakeError, Hello, Role};
use flodl_wire::io::{Link, connect};
use flodl_wire::secret::{DialKeys, Ticket};
use smol::net::TcpStream;
use std::io;
use std::time::Instant;

/// Why a relay could not join.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nobody answers there.
    #[error(
        "cannot reach the controller at {address}: {last} ({tries} tries in {after:.1?}); check that `flodl serve` runs and \
         that the address in the ticket is reachable from this host"
    )]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// How often.
        tries: u32,
        /// For how long in all.
        after: Duration,
        /// What the last try said.
        last: String,
    },
    /// Somebody answers, and it is not to be.
    #[error("the controller at {address} did not let this host in: {error}")]
    Handshake {
        /// Where.
        address: String,
        /// Why.
        error: HandshakeError,
    },
    /// No random numbers for the handshake.
    #[error("the system gives no random bytes: {0}")]
    Random(getrandom::Error),
}

/// Connects to the controller at `address`, twice: for control, asking for `rank_count` ranks, and for data.
///
/// Tries for `patience` to reach it. A controller that is reached and does not let this host in is not asked again.
///
/// # Errors
///
/// [`DialError`], which says what was tried.
pub async fn dial(
    address: &str,
    ticket: &Ticket,
    rank_count: u32,
    patience: Duration,
) -> Result<Upstream<TcpStream>, DialError> {
    dial_in(address, ticket, (rank_count, SessionId(0)), patience).await
}

/// Connects again, after the link of `session` broke: the controller knows the ranks, and hears where they stand. Tries for
/// `patience`, unless it is told that it is not wanted.
///
/// # Errors
///
/// [`DialError`], which says what was tried.
pub async fn dial_again(
    address: &str,
    ticket: &Ticket,
    (rank_count, session): (u32, SessionId),
    patience: Duration,
) -> Result<Upstream<TcpStream>, DialError> {
    let deadline = clock::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(clock::now());
        match dial_in(address, ticket, (rank_count, session), left).await {
            Err(DialError::Handshake { error, .. })
                if !matches!(error, HandshakeError::Refused(_)) && clock::now() + limits::DIAL_PAUSE < deadline =>
            {
                Timer::after(limits::DIAL_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

async fn dial_in(
    address: &str,
    ticket: &Ticket,
    (rank_count, session): (u32, SessionId),
    patience: Duration,
) -> Result<Upstream<TcpStream>, DialError> {
    let hello = Hello {
        role: Role::Relay { rank_count },
        channel: Channel::Control,
        session,
        run_id: ticket.run_id,
        host_id: ticket.host_id,
        capabilities: Capabilities::ALL,
    };
    let keys = DialKeys { gate: ticket.gate_key.clone(), peer: ticket.host_key.clone().into() };
    let control = link(address, hello, keys.clone(), patience).await?;
    let hello = Hello { channel: Channel::Data, session: control.session, ..hello };
    let data = link(address, hello, keys, patience).await?;
    Ok(Upstream { control, data: DataLink::Sealed(Box::new(data)) })
}

async fn link(address: &str, hello: Hello, keys: DialKeys, patience: Duration) -> Result<Link<TcpStream>, DialError> {
    let stream = reach(address, patience).await?;
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(DialError::Random)?;
    let linked = connect(stream, hello, keys, nonce).await;
    linked.map_err(|error| DialError::Handshake { address: address.to_owned(), error })
}

/// Tries until `patience` is over.
async fn reach(address: &str, patience: Duration) -> Result<TcpStream, DialError> {
    let start = clock::now();
    let deadline = start + patience;
    let mut pause = limits::DIAL_PAUSE;
    let mut tries = 0;
    loop {
        tries += 1;
        let last = match attempt(address, deadline).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error.to_string(),
        };
        if clock::now() + pause >= deadline {
            let (address, after) = (address.to_owned(), clock::now() - start);
            return Err(DialError::Unreachable { address, tries, after, last });
        }
        Timer::after(pause).await;
        pause = (pause * 2).min(limits::DIAL_PAUSE_MAX);
    }
}

async fn attempt(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer to the connection request");
    let left = deadline.saturating_duration_since(clock::now());
    let stream = clock::within(left, TcpStream::connect(address)).await.unwrap_or_else(|| Err(late()))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

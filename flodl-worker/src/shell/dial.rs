//! Reaching the relay: one unix socket, two connections, two handshakes.

use super::environment::Environment;
use async_io::{Async, Timer};
use core::time::Duration;
use flodl_wire::SessionId;
use flodl_wire::handshake::{Capabilities, Channel, HandshakeError, Hello, Role};
use flodl_wire::io::{Deadlines, Link, connect_within};
use flodl_wire::limits::{HANDSHAKE_TIMEOUT, HELLO_TIMEOUT};
use flodl_wire::secret::RankKeys;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;
use thiserror::Error;

/// Between two attempts.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// Why the relay cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DialError {
    /// Nobody took the connection for as long as there was patience.
    #[error(
        "no relay listens at {}: tried for {patience:?}, last answer: {kind}; the flodl process that started this one \
         is gone or hangs, so start the run again", socket.display()
    )]
    NobodyThere {
        /// The socket.
        socket: PathBuf,
        /// How long it was tried.
        patience: Duration,
        /// The last attempt's error.
        kind: ErrorKind,
    },
    /// The relay did not accept this rank.
    #[error("the relay at {} did not take the {channel} connection: {error}", socket.display())]
    Handshake {
        /// The socket.
        socket: PathBuf,
        /// Which connection.
        channel: Channel,
        /// Why.
        error: HandshakeError,
    },
    /// The system gives no random bytes.
    #[error("the system gives no random bytes for the handshake: {0}")]
    Random(String),
}

/// The two connections of a rank.
pub(super) struct Links {
    pub(super) control: Link<Async<UnixStream>>,
    pub(super) data: Link<Async<UnixStream>>,
}

/// Connects, retrying while there is patience. `note` is told once that it takes longer.
///
/// # Errors
/// See [`DialError`].
pub(super) async fn dial(
    environment: &Environment,
    keys: RankKeys,
    mut note: impl FnMut(String),
) -> Result<Links, DialError> {
    let until = Instant::now() + environment.patience;
    let stream = reach(environment, until, &mut note).await?;
    let control = shake(environment, stream, keys.clone(), (Channel::Control, SessionId(0))).await?;
    let stream = reach(environment, until, &mut note).await?;
    let data = shake(environment, stream, keys, (Channel::Data, control.session)).await?;
    Ok(Links { control, data })
}

async fn reach(
    environment: &Environment,
    until: Instant,
    note: &mut impl FnMut(String),
) -> Result<Async<UnixStream>, DialError> {
    let (socket, patience) = (&environment.socket, environment.patience);
    let mut noted = false;
    loop {
        let error = match Async::<UnixStream>::connect(socket).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if Instant::now() + RETRY_EVERY > until {
            return Err(DialError::NobodyThere { socket: socket.clone(), patience, kind: error.kind() });
        }
        if !noted {
            note(format!("{environment}: nobody listens at {} ({error}), trying for {patience:?}", socket.display()));
            noted = true;
        }
        Timer::after(RETRY_EVERY).await;
    }
}

async fn shake(
    environment: &Environment,
    stream: Async<UnixStream>,
    keys: RankKeys,
    (channel, session): (Channel, SessionId),
) -> Result<Link<Async<UnixStream>>, DialError> {
    let role = Role::Rank { rank: environment.rank, incarnation: environment.incarnation };
    let hello = Hello {
        role,
        channel,
        session,
        run_id: environment.run_id,
        host_id: environment.host_id,
        capabilities: Capabilities::NONE,
    };
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|error| DialError::Random(error.to_string()))?;
    let total = environment.patience.min(HANDSHAKE_TIMEOUT);
    let deadlines = Deadlines { hello: HELLO_TIMEOUT.min(total), total, ..Deadlines::default() };
    let linked = connect_within(stream, hello, keys, nonce, deadlines).await;
    linked.map_err(|error| DialError::Handshake { socket: environment.socket.clone(), channel, error })
}

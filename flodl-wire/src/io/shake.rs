//! The handshake over a stream, within total deadlines: [`Connection`] says what to do, and this does it.

#![allow(clippy::disallowed_methods, reason = "the shell of a connection, which has to tell it the time")]

use super::Link;
use crate::Time;
use crate::connection::{Close, Connection, Deadlines, Event};
use crate::handshake::{Admission, Established, HandshakeError, Hello};
use crate::secret::DialKeys;
use async_io::Timer;
use futures_lite::future;
use futures_lite::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use std::io::{Error, ErrorKind};
use std::time::Instant;

/// Dials: sends the hello, checks the answer, proves who this side is. `nonce` is 32 random bytes that were never used before.
///
/// # Errors
///
/// Where the other side is silent, refuses, is not who it must be, or takes longer than
/// [`HANDSHAKE_TIMEOUT`](crate::limits::HANDSHAKE_TIMEOUT).
pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    hello: Hello,
    keys: impl Into<DialKeys>,
    nonce: [u8; 32],
) -> Result<Link<S>, HandshakeError> {
    connect_within(stream, hello, keys, nonce, Deadlines::default()).await
}

/// [`connect`] with other deadlines.
///
/// # Errors
///
/// As [`connect`].
pub async fn connect_within<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    hello: Hello,
    keys: impl Into<DialKeys>,
    nonce: [u8; 32],
    deadlines: Deadlines,
) -> Result<Link<S>, HandshakeError> {
    let connection = Connection::dial(hello, keys, nonce, Time::ZERO).within(deadlines);
    let nobody_asks = |_: &mut Connection, _: Hello| None;
    let established = drive(&mut stream, connection, nobody_asks).await?;
    Ok(Link::new(stream, established))
}

/// Accepts: checks the hello, asks `policy`, challenges, checks the proof. `nonce` is 32 random bytes that were never used before.
///
/// # Errors
///
/// Where the other side is a stranger (closed without a byte), was refused (with a sentence), does not prove its key, or
/// takes longer than [`HELLO_TIMEOUT`](crate::limits::HELLO_TIMEOUT) for its hello or
/// [`HANDSHAKE_TIMEOUT`](crate::limits::HANDSHAKE_TIMEOUT) in all.
pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    policy: &(impl Admission + ?Sized),
    nonce: [u8; 32],
) -> Result<(Link<S>, Hello), HandshakeError> {
    accept_within(stream, policy, nonce, Deadlines::default()).await
}

/// [`accept`] with other deadlines.
///
/// # Errors
///
/// As [`accept`].
pub async fn accept_within<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    policy: &(impl Admission + ?Sized),
    nonce: [u8; 32],
    deadlines: Deadlines,
) -> Result<(Link<S>, Hello), HandshakeError> {
    let connection = Connection::accept(policy.gate_key(), nonce, Time::ZERO).within(deadlines);
    let mut heard = None;
    let admit = |connection: &mut Connection, hello| {
        heard = Some(hello);
        connection.admit(policy)
    };
    let established = drive(&mut stream, connection, admit).await?;
    let hello = heard.ok_or(HandshakeError::Closed { waiting_for: "hello" })?;
    Ok((Link::new(stream, established), hello))
}

/// What a stream did.
enum Step {
    Took(usize),
    Gave(usize),
    Late,
}

/// Does what the connection asks for until it is open and has written its last word, or is over.
async fn drive<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    mut connection: Connection,
    mut admit: impl FnMut(&mut Connection, Hello) -> Option<Event>,
) -> Result<Established, HandshakeError> {
    let began = Instant::now();
    let now = || Time::ZERO.plus(began.elapsed());
    let mut over = None;
    loop {
        if connection.outgoing().is_empty() {
            match over {
                Some(error) => return Err(error),
                None if connection.is_open() => break,
                None => {}
            }
        }
        let late = until(began, connection.deadline());
        let mut event = match future::or(step(stream, &mut connection), late).await {
            Ok(Step::Took(n)) => {
                connection.sent(n);
                None
            }
            Ok(Step::Gave(0)) => connection.ended(),
            Ok(Step::Gave(n)) => connection.filled(n, now()),
            Ok(Step::Late) => None,
            Err(error) => return Err(over.unwrap_or_else(|| broken(&error, connection))),
        };
        if let Some(Event::Hello(hello)) = event {
            event = admit(&mut connection, hello);
        }
        if let Some(Event::Closed(close)) = event.or_else(|| connection.tick(now())) {
            over = Some(refusal(close));
        }
    }
    let ended = HandshakeError::Closed { waiting_for: connection.waiting_for() };
    connection.into_parts().map(|(established, _)| established).ok_or(ended)
}

/// Writes what there is to write, else reads.
async fn step<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, connection: &mut Connection) -> Result<Step, Error> {
    let waiting = connection.outgoing().len();
    let outcome = if waiting > 0 {
        stream.write(connection.outgoing()).await.map(Step::Took)
    } else {
        stream.read(connection.space()).await.map(Step::Gave)
    };
    match outcome {
        Ok(Step::Took(0)) => Err(ErrorKind::WriteZero.into()),
        Ok(Step::Took(n)) if n >= waiting => stream.flush().await.map(|()| Step::Took(n)),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Step::Took(0)),
        outcome => outcome,
    }
}

async fn until(began: Instant, deadline: Option<Time>) -> Result<Step, Error> {
    let at = deadline.and_then(|deadline| began.checked_add(deadline.since(Time::ZERO)));
    match at {
        Some(at) => Timer::at(at).await,
        None => future::pending().await,
    };
    Ok(Step::Late)
}

/// What it means that the stream failed. A stranger's connection may be reset before its hello is even written: that, too, is
/// silence.
fn broken(error: &Error, mut connection: Connection) -> HandshakeError {
    let is_end = matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe | ErrorKind::WriteZero
    );
    match connection.ended() {
        Some(Event::Closed(close)) if is_end => refusal(close),
        _ => HandshakeError::Io { doing: "shaking hands", kind: error.kind() },
    }
}

/// Why there is no link.
fn refusal(close: Close) -> HandshakeError {
    match close {
        Close::Handshake(error) => error,
        _ => HandshakeError::Closed { waiting_for: "end of the handshake" },
    }
}

//! The handshake over a stream, within total deadlines.

use super::Link;
use crate::handshake::{Admission, Dialler, Finish, HandshakeError, Hello, M1_LEN, M3_LEN, Unheard, greet};
use crate::limits::{HANDSHAKE_TIMEOUT, HELLO_TIMEOUT};
use crate::secret::DialKeys;
use async_io::Timer;
use core::time::Duration;
use futures_lite::future;
use futures_lite::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use std::io::{Error, ErrorKind};

/// How long a handshake may take: totals from its start, however the bytes trickle in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Accepting: to the whole hello.
    pub hello: Duration,
    /// To the end.
    pub total: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines { hello: HELLO_TIMEOUT, total: HANDSHAKE_TIMEOUT }
    }
}

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
    let dialler = Dialler::new(hello, keys.into(), nonce);
    let shake = dial(&mut stream, dialler);
    let established = within(deadlines.total, "answer to the hello", shake).await?;
    Ok(Link::new(stream, established))
}

async fn dial<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    mut dialler: Dialler,
) -> Result<crate::handshake::Established, HandshakeError> {
    // A stranger's connection may be reset before its hello is even written: that, too, is silence.
    if let Err(error) = stream.write_all(dialler.m1()).await {
        return Err(broken(&error, "sending the hello", || dialler.closed()));
    }
    if let Err(error) = stream.flush().await {
        return Err(broken(&error, "sending the hello", || dialler.closed()));
    }
    let Finish { m3, established } = loop {
        let n = match stream.read(dialler.space()).await {
            Ok(0) => return Err(dialler.closed()),
            Ok(n) => n,
            Err(error) => return Err(broken(&error, "reading the answer to the hello", || dialler.closed())),
        };
        if let Some(finish) = dialler.filled(n)? {
            break finish;
        }
    };
    send(stream, &m3, "sending the finish").await?;
    Ok(established)
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
    let shake = async {
        let mut m1 = [0; M1_LEN];
        within(deadlines.hello, "hello", receive(&mut stream, &mut m1, "hello")).await?;
        let admitted = greet(policy.gate_key(), &m1).and_then(|greeted| {
            let hello = *greeted.hello();
            greeted.admit(policy, nonce).map(|(challenged, m2)| (challenged, m2, hello))
        });
        let (challenged, m2, hello) = match admitted {
            Ok(admitted) => admitted,
            Err(unheard) => return Err(turn_away(&mut stream, unheard).await),
        };
        send(&mut stream, &m2, "sending the challenge").await?;
        let mut m3 = [0; M3_LEN];
        receive(&mut stream, &mut m3, "finish").await?;
        Ok((challenged.finish(&m3)?, hello))
    };
    let (established, hello) = within(deadlines.total, "finish", shake).await?;
    Ok((Link::new(stream, established), hello))
}

/// Says what there is to say to a peer that is not let in. That it cannot be said changes nothing about why.
async fn turn_away<S: AsyncWrite + Unpin>(stream: &mut S, unheard: Unheard) -> HandshakeError {
    match unheard {
        Unheard::Silence(error) => error,
        Unheard::Refusal(refusal, error) => match send(stream, &*refusal, "sending the refusal").await {
            Ok(()) | Err(_) => error,
        },
    }
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8], doing: &'static str) -> Result<(), HandshakeError> {
    stream.write_all(bytes).await.map_err(|error| HandshakeError::Io { doing, kind: error.kind() })?;
    stream.flush().await.map_err(|error| HandshakeError::Io { doing, kind: error.kind() })
}

async fn receive<S: AsyncRead + Unpin>(
    stream: &mut S,
    bytes: &mut [u8],
    waiting_for: &'static str,
) -> Result<(), HandshakeError> {
    stream.read_exact(bytes).await.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            HandshakeError::Closed { waiting_for }
        }
        kind => HandshakeError::Io { doing: waiting_for, kind },
    })
}

fn broken(error: &Error, doing: &'static str, closed: impl FnOnce() -> HandshakeError) -> HandshakeError {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe | ErrorKind::WriteZero => {
            closed()
        }
        kind => HandshakeError::Io { doing, kind },
    }
}

async fn within<T>(
    after: Duration,
    waiting_for: &'static str,
    work: impl Future<Output = Result<T, HandshakeError>>,
) -> Result<T, HandshakeError> {
    future::or(work, async {
        Timer::after(after).await;
        Err(HandshakeError::TimedOut { waiting_for, after })
    })
    .await
}

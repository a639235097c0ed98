//! A connection inside one process: what relay and controller of one machine talk over, with the same handshake and frames.

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use futures_lite::io::{AsyncRead, AsyncWrite};
use piper::{Reader, Writer, pipe};
use std::io;

/// One end of a two-way pipe in memory. Dropping it ends both directions.
pub struct Duplex {
    read: Reader,
    write: Writer,
}

impl fmt::Debug for Duplex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duplex").field("readable", &self.read.len()).finish_non_exhaustive()
    }
}

/// Both ends of a two-way pipe that holds up to `bytes` bytes (at least 1) in each direction.
#[must_use]
pub fn duplex(bytes: usize) -> (Duplex, Duplex) {
    let ((read_a, write_b), (read_b, write_a)) = (pipe(bytes.max(1)), pipe(bytes.max(1)));
    (Duplex { read: read_a, write: write_a }, Duplex { read: read_b, write: write_b })
}

impl AsyncRead for Duplex {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.read).poll_read(cx, bytes)
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // The pipe says 0 where nobody reads any more; a socket says so by an error, and so does this.
        match Pin::new(&mut self.write).poll_write(cx, bytes) {
            Poll::Ready(Ok(0)) if !bytes.is_empty() => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            other => other,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_close(cx)
    }
}

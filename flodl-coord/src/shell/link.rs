//! One authenticated control connection: its reader task and its writer task.

use super::driver::Event;
use async_channel::{Receiver, Sender};
use flodl_wire::io::{FrameReader, FrameWriter};
use flodl_wire::{Frame, SessionId};
use futures_lite::io::{AsyncRead, AsyncWrite};
use smol::future;

/// Reads a control connection until it ends or the driver is done with it (`open` closes). Silence is the core's business.
pub(super) async fn read_control<R: AsyncRead + Unpin>(
    session: SessionId,
    mut reader: FrameReader<R>,
    open: Receiver<()>,
    events: Sender<Event>,
) {
    let read = async {
        loop {
            match reader.next().await {
                // A driver that is gone has no use for news.
                Ok(Some(frame)) => events.send(Event::Frame { session, frame }).await.ok()?,
                Ok(None) => return Some("it closed the connection".to_owned()),
                Err(error) => return Some(error.to_string()),
            }
        }
    };
    let dropped = async {
        while open.recv().await.is_ok() {}
        None
    };
    if let Some(error) = future::or(dropped, read).await {
        events.send(Event::Closed { session, error }).await.ok();
    }
}

/// Writes what is queued until the queue's senders are gone, then closes the connection.
pub(super) async fn write_control<W: AsyncWrite + Unpin>(
    session: SessionId,
    mut writer: FrameWriter<W>,
    queue: Receiver<Frame>,
    events: Sender<Event>,
) {
    let written = async {
        while let Ok(frame) = queue.recv().await {
            writer.send(&frame).await?;
            if queue.is_empty() {
                writer.flush().await?;
            }
        }
        writer.close().await
    };
    if let Err(error) = written.await {
        queue.close();
        events.send(Event::Closed { session, error: error.to_string() }).await.ok();
    }
}

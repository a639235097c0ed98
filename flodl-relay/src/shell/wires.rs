//! The tasks of one rank's connection: a reader and a writer, which never wait for each other.

use super::clock::within;
use super::doors::Arrival;
use super::queue::{ResultReceiver, ResultSender, result_queue};
use crate::limits;
use crate::relay::Input;
use crate::routes::{Connection, Peer, rank_data};
use async_channel::{Receiver, Sender};
use flodl_cpureduce::shm::Bell;
use flodl_wire::frame::{Frame, Stream};
use flodl_wire::handshake::Channel;
use flodl_wire::io::{FrameReader, FrameWriter, SendError};
use flodl_wire::message::Data;
use flodl_wire::message::data::Chunk;
use futures_lite::io::AsyncWrite;
use smol::net::unix::UnixStream;
use smol::{Executor, Task};
use std::net::Shutdown;

/// A rank's connection as the relay's task holds it.
pub(super) struct Wires {
    reader: Task<()>,
    writer: Task<Result<(), SendError>>,
    outlet: Outlet,
    stream: UnixStream,
    /// Rung for each chunk of a result, where the rank reads results on the board.
    bell: Option<Bell>,
}

/// Where what is to be sent waits.
enum Outlet {
    Control(Sender<Frame>),
    Data(ResultSender),
}

impl Wires {
    /// Starts the tasks. What comes from a control connection goes to `events`; the data of a data connection is what is
    /// returned beside. The connection's end goes to `events`.
    pub(super) fn start(
        executor: &Executor<'static>,
        connection: Connection,
        arrival: Arrival,
        events: Sender<Input>,
    ) -> (Wires, Option<Receiver<Data>>) {
        let Arrival { peer, link, stream } = arrival;
        let (reader, writer) = link.split_with(|stream| (stream.clone(), stream));
        match peer.channel {
            Channel::Control => {
                let (outlet, frames) = async_channel::bounded(limits::CONTROL_FRAMES);
                let reader = executor.spawn(read_control(reader, connection, events));
                let writer = executor.spawn(write_control(writer, frames));
                (Wires { reader, writer, outlet: Outlet::Control(outlet), stream, bell: None }, None)
            }
            Channel::Data => {
                let (outlet, chunks) = result_queue();
                let (sender, data) = async_channel::bounded(limits::CHUNKS);
                let reader = executor.spawn(read_data(reader, connection, peer, sender, events));
                let writer = executor.spawn(write_data(writer, peer, chunks));
                (Wires { reader, writer, outlet: Outlet::Data(outlet), stream, bell: None }, Some(data))
            }
        }
    }

    /// The same, of a rank that reads results on the board and is told so with that bell.
    pub(super) fn with_bell(self, bell: Option<Bell>) -> Wires {
        Wires { bell, ..self }
    }

    /// The bell of a rank that reads results on the board.
    pub(super) fn bell(&self) -> Option<&Bell> {
        self.bell.as_ref()
    }

    /// Queues a control frame; `false`: the rank does not take what it is sent.
    pub(super) fn send(&self, frame: Frame) -> bool {
        match &self.outlet {
            Outlet::Control(frames) => frames.try_send(frame).is_ok(),
            Outlet::Data(_) => true,
        }
    }

    /// Queues a chunk of a result.
    pub(super) fn result(&self, chunk: Chunk) {
        if let Outlet::Data(chunks) = &self.outlet {
            chunks.push(chunk);
        }
    }

    /// Ends the connection: reads nothing more, writes what is queued if that goes quickly, and shuts the socket down.
    pub(super) fn close(self, executor: &Executor<'static>) {
        let Wires { reader, writer, outlet, stream, .. } = self;
        drop(reader);
        drop(outlet);
        let closing = async move {
            // Whatever the writer found, the connection is over.
            match within(limits::CLOSING, writer).await {
                Some(Ok(())) | Some(Err(_)) | None => {}
            }
            match stream.shutdown(Shutdown::Both) {
                Ok(()) | Err(_) => {}
            }
        };
        executor.spawn(closing).detach();
    }
}

async fn read_control(mut reader: FrameReader<UnixStream>, connection: Connection, events: Sender<Input>) {
    let why = loop {
        match reader.next().await {
            Ok(Some(frame)) => {
                if events.send(Input::RankFrame { connection, frame }).await.is_err() {
                    return;
                }
            }
            Ok(None) => break "it was closed".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    ended(connection, why, &events).await;
}

async fn read_data(
    mut reader: FrameReader<UnixStream>,
    connection: Connection,
    peer: Peer,
    data: Sender<Data>,
    events: Sender<Input>,
) {
    let why = loop {
        let message = match reader.next().await {
            Ok(Some(frame)) => rank_data(&frame, peer.rank, peer.incarnation),
            Ok(None) => break "it was closed".to_owned(),
            Err(error) => break error.to_string(),
        };
        match message {
            Ok(message) => {
                if data.send(message).await.is_err() {
                    break "the fold has ended".to_owned();
                }
            }
            Err(breach) => break breach.to_string(),
        }
    };
    // The fold learns of the end behind the last chunk.
    drop(data);
    ended(connection, why, &events).await;
}

/// The relay's task may have ended before the connection.
async fn ended(connection: Connection, why: String, events: &Sender<Input>) {
    match events.send(Input::Closed { connection, why }).await {
        Ok(()) | Err(_) => {}
    }
}

/// Writes control frames, those that wait together, until nobody has one any more; then closes the connection.
pub(super) async fn write_control<W: AsyncWrite + Unpin>(
    mut writer: FrameWriter<W>,
    frames: Receiver<Frame>,
) -> Result<(), SendError> {
    while let Ok(frame) = frames.recv().await {
        writer.send(&frame).await?;
        while let Ok(frame) = frames.try_recv() {
            writer.send(&frame).await?;
        }
        writer.flush().await?;
    }
    writer.close().await
}

async fn write_data(mut writer: FrameWriter<UnixStream>, peer: Peer, chunks: ResultReceiver) -> Result<(), SendError> {
    let stream = Stream::Rank(peer.rank);
    while let Some(chunk) = chunks.next().await {
        writer.send_data(stream, peer.incarnation, &Data::Consensus(chunk)).await?;
        while let Some(chunk) = chunks.try_next() {
            writer.send_data(stream, peer.incarnation, &Data::Consensus(chunk)).await?;
        }
        writer.flush().await?;
    }
    writer.close().await
}

//! A link for data: a connection, or a pair of channels inside one process.

use super::queue::ResultReceiver;
use crate::limits;
use async_channel::{Receiver, Sender};
use flodl_wire::Incarnation;
use flodl_wire::frame::Stream;
use flodl_wire::io::{FrameReader, FrameWriter, Link};
use flodl_wire::message::Data;
use futures_lite::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};

/// How data travels between a relay and the root, seen from either end.
pub enum DataLink<S> {
    /// Inside one process: neither encoded nor sealed.
    Local {
        /// To the other end.
        send: Sender<Data>,
        /// From the other end.
        receive: Receiver<Data>,
    },
    /// A connection of its own, so that bulk data never delays control.
    Sealed(Box<Link<S>>),
}

/// Both ends of a data link inside one process: the relay's and the root's. Each direction holds
/// [`limits::LOCAL_CHUNKS`].
#[must_use]
pub fn local_data_link<R, S>() -> (DataLink<R>, DataLink<S>) {
    let (up, from_relay) = async_channel::bounded(limits::LOCAL_CHUNKS);
    let (down, from_root) = async_channel::bounded(limits::LOCAL_CHUNKS);
    (DataLink::Local { send: up, receive: from_root }, DataLink::Local { send: down, receive: from_relay })
}

/// The receiving direction of a data link.
pub(super) enum DataReader<S> {
    Local(Receiver<Data>),
    Sealed(Box<FrameReader<ReadHalf<S>>>),
}

/// The sending direction of a data link.
pub(super) enum DataWriter<S> {
    Local(Sender<Data>),
    Sealed(Box<FrameWriter<WriteHalf<S>>>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> DataLink<S> {
    pub(super) fn split(self) -> (DataReader<S>, DataWriter<S>) {
        match self {
            DataLink::Local { send, receive } => (DataReader::Local(receive), DataWriter::Local(send)),
            DataLink::Sealed(link) => {
                let (reader, writer) = link.split();
                (DataReader::Sealed(Box::new(reader)), DataWriter::Sealed(Box::new(writer)))
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> DataReader<S> {
    /// The next message.
    ///
    /// # Errors
    ///
    /// Why there is none any more.
    pub(super) async fn next(&mut self) -> Result<Data, String> {
        match self {
            DataReader::Local(receiver) => receiver.recv().await.map_err(|_| "the other end is gone".to_owned()),
            DataReader::Sealed(reader) => match reader.next().await {
                Ok(Some(frame)) => frame.to_data().map_err(|error| error.to_string()),
                Ok(None) => Err("the data connection was closed".to_owned()),
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> DataWriter<S> {
    async fn send(&mut self, stream: Stream, data: Data) -> Result<(), String> {
        match self {
            DataWriter::Local(sender) => sender.send(data).await.map_err(|_| "the other end is gone".to_owned()),
            DataWriter::Sealed(writer) => {
                writer.send_data(stream, Incarnation(0), &data).await.map_err(|error| error.to_string())
            }
        }
    }

    async fn flush(&mut self) -> Result<(), String> {
        match self {
            DataWriter::Local(_) => Ok(()),
            DataWriter::Sealed(writer) => writer.flush().await.map_err(|error| error.to_string()),
        }
    }

    /// Sends up what comes from a fold until the fold has ended.
    ///
    /// # Errors
    ///
    /// Why the link is of no use any more.
    pub(super) async fn send_up(mut self, from: Receiver<Data>) -> Result<(), String> {
        while let Ok(data) = from.recv().await {
            self.send(Stream::Host, data).await?;
            while let Ok(data) = from.try_recv() {
                self.send(Stream::Host, data).await?;
            }
            self.flush().await?;
        }
        Ok(())
    }

    /// Sends results down until nobody makes any.
    ///
    /// # Errors
    ///
    /// Why the link is of no use any more.
    pub(super) async fn send_down(mut self, from: ResultReceiver<Data>) -> Result<(), String> {
        while let Some(data) = from.next().await {
            self.send(Stream::AllRanks, data).await?;
            while let Some(data) = from.try_next() {
                self.send(Stream::AllRanks, data).await?;
            }
            self.flush().await?;
        }
        Ok(())
    }
}

//! A link for data: a connection, or a pair of channels inside one process.

use super::queue::{ResultReceiver, ResultSender, result_queue};
use crate::limits;
use async_channel::{Receiver, Sender};
use core::convert::Infallible;
use flodl_cpureduce::Rooms;
use flodl_wire::Incarnation;
use flodl_wire::frame::Stream;
use flodl_wire::io::{FrameReader, FrameWriter, Link};
use flodl_wire::message::Data;
use futures_lite::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};

/// How data travels between a relay and the root, seen from either end.
pub enum DataLink<S> {
    /// The relay's end inside one process: neither encoded nor sealed, and carried by nobody.
    Relay(RelayEnd),
    /// The root's end of the same.
    Root(RootEnd),
    /// A connection of its own, so that bulk data never delays control.
    Sealed(Box<Link<S>>),
}

/// The relay's end of a link inside one process: its fold sends into it, its results wait there.
pub struct RelayEnd {
    pub(super) up: Sender<Data>,
    pub(super) down: ResultReceiver<Data>,
    /// Memory of sums, which comes back from the root.
    pub(super) rooms: Rooms,
    /// Closes with this end.
    here: Sender<Infallible>,
}

/// The root's end: what comes up goes straight to its thread.
pub struct RootEnd {
    pub(super) up: Receiver<Data>,
    pub(super) down: ResultSender<Data>,
    pub(super) rooms: Rooms,
    /// Closes when the relay's end is gone.
    pub(super) gone: Receiver<Infallible>,
}

/// Both ends of a data link inside one process: the relay's and the root's. The way up holds [`limits::LOCAL_CHUNKS`], the
/// way down a whole result.
#[must_use]
pub fn local_data_link<R, S>() -> (DataLink<R>, DataLink<S>) {
    let (up, from_relay) = async_channel::bounded(limits::LOCAL_CHUNKS);
    let (results, down) = result_queue();
    let (here, gone) = async_channel::bounded(1);
    let rooms = Rooms::default();
    let root = RootEnd { up: from_relay, down: results, rooms: rooms.clone(), gone };
    (DataLink::Relay(RelayEnd { up, down, rooms, here }), DataLink::Root(root))
}

/// The receiving direction of a data link.
pub(super) enum DataReader<S> {
    Local {
        down: ResultReceiver<Data>,
        _here: Sender<Infallible>,
    },
    Sealed(Box<FrameReader<ReadHalf<S>>>),
    /// An end that reads nothing.
    None,
}

/// The sending direction of a data link between processes.
pub(super) struct DataWriter<S>(Box<FrameWriter<WriteHalf<S>>>);

impl<S: AsyncRead + AsyncWrite + Unpin> DataLink<S> {
    /// A relay's two directions. Inside one process nobody has to write: the fold has the other end of the way up.
    pub(super) fn split(self) -> (DataReader<S>, Option<DataWriter<S>>) {
        match self {
            DataLink::Relay(RelayEnd { down, here, .. }) => (DataReader::Local { down, _here: here }, None),
            DataLink::Root(RootEnd { .. }) => (DataReader::None, None),
            DataLink::Sealed(link) => {
                let (reader, writer) = link.split();
                (DataReader::Sealed(Box::new(reader)), Some(DataWriter(Box::new(writer))))
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
            DataReader::Local { down, .. } => down.next().await.ok_or_else(|| "the other end is gone".to_owned()),
            DataReader::None => Err("it is the root's own end".to_owned()),
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
        self.0.send_data(stream, Incarnation(0), &data).await.map_err(|error| error.to_string())
    }

    async fn flush(&mut self) -> Result<(), String> {
        self.0.flush().await.map_err(|error| error.to_string())
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

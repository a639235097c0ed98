//! The relay's link to its controller and the root: the tasks that carry it, and its replacement when it breaks.

use super::link::{DataReader, DataWriter};
use super::wires::write_control;
use super::{Redial, Upstream};
use crate::limits;
use crate::relay::Input;
use async_channel::{Receiver, Sender};
use flodl_wire::SessionId;
use flodl_wire::frame::Frame;
use flodl_wire::io::{FrameReader, SendError};
use flodl_wire::message::Data;
use flodl_wire::message::data::Chunk;
use futures_lite::future;
use futures_lite::io::{AsyncRead, AsyncWrite, ReadHalf};
use smol::{Executor, Task, Timer};

/// The link as the relay's task holds it. Nothing comes from it once it is dropped, not even what had come before.
pub(super) struct Uplink {
    up: Sender<Frame>,
    heard: Receiver<Input>,
    farewell: Task<Result<(), SendError>>,
    tasks: Vec<Task<()>>,
}

impl Uplink {
    /// Carries frames and sums up, and frames and results down.
    pub(super) fn start<S>(executor: &Executor<'static>, upstream: Upstream<S>, sums: Receiver<Data>) -> Uplink
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (reader, writer) = upstream.control.split();
        let (data_reader, data_writer) = upstream.data.split();
        let (up, frames) = async_channel::bounded(limits::CONTROL_FRAMES);
        let (inputs, heard) = async_channel::bounded(limits::EVENTS);
        let mut tasks = vec![
            executor.spawn(read_upstream(reader, inputs.clone())),
            executor.spawn(read_results(data_reader, inputs.clone())),
        ];
        tasks.extend(data_writer.map(|writer| executor.spawn(send_sums(writer, sums, inputs))));
        Uplink { up, heard, farewell: executor.spawn(write_control(writer, frames)), tasks }
    }

    /// No link: sums of a round that goes on without this host are of no use, and must not hold up its fold.
    pub(super) fn none(executor: &Executor<'static>, sums: Receiver<Data>) -> Uplink {
        let ((up, _), (_, heard)) = (async_channel::bounded(1), async_channel::bounded(1));
        let discard = async move { while sums.recv().await.is_ok() {} };
        Uplink { up, heard, farewell: executor.spawn(future::ready(Ok(()))), tasks: vec![executor.spawn(discard)] }
    }

    /// What comes down next, or that the link is lost. Waits for ever where there is none.
    pub(super) async fn next(&self) -> Input {
        match self.heard.recv().await {
            Ok(input) => input,
            Err(_) => future::pending().await,
        }
    }

    /// Queues a frame; false where the controller does not take what it is sent.
    pub(super) fn send(&self, frame: Frame) -> bool {
        self.up.try_send(frame).is_ok()
    }

    /// Writes what is queued, then closes the link.
    pub(super) async fn finish(self) {
        let Uplink { up, farewell, tasks, .. } = self;
        drop(up);
        // The controller may be gone; then nobody misses the last words.
        match super::clock::within(limits::FAREWELL, farewell).await {
            Some(Ok(())) | Some(Err(_)) | None => {}
        }
        drop(tasks);
    }
}

/// By which session a relay dialled again, and what came of it.
pub(super) type Redialled<S> = (SessionId, Result<Upstream<S>, String>);

/// Dials again, and hands over what came of it.
pub(super) async fn redial<S>(redial: Redial<S>, session: SessionId, to: Sender<Redialled<S>>) {
    // The relay's task may have ended in the meantime.
    match to.send((session, redial(session).await)).await {
        Ok(()) | Err(_) => {}
    }
}

/// The same, a little later: whoever answered just now is not to be asked again at once.
pub(super) async fn redial_later<S>(redial: Redial<S>, session: SessionId, to: Sender<Redialled<S>>) {
    Timer::after(limits::DIAL_PAUSE).await;
    self::redial(redial, session, to).await;
}

/// Sends chunks on the way that sums go.
pub(super) async fn offer(chunks: Vec<Chunk>, to: Sender<Data>) {
    for chunk in chunks {
        if to.send(Data::Contribution(chunk)).await.is_err() {
            return;
        }
    }
}

/// The relay's task may have ended before it hears of this.
async fn lost(inputs: &Sender<Input>, why: String) {
    match inputs.send(Input::UpstreamLost { why }).await {
        Ok(()) | Err(_) => {}
    }
}

async fn read_upstream<S: AsyncRead + Unpin>(mut reader: FrameReader<ReadHalf<S>>, inputs: Sender<Input>) {
    let why = loop {
        match reader.next().await {
            Ok(Some(frame)) => {
                if inputs.send(Input::Upstream(frame)).await.is_err() {
                    return;
                }
            }
            Ok(None) => break "it closed the connection without saying that the run is over".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    lost(&inputs, why).await;
}

async fn send_sums<S>(writer: DataWriter<S>, sums: Receiver<Data>, inputs: Sender<Input>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(why) = writer.send_up(sums).await {
        lost(&inputs, format!("data cannot be sent to the root: {why}")).await;
    }
}

async fn read_results<S: AsyncRead + AsyncWrite + Unpin>(mut reader: DataReader<S>, inputs: Sender<Input>) {
    let why = loop {
        match reader.next().await {
            Ok(data) => {
                if inputs.send(Input::Result(data)).await.is_err() {
                    return;
                }
            }
            Err(why) => break format!("the root's results ended: {why}"),
        }
    };
    lost(&inputs, why).await;
}

//! One authenticated control connection: its reader task and its writer task.

use super::driver::Event;
use super::limits::PARTING;
use async_channel::{Receiver, Sender};
use flodl_wire::io::{FrameReader, FrameWriter};
use flodl_wire::{Frame, SessionId};
use futures_lite::io::{AsyncRead, AsyncWrite};
use smol::{Timer, future};

/// Reads a control connection until it ends or the driver is done with it (`open` closes). Silence is the core's business.
pub(super) async fn read_control<R: AsyncRead + Unpin>(
    session: SessionId,
    reader: &mut FrameReader<R>,
    open: &Receiver<()>,
    events: &Sender<Event>,
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
        closed(open).await;
        None
    };
    if let Some(error) = future::or(dropped, read).await {
        events.send(Event::Closed { session, error }).await.ok();
    }
}

/// Reads on from a connection that the driver is done with, for nothing: a socket that is closed with unread bytes is reset,
/// and a reset takes what was written last from the other side.
pub(super) async fn discard<R: AsyncRead + Unpin>(mut reader: FrameReader<R>) {
    let rest = async { while let Ok(Some(_)) = reader.next().await {} };
    future::or(rest, parting()).await;
}

/// Writes what is queued until the queue's senders are gone, then closes the connection. When the driver is done with it
/// (`open` closes), a relay that takes nothing is not waited for much longer.
pub(super) async fn write_control<W: AsyncWrite + Unpin>(
    session: SessionId,
    mut writer: FrameWriter<W>,
    (queue, open): (Receiver<Frame>, Receiver<()>),
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
    let late = async {
        closed(&open).await;
        parting().await;
        Ok(())
    };
    if let Err(error) = future::or(written, late).await {
        queue.close();
        events.send(Event::Closed { session, error: error.to_string() }).await.ok();
    }
}

/// Waits until nobody holds the sending end.
async fn closed(channel: &Receiver<()>) {
    while channel.recv().await.is_ok() {}
}

async fn parting() {
    Timer::after(PARTING).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use flodl_wire::handshake::{Accept, Admission};
    use flodl_wire::io::{Link, accept, connect, duplex};
    use flodl_wire::message::{Control, HostReport};
    use flodl_wire::secret::{DialKeys, GateKey};
    use flodl_wire::{Capabilities, Channel, Hello, HostId, Incarnation, Role, RunId, Secret, Stream};
    use futures_lite::future::{block_on, zip};

    const SESSION: SessionId = SessionId(1);

    struct Anybody(GateKey, Accept);

    impl Admission for Anybody {
        fn gate_key(&self) -> &GateKey {
            &self.0
        }
        fn decide(&self, _: &Hello) -> Result<Accept, String> {
            Ok(self.1.clone())
        }
        fn patience(&self) -> core::time::Duration {
            core::time::Duration::from_secs(1)
        }
        fn generation(&self) -> u64 {
            1
        }
    }

    /// Both ends of a link over a pipe of so many bytes: the relay's and the controller's.
    fn link(bytes: usize) -> (Link<flodl_wire::io::Duplex>, Link<flodl_wire::io::Duplex>) {
        let secret = Secret::from_bytes([1; 32]);
        let (run_id, host_id) = (RunId([2; 16]), HostId([3; 16]));
        let key = secret.host_key(run_id, host_id);
        let policy = Anybody(secret.gate_key(), Accept { key: key.clone().into(), session: SESSION });
        let (role, channel) = (Role::Relay { rank_count: 1 }, Channel::Control);
        let hello = Hello { role, channel, session: SessionId(0), run_id, host_id, capabilities: Capabilities::NONE };
        let keys = DialKeys { gate: secret.gate_key(), peer: key.into() };
        let (near, far) = duplex(bytes);
        let (dialled, accepted) = block_on(zip(connect(near, hello, keys, [4; 32]), accept(far, &policy, [5; 32])));
        (dialled.expect("is let in"), accepted.expect("comes in").0)
    }

    #[test]
    fn what_was_queued_goes_out_after_the_driver_is_done() {
        let (relay, controller) = link(4096);
        let ((mut reader, _up), (_, writer)) = (relay.split(), controller.split());
        let (queue, queued) = async_channel::bounded(10);
        let (open, opened) = async_channel::bounded(1);
        let (event, events) = async_channel::bounded(10);
        let frame = Frame::control(Stream::Host, Incarnation(0), &Control::Shutdown).expect("fits");
        (0..3).for_each(|_| queue.try_send(frame.clone()).expect("has room"));
        drop((queue, open));
        let read = async {
            let mut got = 0;
            while let Ok(Some(_)) = reader.next().await {
                got += 1;
            }
            got
        };
        let (got, ()) = block_on(zip(read, write_control(SESSION, writer, (queued, opened), event)));
        assert_eq!((got, events.is_empty()), (3, true));
    }

    #[test]
    fn the_end_of_a_connection_is_told_and_a_driver_that_is_done_hears_nothing() {
        for done in [false, true] {
            let (relay, controller) = link(4096);
            let ((_down, mut writer), (mut reader, _)) = (relay.split(), controller.split());
            let (open, opened) = async_channel::bounded(1);
            let (event, events) = async_channel::bounded(10);
            if done {
                drop(open);
                block_on(read_control(SESSION, &mut reader, &opened, &event));
                assert!(events.is_empty());
                continue;
            }
            let report = Frame::host_report(&HostReport::Heartbeat).expect("fits");
            block_on(async {
                writer.send(&report).await.expect("has room");
                writer.close().await.expect("can be closed");
                read_control(SESSION, &mut reader, &opened, &event).await;
            });
            assert!(matches!(events.try_recv(), Ok(Event::Frame { session: SESSION, .. })));
            assert!(matches!(events.try_recv(), Ok(Event::Closed { session: SESSION, .. })));
        }
    }
}

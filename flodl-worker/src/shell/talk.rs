//! What the thread of [`IoThread`](super::link::IoThread) does: both connections, both directions, none waiting for another.

use super::clock::time_since;
use super::dial::Links;
use super::link::Wakeup;
use crate::session::Lost;
use crate::worker::Event;
use async_channel::{Receiver, Sender};
use async_io::{Async, Timer};
use core::time::Duration;
use flodl_wire::frame::{Frame, Stream};
use flodl_wire::io::{FrameReader, FrameWriter};
use flodl_wire::message::{Control, Data, Report};
use flodl_wire::{Incarnation, Rank, Time};
use futures_lite::future;
use futures_lite::io::{ReadHalf, WriteHalf};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A peer that closes makes writing fail before reading has given what it sent last; so long, the readers may go on.
const LAST_WORDS: Duration = Duration::from_secs(1);

const CONTROL: &str = "control";
const DATA: &str = "data";

type Reader = FrameReader<ReadHalf<Async<UnixStream>>>;
type Writer = FrameWriter<WriteHalf<Async<UnixStream>>>;

/// Who speaks, and how often.
#[derive(Copy, Clone, Debug)]
pub(super) struct Voice {
    pub(super) rank: Rank,
    pub(super) incarnation: Incarnation,
    pub(super) patience: Duration,
    pub(super) origin: Instant,
}

/// What both threads look at.
#[derive(Debug)]
pub(super) struct Shared {
    /// When anything last came, in nanoseconds since the origin.
    heard: AtomicU64,
    /// Steps done, for the heartbeat.
    steps: AtomicU64,
}

/// Where events go, and who may sleep where they do not wake it.
pub(super) struct Events {
    pub(super) to: Sender<Event>,
    pub(super) sleeper: Option<Wakeup>,
}

impl Events {
    /// False where the training thread has ended.
    pub(super) async fn send(&self, event: Event) -> bool {
        let sent = self.to.send(event).await.is_ok();
        if let Some(sleeper) = &self.sleeper {
            sleeper.ring();
        }
        sent
    }
}

impl Shared {
    pub(super) fn new(now: Time) -> Shared {
        Shared { heard: AtomicU64::new(now.0), steps: AtomicU64::new(0) }
    }

    pub(super) fn heard(&self) -> Time {
        Time(self.heard.load(Ordering::Relaxed))
    }

    pub(super) fn set_steps(&self, steps: u64) {
        self.steps.store(steps, Ordering::Relaxed);
    }

    fn hear(&self, origin: Instant) {
        self.heard.store(time_since(origin).0, Ordering::Relaxed);
    }
}

/// Reads and writes until all is said and sent (`None`), or until a connection is over.
pub(super) async fn talk(
    links: Links,
    voice: Voice,
    shared: &Shared,
    events: &Events,
    (reports, data): (Receiver<Report>, [Receiver<Data>; 2]),
) -> Option<Lost> {
    let (control_in, control_out) = links.control.split();
    let (data_in, data_out) = links.data.split();
    let read = future::or(
        read(control_in, CONTROL, (shared, voice.origin), events),
        read(data_in, DATA, (shared, voice.origin), events),
    );
    let write = async {
        let reports = write_reports(control_out, voice, shared, reports);
        let written = future::try_zip(reports, write_data(data_out, voice, data)).await;
        let lost = written.err()?;
        Timer::after(LAST_WORDS).await;
        Some(lost)
    };
    future::or(async { Some(read.await) }, write).await
}

fn broken(channel: &'static str, error: impl ToString) -> Lost {
    Lost::Broken { channel, error: error.to_string() }
}

/// Makes events of frames until there are no more.
async fn read(
    mut reader: Reader,
    channel: &'static str,
    (shared, origin): (&Shared, Instant),
    events: &Events,
) -> Lost {
    loop {
        let frame = match reader.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return Lost::Closed { channel },
            Err(error) => return broken(channel, error),
        };
        shared.hear(origin);
        let event =
            if channel == CONTROL { frame.to_control().map(Event::Control) } else { frame.to_data().map(Event::Data) };
        match event {
            Ok(Event::Control(Control::Heartbeat)) => {}
            Ok(event) => {
                // The training thread has ended: writers say when all is sent.
                if !events.send(event).await {
                    return future::pending().await;
                }
            }
            Err(error) => return broken(channel, error),
        }
    }
}

/// Sends reports as they come, and a heartbeat every tenth of the patience.
async fn write_reports(
    mut writer: Writer,
    voice: Voice,
    shared: &Shared,
    reports: Receiver<Report>,
) -> Result<(), Lost> {
    let every = voice.patience / 10;
    let mut beat = Instant::now() + every;
    let mut introduced = false;
    loop {
        let report = async { Some(reports.recv().await) };
        let report = future::or(report, async {
            Timer::at(beat).await;
            None
        });
        let report = match report.await {
            Some(Ok(report)) => report,
            Some(Err(_)) => return writer.close().await.map_err(|error| broken(CONTROL, error)),
            None => {
                beat = Instant::now() + every;
                // Nothing is said before `Ready`, not even that one is alive.
                if !introduced {
                    continue;
                }
                Report::Heartbeat { step: shared.steps.load(Ordering::Relaxed) }
            }
        };
        introduced = true;
        let frame = Frame::report(voice.rank, voice.incarnation, &report).map_err(|error| broken(CONTROL, error))?;
        writer.send(&frame).await.map_err(|error| broken(CONTROL, error))?;
        if reports.is_empty() {
            writer.flush().await.map_err(|error| broken(CONTROL, error))?;
        }
    }
}

/// Sends chunks as they come, on either of two ways that end together.
async fn write_data(mut writer: Writer, voice: Voice, [data, ahead]: [Receiver<Data>; 2]) -> Result<(), Lost> {
    let stream = Stream::Rank(voice.rank);
    loop {
        let next = future::or(async { data.recv().await.ok() }, async { ahead.recv().await.ok() }).await;
        // One has ended: what is left is on the other.
        let rest = || data.try_recv().or_else(|_| ahead.try_recv()).ok();
        let Some(message) = next.or_else(rest) else { break };
        let sent = writer.send_data(stream, voice.incarnation, &message).await;
        sent.map_err(|error| broken(DATA, error))?;
        if data.is_empty() && ahead.is_empty() {
            writer.flush().await.map_err(|error| broken(DATA, error))?;
        }
    }
    writer.close().await.map_err(|error| broken(DATA, error))
}

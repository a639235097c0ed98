//! The monitor's thread: takes every record, keeps the store, writes the timeline, and tells people what they want to know.

use super::console::{Console, PLAIN_EVERY};
use async_channel::Receiver;
use core::time::Duration;
use flodl_monitor::{Store, Timeline, describe, progress};
use flodl_wire::message::Record;
use flodl_wire::message::record::Body;
use smol::{Timer, future};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;
use std::{io, thread};

/// Between two looks at the clock: how old an unwritten record and a refreshed progress line get.
const TICK: Duration = Duration::from_millis(250);

/// Bytes after which a timeline goes on in its next file.
const ROTATE_AT: u64 = 256 * 1024 * 1024;

/// What the monitor knows at the end.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Everything, in figures.
    pub(crate) store: Store,
    /// The timeline's first file.
    pub(crate) timeline: PathBuf,
}

/// Starts the thread. It ends when every sender of `records` is gone.
pub(crate) fn start(records: Receiver<Record>, run_dir: &Path, console: Console) -> io::Result<JoinHandle<Seen>> {
    let timeline = Timeline::in_folder(run_dir, ROTATE_AT);
    let path = timeline.path();
    let sink = Sink { store: Store::new(), timeline, console, shown: Instant::now() };
    thread::Builder::new()
        .name("flodl-monitor".to_owned())
        .spawn(move || Seen { store: sink.run(&records), timeline: path })
}

struct Sink {
    store: Store,
    timeline: Timeline,
    console: Console,
    /// When progress was last shown.
    shown: Instant,
}

impl Sink {
    fn run(mut self, records: &Receiver<Record>) -> Store {
        let mut ticked = Instant::now();
        loop {
            let record = async { Some(records.recv().await) };
            let tick = async {
                Timer::at(ticked + TICK).await;
                None
            };
            match smol::block_on(future::or(record, tick)) {
                Some(Ok(record)) => self.take(&record),
                Some(Err(_)) => break,
                None => {}
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.tick();
            }
        }
        let flushed = self.timeline.flush();
        self.alert(flushed);
        if self.timeline.dropped() > 0 {
            self.console.say(&format!("{} records are missing from the timeline", self.timeline.dropped()));
        }
        self.store
    }

    fn take(&mut self, record: &Record) {
        self.store.take(record);
        let appended = self.timeline.append(record);
        self.alert(appended);
        if let Body::Event(event) = &record.body
            && let Some(text) = describe(event)
        {
            self.console.say(&text);
        }
    }

    fn tick(&mut self) {
        let flushed = self.timeline.flush();
        self.alert(flushed);
        if self.console.refreshes() || self.shown.elapsed() >= PLAIN_EVERY {
            self.shown = Instant::now();
            self.console.progress(&progress::line(&self.store));
        }
    }

    fn alert<E: core::fmt::Display>(&self, written: Result<(), E>) {
        if let Err(error) = written {
            self.console.say(&error.to_string());
        }
    }
}

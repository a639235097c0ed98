//! The monitor's thread: takes every record, keeps the store, writes the timeline, and tells people what they want to know.

use super::console::Console;
use super::hooks::{Evaluated, Hooks};
use super::look::Tone;
use crate::shell::Clock;
use async_channel::Receiver;
use core::time::Duration;
use flodl_monitor::progress::epoch_done;
use flodl_monitor::timeline::Reader;
use flodl_monitor::{Progress, Store, Timeline, describe};
use flodl_wire::message::Record;
use flodl_wire::message::record::{Body, Event, EventKind, Node};
use flodl_wire::{Epoch, Rank, Time};
use smol::{Timer, future};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;
use std::{io, thread};

/// Between two looks at the clock: how old an unwritten record and the bar get.
const TICK: Duration = Duration::from_millis(250);

/// Bytes after which a timeline goes on in its next file.
const ROTATE_AT: u64 = 256 * 1024 * 1024;

/// Between two lines about progress where there is no bar, if no epoch ends.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// The epochs whose ends are told one after the other, however short they are; then one for each [`PLAIN_EVERY`].
const EPOCHS_AT_ONCE: u32 = 20;

/// What the monitor knows at the end.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Everything, in figures.
    pub(crate) store: Store,
    /// The timeline's first file.
    pub(crate) timeline: PathBuf,
}

/// The run that is watched.
#[derive(Debug)]
pub(crate) struct Watched {
    /// What earlier controllers of the run have recorded.
    pub(crate) earlier: Store,
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// The ranks run on this host, and their logs are in that directory.
    pub(crate) is_local: bool,
    /// The coordinator's clock.
    pub(crate) clock: Clock,
}

/// What earlier controllers have recorded in the run directory, and until when. Lines that are no records are passed over.
pub(crate) fn earlier(dir: &Path) -> (Store, Time) {
    let (mut store, mut until) = (Store::new(), Time::ZERO);
    // Where there is no timeline nothing of it is lost.
    for record in Reader::open(dir).into_iter().flatten().flatten() {
        until = until.max(record.at);
        store.take(&record);
    }
    (store, until)
}

/// Starts the thread. It ends when every sender of `records` is gone.
pub(crate) fn start(
    records: Receiver<Record>,
    mut run: Watched,
    (console, hooks): (Console, Hooks),
) -> io::Result<JoinHandle<Seen>> {
    let timeline = Timeline::in_folder(&run.dir, ROTATE_AT);
    let path = timeline.path();
    let pace = Pace::from(run.clock.now());
    let sink = Sink { store: std::mem::take(&mut run.earlier), timeline, console, run, pace, hooks };
    thread::Builder::new()
        .name("flodl-monitor".to_owned())
        .spawn(move || Seen { store: sink.run(&records), timeline: path })
}

struct Sink {
    store: Store,
    timeline: Timeline,
    console: Console,
    run: Watched,
    pace: Pace,
    hooks: Hooks,
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
            let text = format!("{} records are missing from the timeline", self.timeline.dropped());
            self.console.tell(Tone::Warning, &text);
        }
        self.store
    }

    fn take(&mut self, record: &Record) {
        self.store.take(record);
        let appended = self.timeline.append(record);
        self.alert(appended);
        if let Body::Event(event) = &record.body {
            self.tell(event);
        }
        let heard = self.let_hear(&record.body);
        self.alert(heard);
    }

    /// Tells the program's own code.
    fn let_hear(&mut self, body: &Body) -> Result<(), String> {
        match body {
            Body::Node(Node::Epoch(metrics)) => self.hooks.epoch(metrics),
            Body::Event(event) => match event.kind {
                EventKind::Evaluated { rank, result: Some(evaluation), version: Some(version) } => {
                    self.hooks.evaluated(&Evaluated { version, rank, evaluation })
                }
                _ => Ok(()),
            },
            Body::Meta(_) | Body::Node(_) => Ok(()),
        }
    }

    fn tell(&mut self, event: &Event) {
        if let EventKind::EpochDone { epoch } = event.kind {
            self.epoch_done(epoch);
        } else if let Some(told) = describe(event) {
            let more = self.where_its_output_is(&event.kind).unwrap_or_default();
            self.console.tell(tone(&event.kind), &format!("{told}{more}"));
        }
    }

    fn epoch_done(&mut self, epoch: Epoch) {
        let is_last = self.store.meta().is_some_and(|meta| epoch.0.saturating_add(1) >= meta.epochs);
        let may = self.pace.epoch(self.run.clock.now());
        if let Some(told) = epoch_done(&self.store, epoch).filter(|_| may || is_last) {
            self.console.say(&told);
        }
    }

    /// Where to look for what a rank has written.
    fn where_its_output_is(&self, kind: &EventKind) -> Option<String> {
        match kind {
            EventKind::HostJoined { .. } if !self.run.is_local => {
                Some("; what they write is shown and logged on that host".to_owned())
            }
            EventKind::Death { rank, .. } => Some(format!("; its log: {}", self.log_of(*rank)?)),
            _ => None,
        }
    }

    fn log_of(&self, rank: Rank) -> Option<String> {
        let name = format!("rank{}.log", rank.0);
        if self.run.is_local {
            return Some(self.run.dir.join(name).display().to_string());
        }
        let host = self.store.ranks().find(|(known, _)| *known == rank)?.1.host?;
        Some(format!("{name} in the folder of `flodl join` on host {}", host.name()))
    }

    fn tick(&mut self) {
        let flushed = self.timeline.flush();
        self.alert(flushed);
        let look = self.console.look();
        let now = self.run.clock.now();
        if look.bar {
            self.console.progress(Progress::of(&self.store, now));
        } else if !look.quiet && self.pace.is_due(now) {
            self.console.say(&Progress::of(&self.store, now).line());
        }
    }

    fn alert<E: core::fmt::Display>(&self, written: Result<(), E>) {
        if let Err(error) = written {
            self.console.tell(Tone::Warning, &error.to_string());
        }
    }
}

/// How urgent an event is that people are told of.
fn tone(kind: &EventKind) -> Tone {
    match kind {
        EventKind::HostLost { .. }
        | EventKind::RankRefused { .. }
        | EventKind::Death { .. }
        | EventKind::Stall
        | EventKind::RoundCommitted { digests_equal: false, .. }
        | EventKind::ReplicaDigest { equal: false, .. }
        | EventKind::RunEnded { exit: 1 } => Tone::Bad,
        EventKind::RoundCommitted { .. }
        | EventKind::RoundEmpty { .. }
        | EventKind::Alert
        | EventKind::Quarantined { .. }
        | EventKind::Evaluated { result: None, .. }
        | EventKind::Checkpoint { path: None, .. }
        | EventKind::RunEnded { .. } => Tone::Warning,
        _ => Tone::Plain,
    }
}

/// When a line about progress is due where there is no bar, and how many ends of epochs are told.
#[derive(Debug)]
struct Pace {
    /// Of the last line.
    last: Time,
    /// Ends of epochs that may be told at once.
    epochs: u32,
    /// Up to when `epochs` has grown.
    grown: Time,
}

impl Pace {
    fn from(now: Time) -> Pace {
        Pace { last: now, epochs: EPOCHS_AT_ONCE, grown: now }
    }

    /// Whether a line is due; then it is taken for written.
    fn is_due(&mut self, now: Time) -> bool {
        let due = now.since(self.last) >= PLAIN_EVERY;
        if due {
            self.last = now;
        }
        due
    }

    /// Whether an epoch that ends may be told, which counts as a line.
    fn epoch(&mut self, now: Time) -> bool {
        while self.epochs < EPOCHS_AT_ONCE && now.since(self.grown) >= PLAIN_EVERY {
            self.epochs += 1;
            self.grown = self.grown.plus(PLAIN_EVERY);
        }
        if self.epochs == EPOCHS_AT_ONCE {
            self.grown = now;
        }
        let may = self.epochs > 0;
        if may {
            self.epochs -= 1;
            self.last = now;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_every_ten_seconds_and_with_epochs_but_not_with_all_of_them() {
        let at = |seconds: u64| Time::ZERO.plus(Duration::from_secs(seconds));
        let mut pace = Pace::from(at(5));
        let due: Vec<u64> = (5..40).filter(|&second| pace.is_due(at(second))).collect();
        assert_eq!(due, [15, 25, 35]);
        assert!(pace.epoch(at(42)));
        let due: Vec<u64> = (43..60).filter(|&second| pace.is_due(at(second))).collect();
        assert_eq!(due, [52], "ten seconds after the epoch");

        let mut pace = Pace::from(at(0));
        let told = |pace: &mut Pace, second| (0..1000).filter(|_| pace.epoch(at(second))).count();
        assert_eq!(told(&mut pace, 1), 20);
        assert_eq!(told(&mut pace, 2), 0);
        assert_eq!(told(&mut pace, 11), 1);
        assert_eq!(told(&mut pace, 41), 3);
        assert_eq!(told(&mut pace, 1000), 20);
    }
}

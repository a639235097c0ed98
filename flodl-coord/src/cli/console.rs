//! What people see while a run goes on, on standard error: lines, and on a terminal a bar below them.
//!
//! One thread writes, so that lines of several threads do not mix and the bar is never torn, and so that nobody else waits for
//! a terminal that does not take what it is sent. What waits is limited: where the terminal is slower than the lines come,
//! those of ranks are left out first, and counted.

use super::look::{Look, Said, Tone};
use super::painter::Painter;
use core::fmt;
use core::time::Duration;
use flodl_monitor::Progress;
use flodl_relay::agent::{RankSink, Sink};
use flodl_wire::Rank;
use rustix::termios::tcgetwinsize;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Lines that may wait before those of ranks are left out.
const RANK_LINES: usize = 1_000;
/// Lines that may wait before any are left out.
const LINES: usize = 5_000;
/// How long a terminal may take for what waits, when somebody wants to see it out.
const LAST_LINES_WITHIN: Duration = Duration::from_secs(2);
/// The columns of a terminal that does not say how many it has.
const COLUMNS: usize = 80;

/// Standard error, shared by everybody who has a line for it.
#[derive(Clone, Debug)]
pub(crate) struct Console {
    look: Look,
    desk: Arc<Desk>,
}

/// What goes from those who have something to say to the one who writes.
#[derive(Debug, Default)]
struct Desk {
    waiting: Mutex<Waiting>,
    more: Condvar,
    done: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Said>,
    /// What the bar is to show; `None`: no bar.
    bar: Option<Progress>,
    /// Whether that has changed since it was painted.
    bar_changed: bool,
    /// Lines of ranks that found no room.
    left_out: BTreeMap<Rank, u64>,
    /// The writer is at it.
    writing: bool,
}

impl Desk {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.left_out.is_empty() && !self.bar_changed
    }

    fn put(&mut self, said: Said) {
        match said {
            Said::Rank(rank, _) if self.lines.len() >= RANK_LINES => {
                let count = self.left_out.entry(rank).or_default();
                *count = count.saturating_add(1);
            }
            // Nobody reads so many lines of what is going wrong; the timeline has them.
            Said::Own(..) if self.lines.len() >= LINES => {}
            said => self.lines.push_back(said),
        }
    }

    /// All lines, with the counts of those that are missing behind them.
    fn take(&mut self) -> Vec<Said> {
        let mut lines: Vec<Said> = self.lines.drain(..).collect();
        let told = |(rank, count)| {
            Said::Rank(rank, format!("({count} lines left out here, the terminal is too slow; its log has them)"))
        };
        lines.extend(std::mem::take(&mut self.left_out).into_iter().map(told));
        lines
    }
}

impl Console {
    /// The process's standard error.
    pub(crate) fn stderr(look: Look) -> io::Result<Console> {
        let desk = Arc::new(Desk::default());
        let writer = Arc::clone(&desk);
        thread::Builder::new().name("flodl-console".to_owned()).spawn(move || write(&writer, look))?;
        Ok(Console { look, desk })
    }

    /// How it looks.
    pub(crate) fn look(&self) -> Look {
        self.look
    }

    /// A line of flodl itself, told apart from those of ranks.
    pub(crate) fn say(&self, text: &str) {
        self.put(Said::Own(Tone::Plain, text.to_owned()));
    }

    /// The same, in the tone that it needs.
    pub(crate) fn tell(&self, tone: Tone, text: &str) {
        self.put(Said::Own(tone, text.to_owned()));
    }

    /// Shows on the bar where the run is. Where there is no bar, nothing.
    pub(crate) fn progress(&self, progress: Progress) {
        if self.look.bar {
            self.bar(Some(progress));
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar(None);
        self.settle();
    }

    /// Waits until everything is written, but not forever.
    pub(crate) fn settle(&self) {
        let waiting = self.desk.waiting();
        let busy = |waiting: &mut Waiting| waiting.writing || !waiting.is_idle();
        drop(self.desk.done.wait_timeout_while(waiting, LAST_LINES_WITHIN, busy));
    }

    /// A sink for what a relay has to complain of.
    pub(crate) fn sink(&self) -> Sink {
        let console = self.clone();
        Arc::new(move |text| console.tell(Tone::Warning, text))
    }

    /// A sink for the lines of ranks.
    pub(crate) fn rank_sink(&self) -> RankSink {
        let console = self.clone();
        Arc::new(move |rank, text| console.put(Said::Rank(rank, text.to_owned())))
    }

    fn put(&self, said: Said) {
        if self.look.quiet && matches!(said, Said::Own(Tone::Plain, _)) {
            return;
        }
        self.desk.waiting().put(said);
        self.desk.more.notify_one();
    }

    fn bar(&self, progress: Option<Progress>) {
        let mut waiting = self.desk.waiting();
        if waiting.bar.is_some() || progress.is_some() {
            waiting.bar = progress;
            waiting.bar_changed = true;
            self.desk.more.notify_one();
        }
    }
}

/// A console that is left tidy, however the command ends.
pub(crate) struct Tidy<'a>(pub(crate) &'a Console);

impl Drop for Tidy<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl fmt::Debug for Tidy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tidy")
    }
}

/// The writer's whole life, which is the process's.
fn write(desk: &Desk, look: Look) {
    let mut painter = Painter::default();
    let mut waiting = desk.waiting();
    loop {
        waiting.writing = false;
        if waiting.is_idle() {
            desk.done.notify_all();
        }
        waiting = desk.more.wait_while(waiting, |waiting| waiting.is_idle()).unwrap_or_else(PoisonError::into_inner);
        let lines = waiting.take();
        let bar = waiting.bar.clone();
        waiting.bar_changed = false;
        waiting.writing = true;
        drop(waiting);

        let lines = lines.iter().map(|said| look.dress(said));
        // One column is left free: a full row would leave the cursor where terminals disagree about what comes next.
        let bar = bar.map(|progress| progress.bar(columns().saturating_sub(1)));
        let text = painter.paint(lines, bar);
        // One write for all of it, so that nothing flickers. A terminal that is gone cannot be told so.
        io::stderr().write_all(text.as_bytes()).ok();
        waiting = desk.waiting();
    }
}

/// The terminal's width now: people resize it.
fn columns() -> usize {
    match tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        Ok(_) | Err(_) => COLUMNS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_limited_and_ranks_give_way_first() {
        let mut waiting = Waiting::default();
        (0..RANK_LINES + 7).for_each(|_| waiting.put(Said::Rank(Rank(3), "x".to_owned())));
        waiting.put(Said::Own(Tone::Bad, "rank 1 died".to_owned()));
        assert_eq!((waiting.lines.len(), waiting.left_out[&Rank(3)]), (RANK_LINES + 1, 7));
        (0..2 * LINES).for_each(|_| waiting.put(Said::Own(Tone::Plain, "y".to_owned())));
        let lines = waiting.take();
        assert_eq!(lines.len(), LINES + 1);
        let Some(Said::Rank(Rank(3), last)) = lines.last() else { panic!("{:?}", lines.last()) };
        assert!(last.contains("7 lines left out"), "{last}");
        assert!(waiting.is_idle());
    }
}

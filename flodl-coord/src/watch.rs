//! Notices that nothing moves, and when to give a sign of life.

use crate::Deadlines;
use core::time::Duration;
use flodl_wire::Time;
use flodl_wire::message::record::Reason;

/// The stall watchdog and the heartbeat's clock. What it reports is the reason that the phase itself gave for holding.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    moved: Time,
    reported: Time,
    beaten: Time,
    silence: Duration,
    beat_every: Duration,
    last_brought_itself_down: bool,
}

impl Watch {
    pub(crate) fn new(now: Time, deadlines: Deadlines) -> Watch {
        let Deadlines { silence, heartbeat: beat_every, .. } = deadlines;
        Watch { moved: now, reported: now, beaten: now, silence, beat_every, last_brought_itself_down: false }
    }

    /// Something moved.
    pub(crate) fn moved(&mut self, now: Time) {
        self.moved = now;
        self.reported = now;
    }

    /// Whether nothing moved for a silence, and [`Watch::stall`] has something to report.
    pub(crate) fn is_still(&self, now: Time) -> bool {
        now >= self.reported.plus(self.silence)
    }

    /// The reason to report, where nothing moved for a silence (and once more for each further one).
    pub(crate) fn stall(&mut self, now: Time, hold: Reason) -> Option<Reason> {
        if !self.is_still(now) {
            return None;
        }
        self.reported = now;
        let still = now.since(self.moved);
        let text = format!("nothing has moved for {:.1} s: {}", still.as_secs_f64(), hold.text);
        Some(Reason { text, ..hold }.with("still_s", still.as_secs_f64()))
    }

    /// Whether a heartbeat is due.
    pub(crate) fn beat(&mut self, now: Time) -> bool {
        let due = now >= self.beaten.plus(self.beat_every);
        if due {
            self.beaten = now;
        }
        due
    }

    /// When something here is due next.
    pub(crate) fn next(&self) -> Time {
        self.beaten.plus(self.beat_every).min(self.reported.plus(self.silence))
    }

    /// Remembers how the latest loss came about: it decides the exit status where it was the last one.
    pub(crate) fn last_loss(&mut self, brought_itself_down: bool) {
        self.last_brought_itself_down = brought_itself_down;
    }

    pub(crate) fn last_brought_itself_down(&self) -> bool {
        self.last_brought_itself_down
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn watch() -> Watch {
        Watch::new(Time::ZERO, Deadlines::from_patience(Duration::from_secs(10)))
    }

    #[test]
    fn a_stall_is_reported_once_a_silence_with_the_reason_given() {
        let mut watch = watch();
        let hold = || Reason::new("training", "waiting for the window of rank 3");
        assert_eq!(watch.stall(Time(9 * SECOND), hold()), None);
        let stall = watch.stall(Time(10 * SECOND), hold()).expect("a stall");
        assert_eq!(stall.code, "training");
        assert_eq!(stall.text, "nothing has moved for 10.0 s: waiting for the window of rank 3");
        assert_eq!(watch.stall(Time(11 * SECOND), hold()), None);
        assert!(watch.stall(Time(20 * SECOND), hold()).is_some());
        watch.moved(Time(21 * SECOND));
        assert_eq!(watch.stall(Time(30 * SECOND), hold()), None);
    }

    #[test]
    fn heartbeats_are_due_at_their_interval() {
        let mut watch = watch();
        assert!(!watch.beat(Time(SECOND - 1)));
        assert!(watch.beat(Time(SECOND)));
        assert!(!watch.beat(Time(SECOND + 1)));
        assert_eq!(watch.next(), Time(2 * SECOND));
    }
}

//! The pace of an emulated device.

use core::time::Duration;
use flodl_wire::message::join::Emulation;
use std::collections::VecDeque;

/// Steps whose median is the step of this device.
const RECENT: usize = 15;

/// How long steps last on a slower device than this one.
///
/// A slower device has its own steady speed. What merely disturbs a step here (a core that another rank holds for a moment)
/// would disturb it there just as long, and not so many times longer. So what is stretched is the step without the time
/// that it waited for a core, the median of the last 15, and no step is shorter than it really was.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    recent: VecDeque<Duration>,
}

impl Pace {
    /// How long a step lasts that took so long here, of which it `waited` for a core.
    pub(super) fn step(&mut self, took: Duration, waited: Duration, emulation: &Emulation) -> Duration {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(took.saturating_sub(waited));
        let mut sorted: Vec<Duration> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        // The lower of two in the middle: after two steps, of which the first is the odd one, the second counts.
        let typical = sorted[(sorted.len() - 1) / 2];
        took.max(emulation.stretch(typical))
    }
}

/// How long the calling thread has waited for a core since it began, as Linux counts it; 0 where that is not known.
pub(crate) fn waited_for_core() -> Duration {
    std::fs::read_to_string("/proc/thread-self/schedstat").map_or(Duration::ZERO, |text| run_delay(&text))
}

/// The second of the three numbers: time on a core, time waiting for one, both in ns, and slices.
fn run_delay(schedstat: &str) -> Duration {
    let number = schedstat.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok());
    Duration::from_nanos(number.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn steps_are_stretched_from_their_least_length() {
        for (took, at_least, slowdown, expect) in
            [(2, 8, 1.0, 8), (10, 8, 1.0, 10), (2, 8, 2.5, 20), (10, 8, 4.0, 40), (10, 0, 0.5, 10), (3, 0, f64::NAN, 3)]
        {
            let emulation = Emulation { step_at_least: ms(at_least), slowdown };
            assert_eq!(
                Pace::default().step(ms(took), Duration::ZERO, &emulation),
                ms(expect),
                "{took} {at_least} {slowdown}"
            );
        }
        let endless = Emulation { step_at_least: Duration::MAX, slowdown: 2.0 };
        assert_eq!(Pace::default().step(ms(1), Duration::ZERO, &endless), Duration::MAX);
    }

    #[test]
    fn a_disturbed_step_is_not_stretched_and_a_new_speed_is_followed() {
        let emulation = Emulation { step_at_least: Duration::ZERO, slowdown: 4.0 };
        let mut pace = Pace::default();
        let mut steps = |tooks: &[u64]| -> Vec<u64> {
            tooks.iter().map(|&took| pace.step(ms(took), Duration::ZERO, &emulation).as_millis() as u64).collect()
        };
        assert_eq!(steps(&[30, 10, 10, 10]), [120, 40, 40, 40], "the first step is only known afterwards to be odd");
        assert_eq!(steps(&[25, 10, 90, 10]), [40, 40, 90, 40]);
        assert_eq!(steps(&[20; 15]).last(), Some(&80));
    }

    #[test]
    fn time_without_a_core_is_not_stretched() {
        let emulation = Emulation { step_at_least: Duration::ZERO, slowdown: 4.0 };
        let mut pace = Pace::default();
        assert_eq!(pace.step(ms(30), ms(20), &emulation), ms(40));
        assert_eq!(pace.step(ms(90), ms(80), &emulation), ms(90));
        assert_eq!(Pace::default().step(ms(5), ms(6), &emulation), ms(5), "clocks of two kinds may disagree");
    }

    #[test]
    fn the_wait_for_a_core_is_read_from_the_second_number() {
        for (text, expect) in [("120 5000000 7\n", 5), ("", 0), ("1", 0), ("1 x 2", 0)] {
            assert_eq!(run_delay(text), ms(expect), "{text:?}");
        }
        assert!(waited_for_core() < ms(3_600_000));
    }
}

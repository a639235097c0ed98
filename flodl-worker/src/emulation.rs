//! The pace of an emulated device.

use core::time::Duration;
use flodl_wire::message::join::Emulation;
use std::collections::VecDeque;

/// Steps whose median is the step of this device.
const RECENT: usize = 15;

/// How long steps last on a slower device than this one.
///
/// A slower device has its own steady speed. What merely disturbs a step here (a core that another rank holds for a moment)
/// would disturb it there just as long, and not so many times longer: so it is this device's typical step that is
/// stretched, the median of the last 15, and no step is shorter than it really was.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    recent: VecDeque<Duration>,
}

impl Pace {
    /// How long a step lasts that took so long here: `max(took, max(typical, step_at_least) * slowdown)`. A slowdown that is no
    /// number or below 1 counts as 1.
    pub fn step(&mut self, took: Duration, emulation: &Emulation) -> Duration {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(took);
        let mut sorted: Vec<Duration> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        // The lower of two in the middle: after two steps, of which the first is the odd one, the second counts.
        let typical = sorted[(sorted.len() - 1) / 2];
        let factor = if emulation.slowdown.is_finite() { emulation.slowdown.max(1.0) } else { 1.0 };
        let stretched = typical.max(emulation.step_at_least).as_secs_f64() * factor;
        took.max(Duration::try_from_secs_f64(stretched).unwrap_or(Duration::MAX))
    }
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
            assert_eq!(Pace::default().step(ms(took), &emulation), ms(expect), "{took} {at_least} {slowdown}");
        }
        let endless = Emulation { step_at_least: Duration::MAX, slowdown: 2.0 };
        assert_eq!(Pace::default().step(ms(1), &endless), Duration::MAX);
    }

    #[test]
    fn a_disturbed_step_is_not_stretched_and_a_new_speed_is_followed() {
        let emulation = Emulation { step_at_least: Duration::ZERO, slowdown: 4.0 };
        let mut pace = Pace::default();
        let mut steps = |tooks: &[u64]| -> Vec<u64> {
            tooks.iter().map(|&took| pace.step(ms(took), &emulation).as_millis() as u64).collect()
        };
        assert_eq!(steps(&[30, 10, 10, 10]), [120, 40, 40, 40], "the first step is only known afterwards to be odd");
        assert_eq!(steps(&[25, 10, 90, 10]), [40, 40, 90, 40]);
        assert_eq!(steps(&[20; 15]).last(), Some(&80));
    }
}

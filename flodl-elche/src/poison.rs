//! Which ranges keep coming back from holders that failed on their own account.
//!
//! One failure says little: the range was only there. A range given back twice for such a reason is leased alone from
//! then on, half of it at a time, so the halves that are fine get trained and the one that is not shrinks; when it comes
//! back as a single batch it is set aside.

use std::collections::BTreeMap;

use crate::span::Span;
use crate::spanset::SpanSet;

/// After so many faults a range is leased alone and halved.
const HALVED_FROM: u8 = 2;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Run {
    end: u64,
    faults: u8,
}

/// Runs of positions that came back after a fault, keyed by their start; disjoint. A run is the unit that is halved, so
/// runs that touch are never joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Suspects {
    runs: BTreeMap<u64, Run>,
}

impl Suspects {
    /// Counts a fault against every position of `span`; returns the parts to be set aside for good.
    pub(crate) fn blame(&mut self, span: Span, batch_size: u64) -> Vec<Span> {
        self.split(span.start);
        self.split(span.end);
        let mut condemned = Vec::new();
        let mut at = span.start;
        let inside: Vec<(u64, Run)> =
            self.runs.range(span.start..span.end).map(|(&start, &run)| (start, run)).collect();
        for (start, run) in inside {
            self.first_fault(Span::new(at, start));
            at = run.end;
            if run.faults >= HALVED_FROM && run.end - start <= batch_size {
                self.runs.remove(&start);
                condemned.push(Span::new(start, run.end));
            } else {
                self.runs.insert(start, Run { faults: run.faults.saturating_add(1), ..run });
            }
        }
        self.first_fault(Span::new(at, span.end));
        condemned
    }

    /// Forgets what is known about `span`: it was trained and committed.
    pub(crate) fn clear(&mut self, span: Span) {
        self.split(span.start);
        self.split(span.end);
        let inside: Vec<u64> = self.runs.range(span.start..span.end.max(span.start)).map(|(&start, _)| start).collect();
        for start in inside {
            self.runs.remove(&start);
        }
    }

    /// The half that is to be leased alone next, if a range with repeated faults is among `returned`.
    pub(crate) fn next_half(&mut self, returned: &SpanSet, batch_size: u64) -> Option<Span> {
        let common = self
            .runs
            .iter()
            .filter(|(_, run)| run.faults >= HALVED_FROM)
            .map(|(&start, run)| returned.first_common(Span::new(start, run.end)))
            .find(|common| !common.is_empty())?;
        let batches = common.len().div_ceil(batch_size);
        let half = Span::new(common.start, common.end.min(common.start + batches.div_ceil(2) * batch_size));
        self.split(half.start);
        self.split(half.end);
        Some(half)
    }

    fn first_fault(&mut self, span: Span) {
        if !span.is_empty() {
            self.runs.insert(span.start, Run { end: span.end, faults: 1 });
        }
    }

    /// Cuts the run that holds `at` strictly inside in two.
    fn split(&mut self, at: u64) {
        if let Some((_, run)) = self.runs.range_mut(..at).next_back()
            && run.end > at
        {
            let right = *run;
            run.end = at;
            self.runs.insert(at, right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bad_batch_is_cornered_by_halving() {
        let mut suspects = Suspects::default();
        let mut returned = SpanSet::default();
        let whole = Span::new(0, 80);
        returned.insert(whole);
        assert!(suspects.blame(whole, 10).is_empty());
        assert_eq!(suspects.next_half(&returned, 10), None, "one fault is not yet a pattern");
        assert!(suspects.blame(whole, 10).is_empty());
        // Position 55 brings its holder down each time; everything else is fine.
        let mut leases = Vec::new();
        let condemned = loop {
            let half = suspects.next_half(&returned, 10).expect("a suspect is left");
            leases.push(half.len());
            if half.positions().any(|p| p == 55) {
                let condemned = suspects.blame(half, 10);
                if !condemned.is_empty() {
                    break condemned;
                }
            } else {
                suspects.clear(half);
                returned.remove(half);
            }
        };
        assert_eq!(condemned, [Span::new(50, 60)]);
        assert!(leases.len() < 8, "{leases:?}");
    }

    #[test]
    fn faults_of_overlapping_ranges_are_counted_apart() {
        let mut suspects = Suspects::default();
        let mut returned = SpanSet::default();
        returned.insert(Span::new(0, 30));
        suspects.blame(Span::new(0, 20), 10);
        suspects.blame(Span::new(10, 30), 10);
        assert_eq!(suspects.next_half(&returned, 10), Some(Span::new(10, 20)));
        suspects.clear(Span::new(10, 20));
        assert_eq!(suspects.next_half(&returned, 10), None);
    }
}

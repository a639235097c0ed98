//! Properties: no order of messages loses a position, and none panics.

use super::*;
use proptest::prelude::*;

/// What a coordinator may do next.
#[derive(Clone, Debug)]
enum Move {
    /// A window of a lease that long, in so many pieces, extended by that much at a batch, cut short by a request at another.
    Window { len: u64, pieces: u64, extend: Option<(usize, u64)>, cut: Option<usize>, budget: Option<u64> },
    /// A round, and whether it commits.
    Round { commits: bool, result: bool },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let window = (
        0u64..60,
        1u64..4,
        prop::option::of((0usize..4, 0u64..30)),
        prop::option::of(0usize..4),
        prop::option::of(0u64..60),
    )
        .prop_map(|(len, pieces, extend, cut, budget)| Move::Window { len, pieces, extend, cut, budget });
    let round = (any::<bool>(), any::<bool>()).prop_map(|(commits, result)| Move::Round { commits, result });
    prop::collection::vec(prop_oneof![3 => window, 2 => round], 0..20)
}

/// Plays moves; every round that a cut opened is ended too.
struct Play {
    driver: Driver,
    next: u64,
    window: u64,
    round: u64,
    version: u64,
}

impl Play {
    fn lease(&mut self, len: u64, pieces: u64) -> Vec<Range> {
        let each = len.div_ceil(pieces).max(1);
        let end = (self.next + len).min(EPOCH_LEN);
        let mut leases = Vec::new();
        while self.next < end {
            let to = (self.next + each).min(end);
            leases.insert(0, range(self.next, to));
            self.next = to;
        }
        leases
    }

    fn play(&mut self, step: &Move) {
        match *step {
            Move::Window { len, pieces, extend: more, cut, budget } => {
                self.window += 1;
                let leases = self.lease(len, pieces);
                let start = self.driver.batches;
                if let Some((at, len)) = more {
                    let leases = self.lease(len, 1);
                    self.driver.during_batch.push((start + at, extend(self.window, &leases)));
                }
                if let Some(at) = cut {
                    self.driver.during_batch.push((start + at, request(self.round, Part::Contribute)));
                }
                let budget = budget.map(ms);
                self.driver.order(Control::Window(WindowPlan { budget, ..window(self.window, &leases) }));
                // What came to a batch that was never trained does not come at all.
                let asked = cut.is_some() && !self.driver.during_batch.iter().any(|(_, message)| is_request(message));
                self.driver.during_batch.clear();
                if asked {
                    self.end_round(true);
                }
            }
            Move::Round { commits, result } => {
                self.driver.results = result;
                self.driver.order(request(self.round, Part::Contribute));
                self.driver.results = true;
                self.end_round(commits);
            }
        }
    }

    fn end_round(&mut self, commits: bool) {
        self.version += u64::from(commits);
        self.driver.order(if commits { committed(self.round, self.version) } else { nothing(self.round) });
        self.round += 1;
    }
}

fn is_request(message: &Control) -> bool {
    matches!(message, Control::RequestParams { .. })
}

proptest! {
    #[test]
    fn no_order_of_legal_messages_loses_a_position(moves in moves()) {
        let mut play = Play { driver: Driver::formed(), next: 0, window: 0, round: 1, version: 0 };
        moves.iter().for_each(|step| play.play(step));
        play.driver.order(request(play.round, Part::Contribute));
        prop_assert_eq!(&play.driver.end, &None, "{:?}", play.driver.log);
        let positions = |ranges: &mut dyn Iterator<Item = &Range>| -> Vec<u64> {
            let mut all: Vec<u64> = ranges.flat_map(|range| range.start..range.end).collect();
            all.sort_unstable();
            all
        };
        let trained = positions(&mut play.driver.trained.iter());
        prop_assert!(trained.windows(2).all(|pair| pair[0] < pair[1]), "each once: {:?}", trained);
        let used = positions(&mut play.driver.window_reports().iter().flat_map(|report| &report.used));
        prop_assert_eq!(&used, &trained);
        let snapshots: Vec<&Range> = play.driver.reports.iter().flat_map(|report| match report {
            Report::SnapshotReady { ranges, .. } => &ranges[..],
            _ => &[],
        }).collect();
        prop_assert_eq!(positions(&mut snapshots.into_iter()), trained);
        let batches: u32 = play.driver.window_reports().iter().map(|report| report.batches).sum();
        prop_assert_eq!(u64::from(batches), play.driver.session.steps_ever());
    }

    #[test]
    fn no_order_of_any_messages_panics(messages in prop::collection::vec(any_message(), 0..40), ticks in any::<u64>()) {
        let mut driver = Driver::new();
        for (place, message) in messages.into_iter().enumerate() {
            if ticks >> (place % 64) & 1 == 1 {
                driver.wait(ms(700));
                driver.give(Input::Tick);
            }
            driver.order(message);
        }
        prop_assert_eq!(driver.session.ended(), driver.end.is_some());
    }
}

fn any_message() -> impl Strategy<Value = Control> {
    let small = || 0u64..4;
    let part = prop_oneof![Just(Part::Source), Just(Part::Contribute), Just(Part::Receive)];
    let lease = prop::collection::vec((0u64..1100, 0u64..1100).prop_map(|(a, b)| range(a, b)), 0..3);
    let honest = (0u64..900, 0u64..60).prop_map(|(start, len)| vec![range(start, start + len)]);
    let lease = prop_oneof![lease, honest];
    let extended = lease.clone();
    prop_oneof![
        4 => Just(Control::Admitted(Box::new(run_config()))),
        4 => (small(), lease, 0u32..12).prop_map(|(id, leases, quota)| {
            Control::Window(WindowPlan { quota, ..window(id, &leases) })
        }),
        2 => (small(), extended).prop_map(|(id, leases)| extend(id, &leases)),
        4 => (small(), part).prop_map(|(round, part)| request(round, part)),
        4 => (small(), small()).prop_map(|(round, version)| committed(round, version)),
        1 => small().prop_map(nothing),
        1 => Just(Control::ExecuteEval { schedule: 1 }),
        1 => Just(Control::SendManifest),
        1 => Just(Control::Heartbeat),
        1 => Just(Control::Shutdown),
    ]
}

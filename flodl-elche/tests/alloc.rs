//! Nothing is allocated per call once the buffers are warm, as long as the members stay the same: a coordinator of ten
//! thousand ranks must not spend its time in the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use flodl_elche::{
    Cadence, Demand, Elche, GuardKind, Norms, Plan, Policy, RoundFeedback, Settings, Slot, WindowSample, Windowing,
};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting the calls of each thread (tests run on threads of their own).
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(what: impl FnOnce()) -> u64 {
    let before = COUNT.with(Cell::get);
    what();
    COUNT.with(Cell::get) - before
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn settings(policy: Policy, windowing: Windowing, max_batch_diff: Option<u32>) -> Settings {
    Settings { policy, windowing, max_batch_diff, ..Settings::default() }
}

#[test]
fn the_allocator_is_counted() {
    assert_eq!(allocations(|| drop(vec![1, 2, 3])), 1);
}

#[test]
fn no_call_allocates_after_the_warm_up() {
    const MEMBERS: u32 = 50;
    let live: Vec<Slot> = (0..MEMBERS).map(Slot).collect();
    let pace = |slot: Slot| ms(8 + u64::from(slot.0 * 7 % 31));
    let each = |value: f64| live.iter().map(|&slot| (slot, value)).collect::<Vec<_>>();
    let feedback = RoundFeedback {
        window_wall: ms(900),
        reduce: ms(50),
        waits: live.iter().map(|&slot| (slot, ms(3))).collect(),
        divergence: each(0.01),
        steps: live.iter().map(|&slot| (slot, 20)).collect(),
        norms: live.iter().map(|&slot| (slot, Norms { pre: 1.0, post: 1.0 })).collect(),
        rates: each(0.1),
    };
    for (settings, guard) in [
        (settings(Policy::Cadence, Windowing::Budget, None), GuardKind::None),
        (settings(Policy::Cadence, Windowing::Budget, Some(5)), GuardKind::Trend),
        (settings(Policy::Cadence, Windowing::Count, None), GuardKind::Msf),
        (settings(Policy::Async, Windowing::Budget, None), GuardKind::Msf),
        (settings(Policy::Sync, Windowing::Budget, None), GuardKind::None),
    ] {
        let name = format!("{settings:?}");
        let mut elche = Elche::new(settings, guard.build(1.0)).expect("valid");
        live.iter().for_each(|&slot| elche.join(slot));
        let (mut plan, mut changes) = (Plan::default(), Vec::new());
        let mut window = |elche: &mut Elche, remaining| {
            let epoch_len = 64 * 1_000_000;
            elche.plan_into(&Demand { live: &live, remaining, epoch_len, callbacks: &[(Slot(3), ms(20))] }, &mut plan);
            for &slot in &live {
                let batch = pace(slot);
                elche.observe(slot, WindowSample { batches: 9, first: batch, rest: batch * 8, data_wait: ms(0) });
            }
            elche.round_done_into(&feedback, &mut changes);
        };
        let mut epoch = |elche: &mut Elche| {
            // Full windows, one whose leases are cut, and the two of a tail.
            for batches in [1_000_000, 500_000, 4000, 3000, 200, 100, 60, 1] {
                window(elche, 64 * batches);
            }
        };
        (0..30).for_each(|_| epoch(&mut elche));
        assert_eq!(allocations(|| (0..10).for_each(|_| epoch(&mut elche))), 0, "{name}");
    }
}

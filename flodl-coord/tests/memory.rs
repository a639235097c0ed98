//! How much memory a rank costs the coordinator, counted at the allocator; and that what an input costs does not grow with
//! the number of ranks, counted in allocations.

#[path = "../benches/cluster/mod.rs"]
#[allow(dead_code, reason = "the benchmark uses all of it")]
mod cluster;

use cluster::Cluster;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static TAKEN: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, counting each thread's bytes.
struct Counting;

fn count(bytes: i64) {
    HELD.with(|held| held.set(held.get() + bytes));
    TAKEN.with(|taken| taken.set(taken.get() + bytes.max(0)));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that the coordinator may hold for each rank in mid-window, its part of the plans that wait to be sent included.
const RANK_MAX: i64 = 3_000;

#[test]
fn a_rank_costs_a_few_kilobytes() {
    for ranks in [100, 1_000, 10_000] {
        let before = HELD.with(Cell::get);
        let mut cluster = Cluster::training(ranks);
        for _ in 0..3 {
            cluster.round();
        }
        cluster.tidy();
        let each = (HELD.with(Cell::get) - before) / i64::from(ranks);
        println!("{ranks} ranks: {each} bytes each");
        assert!(each < RANK_MAX, "{each} bytes a rank with {ranks} ranks");
    }
}

/// Bytes that an input asks the allocator for: nothing is listed of all ranks, whoever speaks.
#[test]
fn no_input_looks_at_everybody() {
    let mut cluster = Cluster::training(5_000);
    cluster.round();
    let before = TAKEN.with(Cell::get);
    let beats = cluster.heartbeats(1_000).inputs as i64;
    let each = (TAKEN.with(Cell::get) - before) / beats;
    assert!(each < 1_000, "a heartbeat asks for {each} bytes among 5,000 ranks");
}

//! Case C11: whatever a hostile length says, little memory is asked for. Counted at the allocator.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Controller, NONCE_S, data_hello, handshake, relay_hello};
use flodl_wire::Time;
use flodl_wire::codec::decode;
use flodl_wire::connection::{Connection, Event};
use flodl_wire::handshake::Admission;
use flodl_wire::limits::{CONTROL_MAX, PAYLOAD_MAX};
use flodl_wire::message::{Control, HostReport, Report};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, noting the largest single request of each thread.
struct Noting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(bytes: usize) {
    // A thread that is ending has no counter any more, and no test.
    LARGEST.try_with(|largest| largest.set(largest.get().max(bytes))).unwrap_or(());
}

// SAFETY: every call goes to the system's allocator unchanged; noting a number neither allocates nor unwinds.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Noting = Noting;

/// The largest single request to the allocator while `act` ran.
fn largest(act: impl FnOnce()) -> usize {
    LARGEST.with(|largest| largest.set(0));
    act();
    LARGEST.with(Cell::get)
}

#[test]
fn c11_the_counter_counts() {
    assert!(largest(|| drop(vec![1u8; 12_345])) >= 12_345);
    assert!(largest(|| ()) < 64);
}

#[test]
fn c11_a_refused_length_asks_for_nothing_and_a_plausible_one_for_one_frame() {
    let limit = |kind: u16, channel_data: bool, len: u32| {
        let (_, _, mut accepted) = handshake(if channel_data { data_hello() } else { relay_hello() });
        let mut header = [0; 24];
        header[..4].copy_from_slice(&len.to_le_bytes());
        header[4..6].copy_from_slice(&kind.to_le_bytes());
        let mut input = &header[..];
        largest(|| drop(accepted.opener.feed(&mut input)))
    };
    for len in [0, 15, 16, (CONTROL_MAX + 17) as u32, 1 << 30, u32::MAX] {
        assert!(limit(2, false, len) < 256, "length {len}");
    }
    for len in [0, 15, 55, (PAYLOAD_MAX + 17) as u32, 1 << 30, u32::MAX] {
        assert!(limit(16, true, len) < 256, "length {len}");
    }
    let most = limit(16, true, (PAYLOAD_MAX + 16) as u32);
    assert!((PAYLOAD_MAX..PAYLOAD_MAX + 256).contains(&most), "{most}");
}

#[test]
fn c11_a_stranger_costs_no_memory_and_a_refused_member_its_refusal() {
    let most = |m1: [u8; 120], policy: &Controller| {
        let mut above = Connection::accept(policy.gate_key(), NONCE_S, Time::ZERO);
        largest(|| {
            if let Some(Event::Hello(_)) = above.receive(&mut &m1[..], Time::ZERO) {
                assert!(above.admit(policy).is_some());
            }
            assert!(!above.is_open());
        })
    };
    let m1 = handshake(relay_hello()).0.m1;
    let mut stranger = m1;
    stranger[50] ^= 1;
    assert_eq!(most(stranger, &Controller::new()), 0);
    assert!(most(m1, &Controller::refusing("no room")) < 1024);
}

/// `bytes` that stop right after a list or text which claims `claim` entries.
fn claiming(prefix: &[u8], claim: u64) -> Vec<u8> {
    let mut bytes = prefix.to_vec();
    bytes.push(0xfd);
    bytes.extend_from_slice(&claim.to_le_bytes());
    bytes
}

#[test]
fn c11_a_hostile_list_or_text_in_a_message_asks_for_at_most_a_frame() {
    for claim in [1 << 16, 1 << 20, 1 << 32, u64::MAX / 8, u64::MAX] {
        // Each prefix is a message up to its first length: leases, ids, roster, tensors, ranges, a sentence, a text.
        let controls: [&[u8]; 4] = [&[5, 12], &[0, 7], &[6, 5], &[2]];
        for prefix in controls {
            let most = largest(|| assert!(decode::<Control>(&claiming(prefix, claim)).is_err()));
            assert!(most <= CONTROL_MAX, "{prefix:?} claiming {claim} asks for {most} bytes");
        }
        let reports: [&[u8]; 3] = [&[1, 0, 1], &[4, 5, 40], &[9]];
        for prefix in reports {
            let most = largest(|| assert!(decode::<Report>(&claiming(prefix, claim)).is_err()));
            assert!(most <= CONTROL_MAX, "{prefix:?} claiming {claim} asks for {most} bytes");
        }
        let most = largest(|| assert!(decode::<HostReport>(&claiming(&[2, 3, 1], claim)).is_err()));
        assert!(most <= 16 << 10, "a text claiming {claim} asks for {most} bytes");
    }
}

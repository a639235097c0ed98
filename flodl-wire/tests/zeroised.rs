//! Keys are overwritten before their memory is given back. Looked for at the allocator, in every block that is freed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{RUN, handshake, host, open, rank_hello, relay_hello};
use flodl_wire::frame::{Frame, Stream};
use flodl_wire::limits::FRAME_HEADER;
use flodl_wire::message::{Control, Report};
use flodl_wire::secret::{DialKeys, RankKeys, Secret, Ticket};
use flodl_wire::{Hello, Incarnation, Rank, Role};
use hkdf::Hkdf;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use sha2::{Digest, Sha256};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, looking for 32 bytes in whatever is freed.
struct Watching;

thread_local! {
    static WATCHED: Cell<Option<[u8; 32]>> = const { Cell::new(None) };
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: blocks come from the system's allocator and go back to it with the layout they came with; looking at one neither
// allocates nor unwinds. What grows is copied to a new block by the trait's own `realloc`, so old blocks are looked at too.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // A thread that is ending watches nothing any more.
        if let Ok(Some(watched)) = WATCHED.try_with(Cell::get) {
            // SAFETY: the block is the caller's to give back, and every byte of it was written when it was made.
            let block = unsafe { core::slice::from_raw_parts(memory, layout.size()) };
            if block.windows(watched.len()).any(|bytes| bytes == watched) {
                LEFT.try_with(|left| left.set(left.get() + 1)).unwrap_or(());
            }
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// In how many of the blocks that `act` frees `watched` can still be read.
fn left(watched: [u8; 32], act: impl FnOnce()) -> usize {
    LEFT.set(0);
    WATCHED.set(Some(watched));
    act();
    WATCHED.set(None);
    LEFT.get()
}

fn secret() -> Secret {
    common::secret()
}

/// Each key of the run, and the beginning of what it is as text.
fn watched() -> Vec<[u8; 32]> {
    let host_key = secret().host_key(RUN, host());
    let rank_key = host_key.rank_key(Rank(3), Incarnation(2));
    let keys = [*secret().expose(), *secret().gate_key().expose(), *host_key.expose(), *rank_key.expose()];
    let text = |key: &[u8; 32]| -> [u8; 32] {
        let digits: String = key.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        digits.into_bytes().try_into().unwrap()
    };
    keys.iter().copied().chain(keys.iter().map(text)).collect()
}

#[test]
fn what_is_left_is_found() {
    let bytes = [0xa7; 32];
    assert_eq!(left(bytes, || drop(vec![0xa7u8; 40])), 1);
    assert_eq!(left(bytes, || drop(vec![0xa7u8; 31])), 0);
    let grown = || {
        let mut bytes = vec![0xa7u8; 32];
        bytes.reserve(100_000);
    };
    assert_eq!(left(bytes, grown), 2, "the block that was grown out of counts too");
}

#[test]
fn no_key_outlives_its_owner() {
    for key in watched() {
        let used = || {
            let secret = Secret::parse(&secret().to_text()).unwrap();
            let (host_key, gate_key) = (secret.host_key(RUN, host()), secret.gate_key());
            let rank_key = host_key.rank_key(Rank(3), Incarnation(2));
            let (address, run_id, host_id) = ("a:1".to_owned(), RUN, host());
            let ticket = Ticket { address, run_id, host_id, host_key, gate_key: gate_key.clone() };
            let ticket = Ticket::parse(&ticket.to_text()).unwrap();
            let dial_keys = DialKeys::from(&ticket);
            let keys = Box::new(RankKeys { rank_key, gate_key });
            let inherited = Box::new(RankKeys::from_bytes(&keys.to_bytes()));
            drop((dial_keys.clone(), dial_keys, DialKeys::from(*inherited)));
        };
        assert_eq!(left(key, used), 0);
    }
}

/// What is agreed on in a handshake, by the formulas of `docs/PROTOCOL.md`: `HS`, and the key of each direction.
fn agreed(hello: Hello) -> [[u8; 32]; 3] {
    let messages = handshake(hello).0;
    let transcript =
        Sha256::new().chain_update(messages.m1).chain_update(&messages.m2[..messages.m2.len() - 32]).finalize();
    let host_key = secret().host_key(RUN, host());
    let key = match hello.role {
        Role::Relay { .. } => *host_key.expose(),
        Role::Rank { rank, incarnation } => *host_key.rank_key(rank, incarnation).expose(),
    };
    let (secret, hkdf) = Hkdf::<Sha256>::extract(Some(&transcript), &key);
    let expand = |label: &[u8]| {
        let mut key = [0; 32];
        hkdf.expand(label, &mut key).unwrap();
        key
    };
    [secret.into(), expand(b"c2s"), expand(b"s2c")]
}

#[test]
fn no_key_outlives_its_connection() {
    for hello in [relay_hello(), rank_hello()] {
        for key in watched().into_iter().chain(agreed(hello)) {
            assert_eq!(left(key, || drop(Box::new(open(hello)))), 0, "{hello}");
        }
    }
}

#[test]
fn the_keys_of_a_connection_are_those_looked_for() {
    for hello in [relay_hello(), rank_hello()] {
        let (_, mut below, mut above) = handshake(hello);
        let report = Frame::report(Rank(3), Incarnation(2), &Report::Heartbeat { step: 1 }).unwrap();
        let order = Frame::control(Stream::Rank(Rank(3)), Incarnation(2), &Control::Shutdown).unwrap();
        let [_, up, down] = agreed(hello);
        for (sealer, frame, key, direction) in [(&mut below.sealer, report, up, 0), (&mut above.sealer, order, down, 1)]
        {
            let mut bytes = Vec::new();
            sealer.seal(&frame, &mut bytes).unwrap();
            let (header, sealed) = bytes.split_at_mut(FRAME_HEADER);
            let nonce = Nonce::assume_unique_for_key([direction, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).unwrap());
            let opened = cipher.open_in_place(nonce, Aad::from(header), sealed).unwrap();
            assert_eq!(opened, &frame.payload[..]);
        }
    }
}

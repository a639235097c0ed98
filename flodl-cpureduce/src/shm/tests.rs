//! Both ends in one process, each with a mapping of its own, and ends that lie.

use super::segment::{Access, Segment, reserve};
use super::*;
use crate::{Absence, CHUNK_BYTES, Digest, Layout, kernel};
use core::sync::atomic::Ordering;
use core::time::Duration;
use rustix::fs::{SealFlags, fcntl_add_seals, ftruncate};

const CHUNK: u32 = CHUNK_BYTES;

fn ends() -> (Lane, LaneReader, LaneWriter, Bells) {
    let (lane, bells) = (Lane::create().unwrap(), Bells::create().unwrap());
    let theirs = Bells::adopt(bells.file().try_clone().unwrap()).unwrap();
    let writer = LaneWriter::adopt(lane.file(), theirs.relay()).unwrap();
    let reader = lane.reader();
    (lane, reader, writer, bells)
}

fn note(index: u32) -> Note {
    Note { round: 7, version: 3, index, mass: 2.5 }
}

fn send(writer: &mut LaneWriter, index: u32, bytes: u32) -> bool {
    let Some(room) = writer.room(bytes) else { return false };
    room.fill(index as u8);
    writer.slot().map(|slot| slot.send(&note(index), bytes)).is_some()
}

#[test]
fn chunks_pass_through_a_lane_in_order_and_their_slots_come_back_when_dropped() {
    let (lane, mut reader, mut writer, _bells) = ends();
    assert!(!lane.is_attached());
    writer.attach();
    assert!(lane.is_attached());
    assert_eq!(reader.try_next(), Ok(None));
    let mut sent = 0;
    for lap in 0..3 {
        let mut held = Vec::new();
        while send(&mut writer, sent, CHUNK - 4 * sent) {
            sent += 1;
        }
        assert_eq!(sent as usize, (lap + 1) * SLOTS, "as many as there are slots");
        while let Some(message) = reader.try_next().unwrap() {
            let Sent::Chunk(about, bytes) = message else { panic!("a chunk") };
            let index = (lap * SLOTS + held.len()) as u32;
            assert_eq!((about, bytes.len() as u32), (note(index), CHUNK - 4 * index));
            assert!(bytes.iter().all(|&byte| byte == index as u8));
            held.push(bytes);
        }
        assert_eq!(held.len(), SLOTS);
        assert!(!writer.has_room() && !reader.has_next());
        // Given back in any order, they are taken again in the order of the ring.
        held.pop();
        assert!(!writer.has_room());
        drop(held);
        assert!(writer.has_room());
    }
}

#[test]
fn an_absence_takes_a_slot_and_keeps_its_reason() {
    let (_lane, mut reader, mut writer, _bells) = ends();
    for (round, why) in (0..).zip([Absence::Joining, Absence::NothingTrained, Absence::NonFinite, Absence::Stale]) {
        writer.slot().unwrap().send_absent(round, 9, why);
        assert_eq!(reader.try_next(), Ok(Some(Sent::Absent { round, from_chunk: 9, why })));
    }
    assert!(writer.has_room());
}

#[test]
fn what_a_rank_has_sent_outlives_it() {
    let (lane, mut reader, mut writer, _bells) = ends();
    assert!(send(&mut writer, 0, CHUNK));
    drop((writer, lane));
    let Ok(Some(Sent::Chunk(_, bytes))) = reader.try_next() else { panic!("it is there") };
    drop(reader);
    assert_eq!(bytes.len() as u32, CHUNK);
}

/// The words of a lane as a rank sees them, to write what it should not.
fn scribbler(lane: &Lane) -> Segment {
    let len = rustix::fs::fstat(lane.file()).unwrap().st_size as usize;
    Segment::adopt(lane.file(), len, Access::Write).unwrap()
}

#[test]
fn lengths_and_kinds_that_there_are_not_are_breaches() {
    let (lane, mut reader, mut writer, _bells) = ends();
    let words = scribbler(&lane);
    // Where the first slot's kind and length are.
    let (kind, bytes) = (words.word(256 + 4), words.word(256 + 36));
    assert!(send(&mut writer, 0, 8));
    for length in [CHUNK + 1, u32::MAX] {
        bytes.store(length, Ordering::Relaxed);
        assert_eq!(reader.try_next(), Err(LaneBreach::Length { bytes: length }));
    }
    for none in [0, 3, u32::MAX] {
        kind.store(none, Ordering::Relaxed);
        assert_eq!(reader.try_next(), Err(LaneBreach::Kind { kind: none }));
    }
    kind.store(2, Ordering::Relaxed);
    let lost = Sent::Absent { round: 7, from_chunk: 0, why: Absence::LinkLost };
    assert_eq!(reader.try_next(), Ok(Some(lost)), "a reason that there is not");
}

#[test]
fn a_slot_is_lent_once_whatever_the_rank_says_of_it() {
    let (lane, mut reader, mut writer, _bells) = ends();
    let words = scribbler(&lane);
    let state = |slot: usize| words.word(256 + 64 * slot);
    assert!(send(&mut writer, 0, 8));
    let Ok(Some(Sent::Chunk(_, first))) = reader.try_next() else { panic!("it is there") };
    // All are full, says the rank, the one that is out too.
    for slot in 0..SLOTS {
        state(slot).store(1, Ordering::Relaxed);
        words.word(256 + 64 * slot + 4).store(1, Ordering::Relaxed);
    }
    let others: Vec<_> = (1..SLOTS).map(|_| reader.try_next().unwrap().unwrap()).collect();
    assert_eq!(reader.try_next(), Ok(None), "the first one is still out");
    drop((first, others));
    // Nor does a state that there is not do anything.
    (0..SLOTS).for_each(|slot| state(slot).store(77, Ordering::Relaxed));
    assert!(!reader.has_next() && !writer.has_room());
}

fn chunk_of(layout: &Layout, index: u32, value: f32) -> Vec<u8> {
    let spec = layout.chunk(index).unwrap();
    value.to_le_bytes().repeat(spec.bytes as usize / 4)
}

fn boards(layout: Layout) -> (Board, BoardReader) {
    let mut board = Board::reserve().unwrap();
    assert!(matches!(BoardReader::adopt(board.file(), layout), Err(ShmError::Seals)), "it has no room yet");
    assert!(!board.put((1, 1), 0, &chunk_of(&layout, 0, 1.0)));
    board.lay_out(layout).unwrap();
    board.lay_out(Layout::new(1, 0, 0).unwrap()).unwrap();
    let reader = BoardReader::adopt(board.file(), layout).unwrap();
    (board, reader)
}

#[test]
fn two_results_stay_and_a_third_takes_the_place_of_the_first() {
    let layout = Layout::new(70_000, 3, 2).unwrap();
    let (mut board, reader) = boards(layout);
    for round in 0..4_u64 {
        let value = round as f32 + 0.5;
        let mut all = Vec::new();
        assert_eq!(reader.progress(round), None);
        assert!(!board.put((round, 9), 1, &chunk_of(&layout, 1, value)), "the first chunk begins a round");
        for spec in layout.iter() {
            let data = chunk_of(&layout, spec.index, value);
            assert!(!board.put((round, 9), spec.index + 1, &data), "not the next one, or longer than it is");
            assert!(board.put((round, 9), spec.index, &data));
            assert!(board.put((round, 9), spec.index, &data), "it is there already");
            assert_eq!(reader.progress(round), Some((spec.index + 1, 9)));
            assert_eq!(reader.chunk(round, &spec), Some(&data[..]));
            all.extend_from_slice(&data);
        }
        let squared_norm = kernel::squared_norm(&all[..4 * 65_536]) + kernel::squared_norm(&all[4 * 65_536..280_000]);
        assert_eq!(reader.whole(round), Some(Whole { digest: Digest::of(&all), squared_norm }));
        assert_eq!(reader.holds(round.wrapping_sub(1)), round > 0, "the one before is still there");
        assert!(round < 2 || !reader.holds(round - 2), "the one before that is not");
    }
}

#[test]
fn nobody_else_can_write_a_board_or_change_its_size() {
    let layout = Layout::new(1000, 0, 0).unwrap();
    let (board, _reader) = boards(layout);
    let len = rustix::fs::fstat(board.file()).unwrap().st_size as usize;
    assert!(matches!(Segment::adopt(board.file(), len, Access::Write), Err(ShmError::System { .. })));
    assert!(rustix::io::pwrite(board.file(), &[1], 0).is_err());
    for other in [0, len as u64 - 1, len as u64 + 1] {
        assert!(ftruncate(board.file(), other).is_err());
    }
    assert!(fcntl_add_seals(board.file(), SealFlags::WRITE).is_err());
}

#[test]
fn what_no_relay_hands_out_is_refused() {
    let layout = Layout::new(1000, 0, 0).unwrap();
    let (board, _) = boards(layout);
    let (lane, _, _, bells) = ends();
    let other = Layout::new(5000, 0, 0).unwrap();
    assert!(matches!(BoardReader::adopt(board.file(), other), Err(ShmError::Size { .. })));
    assert!(matches!(BoardReader::adopt(lane.file(), layout), Err(ShmError::Size { .. })));
    assert!(matches!(LaneWriter::adopt(board.file(), bells.relay()), Err(ShmError::Size { .. })));
    // Of the right size, and nothing else.
    let len = rustix::fs::fstat(lane.file()).unwrap().st_size as usize;
    let open = reserve("open").unwrap();
    ftruncate(&open, len as u64).unwrap();
    assert!(matches!(LaneWriter::adopt(&open, bells.relay()), Err(ShmError::Seals)));
    fcntl_add_seals(&open, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    assert!(matches!(LaneWriter::adopt(&open, bells.relay()), Err(ShmError::Mark { got: 0, .. })));
    let (pipe, _end) = rustix::pipe::pipe().unwrap();
    let refused: Result<Bells, ShmError> = Bells::adopt(pipe);
    assert!(matches!(refused, Err(ShmError::Seals)));
}

#[test]
fn whoever_sleeps_is_woken_and_nobody_sleeps_for_long() {
    let bells = Bells::create().unwrap();
    let bell = bells.relay();
    assert!(!bell.wait(Duration::from_millis(1), || false), "nothing came");
    assert!(bell.wait(Duration::from_secs(1), || true));
    let (lane, mut reader, mut writer, bells) = ends();
    let bell = bells.relay();
    std::thread::scope(|scope| {
        let writer = &mut writer;
        scope.spawn(move || {
            for index in 0..2000 {
                while !writer.bell().wait(NAP, || writer.has_room()) {}
                assert!(send(writer, index, 64));
            }
        });
        let mut got = 0;
        while got < 2000 {
            bell.wait(NAP, || reader.has_next());
            while let Some(Sent::Chunk(about, _)) = reader.try_next().unwrap() {
                assert_eq!(about.index, got);
                got += 1;
            }
        }
    });
    assert!(!lane.is_attached());
}

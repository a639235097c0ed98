//! Crashes at every byte, rotation, and disks that fail at every write.

use super::*;
use crate::samples::{event, one_of_each, root, window};
use flodl_wire::message::Record;
use flodl_wire::message::record::{Body, EventKind, Node, Reason};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::rc::Rc;

/// Files in memory on a disk that fails as its script says.
#[derive(Clone, Default)]
struct Disk(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    files: Vec<Vec<u8>>,
    /// What the next calls of `open` and `write` do; afterwards all is well.
    script: VecDeque<Act>,
    calls: usize,
}

#[derive(Copy, Clone, PartialEq)]
enum Act {
    Well,
    Interrupted,
    /// One byte is taken.
    Short,
    /// Half of the bytes are taken.
    Half,
    Nothing,
    Full,
}

impl Disk {
    fn scripted(script: impl IntoIterator<Item = Act>) -> Disk {
        let disk = Disk::default();
        disk.0.borrow_mut().script.extend(script);
        disk
    }

    fn act(&self) -> Act {
        let mut state = self.0.borrow_mut();
        state.calls += 1;
        state.script.pop_front().unwrap_or(Act::Well)
    }

    fn records(&self) -> Vec<Record> {
        let state = self.0.borrow();
        state.files.iter().flat_map(|file| Records::new(Path::new("disk"), &file[..])).map(Result::unwrap).collect()
    }
}

impl Parts for Disk {
    type Part = Disk;

    fn open(&mut self) -> io::Result<Disk> {
        if self.act() != Act::Well {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.0.borrow_mut().files.push(Vec::new());
        Ok(self.clone())
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = match self.act() {
            Act::Well => bytes.len(),
            Act::Short => 1,
            Act::Half => bytes.len() / 2,
            Act::Nothing => 0,
            Act::Interrupted => return Err(io::ErrorKind::Interrupted.into()),
            Act::Full => return Err(io::ErrorKind::StorageFull.into()),
        };
        self.0.borrow_mut().files.last_mut().unwrap().extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const NEVER: u64 = u64::MAX;

fn bytes_of(records: &[Record]) -> Vec<u8> {
    let disk = Disk::default();
    let mut timeline = Timeline::new(disk.clone(), NEVER);
    records.iter().for_each(|record| timeline.append(record).unwrap());
    timeline.flush().unwrap();
    disk.0.borrow().files.concat()
}

fn read(bytes: &[u8]) -> Vec<Result<Record, ReadError>> {
    Records::new(Path::new("t"), bytes).collect()
}

#[test]
fn every_kind_is_read_back_as_it_was_written() {
    let records = one_of_each();
    let back: Vec<Record> = read(&bytes_of(&records)).into_iter().map(Result::unwrap).collect();
    assert_eq!(back, records);
}

#[test]
fn a_crash_at_any_byte_costs_at_most_the_line_it_tore() {
    let records = one_of_each();
    let bytes = bytes_of(&records);
    for cut in 0..=bytes.len() {
        let ends = bytes[..cut].iter().filter(|&&byte| byte == b'\n').count();
        // A line that lacks only its end is whole.
        let whole = ends + usize::from(bytes.get(cut) == Some(&b'\n'));
        let back: Vec<Record> = read(&bytes[..cut]).into_iter().map(Result::unwrap).collect();
        assert_eq!(back, records[..whole], "cut after {cut} bytes");
    }
}

#[test]
fn figures_that_json_cannot_write_are_read_back() {
    let mut odd = one_of_each();
    for (index, value) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().enumerate() {
        let mut rank = window(index as u64, 0, 1, 8, 0);
        if let Body::Node(Node::Rank(window)) = &mut rank.body {
            (window.loss_sum, window.lr) = (value, value);
        }
        let mut all = root(index as u64, 1, Some(value));
        if let Body::Node(Node::Root(root)) = &mut all.body {
            root.divergence[0].1 = value;
        }
        let mut alert = event(index as u64, EventKind::Alert);
        if let Body::Event(event) = &mut alert.body {
            event.reason = Some(Reason::new("guard", "diverged").with("factor", value));
        }
        odd.extend([rank, all, alert, crate::samples::evaluated(index as u64, value, Some(value))]);
    }
    let back: Vec<Record> = read(&bytes_of(&odd)).into_iter().map(Result::unwrap).collect();
    assert_eq!(back.len(), odd.len());
    let Some(Body::Node(Node::Rank(window))) = back.iter().rev().nth(3).map(|record| &record.body) else { panic!() };
    assert!(window.loss_sum.is_nan() && window.lr.is_nan(), "what was no number reads as no number");
}

#[test]
fn a_line_that_is_no_record_is_told_and_passed_over() {
    let good = bytes_of(&one_of_each()[..1]);
    let damages: [&[u8]; 5] =
        [b"\n", b"{\"at\":1}\n", b"\xff\xfe\n", b"{\"at\":5,\"body\":{\"Later\":{}}}\n", b"[[[[\n"];
    for damaged in damages {
        let items = read(&[&good[..], damaged, &good[..]].concat());
        assert_eq!(items.len(), 3, "{damaged:?}");
        assert!(items[0].is_ok() && items[2].is_ok());
        assert!(matches!(&items[1], Err(ReadError::Malformed { line: 2, .. })), "{:?}", items[1]);
    }
}

#[test]
fn a_line_without_an_end_takes_no_more_memory_than_a_line_may() {
    let good = bytes_of(&one_of_each()[..1]);
    let endless = io::repeat(b'[').take(2 * MAX_LINE as u64 + 5);
    let mut records = Records::new(Path::new("t"), io::BufReader::new(endless.chain(&b"\n"[..]).chain(&good[..])));
    assert!(matches!(records.next(), Some(Err(ReadError::Malformed { line: 1, .. }))));
    assert!(matches!(records.next(), Some(Ok(_))), "the line after it is read");
    assert_eq!(records.next(), None);
}

/// Appends all records, flushing after each `every`; how many errors were told.
fn write_all(timeline: &mut Timeline<Disk>, records: &[Record], every: usize) -> usize {
    let mut errors = 0;
    for (index, record) in records.iter().enumerate() {
        errors += usize::from(timeline.append(record).is_err());
        if index % every == every - 1 {
            errors += usize::from(timeline.flush().is_err());
        }
    }
    errors + usize::from(timeline.flush().is_err())
}

#[test]
fn a_disk_that_fails_at_any_call_is_told_once_and_what_is_lost_is_counted() {
    let records = one_of_each();
    for (every, rotate_at) in [(1, NEVER), (1, 1), (3, 400), (100, 900)] {
        let well = Disk::default();
        write_all(&mut Timeline::new(well.clone(), rotate_at), &records, every);
        let calls = well.0.borrow().calls;
        for failing in 0..calls {
            for how in [vec![Act::Full], vec![Act::Nothing], vec![Act::Half, Act::Full]] {
                let told = format!("every {every}, rotated at {rotate_at}, call {failing}");
                let disk = Disk::scripted(vec![Act::Well; failing].into_iter().chain(how));
                let mut timeline = Timeline::new(disk.clone(), rotate_at);
                assert_eq!(write_all(&mut timeline, &records, every), 1, "{told}");
                let kept = disk.records();
                assert_eq!(kept.len() as u64 + timeline.dropped(), records.len() as u64, "{told}");
                assert_eq!(kept, records[..kept.len()], "{told}");
                let calls = disk.0.borrow().calls;
                drop(timeline);
                assert_eq!(disk.0.borrow().calls, calls, "{told}: a failed disk is left alone");
            }
        }
    }
}

#[test]
fn short_and_interrupted_writes_are_no_failure() {
    let records = one_of_each();
    let disk = Disk::scripted([Act::Well].into_iter().chain([Act::Short, Act::Interrupted, Act::Short].repeat(50)));
    let mut timeline = Timeline::new(disk.clone(), NEVER);
    assert_eq!(write_all(&mut timeline, &records, 2), 0);
    assert_eq!((disk.records(), timeline.dropped()), (records, 0));
}

#[test]
fn nothing_is_written_before_a_flush_and_what_is_left_at_the_end_is() {
    let disk = Disk::default();
    let mut timeline = Timeline::new(disk.clone(), NEVER);
    timeline.append(&one_of_each()[0]).unwrap();
    assert_eq!(disk.records(), []);
    drop(timeline);
    assert_eq!(disk.records(), one_of_each()[..1]);
}

#[test]
fn much_that_gathers_is_written_without_a_flush() {
    let disk = Disk::default();
    let mut timeline = Timeline::new(disk.clone(), NEVER);
    for record in one_of_each().iter().cycle().take(2_000) {
        timeline.append(record).unwrap();
        assert!(timeline.pending.len() <= write::BUFFER);
    }
    assert!(disk.records().len() > 1_000);
}

#[test]
fn files_are_rotated_between_lines_and_read_in_order() {
    let records: Vec<Record> = one_of_each().iter().cycle().take(100).cloned().collect();
    let limit = 1_000;
    let folder = tempfile::tempdir().unwrap();
    let mut timeline = Timeline::in_folder(folder.path(), limit);
    for record in &records {
        timeline.append(record).unwrap();
        timeline.flush().unwrap();
    }
    let last = timeline.path();
    drop(timeline);
    let files = fs::read_dir(folder.path()).unwrap().count();
    assert!(files > 10, "numbers of two digits are needed to see that the order is that of numbers");
    assert_eq!(last, folder.path().join(file_name(files as u32 - 1)));
    for part in 0..files as u32 {
        let bytes = fs::read(folder.path().join(file_name(part))).unwrap();
        assert!(bytes.len() as u64 <= limit && bytes.ends_with(b"\n"), "file {part} has {} bytes", bytes.len());
    }
    let back: Vec<Record> = Reader::open(folder.path()).unwrap().map(Result::unwrap).collect();
    assert_eq!(back, records);
}

#[test]
fn a_later_process_starts_a_file_of_its_own() {
    let records = one_of_each();
    let folder = tempfile::tempdir().unwrap();
    let mut torn = bytes_of(&records[..2]);
    torn.truncate(torn.len() - 5);
    fs::write(folder.path().join("timeline.jsonl"), &torn).unwrap();
    fs::write(folder.path().join("timeline.old.jsonl"), "not ours").unwrap();
    fs::write(folder.path().join("timeline.01.jsonl"), "not ours").unwrap();
    let mut timeline = Timeline::in_folder(folder.path(), NEVER);
    timeline.append(&records[2]).unwrap();
    timeline.flush().unwrap();
    let back: Vec<Record> = Reader::open(folder.path()).unwrap().map(Result::unwrap).collect();
    assert_eq!(back, [records[0].clone(), records[2].clone()]);
    assert_eq!(fs::read(folder.path().join("timeline.jsonl")).unwrap(), torn);
}

#[test]
fn folders_without_a_timeline_and_files_that_cannot_be_read_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    assert_eq!(Reader::open(&path).err(), Some(ReadError::Missing { folder: path.clone() }));
    assert!(matches!(Reader::open(&path.join("no")), Err(ReadError::Unreadable { kind: io::ErrorKind::NotFound, .. })));
    fs::create_dir(path.join("timeline.jsonl")).unwrap();
    fs::write(path.join("timeline.1.jsonl"), bytes_of(&one_of_each()[..1])).unwrap();
    let items: Vec<_> = Reader::open(&path).unwrap().collect();
    assert_eq!(items.len(), 2);
    assert!(matches!(&items[0], Err(ReadError::Unreadable { .. })) && items[1].is_ok(), "{items:?}");
}

#[test]
fn a_folder_that_is_gone_is_one_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut timeline = Timeline::in_folder(&folder.path().join("gone"), NEVER);
    let record = &one_of_each()[0];
    assert_eq!(timeline.append(record), Ok(()));
    assert!(matches!(timeline.flush(), Err(SinkError::Open { kind: io::ErrorKind::NotFound, .. })));
    assert_eq!((timeline.append(record), timeline.flush(), timeline.dropped()), (Ok(()), Ok(()), 2));
}

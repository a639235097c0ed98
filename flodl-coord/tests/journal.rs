//! Journals that end anywhere, and journals that are damaged: never a panic, never a record that nobody wrote.

use core::num::NonZeroU32;
use core::time::Duration;
use flodl_coord::journal::{Damage, Entry, Formed, Found, Image, Journal, NotResumable, Start, Store, read};
use flodl_coord::{Config, Duties, Membership, Scheduling, Slowing};
use flodl_elche::Passes;
use flodl_wire::codec::manifest_digest;
use flodl_wire::commit::CommitState;
use flodl_wire::message::commit::{CommitHead, EpochRecord, LifeRecord, Moment, Standing};
use flodl_wire::message::join::{
    DatasetInfo, Dtype, LayoutSizes, Reduction, ScalarSpec, Section, TensorSpec, TrainerSettings,
};
use flodl_wire::{Epoch, HostId, Incarnation, Range, Rank, Round, RunId, Version};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io;

/// A store in memory that fails from some call on, for so many calls.
#[derive(Debug, Default)]
struct Memory {
    bytes: Vec<u8>,
    calls: usize,
    fails: std::ops::Range<usize>,
    replaced: usize,
}

impl Memory {
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        if self.fails.contains(&self.calls) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Store for Memory {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.call()?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.call()?;
        self.replaced += 1;
        self.bytes = bytes.to_vec();
        Ok(())
    }
}

fn config() -> Config {
    Config {
        run_id: RunId([7; 16]),
        world_size: 3,
        min_ranks: 1,
        mode: flodl_elche::Mode::CpuCadence,
        epochs: Some(2),
        epoch_splits: 1,
        batch_size: Some(16),
        seed: 5,
        patience: Duration::from_secs(2),
        slow: Slowing { step_at_least: None, factors: BTreeMap::from([(Rank(1), 2.5)]) },
        membership: Membership::default(),
        scheduling: Scheduling::default(),
        duties: Duties::default(),
    }
}

fn start(generation: u64) -> Entry {
    let address = "127.0.0.1:4711".to_owned();
    let (run_id, keep_checkpoints) = (RunId([7; 16]), NonZeroU32::MIN);
    Entry::Start(Box::new(Start { run_id, generation, address, keep_checkpoints, config: config() }))
}

fn over_nccl() -> Entry {
    let Entry::Start(mut start) = start(0) else { unreachable!("it begins the journal") };
    start.config.mode = flodl_elche::Mode::NcclCadence;
    Entry::Start(start)
}

fn tensors() -> Vec<TensorSpec> {
    let tensor = |number: usize| TensorSpec {
        name: format!("layer.{number}.weight"),
        dtype: Dtype::F32,
        shape: vec![3, 4],
        section: Section::Parameters,
    };
    (0..5).map(tensor).collect()
}

fn formed() -> Entry {
    Entry::Formed(Box::new(Formed {
        manifest: manifest_digest(&tensors()),
        dataset: DatasetInfo { len: 1000, signature: [1; 32] },
        trainer: TrainerSettings { batch_size: Some(16), epochs: Some(2), augment: None },
        scalars: vec![ScalarSpec { name: "accuracy".to_owned(), reduction: Reduction::Mean }],
        saves: true,
        layout: LayoutSizes { parameters: 60, buffers: 0, integers: 0 },
        passes: Passes::new(1000, 1),
        epochs: 2,
        batch_size: 16,
        speeds: vec![(Rank(0), 1.0)],
    }))
}

fn state(round: u64) -> CommitState {
    let moment = Moment { generation: 0, round: Round(round) };
    let head = CommitHead { moment, version: Version(round), digest: round * 31, ..CommitHead::default() };
    let epoch = EpochRecord { epoch: Epoch(0), committed: vec![Range { start: 0, end: round * 7 }], aside: vec![] };
    CommitState::new(head, [life(Standing::InRun)], [epoch])
}

fn life(standing: Standing) -> LifeRecord {
    let host = HostId::from_name("box").expect("a name");
    LifeRecord { rank: Rank(2), incarnation: Incarnation(1), host, standing, losses: 0, missing: false }
}

/// What a controller of so many rounds writes.
fn entries(rounds: u64) -> Vec<Entry> {
    let mut entries = vec![start(0), Entry::Tensors(tensors()), formed()];
    for round in 0..rounds {
        if round == 0 {
            let record = state(round).parts().remove(0);
            entries.push(Entry::CommitPart { part: 0, parts: 1, record: Box::new(record) });
        } else {
            entries.push(Entry::Commit(Box::new(state(round).change_since(&state(round - 1)))));
        }
        entries.push(Entry::Lives(vec![life(Standing::Lost)]));
    }
    entries
}

/// The bytes of these entries, and where each of them ends.
fn written(entries: &[Entry]) -> (Vec<u8>, Vec<usize>) {
    let mut journal = Journal::new(Memory::default(), Image::default());
    let mut ends = Vec::new();
    for entry in entries {
        journal.write(entry.clone()).expect("memory takes it");
        ends.push(journal.store().bytes.len());
    }
    (journal.store().bytes.clone(), ends)
}

proptest! {
    #[test]
    fn a_journal_that_ends_anywhere_gives_the_entries_that_are_whole(rounds in 0..4u64, cut in 0..4000usize) {
        let entries = entries(rounds);
        let (bytes, ends) = written(&entries);
        let cut = cut.min(bytes.len());
        let found = read(&bytes[..cut]).expect("a torn end is no damage");
        let whole = ends.iter().filter(|&&end| end <= cut).count();
        prop_assert_eq!(&found.entries, &entries[..whole]);
        prop_assert_eq!(found.whole + found.torn, cut);
        // What is gone on with after a torn end is whole again.
        let mut journal = Journal::new(Memory::default(), Image::of(found.entries));
        journal.write(start(1)).expect("memory takes it");
        let again = Image::of(read(&journal.store().bytes).expect("is whole").entries);
        prop_assert_eq!(&again, journal.image());
    }

    #[test]
    fn a_flipped_bit_never_makes_another_record(rounds in 0..4u64, at in 0..4000usize, bit in 0..8u32) {
        let entries = entries(rounds);
        let (mut bytes, ends) = written(&entries);
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let hit = ends.iter().filter(|&&end| end <= at).count();
        match read(&bytes) {
            // In the last record it is as if that one had not been finished.
            Ok(Found { entries: found, .. }) => {
                prop_assert_eq!(hit + 1, entries.len());
                prop_assert_eq!(&found[..], &entries[..hit]);
            }
            Err(Damage::Middle { number, at: from }) => {
                prop_assert_eq!(number, hit as u64);
                prop_assert!(from <= at);
                // What the sentence says to do helps.
                let found = read(&bytes[..from]).expect("is whole up to there");
                prop_assert_eq!(&found.entries[..], &entries[..hit]);
            }
            Err(Damage::NotAJournal | Damage::Version { .. }) => prop_assert!(at < 16),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..600), header in any::<bool>()) {
        if header {
            let (journal, _) = written(&entries(0));
            bytes.splice(0..0, journal[..16].iter().copied());
            let found = read(&bytes).expect("no whole record follows");
            prop_assert_eq!((found.entries.len(), found.whole, found.torn), (0, 16, bytes.len() - 16));
        } else if bytes.len() > 16 {
            prop_assert!(read(&bytes).is_err());
        }
    }
}

#[test]
fn a_length_that_nobody_wrote_costs_nothing() {
    let (bytes, ends) = written(&entries(1));
    for (field, value) in [(4, u32::MAX), (4, 1 << 20), (4, 0)] {
        let mut bytes = bytes.clone();
        let last = ends[ends.len() - 2];
        bytes[last + field..last + field + 4].copy_from_slice(&value.to_le_bytes());
        let found = read(&bytes).expect("the last record is torn");
        assert_eq!((found.whole, found.torn), (last, bytes.len() - last), "{value}");
    }
}

#[test]
fn a_record_that_is_missing_is_damage() {
    let (bytes, ends) = written(&entries(2));
    let mut without = bytes[..ends[3]].to_vec();
    without.extend_from_slice(&bytes[ends[4]..]);
    let damage = read(&without).expect_err("record 4 is not there");
    assert_eq!(damage, Damage::Middle { number: 4, at: ends[3] });
    assert!(damage.to_string().contains(&format!("truncate -s {}", ends[3])), "{damage}");
}

#[test]
fn what_could_not_be_written_is_written_with_the_next_entry() {
    for fails in [1..2, 1..4, 3..4, 4..6] {
        let mut journal = Journal::new(Memory { fails: fails.clone(), ..Memory::default() }, Image::default());
        let all = entries(4);
        let failed = all.iter().filter(|entry| journal.write((*entry).clone()).is_err()).count();
        assert_eq!(failed, fails.len());
        let found = read(&journal.store().bytes).expect("is whole");
        assert_eq!(&Image::of(found.entries), journal.image());
        assert_eq!(journal.image(), &Image::of(all), "{fails:?}");
    }
}

#[test]
fn a_long_run_does_not_grow_its_journal_without_bound() {
    let mut journal = Journal::new(Memory::default(), Image::of(entries(1)));
    let mut largest = 0;
    for round in 1..40_000 {
        journal.write(Entry::Commit(Box::new(state(round).change_since(&state(round - 1))))).expect("memory takes it");
        largest = largest.max(journal.store().bytes.len());
    }
    assert!(largest < 2 << 20, "{largest} bytes");
    assert!(journal.store().replaced > 1);
    let found = Image::of(read(&journal.store().bytes).expect("is whole").entries);
    let restored = found.restored().expect("it goes on");
    assert_eq!(restored.commit, Some(state(39_999)));
    assert_eq!(restored.tensors, tensors());
}

#[test]
fn a_change_whose_beginning_is_lost_leaves_the_older_commit() {
    let mut image = Image::of(entries(2));
    image.take(Entry::Commit(Box::new(state(5).change_since(&state(4)))));
    let restored = image.restored().expect("it goes on");
    assert_eq!((restored.commit, restored.lives), (Some(state(1)), vec![life(Standing::Lost)]));
    let records = state(6).parts();
    let parts = u32::try_from(records.len()).expect("few");
    for (part, record) in (0..).zip(records) {
        image.take(Entry::CommitPart { part, parts, record: Box::new(record) });
    }
    let restored = image.restored().expect("it goes on");
    assert_eq!((restored.commit, restored.lives), (Some(state(6)), vec![]));
}

#[test]
fn what_cannot_be_gone_on_with_is_said() {
    let ended = [entries(3), vec![Entry::Ended { exit: 3 }]].concat();
    for (entries, why) in [
        (vec![], NotResumable::Empty),
        (vec![over_nccl(), formed()], NotResumable::OnlyRanksHadIt { mode: flodl_elche::Mode::NcclCadence }),
        (vec![start(0), Entry::Tensors(tensors())], NotResumable::NotFormed),
        (ended, NotResumable::Ended { exit: 3 }),
        (vec![start(0), formed()], NotResumable::OtherTensors),
    ] {
        assert_eq!(Image::of(entries).restored(), Err(why));
    }
}

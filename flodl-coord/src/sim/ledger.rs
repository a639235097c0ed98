//! The independent accounts of a run: what was really trained, folded and committed, against what the coordinator says.
//!
//! Nothing here asks a core for its opinion. What a rank trained is what its dataset was read for; what a round holds is
//! worked out again from the replicas at their snapshots, in double precision; what is committed is what is in a consensus.

mod collected;

use super::model::{Trained, Vectors, mixed};
use super::rounding;
use super::violation::{Rule, Violation};
use flodl_cpureduce::Codec;
use flodl_elche::{Passes, Permutation};
use flodl_wire::message::control::{Part, RosterEntry, RoundOutcome};
use flodl_wire::message::data::Chunk;
use flodl_wire::message::report::{Folded, FoldedPart};
use flodl_wire::{Epoch, Incarnation, NcclSession, Range, Rank, Round, Time, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// A rank in one of its lives.
pub(crate) type Life = (Rank, Incarnation);

/// A replica as it was when its rank took the snapshot of a round.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// As its rank says, and as they were taken.
    pub(crate) steps: (u64, u64),
    /// The epoch that the ranges count from.
    pub(crate) epoch: Epoch,
    pub(crate) ranges: Vec<Range>,
    pub(crate) model: Vectors,
    /// The consensus that it comes from.
    pub(crate) base: Option<Version>,
    /// What its dataset was read for since the snapshot before, or since a consensus took the replica's place.
    pub(crate) trained: Trained,
    /// The replica is not what its rank believes (its memory was changed).
    pub(crate) corrupt: bool,
}

/// The open round.
#[derive(Debug)]
struct Book {
    round: Round,
    roster: BTreeMap<Life, Part>,
    snapshots: BTreeMap<Life, Snapshot>,
    result: Vec<Chunk>,
    folded: Option<Folded>,
    /// How it is averaged.
    over: Over,
    /// Those that had not reported on their windows when it was opened, because somebody asked for it early: a replica that
    /// is not the consensus is then named too late to be left out.
    early: BTreeSet<Rank>,
    /// Those that came out of it while samples were leased to them, and how many: nobody heard what they trained.
    unheard: BTreeMap<Life, u64>,
}

/// How a round is averaged.
#[derive(Debug, Default)]
pub(crate) enum Over {
    /// By the folds.
    #[default]
    Folds,
    /// By the ranks among themselves: on which communicator last, and what came of those that it was tried on.
    Nccl { session: Option<NcclSession>, collected: BTreeMap<NcclSession, Collected> },
}

/// What all members of a communicator take out of a collective.
#[derive(Clone, Debug)]
pub(crate) struct Collected {
    /// Who was in it, with what mass.
    masses: Vec<(Life, f64)>,
    /// Whose replica they take.
    root: Option<Life>,
    bytes: Rc<Vec<u8>>,
}

/// What a round really committed: samples of each rank, and how many of a partial contribution will come again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Truth {
    pub(crate) committed: BTreeMap<Rank, u64>,
    pub(crate) repeats: u64,
}

/// What a commit changes of them.
#[derive(Clone, Debug)]
struct Accounts {
    version: Option<Version>,
    consensus: Vec<u8>,
    past: usize,
    closed: u64,
    committed: BTreeMap<u64, Vec<bool>>,
    repeats: u64,
}

/// The accounts.
#[derive(Debug)]
pub(crate) struct Ledger {
    seed: u64,
    passes: Passes,
    /// Ranks average among themselves.
    over_nccl: bool,
    newest_communicator: Option<NcclSession>,
    pub(crate) version: Option<Version>,
    /// The bytes of that version.
    pub(crate) consensus: Vec<u8>,
    /// Those of the versions before, which a slow rank may still be taking.
    past: Vec<Vec<u8>>,
    /// Ranks that left by plan or are dead, and may stand still: nobody waits until they have taken a version.
    pub(crate) let_go: BTreeSet<Rank>,
    book: Option<Book>,
    newest_round: Option<Round>,
    /// Epochs that were closed, which is done in order.
    pub(crate) closed: u64,
    /// Whether each position of each epoch that was begun and not closed is in a consensus.
    committed: BTreeMap<u64, Vec<bool>>,
    claim: Truth,
    pub(crate) repeats: u64,
    /// Who evaluates, by which order: told to, and has not answered.
    pub(crate) on_duty: BTreeMap<Life, u64>,
    /// The last order that each has answered, heard or not.
    pub(crate) did_duty: BTreeMap<Life, u64>,
    /// Evaluations that found something.
    pub(crate) evaluations: u64,
    /// What was true before each of the newest commits: who has heard of one may die with its controller.
    earlier: VecDeque<Accounts>,
    /// The newest version that each life has taken.
    applied: BTreeMap<Life, Version>,
    /// A controller has followed another one.
    pub(crate) resumed: bool,
    /// As what results travel, and how far a replica was ever from the consensus where it was folded.
    wire: Codec,
    reach: f64,
    /// Whose work is in each of the newest rounds.
    parts: BTreeMap<Round, Vec<(Rank, Incarnation, FoldedPart)>>,
    /// It was said that another run need not be bit-equal to this one.
    pub(crate) unrepeatable: bool,
    pub(crate) violation: Option<Violation>,
    pub(crate) now: Time,
}

const CHUNKS: usize = 3;
/// Commits before the newest one whose accounts are kept.
const KEPT: usize = 16;

impl Ledger {
    pub(crate) fn new(seed: u64, passes: Passes, wire: Codec, over_nccl: bool) -> Ledger {
        Ledger {
            seed,
            passes,
            over_nccl,
            newest_communicator: None,
            version: None,
            consensus: Vec::new(),
            past: Vec::new(),
            let_go: BTreeSet::new(),
            book: None,
            newest_round: None,
            closed: 0,
            committed: BTreeMap::new(),
            claim: Truth::default(),
            repeats: 0,
            on_duty: BTreeMap::new(),
            did_duty: BTreeMap::new(),
            evaluations: 0,
            earlier: VecDeque::new(),
            applied: BTreeMap::new(),
            resumed: false,
            wire,
            reach: 0.0,
            parts: BTreeMap::new(),
            unrepeatable: false,
            violation: None,
            now: Time::ZERO,
        }
    }

    /// Remembers the first broken rule.
    pub(crate) fn broken(&mut self, rule: Rule, what: impl Into<String>) {
        let at = self.now;
        self.violation.get_or_insert_with(|| Violation { at, rule, what: what.into() });
    }

    /// The coordinator opens a round.
    pub(crate) fn opened(&mut self, round: Round, roster: &[RosterEntry], (early, over): (BTreeSet<Rank>, Over)) {
        if self.newest_round.is_some_and(|newest| newest >= round) {
            self.broken(Rule::Growth, format!("{round} was opened after {:?}", self.newest_round));
        }
        self.newest_round = Some(round);
        if let Some(book) = &self.book {
            let what = format!("{round} was opened while {} was open", book.round);
            self.broken(Rule::Growth, what);
        }
        let sources = roster.iter().filter(|entry| entry.part == Part::Source).count();
        let wanted = usize::from(self.version.is_none() && !roster.is_empty());
        // Where ranks average among themselves one of them gives the root the consensus now and then.
        let is_handed_over = self.over_nccl && sources == 1 && matches!(over, Over::Folds);
        if sources != wanted && !is_handed_over {
            self.broken(Rule::Source, format!("{round} has {sources} sources while the version is {:?}", self.version));
        }
        let roster = roster.iter().map(|entry| ((entry.rank, entry.incarnation), entry.part)).collect();
        let (snapshots, unheard) = (BTreeMap::new(), BTreeMap::new());
        self.book = Some(Book { round, roster, snapshots, result: Vec::new(), folded: None, over, early, unheard });
    }

    /// A rank comes out of the open round, with so many samples leased to it of which nothing was heard.
    pub(crate) fn out_of_round(&mut self, life: Life, leased: u64) {
        if let Some(book) = &mut self.book
            && book.roster.get(&life) == Some(&Part::Contribute)
        {
            book.unheard.entry(life).or_insert(leased);
        }
    }

    /// A rank has evaluated: what its replica is then must be the consensus.
    pub(crate) fn evaluated(&mut self, life: Life, schedule: u64, replica: &[u8], excused: bool) {
        if self.on_duty.get(&life) == Some(&schedule) {
            self.on_duty.remove(&life);
        }
        self.did_duty.insert(life, schedule);
        self.evaluations += 1;
        if !excused && replica != self.consensus {
            let what = format!("{} evaluated something that is not the consensus ({:?})", life.0, self.version);
            self.broken(Rule::Duty, what);
        }
    }

    /// A rank took its snapshot.
    pub(crate) fn snapshot(&mut self, life: Life, round: Round, snapshot: Snapshot) {
        let told = self.told(snapshot.epoch, &snapshot.ranges);
        if let Some(book) = self.book.as_mut().filter(|book| book.round == round) {
            let part = book.roster.get(&life).copied();
            let (read, contributes) = (snapshot.trained, part == Some(Part::Contribute) && snapshot.base.is_some());
            let (says, took) = snapshot.steps;
            // Nobody but the coordinator would learn that it gives nothing.
            let finite = snapshot.model.floats().all(f32::is_finite);
            let unfit = matches!(book.over, Over::Nccl { .. }) && says == 0 && !finite;
            book.snapshots.insert(life, snapshot);
            if contributes && read != told {
                let what = format!("{} of {} holds the training of {read:?} and speaks for {told:?}", life.0, round);
                self.broken(Rule::ExactlyOnce, what);
            }
            if contributes && says != took && !unfit {
                let what =
                    format!("{} of {} took {took} steps since its snapshot before, and says {says}", life.0, round);
                self.broken(Rule::Mass, what);
            }
        }
    }

    /// Positions that count from `base` as positions of their epochs: they run on over the end of one.
    pub(crate) fn positions(&self, base: Epoch, ranges: &[Range]) -> Vec<(u64, u64)> {
        let positions = ranges.iter().flat_map(|range| range.start..range.end);
        let stride = self.passes.longest();
        positions.map(|at| (base.0 + at / stride, at % stride)).collect()
    }

    /// What reading those positions comes to.
    fn told(&self, base: Epoch, ranges: &[Range]) -> Trained {
        let mut orders = BTreeMap::new();
        let mut told = Trained::default();
        for (epoch, at) in self.positions(base, ranges) {
            let (pass, place) = self.passes.place(epoch, at).unwrap_or((epoch, u64::MAX));
            let order = orders.entry(pass).or_insert_with(|| Permutation::new(self.seed, pass, self.passes.len()));
            if let Some(sample) = order.get(place) {
                told.samples += 1;
                told.sum = told.sum.wrapping_add(mixed(sample));
            }
        }
        told
    }

    /// The root sends a chunk of a result.
    pub(crate) fn result(&mut self, chunk: &Chunk) {
        let mut wrong = None;
        if let Some(book) = self.book.as_mut().filter(|book| book.round == chunk.round)
            && book.result.len() == chunk.chunk as usize
        {
            match rounding::plain(chunk, (self.version, &self.consensus)) {
                Ok(chunk) => book.result.push(chunk),
                Err(what) => wrong = Some(format!("in {}: {what}", chunk.round)),
            }
        }
        wrong.into_iter().for_each(|what| self.broken(Rule::Average, what));
    }

    /// The root has folded: the result is worked out again.
    pub(crate) fn folded(&mut self, folded: &Folded) {
        let Some(mut book) = self.book.take_if(|book| book.round == folded.round) else { return };
        self.parts.insert(folded.round, folded.ranks.clone());
        if self.parts.len() > KEPT {
            self.parts.pop_first();
        }
        self.reaches(&book);
        if let Err((rule, what)) = self.check_fold(&book, folded) {
            self.broken(rule, format!("in {}: {what}", folded.round));
        }
        book.folded = Some(folded.clone());
        self.book = Some(book);
    }

    /// Whose work is in that round, if it is one of the newest.
    pub(crate) fn parts_of(&self, round: Round) -> Option<&[(Rank, Incarnation, FoldedPart)]> {
        self.parts.get(&round).map(Vec::as_slice)
    }

    /// The bytes of that version, whoever asks.
    pub(crate) fn bytes_as(&self, version: Version) -> Option<&[u8]> {
        if self.version == Some(version) {
            return Some(&self.consensus);
        }
        self.past.get(version.0 as usize).map(Vec::as_slice)
    }

    fn reaches(&mut self, book: &Book) {
        let consensus = self.consensus.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let consensus: Vec<f32> = consensus.collect();
        for snapshot in book.snapshots.values().filter(|snapshot| snapshot.base == self.version) {
            let moves = snapshot.model.floats().zip(&consensus).map(|(now, held)| f64::from(now - held).abs());
            self.reach = moves.filter(|by| by.is_finite()).fold(self.reach, f64::max);
        }
    }

    fn check_fold(&self, book: &Book, folded: &Folded) -> Result<(), (Rule, String)> {
        let mut parts = Vec::new();
        for &(rank, incarnation, part) in &folded.ranks {
            let chunks = match part {
                FoldedPart::Whole => CHUNKS,
                FoldedPart::Chunks(chunks) => chunks as usize,
                FoldedPart::None => continue,
            };
            let life = (rank, incarnation);
            let Some(snapshot) = book.snapshots.get(&life) else {
                return Err((Rule::Average, format!("{rank} ({incarnation}) is folded and took no snapshot")));
            };
            let role = book.roster.get(&life).copied();
            let source = role == Some(Part::Source);
            if role.is_none() || role == Some(Part::Receive) {
                return Err((Rule::Source, format!("{rank} ({incarnation}) is folded and was to contribute nothing")));
            }
            if !source && (snapshot.base.is_none() || snapshot.base != self.version) {
                let what = format!("{rank} comes from {:?} and is folded into {:?}", snapshot.base, self.version);
                return Err((Rule::Source, what));
            }
            // What is handed over and is not the consensus must come to nothing: the commit tells.
            let hands_over = source && self.version.is_some();
            if snapshot.corrupt && !book.early.contains(&rank) && !hands_over {
                return Err((Rule::Equal, format!("{rank} is folded though its replica was not the consensus")));
            }
            let mass = if source { 1.0 } else { snapshot.steps.0 as f64 };
            parts.push((rank, chunks, mass, &snapshot.model));
        }
        (0..book.result.len().min(CHUNKS)).try_for_each(|at| self.check_chunk(at, &book.result[at], &parts))
    }

    fn check_chunk(
        &self,
        at: usize,
        chunk: &Chunk,
        parts: &[(Rank, usize, f64, &Vectors)],
    ) -> Result<(), (Rule, String)> {
        let within: Vec<_> = parts.iter().filter(|(_, chunks, ..)| *chunks > at).collect();
        let mass_of = |mass: f64| if at == 0 { mass } else { 1.0 };
        let mass: f64 = within.iter().map(|(_, _, mass, _)| mass_of(*mass)).sum();
        let ranks: Vec<u32> = within.iter().map(|(rank, ..)| rank.0).collect();
        if (mass - chunk.mass).abs() > 1e-9 * mass.max(1.0) {
            let what = format!("chunk {at} has mass {} and {mass} was given by ranks {ranks:?}", chunk.mass);
            return Err((Rule::Mass, what));
        }
        if at == 2 {
            let largest = within.iter().map(|(.., model)| model.steps[0]).max();
            let got = chunk.bytes.first_chunk().map(|bytes| i64::from_le_bytes(*bytes));
            let equal = largest.is_none() || got == largest;
            return if equal { Ok(()) } else { Err((Rule::Average, format!("counter {got:?}, not {largest:?}"))) };
        }
        if within.is_empty() {
            return Ok(());
        }
        let section = |model: &Vectors| if at == 0 { model.weights.clone() } else { model.means.to_vec() };
        let models: Vec<(f64, Vec<f32>)> =
            within.iter().map(|(_, _, m, model)| (mass_of(*m), section(model))).collect();
        for (index, bytes) in chunk.bytes.chunks_exact(4).enumerate() {
            let got = f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            let (mut sum, mut size) = (0.0, 0.0);
            for (mass, section) in &models {
                let value = mass * f64::from(section[index]);
                sum += value;
                size += value.abs();
            }
            let rounded = rounding::slack(self.wire) * self.reach;
            let (average, slack) = (sum / mass, rounded + 1e-6 * models.len() as f64 * size / mass + 1e-30);
            let off = (got - average).abs();
            if off.is_nan() || off > slack {
                let what = format!("element {index} of chunk {at} is {got}, the average of ranks {ranks:?} {average}");
                return Err((Rule::Average, what));
            }
        }
        Ok(())
    }

    /// The coordinator closes a round.
    pub(crate) fn closed(&mut self, round: Round, outcome: RoundOutcome) {
        let Some(mut book) = self.book.take_if(|book| book.round == round) else {
            return self.broken(Rule::Growth, format!("{round} was closed and is not open"));
        };
        if let Some((folded, result)) = self.fold_of(&book) {
            (book.folded, book.result) = (Some(folded), result);
            let is_new = matches!(outcome, RoundOutcome::Committed { version } if self.version != Some(version));
            if let Some(folded) = book.folded.as_ref().filter(|_| is_new)
                && let Err((rule, what)) = self.check_fold(&book, folded)
            {
                self.broken(rule, format!("in {round}: {what}"));
            }
        }
        let truth = match outcome {
            RoundOutcome::Committed { version } if self.version != Some(version) => self.commit(&book, version),
            // Hands out what is in force, or nothing.
            RoundOutcome::Committed { .. } | RoundOutcome::Nothing | RoundOutcome::Again => Truth::default(),
        };
        self.settle(&truth);
    }

    fn commit(&mut self, book: &Book, version: Version) -> Truth {
        let expected = self.version.map_or(Version(0), Version::next);
        if version != expected {
            self.broken(Rule::Growth, format!("{version:?} was committed after {:?}", self.version));
        }
        let Some(folded) = &book.folded else {
            self.broken(Rule::Average, format!("{} was committed and the root had not folded it", book.round));
            return Truth::default();
        };
        if book.result.len() != CHUNKS {
            self.broken(Rule::Average, format!("{} has {} chunks of {CHUNKS}", book.round, book.result.len()));
        }
        self.earlier.push_back(Accounts {
            version: self.version,
            consensus: self.consensus.clone(),
            past: self.past.len(),
            closed: self.closed,
            committed: self.committed.clone(),
            repeats: self.repeats,
        });
        if self.earlier.len() > KEPT {
            self.earlier.pop_front();
        }
        let first = self.version.is_none();
        let before = core::mem::take(&mut self.consensus);
        if !first {
            self.past.push(before);
        }
        self.consensus = book.result.iter().flat_map(|chunk| chunk.bytes.iter().copied()).collect();
        let is_handed_over = !first && book.roster.values().any(|part| *part == Part::Source);
        if is_handed_over && self.past.last() != Some(&self.consensus) {
            self.broken(Rule::Equal, format!("another consensus was handed over in {} than there was", book.round));
        }
        self.version = Some(version);
        if first || !folded.any_mass { Truth::default() } else { self.count(book, &folded.ranks) }
    }

    fn count(&mut self, book: &Book, parts: &[(Rank, Incarnation, FoldedPart)]) -> Truth {
        let mut truth = Truth::default();
        for &(rank, incarnation, part) in parts {
            let Some(snapshot) = book.snapshots.get(&(rank, incarnation)) else { continue };
            let samples = flodl_wire::id::samples(&snapshot.ranges);
            let unheard = book.unheard.get(&(rank, incarnation)).copied().unwrap_or(0);
            match part {
                // They are trained again, whether or not they are in it.
                FoldedPart::Whole | FoldedPart::Chunks(_) if unheard > 0 => truth.repeats += unheard,
                FoldedPart::Whole if samples > 0 => {
                    self.mark(rank, &self.positions(snapshot.epoch, &snapshot.ranges));
                    *truth.committed.entry(rank).or_default() += samples;
                }
                FoldedPart::Chunks(_) => truth.repeats += samples,
                FoldedPart::Whole | FoldedPart::None => {}
            }
        }
        truth
    }

    fn mark(&mut self, rank: Rank, positions: &[(u64, u64)]) {
        for &(epoch, at) in positions {
            let (closed, len) = (epoch < self.closed, self.passes.epoch_len(epoch) as usize);
            let committed = self.committed.entry(epoch).or_insert_with(|| vec![false; len]);
            let done = committed.get_mut(at as usize);
            if closed || done.is_none_or(|done| core::mem::replace(done, true)) {
                self.broken(Rule::ExactlyOnce, format!("position {at} of epoch {epoch} is committed again by {rank}"));
            }
        }
    }

    /// The coordinator says what the round that it is closing commits.
    pub(crate) fn claim(&mut self, committed: &[(Rank, u64)], repeats: u64) {
        self.claim = Truth { committed: committed.iter().copied().collect(), repeats };
    }

    fn settle(&mut self, truth: &Truth) {
        let claim = core::mem::take(&mut self.claim);
        self.repeats += claim.repeats;
        if claim != *truth {
            let what = format!("the coordinator accounts for {claim:?}, in the consensus is {truth:?}");
            self.broken(Rule::ExactlyOnce, what);
        }
    }

    /// Another controller goes on from that version with these lives: the newest, or an earlier one where none of them has
    /// taken a newer one.
    pub(crate) fn resumes(&mut self, version: Option<Version>, back: &BTreeSet<Life>) {
        (self.book, self.newest_round, self.resumed) = (None, None, true);
        self.claim = Truth::default();
        let taken = back.iter().filter_map(|life| self.applied.get(life).copied()).max();
        if version < taken {
            let what = format!("another controller goes on from {version:?}, and {taken:?} was taken by a rank");
            return self.broken(Rule::Growth, what);
        }
        while self.version != version {
            let Some(earlier) = self.earlier.pop_back() else {
                let what = format!("another controller goes on from {version:?}, which was not the newest of late");
                return self.broken(Rule::Growth, what);
            };
            let Accounts { version, consensus, past, closed, committed, repeats } = earlier;
            (self.version, self.consensus) = (version, consensus);
            self.past.truncate(past);
            (self.closed, self.committed, self.repeats) = (closed, committed, repeats);
        }
    }

    /// Whether that position of an epoch is committed.
    pub(crate) fn is_committed(&self, (epoch, at): (u64, u64)) -> bool {
        let of = |committed: &Vec<bool>| committed.get(at as usize).copied().unwrap_or(false);
        epoch < self.closed || self.committed.get(&epoch).is_some_and(of)
    }

    /// Positions of an epoch that are not committed.
    pub(crate) fn missing(&self, epoch: Epoch) -> u64 {
        let of = |committed: &Vec<bool>| committed.iter().filter(|done| !**done).count() as u64;
        self.committed.get(&epoch.0).map_or(self.passes.epoch_len(epoch.0), of)
    }

    /// An epoch is closed.
    pub(crate) fn close(&mut self, epoch: Epoch) {
        if epoch.0 != self.closed {
            self.broken(Rule::Growth, format!("{epoch} was closed after {} others", self.closed));
        }
        self.closed = epoch.0 + 1;
        self.committed.remove(&epoch.0);
    }

    /// The bytes of a version that a rank may be taking: the newest one or the one before, of one that was let go any.
    pub(crate) fn bytes_of(&self, rank: Rank, version: Option<Version>) -> Option<&[u8]> {
        let past = match version {
            Some(version) if Some(version) == self.version => return Some(&self.consensus),
            Some(version) if Some(version.next()) == self.version => self.past.last(),
            Some(version) if Some(version) < self.version && self.let_go.contains(&rank) => {
                self.past.get(version.0 as usize)
            }
            _ => return None,
        };
        Some(past.unwrap_or(&self.consensus))
    }

    /// A rank has taken a version in its replica's place.
    pub(crate) fn applied(&mut self, life: Life, version: Option<Version>, bytes: &[u8]) {
        self.applied.extend(version.map(|version| (life, version)));
        let Some(expected) = self.bytes_of(life.0, version) else {
            let current = self.version;
            let what = format!("{} ({}) took {version:?} while {current:?} is the newest", life.0, life.1);
            return self.broken(Rule::Growth, what);
        };
        if expected != bytes {
            self.broken(Rule::Equal, format!("{} ({}) took other bytes as {version:?}", life.0, life.1));
        }
    }
}

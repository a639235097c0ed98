//! What a journal's entries say together.

use super::{Entry, Formed, Start};
use flodl_elche::Mode;
use flodl_wire::codec::manifest_digest;
use flodl_wire::commit::{CommitState, Keeper};
use flodl_wire::limits::MANIFEST_PART;
use flodl_wire::message::commit::LifeRecord;
use flodl_wire::message::join::TensorSpec;
use flodl_wire::{Rank, RunId};
use std::collections::BTreeMap;
use thiserror::Error;

/// The run as its journal knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Image {
    start: Option<Box<Start>>,
    tensors: Vec<TensorSpec>,
    formed: Option<Box<Formed>>,
    commit: Keeper,
    /// What became of lives since the newest commit.
    lives: BTreeMap<Rank, LifeRecord>,
    ended: Option<i32>,
}

/// Everything that a controller needs to go on with a run that another one began.
#[derive(Clone, Debug, PartialEq)]
pub struct Restored {
    /// What the controller before it began with.
    pub start: Start,
    /// What the run's ranks have agreed on.
    pub formed: Formed,
    /// The model's tensors, in manifest order.
    pub tensors: Vec<TensorSpec>,
    /// The newest commit that was written down. Relays may know a newer one.
    pub commit: Option<CommitState>,
    /// What became of lives since that commit.
    pub lives: Vec<LifeRecord>,
}

/// Why a run cannot be gone on with.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotResumable {
    /// Ranks averaged among themselves: no relay has the consensus.
    #[error(
        "a run in mode {mode} cannot go on under another controller, for only its ranks had the consensus: begin a new run, in mode cpu-cadence where controllers may die"
    )]
    OnlyRanksHadIt {
        /// The run's mode.
        mode: Mode,
    },
    /// Nothing was written.
    #[error("the journal holds no run: start one with `flodl serve`")]
    Empty,
    /// It had not begun.
    #[error("the run had not begun when its controller ended, so there is nothing to go on with: start it anew")]
    NotFormed,
    /// A part of the list of tensors was never written.
    #[error("the model's list of tensors in the journal is not the run's: go on from the run's last checkpoint")]
    OtherTensors,
    /// It is over.
    #[error("the run is over (it ended with status {exit}): there is nothing to go on with")]
    Ended {
        /// The status.
        exit: i32,
    },
}

impl Image {
    /// What these entries say.
    #[must_use]
    pub fn of(entries: impl IntoIterator<Item = Entry>) -> Image {
        let mut image = Image::default();
        entries.into_iter().for_each(|entry| image.take(entry));
        image
    }

    /// The run that it is of.
    #[must_use]
    pub fn run_id(&self) -> Option<RunId> {
        self.start.as_ref().map(|start| start.run_id)
    }

    /// Learns one more.
    pub fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Start(start) => self.start = Some(start),
            Entry::Tensors(tensors) => self.tensors.extend(tensors),
            Entry::Formed(formed) => self.formed = Some(formed),
            Entry::Lives(lives) => self.lives.extend(lives.into_iter().map(|life| (life.rank, life))),
            // A change that begins elsewhere follows one that was not written: what is known stays true of its moment.
            Entry::Commit(record) => {
                if self.commit.take_change(&record).is_ok() {
                    self.lives.clear();
                }
            }
            Entry::CommitPart { part, parts, record } => {
                let before = self.commit.moment();
                self.commit.take_part(part, parts, *record);
                if self.commit.moment() != before {
                    self.lives.clear();
                }
            }
            Entry::Ended { exit } => self.ended = Some(exit),
        }
    }

    /// The shortest list of entries that say the same.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.start.iter().cloned().map(Entry::Start).collect();
        entries.extend(self.tensors.chunks(MANIFEST_PART).map(|tensors| Entry::Tensors(tensors.to_vec())));
        entries.extend(self.formed.iter().cloned().map(Entry::Formed));
        if let Some(commit) = self.commit.state() {
            let records = commit.parts();
            let parts = u32::try_from(records.len()).unwrap_or(u32::MAX);
            let part = |(part, record)| Entry::CommitPart { part, parts, record: Box::new(record) };
            entries.extend((0..).zip(records).map(part));
        }
        if !self.lives.is_empty() {
            entries.push(Entry::Lives(self.lives.values().copied().collect()));
        }
        entries.extend(self.ended.map(|exit| Entry::Ended { exit }));
        entries
    }

    /// What there is to go on with.
    ///
    /// # Errors
    ///
    /// Where the run had not begun, or is over.
    pub fn restored(&self) -> Result<Restored, NotResumable> {
        let Some(start) = &self.start else { return Err(NotResumable::Empty) };
        if !start.config.mode.is_cpu() {
            return Err(NotResumable::OnlyRanksHadIt { mode: start.config.mode });
        }
        if let Some(exit) = self.ended {
            return Err(NotResumable::Ended { exit });
        }
        let Some(formed) = &self.formed else { return Err(NotResumable::NotFormed) };
        if manifest_digest(&self.tensors) != formed.manifest {
            return Err(NotResumable::OtherTensors);
        }
        Ok(Restored {
            start: (**start).clone(),
            formed: (**formed).clone(),
            tensors: self.tensors.clone(),
            commit: self.commit.state().cloned(),
            lives: self.lives.values().copied().collect(),
        })
    }
}

//! What ranks of one run have in common, and the lists of tensors behind it.

use crate::agenda::Agenda;
use crate::context::Context;
use crate::members::State;
use crate::{Breach, Fate};
use core::fmt;
use flodl_wire::codec::manifest_digest;
use flodl_wire::message::Control;
use flodl_wire::message::join::{DatasetInfo, LayoutSizes, Ready, ScalarSpec, Section, TensorSpec, TrainerSettings};
use flodl_wire::message::record::Reason;
use flodl_wire::{Rank, Time};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Samples of a dataset at the most: position arithmetic stays far from overflow.
const DATASET_MAX: u64 = 1 << 48;
/// Tensors of a model at the most.
const TENSORS_MAX: usize = 1 << 20;

/// What ranks of one run have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub(crate) manifest: [u8; 32],
    pub(crate) dataset: DatasetInfo,
    pub(crate) trainer: TrainerSettings,
    /// Figures of the user's own.
    pub(crate) scalars: Vec<ScalarSpec>,
    /// Whether its program has something to save with a checkpoint that is not in the set.
    pub(crate) saves: bool,
}

impl Agreement {
    pub(crate) fn of(ready: &Ready) -> Agreement {
        Agreement {
            manifest: ready.manifest_digest,
            dataset: ready.dataset,
            trainer: ready.trainer,
            scalars: ready.scalars.clone(),
            saves: ready.saves,
        }
    }
}

/// Whether a rank brings something that can be trained.
pub(crate) fn check(ready: &Ready) -> Result<(), Breach> {
    let augment = u64::from(ready.trainer.augment.unwrap_or(1).max(1));
    let len = ready.dataset.len;
    if len == 0 || len.saturating_mul(augment) > DATASET_MAX {
        return Err(Breach::Dataset { len, max: DATASET_MAX / augment });
    }
    if ready.layout.parameters == 0 {
        return Err(Breach::NoParameters);
    }
    Ok(())
}

/// Lists of tensors: those that are known, and those that are on their way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    /// By their digest.
    known: BTreeMap<[u8; 32], Vec<TensorSpec>>,
    /// What has come from those who were asked for theirs.
    asked: BTreeMap<Rank, Vec<TensorSpec>>,
    /// Until when they are waited for.
    agenda: Agenda<Rank>,
    /// Counts what came and who was forgotten.
    changes: u64,
}

/// A part of a list of tensors.
pub(crate) struct ManifestPart {
    /// Which, from 0.
    pub(crate) part: u32,
    /// How many there are.
    pub(crate) parts: u32,
    pub(crate) tensors: Vec<TensorSpec>,
}

impl Lists {
    /// The lists of a run that has begun with this one.
    pub(crate) fn of(digest: [u8; 32], tensors: Vec<TensorSpec>) -> Lists {
        Lists { known: BTreeMap::from([(digest, tensors)]), ..Lists::default() }
    }

    pub(crate) fn get(&self, digest: &[u8; 32]) -> Vec<TensorSpec> {
        self.known.get(digest).cloned().unwrap_or_default()
    }

    /// Whether the list of that digest is on its way from `rank`, which is asked for it where it is neither there nor asked
    /// for.
    pub(crate) fn awaits(&mut self, ctx: &mut Context<'_>, digest: [u8; 32], rank: Rank) -> bool {
        if self.known.contains_key(&digest) {
            return false;
        }
        if let Entry::Vacant(entry) = self.asked.entry(rank) {
            entry.insert(Vec::new());
            self.agenda.keep(rank, Some(ctx.now.plus(ctx.deadlines.silence)));
            ctx.tell(rank, Control::SendManifest);
        }
        true
    }

    /// A life is over: nothing is on its way from it any more.
    pub(crate) fn forget(&mut self, rank: Rank) {
        self.agenda.keep(rank, None);
        self.changes += u64::from(self.asked.remove(&rank).is_some());
    }

    /// Whether a list is on its way from that rank.
    pub(crate) fn is_asked(&self, rank: Rank) -> bool {
        self.asked.contains_key(&rank)
    }

    /// Those from whom a list is on its way.
    pub(crate) fn asked(&self) -> impl Iterator<Item = Rank> {
        self.asked.keys().copied()
    }

    /// A number that grows whenever a list has come or will not come any more.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// A part of a rank's list of tensors.
    pub(crate) fn take(
        &mut self,
        ctx: &Context<'_>,
        rank: Rank,
        ManifestPart { part, parts, tensors }: ManifestPart,
    ) -> Result<(), Breach> {
        let Some(asked) = self.asked.get_mut(&rank) else { return Ok(()) };
        asked.extend(tensors);
        if asked.len() > TENSORS_MAX {
            return Err(Breach::Manifest);
        }
        if part.saturating_add(1) < parts {
            return Ok(());
        }
        let Some(list) = self.asked.remove(&rank) else { return Ok(()) };
        self.agenda.keep(rank, None);
        self.changes += 1;
        let State::Joining(ready) = &ctx.members.get(rank).ok_or(Breach::Manifest)?.state else { return Ok(()) };
        if manifest_digest(&list) != ready.manifest_digest || sizes(&list) != Some(ready.layout) {
            return Err(Breach::Manifest);
        }
        self.known.insert(ready.manifest_digest, list);
        Ok(())
    }

    /// When [`Forming::overdue`] has something to say.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.agenda.next()
    }

    /// Those whose list of tensors has not come in time, though they give signs of life.
    pub(crate) fn overdue(&mut self, ctx: &Context<'_>) -> Vec<(Rank, Fate)> {
        let fate = || Fate::ListLate { within: ctx.deadlines.silence };
        self.agenda.take_due(ctx.now).into_iter().map(|rank| (rank, fate())).collect()
    }

    /// Why a rank does not belong to the run, with both values.
    pub(crate) fn difference(&self, (rank, its): (Rank, &Agreement), (lead, runs): (&str, &Agreement)) -> Reason {
        if its.manifest != runs.manifest {
            let empty = Vec::new();
            let mine = self.known.get(&its.manifest).unwrap_or(&empty);
            let theirs = self.known.get(&runs.manifest).unwrap_or(&empty);
            let text = format!("{rank} has another model than {lead}: {}", first_difference(mine, theirs));
            return Reason::new("model-differs", text).about([rank]);
        }
        if its.dataset != runs.dataset {
            let what = if its.dataset.len == runs.dataset.len { "other samples of the same number" } else { "samples" };
            let text = format!(
                "{rank} has another dataset than {lead}: {} against {} {what} (signatures {} and {}); give every rank the same files",
                its.dataset.len,
                runs.dataset.len,
                short(&its.dataset.signature),
                short(&runs.dataset.signature)
            );
            return Reason::new("dataset-differs", text).about([rank]);
        }
        let text = format!(
            "{rank} asks for other trainer settings than {lead}: {} against {}; start every rank with the same program and options",
            settings(its),
            settings(runs)
        );
        Reason::new("settings-differ", text).about([rank])
    }
}

/// The sizes of the sections; `None` where they overflow.
pub(crate) fn sizes(tensors: &[TensorSpec]) -> Option<LayoutSizes> {
    let mut sizes = LayoutSizes::default();
    for tensor in tensors {
        let section = match tensor.section {
            Section::Parameters => &mut sizes.parameters,
            Section::Buffers => &mut sizes.buffers,
            Section::Integers => &mut sizes.integers,
        };
        *section = section.checked_add(tensor.elements()?)?;
    }
    Some(sizes)
}

fn first_difference(mine: &[TensorSpec], theirs: &[TensorSpec]) -> String {
    let differing = mine.iter().zip(theirs).position(|(a, b)| a != b);
    let at = differing.unwrap_or(mine.len().min(theirs.len()));
    let show = |tensors: &[TensorSpec]| match tensors.get(at) {
        Some(t) => format!("\"{}\" {:?} {:?}", t.name, t.dtype, t.shape),
        None => format!("nothing ({} tensors)", tensors.len()),
    };
    format!("tensor {at} is {} here, {} there", show(mine), show(theirs))
}

fn short(signature: &[u8; 32]) -> String {
    signature[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn settings(Agreement { trainer, scalars, saves, .. }: &Agreement) -> String {
    fn show<T: fmt::Display>(value: Option<T>) -> String {
        value.map_or_else(|| "any".to_owned(), |value| value.to_string())
    }
    let (batch, epochs, augment) = (show(trainer.batch_size), show(trainer.epochs), show(trainer.augment));
    let mut text = format!("batch size {batch}, epochs {epochs}, augment {augment}");
    if !scalars.is_empty() {
        let names: Vec<String> = scalars.iter().map(|of| format!("{} ({:?})", of.name, of.reduction)).collect();
        text.push_str(&format!(", scalars {}", names.join(" ")));
    }
    if *saves {
        text.push_str(", saves with checkpoints");
    }
    text
}

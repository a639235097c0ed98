//! Before the run: who is ready, who agrees with whom, and when it may start.

use crate::context::Context;
use crate::gate::list;
use crate::members::State;
use crate::{Breach, Fate};
use core::fmt;
use flodl_elche::DeviceSpec;
use flodl_wire::codec::manifest_digest;
use flodl_wire::message::Control;
use flodl_wire::message::join::{DatasetInfo, LayoutSizes, Ready, RunConfig, Section, TensorSpec, TrainerSettings};
use flodl_wire::message::record::{Body, EventKind, Meta, Reason};
use flodl_wire::{Rank, Time};
use std::collections::BTreeMap;

/// Samples of a dataset at the most: position arithmetic stays far from overflow.
pub(crate) const DATASET_MAX: u64 = 1 << 48;
/// Tensors of a model at the most.
const TENSORS_MAX: usize = 1 << 20;
const BATCH_SIZE_DEFAULT: u32 = 64;
const EPOCHS_DEFAULT: u64 = 1;

/// The time before the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forming {
    /// Lists of tensors by their digest, as far as they are known.
    manifests: BTreeMap<[u8; 32], Vec<TensorSpec>>,
    /// Those who were asked for theirs.
    asked: BTreeMap<Rank, Asked>,
}

/// A list of tensors on its way.
#[derive(Clone, Debug)]
struct Asked {
    until: Time,
    tensors: Vec<TensorSpec>,
}

/// A part of a list of tensors.
pub(crate) struct ManifestPart {
    /// Which, from 0.
    pub(crate) part: u32,
    /// How many there are.
    pub(crate) parts: u32,
    pub(crate) tensors: Vec<TensorSpec>,
}

/// What the run trains, agreed on by all of its ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Agreed {
    pub(crate) layout: LayoutSizes,
    pub(crate) tensors: Vec<TensorSpec>,
    pub(crate) dataset_len: u64,
    pub(crate) epoch_len: u64,
    pub(crate) epochs: u64,
    pub(crate) batch_size: u32,
    /// How fast the ranks' devices should be relative to each other, of those whose devices are known.
    pub(crate) speeds: Vec<(Rank, f64)>,
}

/// What formation has come to.
#[derive(Debug)]
pub(crate) enum Formed {
    /// Not yet, and why.
    Waiting(Waiting),
    /// The run starts.
    Run(Box<Agreed>),
    /// Too few ranks are left.
    TooFew(Reason),
}

/// What formation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Hosts that would bring these.
    Hosts { missing: Vec<Rank> },
    /// Ranks that are starting.
    Ready { missing: Vec<Rank> },
    /// Lists of tensors.
    Manifests { from: Vec<Rank> },
}

/// What ranks of one run have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Agreement {
    manifest: [u8; 32],
    dataset: DatasetInfo,
    trainer: TrainerSettings,
}

impl Agreement {
    fn of(ready: &Ready) -> Agreement {
        Agreement { manifest: ready.manifest_digest, dataset: ready.dataset, trainer: ready.trainer }
    }
}

impl Forming {
    /// A rank is ready.
    pub(crate) fn ready(&mut self, ctx: &mut Context<'_>, rank: Rank, ready: Box<Ready>) -> Result<(), Breach> {
        let augment = u64::from(ready.trainer.augment.unwrap_or(1).max(1));
        let len = ready.dataset.len;
        if len == 0 || len.saturating_mul(augment) > DATASET_MAX {
            return Err(Breach::Dataset { len, max: DATASET_MAX / augment });
        }
        if ready.layout.parameters == 0 {
            return Err(Breach::NoParameters);
        }
        let Some(member) = ctx.members.get_mut(rank).filter(|member| matches!(member.state, State::Starting)) else {
            return Ok(());
        };
        member.state = State::Joining(ready);
        ctx.event(EventKind::RankReady { rank }, None);
        Ok(())
    }

    /// A part of a rank's list of tensors.
    pub(crate) fn manifest(
        &mut self,
        ctx: &Context<'_>,
        rank: Rank,
        ManifestPart { part, parts, tensors }: ManifestPart,
    ) -> Result<(), Breach> {
        let Some(asked) = self.asked.get_mut(&rank) else { return Ok(()) };
        asked.tensors.extend(tensors);
        if asked.tensors.len() > TENSORS_MAX {
            return Err(Breach::Manifest);
        }
        if part.saturating_add(1) < parts {
            return Ok(());
        }
        let Some(Asked { tensors: list, .. }) = self.asked.remove(&rank) else { return Ok(()) };
        let State::Joining(ready) = &ctx.members.get(rank).ok_or(Breach::Manifest)?.state else { return Ok(()) };
        if manifest_digest(&list) != ready.manifest_digest || sizes(&list) != Some(ready.layout) {
            return Err(Breach::Manifest);
        }
        self.manifests.insert(ready.manifest_digest, list);
        Ok(())
    }

    /// When [`Forming::overdue`] has something to say.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.asked.values().map(|asked| asked.until).min()
    }

    /// Those whose list of tensors has not come in time, though they give signs of life.
    pub(crate) fn overdue(&self, ctx: &Context<'_>) -> Vec<(Rank, Fate)> {
        let fate = || Fate::Breach(Breach::ManifestLate { within: ctx.deadlines.silence });
        let late = self.asked.iter().filter(|(_, asked)| ctx.now >= asked.until);
        late.map(|(&rank, _)| (rank, fate())).collect()
    }

    /// Whether the run can start now.
    pub(crate) fn advance(&mut self, ctx: &mut Context<'_>) -> Formed {
        let gone = ctx.members.iter().filter(|member| member.is_gone()).count();
        let left = (ctx.config.world_size as usize).saturating_sub(gone);
        if left < ctx.config.min_ranks as usize {
            return Formed::TooFew(too_few(ctx, left));
        }
        if let Some(waiting) = self.missing(ctx) {
            return Formed::Waiting(waiting);
        }
        let groups = groups(ctx);
        if let Some(waiting) = self.ask_manifests(ctx, &groups) {
            return Formed::Waiting(waiting);
        }
        self.close(ctx, &groups)
    }

    fn missing(&self, ctx: &Context<'_>) -> Option<Waiting> {
        let absent: Vec<Rank> =
            (0..ctx.config.world_size).map(Rank).filter(|&rank| ctx.members.get(rank).is_none()).collect();
        if !absent.is_empty() {
            return Some(Waiting::Hosts { missing: absent });
        }
        let starting = ctx.members.living().filter(|member| !matches!(member.state, State::Joining(_)));
        let missing: Vec<Rank> = starting.map(|member| member.rank).collect();
        (!missing.is_empty()).then_some(Waiting::Ready { missing })
    }

    /// The list of tensors behind each digest is asked for once, from the lowest rank that announced it.
    fn ask_manifests(&mut self, ctx: &mut Context<'_>, groups: &[(Agreement, Vec<Rank>)]) -> Option<Waiting> {
        self.asked.retain(|&rank, _| ctx.members.get(rank).is_some_and(|member| !member.is_gone()));
        let mut from = Vec::new();
        let mut wanted: BTreeMap<[u8; 32], Rank> = BTreeMap::new();
        for (agreement, ranks) in groups {
            for &rank in ranks {
                let lowest = wanted.entry(agreement.manifest).or_insert(rank);
                *lowest = rank.min(*lowest);
            }
        }
        for (digest, rank) in wanted {
            if self.manifests.contains_key(&digest) {
                continue;
            }
            if let std::collections::btree_map::Entry::Vacant(entry) = self.asked.entry(rank) {
                entry.insert(Asked { until: ctx.now.plus(ctx.deadlines.silence), tensors: Vec::new() });
                ctx.tell(rank, Control::SendManifest);
            }
            from.push(rank);
        }
        (!from.is_empty()).then_some(Waiting::Manifests { from })
    }

    fn close(&self, ctx: &mut Context<'_>, groups: &[(Agreement, Vec<Rank>)]) -> Formed {
        let largest = groups.iter().max_by_key(|(_, ranks)| (ranks.len(), core::cmp::Reverse(ranks.first().copied())));
        let Some((agreement, ranks)) = largest else { return Formed::TooFew(too_few(ctx, 0)) };
        for (other, refused) in groups.iter().filter(|(other, _)| other != agreement) {
            for &rank in refused {
                let why = self.difference((rank, other), (ranks[0], agreement));
                refuse(ctx, rank, why);
            }
        }
        if ranks.len() < ctx.config.min_ranks as usize {
            return Formed::TooFew(too_few(ctx, ranks.len()));
        }
        let tensors = self.manifests.get(&agreement.manifest).cloned().unwrap_or_default();
        let augment = u64::from(agreement.trainer.augment.unwrap_or(1).max(1));
        let agreed = Agreed {
            layout: sizes(&tensors).unwrap_or_default(),
            tensors,
            dataset_len: agreement.dataset.len,
            epoch_len: agreement.dataset.len * augment,
            epochs: ctx.config.epochs.or(agreement.trainer.epochs).unwrap_or(EPOCHS_DEFAULT).max(1),
            batch_size: ctx.config.batch_size.or(agreement.trainer.batch_size).unwrap_or(BATCH_SIZE_DEFAULT).max(1),
            speeds: ranks.iter().filter_map(|&rank| Some((rank, expected_speed(ctx, rank)?))).collect(),
        };
        announce(ctx, &agreed, ranks);
        Formed::Run(Box::new(agreed))
    }

    /// Why a rank does not belong to the run, with both values.
    fn difference(&self, (rank, its): (Rank, &Agreement), (lead, runs): (Rank, &Agreement)) -> Reason {
        if its.manifest != runs.manifest {
            let empty = Vec::new();
            let mine = self.manifests.get(&its.manifest).unwrap_or(&empty);
            let theirs = self.manifests.get(&runs.manifest).unwrap_or(&empty);
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
            settings(&its.trainer),
            settings(&runs.trainer)
        );
        Reason::new("settings-differ", text).about([rank])
    }
}

/// Ready ranks by what they agree on, in order of each group's lowest rank.
fn groups(ctx: &Context<'_>) -> Vec<(Agreement, Vec<Rank>)> {
    let mut groups: Vec<(Agreement, Vec<Rank>)> = Vec::new();
    for member in ctx.members.living() {
        let State::Joining(ready) = &member.state else { continue };
        let agreement = Agreement::of(ready);
        match groups.iter_mut().find(|(other, _)| *other == agreement) {
            Some((_, ranks)) => ranks.push(member.rank),
            None => groups.push((agreement, vec![member.rank])),
        }
    }
    groups
}

/// What the maker of a rank's device leads to expect.
fn expected_speed(ctx: &Context<'_>, rank: Rank) -> Option<f64> {
    match &ctx.members.get(rank)?.state {
        State::Joining(ready) => Some(DeviceSpec::of(&ready.device)?.speed()),
        _ => None,
    }
}

fn refuse(ctx: &mut Context<'_>, rank: Rank, why: Reason) {
    ctx.event(EventKind::RankRefused { rank }, Some(why.clone()));
    ctx.tell(rank, Control::Refused { why: why.clone() });
    ctx.members.leave(rank, &Fate::Refused(why));
}

/// Tells every rank of the run its settings, the root the layout, the monitor the frame of it all.
fn announce(ctx: &mut Context<'_>, agreed: &Agreed, ranks: &[Rank]) {
    ctx.out.push_back(crate::Output::Layout(agreed.layout));
    for &rank in ranks {
        let config = RunConfig {
            run_id: ctx.config.run_id,
            world_size: ranks.len() as u32,
            mode: ctx.config.mode.to_string(),
            epochs: agreed.epochs,
            batch_size: agreed.batch_size,
            seed: ctx.config.seed,
            dataset_len: agreed.dataset_len,
            epoch_len: agreed.epoch_len,
            layout: agreed.layout,
            patience: ctx.config.patience,
            emulation: ctx.config.slow.of(rank),
        };
        ctx.tell(rank, Control::Admitted(Box::new(config)));
        ctx.members.enter(rank);
    }
    let meta = Meta {
        run_id: ctx.config.run_id,
        flodl: env!("CARGO_PKG_VERSION").to_owned(),
        world_size: ranks.len() as u32,
        mode: ctx.config.mode.to_string(),
        epochs: agreed.epochs,
        batch_size: agreed.batch_size,
        dataset_len: agreed.dataset_len,
        epoch_len: agreed.epoch_len,
        seed: ctx.config.seed,
        parameters: agreed.layout.parameters,
        patience: ctx.config.patience,
        emulated: ranks.iter().filter_map(|&rank| Some((rank, ctx.config.slow.of(rank)?))).collect(),
        hosts: ctx.members.hosts().map(|(_, link)| (link.host, link.ranks.clone())).collect(),
    };
    ctx.record(Body::Meta(Box::new(meta)));
    ctx.event(EventKind::Formed { ranks: ranks.to_vec() }, None);
}

/// Why the run does not start, with what became of everybody who is missing.
fn too_few(ctx: &Context<'_>, able: usize) -> Reason {
    let mut why = TooFew { able, min: ctx.config.min_ranks, gone: Vec::new() };
    for member in ctx.members.iter() {
        if let State::Gone(fate) = &member.state {
            why.gone.push((member.rank, fate.to_string()));
        }
    }
    Reason::new("too-few-ranks", why.to_string()).about(why.gone.iter().map(|&(rank, _)| rank))
}

struct TooFew {
    able: usize,
    min: u32,
    gone: Vec<(Rank, String)>,
}

impl fmt::Display for TooFew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooFew { able, min, gone } = self;
        write!(f, "only {able} of the ranks can take part and the run needs {min} (--min-ranks): ")?;
        list(f, gone, |f, (rank, fate)| write!(f, "{rank}: {fate}"))
    }
}

/// The sizes of the sections; `None` where they overflow.
fn sizes(tensors: &[TensorSpec]) -> Option<LayoutSizes> {
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

fn settings(trainer: &TrainerSettings) -> String {
    fn show<T: fmt::Display>(value: Option<T>) -> String {
        value.map_or_else(|| "any".to_owned(), |value| value.to_string())
    }
    let (batch, epochs, augment) = (show(trainer.batch_size), show(trainer.epochs), show(trainer.augment));
    format!("batch size {batch}, epochs {epochs}, augment {augment}")
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, ranks) = match self {
            Waiting::Hosts { missing } => ("waiting for hosts to bring ", missing),
            Waiting::Ready { missing } => ("waiting for the processes of ", missing),
            Waiting::Manifests { from } => ("waiting for the list of tensors of ", from),
        };
        f.write_str(what)?;
        list(f, ranks, |f, rank| write!(f, "{rank}"))
    }
}

impl From<&Waiting> for Reason {
    fn from(waiting: &Waiting) -> Reason {
        let (code, ranks) = match waiting {
            Waiting::Hosts { missing } => ("waiting-for-hosts", missing),
            Waiting::Ready { missing } => ("waiting-for-ready", missing),
            Waiting::Manifests { from } => ("waiting-for-manifests", from),
        };
        Reason::new(code, waiting.to_string()).about(ranks.iter().copied())
    }
}

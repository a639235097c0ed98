//! Before the run: who is ready, who agrees with whom, and when it may start.

use crate::Fate;
use crate::agreement::{Agreement, Lists, sizes};
use crate::context::Context;
use crate::gate::{list, shown};
use crate::members::{Member, State};
use core::fmt;
use flodl_elche::{DeviceSpec, Passes};
use flodl_wire::Rank;
use flodl_wire::message::Control;
use flodl_wire::message::join::{LayoutSizes, RunConfig, TensorSpec};
use flodl_wire::message::record::{Body, EventKind, Meta, Reason};
use std::collections::BTreeMap;

const BATCH_SIZE_DEFAULT: u32 = 64;
const EPOCHS_DEFAULT: u64 = 1;

/// The time before the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forming {
    pub(crate) lists: Lists,
    /// The ranks were compared when so much had come of the lists, and some were on their way.
    compared: Option<u64>,
}

/// What the run trains, agreed on by all of its ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Agreed {
    pub(crate) agreement: Agreement,
    pub(crate) layout: LayoutSizes,
    pub(crate) tensors: Vec<TensorSpec>,
    pub(crate) dataset_len: u64,
    pub(crate) passes: Passes,
    pub(crate) epochs: u64,
    pub(crate) batch_size: u32,
    /// How fast the ranks' devices should be relative to each other, of those whose devices are known.
    pub(crate) speeds: Vec<(Rank, f64)>,
}

/// What formation has come to.
#[derive(Debug)]
pub(crate) enum Formed {
    /// Not yet; [`Forming::waits`] says why.
    Waiting,
    /// The run starts.
    Run(Box<Agreed>),
    /// Too few ranks are left.
    TooFew(Reason),
}

/// What formation waits for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Hosts that would bring the ranks that are missing.
    Hosts,
    /// Ranks that are starting.
    Ready,
    /// Lists of tensors.
    Manifests,
}

impl Forming {
    /// Whether the run can start now.
    pub(crate) fn advance(&mut self, ctx: &mut Context<'_>) -> Formed {
        let gone = ctx.members.tally().gone.len();
        let left = (ctx.config.world_size as usize).saturating_sub(gone);
        if left < ctx.config.min_ranks as usize {
            return Formed::TooFew(too_few(ctx, left));
        }
        if self.waits(ctx).is_some() {
            return Formed::Waiting;
        }
        let groups = groups(ctx);
        self.compared = Some(self.lists.changes());
        if self.ask_manifests(ctx, &groups) {
            return Formed::Waiting;
        }
        self.close(ctx, &groups)
    }

    /// What is waited for before the ranks can be compared (again).
    pub(crate) fn waits(&self, ctx: &Context<'_>) -> Option<Waiting> {
        let tally = ctx.members.tally();
        if ctx.members.ever() < ctx.config.world_size as usize {
            return Some(Waiting::Hosts);
        }
        if tally.joining.len() + tally.gone.len() < ctx.members.ever() {
            return Some(Waiting::Ready);
        }
        (self.compared == Some(self.lists.changes())).then_some(Waiting::Manifests)
    }

    /// The list of tensors behind each digest is asked for once, from the lowest rank that announced it. Whether one is on
    /// its way.
    fn ask_manifests(&mut self, ctx: &mut Context<'_>, groups: &[(Agreement, Vec<Rank>)]) -> bool {
        let mut waits = false;
        let mut wanted: BTreeMap<[u8; 32], Rank> = BTreeMap::new();
        for (agreement, ranks) in groups {
            for &rank in ranks {
                let lowest = wanted.entry(agreement.manifest).or_insert(rank);
                *lowest = rank.min(*lowest);
            }
        }
        for (digest, rank) in wanted {
            waits |= self.lists.awaits(ctx, digest, rank);
        }
        waits
    }

    fn close(&self, ctx: &mut Context<'_>, groups: &[(Agreement, Vec<Rank>)]) -> Formed {
        let largest = groups.iter().max_by_key(|(_, ranks)| (ranks.len(), core::cmp::Reverse(ranks.first().copied())));
        let Some((agreement, ranks)) = largest else { return Formed::TooFew(too_few(ctx, 0)) };
        for (other, refused) in groups.iter().filter(|(other, _)| other != agreement) {
            for &rank in refused {
                let why = self.lists.difference((rank, other), (&ranks[0].to_string(), agreement));
                refuse(ctx, rank, why);
            }
        }
        if ranks.len() < ctx.config.min_ranks as usize {
            return Formed::TooFew(too_few(ctx, ranks.len()));
        }
        let tensors = self.lists.get(&agreement.manifest);
        let augment = u64::from(agreement.trainer.augment.unwrap_or(1).max(1));
        let agreed = Agreed {
            agreement: agreement.clone(),
            layout: sizes(&tensors).unwrap_or_default(),
            tensors,
            dataset_len: agreement.dataset.len,
            passes: Passes::new(agreement.dataset.len.saturating_mul(augment), ctx.config.epoch_splits),
            epochs: ctx.config.epochs.or(agreement.trainer.epochs).unwrap_or(EPOCHS_DEFAULT).max(1),
            batch_size: ctx.config.batch_size.or(agreement.trainer.batch_size).unwrap_or(BATCH_SIZE_DEFAULT).max(1),
            speeds: expected_speeds(ctx, ranks),
        };
        announce(ctx, &agreed, ranks);
        Formed::Run(Box::new(agreed))
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

/// How fast ranks may be to each other before the first window: by a step of each when it warmed up, where all have
/// measured one, else by what the makers of their devices say.
fn expected_speeds(ctx: &Context<'_>, ranks: &[Rank]) -> Vec<(Rank, f64)> {
    let ready = |rank: Rank| match &ctx.members.get(rank)?.state {
        State::Joining(ready) => Some(ready),
        _ => None,
    };
    let warm = |&rank: &Rank| {
        let step = ready(rank)?.step.filter(|step| !step.is_zero())?;
        Some((rank, 1.0 / ctx.config.slow.step(rank, step).as_secs_f64()))
    };
    let spec = |&rank: &Rank| Some((rank, DeviceSpec::of(&ready(rank)?.device)?.speed()));
    let warm: Option<Vec<(Rank, f64)>> = ranks.iter().map(warm).collect();
    warm.unwrap_or_else(|| ranks.iter().filter_map(spec).collect())
}

pub(crate) fn refuse(ctx: &mut Context<'_>, rank: Rank, why: Reason) {
    ctx.event(EventKind::RankRefused { rank }, Some(why.clone()));
    ctx.tell(rank, Control::Refused { why: why.clone() });
    ctx.members.leave(rank, &Fate::Refused(why), ctx.now);
}

/// The run's settings for one rank, where so many are in it.
pub(crate) fn run_config(ctx: &Context<'_>, agreed: &Agreed, (rank, world_size): (Rank, u32)) -> RunConfig {
    RunConfig {
        run_id: ctx.config.run_id,
        world_size,
        mode: ctx.config.mode.to_string(),
        epochs: agreed.epochs,
        batch_size: agreed.batch_size,
        seed: ctx.config.seed,
        dataset_len: agreed.dataset_len,
        epoch_len: agreed.passes.longest(),
        pass_len: agreed.passes.len(),
        epoch_splits: ctx.config.epoch_splits,
        layout: agreed.layout,
        patience: ctx.config.patience,
        emulation: ctx.config.slow.of(rank),
        deterministic: ctx.config.scheduling.deterministic,
    }
}

/// Tells every rank of the run its settings, the root the layout, the monitor the frame of it all.
fn announce(ctx: &mut Context<'_>, agreed: &Agreed, ranks: &[Rank]) {
    ctx.out.push_back(crate::Output::Layout(agreed.layout));
    for &rank in ranks {
        ctx.tell(rank, Control::Admitted(Box::new(run_config(ctx, agreed, (rank, ranks.len() as u32)))));
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
        epoch_len: agreed.passes.longest(),
        samples: agreed.passes.samples(agreed.epochs),
        epoch_splits: ctx.config.epoch_splits,
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

impl Waiting {
    /// What is waited for, with whom it is about.
    pub(crate) fn reason(self, forming: &Forming, ctx: &Context<'_>) -> Reason {
        let absent = |rank: &Rank| ctx.members.get(*rank).is_none();
        let starting = |member: &&Member| !matches!(member.state, State::Joining(_));
        let (code, what, ranks): (_, _, Vec<Rank>) = match self {
            Waiting::Hosts => {
                let missing = (0..ctx.config.world_size).map(Rank).filter(absent).collect();
                ("waiting-for-hosts", "waiting for hosts to bring ", missing)
            }
            Waiting::Ready => {
                let missing = ctx.members.living().filter(starting).map(|member| member.rank).collect();
                ("waiting-for-ready", "waiting for the processes of ", missing)
            }
            Waiting::Manifests => {
                ("waiting-for-manifests", "waiting for the list of tensors of ", forming.lists.asked().collect())
            }
        };
        Reason::new(code, format!("{what}{}", shown(&ranks))).about(ranks)
    }
}

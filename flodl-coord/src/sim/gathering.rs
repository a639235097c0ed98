//! The simulated NCCL of all ranks: communicators that form once every member has come, and collectives that come to an end
//! once every member is in them.
//!
//! Whoever does not come leaves all others hanging, as the library does. What a member took out of a collective that others did
//! not finish is the worst there is: its replica holds a result that nobody else has.

use super::class::Class;
use super::collectives::{Came, Issue, Want};
use super::fabric::{Event, Fabric};
use super::ledger::Life;
use super::model::Vectors;
use super::net::Node;
use super::violation::Rule;
use flodl_nccl::session::{Generation, Input as Heard, Stopped};
use flodl_nccl::{ErrorCode, UniqueId, Version};
use flodl_wire::{NcclSession, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const MS: u64 = 1_000_000;
/// Versions of the library: one that only aborts, one that can shrink, one that can revoke.
const VERSIONS: [Version; 3] = [Version::new(2, 14, 3), Version::new(2, 27, 3), Version::new(2, 28, 9)];

/// One communicator.
#[derive(Debug, Default)]
struct Group {
    /// Who has come, in which process.
    members: BTreeMap<Life, u32>,
    /// Who has ended its part.
    gone: BTreeSet<Life>,
    entered: BTreeMap<Life, Issue>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    groups: BTreeMap<Generation, Group>,
    /// Who has gone into a collective and not come out, in which process.
    inside: BTreeMap<Life, (Generation, u32)>,
    /// Whose thread is in a call that does not return.
    pub(crate) stuck: BTreeSet<Life>,
    /// Faults that wait for their occasion.
    pub(crate) armed: BTreeMap<Rank, Class>,
    /// When somebody goes into a collective next, a person asks for the end, twice.
    pub(crate) stops: bool,
}

impl Gathering {
    fn strikes(&mut self, life: Life, class: Class) -> bool {
        self.armed.get(&life.0) == Some(&class) && self.armed.remove(&life.0).is_some()
    }

    /// Processes that are in a collective.
    pub(crate) fn inside(&self) -> impl Iterator<Item = (Life, u32)> + '_ {
        self.inside.iter().map(|(&life, &(_, seat))| (life, seat))
    }

    /// Whether that communicator is nothing to that life any more.
    fn is_gone(&self, life: Life, generation: Generation) -> bool {
        self.groups.get(&generation).is_none_or(|group| group.gone.contains(&life))
    }
}

/// The library of a run.
pub(crate) fn version(seed: u64) -> Version {
    VERSIONS[(seed % 3) as usize]
}

impl Fabric {
    /// A rank's session wants something of its library.
    pub(crate) fn library(&mut self, seat: u32, life: Life, want: Want) {
        self.say(|| format!("{} ({}) wants {}", life.0, life.1, told(&want)));
        let patience = self.options.work.patience.as_nanos() as u64;
        match want {
            Want::Id(generation) => {
                let late = self.gathering.strikes(life, Class::NcclLateId);
                let takes = if late { patience * 3 / 4 } else { self.rng.within(MS / 10, 3 * MS) };
                let mut id = [0; UniqueId::BYTES];
                id[..8].copy_from_slice(&generation.0.to_le_bytes());
                id[8..12].copy_from_slice(&life.0.0.to_le_bytes());
                let made = Heard::IdMade(generation, Some(UniqueId::from_bytes(id)));
                self.answer(takes, seat, Came::Heard(made));
            }
            Want::Form { generation, size } => {
                if !self.gathering.strikes(life, Class::NcclInitHang) {
                    self.comes(seat, life, (generation, size));
                }
            }
            Want::Issue(issue) => self.enters(seat, life, *issue),
            Want::End { generation, revokes } => {
                self.gathering.groups.entry(generation).or_default().gone.insert(life);
                if self.gathering.strikes(life, Class::NcclAbortHang) {
                    // Its thread does not come back. Another one notices, and ends the process.
                    self.gathering.stuck.insert(life);
                    return self.answer(patience * 3, seat, Came::Never);
                }
                self.gathering.inside.remove(&life);
                let how = if revokes { Stopped::Revoked } else { Stopped::Ended };
                let takes = self.rng.within(MS / 10, 20 * MS);
                self.answer(takes, seat, Came::Heard(Heard::Stopped(generation, how)));
            }
        }
    }

    fn answer(&mut self, takes: u64, seat: u32, came: Came) {
        self.after(takes, Event::Library(seat, Box::new(came)));
    }

    fn comes(&mut self, seat: u32, life: Life, (generation, size): (Generation, u32)) {
        let group = self.gathering.groups.entry(generation).or_default();
        group.members.insert(life, seat);
        if group.members.len() < size as usize || !group.gone.is_empty() {
            return;
        }
        let seats: Vec<u32> = group.members.values().copied().collect();
        for seat in seats {
            let takes = self.rng.within(MS, 30 * MS);
            self.answer(takes, seat, Came::Heard(Heard::Formed(generation)));
        }
        // Nobody comes back to those before.
        let newest = self.gathering.groups.split_off(&Generation(generation.0.saturating_sub(8)));
        self.gathering.groups = newest;
    }

    fn enters(&mut self, seat: u32, life: Life, issue: Issue) {
        if self.gathering.strikes(life, Class::NcclCrash) {
            self.vital(Node::Seat(seat)).fuse = Some(1);
        }
        let (generation, round, root) = (issue.generation, issue.round, issue.root);
        self.gathering.inside.insert(life, (generation, seat));
        if self.gathering.strikes(life, Class::NcclAsyncError) {
            let takes = self.rng.within(MS / 10, 30 * MS);
            self.answer(takes, seat, Came::Heard(Heard::Broken(ErrorCode::Remote)));
            // Others may be through before it comes.
            if self.rng.chance(0.5) {
                return;
            }
        }
        let Some(group) = self.gathering.groups.get_mut(&generation) else { return };
        group.entered.insert(life, issue);
        let all = |group: &Group| group.entered.len() == group.members.len() && group.gone.is_empty();
        let is_one = |group: &Group| group.entered.values().all(|other| (other.round, other.root) == (round, root));
        if !all(group) || !is_one(group) {
            return;
        }
        let entered = core::mem::take(&mut group.entered);
        let seats: Vec<u32> = group.members.values().copied().collect();
        let bytes = Rc::new(averaged(&entered, root));
        let root = root.and_then(|place| entered.keys().nth(place as usize).copied());
        let masses = entered.iter().map(|(&life, issue)| (life, issue.mass)).collect();
        self.ledger.collected((round, NcclSession(generation.0)), (masses, root), Rc::clone(&bytes));
        for seat in seats {
            let takes = self.rng.within(MS, 40 * MS);
            self.answer(takes, seat, Came::Collected { generation, round, bytes: Rc::clone(&bytes) });
        }
    }

    /// What comes of it, as long as it is anything to that life.
    pub(crate) fn is_heard(&mut self, life: Life, came: &Came) -> bool {
        match came {
            Came::Collected { generation, .. } => {
                let heard = !self.gathering.is_gone(life, *generation);
                if heard {
                    self.gathering.inside.remove(&life);
                }
                heard
            }
            Came::Heard(_) | Came::Never => true,
        }
    }

    /// A rank is told to end: nobody may be in a collective then, unless the coordinator has given it up.
    pub(crate) fn nobody_is_inside(&mut self, told: Life) {
        let lives = |&(_, seat): &(Life, u32)| self.seats[seat as usize].alive;
        let counts = |((rank, _), _): &(Life, u32)| !self.ledger.let_go.contains(rank);
        let inside = self.gathering.inside().filter(lives).find(counts);
        if let Some(((rank, _), _)) = inside {
            self.ledger.broken(Rule::Inside, format!("{} is told to end while {rank} averages with others", told.0));
        }
    }

    /// A process is over.
    pub(crate) fn leaves_library(&mut self, life: Life) {
        self.gathering.inside.remove(&life);
    }
}

/// The average by mass, or what the root has: what all take out of a collective.
fn averaged(entered: &BTreeMap<Life, Issue>, root: Option<u32>) -> Vec<u8> {
    if let Some(root) = root {
        return entered.values().nth(root as usize).map(|issue| issue.model.bytes()).unwrap_or_default();
    }
    let movers: Vec<(f64, &Vectors)> =
        entered.values().filter(|issue| issue.mass > 0.0).map(|issue| (issue.mass, &issue.model)).collect();
    let mass: f64 = movers.iter().map(|(mass, _)| mass).sum();
    let count = movers.len().max(1) as f64;
    let weights = movers.first().map_or(0, |(_, model)| model.weights.len());
    let weight = |at: usize| movers.iter().map(|(mass, model)| mass * f64::from(model.weights[at])).sum::<f64>() / mass;
    let mean = |at: usize| movers.iter().map(|(_, model)| f64::from(model.means[at])).sum::<f64>() / count;
    let floats = (0..weights).map(weight).chain((0..2).map(mean)).flat_map(|value| (value as f32).to_le_bytes());
    let steps = movers.iter().map(|(_, model)| model.steps[0]).max().unwrap_or(0);
    floats.chain(steps.to_le_bytes()).collect()
}

fn told(want: &Want) -> String {
    match want {
        Want::Id(generation) => format!("an id for {}", generation.0),
        Want::Form { generation, size } => format!("to form {} of {size}", generation.0),
        Want::Issue(issue) => {
            format!(
                "a collective of {} on {}, mass {}, root {:?}",
                issue.round, issue.generation.0, issue.mass, issue.root
            )
        }
        Want::End { generation, revokes: true } => format!("to revoke {}", generation.0),
        Want::End { generation, .. } => format!("to abort {}", generation.0),
    }
}

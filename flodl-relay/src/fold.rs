//! The fold of one host: its ranks' chunks in, their sums out, in rank order.
//!
//! Sans-IO: [`HostFold::handle`] takes an [`Input`], [`HostFold::poll`] gives [`Output`]s until `None`, and
//! [`HostFold::next_deadline`] says when [`Input::Tick`] is due. A shell runs it on a thread of its own, because folding
//! takes whole milliseconds.

use crate::coding::{Base, Sums};
use crate::id::{absence, absent_why, contributor, layout, mass, rank as rank_of, round_of};
use bytes::Bytes;
use core::time::Duration;
use flodl_cpureduce::{Absence, DecodeError, Fold, Folded, Layout, LayoutError, MassError, Reject, Rooms};
use flodl_wire::message::Data;
use flodl_wire::message::control::Part;
use flodl_wire::message::data::{AbsentWhy, Chunk, Codec};
use flodl_wire::message::join::LayoutSizes;
use flodl_wire::{Incarnation, Rank, Round, Time, Version};
use std::collections::{BTreeMap, VecDeque};

/// A rank of this host that takes part in a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub rank: Rank,
    /// Which of its lives.
    pub incarnation: Incarnation,
    /// What it does. Nobody waits for a rank that only receives.
    pub part: Part,
}

/// What the relay orders. Orders overtake data.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// The sizes of the model, before the first round.
    Layout(LayoutSizes),
    /// A round begins, with these ranks of this host. A round that is still open is abandoned.
    Open {
        /// The round.
        round: Round,
        /// The consensus its ranks hold; zero before there is one.
        version: Version,
        /// The host's ranks in it, in rank order.
        members: Vec<Member>,
    },
    /// When the next round opens the host holds that consensus: sums of that round travel as differences from it.
    Hold(Base),
    /// The open round is committed: of this host's chunks those before that one are in it.
    Commit {
        /// The round.
        round: Round,
        /// The first chunk without this host.
        chunks: u32,
    },
    /// A rank's life is over: the open round goes on without it.
    Drop {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// Why.
        why: AbsentWhy,
    },
    /// The round is over, whether or not all of it was folded.
    Close {
        /// The round.
        round: Round,
    },
}

/// What a host's fold is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The relay orders something.
    Order(Order),
    /// A rank of this host sent something on its data connection.
    Data {
        /// Who, known from the connection.
        rank: Rank,
        /// Which life, known from the connection.
        incarnation: Incarnation,
        /// What.
        data: Data,
    },
    /// A rank's data connection ended, after everything that came through it.
    Ended {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
    },
    /// Time has passed.
    Tick,
}

/// What a host's fold wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send to the root.
    Up(Data),
    /// Tell the coordinator that the fold waits for a rank while the rest of the chunk is there.
    Waiting {
        /// The round.
        round: Round,
        /// Who is waited for.
        rank: Rank,
        /// Which chunk.
        chunk: u32,
    },
    /// Close a rank's connections: what it sent cannot be folded.
    Breach {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// Why.
        why: DataBreach,
    },
    /// The layout was refused; no round can be folded.
    Unusable(LayoutError),
}

/// Why a contribution cannot be folded, and the connection that carried it is closed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DataBreach {
    /// A chunk or absence that does not fit the round.
    #[error(transparent)]
    Fold(#[from] Reject),
    /// A number that is no mass.
    #[error(transparent)]
    Mass(#[from] MassError),
    /// Differences that cannot be read.
    #[error(transparent)]
    Code(#[from] DecodeError),
    /// What no lane of shared memory can hold, as a sentence.
    #[error("{0}")]
    Lane(String),
    /// A message that only travels the other way, or only above a relay.
    #[error("a contributor sent {kind}, which it may not: send contributions and absences only")]
    Kind {
        /// What it sent.
        kind: &'static str,
    },
}

/// The fold of a host's ranks.
#[derive(Debug)]
pub struct HostFold {
    patience: Duration,
    /// Ranks only lend what they send, and sums take their memory from here.
    lent: Option<Rooms>,
    layout: Option<Layout>,
    open: Option<OpenRound>,
    sums: Sums,
    out: VecDeque<Output>,
    strays: u64,
}

/// The round that is being folded.
#[derive(Debug)]
struct OpenRound {
    round: Round,
    version: Version,
    fold: Fold,
    /// Everybody of this host in it, and whether the sums go on without it.
    members: BTreeMap<Rank, (Incarnation, bool)>,
    /// Nobody is left: the root knows, and the rest of the round is silent.
    silent: bool,
    waits: Waits,
}

/// When the wait for a chunk is reported: every quarter of the patience while it lasts.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Waits {
    /// The chunk that is waited for, and when that is reported next.
    pending: Option<(u32, Time)>,
}

impl Waits {
    /// Takes the chunk that a fold waits for; whether whom it waits for is to be reported now.
    pub(crate) fn is_due(&mut self, waits_at: Option<u32>, patience: Duration, now: Time) -> bool {
        let known = self.pending.filter(|&(pending, _)| Some(pending) == waits_at);
        let is_due = known.is_some_and(|(_, at)| at <= now);
        if known.is_none() || is_due {
            self.pending = waits_at.map(|chunk| (chunk, now.plus(patience / 4)));
        }
        is_due
    }

    /// When [`Waits::is_due`] has to be asked again.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.pending.map(|(_, at)| at)
    }
}

impl HostFold {
    /// A fold that reports a wait every quarter of `patience`.
    #[must_use]
    pub fn new(patience: Duration) -> HostFold {
        let (layout, open, out) = (None, None, VecDeque::new());
        HostFold { patience, lent: None, layout, open, sums: Sums::default(), out, strays: 0 }
    }

    /// The same for ranks whose chunks lie in memory that is only lent and wanted back; sums lie in memory out of `rooms`.
    #[must_use]
    pub fn of_lent(self, rooms: Rooms) -> HostFold {
        HostFold { lent: Some(rooms), ..self }
    }

    /// Takes one input. Afterwards every output is to be taken with [`HostFold::poll`].
    pub fn handle(&mut self, input: Input, now: Time) {
        match input {
            Input::Order(Order::Layout(sizes)) => match layout(sizes) {
                Ok(layout) => self.layout = Some(layout),
                Err(error) => self.out.push_back(Output::Unusable(error)),
            },
            Input::Order(Order::Open { round, version, members }) => self.begin(round, version, &members),
            Input::Order(Order::Drop { rank, incarnation, why }) => self.lose(rank, incarnation, absence(why)),
            Input::Order(Order::Hold(base)) => self.sums.hold(base),
            Input::Order(Order::Commit { round, chunks }) => {
                if self.open.as_ref().is_some_and(|open| open.round == round) {
                    self.sums.commit(chunks);
                }
            }
            Input::Order(Order::Close { round }) => {
                if self.open.take_if(|open| open.round == round).is_some() {
                    self.sums.close();
                }
            }
            Input::Data { rank, incarnation, data } => self.data(rank, incarnation, data),
            Input::Ended { rank, incarnation } => self.lose(rank, incarnation, Absence::LinkLost),
            Input::Tick => {}
        }
        self.advance(now);
    }

    /// The next thing to be done.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When [`Input::Tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.open.as_ref()?.waits.deadline()
    }

    /// Whether data of that rank should be read now. One that is far ahead of the others only fills memory.
    #[must_use]
    pub fn wants(&self, rank: Rank) -> bool {
        self.open.as_ref().is_none_or(|open| !open.fold.is_ahead(contributor(rank)))
    }

    /// Messages of other rounds, other lives, or dropped ranks, that were passed over.
    #[must_use]
    pub const fn strays(&self) -> u64 {
        self.strays
    }

    fn begin(&mut self, round: Round, version: Version, members: &[Member]) {
        self.open = None;
        let Some(layout) = self.layout else { return };
        let mut lives: BTreeMap<Rank, (Incarnation, bool)> = BTreeMap::new();
        lives.extend(members.iter().map(|member| (member.rank, (member.incarnation, false))));
        // The map's keys are strictly ascending, which is all that a fold asks for.
        let fold = Fold::new(round.0, layout, lives.keys().copied().map(contributor).collect());
        let Ok(fold) = fold else { return };
        let mut fold = match &self.lent {
            Some(rooms) => fold.of_lent().with_rooms(rooms.clone()),
            None => fold,
        };
        if lives.is_empty() {
            return;
        }
        for member in members.iter().filter(|member| member.part == Part::Receive) {
            fold.drop_contributor(contributor(member.rank), Absence::Joining);
        }
        self.out.extend(self.sums.begin(round, layout).map(Output::Up));
        self.open = Some(OpenRound { round, version, fold, members: lives, silent: false, waits: Waits::default() });
    }

    fn lose(&mut self, rank: Rank, incarnation: Incarnation, why: Absence) {
        if let Some(open) = self.open.as_mut().filter(|open| open.is_member(rank, incarnation)) {
            open.fold.drop_contributor(contributor(rank), why);
        }
    }

    fn data(&mut self, rank: Rank, incarnation: Incarnation, data: Data) {
        let round = round_of(&data);
        let open = self.open.as_mut().filter(|open| open.round == round && open.is_member(rank, incarnation));
        let Some(open) = open else {
            self.strays += 1;
            return;
        };
        match open.take(rank, data) {
            Ok(()) => {}
            Err(DataBreach::Fold(Reject::Absent { .. })) => self.strays += 1,
            Err(why) => {
                open.fold.drop_contributor(contributor(rank), Absence::LinkLost);
                self.out.push_back(Output::Breach { rank, incarnation, why });
            }
        }
    }

    /// Passes on what the fold has to say.
    fn advance(&mut self, now: Time) {
        let Some(open) = self.open.as_mut() else { return };
        while let Some(event) = open.fold.poll() {
            let data = open.upward(event).map(|data| match data {
                Data::Contribution(sum) => Data::Contribution(self.sums.coded(open.fold.layout(), sum)),
                data => data,
            });
            self.out.extend(data.map(Output::Up));
        }
        let round = open.round;
        if !open.waits.is_due(open.fold.waiting_at(), self.patience, now) {
            return;
        }
        self.out.extend(open.fold.waiting().into_iter().map(|(who, chunk)| Output::Waiting {
            round,
            rank: rank_of(who),
            chunk,
        }));
    }
}

impl OpenRound {
    fn is_member(&self, rank: Rank, incarnation: Incarnation) -> bool {
        self.members.get(&rank).is_some_and(|(life, _)| *life == incarnation)
    }

    fn take(&mut self, rank: Rank, data: Data) -> Result<(), DataBreach> {
        match data {
            Data::Contribution(chunk) => {
                let mass = mass(&chunk)?;
                Ok(self.fold.chunk(contributor(rank), chunk.chunk, mass, chunk.bytes)?)
            }
            Data::Absent { from_chunk, why, .. } => {
                Ok(self.fold.absent(contributor(rank), from_chunk, absence(why))?)
            }
            Data::Dropped { .. } => Err(DataBreach::Kind { kind: "a drop" }),
            Data::Holds { .. } => Err(DataBreach::Kind { kind: "what it holds" }),
            Data::Consensus(_) | Data::LeftOut { .. } => Err(DataBreach::Kind { kind: "a result" }),
        }
    }

    /// What the root is told of an event.
    fn upward(&mut self, event: Folded) -> Option<Data> {
        let round = self.round;
        match event {
            Folded::Dropped { contributor, from_chunk, why } => {
                let rank = rank_of(contributor);
                let (incarnation, dropped) = self.members.get_mut(&rank)?;
                *dropped = true;
                Some(Data::Dropped { round, rank, incarnation: *incarnation, from_chunk, why: absent_why(why) })
            }
            Folded::Chunk { index, mass, data } => Some(self.sum(index, mass.value(), data)),
            Folded::Empty { .. } if self.silent => None,
            Folded::Empty { index } if self.members.values().all(|(_, dropped)| *dropped) => {
                self.silent = true;
                Some(Data::Absent { round, from_chunk: index, why: AbsentWhy::Empty })
            }
            Folded::Empty { index } => Some(self.sum(index, 0.0, Bytes::new())),
            Folded::Done => None,
        }
    }

    fn sum(&self, chunk: u32, mass: f64, bytes: Bytes) -> Data {
        let (round, version) = (self.round, self.version);
        Data::Contribution(Chunk { round, version, chunk, mass, codec: Codec::Exact, bytes })
    }
}

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;

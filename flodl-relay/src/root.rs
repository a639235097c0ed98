//! The root reducer: a relay whose upstream is the commit.
//!
//! Folds the relays' sums in the order of their lowest rank, divides each chunk by the mass that was really folded, keeps
//! the result beside the consensus in force, streams it down, and tells the coordinator whose work is in it. A committed
//! round makes the result the consensus. Where nobody contributed to a chunk its result is the consensus in force, so
//! every round that was opened ends.
//!
//! Sans-IO: [`Root::handle`], then [`Root::poll`] until `None`; [`Root::next_deadline`] says when [`Input::Tick`] is due.

mod coming;
mod open;

use crate::fold::{DataBreach, Waits};
use crate::id::{contributor, layout, round_of};
use bytes::Bytes;
use coming::Coming;
use core::time::Duration;
use flodl_cpureduce::{
    Absence, CommitError, Consensus, Contributor, Fold, Folded, LayoutError, OuterStateError, Record, Reject, Rooms,
};
pub use flodl_cpureduce::{Average, ChunkSpec, Codec, Outer, OuterRule};
use flodl_wire::message::control::{RosterEntry, RoundOutcome};
use flodl_wire::message::data::Chunk;
use flodl_wire::message::join::LayoutSizes;
use flodl_wire::message::{Control, Data, report};
use flodl_wire::{Incarnation, Rank, Round, SessionId, Time, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the root is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The sizes of the model, before round 0.
    Layout(LayoutSizes),
    /// What the coordinator broadcasts. The root acts on `RequestParams`, `PrepareSync`, `RoundDone` and
    /// `DeclareDead`.
    Control(Control),
    /// After a restart: that relay sends the consensus in force up, as `Contribution` chunks of that round. No round is open.
    Restore {
        /// Its session.
        session: SessionId,
        /// Echoed in the chunks.
        round: Round,
        /// Its version.
        version: Version,
        /// xxh3 over its chunks in order.
        digest: u64,
    },
    /// A relay sent something on its data link.
    Data {
        /// Its session, known from the link.
        session: SessionId,
        /// What.
        data: Data,
    },
    /// A relay's data link ended, after everything that came through it. It is never used again.
    Lost {
        /// Its session.
        session: SessionId,
    },
    /// Time has passed.
    Tick,
}

/// What the root wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a chunk of the result to a relay.
    Result {
        /// Its session.
        session: SessionId,
        /// The chunk.
        chunk: Chunk,
    },
    /// Tell a relay from which chunk on the round goes without it.
    LeftOut {
        /// Its session.
        session: SessionId,
        /// The message.
        data: Data,
    },
    /// Tell the coordinator whose work is in the round.
    Folded(report::Folded),
    /// Tell the coordinator that the fold waits for a relay, once every quarter of the patience.
    Waiting {
        /// The round.
        round: Round,
        /// The lowest rank of that relay whose work is still expected.
        rank: Rank,
        /// Which chunk.
        chunk: u32,
    },
    /// The consensus that was to be restored is in force, or a sentence.
    Restored {
        /// Its version.
        version: Version,
        /// What came of it.
        result: Result<(), String>,
    },
    /// Close a relay's data link: what it sent cannot be folded.
    Breach {
        /// Its session.
        session: SessionId,
        /// Why.
        why: DataBreach,
    },
    /// An order could not be followed. The consensus is what it was.
    Refused(Refusal),
}

/// Why the root did not follow an order of its coordinator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The model cannot be averaged.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The outer optimizer begins anew.
    #[error("the outer optimizer begins anew: {0}")]
    Outer(#[from] OuterStateError),
    /// A round cannot be opened before the sizes of the model are known.
    #[error("{0} cannot be opened: the sizes of the model are not known")]
    NoLayout(Round),
    /// The round cannot become the consensus.
    #[error("{round} cannot be committed: {why}")]
    Commit {
        /// The round.
        round: Round,
        /// Why.
        why: CommitError,
    },
    /// Another round is open, or none.
    #[error("{0} cannot be committed: it is not the round that is open")]
    NotOpen(Round),
}

/// The reducer at the top.
#[derive(Debug)]
pub struct Root {
    patience: Duration,
    consensus: Option<Consensus>,
    /// What the consensus is made with once the model's sizes are known.
    with: With,
    /// As what differences travel between hosts.
    codec: Codec,
    open: Option<OpenRound>,
    /// The round that ranks average among themselves.
    elsewhere: Option<Round>,
    coming: Option<Coming>,
    lost: BTreeSet<SessionId>,
    out: VecDeque<Output>,
    strays: u64,
}

/// What a consensus is made with.
#[derive(Debug, Default)]
struct With {
    /// What makes it of an average.
    outer: Option<Box<dyn Outer>>,
    /// Its state, if it has a past.
    past: Vec<u8>,
    /// Where memory goes that it does not need any more.
    rooms: Option<Rooms>,
}

/// The round that is being folded.
#[derive(Debug)]
struct OpenRound {
    round: Round,
    /// As what results travel to those who hold the consensus in force.
    codec: Codec,
    /// What the result becomes if it commits.
    version: Version,
    fold: Fold,
    record: Record,
    ranks: BTreeMap<Rank, Life>,
    sessions: BTreeMap<SessionId, Link>,
    /// Parameter chunks that are results of this fold.
    parameters_folded: u32,
    waits: Waits,
}

/// A relay of the round.
#[derive(Copy, Clone, Debug)]
struct Link {
    /// Its lowest rank in the round.
    who: Contributor,
    /// Its ranks of which something is expected.
    left: u32,
    /// It holds the consensus in force.
    holds: bool,
}

/// A rank of the round.
#[derive(Copy, Clone, Debug)]
struct Life {
    incarnation: Incarnation,
    session: SessionId,
    /// Nothing more is expected of it.
    out: bool,
}

impl Root {
    /// A root without a consensus, which reports a wait every quarter of `patience`.
    #[must_use]
    pub fn new(patience: Duration) -> Root {
        let (open, elsewhere, coming) = (None, None, None);
        let (lost, out, codec) = (BTreeSet::new(), VecDeque::new(), Codec::F32);
        let with = With::default();
        Root { patience, consensus: None, with, codec, open, elsewhere, coming, lost, out, strays: 0 }
    }

    /// The same with an outer optimizer between an average and the consensus.
    #[must_use]
    pub fn with_outer(self, outer: Box<dyn Outer>) -> Root {
        Root { with: With { outer: Some(outer), ..self.with }, ..self }
    }

    /// Gives memory that nobody needs any more to `rooms`, from now on, for the fold that takes its sums' from there.
    pub fn recycle(&mut self, rooms: Rooms) {
        if let Some(consensus) = &mut self.consensus {
            consensus.recycle(rooms.clone());
        }
        self.with.rooms = Some(rooms);
    }

    /// The same with an outer optimizer that goes on from a state which [`Root::outer_state`] gave.
    #[must_use]
    pub fn with_past(self, past: Vec<u8>) -> Root {
        Root { with: With { past, ..self.with }, ..self }
    }

    /// The same with results that travel in that codec to relays which hold the consensus in force, and say so.
    #[must_use]
    pub fn with_codec(self, codec: Codec) -> Root {
        Root { codec, ..self }
    }

    /// Takes one input. Afterwards every output is to be taken with [`Root::poll`].
    pub fn handle(&mut self, input: Input, now: Time) {
        match input {
            Input::Layout(sizes) => self.lay_out(sizes),
            Input::Control(Control::RequestParams { round, roster }) => self.begin(round, &roster),
            Input::Control(Control::PrepareSync { round, .. }) => self.elsewhere = Some(round),
            Input::Control(Control::RoundDone { round, .. }) if self.elsewhere == Some(round) => self.elsewhere = None,
            Input::Control(Control::RoundDone { round, outcome, .. }) => self.close(round, outcome),
            Input::Control(Control::DeclareDead { rank, incarnation, .. }) => self.dead(rank, incarnation),
            Input::Control(_) | Input::Tick => {}
            Input::Restore { session, round, version, digest } => {
                self.coming = Some(Coming { session, round, version, digest, chunks: Vec::new() });
                if self.lost.contains(&session) {
                    self.restored(Err("its data connection is gone".to_owned()));
                }
            }
            Input::Data { session, data } => self.data(session, data),
            Input::Lost { session } => {
                self.lost.insert(session);
                if self.coming.as_ref().is_some_and(|coming| coming.session == session) {
                    self.restored(Err("its data connection ended before all of it had come".to_owned()));
                }
                if let Some(open) = &mut self.open {
                    open.lose(session, Absence::LinkLost);
                }
            }
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

    /// Whether data of that relay should be read now. One that is far ahead of the others only fills memory.
    #[must_use]
    pub fn wants(&self, session: SessionId) -> bool {
        let ahead = |open: &OpenRound| open.sessions.get(&session).is_some_and(|link| open.fold.is_ahead(link.who));
        !self.open.as_ref().is_some_and(ahead)
    }

    /// Messages of other rounds or dropped relays that were passed over.
    #[must_use]
    pub const fn strays(&self) -> u64 {
        self.strays
    }

    /// The consensus in force: its version and the bytes of all sections in order, little-endian. `None` before the first
    /// commit.
    #[must_use]
    pub fn consensus_bytes(&self) -> Option<(Version, Bytes)> {
        let consensus = self.consensus.as_ref()?;
        Some((Version(consensus.version()?), consensus.read_all()?))
    }

    /// The version of the consensus in force.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.consensus.as_ref()?.version().map(Version)
    }

    /// The digest of the consensus in force: xxh3 over its chunks in order.
    #[must_use]
    pub fn consensus_digest(&self) -> Option<u64> {
        self.consensus.as_ref()?.digest()
    }

    /// The outer optimizer's state after the newest commit; empty where it has none.
    #[must_use]
    pub fn outer_state(&self) -> Vec<u8> {
        self.consensus.as_ref().filter(|held| held.version().is_some()).map_or_else(Vec::new, Consensus::outer_state)
    }

    fn lay_out(&mut self, sizes: LayoutSizes) {
        match layout(sizes) {
            Ok(layout) => {
                let empty = Consensus::empty(layout).with_codec(self.codec);
                let mut consensus = match self.with.outer.take() {
                    Some(outer) => empty.with_outer(outer),
                    None => empty,
                };
                let past = core::mem::take(&mut self.with.past);
                if let Some(error) = (!past.is_empty()).then(|| consensus.restore_outer(&past).err()).flatten() {
                    self.out.push_back(Output::Refused(error.into()));
                }
                if let Some(rooms) = self.with.rooms.clone() {
                    consensus.recycle(rooms);
                }
                self.consensus = Some(consensus);
            }
            Err(error) => self.out.push_back(Output::Refused(error.into())),
        }
    }

    fn begin(&mut self, round: Round, roster: &[RosterEntry]) {
        self.open = None;
        let Some(consensus) = &mut self.consensus else {
            self.out.push_back(Output::Refused(Refusal::NoLayout(round)));
            return;
        };
        let mut sessions: BTreeMap<SessionId, Link> = BTreeMap::new();
        for entry in roster {
            let who = contributor(entry.rank);
            let link = sessions.entry(entry.session).or_insert(Link { who, left: 0, holds: false });
            *link = Link { who: link.who.min(who), left: link.left + 1, ..*link };
        }
        let mut record = Record::new();
        let mut ranks = BTreeMap::new();
        for &RosterEntry { rank, incarnation, session, .. } in roster {
            record.enter(contributor(rank), sessions[&session].who);
            ranks.insert(rank, Life { incarnation, session, out: false });
        }
        // A rank is in one session only, so a set of them is strictly ascending, which is all that a fold asks for.
        let contributors: BTreeSet<Contributor> = sessions.values().map(|link| link.who).collect();
        let Ok(fold) = Fold::new(round.0, *consensus.layout(), contributors.into_iter().collect()) else { return };
        consensus.begin(round.0);
        let version = consensus.version().map_or(Version(0), |version| Version(version).next());
        let waits = Waits::default();
        let codec = self.codec;
        let mut open = OpenRound { round, codec, version, fold, record, ranks, sessions, parameters_folded: 0, waits };
        self.lost.iter().for_each(|&session| open.lose(session, Absence::LinkLost));
        self.open = Some(open);
    }

    fn close(&mut self, round: Round, outcome: RoundOutcome) {
        let was_open = self.open.take_if(|open| open.round == round).is_some();
        let Some(consensus) = &mut self.consensus else { return };
        match outcome {
            RoundOutcome::Committed { .. } if !was_open => self.out.push_back(Output::Refused(Refusal::NotOpen(round))),
            RoundOutcome::Committed { version } => match consensus.commit(version.0) {
                Ok(()) => {}
                // Nothing was folded, and those who lack the consensus in force are handed it.
                Err(CommitError::NoMass) if consensus.version() == Some(version.0) => consensus.abandon(),
                Err(why) => {
                    consensus.abandon();
                    self.out.push_back(Output::Refused(Refusal::Commit { round, why }));
                }
            },
            RoundOutcome::Nothing | RoundOutcome::Again if was_open => consensus.abandon(),
            RoundOutcome::Nothing | RoundOutcome::Again => {}
        }
    }

    /// A dead rank's relay says in which chunks it is; a relay whose ranks are all dead says nothing any more.
    fn dead(&mut self, rank: Rank, incarnation: Incarnation) {
        let Some(open) = &mut self.open else { return };
        let Some(life) = open.ranks.get(&rank).filter(|life| life.incarnation == incarnation) else { return };
        let session = life.session;
        open.leave(rank);
        if open.sessions.get(&session).is_some_and(|link| link.left == 0) {
            open.lose(session, Absence::Dead);
        }
    }

    fn data(&mut self, session: SessionId, data: Data) {
        if let (Some(coming), Data::Contribution(chunk)) = (&mut self.coming, &data)
            && (coming.session, coming.round) == (session, chunk.round)
        {
            let Some(consensus) = &mut self.consensus else { return };
            match coming.take(consensus.layout(), chunk) {
                Ok(None) => {}
                Ok(Some(restored)) => {
                    consensus.take_up(restored);
                    self.restored(Ok(()));
                }
                Err(why) => self.restored(Err(why)),
            }
            return;
        }
        let round = round_of(&data);
        let open = self.open.as_mut().filter(|open| open.round == round);
        let Some((open, who)) =
            open.and_then(|open| open.sessions.get(&session).map(|link| link.who).map(|who| (open, who)))
        else {
            self.strays += 1;
            return;
        };
        let Some(consensus) = &self.consensus else { return };
        match open.take((session, who), data, consensus) {
            Ok(true) => {}
            Ok(false) | Err(DataBreach::Fold(Reject::Absent { .. })) => self.strays += 1,
            Err(why) => {
                open.lose(session, Absence::LinkLost);
                self.lost.insert(session);
                self.out.push_back(Output::Breach { session, why });
            }
        }
    }

    fn restored(&mut self, result: Result<(), String>) {
        if let Some(Coming { version, .. }) = self.coming.take() {
            self.out.push_back(Output::Restored { version, result });
        }
    }

    /// Passes on what the fold has to say.
    fn advance(&mut self, now: Time) {
        let (Some(open), Some(consensus)) = (&mut self.open, &mut self.consensus) else { return };
        while let Some(event) = open.fold.poll() {
            match event {
                Folded::Dropped { contributor, from_chunk, why } => {
                    open.record.dropped_via(contributor, from_chunk, why);
                    self.out.extend(open.left_out(contributor, from_chunk, why));
                }
                Folded::Chunk { index, mass, data } => {
                    open.finish(consensus, index, Some((mass, data)), &mut self.out);
                }
                Folded::Empty { index } => open.finish(consensus, index, None, &mut self.out),
                Folded::Done => self.out.push_back(Output::Folded(open.report(consensus))),
            }
        }
        // Also where nobody has answered yet: whether snapshots are taken, so that chunks are due, the coordinator knows.
        if !open.waits.is_due(open.fold.missing_at(), self.patience, now) {
            return;
        }
        for (who, chunk) in open.fold.missing() {
            let rank = open.awaited(who);
            self.out.push_back(Output::Waiting { round: open.round, rank, chunk });
        }
    }
}

#[cfg(test)]
#[path = "root_tests.rs"]
mod tests;

//! One round at the root: what it takes of relays, and what comes out.

use super::{Life, OpenRound, Output};
use crate::coding::{on_wire, plain};
use crate::fold::DataBreach;
use crate::id::{absence, absent_why, contributor, folded_part, mass, rank as rank_of};
use bytes::{Bytes, BytesMut};
use flodl_cpureduce::{Absence, Codec, Consensus, Contributor, DecodeError, Mass, Section};
use flodl_wire::message::data::{self, Chunk};
use flodl_wire::message::{Data, report};
use flodl_wire::{Rank, SessionId, Version};
use std::collections::VecDeque;

impl OpenRound {
    /// Takes a relay's message; `false`: it speaks of a rank that is not its own in this round.
    pub(super) fn take(
        &mut self,
        (session, who): (SessionId, Contributor),
        data: Data,
        consensus: &Consensus,
    ) -> Result<bool, DataBreach> {
        match data {
            Data::Contribution(chunk) => {
                let (mass, index) = (mass(&chunk)?, chunk.chunk);
                let held = consensus.version().filter(|_| self.sessions.get(&session).is_some_and(|link| link.holds));
                match self.plain(chunk, mass, (held, consensus)) {
                    Ok(chunk) => self.fold.chunk(who, index, mass, chunk.bytes)?,
                    Err(DecodeError::Stale { .. }) => self.fold.absent(who, index, Absence::Stale)?,
                    Err(DecodeError::NonFinite { .. }) => self.fold.absent(who, index, Absence::NonFinite)?,
                    Err(error @ (DecodeError::Length { .. } | DecodeError::Integers { .. })) => {
                        return Err(error.into());
                    }
                }
            }
            Data::Holds { version, digest, .. } => {
                let ours = self.codec != Codec::F32 && consensus.version() == Some(version.0);
                if let Some(link) = self.sessions.get_mut(&session) {
                    link.holds = ours && consensus.digest() == Some(digest);
                }
            }
            Data::Absent { from_chunk, why, .. } => self.fold.absent(who, from_chunk, absence(why))?,
            Data::Dropped { rank, incarnation, from_chunk, why, .. } => {
                let own = |life: &Life| life.session == session && life.incarnation == incarnation;
                if !self.ranks.get(&rank).is_some_and(own) {
                    return Ok(false);
                }
                self.leave(rank);
                self.record.dropped(contributor(rank), from_chunk, absence(why));
            }
            Data::Consensus(_) | Data::LeftOut { .. } => return Err(DataBreach::Kind { kind: "a result" }),
        }
        Ok(true)
    }

    /// A contribution with its values as they are.
    pub(super) fn plain(
        &self,
        chunk: Chunk,
        mass: Mass,
        (held, consensus): (Option<u64>, &Consensus),
    ) -> Result<Chunk, DecodeError> {
        // The fold says what is wrong with a chunk that the layout does not know.
        let Some(spec) = self.fold.layout().chunk(chunk.chunk) else { return Ok(chunk) };
        let held = held.map(Version).zip(consensus.chunk(chunk.chunk));
        plain(&spec, chunk, (mass, held.as_ref().map(|(version, data)| (*version, data))), BytesMut::new())
    }

    /// A relay that is dropped here hears of it: what it lost by rounding of later chunks is not in the round.
    pub(super) fn left_out(&self, who: Contributor, from_chunk: u32, why: Absence) -> Option<Output> {
        let (&session, _) = self.sessions.iter().find(|(_, link)| link.who == who && link.holds)?;
        Some(Output::LeftOut { session, data: Data::LeftOut { round: self.round, from_chunk, why: absent_why(why) } })
    }

    /// Nothing more is expected of a rank.
    pub(super) fn leave(&mut self, rank: Rank) {
        if let Some(life) = self.ranks.get_mut(&rank).filter(|life| !life.out) {
            life.out = true;
            if let Some(link) = self.sessions.get_mut(&life.session) {
                link.left -= 1;
            }
        }
    }

    /// The round goes on without that relay.
    pub(super) fn lose(&mut self, session: SessionId, why: Absence) {
        if let Some(link) = self.sessions.get(&session) {
            self.fold.drop_contributor(link.who, why);
        }
    }

    /// Divides a chunk and sends it to every relay of the round.
    pub(super) fn finish(
        &mut self,
        consensus: &mut Consensus,
        index: u32,
        sum: Option<(Mass, Bytes)>,
        out: &mut VecDeque<Output>,
    ) {
        let (mass, sum) = sum.map_or((Mass::ZERO, None), |(mass, sum)| (mass, Some(sum)));
        if index == 0 && !self.sessions.values().any(|link| link.holds) {
            consensus.keep_exact();
        }
        let before = consensus.chunks_folded();
        // The fold gives each chunk once, in order and at its length.
        let Ok(bytes) = consensus.finish_chunk(index, mass, sum) else { return };
        let folded = consensus.chunks_folded() > before;
        let section = self.fold.layout().chunk(index).map(|spec| spec.section);
        self.parameters_folded += u32::from(folded && section == Some(Section::Parameters));
        // A sum that was not finite is not in the result: the consensus in force stands in for it.
        let mass = if folded { mass.value() } else { 0.0 };
        let (round, version) = (self.round, self.version);
        let exact = Chunk { round, version, chunk: index, mass, codec: data::Codec::Exact, bytes };
        let short = self.short(consensus, &exact);
        out.extend(self.sessions.iter().map(|(&session, link)| {
            let chunk = short.as_ref().filter(|_| link.holds).unwrap_or(&exact).clone();
            Output::Result { session, chunk }
        }));
    }

    /// A result as it travels to those who hold the consensus in force, where that is in fewer bytes.
    pub(super) fn short(&self, consensus: &Consensus, exact: &Chunk) -> Option<Chunk> {
        let coded = consensus.coded_chunk(exact.chunk);
        match coded.and_then(|coded| coded.base.map(|base| (on_wire(coded.codec, Version(base)), coded.data))) {
            Some((codec, bytes)) => Some(Chunk { codec, bytes, ..exact.clone() }),
            // It is the consensus in force.
            None if exact.mass == 0.0 && self.codec != Codec::F32 => {
                let codec = on_wire(self.codec, Version(consensus.version()?));
                Some(Chunk { codec, bytes: Bytes::new(), ..exact.clone() })
            }
            None => None,
        }
    }

    /// The round's record, once all chunks are out.
    pub(super) fn report(&self, consensus: &Consensus) -> report::Folded {
        let part = |(who, outcome)| {
            let rank = rank_of(who);
            self.ranks.get(&rank).map(|life| (rank, life.incarnation, folded_part(outcome)))
        };
        report::Folded {
            round: self.round,
            ranks: self.record.outcomes().filter_map(part).collect(),
            digest: consensus.digest_of_result().unwrap_or_default(),
            // A result with a hole and nothing to fill it from (round 0 lost its source) is no consensus either.
            any_mass: self.parameters_folded > 0 && consensus.committable().is_ok(),
        }
    }

    /// The rank to name when a relay is waited for.
    pub(super) fn awaited(&self, who: Contributor) -> Rank {
        let session = self.ranks.get(&rank_of(who)).map(|life| life.session);
        let of_relay = |life: &Life| Some(life.session) == session && !life.out;
        let mut ranks = self.ranks.range(rank_of(who)..);
        ranks.find(|(_, life)| of_relay(life)).map_or(rank_of(who), |(&rank, _)| rank)
    }
}

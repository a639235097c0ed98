//! The one place where wire ids become those of the scheduler and of the rendezvous, and back.

use flodl_elche::{Slot, Span};
use flodl_nccl::UniqueId;
use flodl_nccl::session::{Generation, Member, Moment};
use flodl_wire::message::nccl::NcclId;
use flodl_wire::{Incarnation, NcclSession, Range, Rank, Time};

/// The scheduler's name of a rank.
pub(crate) fn slot(rank: Rank) -> Slot {
    Slot(rank.0)
}

/// The rank behind a scheduler's name.
pub(crate) fn rank(slot: Slot) -> Rank {
    Rank(slot.0)
}

/// Wire ranges as the scheduler's spans. A hostile range (its end before its start) becomes an empty span.
pub(crate) fn spans(ranges: &[Range]) -> Vec<Span> {
    ranges.iter().map(|range| Span { start: range.start, end: range.end.max(range.start) }).collect()
}

/// The scheduler's spans as wire ranges.
pub(crate) fn ranges(spans: &[Span]) -> Vec<Range> {
    spans.iter().map(|span| Range { start: span.start, end: span.end }).collect()
}

/// One life of a rank, as the rendezvous knows it.
pub(crate) fn member((rank, incarnation): (Rank, Incarnation)) -> Member {
    Member { rank: rank.0, incarnation: incarnation.0 }
}

/// The life behind a member.
pub(crate) fn life(member: Member) -> (Rank, Incarnation) {
    (Rank(member.rank), Incarnation(member.incarnation))
}

/// The number of a communicator, as the rendezvous knows it.
pub(crate) fn generation(session: NcclSession) -> Generation {
    Generation(session.0)
}

/// The communicator of that number.
pub(crate) fn session(generation: Generation) -> NcclSession {
    NcclSession(generation.0)
}

/// The time, as the rendezvous knows it.
pub(crate) fn moment(now: Time) -> Moment {
    Moment::at(now.since(Time::ZERO))
}

/// A moment of the rendezvous.
pub(crate) fn time(moment: Moment) -> Time {
    Time::ZERO.plus(moment.since(Moment::default()))
}

/// What the members of a communicator share, as the rendezvous knows it.
pub(crate) fn unique(id: NcclId) -> UniqueId {
    UniqueId::from_bytes(id.0)
}

/// The id to send.
pub(crate) fn nccl_id(id: UniqueId) -> NcclId {
    NcclId(*id.as_bytes())
}

//! What the coordinator is told.

use flodl_wire::message::report::Folded;
use flodl_wire::message::{HostReport, Report};
use flodl_wire::{HostId, Incarnation, Rank, Round, SessionId, Version};

/// Everything that can happen to a coordinator, besides time passing.
///
/// The shell builds these at the edge: bytes are messages by then, and a report's rank is one that its session may speak
/// for (see `Coordinator::speaks_for`).
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A relay's control connection is authenticated.
    HostConnected {
        /// Its session; never used before.
        session: SessionId,
        /// Its host.
        host: HostId,
        /// Ranks it would start, at least 1.
        rank_count: u32,
    },
    /// A relay's control connection ended or was silent past the patience.
    HostLost {
        /// Its session.
        session: SessionId,
        /// What the connection said last, a sentence.
        error: String,
    },
    /// The relay of a host whose link was lost is connected again. It says next where its ranks stand.
    HostResumed {
        /// Its new session; never used before.
        session: SessionId,
        /// Its host.
        host: HostId,
        /// The session that the same relay was connected by first.
        first: SessionId,
    },
    /// A relay speaks about its host.
    FromHost {
        /// Its session.
        session: SessionId,
        /// What it says.
        report: HostReport,
    },
    /// A rank speaks.
    FromRank {
        /// The session it came through.
        session: SessionId,
        /// Who.
        rank: Rank,
        /// Which of its lives.
        incarnation: Incarnation,
        /// What it says.
        report: Report,
    },
    /// The root folded a round.
    Folded(Folded),
    /// The root's fold waits for a relay while the rest of the chunk is there. Told again every quarter of the patience.
    RootWaits {
        /// The round.
        round: Round,
        /// The lowest rank of that relay whose work is still expected.
        rank: Rank,
        /// Which chunk.
        chunk: u32,
    },
    /// What came of [`crate::Output::Restore`].
    Restored {
        /// The version that was asked for.
        version: Version,
        /// A sentence where the root does not hold it.
        result: Result<(), String>,
    },
    /// The checkpoint set that [`crate::Output::Save`] asked for is written, or not.
    Saved {
        /// Which version.
        version: Version,
        /// Where it lies, or a sentence.
        result: Result<String, String>,
    },
    /// A person asks for the end: the first time gently (finish the batch, average, evaluate, save), the second time at
    /// once.
    Stop,
}

impl Input {
    /// The session and the life of a rank that it speaks for. (Whom a fold waits for is named without one: that is the core's
    /// to check.)
    pub(crate) fn speaks_as(&self) -> Option<(SessionId, Rank, Incarnation)> {
        match self {
            Input::FromRank { session, rank, incarnation, .. } => Some((*session, *rank, *incarnation)),
            Input::FromHost { session, report } => match report {
                HostReport::RankUp { rank, incarnation, .. }
                | HostReport::RankExited { rank, incarnation, .. }
                | HostReport::RankNotStarted { rank, incarnation, .. }
                | HostReport::RankLost { rank, incarnation, .. }
                | HostReport::WillRestart { rank, incarnation } => Some((*session, *rank, *incarnation)),
                // Whether it may speak for that life is the core's to say: its answer may be `Fenced`.
                HostReport::RankState(_) | HostReport::CommitPart { .. } | HostReport::Back { .. } => None,
                HostReport::Waiting { .. } | HostReport::Heartbeat | HostReport::Leaving => None,
            },
            _ => None,
        }
    }
}

//! What a relay is told, and what it wants done.

use crate::fold::{self, Order};
use crate::routes::{Breach, Connection, NotAdmitted, Peer};
use flodl_cpureduce::{Codec, DecodeError as CodeError, LayoutError};
use flodl_wire::codec::{DecodeError, EncodeError};
use flodl_wire::commit::NotNext;
use flodl_wire::frame::Frame;
use flodl_wire::message::Data;
use flodl_wire::message::data::Chunk;
use flodl_wire::message::report::ExitStatus;
use flodl_wire::{Incarnation, Rank, SessionId};

/// What a relay is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A frame of the controller's control connection.
    Upstream(Frame),
    /// A message of the root: a chunk of a result.
    Result(Data),
    /// As what sums and results travel on the link, from the next round on. Said before [`Input::Resumed`] of another link.
    Wire(Codec),
    /// A connection to the controller or the root has ended.
    UpstreamLost {
        /// What was noticed, without an end mark.
        why: String,
    },
    /// The link that [`Output::Redial`] asked for is there.
    Resumed {
        /// Its session.
        session: SessionId,
        /// It is another controller's than the one before it: that one does not know the run.
        anew: bool,
    },
    /// It will not come.
    NotResumed {
        /// What was tried, without an end mark.
        why: String,
    },
    /// A rank's connection has finished its handshake.
    Connected {
        /// The connection.
        connection: Connection,
        /// Whose it is.
        peer: Peer,
    },
    /// A frame of a rank's control connection. Those of data connections go to the fold.
    RankFrame {
        /// The connection.
        connection: Connection,
        /// The frame.
        frame: Frame,
    },
    /// A rank's connection has ended, after everything that came through it.
    Closed {
        /// The connection.
        connection: Connection,
        /// What was noticed, without an end mark.
        why: String,
    },
    /// A rank's process runs.
    Started {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// Its process id.
        pid: u32,
    },
    /// A rank's process could not be started.
    NotStarted {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// A sentence.
        error: String,
    },
    /// A rank's process has ended.
    Exited {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// How.
        status: ExitStatus,
        /// The last lines it wrote.
        last_lines: String,
    },
    /// The host's fold has something to say; what it sends to the root does not pass here.
    Fold(fold::Output),
    /// This host is to go: its ranks bring in their work and end, and then the relay does.
    Leave,
    /// Time has passed.
    Tick,
}

/// Where a rank stands among the others.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its place among this host's ranks, from 0.
    pub local_rank: u32,
    /// Ranks of this host.
    pub local_world_size: u32,
    /// Ranks of the run.
    pub world_size: u32,
}

/// What a relay wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send to the controller.
    Up(Frame),
    /// Order the host's fold.
    Fold(Order),
    /// Send to a rank on its control connection.
    ToRank {
        /// The connection.
        connection: Connection,
        /// The frame.
        frame: Frame,
    },
    /// Send to a rank on its data connection. A rank that takes it slowly delays its own result only.
    Result {
        /// The connection.
        connection: Connection,
        /// The chunk.
        chunk: Chunk,
    },
    /// Send these to the root, one after the other.
    Offer(Vec<Chunk>),
    /// Start a rank's process.
    Start {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// Where it stands among the others.
        place: Place,
    },
    /// Kill a rank's process group.
    Kill {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
    },
    /// Close a connection. Its end is told as [`Input::Closed`] only where it was anybody's.
    Close {
        /// The connection.
        connection: Connection,
        /// Why.
        why: Closing,
    },
    /// Connect to the controller again, for as long as the patience; answer with [`Input::Resumed`] or
    /// [`Input::NotResumed`]. Nothing is to come from the old link any more.
    Redial {
        /// The session that is taken up again.
        session: SessionId,
    },
    /// Something a person should see.
    Warn(Warning),
    /// The relay is done. What still runs is to be killed.
    End(Result<(), RelayError>),
}

/// Why a connection of a rank is closed from this side.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Closing {
    /// It carried what it may not.
    #[error(transparent)]
    Breach(#[from] Breach),
    /// It carried data that cannot be folded.
    #[error(transparent)]
    Data(#[from] fold::DataBreach),
    /// Somebody else has that place.
    #[error(transparent)]
    NotAdmitted(#[from] NotAdmitted),
    /// The rank's life is over.
    #[error("{0} is gone")]
    Gone(Rank),
}

/// What a person should see, though the run goes on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Warning {
    /// A message of the controller that cannot be read.
    #[error("a message of the controller cannot be read: {0}")]
    Unreadable(DecodeError),
    /// A message that cannot be sent.
    #[error("a message to the controller cannot be written: {0}")]
    Unwritable(EncodeError),
    /// A connection was closed, for a reason that lies with the rank.
    #[error("a connection was closed: {0}")]
    Closed(Closing),
    /// Something of the controller that has no place where or when it came.
    #[error("the controller sent {0}, which was passed over")]
    Misplaced(&'static str),
    /// The fold cannot work with the model.
    #[error("this host cannot average: {0}")]
    Fold(LayoutError),
    /// A result that cannot be read: this host's ranks take the next one.
    #[error("a result cannot be read: {0}")]
    Undecodable(CodeError),
    /// A commit whose predecessor is not known here.
    #[error("the record of a commit cannot be kept: {0}")]
    NotNext(NotNext),
    /// A process that outlived its kill.
    #[error("{0} has not ended though it was killed")]
    Undying(Rank),
}

/// Why a relay ended before its time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// The controller is gone without having said that the run is over.
    #[error("the controller was lost: {why}; this host's ranks were ended")]
    ControllerLost {
        /// What was noticed.
        why: String,
    },
    /// The controller does not want this relay.
    #[error("the controller refused this host: {why}")]
    Refused {
        /// Its sentence.
        why: String,
    },
}

//! Three messages of fixed size, after which both sides know who the other is and share keys nobody else has.
//!
//! The dialling side sends M1 (hello), the accepting side answers with M2 (challenge) or a refusal, the dialling side ends with
//! M3 (finish). Everything either side says is in the transcript that both tags and all keys depend on; nothing can be
//! altered, replayed or reflected. Whoever lacks the gate key is answered by nothing at all. None of it does IO or draws a
//! random number: nonces are arguments, bytes are arguments.

mod accept;
mod bytes;
mod dial;
mod schedule;

pub use accept::{Accept, Admission, Challenged, Greeted, Unheard, greet};
pub use bytes::{M1_LEN, M2_LEN, M3_LEN, REFUSE_LEN, VERSION_MAX, VERSION_MIN};
pub use dial::{Dialler, Finish};

use crate::connection::Terms;
use crate::frame::{Opener, Sealer};
use crate::{HostId, Incarnation, Rank, RunId, SessionId};
use core::fmt;
use core::time::Duration;
use thiserror::Error;

/// What the dialling side is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A host's relay.
    Relay {
        /// How many ranks it would start.
        rank_count: u32,
    },
    /// A worker.
    Rank {
        /// Which rank.
        rank: Rank,
        /// In which life.
        incarnation: Incarnation,
    },
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Relay { rank_count } => write!(f, "relay for {rank_count} ranks"),
            Role::Rank { rank, incarnation } => write!(f, "{rank} ({incarnation})"),
        }
    }
}

/// What a connection is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Orders down, reports up.
    Control,
    /// Tensors.
    Data,
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Channel::Control => "control",
            Channel::Data => "data",
        })
    }
}

/// What a connection may do beyond what every one can: offered by the dialling side, chosen of that by the accepting one.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u32);

impl Capabilities {
    /// Nothing.
    pub const NONE: Capabilities = Capabilities(0);
    /// Sums and results travel as [`Codec::Bf16`](crate::message::data::Codec::Bf16).
    pub const BF16: Capabilities = Capabilities(1);
    /// Sums and results travel as [`Codec::Int8`](crate::message::data::Codec::Int8).
    pub const INT8: Capabilities = Capabilities(2);
    /// All that there are.
    pub const ALL: Capabilities = Capabilities(3);

    /// What both have.
    #[must_use]
    pub const fn and(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 & other.0)
    }

    /// Whether it has all of these.
    #[must_use]
    pub const fn has(self, these: Capabilities) -> bool {
        self.0 & these.0 == these.0
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    /// Those of an offer that are known here.
    pub(crate) const fn known(bits: u32) -> Capabilities {
        Capabilities(bits & Capabilities::ALL.0)
    }

    /// A choice, which may hold nothing that is not known here.
    pub(crate) const fn chosen(bits: u32) -> Option<Capabilities> {
        if bits & !Capabilities::ALL.0 == 0 { Some(Capabilities(bits)) } else { None }
    }
}

/// What the dialling side says about itself.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What it is.
    pub role: Role,
    /// What the connection is for.
    pub channel: Channel,
    /// The control connection's session that a data connection belongs to; on a relay's control connection the session
    /// that it takes up again, or 0.
    pub session: SessionId,
    /// The run it means.
    pub run_id: RunId,
    /// The host it is on.
    pub host_id: HostId,
    /// What it offers.
    pub capabilities: Capabilities,
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} of host {} ({} connection)", self.role, self.host_id.name(), self.channel)
    }
}

impl Hello {
    /// That it means run `ours`.
    ///
    /// # Errors
    ///
    /// The sentence for a refusal, with both runs.
    pub fn check_run(&self, ours: RunId) -> Result<(), String> {
        if self.run_id == ours {
            return Ok(());
        }
        Err(format!("this is run {ours}, you asked for run {}: use a ticket of this run", self.run_id))
    }
}

/// What both sides have once the handshake is done.
#[derive(Debug)]
pub struct Established {
    /// The connection's session, given by the accepting side.
    pub session: SessionId,
    /// The knob that all deadlines derive from.
    pub patience: Duration,
    /// How often the controller has been restarted. A lower one than seen before is a ghost.
    pub generation: u64,
    /// The membership epoch in force.
    pub membership_epoch: u64,
    /// What the accepting side has chosen of what was offered.
    pub capabilities: Capabilities,
    /// Seals what this side sends.
    pub sealer: Sealer,
    /// Opens what the other side sends.
    pub opener: Opener,
}

impl Established {
    /// What the accepting side has given it.
    #[must_use]
    pub fn terms(&self) -> Terms {
        let Established { session, patience, generation, membership_epoch, capabilities, .. } = *self;
        Terms { session, patience, generation, membership_epoch, capabilities }
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// Dialling: the other side closed without a byte.
    #[error(
        "closed without an answer when asked for run {run_id} as host {host}: the key there is another one \
         (a ticket or secret of another run), or what listens there is not flodl"
    )]
    Silent {
        /// The run asked for.
        run_id: RunId,
        /// The host's name.
        host: String,
    },
    /// Dialling: a member of the run said no.
    #[error("refused: {0}")]
    Refused(String),
    /// Accepting: no member of this run, closed without a byte.
    #[error("a stranger was turned away in silence: {why}")]
    Stranger {
        /// What gave it away.
        why: StrangerWhy,
    },
    /// Accepting: a member was refused with this sentence.
    #[error("{who} was refused: {why}")]
    TurnedAway {
        /// What it says it is.
        who: String,
        /// What it was told.
        why: String,
    },
    /// The other side does not hold the key of the host or rank that it speaks for (or that we speak for).
    #[error(
        "the other side does not hold the same key for this host and rank: one has a ticket of another host or run"
    )]
    WrongKey,
    /// The other side's message has no meaning.
    #[error("the {message} is malformed: {what}")]
    Malformed {
        /// Which message.
        message: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The other side chose a version that was not offered.
    #[error("the controller speaks protocol {theirs}, this program speaks {VERSION_MIN}..={VERSION_MAX}")]
    Version {
        /// What it chose.
        theirs: u16,
    },
    /// The other side closed in the middle.
    #[error("the connection closed while waiting for the {waiting_for}")]
    Closed {
        /// What was awaited.
        waiting_for: &'static str,
    },
    /// The other side took too long.
    #[error("no {waiting_for} within {after:?}")]
    TimedOut {
        /// What was awaited.
        waiting_for: &'static str,
        /// The whole time given.
        after: Duration,
    },
    /// The connection failed.
    #[error("the connection failed while {doing}: {kind}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// How it failed.
        kind: std::io::ErrorKind,
    },
}

/// What gave a stranger away.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum StrangerWhy {
    /// It does not speak this protocol.
    #[error("it does not speak flodl")]
    NotFlodl,
    /// It does, with another run's gate key.
    #[error("its gate key is not this run's")]
    WrongGate,
}

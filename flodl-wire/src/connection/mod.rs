//! A whole connection without IO: the handshake of either side, then sealed frames both ways.
//!
//! A [`Connection`] is told what has happened (bytes came, bytes were written, time passed, the stream ended) and says what that
//! means, as [`Event`]s. It holds the bytes that are to be written until they are. Whoever drives it needs no knowledge of
//! the protocol:
//!
//! - write [`Connection::outgoing`] and tell [`Connection::sent`];
//! - read into [`Connection::space`] and tell [`Connection::filled`], or give what came to [`Connection::receive`];
//! - tell [`Connection::ended`] when nothing more will come, and [`Connection::tick`] when [`Connection::deadline`] is there;
//! - answer [`Event::Hello`] by [`Connection::admit`];
//! - close the stream for writing once [`Connection::is_drained`].
//!
//! The two directions of an established connection can be taken apart, for tasks of their own: [`Connection::into_parts`]. The
//! crate's documentation shows two of them over byte vectors; `io` drives one over any stream.

mod outbox;

pub(crate) use outbox::Outbox;

use crate::fields::pour;
use crate::frame::{Frame, OpenError, SealError, Stream};
use crate::handshake::{
    Admission, Capabilities, Challenged, Dialler, Established, Finish, Greeted, HandshakeError, Hello, M1_LEN, M3_LEN,
    Unheard, greet,
};
use crate::limits::{FRAME_TIMEOUT, HANDSHAKE_TIMEOUT, HELLO_TIMEOUT, WRITE_BEHIND};
use crate::message::Data;
use crate::secret::{DialKeys, GateKey};
use crate::{Incarnation, SessionId, Time};
use core::fmt;
use core::time::Duration;
use thiserror::Error;

/// How long a peer may take: totals, however the bytes trickle in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Accepting: from the start to the whole hello.
    pub hello: Duration,
    /// From the start to the end of the handshake.
    pub total: Duration,
    /// From a frame's first byte to its last.
    pub frame: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines { hello: HELLO_TIMEOUT, total: HANDSHAKE_TIMEOUT, frame: FRAME_TIMEOUT }
    }
}

/// What the bytes, the time or the end of a stream mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Accepting: a member says who it is, not yet proven. Nothing more is taken until [`Connection::admit`].
    Hello(Hello),
    /// Both sides have proven who they are.
    Open(Terms),
    /// The next frame.
    Frame(Frame),
    /// The connection is over, for this reason. The last event.
    Closed(Close),
}

/// What the accepting side has given the connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Its session.
    pub session: SessionId,
    /// The knob that all deadlines of the run derive from.
    pub patience: Duration,
    /// How often the controller has been restarted. A lower one than seen before is a ghost.
    pub generation: u64,
    /// The membership epoch in force.
    pub membership_epoch: u64,
    /// What it has chosen of what was offered.
    pub capabilities: Capabilities,
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Close {
    /// There never was one.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The bytes are not the next frame.
    #[error(transparent)]
    Frame(#[from] OpenError),
    /// The other side ended it, between two frames.
    #[error("the other side closed the connection")]
    Ended,
    /// It ended inside a frame.
    #[error("the connection closed inside a frame, {missing} bytes before the end of its current part")]
    Truncated {
        /// Bytes missing of the frame's header or of its payload and tag.
        missing: usize,
    },
    /// A frame began and did not come to its end.
    #[error("a frame was not whole {after:?} after its first byte, with {missing} bytes of its current part missing")]
    Slow {
        /// The whole time given.
        after: Duration,
        /// Bytes missing of the frame's header or of its payload and tag.
        missing: usize,
    },
    /// This side gave up during the handshake.
    #[error("the connection was closed on this side before it was established")]
    GivenUp,
}

/// Why a frame was not taken for sending. The connection is unharmed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// The other side would refuse it.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// As many bytes wait to be written as may.
    #[error("{waiting} bytes wait to be written, at most {most} may: the other side does not take them fast enough")]
    Full {
        /// Bytes that wait.
        waiting: usize,
        /// From how many on nothing is taken.
        most: usize,
    },
    /// The handshake is not done, or sending is.
    #[error("frames can be sent between the end of the handshake and the close of the connection")]
    NotOpen,
}

/// One connection, either side of it.
pub struct Connection {
    state: State,
    outbox: Outbox,
    /// Bytes of the handshake among those that wait.
    owed: usize,
    /// From how many bytes that wait on no frame is taken.
    most: usize,
    deadlines: Deadlines,
    began: Time,
    /// When the frame that is not whole yet began.
    frame_began: Option<Time>,
    is_sending: bool,
}

enum State {
    Dialling(Box<Dialler>),
    Hearing { gate: GateKey, nonce: [u8; 32], m1: Exactly<M1_LEN> },
    Deciding { greeted: Greeted, nonce: [u8; 32] },
    Proving { challenged: Challenged, m3: Exactly<M3_LEN> },
    Open(Box<Established>),
    Over,
}

/// A message of `N` bytes that comes in portions.
struct Exactly<const N: usize> {
    bytes: [u8; N],
    have: usize,
}

impl<const N: usize> Exactly<N> {
    const NOTHING: Exactly<N> = Exactly { bytes: [0; N], have: 0 };

    fn space(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.have..).unwrap_or_default()
    }

    /// `n` more bytes are there; whether that is all.
    fn filled(&mut self, n: usize) -> bool {
        self.have = self.have.saturating_add(n).min(N);
        self.have == N
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Connection");
        debug.field("waiting_for", &self.waiting_for()).field("outgoing", &self.outbox.len()).finish_non_exhaustive()
    }
}

impl Connection {
    /// The dialling side. `nonce` is 32 random bytes that were never used before.
    #[must_use]
    pub fn dial(hello: Hello, keys: impl Into<DialKeys>, nonce: [u8; 32], now: Time) -> Connection {
        let dialler = Dialler::new(hello, keys.into(), nonce);
        let m1 = *dialler.m1();
        let mut connection = Connection::new(State::Dialling(Box::new(dialler)), now);
        connection.owe(&m1);
        connection
    }

    /// The accepting side. `nonce` is 32 random bytes that were never used before. Nothing more is allocated before the other
    /// side has shown that it is a member.
    #[must_use]
    pub fn accept(gate: &GateKey, nonce: [u8; 32], now: Time) -> Connection {
        Connection::new(State::Hearing { gate: gate.clone(), nonce, m1: Exactly::NOTHING }, now)
    }

    fn new(state: State, began: Time) -> Connection {
        let (deadlines, most) = (Deadlines::default(), WRITE_BEHIND);
        let outbox = Outbox::default();
        Connection { state, outbox, owed: 0, most, deadlines, began, frame_began: None, is_sending: true }
    }

    /// With other deadlines.
    #[must_use]
    pub fn within(mut self, deadlines: Deadlines) -> Connection {
        self.deadlines = deadlines;
        self
    }

    /// With another bound on the bytes that wait to be written: once there are `most`, no frame is taken. Usually
    /// [`WRITE_BEHIND`].
    #[must_use]
    pub fn holding(mut self, most: usize) -> Connection {
        self.most = most;
        self
    }

    /// Bytes to write.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.outbox.waiting()
    }

    /// The first `n` bytes of [`Connection::outgoing`] are written.
    pub fn sent(&mut self, n: usize) {
        self.owed = self.owed.saturating_sub(n);
        self.outbox.written(n);
    }

    /// Takes bytes from the front of `input`, at most to the next event. `None`: all of `input` was taken, or nothing can be:
    /// a hello is to be answered, or the connection is over.
    pub fn receive(&mut self, input: &mut &[u8], now: Time) -> Option<Event> {
        loop {
            let n = pour(input, self.space());
            if n == 0 {
                return None;
            }
            if let Some(event) = self.filled(n, now) {
                return Some(event);
            }
        }
    }

    /// Where the next bytes belong, so that none is copied twice: write to its beginning and tell [`Connection::filled`]. Never
    /// reaches beyond the handshake or the current frame. Empty where nothing can be taken.
    pub fn space(&mut self) -> &mut [u8] {
        match &mut self.state {
            State::Dialling(dialler) => dialler.space(),
            State::Hearing { m1, .. } => m1.space(),
            State::Proving { m3, .. } => m3.space(),
            State::Open(established) => established.opener.space(),
            State::Deciding { .. } | State::Over => &mut [],
        }
    }

    /// `n` bytes were written to the beginning of [`Connection::space`].
    pub fn filled(&mut self, n: usize, now: Time) -> Option<Event> {
        let event = self.advance(n, now);
        self.or_over(event)
    }

    /// Answers the hello as `policy` decides. The event is [`Event::Closed`], where it refuses; nothing happens where there is
    /// no hello to answer.
    pub fn admit(&mut self, policy: &(impl Admission + ?Sized)) -> Option<Event> {
        let (greeted, nonce) = match core::mem::replace(&mut self.state, State::Over) {
            State::Deciding { greeted, nonce } => (greeted, nonce),
            other => {
                self.state = other;
                return None;
            }
        };
        match greeted.admit(policy, nonce) {
            Ok((challenged, m2)) => {
                self.owe(&m2);
                self.state = State::Proving { challenged, m3: Exactly::NOTHING };
                None
            }
            Err(unheard) => {
                let close = self.turn_away(unheard);
                self.or_over(Err(close))
            }
        }
    }

    /// Seals `frame` and queues it.
    ///
    /// # Errors
    ///
    /// Where the connection is not open, too much waits already, or the other side would refuse it.
    pub fn send(&mut self, frame: &Frame) -> Result<(), SendError> {
        let (established, out) = self.sending()?;
        Ok(established.sealer.seal(frame, out)?)
    }

    /// The same for a data message: a chunk's elements are copied once, to where they are sealed.
    ///
    /// # Errors
    ///
    /// As [`Connection::send`].
    pub fn send_data(&mut self, stream: Stream, incarnation: Incarnation, data: &Data) -> Result<(), SendError> {
        let (established, out) = self.sending()?;
        Ok(established.sealer.seal_data(stream, incarnation, data, out)?)
    }

    fn sending(&mut self) -> Result<(&mut Established, &mut Vec<u8>), SendError> {
        let State::Open(established) = &mut self.state else { return Err(SendError::NotOpen) };
        if !self.is_sending {
            return Err(SendError::NotOpen);
        }
        let (waiting, most) = (self.outbox.len(), self.most);
        if waiting >= most { Err(SendError::Full { waiting, most }) } else { Ok((established, self.outbox.end())) }
    }

    /// Ends sending: what waits is still written, what the other side has still sent still comes. During the handshake: gives
    /// up, and that is the event.
    pub fn close(&mut self) -> Option<Event> {
        self.is_sending = false;
        match self.state {
            State::Open(_) | State::Over => None,
            _ => self.or_over(Err(Close::GivenUp)),
        }
    }

    /// Nothing more will come: the stream has ended, or failed.
    pub fn ended(&mut self) -> Option<Event> {
        let close = match &self.state {
            State::Dialling(dialler) => Close::Handshake(dialler.closed()),
            State::Hearing { .. } | State::Deciding { .. } | State::Proving { .. } => {
                Close::Handshake(HandshakeError::Closed { waiting_for: self.waiting_for() })
            }
            State::Open(established) if established.opener.between_frames() => Close::Ended,
            State::Open(established) => Close::Truncated { missing: established.opener.missing() },
            State::Over => return None,
        };
        self.or_over(Err(close))
    }

    /// When [`Connection::tick`] is to be called, unless something else happens first.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let Deadlines { hello, total, frame } = self.deadlines;
        match self.state {
            State::Hearing { .. } => Some(self.began.plus(hello.min(total))),
            State::Dialling(_) | State::Deciding { .. } | State::Proving { .. } => Some(self.began.plus(total)),
            State::Open(_) | State::Over if self.owed > 0 => Some(self.began.plus(total)),
            State::Open(_) => self.frame_began.map(|began| began.plus(frame)),
            State::Over => None,
        }
    }

    /// It is `now`: a peer that is late meets its end.
    pub fn tick(&mut self, now: Time) -> Option<Event> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        let Deadlines { hello, total, frame } = self.deadlines;
        let close = match &self.state {
            State::Over => {
                // The last word, that nobody takes.
                self.owed = 0;
                self.outbox.clear();
                return None;
            }
            State::Open(established) if self.owed == 0 => {
                Close::Slow { after: frame, missing: established.opener.missing() }
            }
            State::Hearing { .. } => {
                HandshakeError::TimedOut { waiting_for: self.waiting_for(), after: hello.min(total) }.into()
            }
            _ => HandshakeError::TimedOut { waiting_for: self.waiting_for(), after: total }.into(),
        };
        self.or_over(Err(close))
    }

    /// Whether both sides have proven who they are and the connection is not over.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Whether nothing is left to write and nothing will be: the stream can be closed for writing.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.outbox.len() == 0 && (!self.is_sending || matches!(self.state, State::Over))
    }

    /// What is awaited of the other side, for people.
    #[must_use]
    pub fn waiting_for(&self) -> &'static str {
        match self.state {
            State::Dialling(_) => "answer to the hello",
            State::Hearing { .. } => "hello",
            State::Deciding { .. } | State::Proving { .. } => "finish",
            State::Open(_) if self.owed > 0 => "room for the end of the handshake",
            State::Open(_) => "frame",
            State::Over => "nothing",
        }
    }

    /// The two directions, for tasks of their own, and what is sealed and not yet written. `None` where it is not open.
    #[must_use]
    pub fn into_parts(self) -> Option<(Established, Vec<u8>)> {
        let State::Open(established) = self.state else { return None };
        Some((*established, self.outbox.into_waiting()))
    }

    fn advance(&mut self, n: usize, now: Time) -> Result<Option<Event>, Close> {
        let is_whole = match &mut self.state {
            State::Dialling(dialler) => {
                let Some(Finish { m3, established }) = dialler.filled(n)? else { return Ok(None) };
                self.owe(&m3);
                return Ok(Some(self.open(established)));
            }
            State::Open(established) => {
                let frame = established.opener.filled(n)?;
                let is_between = established.opener.between_frames();
                self.frame_began = if is_between { None } else { self.frame_began.or(Some(now)) };
                return Ok(frame.map(Event::Frame));
            }
            State::Hearing { m1, .. } => m1.filled(n),
            State::Proving { m3, .. } => m3.filled(n),
            State::Deciding { .. } | State::Over => false,
        };
        if !is_whole {
            return Ok(None);
        }
        match core::mem::replace(&mut self.state, State::Over) {
            State::Hearing { gate, nonce, m1 } => {
                let greeted = greet(&gate, &m1.bytes).map_err(|unheard| self.turn_away(unheard))?;
                let hello = *greeted.hello();
                self.state = State::Deciding { greeted, nonce };
                Ok(Some(Event::Hello(hello)))
            }
            State::Proving { challenged, m3 } => Ok(Some(self.open(challenged.finish(&m3.bytes)?))),
            State::Dialling(_) | State::Deciding { .. } | State::Open(_) | State::Over => Ok(None),
        }
    }

    fn open(&mut self, established: Established) -> Event {
        let terms = established.terms();
        self.state = State::Open(Box::new(established));
        Event::Open(terms)
    }

    /// Queues a message of the handshake.
    fn owe(&mut self, message: &[u8]) {
        self.owed = self.owed.saturating_add(message.len());
        self.outbox.end().extend_from_slice(message);
    }

    /// Why the other side was not heard. It is told, where it is a member.
    fn turn_away(&mut self, unheard: Unheard) -> Close {
        match unheard {
            Unheard::Silence(error) => error.into(),
            Unheard::Refusal(refusal, error) => {
                self.owe(&refusal[..]);
                error.into()
            }
        }
    }

    /// An error is the connection's end. What waits is not written any more, but for a refusal.
    fn or_over(&mut self, event: Result<Option<Event>, Close>) -> Option<Event> {
        event.unwrap_or_else(|close| {
            if !matches!(close, Close::Handshake(HandshakeError::TurnedAway { .. })) {
                self.owed = 0;
                self.outbox.clear();
            }
            self.state = State::Over;
            Some(Event::Closed(close))
        })
    }
}

//! The accepting side: one type per state, each consumed by the step to the next.

use super::bytes::{
    self, Challenge, M1_LEN, M2_LEN, M2_TAGGED, M3_LEN, M3_MAGIC, M3_TAG, REFUSE_LEN, VERSION_MAX, VERSION_MIN,
};
use super::schedule::Schedule;
use super::{Capabilities, Channel, Established, HandshakeError, Hello, StrangerWhy};
use crate::SessionId;
use crate::frame::Direction;
use crate::secret::{GateKey, PeerKey};
use core::fmt;
use core::time::Duration;

/// What the accepting side decides about a hello.
#[derive(Clone, Debug)]
pub struct Accept {
    /// The key that whoever sent it must hold.
    pub key: PeerKey,
    /// The connection's session: a fresh one on a control connection, the control connection's own on a data connection.
    pub session: SessionId,
}

/// The accepting side's policy. Asked before the other side has proven more than the gate key: it must not change anything.
pub trait Admission {
    /// The run's gate key.
    fn gate_key(&self) -> &GateKey;

    /// Whether the sender of `hello` may come in, and with which key.
    ///
    /// # Errors
    ///
    /// The sentence to refuse it with, with both values where two differ ("rank 3 is already here from host b").
    fn decide(&self, hello: &Hello) -> Result<Accept, String>;

    /// The knob that all deadlines derive from; both sides know it from the handshake. Travels in whole milliseconds, at
    /// least one.
    fn patience(&self) -> Duration;

    /// How often the controller has been restarted.
    fn generation(&self) -> u64;

    /// The membership epoch in force.
    fn membership_epoch(&self) -> u64 {
        0
    }

    /// What it chooses wherever it is offered.
    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }
}

/// Why a hello was not heard.
#[derive(Debug)]
pub enum Unheard {
    /// Close without a byte.
    Silence(HandshakeError),
    /// Send these bytes, then close.
    Refusal(Box<[u8; REFUSE_LEN]>, HandshakeError),
}

/// A hello that passed the gate.
pub struct Greeted {
    hello: Hello,
    m1: [u8; M1_LEN],
}

impl fmt::Debug for Greeted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Greeted").field("hello", &self.hello).finish_non_exhaustive()
    }
}

/// Takes the first message. It costs one HMAC and no memory to turn a stranger away.
///
/// # Errors
///
/// How to answer instead.
pub fn greet(gate: &GateKey, m1: &[u8; M1_LEN]) -> Result<Greeted, Unheard> {
    if !bytes::is_m1(m1) {
        return Err(Unheard::Silence(HandshakeError::Stranger { why: StrangerWhy::NotFlodl }));
    }
    if !bytes::passes_gate(m1, gate) {
        return Err(Unheard::Silence(HandshakeError::Stranger { why: StrangerWhy::WrongGate }));
    }
    let refuse = |why: String| {
        let refusal = Box::new(bytes::write_refuse(&why, gate, m1));
        let who = "a member of this run".to_owned();
        Err(Unheard::Refusal(refusal, HandshakeError::TurnedAway { who, why }))
    };
    let (least, most) = bytes::offered_versions(m1);
    if least > VERSION_MAX || most < VERSION_MIN || least > most {
        return refuse(format!(
            "this side speaks protocol {VERSION_MIN}..={VERSION_MAX}, you speak {least}..={most}: \
             install the same flodl on both"
        ));
    }
    match bytes::read_m1(m1) {
        Ok(hello) => Ok(Greeted { hello, m1: *m1 }),
        Err(what) => refuse(format!("the hello is malformed: {what}")),
    }
}

impl Greeted {
    /// What the dialling side says about itself. Proven only once the handshake is done.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// What `policy` makes of it: a challenge to send, or a refusal. `nonce` is 32 random bytes that were never used before.
    ///
    /// # Errors
    ///
    /// Where the policy refuses: what to send before closing.
    pub fn admit(
        self,
        policy: &(impl Admission + ?Sized),
        nonce: [u8; 32],
    ) -> Result<(Challenged, [u8; M2_LEN]), Unheard> {
        let accept = match policy.decide(&self.hello) {
            Ok(accept) => accept,
            Err(why) => {
                let refusal = Box::new(bytes::write_refuse(&why, policy.gate_key(), &self.m1));
                let who = self.hello.to_string();
                return Err(Unheard::Refusal(refusal, HandshakeError::TurnedAway { who, why }));
            }
        };
        let (_, most) = bytes::offered_versions(&self.m1);
        let challenge = Challenge {
            version: most.min(VERSION_MAX),
            generation: policy.generation(),
            membership_epoch: policy.membership_epoch(),
            session: accept.session,
            patience_ms: u32::try_from(policy.patience().as_millis()).unwrap_or(u32::MAX).max(1),
            capabilities: policy.capabilities().and(self.hello.capabilities),
            nonce,
        };
        let mut m2 = bytes::write_m2(&challenge);
        let schedule = Schedule::new(&self.m1, &m2, &accept.key);
        m2[M2_TAGGED..].copy_from_slice(&schedule.accepting_tag());
        Ok((Challenged { schedule, challenge, channel: self.hello.channel }, m2))
    }
}

/// The challenge is sent, the proof must come.
pub struct Challenged {
    schedule: Schedule,
    challenge: Challenge,
    channel: Channel,
}

impl fmt::Debug for Challenged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Challenged").field("session", &self.challenge.session).finish_non_exhaustive()
    }
}

impl Challenged {
    /// Takes the last message: the connection stands.
    ///
    /// # Errors
    ///
    /// Where it does not prove the key.
    pub fn finish(self, m3: &[u8; M3_LEN]) -> Result<Established, HandshakeError> {
        if !m3.starts_with(&M3_MAGIC) {
            let what = "it does not begin as a finish does";
            return Err(HandshakeError::Malformed { message: "finish", what });
        }
        if !self.schedule.is_dialling_tag(&m3[M3_TAG..]) {
            return Err(HandshakeError::WrongKey);
        }
        Ok(self.schedule.establish(&self.challenge, self.channel, Direction::Down))
    }
}

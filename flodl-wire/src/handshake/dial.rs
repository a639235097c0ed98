//! The dialling side.

use super::bytes::{
    self, M1_LEN, M2_LEN, M2_TAGGED, M3_LEN, M3_MAGIC, M3_TAG, REFUSE_LEN, VERSION_MAX, VERSION_MIN, read_m2,
};
use super::schedule::Schedule;
use super::{Established, HandshakeError, Hello};
use crate::frame::Direction;
use crate::secret::DialKeys;
use core::fmt;

/// The dialling side, its hello sent, waiting for the answer.
pub struct Dialler {
    hello: Hello,
    keys: DialKeys,
    m1: [u8; M1_LEN],
    answer: [u8; REFUSE_LEN],
    have: usize,
}

impl fmt::Debug for Dialler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialler").field("hello", &self.hello).field("have", &self.have).finish_non_exhaustive()
    }
}

/// The dialling side's last word: send `m3`, and the connection stands.
#[derive(Debug)]
pub struct Finish {
    /// What to send.
    pub m3: [u8; M3_LEN],
    /// The connection.
    pub established: Established,
}

impl Dialler {
    /// A handshake of `hello`; `nonce` is 32 random bytes that were never used before.
    #[must_use]
    pub fn new(hello: Hello, keys: DialKeys, nonce: [u8; 32]) -> Dialler {
        let m1 = bytes::write_m1(&hello, &keys.gate, &nonce);
        Dialler { hello, keys, m1, answer: [0; REFUSE_LEN], have: 0 }
    }

    /// What to send first.
    #[must_use]
    pub fn m1(&self) -> &[u8; M1_LEN] {
        &self.m1
    }

    /// Where the next bytes of the answer belong; never more than belong to the handshake. Write to its beginning, tell
    /// [`Dialler::filled`].
    pub fn space(&mut self) -> &mut [u8] {
        let end = self.answer_len();
        self.answer.get_mut(self.have..end).unwrap_or_default()
    }

    fn answer_len(&self) -> usize {
        if self.have >= M2_LEN && bytes::is_refuse(&self.answer) { REFUSE_LEN } else { M2_LEN }
    }

    /// `n` bytes were written to the beginning of [`Dialler::space`]. `None`: more are needed.
    ///
    /// # Errors
    ///
    /// Where the answer is a refusal or not an answer to this hello; the handshake is over then.
    pub fn filled(&mut self, n: usize) -> Result<Option<Finish>, HandshakeError> {
        self.have = self.have.saturating_add(n).min(self.answer_len());
        if self.have < self.answer_len() {
            return Ok(None);
        }
        if bytes::is_refuse(&self.answer) {
            let sentence = bytes::read_refuse(&self.answer, &self.keys.gate, &self.m1);
            let forged = HandshakeError::Malformed { message: "refusal", what: "it is not authentic" };
            return Err(sentence.map_or(forged, HandshakeError::Refused));
        }
        let mut m2 = [0; M2_LEN];
        m2.copy_from_slice(&self.answer[..M2_LEN]);
        self.finish(&m2).map(Some)
    }

    /// The end of the connection came instead of bytes: what that means.
    #[must_use]
    pub fn closed(&self) -> HandshakeError {
        if self.have == 0 {
            return HandshakeError::Silent { run_id: self.hello.run_id, host: self.hello.host_id.name() };
        }
        HandshakeError::Closed { waiting_for: "answer to the hello" }
    }

    fn finish(&self, m2: &[u8; M2_LEN]) -> Result<Finish, HandshakeError> {
        let challenge = read_m2(m2).map_err(|what| HandshakeError::Malformed { message: "challenge", what })?;
        if !(VERSION_MIN..=VERSION_MAX).contains(&challenge.version) {
            return Err(HandshakeError::Version { theirs: challenge.version });
        }
        if !self.hello.capabilities.has(challenge.capabilities) {
            let what = "it chose a suite or capability that was not offered";
            return Err(HandshakeError::Malformed { message: "challenge", what });
        }
        let schedule = Schedule::new(&self.m1, m2, &self.keys.peer);
        if !schedule.is_accepting_tag(&m2[M2_TAGGED..]) {
            return Err(HandshakeError::WrongKey);
        }
        let mut m3 = [0; M3_LEN];
        m3[..M3_TAG].copy_from_slice(&M3_MAGIC);
        m3[M3_TAG..].copy_from_slice(&schedule.dialling_tag());
        let established = schedule.establish(&challenge, self.hello.channel, Direction::Up);
        Ok(Finish { m3, established })
    }
}

//! The handshake's messages byte by byte: `docs/PROTOCOL.md` has the same tables.

use super::{Capabilities, Channel, Hello, Role};
use crate::fields::{Reader, Writer};
use crate::limits::{CHUNK_MAX, CONTROL_MAX, REFUSAL_TEXT};
use crate::secret::{GateKey, TAG_LEN};
use crate::{HostId, Incarnation, Rank, RunId, SessionId};

/// The oldest protocol version that this crate speaks.
pub const VERSION_MIN: u16 = 1;
/// The newest protocol version that this crate speaks.
pub const VERSION_MAX: u16 = 1;

/// Bytes of M1, the hello.
pub const M1_LEN: usize = 120;
/// Bytes of M2, the challenge.
pub const M2_LEN: usize = 120;
/// Bytes of M3, the finish.
pub const M3_LEN: usize = 40;
/// Bytes of a refusal.
pub const REFUSE_LEN: usize = 512;

pub(super) const M1_MAGIC: [u8; 8] = *b"flodl-m1";
pub(super) const M2_MAGIC: [u8; 8] = *b"flodl-m2";
pub(super) const M3_MAGIC: [u8; 8] = *b"flodl-m3";
pub(super) const REFUSE_MAGIC: [u8; 8] = *b"flodl-no";

/// Bytes of the gate tag: the beginning of an HMAC.
pub(super) const GATE_TAG_LEN: usize = 16;
pub(super) const M1_TAGGED: usize = M1_LEN - GATE_TAG_LEN;
pub(super) const M2_TAGGED: usize = M2_LEN - TAG_LEN;
pub(super) const M3_TAG: usize = M3_MAGIC.len();
const M1_VERSIONS: usize = M1_MAGIC.len();
const M1_ROLE: usize = M1_VERSIONS + 4;
const M2_VERSION: usize = M2_MAGIC.len();
const REFUSE_LEN_AT: usize = REFUSE_MAGIC.len();
const REFUSE_TAGGED: usize = REFUSE_LEN - TAG_LEN;
const REFUSE_TEXT_AT: usize = REFUSE_LEN_AT + 2;

/// HKDF and HMAC over SHA-256, frames under AES-256-GCM. There is no other suite.
pub(super) const SUITE: u16 = 1;

const _: () = {
    assert!(VERSION_MIN <= VERSION_MAX);
    assert!(REFUSE_TEXT_AT + REFUSAL_TEXT + TAG_LEN == REFUSE_LEN);
    assert!(M1_LEN == M2_LEN && M2_LEN < REFUSE_LEN, "an answer is read as an M2 first, then to a refusal's end");
};

/// M1 for `hello`, with its gate tag.
pub(super) fn write_m1(hello: &Hello, gate: &GateKey, nonce: &[u8; 32]) -> [u8; M1_LEN] {
    let (role, first, second) = match hello.role {
        Role::Relay { rank_count } => (1, rank_count, 0),
        Role::Rank { rank, incarnation } => (2, rank.0, incarnation.0),
    };
    let channel = match hello.channel {
        Channel::Control => 1,
        Channel::Data => 2,
    };
    let mut m1 = [0; M1_LEN];
    let mut writer = Writer::new(&mut m1);
    writer.put(&M1_MAGIC).put(&VERSION_MIN.to_le_bytes()).put(&VERSION_MAX.to_le_bytes()).put(&[role, channel]);
    // Stream index, then capabilities: there is one stream of each channel.
    writer.put(&[0; 2]).put(&hello.capabilities.bits().to_le_bytes());
    writer.put(&first.to_le_bytes()).put(&second.to_le_bytes()).put(&[0; 4]);
    writer.put(&hello.session.0.to_le_bytes()).put(&hello.run_id.0).put(&hello.host_id.0).put(nonce);
    let tag = gate.key().tag(&[&m1[..M1_TAGGED]]);
    m1[M1_TAGGED..].copy_from_slice(&tag[..GATE_TAG_LEN]);
    m1
}

/// Whether M1 begins as one does. The magic's last byte is the message's name, the rest the protocol's.
pub(super) fn is_m1(m1: &[u8; M1_LEN]) -> bool {
    m1.starts_with(&M1_MAGIC)
}

/// Whether M1's gate tag is right.
pub(super) fn passes_gate(m1: &[u8; M1_LEN], gate: &GateKey) -> bool {
    gate.key().verifies(&[&m1[..M1_TAGGED]], &m1[M1_TAGGED..])
}

/// The versions that M1 offers. These fields lie where they lie in every version to come.
pub(super) fn offered_versions(m1: &[u8; M1_LEN]) -> (u16, u16) {
    let mut reader = Reader::new(&m1[M1_VERSIONS..M1_ROLE]);
    (reader.u16(), reader.u16())
}

/// What M1 says, where its fields have a meaning; else what is wrong.
pub(super) fn read_m1(m1: &[u8; M1_LEN]) -> Result<Hello, &'static str> {
    let mut reader = Reader::new(&m1[M1_ROLE..M1_TAGGED]);
    let [role, channel] = reader.take();
    // Others may know capabilities that are not known here.
    let (stream_index, capabilities) = (reader.u16(), Capabilities::known(reader.u32()));
    let (first, second, reserved) = (reader.u32(), reader.u32(), reader.u32());
    let session = SessionId(reader.u64());
    let (run_id, host_id) = (RunId(reader.take()), HostId(reader.take()));
    let role = match role {
        1 if second != 0 => return Err("a relay has no incarnation"),
        1 if first > crate::limits::RANKS_MAX => return Err("more ranks than a run can have"),
        1 => Role::Relay { rank_count: first },
        2 if first >= crate::limits::RANKS_MAX => return Err("its rank is not one that a run can have"),
        2 => Role::Rank { rank: Rank(first), incarnation: Incarnation(second) },
        _ => return Err("its role is not known here"),
    };
    let channel = match channel {
        1 if session.0 != 0 && matches!(role, Role::Rank { .. }) => {
            return Err("a rank's control connection cannot belong to a session");
        }
        1 => Channel::Control,
        2 => Channel::Data,
        _ => return Err("its channel is not known here"),
    };
    if stream_index != 0 || reserved != 0 {
        return Err("a field that must be zero is not");
    }
    Ok(Hello { role, channel, session, run_id, host_id, capabilities })
}

/// What M2 says besides its tag.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    pub(super) version: u16,
    pub(super) generation: u64,
    pub(super) membership_epoch: u64,
    pub(super) session: SessionId,
    pub(super) patience_ms: u32,
    pub(super) capabilities: Capabilities,
    pub(super) nonce: [u8; 32],
}

/// M2 without its tag.
pub(super) fn write_m2(challenge: &Challenge) -> [u8; M2_LEN] {
    let mut m2 = [0; M2_LEN];
    let mut writer = Writer::new(&mut m2);
    writer.put(&M2_MAGIC).put(&challenge.version.to_le_bytes()).put(&SUITE.to_le_bytes());
    writer.put(&challenge.capabilities.bits().to_le_bytes());
    writer.put(&challenge.generation.to_le_bytes()).put(&challenge.membership_epoch.to_le_bytes());
    writer.put(&challenge.session.0.to_le_bytes()).put(&challenge.patience_ms.to_le_bytes());
    writer.put(&limit(CONTROL_MAX)).put(&limit(CHUNK_MAX)).put(&[0; 4]).put(&challenge.nonce);
    m2
}

fn limit(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes()
}

/// What M2 says, where its fields have a meaning; else what is wrong. Its tag is not looked at.
pub(super) fn read_m2(m2: &[u8; M2_LEN]) -> Result<Challenge, &'static str> {
    if !m2.starts_with(&M2_MAGIC) {
        return Err("it does not begin as a challenge does");
    }
    let mut reader = Reader::new(&m2[M2_VERSION..M2_TAGGED]);
    let (version, suite, capabilities) = (reader.u16(), reader.u16(), reader.u32());
    let (generation, membership_epoch) = (reader.u64(), reader.u64());
    let (session, patience_ms) = (SessionId(reader.u64()), reader.u32());
    let (control_max, chunk_max, reserved) = (reader.take(), reader.take(), reader.u32());
    let chosen = Capabilities::chosen(capabilities).filter(|_| suite == SUITE && reserved == 0);
    let capabilities = chosen.ok_or("it chose a suite or capability that was not offered")?;
    if (control_max, chunk_max) != (limit(CONTROL_MAX), limit(CHUNK_MAX)) {
        return Err("its frame limits are not those of this protocol version");
    }
    Ok(Challenge { version, generation, membership_epoch, session, patience_ms, capabilities, nonce: reader.take() })
}

/// The refusal of the hello `m1` with `sentence`, cut to what fits. Tied to that hello, so it cannot be replayed to another.
pub(super) fn write_refuse(sentence: &str, gate: &GateKey, m1: &[u8; M1_LEN]) -> [u8; REFUSE_LEN] {
    let text = (0..=REFUSAL_TEXT.min(sentence.len())).rev().find_map(|end| sentence.get(..end)).unwrap_or_default();
    let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    let mut refuse = [0; REFUSE_LEN];
    let mut writer = Writer::new(&mut refuse);
    writer.put(&REFUSE_MAGIC).put(&len.to_le_bytes()).put(text.as_bytes());
    let tag = gate.key().tag(&[&refuse[..REFUSE_TAGGED], m1]);
    refuse[REFUSE_TAGGED..].copy_from_slice(&tag);
    refuse
}

/// Whether an answer begins as a refusal does.
pub(super) fn is_refuse(answer: &[u8]) -> bool {
    answer.starts_with(&REFUSE_MAGIC)
}

/// The sentence of a refusal of the hello `m1`; `None` where it is not authentic. Control characters become spaces: the
/// sentence is for a terminal.
pub(super) fn read_refuse(refuse: &[u8; REFUSE_LEN], gate: &GateKey, m1: &[u8; M1_LEN]) -> Option<String> {
    if !is_refuse(refuse) || !gate.key().verifies(&[&refuse[..REFUSE_TAGGED], m1], &refuse[REFUSE_TAGGED..]) {
        return None;
    }
    let len = usize::from(Reader::new(&refuse[REFUSE_LEN_AT..REFUSE_TEXT_AT]).u16());
    let text = core::str::from_utf8(refuse[REFUSE_TEXT_AT..REFUSE_TAGGED].get(..len)?).ok()?;
    Some(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

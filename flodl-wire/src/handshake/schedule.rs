//! The key schedule: what both sides compute from the transcript and the key they share.

use super::bytes::{M1_LEN, M2_LEN, M2_TAGGED};
use super::{Channel, Established};
use crate::frame::{Direction, Keys, Opener, Sealer};
use crate::handshake::bytes::Challenge;
use crate::secret::{Key, PeerKey, TAG_LEN};
use core::time::Duration;
use sha2::{Digest, Sha256};

/// `TH` and `HS` of one handshake.
pub(super) struct Schedule {
    transcript: [u8; 32],
    secret: Key,
}

impl Schedule {
    /// `TH = SHA-256(M1 || M2 up to its tag)`, `HS = HKDF-Extract(TH, key)`.
    pub(super) fn new(m1: &[u8; M1_LEN], m2: &[u8; M2_LEN], key: &PeerKey) -> Schedule {
        let transcript = Sha256::new().chain_update(m1).chain_update(&m2[..M2_TAGGED]).finalize().into();
        Schedule { transcript, secret: Key::extract(&transcript, key.key().bytes()) }
    }

    /// `tag_s = HMAC(HKDF-Expand(HS, "sfin"), TH)`: the accepting side's proof.
    pub(super) fn accepting_tag(&self) -> [u8; TAG_LEN] {
        self.secret.expand(&[b"sfin"]).tag(&[&self.transcript])
    }

    /// Whether that is the accepting side's proof.
    pub(super) fn is_accepting_tag(&self, tag: &[u8]) -> bool {
        tag.len() == TAG_LEN && self.secret.expand(&[b"sfin"]).verifies(&[&self.transcript], tag)
    }

    /// `tag_c = HMAC(HKDF-Expand(HS, "cfin"), TH || tag_s)`: the dialling side's proof.
    pub(super) fn dialling_tag(&self) -> [u8; TAG_LEN] {
        self.secret.expand(&[b"cfin"]).tag(&[&self.transcript, &self.accepting_tag()])
    }

    /// Whether that is the dialling side's proof.
    pub(super) fn is_dialling_tag(&self, tag: &[u8]) -> bool {
        let key = self.secret.expand(&[b"cfin"]);
        tag.len() == TAG_LEN && key.verifies(&[&self.transcript, &self.accepting_tag()], tag)
    }

    /// The connection, for the side that sends in direction `ours`.
    pub(super) fn establish(&self, challenge: &Challenge, channel: Channel, ours: Direction) -> Established {
        let keys = |direction: Direction| {
            let label: &[u8] = match direction {
                Direction::Up => b"c2s",
                Direction::Down => b"s2c",
            };
            Keys::new(self.secret.expand(&[label]), direction)
        };
        Established {
            session: challenge.session,
            patience: Duration::from_millis(u64::from(challenge.patience_ms)),
            generation: challenge.generation,
            membership_epoch: challenge.membership_epoch,
            capabilities: challenge.capabilities,
            sealer: Sealer::new(keys(ours), channel),
            opener: Opener::new(keys(ours.other()), channel),
        }
    }
}

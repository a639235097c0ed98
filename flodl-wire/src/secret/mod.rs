//! Keys: the run's secret and what is derived from it.
//!
//! Every key is 32 bytes on the heap that are overwritten when it is dropped, and none is ever shown by `Debug`.

mod kdf;
mod ticket;

pub(crate) use kdf::{Key, TAG_LEN};
pub use ticket::{Ticket, TicketError};

use crate::hex;
use crate::{HostId, Incarnation, Rank, RunId};
use core::fmt;
use thiserror::Error;
use zeroize::Zeroizing;

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name(Key);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(hidden)"))
            }
        }

        impl $name {
            /// The key's bytes, for a file or descriptor that only their owner can read.
            #[must_use]
            pub fn expose(&self) -> &[u8; 32] {
                self.0.bytes()
            }
        }
    };
}

key!(
    /// The session secret of a run. Only the controller has it; it recomputes every other key from it.
    Secret
);
key!(
    /// Tells members from strangers before anything else is looked at. Every member holds it.
    GateKey
);
key!(
    /// What a relay holds: proves that it is that host in that run.
    HostKey
);
key!(
    /// What a worker holds: proves that it is that rank in that life. Its relay computes it.
    RankKey
);

/// Why a text is not a secret.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
#[error("a session secret is one line of 64 hexadecimal digits, this is not")]
pub struct NotASecret;

impl Secret {
    /// The secret that these random bytes are.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Secret {
        Secret(Key::from_bytes(&Zeroizing::new(bytes)))
    }

    /// One line of hexadecimal digits, for a file with mode 0600.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(65));
        hex::push(&mut text, self.expose());
        text.push('\n');
        text
    }

    /// What [`Secret::to_text`] wrote; white space around it does not matter.
    ///
    /// # Errors
    ///
    /// Where it is anything else.
    pub fn parse(text: &str) -> Result<Secret, NotASecret> {
        hex::parse::<32>(text.trim()).map(|bytes| Secret(Key::from_bytes(&bytes))).ok_or(NotASecret)
    }

    /// `HKDF-Expand(HKDF-Extract("flodl", secret), "gate")`.
    #[must_use]
    pub fn gate_key(&self) -> GateKey {
        GateKey(self.root().expand(&[b"gate"]))
    }

    /// `HKDF-Expand(HKDF-Extract("flodl", secret), "host" || run || host)`.
    #[must_use]
    pub fn host_key(&self, run: RunId, host: HostId) -> HostKey {
        HostKey(self.root().expand(&[b"host", &run.0, &host.0]))
    }

    fn root(&self) -> Key {
        Key::extract(b"flodl", self.0.bytes())
    }
}

impl GateKey {
    pub(crate) fn key(&self) -> &Key {
        &self.0
    }
}

impl HostKey {
    /// `HKDF-Expand(K_host, "rank" || rank || incarnation)`, both as little-endian u32.
    #[must_use]
    pub fn rank_key(&self, rank: Rank, incarnation: Incarnation) -> RankKey {
        RankKey(self.0.expand(&[b"rank", &rank.0.to_le_bytes(), &incarnation.0.to_le_bytes()]))
    }
}

/// What a worker process inherits through a descriptor.
#[derive(Clone, Debug)]
pub struct RankKeys {
    /// Proves which rank it is.
    pub rank_key: RankKey,
    /// Proves that it belongs to the run at all.
    pub gate_key: GateKey,
}

impl RankKeys {
    /// The rank key's 32 bytes, then the gate key's. The copy is overwritten when it is dropped.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; 64]> {
        let mut bytes = Zeroizing::new([0; 64]);
        let (halves, _) = bytes.as_chunks_mut();
        for (half, key) in halves.iter_mut().zip([self.rank_key.expose(), self.gate_key.expose()]) {
            *half = *key;
        }
        bytes
    }

    /// What [`RankKeys::to_bytes`] wrote.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 64]) -> RankKeys {
        let half = |start: usize| {
            Key::fill(|key| key.iter_mut().zip(bytes.iter().skip(start)).for_each(|(to, from)| *to = *from))
        };
        RankKeys { rank_key: RankKey(half(0)), gate_key: GateKey(half(32)) }
    }
}

/// What proves who the dialling side is: the key that both ends of one connection share.
#[derive(Clone, Debug)]
pub enum PeerKey {
    /// A relay's.
    Host(HostKey),
    /// A rank's.
    Rank(RankKey),
}

impl PeerKey {
    pub(crate) fn key(&self) -> &Key {
        match self {
            PeerKey::Host(HostKey(key)) | PeerKey::Rank(RankKey(key)) => key,
        }
    }
}

impl From<HostKey> for PeerKey {
    fn from(key: HostKey) -> PeerKey {
        PeerKey::Host(key)
    }
}

impl From<RankKey> for PeerKey {
    fn from(key: RankKey) -> PeerKey {
        PeerKey::Rank(key)
    }
}

/// The two keys that the dialling side needs.
#[derive(Clone, Debug)]
pub struct DialKeys {
    /// Gets its hello looked at.
    pub gate: GateKey,
    /// Proves who it is.
    pub peer: PeerKey,
}

impl From<&Ticket> for DialKeys {
    fn from(ticket: &Ticket) -> DialKeys {
        DialKeys { gate: ticket.gate_key.clone(), peer: PeerKey::Host(ticket.host_key.clone()) }
    }
}

impl From<RankKeys> for DialKeys {
    fn from(keys: RankKeys) -> DialKeys {
        DialKeys { gate: keys.gate_key, peer: PeerKey::Rank(keys.rank_key) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId([1; 16]);
    const HOST: HostId = HostId([2; 16]);

    #[test]
    fn every_key_depends_on_everything_it_names() {
        let secret = Secret::from_bytes([7; 32]);
        let host = secret.host_key(RUN, HOST);
        let keys = [
            *secret.gate_key().expose(),
            *Secret::from_bytes([8; 32]).gate_key().expose(),
            *host.expose(),
            *Secret::from_bytes([8; 32]).host_key(RUN, HOST).expose(),
            *secret.host_key(RunId([9; 16]), HOST).expose(),
            *secret.host_key(RUN, HostId([9; 16])).expose(),
            *host.rank_key(Rank(0), Incarnation(1)).expose(),
            *host.rank_key(Rank(1), Incarnation(0)).expose(),
            *host.rank_key(Rank(0), Incarnation(2)).expose(),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "key {i} is not its own");
        }
        assert_eq!(host.expose(), secret.host_key(RUN, HOST).expose());
    }

    #[test]
    fn nothing_shows_a_key() {
        let secret = Secret::from_bytes([0xab; 32]);
        let rank_key = secret.host_key(RUN, HOST).rank_key(Rank(3), Incarnation(1));
        let keys = RankKeys { rank_key, gate_key: secret.gate_key() };
        let shown = format!("{secret:?} {keys:?} {:?}", DialKeys::from(keys.clone()));
        let expected = "Secret(hidden) RankKeys { rank_key: RankKey(hidden), gate_key: GateKey(hidden) } \
                        DialKeys { gate: GateKey(hidden), peer: Rank(RankKey(hidden)) }";
        assert_eq!(shown, expected);
    }

    #[test]
    fn keys_survive_their_byte_forms() {
        let secret = Secret::from_bytes([5; 32]);
        assert_eq!(Secret::parse(&secret.to_text()).map(|back| *back.expose()), Ok([5; 32]));
        for bad in ["", "05", &"0g".repeat(32), &"05".repeat(33)] {
            assert_eq!(Secret::parse(bad).map(|_| ()), Err(NotASecret), "{bad}");
        }
        let rank_key = secret.host_key(RUN, HOST).rank_key(Rank(3), Incarnation(1));
        let keys = RankKeys { rank_key, gate_key: secret.gate_key() };
        let back = RankKeys::from_bytes(&keys.to_bytes());
        assert_eq!(back.rank_key.expose(), keys.rank_key.expose());
        assert_eq!(back.gate_key.expose(), keys.gate_key.expose());
    }
}

//! Connections between two hosts as they really are: frames sealed by the production code, under keys of a production
//! handshake. What an adversary changes or repeats meets the production checks.

use super::net::{Lane, Packet};
use core::time::Duration;
use flodl_wire::frame::{Opener, Sealer, Stream};
use flodl_wire::handshake::{Accept, Admission, Channel, Dialler, Established, Hello, Role, greet};
use flodl_wire::message::Data;
use flodl_wire::secret::{DialKeys, GateKey, HostKey, PeerKey, Secret};
use flodl_wire::{Capabilities, HostId, Incarnation, RunId, SessionId};

const RUN: RunId = RunId([1; 16]);

/// Both ends of a sealed connection: the lower one seals what goes up.
#[derive(Debug)]
pub(crate) struct Sealed {
    sealers: [Sealer; 2],
    openers: [Opener; 2],
}

/// The accepting side's policy: everybody who has the key.
struct Door {
    gate: GateKey,
    host: HostKey,
}

impl Admission for Door {
    fn gate_key(&self) -> &GateKey {
        &self.gate
    }

    fn decide(&self, hello: &Hello) -> Result<Accept, String> {
        hello.check_run(RUN)?;
        let session = if hello.channel == Channel::Control { SessionId(1) } else { hello.session };
        Ok(Accept { key: PeerKey::Host(self.host.clone()), session })
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn generation(&self) -> u64 {
        0
    }

    fn membership_epoch(&self) -> u64 {
        0
    }
}

impl Sealed {
    /// A connection of that lane after its handshake; `nonce` makes its keys its own.
    pub(crate) fn new(lane: Lane, nonce: u64) -> Option<Sealed> {
        let secret = Secret::from_bytes([0x42; 32]);
        let host_id = HostId::from_name("host")?;
        let door = Door { gate: secret.gate_key(), host: secret.host_key(RUN, host_id) };
        let (channel, session) = match lane {
            Lane::Control => (Channel::Control, SessionId(0)),
            Lane::Data => (Channel::Data, SessionId(1)),
        };
        let (role, capabilities) = (Role::Relay { rank_count: 1 }, Capabilities::NONE);
        let hello = Hello { role, channel, session, run_id: RUN, host_id, capabilities };
        let mut nonces = [[0; 32]; 2];
        nonces[0][..8].copy_from_slice(&nonce.to_le_bytes());
        nonces[1][8..16].copy_from_slice(&nonce.to_le_bytes());
        let keys = DialKeys { gate: secret.gate_key(), peer: secret.host_key(RUN, host_id).into() };
        let mut dialler = Dialler::new(hello, keys, nonces[0]);
        let (challenged, m2) = greet(&door.gate, dialler.m1()).ok()?.admit(&door, nonces[1]).ok()?;
        dialler.space().get_mut(..m2.len())?.copy_from_slice(&m2);
        let finish = dialler.filled(m2.len()).ok()??;
        let upper = challenged.finish(&finish.m3).ok()?;
        let Established { sealer, opener, .. } = finish.established;
        Some(Sealed { sealers: [sealer, upper.sealer], openers: [upper.opener, opener] })
    }

    /// The bytes of a packet that goes up or down. `None`: it has none.
    pub(crate) fn seal(&mut self, up: bool, packet: &Packet) -> Option<Vec<u8>> {
        let (sealer, mut bytes) = (&mut self.sealers[usize::from(!up)], Vec::new());
        match packet {
            Packet::Frame(frame) => sealer.seal(frame, &mut bytes).ok()?,
            Packet::Data(data) => {
                let stream = if up { Stream::Host } else { Stream::AllRanks };
                sealer.seal_data(stream, Incarnation(0), data, &mut bytes).ok()?;
            }
            Packet::End(_) | Packet::Sealed { .. } => return None,
        }
        Some(bytes)
    }

    /// What the bytes hold, or why they are not the next frame.
    pub(crate) fn open(&mut self, up: bool, lane: Lane, mut bytes: &[u8]) -> Result<Packet, String> {
        let frame = self.openers[usize::from(!up)].feed(&mut bytes).map_err(|error| error.to_string())?;
        let frame = frame.ok_or("half a frame")?;
        match lane {
            Lane::Control => Ok(Packet::Frame(frame)),
            Lane::Data => frame.to_data().map(Packet::Data).map_err(|error| error.to_string()),
        }
    }
}

/// A packet of which one bit is another.
pub(crate) fn flipped(packet: Packet, dice: u64) -> Packet {
    let flip = |bytes: &bytes::Bytes| {
        let mut bytes = bytes.to_vec();
        let at = dice as usize % (bytes.len() * 8).max(1);
        if let Some(byte) = bytes.get_mut(at / 8) {
            *byte ^= 1 << (at % 8);
        }
        bytes::Bytes::from(bytes)
    };
    match packet {
        Packet::Frame(mut frame) => {
            frame.payload = flip(&frame.payload);
            Packet::Frame(frame)
        }
        Packet::Data(Data::Contribution(mut chunk)) => {
            chunk.bytes = flip(&chunk.bytes);
            Packet::Data(Data::Contribution(chunk))
        }
        Packet::Data(Data::Consensus(mut chunk)) => {
            chunk.bytes = flip(&chunk.bytes);
            Packet::Data(Data::Consensus(chunk))
        }
        packet => packet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flodl_wire::Frame;
    use flodl_wire::message::HostReport;

    #[test]
    fn frames_pass_once_and_unchanged() {
        let mut sealed = Sealed::new(Lane::Control, 7).expect("the handshake is done");
        let frame = Frame::host_report(&HostReport::Heartbeat).expect("fits");
        let bytes = sealed.seal(true, &Packet::Frame(frame.clone())).expect("is sealed");
        let opened = sealed.open(true, Lane::Control, &bytes);
        assert!(matches!(opened, Ok(Packet::Frame(got)) if got == frame));
        let again = sealed.open(true, Lane::Control, &bytes);
        assert!(again.is_err_and(|error| error.contains("repeated")));

        let mut sealed = Sealed::new(Lane::Control, 8).expect("the handshake is done");
        let mut bytes = sealed.seal(true, &Packet::Frame(frame)).expect("is sealed");
        bytes[30] ^= 4;
        assert!(sealed.open(true, Lane::Control, &bytes).is_err());
    }
}

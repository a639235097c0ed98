//! What several tests need: keys, a policy, a handshake between two machines in memory.

#![allow(dead_code, reason = "each test program uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(unreachable_pub, reason = "a test program exports nothing")]

use core::time::Duration;
use flodl_wire::connection::{Connection, Event};
use flodl_wire::handshake::{Accept, Admission, Dialler, Established, greet};
use flodl_wire::secret::{DialKeys, GateKey, PeerKey, RankKeys};
use flodl_wire::{Capabilities, Channel, Hello, HostId, Incarnation, Rank, Role, RunId, Secret, SessionId, Time};

pub mod samples;

pub const RUN: RunId = RunId([0x11; 16]);
pub const NONCE_C: [u8; 32] = [0xc1; 32];
pub const NONCE_S: [u8; 32] = [0x51; 32];

pub fn secret() -> Secret {
    Secret::from_bytes([0x42; 32])
}

pub fn host() -> HostId {
    HostId::from_name("box-2").unwrap()
}

/// A controller that knows one run.
pub struct Controller {
    pub secret: Secret,
    pub gate: GateKey,
    pub refusal: Option<String>,
}

impl Controller {
    pub fn new() -> Controller {
        Controller { secret: secret(), gate: secret().gate_key(), refusal: None }
    }

    pub fn refusing(why: &str) -> Controller {
        Controller { refusal: Some(why.to_owned()), ..Controller::new() }
    }
}

impl Admission for Controller {
    fn gate_key(&self) -> &GateKey {
        &self.gate
    }

    fn decide(&self, hello: &Hello) -> Result<Accept, String> {
        hello.check_run(RUN)?;
        if let Some(why) = &self.refusal {
            return Err(why.clone());
        }
        let host = self.secret.host_key(RUN, hello.host_id);
        let key = match hello.role {
            Role::Relay { .. } => PeerKey::Host(host),
            Role::Rank { rank, incarnation } => PeerKey::Rank(host.rank_key(rank, incarnation)),
        };
        let session = if hello.channel == Channel::Control { SessionId(7) } else { hello.session };
        Ok(Accept { key, session })
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(12_345)
    }

    fn generation(&self) -> u64 {
        3
    }

    fn membership_epoch(&self) -> u64 {
        9
    }
}

pub fn relay_hello() -> Hello {
    Hello {
        role: Role::Relay { rank_count: 2 },
        channel: Channel::Control,
        session: SessionId(0),
        run_id: RUN,
        host_id: host(),
        capabilities: Capabilities::NONE,
    }
}

pub fn data_hello() -> Hello {
    Hello { channel: Channel::Data, session: SessionId(7), ..relay_hello() }
}

pub fn rank_hello() -> Hello {
    Hello { role: Role::Rank { rank: Rank(3), incarnation: Incarnation(2) }, ..relay_hello() }
}

pub fn keys_for(hello: &Hello) -> DialKeys {
    let gate = secret().gate_key();
    let host_key = secret().host_key(hello.run_id, hello.host_id);
    match hello.role {
        Role::Relay { .. } => DialKeys { gate, peer: host_key.into() },
        Role::Rank { rank, incarnation } => {
            RankKeys { rank_key: host_key.rank_key(rank, incarnation), gate_key: gate }.into()
        }
    }
}

/// What each message of a handshake was.
#[derive(Debug)]
pub struct Messages {
    pub m1: [u8; 120],
    pub m2: [u8; 120],
    pub m3: [u8; 40],
}

/// A whole handshake: what was said, the dialling side's connection, the accepting side's.
pub fn handshake(hello: Hello) -> (Messages, Established, Established) {
    let mut dialler = Dialler::new(hello, keys_for(&hello), NONCE_C);
    let m1 = *dialler.m1();
    let greeted = greet(&secret().gate_key(), &m1).unwrap();
    assert_eq!(*greeted.hello(), hello);
    let (challenged, m2) = greeted.admit(&Controller::new(), NONCE_S).unwrap();
    dialler.space()[..m2.len()].copy_from_slice(&m2);
    let finish = dialler.filled(m2.len()).unwrap().expect("a whole challenge is answered");
    let accepted = challenged.finish(&finish.m3).unwrap();
    (Messages { m1, m2, m3: finish.m3 }, finish.established, accepted)
}

/// Both sides of a connection, nothing said yet: the dialling one, the accepting one.
pub fn connections(hello: Hello) -> (Connection, Connection) {
    let dialling = Connection::dial(hello, keys_for(&hello), NONCE_C, Time::ZERO);
    (dialling, Connection::accept(&secret().gate_key(), NONCE_S, Time::ZERO))
}

/// What `bytes` mean to a connection, its hello admitted.
pub fn take(to: &mut Connection, mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = to.receive(&mut bytes, Time::ZERO) {
        let is_hello = matches!(event, Event::Hello(_));
        events.push(event);
        if is_hello {
            events.extend(to.admit(&Controller::new()));
        }
    }
    events
}

/// All that a connection has to say.
pub fn said(by: &mut Connection) -> Vec<u8> {
    let bytes = by.outgoing().to_vec();
    by.sent(bytes.len());
    bytes
}

/// Both sides of a connection whose handshake is done.
pub fn open(hello: Hello) -> (Connection, Connection) {
    let (mut below, mut above) = connections(hello);
    take(&mut above, &said(&mut below));
    take(&mut below, &said(&mut above));
    take(&mut above, &said(&mut below));
    assert!(below.is_open() && above.is_open());
    (below, above)
}

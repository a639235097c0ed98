//! Who may come in: the table of sessions and half-open connections, and the answer to each hello.

use super::halfopen::{Entry, HalfOpen};
use super::limits;
use super::quiet::Quiet;
use async_channel::{Receiver, Sender};
use core::time::Duration;
use flodl_wire::handshake::{Accept, Admission};
use flodl_wire::secret::{GateKey, PeerKey, Secret};
use flodl_wire::{Capabilities, Channel, Hello, HostId, Role, RunId, SessionId, Time};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What every connection of a run is measured by.
#[derive(Debug)]
pub struct Gate {
    secret: Secret,
    gate_key: GateKey,
    run_id: RunId,
    patience: Duration,
    /// Whether relays may come over the network at all.
    takes_relays: bool,
    generation: u64,
    /// What relays on other hosts may do.
    capabilities: Capabilities,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last_session: u64,
    /// Given to a control connection whose handshake is not done. Its relay may be done with its part of it, and dial for
    /// data before the last message of it is read here.
    promised: BTreeMap<SessionId, Promise>,
    sessions: BTreeMap<SessionId, Session>,
    /// Those that ended last, oldest first. A relay that is refused may be dialling for data, and has yet to read why.
    left: VecDeque<(SessionId, HostId)>,
    half_open: HalfOpen<Sender<()>>,
    quiet: Quiet,
}

#[derive(Debug)]
struct Promise {
    host: HostId,
    /// Closes when the handshake is over, one way or the other.
    pending: Receiver<()>,
}

#[derive(Debug)]
struct Session {
    host: HostId,
    /// The session that its relay was connected by first.
    first: SessionId,
    has_data: bool,
}

impl Gate {
    /// The gate of a run. With `takes_relays` false only a relay of the same process comes in (`flodl run`).
    #[must_use]
    pub fn new(secret: Secret, run_id: RunId, patience: Duration, takes_relays: bool) -> Gate {
        let gate_key = secret.gate_key();
        let (generation, capabilities, table) = (0, Capabilities::NONE, Mutex::default());
        Gate { secret, gate_key, run_id, patience, takes_relays, generation, capabilities, table }
    }

    /// The same, which lets relays on other hosts do that.
    #[must_use]
    pub fn choosing(self, capabilities: Capabilities) -> Gate {
        Gate { capabilities, ..self }
    }

    /// The gate of the run's `generation`th controller after the first. Its sessions have numbers of their own.
    #[must_use]
    pub fn of_generation(self, generation: u64) -> Gate {
        self.table().last_session = generation << 32;
        Gate { generation, ..self }
    }

    /// A new connection from `source`; `on_drop` is dropped when it must go. Also where the one that went for it came from.
    pub(crate) fn knock(&self, source: IpAddr, on_drop: Sender<()>) -> (Entry, Option<IpAddr>) {
        let (entry, closed) = self.table().half_open.open(source, on_drop);
        (entry, closed.map(|(source, _)| source))
    }

    /// The half-open connection is one no more; gives back its `on_drop`, which still closes it.
    pub(crate) fn settle(&self, entry: Entry) -> Option<Sender<()>> {
        self.table().half_open.close(entry)
    }

    /// Closes the oldest half-open connection, to have its descriptor back.
    pub(crate) fn shed(&self) {
        self.table().half_open.shed();
    }

    /// Whether there may be a line about that trouble with `source` now, and how many were kept back.
    pub(crate) fn may_say(&self, source: IpAddr, trouble: &'static str, now: Time) -> Option<u64> {
        self.table().quiet.may_say((source, trouble), now)
    }

    /// Makes the authenticated control connection the host's session. False where the host has one by now, unless it is to be
    /// taken up again.
    pub(crate) fn enter(&self, session: SessionId, (host, resumed): (HostId, Option<SessionId>)) -> bool {
        let mut table = self.table();
        let first = resumed.unwrap_or(session);
        table.sessions.retain(|_, session| session.host != host || session.first != first);
        if table.sessions.values().any(|session| session.host == host) {
            return false;
        }
        table.sessions.insert(session, Session { host, first, has_data: false });
        true
    }

    /// What closes when the handshake that would begin `session` is over, where there is one.
    pub(crate) fn promised(&self, session: SessionId) -> Option<Receiver<()>> {
        self.table().promised.get(&session).map(|promise| promise.pending.clone())
    }

    /// Makes the authenticated data connection its session's. False where it has one by now, or is gone.
    pub(crate) fn enter_data(&self, session: SessionId) -> bool {
        match self.table().sessions.get_mut(&session) {
            Some(session) if !session.has_data => {
                session.has_data = true;
                true
            }
            _ => false,
        }
    }

    /// The session is over; its host may come again.
    pub(crate) fn leave(&self, session: SessionId) {
        let mut table = self.table();
        if let Some(Session { host, .. }) = table.sessions.remove(&session) {
            if table.left.len() == limits::SESSIONS_LEFT {
                table.left.pop_front();
            }
            table.left.push_back((session, host));
        }
    }

    /// Whether the session ended not long ago.
    pub(crate) fn has_left(&self, session: SessionId) -> bool {
        self.table().left.iter().any(|(left, _)| *left == session)
    }

    /// The answer to a hello with a good gate tag.
    fn answer(&self, hello: &Hello, local: bool) -> Result<SessionId, String> {
        hello.check_run(self.run_id)?;
        let Role::Relay { rank_count } = hello.role else {
            return Err("ranks connect to the relay of their host, not to the controller".to_owned());
        };
        if !local && !self.takes_relays {
            return Err("`flodl run` takes no other hosts: start the controller with `flodl serve`".to_owned());
        }
        let host = hello.host_id;
        let mut table = self.table();
        match hello.channel {
            Channel::Control if rank_count == 0 => Err("a host joins with at least one rank: give -n".to_owned()),
            Channel::Control => match table.sessions.iter().find(|(_, session)| session.host == host) {
                // Its key and first session say that it is the same relay: the older connection is out of date.
                Some((session, of)) if hello.session != of.first => Err(format!(
                    "host {} is already here ({session}): every host of a run needs its own ticket",
                    host.name()
                )),
                _ => {
                    table.last_session += 1;
                    Ok(SessionId(table.last_session))
                }
            },
            Channel::Data => {
                let promised = table.promised.get(&hello.session).is_some_and(|promise| promise.host == host);
                let known = promised || table.left.contains(&(hello.session, host));
                match table.sessions.get(&hello.session).filter(|session| session.host == host) {
                    Some(session) if session.has_data => {
                        Err(format!("{} has its data connection already", hello.session))
                    }
                    None if !known => Err(format!("{} is not a session of host {}", hello.session, host.name())),
                    _ => Ok(hello.session),
                }
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change leaves the table whole, so one made by a thread that panicked later is as good as any.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The gate as one connection meets it. Lives until the connection is a session or nothing.
#[derive(Debug)]
pub(crate) struct Door<'a> {
    gate: &'a Gate,
    /// Its half-open entry; `None` for a connection within the process.
    entry: Option<Entry>,
    /// The session promised to it, and what closes that promise when it is dropped.
    promise: Mutex<Option<(SessionId, Sender<()>)>>,
}

impl<'a> Door<'a> {
    pub(crate) fn new(gate: &'a Gate, entry: Option<Entry>) -> Door<'a> {
        Door { gate, entry, promise: Mutex::default() }
    }
}

impl Drop for Door<'_> {
    fn drop(&mut self) {
        let promise = self.promise.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((session, _)) = promise {
            self.gate.table().promised.remove(session);
        }
    }
}

impl Admission for Door<'_> {
    fn gate_key(&self) -> &GateKey {
        &self.gate.gate_key
    }

    fn decide(&self, hello: &Hello) -> Result<Accept, String> {
        if let Some(entry) = self.entry {
            self.gate.table().half_open.gate(entry);
        }
        let session = self.gate.answer(hello, self.entry.is_none())?;
        if hello.channel == Channel::Control {
            let (keep, pending) = async_channel::bounded(1);
            self.gate.table().promised.insert(session, Promise { host: hello.host_id, pending });
            *self.promise.lock().unwrap_or_else(PoisonError::into_inner) = Some((session, keep));
        }
        // Nothing is stored per host: its key follows from the secret.
        let key = PeerKey::Host(self.gate.secret.host_key(self.gate.run_id, hello.host_id));
        Ok(Accept { key, session })
    }

    fn patience(&self) -> Duration {
        self.gate.patience
    }

    fn generation(&self) -> u64 {
        self.gate.generation
    }

    fn capabilities(&self) -> Capabilities {
        // Nothing is spared between a relay and a root in one process.
        if self.entry.is_some() { self.gate.capabilities } else { Capabilities::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId([1; 16]);

    fn gate(takes_relays: bool) -> Gate {
        Gate::new(Secret::from_bytes([7; 32]), RUN, Duration::from_secs(1), takes_relays)
    }

    fn hello(host: &str, channel: Channel, session: SessionId) -> Hello {
        let host_id = HostId::from_name(host).expect("is a name");
        Hello {
            role: Role::Relay { rank_count: 2 },
            channel,
            session,
            run_id: RUN,
            host_id,
            capabilities: Capabilities::ALL,
        }
    }

    fn control(host: &str) -> Hello {
        hello(host, Channel::Control, SessionId(0))
    }

    #[test]
    fn a_host_has_one_session_and_a_session_one_data_connection() {
        let gate = gate(true);
        let a = control("a");
        let session = gate.answer(&a, false).expect("is new");
        assert!(gate.enter(session, (a.host_id, None)));
        assert!(gate.answer(&a, false).expect_err("is here").contains("host a is already here"));
        let other = gate.answer(&control("b"), false).expect("another host");
        assert_ne!(other, session);

        let data = hello("a", Channel::Data, session);
        assert_eq!(gate.answer(&data, false), Ok(session));
        assert!(gate.enter_data(session));
        assert!(!gate.enter_data(session));
        assert!(gate.answer(&data, false).is_err());
        assert!(gate.answer(&hello("b", Channel::Data, session), false).is_err(), "another host's session");

        gate.leave(session);
        assert!(!gate.enter_data(session));
        assert_eq!(gate.answer(&data, false), Ok(session), "it may still hear why");
        assert!(gate.has_left(session) && !gate.has_left(SessionId(99)));
        assert_ne!(gate.answer(&a, false), Ok(session), "numbers are not used again");
    }

    #[test]
    fn data_may_come_before_the_end_of_its_controls_handshake() {
        let gate = gate(true);
        let door = Door::new(&gate, None);
        let session = door.decide(&control("a")).expect("is new").session;
        let data = hello("a", Channel::Data, session);
        assert_eq!(gate.answer(&data, false), Ok(session));
        assert!(gate.answer(&hello("b", Channel::Data, session), false).is_err(), "another host's session");
        assert!(!gate.enter_data(session), "not before its control");
        let pending = gate.promised(session).expect("its handshake goes on");
        assert!(gate.enter(session, (data.host_id, None)));
        assert!(!pending.is_closed());
        drop(door);
        assert!(pending.is_closed() && gate.promised(session).is_none());
        assert!(gate.enter_data(session));
    }

    #[test]
    fn a_promise_ends_with_its_handshake() {
        let gate = gate(true);
        let door = Door::new(&gate, None);
        let session = door.decide(&control("a")).expect("is new").session;
        drop(door);
        assert!(gate.answer(&hello("a", Channel::Data, session), false).is_err());
    }

    #[test]
    fn two_handshakes_of_one_host_end_in_one_session() {
        let gate = gate(true);
        let a = control("a");
        let (first, second) = (gate.answer(&a, false), gate.answer(&a, false));
        assert!(gate.enter(first.expect("none is here"), (a.host_id, None)));
        assert!(!gate.enter(second.expect("none is here"), (a.host_id, None)));
    }

    #[test]
    fn a_host_takes_its_session_up_again() {
        let gate = gate(true);
        let a = control("a");
        let first = gate.answer(&a, false).expect("is new");
        assert!(gate.enter(first, (a.host_id, None)));
        let again = gate.answer(&Hello { session: first, ..a }, false).expect("its older link is as good as gone");
        assert!(again != first && gate.enter(again, (a.host_id, Some(first))));
        assert!(!gate.enter_data(first) && gate.enter_data(again));
        gate.leave(first);
        assert!(gate.answer(&a, false).expect_err("is here").contains("host a is already here"));
        // Also a third time it comes as what it was first; another relay of its name does not.
        assert!(gate.answer(&Hello { session: first, ..a }, false).is_ok());
        assert!(gate.answer(&Hello { session: again, ..a }, false).expect_err("is here").contains("already here"));
    }

    #[test]
    fn who_does_not_belong_is_told_why() {
        let mut other_run = control("a");
        other_run.run_id = RunId([2; 16]);
        let mut rank = control("a");
        rank.role = Role::Rank { rank: flodl_wire::Rank(0), incarnation: flodl_wire::Incarnation(1) };
        let mut nobody = control("a");
        nobody.role = Role::Relay { rank_count: 0 };
        let cases = [(other_run, "asked for run 0202"), (rank, "relay of their host"), (nobody, "at least one rank")];
        for (hello, part) in cases {
            let why = gate(true).answer(&hello, false).expect_err(part);
            assert!(why.contains(part), "{why}");
        }
        assert!(gate(false).answer(&control("a"), false).expect_err("no relays").contains("flodl serve"));
        assert!(gate(false).answer(&control("a"), true).is_ok(), "its own relay");
    }
}

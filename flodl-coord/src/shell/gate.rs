//! Who may come in: the table of sessions and half-open connections, and the answer to each hello.

use super::halfopen::{Entry, HalfOpen};
use super::limits;
use super::quiet::{Kept, Quiet};
use async_channel::{Receiver, Sender};
use core::time::Duration;
use flodl_wire::handshake::{Accept, Admission};
use flodl_wire::secret::{GateKey, PeerKey, Secret};
use flodl_wire::{Capabilities, Channel, Hello, HostId, Role, RunId, SessionId, Time};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    left: VecDeque<Left>,
    /// Connections that are open, of each host that has any.
    seats: BTreeMap<HostId, usize>,
    seats_taken: usize,
    half_open: HalfOpen<Sender<()>>,
    quiet: Quiet,
}

#[derive(Debug)]
struct Promise {
    host: HostId,
    /// Closes when the handshake is over, one way or the other.
    pending: Receiver<()>,
    /// Its data connection is there, and waits for that.
    has_data: bool,
}

/// A session that is over.
#[derive(Debug)]
struct Left {
    session: SessionId,
    host: HostId,
    /// Its data connection has come since, and hears what was said last.
    has_data: bool,
}

/// What is to be done with an authenticated data connection.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Nothing more.
    Now,
    /// The handshake that begins its session goes on until this closes.
    After(Receiver<()>),
    /// It stays for what is said last, for its session is over.
    Parting,
    /// Its session has one.
    Never,
}

/// An open connection of a host; it is one less when this is dropped.
#[derive(Debug)]
pub struct Seat {
    gate: Arc<Gate>,
    host: HostId,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = self.gate.table();
        table.seats_taken -= 1;
        if let Some(seats) = table.seats.get_mut(&self.host) {
            *seats -= 1;
            if *seats == 0 {
                table.seats.remove(&self.host);
            }
        }
    }
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

    /// A new connection from `source`; `on_drop` is dropped when it must go. An older one may go for it.
    pub(crate) fn knock(&self, source: IpAddr, on_drop: Sender<()>) -> Entry {
        self.table().half_open.open(source.into(), on_drop).0
    }

    /// The half-open connection is one no more; gives back its `on_drop`, which still closes it.
    pub(crate) fn settle(&self, entry: Entry) -> Option<Sender<()>> {
        self.table().half_open.close(entry)
    }

    /// Closes a half-open connection, to have its descriptor back. Whether there is one.
    pub(crate) fn shed(&self) -> bool {
        self.table().half_open.shed().is_some()
    }

    /// Counts an authenticated connection of that host. `None` where it, or all hosts together, have as many as there may be.
    pub(crate) fn seat(self: &Arc<Gate>, host: HostId) -> Option<Seat> {
        let mut table = self.table();
        table.has_room(host).ok()?;
        *table.seats.entry(host).or_default() += 1;
        table.seats_taken += 1;
        Some(Seat { gate: Arc::clone(self), host })
    }

    /// Whether there may be a line about that trouble with `source` now, and what was kept back.
    pub(crate) fn may_say(&self, source: IpAddr, trouble: &'static str, now: Time) -> Option<Kept> {
        self.table().quiet.may_say((source.into(), trouble), now)
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

    /// What an authenticated data connection of `session` has to do first. One at a time waits for anything.
    pub(crate) fn turn(&self, session: SessionId) -> Turn {
        let mut table = self.table();
        let Table { promised, left, .. } = &mut *table;
        let (has_data, turn) = if let Some(promise) = promised.get_mut(&session) {
            (&mut promise.has_data, Turn::After(promise.pending.clone()))
        } else if let Some(left) = left.iter_mut().find(|left| left.session == session) {
            (&mut left.has_data, Turn::Parting)
        } else {
            return Turn::Now;
        };
        if std::mem::replace(has_data, true) { Turn::Never } else { turn }
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
        if let Some(Session { host, has_data, .. }) = table.sessions.remove(&session) {
            if table.left.len() == limits::SESSIONS_LEFT {
                table.left.pop_front();
            }
            table.left.push_back(Left { session, host, has_data });
        }
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
        if !local {
            table.has_room(host)?;
        }
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
            Channel::Data => match table.has_data(hello.session, host) {
                Some(true) => Err(format!("{} has its data connection already", hello.session)),
                None => Err(format!("{} is not a session of host {}", hello.session, host.name())),
                Some(false) => Ok(hello.session),
            },
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change leaves the table whole, so one made by a thread that panicked later is as good as any.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Whether a session of that host, begun or promised or over, has its data connection; `None` where it is none.
    fn has_data(&self, session: SessionId, host: HostId) -> Option<bool> {
        let begun = self.sessions.get(&session).map(|session| (session.host, session.has_data));
        let promised = || self.promised.get(&session).map(|promise| (promise.host, promise.has_data));
        let over = || self.left.iter().find(|left| left.session == session).map(|left| (left.host, left.has_data));
        let (of, has_data) = begun.or_else(promised).or_else(over)?;
        (of == host).then_some(has_data)
    }

    /// Whether one more connection of that host is taken.
    fn has_room(&self, host: HostId) -> Result<(), String> {
        let (all, own) = (self.seats_taken, self.seats.get(&host).copied().unwrap_or_default());
        if own >= limits::CONNECTIONS_PER_HOST {
            return Err(format!("host {} has {own} connections already: it may dial again in a while", host.name()));
        }
        if all >= limits::CONNECTIONS_MAX {
            return Err(format!("the controller has {all} connections already, which is all that it takes"));
        }
        Ok(())
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
            self.gate.table().half_open.gate(entry, hello.host_id);
        }
        let session = self.gate.answer(hello, self.entry.is_none())?;
        if hello.channel == Channel::Control {
            let (keep, pending) = async_channel::bounded(1);
            self.gate.table().promised.insert(session, Promise { host: hello.host_id, pending, has_data: false });
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
        assert!(gate.answer(&data, false).expect_err("it had one").contains("already"));
        assert!(matches!(gate.turn(SessionId(99)), Turn::Now));
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
        let Turn::After(pending) = gate.turn(session) else { panic!("its handshake goes on") };
        // One waits, and one only: also of those that were let in before it did.
        assert!(matches!(gate.turn(session), Turn::Never));
        assert!(gate.answer(&data, false).expect_err("one waits").contains("already"));
        assert!(gate.enter(session, (data.host_id, None)));
        assert!(!pending.is_closed());
        drop(door);
        assert!(pending.is_closed() && matches!(gate.turn(session), Turn::Now));
        assert!(gate.enter_data(session));
    }

    #[test]
    fn a_session_that_is_over_keeps_one_data_connection_for_its_last_words() {
        let gate = gate(true);
        let session = gate.answer(&control("a"), false).expect("is new");
        assert!(gate.enter(session, (control("a").host_id, None)));
        gate.leave(session);
        let data = hello("a", Channel::Data, session);
        assert_eq!(gate.answer(&data, false), Ok(session), "it may still hear why");
        assert!(!gate.enter_data(session));
        assert!(matches!(gate.turn(session), Turn::Parting));
        assert!(matches!(gate.turn(session), Turn::Never));
        assert!(gate.answer(&data, false).is_err());
    }

    #[test]
    fn connections_are_counted_for_each_host_and_for_all() {
        let gate = Arc::new(gate(true));
        let host = |n: usize| control(&format!("host{n}"));
        let seats =
            |n: usize, most: usize| std::iter::from_fn(|| gate.seat(host(n).host_id)).take(most).collect::<Vec<_>>();
        let greedy = seats(0, usize::MAX);
        assert_eq!(greedy.len(), limits::CONNECTIONS_PER_HOST);
        assert!(gate.answer(&host(0), false).expect_err("too many").contains("host0 has 32 connections already"));
        assert!(gate.answer(&host(1), false).is_ok(), "another host's business");
        let mut others = Vec::new();
        let mut open = greedy.len();
        for n in 1.. {
            let more = seats(n, 2);
            open += more.len();
            others.extend(more);
            if open == limits::CONNECTIONS_MAX {
                break;
            }
        }
        assert!(gate.seat(host(9999).host_id).is_none());
        assert!(gate.answer(&host(9999), false).expect_err("full").contains("4096 connections already"));
        others.pop();
        assert!(gate.answer(&host(9999), false).is_ok(), "one has gone");
        drop((greedy, others));
        let table = gate.table();
        assert!(table.seats.is_empty() && table.seats_taken == 0, "all are given back");
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

//! A run that goes on under another controller, because the one before it has died.
//!
//! Its hosts look for a controller at the old one's address and say what they know: the newest record of a commit that they
//! kept, and where each rank stands. The newest record of all, the journal's among them, is what is true. One host gives
//! back the consensus of that version, and then the run goes on as if every link had been lost: ranks are still in their
//! windows or wait for the end of a round. How far the run is any of them may say; whose a rank is that lives, the journal
//! says and its own host. A round that was open was applied by nobody; its ranks keep what they have
//! trained and contribute it to the next one.

use crate::agreement::Agreement;
use crate::chronicle::{Chronicle, recall};
use crate::config::{Config, ConfigError};
use crate::coordinator::{Coordinator, Phase, context};
use crate::finishing::Ending;
use crate::formation::Agreed;
use crate::gate::list;
use crate::journal::{Formed, Restored};
use crate::ledger::Ledger;
use crate::members::{HostLink, Member, Past, State};
use crate::roles::Roles;
use crate::running::{Running, Stopping};
use crate::{Deadlines, Fate, Input, Output, adopt};
use core::fmt;
use core::time::Duration;
use flodl_elche::{Elche, Guard, Policy};
use flodl_wire::commit::{CommitState, Keeper};
use flodl_wire::message::commit::{LifeRecord, Standing};
use flodl_wire::message::join::TensorSpec;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::message::report::RankState;
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::{HostId, Rank, Round, SessionId, Time, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Inputs that wait for the run to go on; whoever talks so much is not listened to further.
const DEFERRED_MAX: usize = 1 << 20;
/// So often a host is asked for its consensus: its link may break meanwhile.
const TRIES: u32 = 3;

/// The time until the run goes on.
#[derive(Debug)]
pub(crate) struct Returning {
    restored: Box<Restored>,
    generation: u64,
    hosts: BTreeMap<SessionId, Back>,
    /// What concerns the run itself, in order.
    deferred: VecDeque<Input>,
    stage: Stage,
    /// How often a host's consensus could not be had.
    tried: BTreeMap<HostId, u32>,
    /// Hosts that were back and whose link broke again.
    parted: BTreeMap<HostId, Parted>,
    /// A host has said everything since it was looked at last.
    news: bool,
}

/// A host that is back.
#[derive(Debug)]
struct Back {
    host: HostId,
    /// The session that its relay was connected by first.
    first: SessionId,
    record: Keeper,
    states: Vec<RankState>,
    /// Once it has said everything: the consensus that it keeps, and the round whose result it has beside it.
    said: Option<(Option<Version>, Option<Round>)>,
}

/// A host that was back, and may come once more.
#[derive(Debug)]
struct Parted {
    session: SessionId,
    first: SessionId,
    until: Time,
    record: Keeper,
}

/// Where a life is found.
#[derive(Copy, Clone, Debug)]
enum Place {
    Behind(SessionId),
    /// Its host is back and has not spoken of it.
    Unheard(SessionId, Time),
    /// Its host's link broke after it was back.
    Parted(SessionId, Time),
    /// No host came back.
    Nowhere,
}

/// How far it is.
#[derive(Copy, Clone, Debug)]
enum Stage {
    /// Hosts are waited for until then.
    Gathering { until: Time },
    /// The consensus is on its way up.
    Fetching { from: SessionId, version: Version, until: Time },
    /// The root holds it.
    Fetched,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Waiting {
    Hosts { missing: Vec<HostId> },
    Consensus { from: HostId, version: Version },
}

/// Where it goes on.
enum Course {
    Hold,
    TakeOver,
    End(Reason),
}

impl Coordinator {
    /// A coordinator that goes on with a run that another one began, as the journal says; it is the `generation`th after
    /// the first.
    ///
    /// # Errors
    /// Settings that contradict each other.
    pub fn resume(
        restored: Restored,
        generation: u64,
        guard: Box<dyn Guard>,
        now: Time,
    ) -> Result<Coordinator, ConfigError> {
        let config: Config = restored.start.config.clone();
        let mut coordinator = Coordinator::with_guard(config, guard, now)?.recording(generation);
        coordinator.out.push_back(Output::Layout(restored.formed.layout));
        let until = now.plus(coordinator.deadlines.detached);
        coordinator.phase = Phase::Returning(Box::new(Returning {
            restored: Box::new(restored),
            generation,
            hosts: BTreeMap::new(),
            deferred: VecDeque::new(),
            stage: Stage::Gathering { until },
            tried: BTreeMap::new(),
            parted: BTreeMap::new(),
            news: true,
        }));
        Ok(coordinator)
    }

    /// An input while the run waits to go on.
    pub(crate) fn returning(&mut self, input: Input, now: Time) {
        let Phase::Returning(returning) = &mut self.phase else { return };
        self.watch.moved(now);
        if let Input::Restored { version, result: Err(why) } = &input {
            let text = format!("a host's consensus of {version} is not taken: {why}");
            let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
            ctx.alert(Reason::new("not-restored", text));
        }
        match returning.take(input, now.plus(self.deadlines.detached)) {
            Ok(()) => {}
            Err(Input::Stop) => {
                let why = Reason::new("stopped", "stopped before the run's hosts were back: what they hold is lost");
                self.end(1, Some(why), now);
            }
            Err(input) if returning.deferred.len() < DEFERRED_MAX => returning.deferred.push_back(input),
            Err(_) => {}
        }
    }

    /// Goes on where it can. Whether it did.
    pub(crate) fn advance_returning(&mut self, now: Time) -> bool {
        let Phase::Returning(returning) = &mut self.phase else { return false };
        match returning.course(&mut self.out, now, &self.deadlines) {
            Course::Hold => false,
            Course::TakeOver => {
                self.take_over(now);
                true
            }
            Course::End(why) => {
                self.end(1, Some(why), now);
                true
            }
        }
    }

    /// The run goes on.
    fn take_over(&mut self, now: Time) {
        let Phase::Returning(returning) = std::mem::replace(&mut self.phase, Phase::Ended) else { return };
        let commit = returning.newest();
        let Returning { restored, generation, mut hosts, mut parted, deferred, .. } = *returning;
        // Who has not said everything is not back, and comes too late.
        hosts.retain(|&session, back| {
            let said = back.said.is_some();
            if !said {
                self.out.push_back(Output::CloseHost { session });
            }
            said
        });
        parted.retain(|_, host| host.until > now);
        let (states, turned_away) = self.restore_members(&restored, commit.as_ref(), (&hosts, &parted), now);
        let mut running = match self.restore_run(*restored, commit.as_ref(), generation, now) {
            Ok(running) => running,
            Err(why) => return self.end(1, Some(why), now),
        };
        self.out.extend(turned_away);
        let (kind, why) = announcement(commit.as_ref(), generation, running.overlaps);
        self.ctx(now).event(kind, Some(why));
        let words = {
            let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
            adopt::adopt(&mut running, &mut ctx, states, commit.as_ref())
        };
        let ending = commit.as_ref().filter(|commit| commit.head().is_final).map(|_| running.ending());
        self.phase = Phase::Running(Box::new(running));
        for &session in hosts.keys() {
            let ranks = self.members.host(session).map(|link| link.ranks.clone()).unwrap_or_default();
            self.begin_again(session, &ranks);
        }
        for (rank, word) in words {
            self.repeated(rank, word, now);
        }
        if let Some(ending) = ending {
            self.finish(ending, now);
        }
        self.look_at_members(now);
        for input in deferred {
            // Whoever is back could say it; now it is known whose the ranks are.
            let is_its_own = |(session, rank, incarnation)| {
                self.speaks_for(session, rank, incarnation) || self.outlived(rank, incarnation)
            };
            if input.speaks_as().is_none_or(is_its_own) {
                self.take(input, now);
            }
        }
    }

    /// Everybody that the record or a host knows. Gives where ranks stand that are who they say, and what those are told whose lives are over.
    fn restore_members(
        &mut self,
        restored: &Restored,
        commit: Option<&CommitState>,
        (hosts, parted): (&BTreeMap<SessionId, Back>, &BTreeMap<HostId, Parted>),
        now: Time,
    ) -> (Vec<RankState>, Vec<Output>) {
        let (mut lives, written) = (known_lives(restored, commit), written_lives(restored));
        let (mut states, mut turned_away) = (Vec::new(), Vec::new());
        let mut seats: BTreeMap<Rank, SessionId> = BTreeMap::new();
        for (&session, back) in hosts {
            for state in &back.states {
                let RankState { rank, incarnation, .. } = *state;
                let known = lives.get(&rank).copied();
                // A life that began after the newest record is known to its host alone. It is no other's rank that lives.
                let is_later = known.is_none_or(|life| life.incarnation < incarnation)
                    && [known.as_ref(), written.get(&rank)]
                        .into_iter()
                        .flatten()
                        .all(|life| may_claim(back.host, life));
                let is_same = known.is_some_and(|life| {
                    (life.incarnation, life.host) == (incarnation, back.host) && is_living(life.standing)
                });
                if !is_later && !is_same {
                    // Who was let go may not have heard it, or its relay not that this is known.
                    let let_go = known.is_some_and(|life| {
                        (life.incarnation, life.host) == (incarnation, back.host)
                            && matches!(life.standing, Standing::Finished | Standing::Left)
                    });
                    let control = if let_go { Control::Shutdown } else { Control::Fenced { incarnation } };
                    turned_away.push(Output::ToRank { session, rank, incarnation, control });
                    continue;
                }
                let standing = if state.admitted { Standing::InRun } else { Standing::Coming };
                let past = known.map_or((0, false), |life| (life.losses, life.missing));
                let (losses, missing) = (past.0, past.1 && !state.admitted);
                lives.insert(rank, LifeRecord { rank, incarnation, host: back.host, standing, losses, missing });
                seats.insert(rank, session);
                states.push(state.clone());
            }
        }
        let sessions: BTreeMap<HostId, SessionId> = hosts.iter().map(|(&session, back)| (back.host, session)).collect();
        for life in lives.values() {
            let place = match (seats.get(&life.rank), sessions.get(&life.host), parted.get(&life.host)) {
                (Some(&session), ..) => Place::Behind(session),
                (None, Some(&session), _) => Place::Unheard(session, now.plus(self.deadlines.detached)),
                (None, None, Some(host)) => Place::Parted(host.session, host.until),
                (None, None, None) => Place::Nowhere,
            };
            self.members.restore(member(life, place, now));
        }
        let mut ranks: BTreeMap<HostId, Vec<Rank>> = BTreeMap::new();
        lives.values().for_each(|life| ranks.entry(life.host).or_default().push(life.rank));
        let mut link = |host: HostId, first: SessionId| {
            let ranks = ranks.remove(&host).unwrap_or_default();
            HostLink { host, first, ranks, seen: now }
        };
        let mut unknown = Vec::new();
        for (&session, back) in hosts {
            match link(back.host, back.first) {
                link if link.ranks.is_empty() => unknown.push((session, back.host)),
                link => self.members.insert_host(session, link),
            }
        }
        for (&host, Parted { session, first, .. }) in parted {
            self.members.insert_host(*session, link(host, *first));
            self.members.remove_host(*session);
        }
        unknown.into_iter().for_each(|(session, host)| self.refuse_unknown(session, host, now));
        (states, turned_away)
    }

    fn restore_run(
        &mut self,
        restored: Restored,
        commit: Option<&CommitState>,
        generation: u64,
        now: Time,
    ) -> Result<Running, Reason> {
        let agreed = Box::new(agreed(restored.formed, restored.tensors));
        let damaged = |why: String| Reason::new("record-damaged", format!("the newest record of the run: {why}"));
        let overlaps = self.config.mode.policy() == Policy::Async;
        let ledger = Ledger::restore((agreed.passes, agreed.epochs), (agreed.batch_size, overlaps), commit)
            .map_err(|error| damaged(error.to_string()))?;
        let guard = self.take_guard();
        let settings = self.config.settings(agreed.batch_size);
        let state = commit.and_then(|commit| recall(&commit.head().scheduler));
        let scheduler = match &state {
            Some(state) => Elche::restore(settings, guard, state),
            None => Elche::new(settings, guard),
        };
        let scheduler = Box::new(scheduler.map_err(|error| Reason::new("settings", error.to_string()))?);
        let chronicle = Chronicle::new(generation, commit.cloned());
        let roles = Roles::of_generation(self.config.duties, generation);
        Ok(Running::resumed((agreed, scheduler, ledger, roles), commit, chronicle, now))
    }
}

impl Running {
    /// Why a run ends whose final consensus is committed.
    fn ending(&self) -> Ending {
        if self.is_done() { Ending::Done } else { Ending::Stopped(Stopping::Request) }
    }
}

impl Returning {
    /// Whether that session is a host of the run: for whom it speaks is looked at when the run goes on.
    pub(crate) fn is_back(&self, session: SessionId) -> bool {
        self.hosts.contains_key(&session)
    }

    /// When it has to be looked at again.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match self.stage {
            Stage::Gathering { until } | Stage::Fetching { until, .. } => Some(until),
            Stage::Fetched => None,
        }
    }

    fn course(&mut self, out: &mut VecDeque<Output>, now: Time, deadlines: &Deadlines) -> Course {
        match self.stage {
            Stage::Gathering { until } => {
                if now < until && !(std::mem::take(&mut self.news) && self.is_complete()) {
                    return Course::Hold;
                }
                if self.hosts.values().all(|back| back.said.is_none()) {
                    let text = "no host of the run came back: go on from its last checkpoint";
                    return Course::End(Reason::new("no-host-back", text));
                }
                self.fetch(out, now, deadlines.callback)
            }
            Stage::Fetching { from, until, .. } => match self.hosts.contains_key(&from) && now < until {
                true => Course::Hold,
                // Its link may have broken: it is waited for once more, as all are.
                false => {
                    let again = now.plus(deadlines.detached);
                    if let Some(host) = self.part(from, again) {
                        *self.tried.entry(host).or_default() += 1;
                        out.push_back(Output::CloseHost { session: from });
                    }
                    (self.stage, self.news) = (Stage::Gathering { until: again }, true);
                    self.course(out, now, deadlines)
                }
            },
            Stage::Fetched => Course::TakeOver,
        }
    }

    /// Asks the next host that keeps the consensus in force for it. Before the first average there is none.
    fn fetch(&mut self, out: &mut VecDeque<Output>, now: Time, ceiling: Duration) -> Course {
        let Some(commit) = self.newest() else { return Course::TakeOver };
        let (version, digest) = (commit.head().version, commit.head().digest);
        let round = commit.head().moment.round;
        let able = |(_, back): &(&SessionId, &Back)| {
            let has_it = |(kept, result)| kept == Some(version) || result == Some(round);
            let tried = self.tried.get(&back.host).copied().unwrap_or_default();
            back.said.is_some_and(has_it) && tried < TRIES
        };
        let Some((&session, _)) = self.hosts.iter().find(able) else {
            let text = format!("no host that came back has the consensus of {version}: go on from the last checkpoint");
            return Course::End(Reason::new("consensus-lost", text));
        };
        // It is no round's: it is only to be told apart from those that are.
        let round = Round(u64::MAX);
        out.push_back(Output::Restore { session, round, version, digest });
        out.push_back(Output::ToHost { session, control: Control::SendConsensus { round, version } });
        self.stage = Stage::Fetching { from: session, version, until: now.plus(ceiling) };
        Course::Hold
    }

    /// What is waited for.
    pub(crate) fn hold(&self) -> Reason {
        let fetched = |from: SessionId| self.hosts.get(&from).map(|back| back.host);
        let waiting = match self.stage {
            Stage::Fetching { from, version, .. } => fetched(from).map(|from| Waiting::Consensus { from, version }),
            Stage::Gathering { .. } | Stage::Fetched => None,
        };
        Reason::from(&waiting.unwrap_or_else(|| Waiting::Hosts { missing: self.missing() }))
    }

    /// Hosts with ranks that live, and that have not said everything yet.
    fn missing(&self) -> Vec<HostId> {
        let commit = self.newest();
        let lives = known_lives(&self.restored, commit.as_ref());
        let expected: BTreeSet<HostId> =
            lives.values().filter(|life| is_living(life.standing)).map(|life| life.host).collect();
        let said = |host: &HostId| self.hosts.values().any(|back| back.host == *host && back.said.is_some());
        expected.into_iter().filter(|host| !said(host)).collect()
    }

    /// Whether everybody who is expected has said everything.
    fn is_complete(&self) -> bool {
        self.hosts.values().all(|back| back.said.is_some()) && self.missing().is_empty()
    }

    /// The newest record of all, the journal's where none is newer. What a host said whose link broke again is as true.
    fn newest(&self) -> Option<CommitState> {
        let kept = self.hosts.values().map(|back| &back.record);
        let kept = kept.chain(self.parted.values().map(|parted| &parted.record)).filter_map(Keeper::state);
        kept.chain(&self.restored.commit).max_by_key(|commit| commit.head().moment).cloned()
    }

    /// A host's link breaks; it may come once more until then.
    fn part(&mut self, session: SessionId, until: Time) -> Option<HostId> {
        let Back { host, first, record, .. } = self.hosts.remove(&session)?;
        self.parted.insert(host, Parted { session, first, until, record });
        Some(host)
    }

    /// Takes what it can; gives back what waits for the run to go on. A host that is lost now may come once more until `again`.
    fn take(&mut self, input: Input, again: Time) -> Result<(), Input> {
        match input {
            Input::HostResumed { session, host, first } => {
                let older = self.hosts.iter().find(|(_, back)| back.host == host).map(|(&session, _)| session);
                older.and_then(|session| self.part(session, again));
                // Its relay tells it again, but this one may be lost once more before that.
                let record = self.parted.remove(&host).map(|parted| parted.record).unwrap_or_default();
                let (states, said) = (Vec::new(), None);
                self.hosts.insert(session, Back { host, first, record, states, said });
            }
            Input::HostLost { session, .. } if self.hosts.contains_key(&session) => {
                self.part(session, again);
            }
            Input::FromHost { session, report } => return self.hear(session, report),
            Input::Restored { version, result } => {
                if let Stage::Fetching { version: asked, until, .. } = &mut self.stage
                    && *asked == version
                {
                    match result {
                        Ok(()) => self.stage = Stage::Fetched,
                        Err(_) => *until = Time::ZERO,
                    }
                }
            }
            // That somebody lives is what its host's connection says as well.
            Input::FromRank { report: Report::Heartbeat { .. } | Report::Progress { .. }, .. } => {}
            // Of a controller that is no more.
            Input::Folded(_) | Input::RootWaits { .. } | Input::Saved { .. } => {}
            input => return Err(input),
        }
        Ok(())
    }

    fn hear(&mut self, session: SessionId, report: HostReport) -> Result<(), Input> {
        let Some(back) = self.hosts.get_mut(&session) else { return Err(Input::FromHost { session, report }) };
        match report {
            HostReport::CommitPart { part, parts, record } => back.record.take_part(part, parts, *record),
            HostReport::RankState(state) => back.states.push(*state),
            HostReport::Back { consensus, result, .. } => {
                back.said = Some((consensus, result));
                self.news = true;
            }
            HostReport::Heartbeat => {}
            report => return Err(Input::FromHost { session, report }),
        }
        Ok(())
    }
}

/// What people are told.
fn announcement(commit: Option<&CommitState>, generation: u64, overlaps: bool) -> (EventKind, Reason) {
    let head = commit.map(CommitState::head);
    let (committed, repeats) = head.map_or((0, 0), |head| (head.committed, head.repeats));
    let version = head.map(|head| head.version);
    let at = version.map_or_else(|| "before its first average".to_owned(), |version| format!("at {version}"));
    let again = if overlaps { "; ranks take the consensus first, and train again what was not committed" } else { "" };
    let text = format!("the run goes on {at} under another controller, with {committed} samples committed{again}");
    (EventKind::Resumed { generation, version, committed, repeats }, Reason::new("resumed", text))
}

fn is_living(standing: Standing) -> bool {
    matches!(standing, Standing::Coming | Standing::InRun)
}

/// Whether a host may say that a rank goes on with it, which is known by that life.
fn may_claim(host: HostId, known: &LifeRecord) -> bool {
    known.host == host || !is_living(known.standing)
}

/// The lives that the journal knows.
fn written_lives(restored: &Restored) -> BTreeMap<Rank, LifeRecord> {
    let mut state = restored.commit.clone().unwrap_or_default();
    state.set_lives(restored.lives.iter().copied());
    state.lives().map(|life| (life.rank, *life)).collect()
}

/// The lives of the newest record. Where that is a host's, a rank that lives on one host as far as the journal knows is not
/// another's for that.
fn known_lives(restored: &Restored, commit: Option<&CommitState>) -> BTreeMap<Rank, LifeRecord> {
    let moment = |commit: &CommitState| commit.head().moment;
    let written = written_lives(restored);
    let Some(newer) = commit.filter(|&newer| Some(moment(newer)) != restored.commit.as_ref().map(moment)) else {
        return written;
    };
    let mut lives: BTreeMap<Rank, LifeRecord> = newer.lives().map(|life| (life.rank, *life)).collect();
    for (rank, life) in written {
        if is_living(life.standing) && lives.get(&rank).is_none_or(|said| said.host != life.host) {
            lives.insert(rank, life);
        }
    }
    lives
}

fn agreed(formed: Formed, tensors: Vec<TensorSpec>) -> Agreed {
    let Formed { manifest, dataset, trainer, scalars, saves, layout, passes, epochs, batch_size, speeds } = formed;
    let agreement = Agreement { manifest, dataset, trainer, scalars, saves };
    Agreed { agreement, layout, tensors, dataset_len: dataset.len, passes, epochs, batch_size, speeds }
}

/// What the run's ranks have agreed on, for the journal.
pub(crate) fn formed(agreed: &Agreed) -> Formed {
    let Agreement { manifest, dataset, trainer, scalars, saves } = agreed.agreement.clone();
    let Agreed { layout, passes, epochs, batch_size, .. } = *agreed;
    let speeds = agreed.speeds.clone();
    Formed { manifest, dataset, trainer, scalars, saves, layout, passes, epochs, batch_size, speeds }
}

/// A life as the run goes on with it.
fn member(life: &LifeRecord, place: Place, now: Time) -> Member {
    let gone = |why: &str| Fate::HostLost { error: why.to_owned() };
    let apart =
        |until: Time, error: &str, was: State| State::Detached { until, error: error.to_owned(), was: Box::new(was) };
    let living = |state: State| match place {
        // The order to begin it may have been lost.
        Place::Unheard(_, until) if matches!(state, State::Starting) => apart(until, "it did not begin", state),
        Place::Behind(_) | Place::Unheard(..) => state,
        Place::Parted(_, until) => apart(until, "it broke while the new controller waited for others", state),
        Place::Nowhere => apart(now, "its host did not come back to the new controller", state),
    };
    let state = match life.standing {
        Standing::Coming => living(State::Starting),
        Standing::InRun => living(State::Syncing),
        Standing::Finished => State::Gone(Fate::Finished),
        Standing::Left => State::Gone(Fate::Left),
        Standing::Refused => State::Gone(Fate::Refused(Reason::new("refused", "it was refused before"))),
        Standing::Lost => State::Gone(gone("it was lost under an earlier controller")),
    };
    let session = match place {
        Place::Behind(session) | Place::Unheard(session, _) | Place::Parted(session, _) => session,
        Place::Nowhere => SessionId::default(),
    };
    let in_reach = matches!(place, Place::Behind(_) | Place::Unheard(..));
    let seen = Some(now).filter(|_| in_reach && life.standing == Standing::InRun);
    let past = Past { missing: life.missing, losses: life.losses, ..Past::default() };
    Member { seen, ..Member::new((life.rank, life.incarnation), session, state, past) }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waiting::Hosts { missing } => {
                f.write_str("waiting for the run's hosts to come back: ")?;
                list(f, missing, |f, host| f.write_str(&host.name()))
            }
            Waiting::Consensus { from, version } => {
                write!(f, "waiting for the consensus of {version} from host {}", from.name())
            }
        }
    }
}

impl From<&Waiting> for Reason {
    fn from(waiting: &Waiting) -> Reason {
        let code = match waiting {
            Waiting::Hosts { .. } => "waiting-for-hosts",
            Waiting::Consensus { .. } => "waiting-for-consensus",
        };
        Reason::new(code, waiting.to_string())
    }
}

//! Who plays in a scenario: hosts and ranks that do what a line says, and otherwise only what they must.

use super::actor::{Actor, state};
use super::common::puppet::{prefix, ready, received, tensors};
use super::common::{DIGEST, MS, config, scenario};
use super::library::Library;
use super::words;
use flodl_coord::{Coordinator, Input, MaxFailure, Output};
use flodl_wire::codec::manifest_digest;
use flodl_wire::message::control::{Part, RosterEntry};
use flodl_wire::message::join::TensorSpec;
use flodl_wire::message::report::{
    Evaluation, ExitStatus, Folded, FoldedPart, RankState, SyncAck, SyncOutcome, WindowReport,
};
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::{HostId, Incarnation, Rank, Round, SessionId, Time, Version, WindowId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A host and whether its link holds.
struct Wing {
    session: SessionId,
    /// The session that its relay was connected by first.
    first: SessionId,
    linked: bool,
}

/// A coordinator and everybody around it.
#[derive(Default)]
pub(crate) struct Stage {
    coordinator: Option<Coordinator>,
    now: Time,
    batch_size: u64,
    samples: u64,
    sessions: u64,
    hosts: BTreeMap<String, Wing>,
    names: BTreeMap<SessionId, String>,
    ranks: BTreeMap<u32, Actor>,
    roster: (Round, Vec<RosterEntry>),
    version: Version,
    over_nccl: bool,
    pub(crate) library: Library,
    told: Vec<String>,
}

/// A line's words: what is named, and what is set.
pub(crate) struct Line<'a> {
    pub(crate) names: Vec<&'a str>,
    pub(crate) sets: Vec<(&'a str, &'a str)>,
}

impl<'a> Line<'a> {
    fn of(words: impl Iterator<Item = &'a str>) -> Line<'a> {
        let (mut names, mut sets) = (Vec::new(), Vec::new());
        for word in words {
            match word.split_once('=') {
                Some(set) => sets.push(set),
                None => names.push(word),
            }
        }
        Line { names, sets }
    }

    fn name(&self) -> Result<&'a str, String> {
        self.names.first().copied().ok_or_else(|| "it names nobody".to_owned())
    }

    /// Its ranks: `3`, or `0..4` without the last.
    pub(crate) fn ranks(&self) -> Result<Vec<u32>, String> {
        let mut ranks = Vec::new();
        for name in &self.names {
            match name.split_once("..") {
                Some((from, to)) => ranks.extend(number::<u32>(from)?..number(to)?),
                None => ranks.push(number(name)?),
            }
        }
        Ok(ranks)
    }

    pub(crate) fn set(&self, key: &str) -> Option<&'a str> {
        self.sets.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    pub(crate) fn rank_sets(&self) -> Result<Vec<(u32, &'a str)>, String> {
        let named = self.sets.iter().filter(|(name, _)| name.starts_with(|first: char| first.is_ascii_digit()));
        named.map(|&(rank, value)| Ok((number(rank)?, value))).collect()
    }

    fn list(&self, key: &str) -> Result<BTreeSet<u32>, String> {
        self.set(key).into_iter().flat_map(|ranks| ranks.split(',')).map(number).collect()
    }
}

pub(crate) fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

impl Stage {
    /// Does what a line says.
    pub(crate) fn happens(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let line = Line::of(words);
        match verb {
            "run" => self.run(&line),
            "host" => self.host(&line),
            "ready" => self.ready(&line),
            "train" => self.train(&line),
            "snapshot" => self.each(&line, |stage, rank| stage.snapshot(rank)),
            "fold" => self.fold(&line),
            "ack" => self.ack(&line),
            "id" => self.id(&line),
            "begin" | "formed" | "unformed" | "broken" => self.stand(verb, &line),
            "form" => self.form(),
            "collect" => self.collect(&line),
            "round" => self.round(),
            "exit" | "lost" | "fail" | "returns" | "starts" => self.life(verb, &line),
            "cut" => self.cut(line.name()?),
            "link" => self.link(line.name()?),
            "back" => self.back(line.name()?),
            "leave" => self.of_host(line.name()?, HostReport::Leaving),
            "waits" | "root-waits" => self.waits(verb == "root-waits", &line),
            "wait" => self.wait(&line),
            "old" => self.old(&line),
            "stop" => self.take(Input::Stop),
            "evaluate" => self.evaluate(&line),
            "saved" => self.saved(&line),
            "finish" => self.finish(&line),
            other => Err(format!("nothing is called {other}")),
        }
    }

    /// What the coordinator wanted done since this was asked last.
    pub(crate) fn does(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }

    fn run(&mut self, line: &Line<'_>) -> Result<(), String> {
        let get = |key: &str, or: u64| line.set(key).map_or(Ok(or), number);
        let mut settings = scenario(&vec![1; get("ranks", 2)? as usize]);
        settings.samples = get("samples", 64)?;
        settings.batch_size = get("batch", 4)? as u32;
        settings.epochs = get("epochs", 2)?;
        settings.max_failure = line
            .set("max-failure")
            .map_or(Ok(MaxFailure::None), |text| text.parse().map_err(|_| format!("`{text}` is no number of ranks")))?;
        (self.batch_size, self.samples) = (u64::from(settings.batch_size), settings.samples);
        let mut config = config(&settings);
        config.min_ranks = get("min", 1)? as u32;
        config.patience = Duration::from_secs(get("patience", 10)?);
        if let Some(mode) = line.set("mode") {
            config.mode = mode.parse().map_err(|_| format!("`{mode}` is no mode"))?;
        }
        let coordinator = Coordinator::new(config, Time::ZERO).map_err(|error| error.to_string())?;
        self.coordinator = Some(coordinator);
        Ok(())
    }

    // Hosts.

    fn open(&mut self, name: &str) -> Result<(SessionId, HostId), String> {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        self.names.insert(session, name.to_owned());
        self.hosts.insert(name.to_owned(), Wing { session, first: session, linked: true });
        Ok((session, HostId::from_name(name).ok_or("that is no host's name")?))
    }

    fn host(&mut self, line: &Line<'_>) -> Result<(), String> {
        let name = line.name()?;
        let rank_count = line.names.get(1).map_or(Ok(1), |count| number(count))?;
        let (session, host) = self.open(name)?;
        self.take(Input::HostConnected { session, host, rank_count })
    }

    fn cut(&mut self, name: &str) -> Result<(), String> {
        let wing = self.hosts.get_mut(name).ok_or("there is no such host")?;
        wing.linked = false;
        let session = wing.session;
        self.take(Input::HostLost { session, error: "reset".to_owned() })
    }

    /// The link is there again.
    fn link(&mut self, name: &str) -> Result<(), String> {
        let first = self.hosts.get(name).map_or(SessionId(0), |wing| wing.first);
        let (session, host) = self.open(name)?;
        self.hosts.entry(name.to_owned()).and_modify(|wing| wing.first = first);
        self.take(Input::HostResumed { session, host, first })
    }

    /// The link is there again, and the relay says where its ranks stand.
    fn back(&mut self, name: &str) -> Result<(), String> {
        self.link(name)?;
        let states: Vec<RankState> =
            self.ranks.iter().filter(|(_, actor)| actor.host == name && actor.alive).map(state).collect();
        states.into_iter().try_for_each(|state| self.of_host(name, HostReport::RankState(Box::new(state))))
    }

    fn of_host(&mut self, name: &str, report: HostReport) -> Result<(), String> {
        let wing = self.hosts.get(name).ok_or("there is no such host")?;
        if !wing.linked {
            return Ok(());
        }
        let session = wing.session;
        self.take(Input::FromHost { session, report })
    }

    fn waits(&mut self, root: bool, line: &Line<'_>) -> Result<(), String> {
        let (round, chunk) = (self.roster.0, line.set("chunk").map_or(Ok(0), number)?);
        for rank in line.ranks()? {
            let name = self.actor(rank)?.host.clone();
            let rank = Rank(rank);
            if root {
                self.take(Input::RootWaits { round, rank, chunk })?;
            } else {
                self.of_host(&name, HostReport::Waiting { round, rank, chunk })?;
            }
        }
        Ok(())
    }

    // Ranks.

    fn actor(&mut self, rank: u32) -> Result<&mut Actor, String> {
        self.ranks.get_mut(&rank).ok_or_else(|| format!("there is no rank {rank}"))
    }

    fn each(&mut self, line: &Line<'_>, act: impl Fn(&mut Stage, u32) -> Result<(), String>) -> Result<(), String> {
        line.ranks()?.into_iter().try_for_each(|rank| act(self, rank))
    }

    /// A rank says something. Where the link is down its relay keeps it for later.
    pub(crate) fn say(&mut self, rank: u32, report: Report) -> Result<(), String> {
        let actor = self.actor(rank)?;
        if !matches!(report, Report::Heartbeat { .. } | Report::Manifest { .. }) {
            actor.words.push(report.clone());
        }
        let (host, incarnation) = (actor.host.clone(), actor.life);
        let wing = self.hosts.get(&host).ok_or("its host is not there")?;
        if !wing.linked {
            return Ok(());
        }
        let session = wing.session;
        self.take(Input::FromRank { session, rank: Rank(rank), incarnation, report })
    }

    fn ready(&mut self, line: &Line<'_>) -> Result<(), String> {
        let samples = line.set("samples").map_or(Ok(self.samples), number)?;
        let other = line.set("model") == Some("other");
        self.each(line, |stage, rank| {
            let mut report = ready(samples, None);
            stage.actor(rank)?.other = other;
            if let (Report::Ready(ready), true) = (&mut report, other) {
                ready.manifest_digest = manifest_digest(&model(true));
            }
            stage.say(rank, report)
        })
    }

    fn train(&mut self, line: &Line<'_>) -> Result<(), String> {
        for (rank, batches) in line.rank_sets()? {
            let batches: u32 = number(batches)?;
            let samples = u64::from(batches) * self.batch_size;
            let actor = self.actor(rank)?;
            let plan = actor.plan.clone().ok_or_else(|| format!("rank {rank} has no window"))?;
            let used = prefix(&plan.leases, samples);
            let samples = flodl_wire::id::samples(&used);
            let version = line.set("version").map(number).transpose()?;
            // It may speak of a window that is over.
            let window = line.set("window").map_or(Ok(plan.window), |window| number(window).map(WindowId))?;
            let report = WindowReport {
                window,
                epoch: plan.epoch,
                batches,
                samples,
                used: used.clone(),
                first: Duration::from_millis(10),
                rest: Duration::from_millis(10) * batches.saturating_sub(1),
                replica_digest: version.map(|version| (Version(version), DIGEST ^ 1)),
                ..WindowReport::default()
            };
            actor.used.extend(used);
            actor.batches += batches;
            actor.step += u64::from(batches);
            self.say(rank, Report::WindowReport(Box::new(report)))?;
        }
        Ok(())
    }

    fn snapshot(&mut self, rank: u32) -> Result<(), String> {
        let round = self.roster.0;
        let actor = self.actor(rank)?;
        let (mut steps, ranges) = (u64::from(actor.batches), actor.used.clone());
        let epoch = actor.plan.as_ref().map(|plan| plan.epoch).unwrap_or_default();
        // Over NCCL nobody but the coordinator learns from it that the source gives something.
        let is_source = |entry: &RosterEntry| (entry.rank, entry.part) == (Rank(rank), Part::Source);
        steps += u64::from(self.over_nccl && self.roster.1.iter().any(is_source));
        self.say(rank, Report::SnapshotReady { round, steps, ranges, epoch })
    }

    fn fold(&mut self, line: &Line<'_>) -> Result<(), String> {
        let sets = line.rank_sets()?;
        let part = |rank: Rank| match sets.iter().find(|(named, _)| *named == rank.0).map(|(_, part)| *part) {
            Some("whole") => Ok(FoldedPart::Whole),
            None | Some("none") => Ok(FoldedPart::None),
            Some(chunks) => number(chunks).map(FoldedPart::Chunks),
        };
        let ranks = self.roster.1.iter().map(|entry| Ok((entry.rank, entry.incarnation, part(entry.rank)?)));
        let ranks: Vec<_> = ranks.collect::<Result<_, String>>()?;
        let any_mass = ranks.iter().any(|(.., part)| *part != FoldedPart::None);
        self.take(Input::Folded(Folded { round: self.roster.0, ranks, digest: DIGEST, any_mass }))
    }

    fn ack(&mut self, line: &Line<'_>) -> Result<(), String> {
        self.each(line, |stage, rank| stage.acknowledge(rank, SyncOutcome::Whole(received(DIGEST))))?;
        for (rank, what) in line.rank_sets()? {
            let outcome = match what {
                "other" => SyncOutcome::Whole(received(DIGEST ^ 1)),
                chunk => SyncOutcome::Incomplete { from_chunk: number(chunk)? },
            };
            self.acknowledge(rank, outcome)?;
        }
        Ok(())
    }

    fn acknowledge(&mut self, rank: u32, outcome: SyncOutcome) -> Result<(), String> {
        let (waited, copied) = (Duration::from_millis(2), Duration::from_millis(1));
        let round = self.roster.0;
        self.say(rank, Report::SyncAck(SyncAck { round, outcome, waited, copied }))
    }

    /// The round goes as it should.
    fn round(&mut self) -> Result<(), String> {
        let (_, roster) = self.roster.clone();
        let lives = |stage: &Stage, rank: Rank| stage.ranks.get(&rank.0).is_some_and(|actor| actor.alive);
        let here: Vec<u32> =
            roster.iter().map(|entry| entry.rank).filter(|&rank| lives(self, rank)).map(|rank| rank.0).collect();
        here.iter().try_for_each(|&rank| self.snapshot(rank))?;
        let gives = |entry: &&RosterEntry| match entry.part {
            Part::Source => true,
            Part::Contribute => self.ranks.get(&entry.rank.0).is_some_and(|actor| actor.batches > 0 && actor.alive),
            Part::Receive => false,
        };
        let giving: Vec<String> = roster.iter().filter(gives).map(|entry| format!("{}=whole", entry.rank.0)).collect();
        self.fold(&Line::of(giving.iter().map(String::as_str)))?;
        here.iter().try_for_each(|&rank| self.acknowledge(rank, SyncOutcome::Whole(received(DIGEST))))
    }

    fn life(&mut self, verb: &str, line: &Line<'_>) -> Result<(), String> {
        for rank in line.ranks()? {
            let (text, status) = ("end of file".to_owned(), status(line)?);
            let actor = self.actor(rank)?;
            let (name, incarnation) = (actor.host.clone(), actor.life);
            actor.alive &= !matches!(verb, "exit" | "lost");
            let (last_lines, id) = (String::new(), Rank(rank));
            match verb {
                "exit" => {
                    self.of_host(&name, HostReport::RankExited { rank: id, incarnation, status, last_lines })?;
                }
                "lost" => self.of_host(&name, HostReport::RankLost { rank: id, incarnation, error: text })?,
                "fail" => self.say(rank, Report::Failed { error: "out of memory".to_owned() })?,
                "returns" => self.of_host(&name, HostReport::WillRestart { rank: id, incarnation })?,
                _ => self.of_host(&name, HostReport::RankUp { rank: id, incarnation, pid: 7 })?,
            }
        }
        Ok(())
    }

    /// A life that is over says something.
    fn old(&mut self, line: &Line<'_>) -> Result<(), String> {
        for (rank, life) in line.rank_sets()? {
            let incarnation = Incarnation(number(life)?);
            let host = self.actor(rank)?.host.clone();
            let session = self.hosts.get(&host).ok_or("its host is not there")?.session;
            let report = Report::Heartbeat { step: 1 };
            self.take(Input::FromRank { session, rank: Rank(rank), incarnation, report })?;
        }
        Ok(())
    }

    /// Seconds pass. Whoever is not named gives signs of life and makes steps.
    fn wait(&mut self, line: &Line<'_>) -> Result<(), String> {
        let (silent, still) = (line.list("silent")?, line.list("still")?);
        let mute: BTreeSet<&str> = line.set("mute").into_iter().flat_map(|hosts| hosts.split(',')).collect();
        for _ in 0..number::<u64>(line.name()?)? {
            let step_to = Time(self.now.0 + 1000 * MS);
            let due = |stage: &Stage| stage.coordinator.as_ref().and_then(Coordinator::next_deadline);
            while let Some(due) = due(self).filter(|due| *due < step_to) {
                self.now = due;
                self.tick()?;
            }
            self.now = step_to;
            let linked = self.hosts.iter().filter(|(name, wing)| wing.linked && !mute.contains(name.as_str()));
            for name in linked.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
                self.of_host(&name, HostReport::Heartbeat)?;
            }
            let talks = |(rank, actor): (&u32, &mut Actor)| {
                actor.step += u64::from(!still.contains(rank));
                let talks = actor.alive && !silent.contains(rank) && !mute.contains(actor.host.as_str());
                talks.then_some((*rank, actor.step))
            };
            let talking: Vec<(u32, u64)> = self.ranks.iter_mut().filter_map(talks).collect();
            for (rank, step) in talking {
                self.say(rank, Report::Heartbeat { step })?;
            }
            self.tick()?;
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), String> {
        let now = self.now;
        self.coordinator.as_mut().ok_or("there is no run")?.tick(now);
        self.drain()
    }

    // The end.

    fn evaluate(&mut self, line: &Line<'_>) -> Result<(), String> {
        let fails = line.names.contains(&"fails");
        let asked: Vec<(u32, u64)> =
            self.ranks.iter_mut().filter_map(|(rank, actor)| Some((*rank, actor.asked.take()?))).collect();
        for (rank, schedule) in asked {
            let found = Evaluation { loss: 0.1, accuracy: None, samples: 10 };
            let outcome = if fails { Err("no test split".to_owned()) } else { Ok(found) };
            self.say(rank, Report::EvalResult { schedule, outcome })?;
        }
        Ok(())
    }

    fn saved(&mut self, line: &Line<'_>) -> Result<(), String> {
        let full = line.names.contains(&"full");
        let result = if full { Err("the disk is full".to_owned()) } else { Ok("checkpoints/v".to_owned()) };
        self.take(Input::Saved { version: self.version, result })
    }

    /// These, or all that live, say their last words and end.
    fn finish(&mut self, line: &Line<'_>) -> Result<(), String> {
        let living = self.ranks.iter().filter(|(_, actor)| actor.alive).map(|(&rank, _)| rank).collect();
        let ending: Vec<u32> = if line.names.is_empty() { living } else { line.ranks()? };
        for rank in ending {
            let version = Some(self.version);
            self.say(rank, Report::Finished { version, replica_digest: DIGEST })?;
            self.life("exit", &Line { names: vec![&rank.to_string()], sets: vec![("code", "0")] })?;
        }
        Ok(())
    }

    // The coordinator.

    fn take(&mut self, input: Input) -> Result<(), String> {
        self.now = Time(self.now.0 + MS);
        let now = self.now;
        self.coordinator.as_mut().ok_or("there is no run")?.handle(input, now);
        self.drain()
    }

    fn drain(&mut self) -> Result<(), String> {
        let mut answers = Vec::new();
        while let Some(output) = self.coordinator.as_mut().and_then(Coordinator::poll) {
            let name = |session| self.names.get(&session).cloned().unwrap_or_else(|| format!("{session}"));
            let again = |line: &String| {
                line.starts_with("stall: ") && self.told.last().is_some_and(|last| last.starts_with("stall: "))
            };
            let line = words::line(&output, name).filter(|line| !again(line));
            self.told.extend(line);
            answers.extend(self.obey(output));
        }
        for rank in answers {
            let tensors = model(self.actor(rank)?.other);
            self.say(rank, Report::Manifest { part: 0, parts: 1, tensors })?;
        }
        Ok(())
    }

    /// Takes in what somebody is told. Gives the rank that is asked for its tensors.
    fn obey(&mut self, output: Output) -> Option<u32> {
        match output {
            Output::ToHost { session, control: Control::Admit(admit) } => {
                let host = self.names.get(&session).cloned().unwrap_or_default();
                self.ranks.extend(admit.ids.iter().map(|&(rank, life)| (rank.0, Actor::new(host.clone(), life))));
            }
            Output::ToHost { control: Control::Restart { rank, incarnation }, session } => {
                let host = self.names.get(&session).cloned().unwrap_or_default();
                self.ranks.insert(rank.0, Actor::new(host, incarnation));
            }
            Output::ToRank { rank, incarnation, control, session } => {
                let linked =
                    self.names.get(&session).and_then(|name| self.hosts.get(name)).is_some_and(|wing| wing.linked);
                if matches!(control, Control::SendManifest) {
                    return Some(rank.0);
                }
                if let Control::RequestNewNcclId { session } = control {
                    (self.library.session, self.library.asked) = (session, Some(rank));
                }
                if let Some(actor) = self.ranks.get_mut(&rank.0).filter(|actor| actor.life == incarnation && linked) {
                    actor.hears(&control);
                }
            }
            Output::Broadcast(control) => {
                self.over_nccl = match &control {
                    Control::PrepareSync { .. } => true,
                    Control::RequestParams { .. } => false,
                    _ => self.over_nccl,
                };
                match &control {
                    Control::RequestParams { round, roster } | Control::PrepareSync { round, roster } => {
                        self.roster = (*round, roster.clone());
                    }
                    Control::NewNcclSession(new) => {
                        self.library.session = new.session;
                        self.library.members = new.members.iter().map(|(rank, _)| rank.0).collect();
                    }
                    Control::SyncNow { round, .. } => self.library.issued = Some(*round),
                    _ => {}
                }
                let linked = |host: &String| self.hosts.get(host).is_some_and(|wing| wing.linked);
                self.ranks.values_mut().filter(|actor| linked(&actor.host)).for_each(|actor| actor.hears(&control));
            }
            Output::Save(request) => self.version = request.version,
            _ => {}
        }
        None
    }
}

/// The tensors of the run's model, or of another one.
fn model(other: bool) -> Vec<TensorSpec> {
    let mut tensors = tensors();
    if other {
        tensors.iter_mut().for_each(|tensor| tensor.name.push_str("_other"));
    }
    tensors
}

fn status(line: &Line<'_>) -> Result<ExitStatus, String> {
    match (line.set("signal"), line.set("code")) {
        (Some(signal), _) => number(signal).map(ExitStatus::Signal),
        (None, Some(code)) => number(code).map(ExitStatus::Code),
        (None, None) => Ok(ExitStatus::Signal(9)),
    }
}

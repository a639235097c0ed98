//! The controller dies at each step of a window and a round, and another one goes on: with its journal whole, with its end
//! lost, and with all of it lost but the beginning. Whatever is committed counts once.

mod common;

use common::puppet::ack;
use common::script::Script;
use common::{DIGEST, LIFE, MS, pass};
use flodl_coord::journal::{Entry, Image, Start};
use flodl_coord::{Coordinator, Input, Output};
use flodl_elche::NoGuard;
use flodl_wire::commit::Keeper;
use flodl_wire::message::commit::{LifeRecord, Standing};
use flodl_wire::message::control::{Next, Part, RoundOutcome, WindowPlan};
use flodl_wire::message::record::EventKind;
use flodl_wire::message::report::{ExitStatus, FoldedPart, RankState};
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::{HostId, Incarnation, Range, Rank, Round, SessionId, Time, Version, WindowId};

/// What a rank's relay keeps, and what the rank is doing.
#[derive(Default)]
struct Host {
    keeper: Keeper,
    plan: Option<WindowPlan>,
    window: Option<WindowId>,
    round: Option<(Round, bool)>,
    version: Option<Version>,
    words: Vec<Report>,
}

impl Host {
    /// What the relay sends when it is back, in order.
    fn tells(&self, rank: u32, consensus: Option<Version>) -> Vec<HostReport> {
        let parts = self.keeper.state().map(|state| state.parts()).unwrap_or_default();
        let count = u32::try_from(parts.len()).expect("few");
        let part = |(part, record)| HostReport::CommitPart { part, parts: count, record: Box::new(record) };
        let state = RankState {
            rank: Rank(rank),
            incarnation: LIFE,
            window: self.window,
            round: self.round.map(|(round, _)| round),
            round_done: self.round.is_some_and(|(_, done)| done),
            admitted: true,
            words: self.words.clone(),
            version: self.version,
            plan: self.plan.clone().map(Box::new),
            pace: None,
        };
        // All of the result is there where its rank has answered for it.
        let has_it = self.words.iter().any(|word| matches!(word, Report::SyncAck(_)));
        let result = self.round.filter(|&(_, done)| has_it && !done).map(|(round, _)| round);
        let said = HostReport::Back { record: self.keeper.moment(), consensus, result };
        (0..).zip(parts).map(part).chain([HostReport::RankState(Box::new(state)), said]).collect()
    }

    fn hears(&mut self, rank: u32, control: &Control) {
        match control {
            Control::Window(plan) => {
                (self.window, self.plan) = (Some(plan.window), Some(plan.clone()));
                self.words.clear();
            }
            Control::RequestParams { round, roster } if roster.iter().any(|entry| entry.rank.0 == rank) => {
                self.round = Some((*round, false));
            }
            Control::RoundDone { round, outcome, .. } if self.round == Some((*round, false)) => {
                self.round = Some((*round, true));
                if *outcome == RoundOutcome::Again {
                    return;
                }
                if let RoundOutcome::Committed { version } = outcome {
                    self.version = Some(*version);
                }
                self.plan = None;
                self.words.clear();
            }
            _ => {}
        }
    }
}

/// The run up to its controller's death, `steps` words after round 0, with what its hosts and journal know. The last
/// outputs reach the hosts in `heard` alone.
struct Past {
    hosts: [Host; 2],
    journal: Vec<Entry>,
    script: Script,
}

impl Past {
    fn new(steps: usize, heard: &[usize]) -> Past {
        let mut past = Past { hosts: Default::default(), journal: Vec::new(), script: Script::recorded() };
        let config = common::config(&common::scenario(&[8, 20]));
        let (run_id, address) = (config.run_id, "127.0.0.1:1".to_owned());
        let keep_checkpoints = core::num::NonZeroU32::MIN;
        past.journal.push(Entry::Start(Box::new(Start { run_id, generation: 0, address, keep_checkpoints, config })));
        past.script.spread();
        past.learn(0, &[0, 1]);
        for step in 0..steps {
            let from = past.script.outputs.len();
            past.step(step);
            past.learn(from, if step + 1 == steps { heard } else { &[0, 1] });
        }
        past
    }

    fn step(&mut self, step: usize) {
        let round = Round(1);
        let trained = |past: &Past, rank: u32| past.script.done(rank, 1);
        let (rank, word) = match step {
            0 | 1 => {
                let rank = step as u32;
                (rank, Report::WindowReport(Box::new(trained(self, rank))))
            }
            2 | 3 => {
                let rank = step as u32 - 2;
                let Some(Report::WindowReport(report)) = self.hosts[rank as usize].words.first() else {
                    panic!("said")
                };
                let (ranges, epoch) = (report.used.clone(), report.epoch);
                (rank, Report::SnapshotReady { round, steps: 1, ranges, epoch })
            }
            4 => return self.script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]),
            5 | 6 => (step as u32 - 5, Report::SyncAck(ack(round))),
            _ => panic!("there are seven steps"),
        };
        self.hosts[rank as usize].words.push(word.clone());
        self.script.say(rank, word);
    }

    fn learn(&mut self, from: usize, heard: &[usize]) {
        for output in &self.script.outputs[from..] {
            match output {
                Output::Journal(entry) => self.journal.push(entry.clone()),
                Output::ToHost { session, control } if heard.contains(&(session.0 as usize)) => {
                    let keeper = &mut self.hosts[session.0 as usize].keeper;
                    match control {
                        Control::Commit(change) => keeper.take_change(change).expect("in order"),
                        Control::CommitPart { part, parts, record } => {
                            keeper.take_part(*part, *parts, (**record).clone());
                        }
                        _ => {}
                    }
                }
                Output::Broadcast(control) => {
                    heard.iter().for_each(|&rank| self.hosts[rank].hears(rank as u32, control));
                }
                Output::ToRank { rank, control, .. } if heard.contains(&(rank.0 as usize)) => {
                    self.hosts[rank.0 as usize].hears(rank.0, control);
                }
                _ => {}
            }
        }
    }

    /// Another controller, to which the hosts come back.
    fn resumed(self, lost: usize, back: &[u32]) -> Script {
        let Past { hosts, mut journal, mut script } = self;
        journal.truncate(journal.len() - lost);
        let restored = Image::of(journal).restored().expect("the run had begun");
        script.coordinator = Coordinator::resume(restored, 1, Box::new(NoGuard), script.now).expect("valid");
        script.outputs = Vec::new();
        let newest = back.iter().filter_map(|&rank| hosts[rank as usize].version).max();
        for &rank in back {
            if let Some(plan) = &hosts[rank as usize].plan {
                script.windows[rank as usize] = plan.clone();
            }
            let session = SessionId(u64::from(rank) + 100);
            script.sessions[rank as usize] = session;
            let host = HostId::from_name(&format!("host{rank}")).expect("a name");
            script.take(Input::HostResumed { session, host, first: SessionId(u64::from(rank)) });
            for report in hosts[rank as usize].tells(rank, newest) {
                script.take(Input::FromHost { session, report });
            }
        }
        script
    }
}

/// The consensus that is asked for comes.
fn restores(script: &mut Script) -> Version {
    let asked = script.outputs.iter().rev().find_map(|output| match output {
        Output::Restore { version, digest, .. } => Some((*version, *digest)),
        _ => None,
    });
    let (version, digest) = asked.expect("a consensus is asked for");
    assert_eq!(digest, DIGEST);
    script.take(Input::Restored { version, result: Ok(()) });
    version
}

fn patience_is_over(script: &mut Script) {
    passes(script, 11);
}

fn passes(script: &mut Script, seconds: u64) {
    script.now = Time(script.now.0 + seconds * 1000 * MS);
    script.outputs.extend(pass(&mut script.coordinator, script.now));
}

/// What a rank is told, by whatever way.
fn told(script: &Script, rank: u32) -> Vec<Control> {
    let told = |output: &Output| match output {
        Output::ToRank { rank: to, control, .. } if to.0 == rank => Some(control.clone()),
        Output::Broadcast(control) => Some(control.clone()),
        _ => None,
    };
    script.outputs.iter().filter_map(told).collect()
}

/// Ends the window and its round, and gives what it committed.
fn averages(script: &mut Script, round: u64, used: [Vec<Range>; 2], case: &str) -> (Version, u64, u64) {
    assert_eq!(script.roster(), [(0, Part::Contribute), (1, Part::Contribute)], "{case}");
    script.snapshot(0, round, &used[0]);
    script.snapshot(1, round, &used[1]);
    script.folded(round, [FoldedPart::Whole, FoldedPart::Whole]);
    script.acks(round);
    let (commits, deaths) = (script.commits(), script.deaths());
    *commits.last().unwrap_or_else(|| panic!("{case}: nothing is committed, {deaths:?}"))
}

#[test]
fn b24_whatever_was_trained_counts_once_wherever_the_controller_dies() {
    // Steps before the death; who hears what follows the last one; entries that the journal lost; what is in force then.
    let cases = [
        (0, &[0, 1][..], 0, 0),
        (1, &[0, 1], 0, 0),
        (2, &[0, 1], 0, 0),
        (2, &[0], 0, 0),
        (2, &[], 0, 0),
        (4, &[0, 1], 0, 0),
        (5, &[0, 1], 0, 0),
        (6, &[0, 1], 0, 0),
        (7, &[], 1, 0),
        (7, &[], 0, 1),
        (7, &[0], 1, 1),
        (7, &[1], 0, 1),
        (7, &[0, 1], 0, 1),
        (7, &[0, 1], 1, 1),
    ];
    for (steps, heard, lost, version) in cases {
        let case = format!("{steps} steps, {heard:?} hear, {lost} entries lost");
        let past = Past::new(steps, heard);
        let said: Vec<Vec<Report>> = past.hosts.iter().map(|host| host.words.clone()).collect();
        let mut script = past.resumed(lost, &[0, 1]);
        assert_eq!(restores(&mut script), Version(version), "{case}");
        let resumed = script.events().find_map(|(kind, _)| match kind {
            EventKind::Resumed { committed, .. } => Some(*committed),
            _ => None,
        });
        assert_eq!(resumed, Some(version * 128), "{case}");
        for rank in [0, 1] {
            assert_eq!(told(&script, rank).first(), Some(&Control::ControllerBack), "{case}");
        }
        if version == 0 {
            // Both are in their first window: what they said counts, and the rest they say now.
            let used = [0u32, 1].map(|rank| {
                let report = script.done(rank, 1);
                let reported = said[rank as usize].iter().any(|word| matches!(word, Report::WindowReport(_)));
                if !reported {
                    script.say(rank, Report::WindowReport(Box::new(report.clone())));
                }
                report.used
            });
            let again = if steps >= 2 && !heard.is_empty() { 2 } else { 1 };
            let round = script.outputs.iter().rev().find_map(|output| match output {
                Output::Broadcast(Control::RequestParams { round, .. }) => Some(round.0),
                _ => None,
            });
            assert!(round.is_some_and(|round| round >= again), "{case}: {round:?}");
            assert_eq!(averages(&mut script, round.expect("asked"), used, &case), (Version(1), 128, 0), "{case}");
        } else {
            let unheard: Vec<u32> = [0, 1].into_iter().filter(|rank| !heard.contains(&(*rank as usize))).collect();
            for rank in unheard {
                let done = Control::RoundDone {
                    round: Round(1),
                    outcome: RoundOutcome::Committed { version: Version(1) },
                    next: Next::Window,
                };
                assert!(told(&script, rank).contains(&done), "{case}: rank {rank} applies version 1");
            }
        }
        assert_eq!(script.deaths(), [], "{case}");
    }
}

/// What a host says is true though its link breaks again; it may come once more, and is waited for as long as any.
#[test]
fn a_host_whose_link_breaks_while_the_others_are_waited_for_has_said_what_it_said() {
    // The journal lacks the newest commit, and only the host that is lost again had heard of it.
    let past = Past::new(7, &[0]);
    let states = [past.hosts[1].tells(1, None), past.hosts[0].tells(0, None)];
    assert!(past.hosts[0].version > past.hosts[1].version);
    let mut script = past.resumed(1, &[0]);
    let host = |rank: u32| HostId::from_name(&format!("host{rank}")).expect("a name");
    script.take(Input::HostLost { session: script.sessions[0], error: "it broke".to_owned() });
    let session = SessionId(200);
    script.take(Input::HostResumed { session, host: host(1), first: SessionId(1) });
    let [second, first] = states;
    for report in second {
        script.take(Input::FromHost { session, report });
    }
    assert!(script.outputs.iter().all(|output| !matches!(output, Output::Restore { .. })), "the other may come again");
    passes(&mut script, 6);
    let session = SessionId(201);
    script.sessions = [session, SessionId(200)];
    script.take(Input::HostResumed { session, host: host(0), first: SessionId(0) });
    // It is lost before it has told its record anew.
    script.take(Input::HostLost { session, error: "it broke".to_owned() });
    passes(&mut script, 5);
    assert_eq!(restores(&mut script), Version(1), "the newest that anybody has heard of");
    assert_eq!(script.deaths(), [], "it may come once more");
    let session = SessionId(202);
    script.sessions[0] = session;
    script.take(Input::HostResumed { session, host: host(0), first: SessionId(0) });
    for report in first {
        script.take(Input::FromHost { session, report });
    }
    assert!(told(&script, 0).contains(&Control::ControllerBack), "it is back in the run");
    assert_eq!(script.deaths(), []);
}

#[test]
fn a_round_that_was_open_is_run_again() {
    let mut script = Past::new(6, &[0, 1]).resumed(0, &[0, 1]);
    restores(&mut script);
    let again = Control::RoundDone { round: Round(1), outcome: RoundOutcome::Again, next: Next::Window };
    for rank in [0, 1] {
        assert_eq!(told(&script, rank)[..2], [Control::ControllerBack, again.clone()]);
    }
    assert!(matches!(told(&script, 0).last(), Some(Control::RequestParams { round: Round(2), .. })));
}

#[test]
fn who_said_its_last_word_under_the_former_controller_has_finished_and_is_not_lost() {
    let mut past = Past::new(7, &[0, 1]);
    let version = past.hosts[1].version;
    past.hosts[1].words.push(Report::Finished { version, replica_digest: 0 });
    let mut script = past.resumed(0, &[0, 1]);
    restores(&mut script);
    let (rank, incarnation, status, last_lines) = (Rank(1), LIFE, ExitStatus::Code(0), String::new());
    let report = HostReport::RankExited { rank, incarnation, status, last_lines };
    let session = script.sessions[1];
    script.take(Input::FromHost { session, report });
    assert!(script.events().any(|(kind, _)| matches!(kind, EventKind::RankFinished { rank: Rank(1) })));
    assert_eq!(script.deaths(), []);
    let dismissed = Output::ToHost { session, control: Control::Dismissed };
    assert!(script.outputs.contains(&dismissed), "its relay may go");
}

/// The journal knows of its end, its relay was not told that this is known.
#[test]
fn who_had_finished_is_not_fenced_for_saying_so_again() {
    let mut past = Past::new(7, &[0, 1]);
    let version = past.hosts[1].version;
    past.hosts[1].words.push(Report::Finished { version, replica_digest: 0 });
    let host = HostId::from_name("host1").expect("a name");
    let life =
        LifeRecord { rank: Rank(1), incarnation: LIFE, host, standing: Standing::Finished, losses: 0, missing: false };
    past.journal.push(Entry::Lives(vec![life]));
    let mut script = past.resumed(0, &[0, 1]);
    restores(&mut script);
    assert_eq!(told(&script, 1).first(), Some(&Control::Shutdown));
    assert_eq!(script.deaths(), []);
}

#[test]
fn who_does_not_come_back_is_lost_and_the_rest_goes_on() {
    let mut script = Past::new(1, &[0, 1]).resumed(0, &[1]);
    assert!(script.outputs.iter().all(|output| !matches!(output, Output::Restore { .. })), "the other is waited for");
    patience_is_over(&mut script);
    restores(&mut script);
    let deaths = script.deaths();
    assert_eq!(deaths.len(), 1);
    assert!(deaths[0].0 == 0 && deaths[0].1.contains("did not come back"), "{deaths:?}");
    script.report(1, 1);
    assert_eq!(script.roster(), [(1, Part::Contribute)]);
    // What comes later is not of this run any more.
    let session = SessionId(200);
    script.take(Input::HostResumed { session, host: HostId::from_name("host0").expect("a name"), first: SessionId(0) });
    let refused = |output: &Output| {
        matches!(output, Output::ToHost { session: SessionId(200), control: Control::Refused { .. } })
    };
    assert!(script.outputs.iter().any(refused));
}

/// Both hosts of a run come back in that order, `liar` with more to say than it should.
fn with_a_liar(past: Past, order: [u32; 2], liar: u32, lie: impl Fn(&mut Vec<HostReport>)) -> Script {
    let newest = past.hosts.iter().filter_map(|host| host.version).max();
    let tells = [0u32, 1].map(|rank| past.hosts[rank as usize].tells(rank, newest));
    let mut script = past.resumed(0, &[]);
    for (session, rank) in (100..).map(SessionId).zip(order) {
        script.sessions[rank as usize] = session;
        let host = HostId::from_name(&format!("host{rank}")).expect("a name");
        script.take(Input::HostResumed { session, host, first: SessionId(u64::from(rank)) });
        let mut reports = tells[rank as usize].clone();
        if rank == liar {
            lie(&mut reports);
        }
        for report in reports {
            script.take(Input::FromHost { session, report });
        }
    }
    restores(&mut script);
    script
}

/// Says of the other's rank that it goes on here, in a later life.
fn steal(reports: &mut Vec<HostReport>, rank: Rank) -> Incarnation {
    let own = reports.iter().find_map(|report| match report {
        HostReport::RankState(state) => Some((**state).clone()),
        _ => None,
    });
    let incarnation = Incarnation(LIFE.0 + 1);
    let stolen =
        RankState { rank, incarnation, words: Vec::new(), plan: None, ..own.expect("it says where it stands") };
    reports.insert(0, HostReport::RankState(Box::new(stolen)));
    incarnation
}

/// A rank that lives stays with its own host, whatever another one says of it: that it goes on there, that it has ended, or
/// a record in which it is that one's.
/// What a host says, falsified.
type Lie<'a> = (&'a str, &'a dyn Fn(&mut Vec<HostReport>));

#[test]
fn a_host_that_is_back_does_not_take_another_hosts_rank() {
    let orders = [[0, 1], [1, 0]];
    for (order, liar) in orders.into_iter().flat_map(|order| [(order, 0), (order, 1)]) {
        let victim = Rank(1 - liar);
        let theirs = HostId::from_name(&format!("host{liar}")).expect("a name");
        let states = |reports: &mut Vec<HostReport>| {
            steal(reports, victim);
        };
        let ends = |reports: &mut Vec<HostReport>| {
            let (status, last_lines) = (ExitStatus::Code(1), String::new());
            let ended = HostReport::RankExited { rank: victim, incarnation: LIFE, status, last_lines };
            reports.insert(0, ended);
        };
        let records = |reports: &mut Vec<HostReport>| {
            for report in reports.iter_mut() {
                if let HostReport::CommitPart { record, .. } = report {
                    record.head.moment.round.0 += 1;
                    record.lives.iter_mut().for_each(|life| life.host = theirs);
                }
            }
            steal(reports, victim);
        };
        let forgets = |reports: &mut Vec<HostReport>| {
            records(reports);
            for report in reports.iter_mut() {
                if let HostReport::CommitPart { record, .. } = report {
                    record.lives.retain(|life| life.rank != victim);
                }
            }
        };
        let lies: [Lie<'_>; 4] = [("states", &states), ("ends", &ends), ("records", &records), ("forgets", &forgets)];
        for (steps, (name, lie)) in [1, 7].into_iter().flat_map(|steps| lies.map(|lie| (steps, lie))) {
            let case = format!("{name} after {steps} steps, {order:?} come back, host{liar} lies");
            let script = with_a_liar(Past::new(steps, &[0, 1]), order, liar, lie);
            let session = |rank: u32| script.sessions[rank as usize];
            let speaks = |by: u32, life: u32| script.coordinator.speaks_for(session(by), victim, Incarnation(life));
            assert_eq!(script.deaths(), [], "{case}");
            assert!(speaks(victim.0, LIFE.0) && !speaks(liar, LIFE.0) && !speaks(liar, LIFE.0 + 1), "{case}");
            assert!(script.coordinator.speaks_for(session(liar), Rank(liar), LIFE), "{case}: its own");
            assert!(told(&script, victim.0).contains(&Control::ControllerBack), "{case}");
            let incarnation = Incarnation(LIFE.0 + 1);
            let control = Control::Fenced { incarnation };
            let fenced = Output::ToRank { session: session(liar), rank: victim, incarnation, control };
            assert_eq!(script.outputs.contains(&fenced), name != "ends", "{case}");
        }
    }
}

#[test]
fn a_rank_whose_life_was_over_may_go_on_with_another_host() {
    let mut past = Past::new(1, &[0, 1]);
    let host = HostId::from_name("host0").expect("a name");
    let lost =
        LifeRecord { rank: Rank(0), incarnation: LIFE, host, standing: Standing::Lost, losses: 1, missing: true };
    past.journal.push(Entry::Lives(vec![lost]));
    let script = with_a_liar(past, [1, 0], 1, |reports| {
        steal(reports, Rank(0));
    });
    assert!(script.coordinator.speaks_for(script.sessions[1], Rank(0), Incarnation(LIFE.0 + 1)));
}

#[test]
fn a_consensus_that_nobody_has_ends_the_run() {
    let past = Past::new(1, &[0, 1]);
    let mut script = past.resumed(0, &[0, 1]);
    for asked in [100, 101] {
        let newest = script.outputs.iter().rev().find_map(|output| match output {
            Output::Restore { session, .. } => Some(session.0),
            _ => None,
        });
        assert_eq!(newest, Some(asked), "one after the other is asked");
        script.take(Input::Restored { version: Version(0), result: Err("another digest".to_owned()) });
        assert!(script.outputs.contains(&Output::CloseHost { session: SessionId(asked) }), "it may come again");
        patience_is_over(&mut script);
    }
    let ended = script.outputs.iter().any(|output| matches!(output, Output::End { exit: 1 }));
    let why: Vec<String> =
        script.events().filter(|(kind, _)| matches!(kind, EventKind::RunEnded { .. })).map(|(_, why)| why).collect();
    assert!(ended && why[0].contains("checkpoint"), "{why:?}");
    assert!(matches!(script.outputs.last(), Some(Output::End { .. })));
}

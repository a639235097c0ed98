//! A rank's side of the protocol, without IO: what it is told goes in, what it wants done comes out.
//!
//! ```text
//!            Admitted             Window                 lease, budget, RequestParams
//!  Forming -----------> Idle --------------> Training ------------------------------> Idle
//!                        |  ^                                                          (WindowReport)
//!          RequestParams |  | RoundDone, applied
//!                        v  |
//!        Snapshotting -> Contributing -> in flight: receiving, answered -> Applying
//! ```
//!
//! Over NCCL a round has no contribution: the snapshot is a copy that stays in the replica's place, the order to average comes
//! when everybody has one, and what the collectives leave in the replica is the result (`nccl`).
//!
//! While a round is in flight no order is out. Where ranks wait for their rounds there is no window then; where they do not,
//! the next one begins at the snapshot, and its batches alternate with what comes of the result. A result that finds the
//! replica trained since its snapshot moves it by their difference ([`Application::OnTop`]).
//!
//! A [`Session`] knows positions, steps, rounds and versions; tensors are somebody else's ([`reduce`](crate::reduce)), and so
//! is the time, which is an argument. Whoever drives it gives one [`Input`], then takes every [`Output`] until there is none.
//! Orders (train this batch, take a snapshot, ...) come one at a time, and what the coordinator says while an order is out
//! waits until its answer, in order of arrival. So each message meets the rank at a batch boundary, in a state that the
//! picture above names.

mod checks;
mod cycle;
mod error;
mod message;
mod nccl;
mod round;
mod stock;
#[cfg(test)]
mod tests;
mod training;
mod window;

pub use error::{Failure, Lost, Violation};
pub use message::{
    Application, BatchOrder, Collective, Contribution, End, Found, Input, Membership, Output, ResultWhole,
    SnapshotTaken, Trained, WarmUp,
};

use core::time::Duration;
use flodl_elche::{Mode, Policy};
use flodl_wire::message::control::{RoundOutcome, WindowPlan};
use flodl_wire::message::join::{Ready, RunConfig, TensorSpec};
use flodl_wire::message::report::{Evaluation, Intent};
use flodl_wire::message::{Control, Report};
use flodl_wire::{Epoch, Incarnation, Rank, Round, Time, Version, WindowId, limits};
use round::{Flight, Ledger, OpenRound, Over};
use std::collections::VecDeque;
use window::{Figures, OpenWindow};

/// Messages that may wait while one order is out; more than a sane coordinator ever sends.
const BACKLOG_MAX: usize = 256;

/// Who a rank is and what it brings.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// Its rank.
    pub rank: Rank,
    /// Which of its lives this is.
    pub incarnation: Incarnation,
    /// What it says first.
    pub ready: Ready,
    /// The list behind the manifest digest in `ready`.
    pub manifest: Vec<TensorSpec>,
}

/// Which order is out. All states but the first two and the last are *busy*.
#[derive(Clone, Debug)]
enum State {
    Forming,
    /// None.
    Idle,
    /// A batch.
    Training(BatchOrder),
    /// The snapshot.
    Snapshotting(OpenRound),
    /// The contribution.
    Contributing(OpenRound),
    /// The application of a result.
    Applying(Version),
    /// What is done for all.
    OnDuty(Duty),
    /// The last digest.
    Ending(Box<End>),
    Ended,
}

impl State {
    fn busy(&self) -> bool {
        !matches!(self, State::Forming | State::Idle | State::Ended)
    }
}

/// What there is to do.
#[derive(Clone, Debug, Default)]
struct Work {
    window: Option<Box<OpenWindow>>,
    /// The window that begins at the next snapshot.
    next: Option<Box<WindowPlan>>,
    /// The round whose contribution is out.
    flight: Option<Flight>,
    /// That round's end, where its result waits for the end of the window.
    ended: Option<(Round, RoundOutcome)>,
    /// What was done since the last report, where no window is open.
    carry: Figures,
    duties: VecDeque<Duty>,
    /// The communicator that was ordered last.
    group: nccl::Group,
}

/// What one rank does for all, between two rounds: the replica is the consensus then.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Duty {
    Evaluate { schedule: u64 },
    Save { schedule: u64, version: Version },
}

impl Duty {
    const fn schedule(self) -> u64 {
        match self {
            Duty::Evaluate { schedule } | Duty::Save { schedule, .. } => schedule,
        }
    }
}

/// The newest order of each kind that was taken on: a coordinator numbers them upwards, and so does the one after it.
#[derive(Copy, Clone, Debug, Default)]
struct Taken {
    evaluation: Option<u64>,
    save: Option<u64>,
}

/// What waits for the answer to an order.
#[derive(Clone, Debug)]
enum Waiting {
    Control(Control),
    Lost(Lost),
}

/// When things happened that figures are counted from.
#[derive(Copy, Clone, Debug)]
struct Marks {
    /// The last sign of life from the relay.
    heard: Time,
    /// The end of the last batch (or the admission).
    last_batch_end: Time,
    /// The end of the last window (or the admission).
    window_end: Time,
}

/// The newest of what comes in order.
#[derive(Copy, Clone, Debug, Default)]
struct Newest {
    window: Option<WindowId>,
    /// That window's epoch.
    epoch: Epoch,
    round: Option<Round>,
    /// No more windows: the final consensus was announced.
    last: bool,
    /// How much later than asked for others may take their snapshots, as told last.
    late: Duration,
}

/// One rank's session.
#[derive(Clone, Debug)]
pub struct Session {
    me: Identity,
    patience: Duration,
    run: Option<RunConfig>,
    state: State,
    work: Work,
    ledger: Ledger,
    newest: Newest,
    marks: Marks,
    waiting: VecDeque<Waiting>,
    taken: Taken,
    /// What this rank's program has asked for since the last round's end.
    asked: Vec<Intent>,
    /// The learning rate of its next window grows from nothing.
    warm_up: bool,
    outputs: VecDeque<Output>,
}

impl Session {
    /// The session of a rank whose handshakes are done; its first output is `Ready`. `patience` is the one that the
    /// handshake announced.
    #[must_use]
    pub fn new(me: Identity, patience: Duration, now: Time) -> Session {
        let ready = Output::Report(Report::Ready(Box::new(me.ready.clone())));
        Session {
            me,
            patience,
            run: None,
            state: State::Forming,
            work: Work::default(),
            ledger: Ledger::default(),
            newest: Newest::default(),
            marks: Marks { heard: now, last_batch_end: now, window_end: now },
            waiting: VecDeque::new(),
            taken: Taken::default(),
            asked: Vec::new(),
            warm_up: false,
            outputs: VecDeque::from([ready]),
        }
    }

    /// Takes one input. All outputs are to be taken ([`poll`](Session::poll)) before the next.
    pub fn handle(&mut self, input: Input, now: Time) {
        if matches!(self.state, State::Ended) {
            return;
        }
        if let Err(failure) = self.take(input, now).and_then(|()| self.go_on(now)) {
            self.fail(failure);
        }
    }

    /// The next thing to do, if any.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to give [`Input::Tick`] unless something else comes first. `None` once the session has ended.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let silence = self.marks.heard.plus(self.patience);
        match (&self.state, &self.work.flight) {
            (State::Ended, _) => None,
            (_, Some(Flight::Receiving(_, last))) => Some(silence.min(last.plus(self.result_patience()))),
            _ => Some(silence),
        }
    }

    /// The run's settings, once this rank is admitted.
    #[must_use]
    pub fn run(&self) -> Option<&RunConfig> {
        self.run.as_ref()
    }

    /// Optimizer steps in this life: what a heartbeat tells. One is due every tenth of the patience after `Ready`, from
    /// where no training step can hold it up, so the session leaves it to its driver.
    #[must_use]
    pub fn steps_ever(&self) -> u64 {
        self.ledger.steps_ever
    }

    /// The consensus that the replica comes from; `None` until a first one is applied, and after one was missed.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.ledger.consensus
    }

    /// Whether ranks train on while their rounds are averaged.
    #[must_use]
    pub fn overlaps(&self) -> bool {
        let mode = self.run.as_ref().and_then(|run| run.mode.parse::<Mode>().ok());
        mode.is_some_and(|mode| mode.policy() == Policy::Async)
    }

    /// Whether nothing more will come out of this session.
    #[must_use]
    pub fn ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    fn report(&mut self, report: Report) {
        self.outputs.push_back(Output::Report(report));
    }

    fn take(&mut self, input: Input, now: Time) -> Result<(), Failure> {
        match input {
            Input::Heard => self.marks.heard = self.marks.heard.max(now),
            Input::Control(message) => {
                self.marks.heard = self.marks.heard.max(now);
                self.wait_in_line(Waiting::Control(message))?;
            }
            Input::Lost(lost) => self.wait_in_line(Waiting::Lost(lost))?,
            Input::Tick => self.tick(now)?,
            Input::Trained(done) => self.trained(&done, now),
            Input::SnapshotTaken(taken) => self.snapshot_taken(taken, now)?,
            Input::Contributed { round, took } => self.contributed(round, took, now),
            Input::ResultGrew { round, chunks } => self.result_grew(round, chunks, now),
            Input::ResultWhole(result) => self.result_whole(result),
            Input::Applied { digest } => self.applied(digest),
            Input::Evaluated { schedule, outcome } => self.evaluated(schedule, outcome),
            Input::Saved { schedule, outcome } => self.saved(schedule, outcome),
            Input::Asked(intent) => self.ask(intent),
            Input::Digested { digest } => self.digested(digest),
            Input::NcclIdMade { session, outcome } => {
                self.report(Report::NewNcclIdGenerated { session, outcome: outcome.map(Box::new) });
            }
            Input::NcclStands { session, standing } => self.nccl_stands(session, standing),
            Input::Collected { session, result } => self.collected(session, result),
            Input::Failed(failure) => return Err(failure),
        }
        Ok(())
    }

    fn wait_in_line(&mut self, message: Waiting) -> Result<(), Violation> {
        if self.waiting.len() >= BACKLOG_MAX {
            return Err(Violation::TooMany { limit: BACKLOG_MAX });
        }
        self.waiting.push_back(message);
        Ok(())
    }

    /// While no order is out: does its duties between two rounds, obeys what waits, then gives the next order there is.
    fn go_on(&mut self, now: Time) -> Result<(), Failure> {
        while !self.state.busy() && !self.ended() {
            // A window may wait already, and after its first batch the replica is not the consensus any more.
            if self.can_do_duties()
                && let Some(duty) = self.work.duties.pop_front()
            {
                self.begin(duty);
                continue;
            }
            if self.take_held_result()? {
                continue;
            }
            match self.waiting.pop_front() {
                Some(Waiting::Control(message)) => self.obey(message, now)?,
                Some(Waiting::Lost(lost)) => return Err(lost.into()),
                None if !self.next_order(now) => break,
                None => {}
            }
        }
        Ok(())
    }

    /// Whether there was anything to do of itself.
    fn next_order(&mut self, now: Time) -> bool {
        if !matches!(self.state, State::Idle) {
            return false;
        }
        let Some(window) = &mut self.work.window else { return false };
        match window.next_batch(now) {
            Some(order) => {
                self.outputs.push_back(Output::Train(order.clone()));
                self.state = State::Training(order);
                true
            }
            None if window.is_reported() => false,
            None => {
                self.close_window(now);
                true
            }
        }
    }

    fn obey(&mut self, message: Control, now: Time) -> Result<(), Failure> {
        match message {
            Control::Heartbeat | Control::ControllerLost | Control::ControllerBack => {}
            Control::Admit(_) => return Err(Violation::NotForRanks { message: "Admit" }.into()),
            Control::Restart { .. } => return Err(Violation::NotForRanks { message: "Restart" }.into()),
            Control::Commit(_) | Control::CommitPart { .. } => {
                return Err(Violation::NotForRanks { message: "Commit" }.into());
            }
            Control::Dismissed => return Err(Violation::NotForRanks { message: "Dismissed" }.into()),
            Control::SendConsensus { .. } => {
                return Err(Violation::NotForRanks { message: "SendConsensus" }.into());
            }
            Control::Admitted(run) => self.admitted(*run, now)?,
            Control::Refused { why } => return Err(Failure::Refused { why: why.text }),
            Control::SendManifest => self.send_manifest(),
            Control::Window(plan) => self.open_window(plan, now)?,
            Control::ExtendPartition { window, leases } => self.extend_window(window, &leases)?,
            Control::RequestParams { round, roster } => self.open_round((round, Over::Cpu), &roster, now)?,
            Control::PrepareSync { round, roster } => {
                self.open_round((round, Over::Nccl { issued: None }), &roster, now)?;
            }
            Control::RequestNewNcclId { session } => self.make_nccl_id(session)?,
            Control::NewNcclSession(new) => self.open_session(*new),
            Control::SyncNow { round, session, root } => self.sync_now((round, session), root)?,
            Control::RoundDone { round, outcome, next } => self.hear_round_done(round, outcome, next)?,
            Control::DeclareDead { rank, incarnation, why } => {
                if (rank, incarnation) == (self.me.rank, self.me.incarnation) {
                    return Err(Failure::DeclaredDead { why: why.text });
                }
                self.peer_died((rank, incarnation));
            }
            Control::Fenced { incarnation } => {
                if incarnation == self.me.incarnation {
                    return Err(Failure::Fenced { incarnation });
                }
            }
            Control::ExecuteEval { schedule } => self.take_on("ExecuteEval", Duty::Evaluate { schedule })?,
            Control::ExecuteCheckpoint { schedule, version } => {
                self.take_on("ExecuteCheckpoint", Duty::Save { schedule, version })?;
            }
            // Who waits to be let in hears of the run it is not in.
            Control::EpochAggregated(_) | Control::EvalBroadcast { .. } if matches!(self.state, State::Forming) => {}
            Control::EpochAggregated(metrics) => self.outputs.push_back(Output::EpochDone(metrics)),
            Control::EvalBroadcast { version, rank, evaluation } => {
                self.outputs.push_back(Output::Evaluation(Found { version, rank, evaluation }));
            }
            Control::Shutdown => self.end(End::Finished { version: self.ledger.consensus }, now),
            Control::ShutdownWithSave { why } => {
                self.end(End::Stopped { why: why.text, version: self.ledger.consensus }, now);
            }
        }
        Ok(())
    }

    fn unexpected(&self, message: &'static str) -> Violation {
        Violation::Unexpected { message, state: self.doing() }
    }

    /// For people: "this rank ...".
    fn doing(&self) -> &'static str {
        match &self.state {
            State::Forming => "was not admitted yet",
            State::Snapshotting(_) | State::Contributing(_) => "was contributing to a round",
            State::Applying(_) => "waited for a round's end",
            State::OnDuty(Duty::Evaluate { .. }) => "was evaluating",
            State::OnDuty(Duty::Save { .. }) => "was saving",
            State::Ending(_) | State::Ended => "was ending",
            State::Training(_) => "was training",
            State::Idle => match &self.work {
                Work { flight: Some(Flight::Receiving(..)), .. } => "was receiving a round's result",
                Work { flight: Some(Flight::Collecting(..)), .. } => "was averaging",
                Work { flight: Some(Flight::Prepared(_) | Flight::Answered(_)), .. } => "waited for a round's end",
                Work { window: Some(_), .. } => "was training",
                _ => "had nothing to do",
            },
        }
    }

    fn admitted_run(&self, message: &'static str) -> Result<&RunConfig, Violation> {
        self.run.as_ref().ok_or_else(|| self.unexpected(message))
    }

    fn tick(&mut self, now: Time) -> Result<(), Failure> {
        if now >= self.marks.heard.plus(self.patience) {
            return Err(Lost::Silent { patience: self.patience }.into());
        }
        let overdue =
            matches!(&self.work.flight, Some(Flight::Receiving(_, last)) if now >= last.plus(self.result_patience()));
        if overdue {
            self.acknowledge();
        }
        Ok(())
    }

    /// How long no byte of a result may come. After one patience the coordinator lets go whoever holds the round up, and the
    /// result comes: a rank that gave up at the same moment would miss it for somebody else's fault. Where ranks train on,
    /// others may be in a batch that takes longer than that.
    fn result_patience(&self) -> Duration {
        self.patience.saturating_mul(2).saturating_add(self.newest.late)
    }

    // Formation.

    fn admitted(&mut self, run: RunConfig, now: Time) -> Result<(), Violation> {
        if !matches!(self.state, State::Forming) {
            return Err(self.unexpected("Admitted"));
        }
        checks::settings(&run, &self.me.ready)?;
        self.run = Some(run);
        if self.overlaps() {
            self.newest.late = self.patience.saturating_mul(limits::LATE_UNKNOWN);
        }
        self.marks.last_batch_end = now;
        self.marks.window_end = now;
        self.state = State::Idle;
        Ok(())
    }

    fn send_manifest(&mut self) {
        let parts: Vec<Vec<TensorSpec>> =
            self.me.manifest.chunks(limits::MANIFEST_PART.max(1)).map(<[TensorSpec]>::to_vec).collect();
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        for (part, tensors) in (0..count).zip(parts) {
            self.report(Report::Manifest { part, parts: count, tensors });
        }
    }

    // What one rank does for all.

    fn take_on(&mut self, message: &'static str, duty: Duty) -> Result<(), Violation> {
        self.admitted_run(message)?;
        // After a lost link it may be told again, even of what it is at or has done: its answer is told again too.
        let taken = match duty {
            Duty::Evaluate { .. } => &mut self.taken.evaluation,
            Duty::Save { .. } => &mut self.taken.save,
        };
        if taken.is_some_and(|newest| newest >= duty.schedule()) {
            return Ok(());
        }
        if self.work.duties.len() >= BACKLOG_MAX {
            return Err(Violation::TooMany { limit: BACKLOG_MAX });
        }
        *taken = Some(duty.schedule());
        self.work.duties.push_back(duty);
        Ok(())
    }

    /// Once a round has begun the last result is being overwritten: duties come before it, or after it.
    fn can_do_duties(&self) -> bool {
        let Work { window, flight, .. } = &self.work;
        matches!(self.state, State::Idle) && flight.is_none() && (window.is_none() || self.overlaps())
    }

    fn begin(&mut self, duty: Duty) {
        let aside = self.overlaps() && !self.ledger.is_untouched() && self.ledger.consensus.is_some();
        self.outputs.push_back(match duty {
            Duty::Evaluate { schedule } => Output::Evaluate { schedule, aside },
            Duty::Save { schedule, version } => Output::Save { schedule, version, aside },
        });
        self.state = State::OnDuty(duty);
    }

    fn evaluated(&mut self, schedule: u64, outcome: Result<Evaluation, String>) {
        if matches!(self.state, State::OnDuty(Duty::Evaluate { .. })) {
            self.state = State::Idle;
            self.report(Report::EvalResult { schedule, outcome });
        }
    }

    fn saved(&mut self, schedule: u64, outcome: Result<(), String>) {
        if matches!(self.state, State::OnDuty(Duty::Save { .. })) {
            self.state = State::Idle;
            self.report(Report::CheckpointResult { schedule, outcome });
        }
    }

    /// Once is enough until the next round.
    fn ask(&mut self, intent: Intent) {
        if self.run.is_some() && !self.asked.contains(&intent) {
            self.asked.push(intent);
            self.report(Report::Intent(intent));
        }
    }

    // The end.

    fn end(&mut self, end: End, now: Time) {
        self.close_window(now);
        self.work.ended = None;
        // Whoever waits for the round's end never needs its result any more.
        if let Some(flight) = self.work.flight.take() {
            self.abort_collective(&flight);
            self.outputs.push_back(Output::Forget { round: flight.round().round });
        }
        self.drop_windows();
        self.state = State::Ending(Box::new(end));
        self.outputs.push_back(Output::Digest);
    }

    fn digested(&mut self, digest: u64) {
        if let State::Ending(end) = std::mem::replace(&mut self.state, State::Ended) {
            self.report(Report::Finished { version: self.ledger.consensus, replica_digest: digest });
            self.outputs.push_back(Output::End(*end));
        }
    }

    /// Ends at once. The coordinator hears why, unless it is the one that said so or is gone.
    fn fail(&mut self, failure: Failure) {
        use Failure::{CoordinatorLost, DeclaredDead, Fenced, Refused};
        if !matches!(failure, CoordinatorLost(_) | DeclaredDead { .. } | Fenced { .. } | Refused { .. }) {
            self.report(Report::Failed { error: failure.to_string() });
        }
        self.state = State::Ended;
        self.waiting.clear();
        self.outputs.push_back(Output::End(End::Failed(failure)));
    }
}

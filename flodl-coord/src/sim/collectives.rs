//! What a rank's library and device do in a round over NCCL: the production session of flodl-nccl, over a simulated library.
//!
//! The session decides when to copy, put back, form, issue and abort; what it wants of the library goes to the [`gathering`](super::gathering),
//! and comes back from there.

use super::model::Vectors;
use flodl_nccl::session::{Effect, Form, Generation, Input as Heard, Member, Moment, Patience, Report, Session, Why};
use flodl_nccl::{ErrorCode, Features, UniqueId, Version};
use flodl_wire::message::nccl::{NcclId, Standing};
use flodl_wire::{NcclSession, Round, Time};
use flodl_worker::session::{Collective, Input, Output, ResultWhole};
use flodl_worker::trainee::Fault;
use flodl_worker::worker::Collectives;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_64;

/// What a session wants of the library.
#[derive(Clone, Debug)]
pub(crate) enum Want {
    Id(Generation),
    Form {
        generation: Generation,
        size: u32,
    },
    Issue(Box<Issue>),
    /// End what goes on, by an abort or a revocation.
    End {
        generation: Generation,
        revokes: bool,
    },
}

/// One rank's part in a collective.
#[derive(Clone, Debug)]
pub(crate) struct Issue {
    pub(crate) generation: Generation,
    pub(crate) round: Round,
    pub(crate) root: Option<u32>,
    pub(crate) mass: f64,
    pub(crate) model: Vectors,
}

/// What comes of it.
#[derive(Clone, Debug)]
pub(crate) enum Came {
    Heard(Heard),
    Collected {
        generation: Generation,
        round: Round,
        bytes: Rc<Vec<u8>>,
    },
    /// A call never returns.
    Never,
}

/// Between a rank's process and the library.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) wants: VecDeque<Want>,
    pub(crate) came: VecDeque<Came>,
    /// The process ends itself with this status.
    pub(crate) exit: Option<u8>,
    /// A round that is issued again starts from what the one before left (a mutant).
    pub(crate) keeps_no_copy: bool,
}

/// A rank's library.
pub(crate) struct Library {
    session: Session,
    line: Rc<RefCell<Line>>,
    copy: Option<(Round, Vectors)>,
    plan: Option<Collective>,
    words: VecDeque<Input>,
    result: Option<ResultWhole>,
}

impl Library {
    pub(crate) fn new(
        own: Member,
        patience: core::time::Duration,
        version: Version,
        line: Rc<RefCell<Line>>,
    ) -> Library {
        let session = Session::new(own, Patience(patience), Features::of(version)).never_shrunk();
        Library { session, line, copy: None, plan: None, words: VecDeque::new(), result: None }
    }

    fn hear(&mut self, trainee: &mut Vectors, heard: Heard, now: Time) {
        self.session.handle(heard, Moment::at(now.since(Time::ZERO)));
        while let Some(effect) = self.session.poll_effect() {
            self.carry_out(trainee, effect);
        }
    }

    fn carry_out(&mut self, trainee: &mut Vectors, effect: Effect) {
        let mut line = self.line.borrow_mut();
        match effect {
            Effect::MakeId(generation) => line.wants.push_back(Want::Id(generation)),
            Effect::Form { generation, size, .. } => line.wants.push_back(Want::Form { generation, size }),
            Effect::Copy(round) => self.copy = Some((Round(round.0), trainee.clone())),
            Effect::Restore(_) if line.keeps_no_copy => {}
            Effect::Restore(_) => {
                if let Some((_, copy)) = &self.copy {
                    trainee.become_like(copy);
                }
            }
            Effect::Issue(round) => {
                let round = Round(round.0);
                if let Some(Collective { session, root, mass, .. }) = self.plan.filter(|plan| plan.round == round) {
                    let (generation, model) = (Generation(session.0), trainee.clone());
                    line.wants.push_back(Want::Issue(Box::new(Issue { generation, round, root, mass, model })));
                }
            }
            Effect::Release(_) => self.copy = None,
            Effect::Abort(generation, _) | Effect::Close(generation, _) => {
                line.wants.push_back(Want::End { generation, revokes: false });
            }
            Effect::Revoke(generation, _) => line.wants.push_back(Want::End { generation, revokes: true }),
            Effect::EndProcess(status) => line.exit = Some(status),
            Effect::Send(report) => {
                let word = word(report, self.plan, self.result);
                self.words.extend(word);
            }
        }
    }

    /// The result of a collective is in the replica.
    fn collected(&mut self, trainee: &mut Vectors, (round, bytes): (Round, &[u8]), now: Time) {
        let before = self.copy.as_ref().map(|(_, copy)| copy.clone());
        trainee.take_bytes(bytes);
        let norm = |model: &Vectors| model.weights.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt();
        let pre_norm = before.as_ref().map_or(0.0, norm);
        let result = ResultWhole { round, digest: xxh3_64(bytes), divergence: 0.0, pre_norm, post_norm: norm(trainee) };
        self.result = Some(result);
        self.hear(trainee, Heard::Collected(flodl_nccl::session::Round(round.0)), now);
    }
}

/// What the worker's session hears of what the library's says.
fn word(report: Report, plan: Option<Collective>, result: Option<ResultWhole>) -> Option<Input> {
    let stands =
        |Generation(session): Generation, standing| Input::NcclStands { session: NcclSession(session), standing };
    let why = |why: Why| format!("{why:?}");
    Some(match report {
        Report::Id(Generation(session), id) => {
            let outcome = id.map(|id| NcclId(*id.as_bytes())).ok_or_else(|| "the library makes none".to_owned());
            Input::NcclIdMade { session: NcclSession(session), outcome }
        }
        Report::Begun(generation) => stands(generation, Standing::Begun),
        Report::Formed(generation) => stands(generation, Standing::Ready),
        Report::NotFormed(generation, reason) => stands(generation, Standing::NotFormed { why: why(reason) }),
        Report::NotDone(generation, _, reason) | Report::Lost(generation, reason) => {
            stands(generation, Standing::Lost { why: why(reason) })
        }
        Report::Acked(_) => Input::Collected { session: plan?.session, result: result? },
        Report::Closed(_) => return None,
    })
}

impl Collectives<Vectors> for Library {
    fn prepare(&mut self, trainee: &mut Vectors, _: Round) -> Result<bool, Fault> {
        Ok(trainee.floats().all(f32::is_finite))
    }

    fn order(&mut self, trainee: &mut Vectors, order: &Output, now: Time) -> Result<(), Fault> {
        let heard = match order {
            Output::MakeNcclId { session } => Heard::RequestId(Generation(session.0)),
            Output::OpenSession(part) => Heard::NewSession {
                generation: Generation(part.session.0),
                form: Form::Fresh(UniqueId::from_bytes(part.id.0)),
                members: part.members.iter().map(|&life| crate::id::member(life)).collect(),
            },
            Output::Collective(plan) => {
                self.plan = Some(*plan);
                Heard::SyncNow(flodl_nccl::session::Round(plan.round.0))
            }
            Output::AbortCollective { .. } => Heard::Broken(ErrorCode::InvalidUsage),
            Output::PeerDied { rank, incarnation } => Heard::Dead(crate::id::member((*rank, *incarnation))),
            _ => return Err("that is no order for a library".into()),
        };
        self.hear(trainee, heard, now);
        Ok(())
    }

    fn poll(&mut self, trainee: &mut Vectors, now: Time) -> Result<Option<Input>, Fault> {
        loop {
            let came = self.line.borrow_mut().came.pop_front();
            match came {
                Some(Came::Heard(heard)) => self.hear(trainee, heard, now),
                Some(Came::Collected { generation, round, bytes }) => {
                    let is_awaited = |plan: Collective| (plan.session.0, plan.round) == (generation.0, round);
                    if self.plan.is_some_and(is_awaited) {
                        self.collected(trainee, (round, &bytes), now);
                    }
                }
                Some(Came::Never) => {}
                None if self.next_poll().is_some_and(|at| at <= now) => self.hear(trainee, Heard::Tick, now),
                None => return Ok(self.words.pop_front()),
            }
        }
    }

    fn next_poll(&self) -> Option<Time> {
        let until = self.session.next_deadline()?;
        Some(Time::ZERO.plus(until.since(Moment::default())))
    }

    fn keep(&mut self, trainee: &mut Vectors, round: Round) -> Result<u64, Fault> {
        let before = self.copy.as_ref().map(|(_, copy)| copy.floats().collect()).unwrap_or_default();
        self.hear(trainee, Heard::RoundDone(flodl_nccl::session::Round(round.0)), Time::ZERO);
        trainee.has_taken(before);
        Ok(xxh3_64(&trainee.bytes()))
    }

    fn put_back(&mut self, trainee: &mut Vectors, round: Round) -> Result<(), Fault> {
        self.plan = None;
        if let Some((_, copy)) = self.copy.as_ref().filter(|(copied, _)| *copied == round) {
            trainee.become_like(copy);
        }
        self.hear(trainee, Heard::RoundDone(flodl_nccl::session::Round(round.0)), Time::ZERO);
        Ok(())
    }
}

//! Orders and news of a worker in the words of flodl-nccl's session.

use super::thread::{Collected, News, Order};
use super::{NcclError, Part, Place};
use crate::session::Collective;
use core::time::Duration;
use flodl_nccl::average::{Average, Measured, Shape, Task};
use flodl_nccl::session::{
    Form, Generation, Input, Member, Moment, Outcome, Patience, Replica, Report, Round as SessionRound, Runner,
    Session, Tools, Watchdog,
};
use flodl_nccl::{CallError, CudaError, ErrorCode, Features, UniqueId, Version};
use flodl_wire::message::nccl::{NcclId, Standing};
use flodl_wire::{Incarnation, NcclSession, Rank, Round};
use std::collections::VecDeque;
use std::thread;
use std::time::Instant;

/// Between two looks at streams that are about to be idle.
const PAUSE: Duration = Duration::from_micros(100);

/// A replica's floats and integers.
type Numbers = (Vec<f32>, Vec<i64>);

/// A rank's session and average at work.
pub(super) struct Driver {
    runner: Runner<Average>,
    started: Instant,
    patience: Duration,
    collecting: Option<Collective>,
    news: VecDeque<Result<News, u8>>,
}

impl Driver {
    pub(super) fn new(place: Place, part: Part, watchdog: Watchdog) -> Result<Driver, NcclError> {
        let Place { library, device } = place;
        device.make_current()?;
        let number = |count: u64| usize::try_from(count).map_err(|_| NcclError::TooLarge);
        let sizes = part.sizes;
        let shape = Shape {
            parameters: number(sizes.parameters)?,
            buffers: number(sizes.buffers)?,
            integers: number(sizes.integers)?,
        };
        let average = Average::new(library.clone(), &device, shape, part.outer)?;
        // The coordinator has every communicator formed anew, so none is kept for one to be made of it.
        let session = Session::new(member((part.rank, part.incarnation)), Patience(part.patience), ABORTING);
        let tools = Tools { library, watchdog, limit: part.patience };
        let (runner, news) = (Runner::new(session, tools, average), VecDeque::new());
        Ok(Driver { runner, started: Instant::now(), patience: part.patience, collecting: None, news })
    }

    fn now(&self) -> Moment {
        Moment::at(self.started.elapsed())
    }

    /// Whether something goes on that ends by itself.
    pub(super) fn is_busy(&self) -> bool {
        self.runner.next_deadline().is_some()
    }

    /// Does what is wanted.
    pub(super) fn take(&mut self, order: Order) -> Result<(), NcclError> {
        let now = self.now();
        let input = match order {
            Order::MakeId(session) => Input::RequestId(generation(session)),
            Order::Open(new) => Input::NewSession {
                generation: generation(new.session),
                form: Form::Fresh(UniqueId::from_bytes(new.id.0)),
                members: new.members.into_iter().map(member).collect(),
            },
            Order::Load(floats, integers) => {
                self.wait_for_streams()?;
                return Ok(self.runner.replica().load(&floats, &integers)?);
            }
            Order::Collect(collective) => {
                let Collective { round, root, mass, .. } = collective;
                self.collecting = Some(collective);
                self.runner.replica().prepare(root.map_or(Task::of_mass(mass), Task::from_root));
                Input::SyncNow(SessionRound(round.0))
            }
            Order::Abort(session) => Input::Abandoned(generation(session)),
            Order::PeerDied(rank, incarnation) => Input::Dead(member((rank, incarnation))),
            Order::Settle { round, counts } => {
                self.runner.replica().settle(counts)?;
                Input::RoundDone(SessionRound(round.0))
            }
        };
        self.runner.handle(input, now);
        self.translate();
        Ok(())
    }

    /// Looks at the library, the device and the time.
    pub(super) fn look(&mut self) {
        let now = self.now();
        self.runner.poll(now);
        self.translate();
    }

    /// What there is to say; or the status that the process is to end with.
    pub(super) fn poll(&mut self) -> Option<Result<News, u8>> {
        self.news.pop_front()
    }

    /// Copies of a round before may still be made.
    fn wait_for_streams(&mut self) -> Result<(), NcclError> {
        let until = Instant::now() + self.patience;
        while !self.runner.replica().is_idle().map_err(of_device)? {
            if Instant::now() > until {
                return Err(of_device(CallError::Deadline { limit: self.patience }).into());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn translate(&mut self) {
        while let Some(outcome) = self.runner.poll_outcome() {
            let news = match outcome {
                Outcome::Send(report) => self.news_of(report).map(Ok),
                Outcome::EndProcess(status) => Some(Err(status)),
            };
            self.news.extend(news);
        }
    }

    fn news_of(&mut self, report: Report) -> Option<News> {
        let stands = |of: Generation, standing| Some(News::Stands(NcclSession(of.0), standing));
        match report {
            Report::Id(of, made) => {
                let outcome = match made {
                    Some(id) => Ok(NcclId(*id.as_bytes())),
                    None => Err("this rank's NCCL makes no id: it finds no network interface to listen on".to_owned()),
                };
                Some(News::IdMade(NcclSession(of.0), outcome))
            }
            Report::Begun(of) => stands(of, Standing::Begun),
            Report::Formed(of) => stands(of, Standing::Ready),
            Report::NotFormed(of, why) => stands(of, Standing::NotFormed { why: why.to_string() }),
            Report::NotDone(of, _, why) | Report::Lost(of, why) => stands(of, Standing::Lost { why: why.to_string() }),
            Report::Acked(round) => self.result(Round(round.0)),
            Report::Closed(_) => None,
        }
    }

    /// The result of a round whose collectives are done.
    fn result(&mut self, round: Round) -> Option<News> {
        let session = self.collecting.take().filter(|collective| collective.round == round)?.session;
        match self.read() {
            Ok((Measured { divergence, pre_norm, post_norm, .. }, (floats, integers))) => {
                let result = Collected { session, round, floats, integers, divergence, pre_norm, post_norm };
                Some(News::Collected(Box::new(result)))
            }
            Err(_) => {
                // What cannot be read is not done: the round is issued again on another communicator.
                let now = self.now();
                self.runner.handle(Input::Broken(ErrorCode::Cuda), now);
                None
            }
        }
    }

    fn read(&mut self) -> Result<(Measured, Numbers), NcclError> {
        let measured = self.runner.replica().measured()?;
        if !measured.state_agrees {
            note("the momentum of the outer optimizer was not the same on all ranks: it begins anew on all of them");
        }
        if !measured.is_finite && self.runner.replica().fall_back()? {
            note("the average was not finite: all ranks keep the consensus before it");
            self.wait_for_streams()?;
        }
        Ok((measured, self.runner.replica().read()?))
    }
}

/// What of a library a rank's session may use: no more than aborting.
const ABORTING: Features = Features::of(Version::new(2, 14, 3));

fn generation(session: NcclSession) -> Generation {
    Generation(session.0)
}

fn member((rank, incarnation): (Rank, Incarnation)) -> Member {
    Member { rank: rank.0, incarnation: incarnation.0 }
}

fn of_device(error: CallError) -> CudaError {
    CudaError::Failed { call: "cuStreamQuery", code: ErrorCode::Cuda.code(), name: error.to_string() }
}

/// A line for whoever watches this process.
#[expect(clippy::print_stderr, reason = "what is wrong with an average is said where people look")]
fn note(line: &str) {
    eprintln!("{line}");
}

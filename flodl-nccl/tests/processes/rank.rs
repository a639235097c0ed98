//! A rank as a process: a session, an average on its device, and lines to and from the coordinator.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use flodl_nccl::average::{Average, Outer, Shape, Task};
use flodl_nccl::session::{
    Form, Input, Member, Moment, Outcome, Patience, Replica, Report, Round, Runner, Session, Tools, Watchdog,
    end_process,
};
use flodl_nccl::{Candidate, Cuda, Device, Features, Library, Source, Version};

use super::PATIENCE;
use super::cluster::{GPU, RANK, STAND_IN};
use super::word::{Order, Said};

const SHAPE: Shape = Shape { parameters: 10_000, buffers: 4, integers: 3 };

/// The status of one that is told to die.
const DEAD: u8 = 9;

/// Whether this process is a rank is in its environment; where it is not, there is nothing to do.
#[test]
fn a_process() {
    if let Some(rank) = std::env::var(RANK).ok().and_then(|rank| rank.parse().ok()) {
        live(rank);
    }
}

fn place() -> (Library, Device) {
    let number = |name| std::env::var(name).ok().and_then(|gpu| gpu.parse::<usize>().ok()).unwrap_or(0);
    let (library, cuda) = match std::env::var(STAND_IN) {
        Ok(path) => {
            let candidate = Candidate { path: path.clone(), source: Source::Named };
            (Library::open(&candidate).expect("the stand-in is an NCCL"), Cuda::open(&path).expect("and a driver"))
        }
        Err(_) => (Library::find().expect("there is an NCCL"), Cuda::load().expect("and a driver")),
    };
    (library, cuda.devices().expect("it has devices")[number(GPU)].clone())
}

struct Rank {
    own: Member,
    runner: Runner<Average>,
    started: Instant,
    mass: u32,
}

fn live(rank: u32) {
    let (library, device) = place();
    device.make_current().expect("a device");
    let mut average = Average::new(library.clone(), &device, SHAPE, Outer::Average).expect("there is room");
    let floats = vec![rank as f32 + 10.0; SHAPE.floats()];
    average.load(&floats, &[i64::from(rank); SHAPE.integers]).expect("it fits");
    let own = Member { rank, incarnation: 0 };
    let session = Session::new(own, Patience(PATIENCE), Features::of(Version::new(2, 14, 3)));
    let watchdog = Watchdog::start(|status| end_process(status)).expect("a thread");
    let runner = Runner::new(session, Tools { library, watchdog, limit: PATIENCE }, average);
    let rank = Rank { own, runner, started: Instant::now(), mass: 0 };
    rank.work(&lines());
}

/// The coordinator's lines; the channel ends with its pipe.
fn lines() -> Receiver<Order> {
    let (said, orders) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if Order::of(&line).is_some_and(|order| said.send(order).is_err()) {
                return;
            }
        }
    });
    orders
}

fn say(said: &Said) {
    let mut out = std::io::stdout();
    writeln!(out, "\n{}", said.line()).and_then(|()| out.flush()).expect("the coordinator listens");
}

impl Rank {
    fn work(mut self, orders: &Receiver<Order>) {
        loop {
            let now = Moment::at(self.started.elapsed());
            match orders.recv_timeout(Duration::from_micros(500)) {
                Ok(Order::End) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(order) => self.obey(order, now),
                Err(RecvTimeoutError::Timeout) => self.runner.poll(now),
            }
            while let Some(outcome) = self.runner.poll_outcome() {
                match outcome {
                    Outcome::Send(report) => self.report(report),
                    Outcome::EndProcess(status) => end_process(status),
                }
            }
        }
    }

    fn obey(&mut self, order: Order, now: Moment) {
        let input = match order {
            Order::Id(of) => Input::RequestId(of),
            Order::Form(generation, id, members) => Input::NewSession { generation, form: Form::Fresh(id), members },
            Order::Train(batches) => return self.train(batches),
            Order::Sync(round, root) => {
                let task = root.map_or(Task::of_mass(f64::from(self.mass)), Task::from_root);
                self.runner.replica().prepare(task);
                Input::SyncNow(Round(round))
            }
            Order::Done(round) => {
                self.runner.replica().settle(true).expect("the device keeps it");
                self.drain();
                Input::RoundDone(Round(round))
            }
            Order::Dead(who) => Input::Dead(who),
            Order::Close(of) => Input::EndSession(of),
            Order::Die => end_process(DEAD),
            Order::End => return,
        };
        self.runner.handle(input, now);
    }

    fn drain(&mut self) {
        let started = Instant::now();
        while !self.runner.replica().is_idle().expect("it can be asked") {
            assert!(started.elapsed() < PATIENCE, "the streams are not idle");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Each batch moves every parameter by a quarter of the rank's own number.
    fn train(&mut self, batches: u32) {
        self.drain();
        let replica = self.runner.replica();
        let (floats, integers) = replica.read().expect("it can be read");
        let by = 0.25 * (self.own.rank + 1) as f32 * batches as f32;
        let moved: Vec<f32> = floats.iter().map(|value| value + by).collect();
        replica.load(&moved, &integers).expect("it fits");
        self.mass = batches;
    }

    fn report(&mut self, report: Report) {
        say(&match report {
            Report::Id(of, id) => Said::Id(of, id),
            Report::Begun(of) => Said::Begun(of),
            Report::Formed(of) => Said::Formed(of),
            Report::NotFormed(of, why) | Report::NotDone(of, _, why) | Report::Lost(of, why) => {
                Said::Lost(of, why.to_string())
            }
            Report::Acked(round) => {
                let measured = self.runner.replica().measured().expect("it can be read");
                assert!(measured.is_finite);
                let (floats, _) = self.runner.replica().read().expect("it can be read");
                Said::Acked(round.0, measured.digest, floats[0])
            }
            Report::Closed(of) => Said::Closed(of),
        });
    }
}

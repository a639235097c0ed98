//! The relay's task: owns the core, gives it what comes, and does what it wants.

use super::clock::Clock;
use super::doors::{Arrival, Doors};
use super::folding::{self, Command};
use super::shared::HostMemory;
use super::socket::Socket;
use super::uplink::{self, Redialled, Uplink};
use super::wires::Wires;
use super::{DataLink, Redial, RelayConfig, RunError, Upstream};
use crate::agent::{self, Agent, Launch};
use crate::coding::chosen;
use crate::fold::Order;
use crate::limits;
use crate::relay::{Answer, Input, Newest, Output, Place, Relay, RelayError};
use crate::routes::{Connection, Peer, Routes};
use async_channel::{Receiver, Sender};
use async_io::Timer;
use core::time::Duration;
use flodl_cpureduce::Rooms;
use flodl_wire::handshake::Channel;
use flodl_wire::message::Data;
use flodl_wire::secret::RankKeys;
use flodl_wire::{Incarnation, Rank, SessionId};
use futures_lite::future;
use futures_lite::io::{AsyncRead, AsyncWrite};
use smol::Executor;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// What the relay's task waits for.
enum Event<S> {
    Input(Input),
    /// What came of dialling again.
    Redialled(Box<Redialled<S>>),
    Arrival(Box<Arrival>),
    Tick,
}

/// The relay's task.
struct Driver<S> {
    relay: Relay,
    uplink: Uplink,
    redial: Option<Redial<S>>,
    newest: Newest,
    /// What this host's ranks may share with this relay.
    memory: Option<HostMemory>,
    clock: Clock,
    executor: Arc<Executor<'static>>,
    agent: Agent,
    config: RelayConfig,
    socket_path: PathBuf,
    doors: Arc<Doors>,
    wires: BTreeMap<Connection, Wires>,
    /// Data connections that were faster than their ranks' control connections: at most one a rank.
    early: BTreeMap<Rank, Arrival>,
    connections: u64,
    pipes: Pipes<S>,
    end: Option<Result<(), RelayError>>,
}

/// Where what the core wants to be said goes, and where others say what the core is to be told.
struct Pipes<S> {
    inputs: Sender<Input>,
    fold: Sender<Command>,
    /// What the fold adds up, for whatever link there is.
    sums: Receiver<Data>,
    /// What the relay itself sends the same way.
    offered: Sender<Data>,
    redialled: Sender<Redialled<S>>,
}

pub(super) async fn run<S>(
    config: RelayConfig,
    upstream: Upstream<S>,
    redial: Option<Redial<S>>,
) -> Result<(), RunError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Tasks end with the executor, so nothing of this relay outlives this future.
    let executor = Arc::new(Executor::new());
    executor.run(serve((config, redial), upstream, Arc::clone(&executor))).await
}

async fn serve<S>(
    (config, redial): (RelayConfig, Option<Redial<S>>),
    upstream: Upstream<S>,
    executor: Arc<Executor<'static>>,
) -> Result<(), RunError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (patience, generation) = (upstream.control.patience, upstream.control.generation);
    let socket = Socket::bind(&config.agent.run_dir, config.host);
    let socket = socket.map_err(|(path, error)| RunError::Socket { path, error })?;
    let (inputs, incoming) = async_channel::bounded(limits::EVENTS);
    let (arrived, arrivals) = async_channel::bounded(1);
    let (processes, process_events) = async_channel::bounded(limits::AGENT_EVENTS);
    let agent = Agent::start(config.agent.clone(), processes)?;

    let (mut sums_up, sums) = async_channel::bounded(limits::CHUNKS);
    let mut rooms = Rooms::default();
    if let DataLink::Relay(local) = &upstream.data {
        (sums_up, rooms) = (local.up.clone(), local.rooms.clone());
    }
    let (fold_says, fold_said) = async_channel::bounded(limits::EVENTS);
    let offered = sums_up.clone();
    let memory = share(&config);
    let lanes = memory.as_ref().map(|memory| (memory.bell(), rooms));
    let fold = folding::start(patience, sums_up, fold_says, lanes).map_err(RunError::Thread)?;
    let (redialled, redials) = async_channel::bounded(1);
    let (session, codec) = (upstream.control.session, chosen(upstream.control.capabilities));
    let uplink = Uplink::start(&executor, upstream, sums.clone());
    executor.spawn(pump(fold_said, inputs.clone(), Input::Fold)).detach();
    executor.spawn(pump(process_events, inputs.clone(), process_input)).detach();

    if let Some(leave) = config.leave.clone() {
        executor.spawn(pump(leave, inputs.clone(), |()| Input::Leave)).detach();
    }

    let doors = Arc::new(doors_of(&config, patience, generation));
    let keep = Arc::clone(&doors).keep(socket.listener.clone(), Arc::downgrade(&executor), arrived);
    let door_task = executor.spawn(keep);

    let clock = Clock::start();
    let mut driver = Driver {
        relay: Relay::new(patience, clock.time())
            .of_session(session)
            .restarting(config.restarts)
            .resuming(redial.is_some()),
        uplink,
        redial,
        memory,
        clock,
        executor,
        agent,
        socket_path: socket.path.clone(),
        config,
        doors,
        wires: BTreeMap::new(),
        early: BTreeMap::new(),
        connections: 0,
        newest: Newest::new(generation),
        pipes: Pipes { inputs, fold, sums, offered, redialled },
        end: None,
    };
    driver.feed(Input::Wire(codec));
    let end = driver.drive(&incoming, (&arrivals, &redials)).await;

    drop(door_task);
    // Killing and waiting blocks: not on the executor's thread.
    let Driver { agent, uplink, .. } = driver;
    smol::unblock(move || drop(agent)).await;
    uplink.finish().await;
    end.map_err(RunError::Ended)
}

/// What ranks and relay share; nothing where that is not wanted, or the system does not give it.
fn share(config: &RelayConfig) -> Option<HostMemory> {
    if !config.shares_memory {
        return None;
    }
    let memory = HostMemory::create();
    let refused = |error| (config.agent.sink)(&format!("relay {}: {error}", config.host.name()));
    memory.map_err(refused).ok()
}

fn doors_of(config: &RelayConfig, patience: Duration, generation: u64) -> Doors {
    Doors {
        run_id: config.run_id,
        host: config.host,
        host_key: config.host_key.clone(),
        gate_key: config.gate_key.clone(),
        patience,
        generation,
        routes: Mutex::new(Routes::default()),
        sessions: AtomicU64::new(0),
        sink: Arc::clone(&config.agent.sink),
    }
}

impl<S> Driver<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    async fn drive(
        &mut self,
        incoming: &Receiver<Input>,
        others: (&Receiver<Arrival>, &Receiver<Redialled<S>>),
    ) -> Result<(), RelayError> {
        loop {
            if let Some(end) = self.end.take() {
                return end;
            }
            match self.next(incoming, others).await {
                Event::Input(input) => self.feed(input),
                Event::Redialled(outcome) => self.redialled(*outcome),
                Event::Arrival(arrival) => self.arrive(*arrival),
                Event::Tick => self.feed(Input::Tick),
            }
        }
    }

    async fn next(
        &self,
        incoming: &Receiver<Input>,
        (arrivals, redials): (&Receiver<Arrival>, &Receiver<Redialled<S>>),
    ) -> Event<S> {
        let input = async {
            match incoming.recv().await {
                Ok(input) => Event::Input(input),
                Err(_) => future::pending().await,
            }
        };
        let arrival = async {
            match arrivals.recv().await {
                Ok(arrival) => Event::Arrival(Box::new(arrival)),
                Err(_) => future::pending().await,
            }
        };
        let redialled = async {
            match redials.recv().await {
                Ok(outcome) => Event::Redialled(Box::new(outcome)),
                Err(_) => future::pending().await,
            }
        };
        let heard = async { Event::Input(self.uplink.next().await) };
        let tick = async {
            match self.relay.next_deadline() {
                Some(time) => Timer::at(self.clock.instant(time)).await,
                None => future::pending().await,
            };
            Event::Tick
        };
        // The deadline first, so that nobody can hold it up by talking; then a fair choice.
        future::or(future::or(tick, redialled), future::race(heard, future::race(input, arrival))).await
    }

    /// Gives the core an input and what follows from it, and lets the doors know who may come in now.
    fn feed(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            if let Input::Closed { connection, .. } = &input {
                self.close(*connection);
            }
            self.relay.handle(input, self.clock.time());
            while let Some(output) = self.relay.poll() {
                inputs.extend(self.act(output));
            }
        }
        let mut routes = self.doors.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if *routes != *self.relay.routes() {
            routes.clone_from(self.relay.routes());
            self.early.retain(|&rank, _| routes.expects(rank));
        }
    }

    /// Does what the core wants; what comes of it at once is given back to the core.
    fn act(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Up(frame) => {
                let why = "it does not take what it is sent".to_owned();
                return (!self.uplink.send(frame)).then_some(Input::UpstreamLost { why });
            }
            Output::Fold(order) => {
                self.prepare(&order);
                let why = "the folding thread does not take its orders".to_owned();
                let sent = self.pipes.fold.try_send(Command::Order(order));
                return sent.is_err().then_some(Input::UpstreamLost { why });
            }
            Output::ToRank { connection, frame } => {
                let wires = self.wires.get(&connection)?;
                let why = "it does not take what it is sent".to_owned();
                return (!wires.send(frame)).then_some(Input::Closed { connection, why });
            }
            Output::Result { connection, chunk } => {
                let wires = self.wires.get(&connection)?;
                let on_board = wires.bell().filter(|_| self.memory.as_mut().is_some_and(|memory| memory.put(&chunk)));
                match on_board {
                    Some(bell) => bell.ring(),
                    None => wires.result(chunk),
                }
            }
            Output::Offer(chunks) => {
                self.executor.spawn(uplink::offer(chunks, self.pipes.offered.clone())).detach();
            }
            Output::Start { rank, incarnation, place } => {
                let launch = self.launch_of(rank, incarnation, place);
                self.agent.launch(launch);
            }
            Output::Kill { rank, incarnation } => self.agent.kill(rank, incarnation),
            Output::Close { connection, .. } => self.close(connection),
            Output::Redial { session } => return self.redial(session),
            Output::Warn(warning) => self.say(&warning.to_string()),
            Output::End(end) => self.end = Some(end),
        }
        None
    }

    /// Results need room before the first round; every order of one is preceded by the layout.
    fn prepare(&mut self, order: &Order) {
        if let (Order::Layout(sizes), Some(memory)) = (order, &mut self.memory)
            && let Err(error) = memory.lay_out(*sizes)
        {
            self.say(&error.to_string());
        }
    }

    /// A lane for a life that is about to be started, where one can be had; the fold knows of it first.
    fn lane(&mut self, rank: Rank, incarnation: Incarnation) -> Option<[OwnedFd; 3]> {
        match self.memory.as_mut()?.lane(rank, incarnation) {
            Ok((files, lane)) => {
                let told = self.pipes.fold.try_send(Command::Lane { rank, incarnation, lane });
                told.is_ok().then_some(files)
            }
            Err(error) => {
                self.say(&error.to_string());
                None
            }
        }
    }

    /// A line for people.
    fn say(&self, text: &str) {
        (self.config.agent.sink)(&format!("relay {}: {text}", self.config.host.name()));
    }

    /// Lets go of a broken link and dials again.
    fn redial(&mut self, session: SessionId) -> Option<Input> {
        self.uplink = Uplink::none(&self.executor, self.pipes.sums.clone());
        let Some(redial) = self.redial.clone() else {
            return Some(Input::NotResumed { why: "it cannot be dialled again".to_owned() });
        };
        self.say("the controller is out of reach: this host's ranks go on, and it is looked for");
        self.executor.spawn(uplink::redial(redial, session, self.pipes.redialled.clone())).detach();
        None
    }

    fn redialled(&mut self, (session, outcome): Redialled<S>) {
        let answer = outcome.as_ref().ok().map(|upstream| self.newest.answers(upstream.control.generation));
        let input = match outcome {
            Ok(upstream) if answer == Some(Answer::Outlived) => {
                self.say("a controller answers whose place another one has taken: it is not listened to");
                let Some(redial) = self.redial.clone() else { return };
                let to = self.pipes.redialled.clone();
                drop(upstream);
                self.executor.spawn(uplink::redial_later(redial, session, to)).detach();
                return;
            }
            Ok(upstream) => {
                let (session, codec) = (upstream.control.session, chosen(upstream.control.capabilities));
                self.uplink = Uplink::start(&self.executor, upstream, self.pipes.sums.clone());
                self.say("the controller is there again");
                self.feed(Input::Wire(codec));
                Input::Resumed { session, anew: answer == Some(Answer::Anew) }
            }
            Err(why) => Input::NotResumed { why },
        };
        self.feed(input);
    }

    fn arrive(&mut self, arrival: Arrival) {
        let Peer { rank, channel, .. } = arrival.peer;
        if channel == Channel::Data && self.relay.routes().control(rank).is_none() {
            self.early.insert(rank, arrival);
            return;
        }
        self.connect(arrival);
        if let Some(data) = self.early.remove(&rank) {
            self.connect(data);
        }
    }

    fn connect(&mut self, arrival: Arrival) {
        self.connections += 1;
        let (connection, peer) = (Connection(self.connections), arrival.peer);
        // A rank says that it uses its lane before it connects.
        let bell = self.memory.as_ref().and_then(|memory| memory.bell_of(peer.rank, peer.incarnation));
        let (wires, data) = Wires::start(&self.executor, connection, arrival, self.pipes.inputs.clone());
        let wires = wires.with_bell(bell);
        self.wires.insert(connection, wires);
        self.feed(Input::Connected { connection, peer });
        if let (Some(data), true) = (data, self.relay.routes().owner(connection).is_some()) {
            let source = Command::Source { rank: peer.rank, incarnation: peer.incarnation, data };
            if self.pipes.fold.try_send(source).is_err() {
                self.feed(Input::UpstreamLost { why: "the folding thread does not take its orders".to_owned() });
            }
        }
    }

    fn close(&mut self, connection: Connection) {
        if let Some(wires) = self.wires.remove(&connection) {
            wires.close(&self.executor);
        }
    }

    fn launch_of(&mut self, rank: Rank, incarnation: Incarnation, place: Place) -> Launch {
        let shared = self.lane(rank, incarnation);
        let RelayConfig { host, run_id, host_key, gate_key, agent, .. } = &self.config;
        let number = |number: u32| OsString::from(number.to_string());
        let env = vec![
            ("FLODL_RANK", number(rank.0)),
            ("FLODL_LOCAL_RANK", number(place.local_rank)),
            ("FLODL_LOCAL_WORLD_SIZE", number(place.local_world_size)),
            ("FLODL_WORLD_SIZE", number(place.world_size)),
            ("FLODL_INCARNATION", number(incarnation.0)),
            ("FLODL_HOST_ID", host.name().into()),
            ("FLODL_RUN_ID", run_id.to_string().into()),
            ("FLODL_RUN_DIR", agent.run_dir.clone().into()),
            ("FLODL_SOCKET", self.socket_path.clone().into()),
        ];
        let keys = RankKeys { rank_key: host_key.rank_key(rank, incarnation), gate_key: gate_key.clone() };
        Launch { rank, incarnation, env, keys, shared }
    }
}

fn process_input(event: agent::Event) -> Input {
    match event {
        agent::Event::Started { rank, incarnation, pid } => Input::Started { rank, incarnation, pid },
        agent::Event::NotStarted { rank, incarnation, error } => Input::NotStarted { rank, incarnation, error },
        agent::Event::Exited { rank, incarnation, status, last_lines } => {
            Input::Exited { rank, incarnation, status, last_lines }
        }
    }
}

/// Passes on what comes, as inputs, until either side has ended.
async fn pump<T>(from: Receiver<T>, inputs: Sender<Input>, input: impl Fn(T) -> Input) {
    while let Ok(event) = from.recv().await {
        if inputs.send(input(event)).await.is_err() {
            return;
        }
    }
}

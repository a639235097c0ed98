//! The relay's task: owns the core, gives it what comes, and does what it wants.

use super::clock::{Clock, within};
use super::doors::{Arrival, Doors};
use super::folding::{self, Command};
use super::link::{DataReader, DataWriter};
use super::socket::Socket;
use super::wires::{Wires, write_control};
use super::{RelayConfig, RunError, Upstream};
use crate::agent::{self, Agent, Launch};
use crate::limits;
use crate::relay::{Input, Output, Place, Relay, RelayError};
use crate::routes::{Connection, Peer, Routes};
use async_channel::{Receiver, Sender};
use async_io::Timer;
use core::time::Duration;
use flodl_wire::frame::Frame;
use flodl_wire::handshake::Channel;
use flodl_wire::io::FrameReader;
use flodl_wire::message::Data;
use flodl_wire::secret::RankKeys;
use flodl_wire::{Incarnation, Rank};
use futures_lite::future;
use futures_lite::io::{AsyncRead, AsyncWrite, ReadHalf};
use smol::Executor;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// What the relay's task waits for.
enum Event {
    Input(Input),
    Arrival(Box<Arrival>),
    Tick,
}

/// The relay's task.
struct Driver {
    relay: Relay,
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
    pipes: Pipes,
    end: Option<Result<(), RelayError>>,
}

/// Where what the core wants to be said goes, and where others say what the core is to be told.
struct Pipes {
    inputs: Sender<Input>,
    up: Sender<Frame>,
    fold: Sender<Command>,
}

pub(super) async fn run<S>(config: RelayConfig, upstream: Upstream<S>) -> Result<(), RunError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Tasks end with the executor, so nothing of this relay outlives this future.
    let executor = Arc::new(Executor::new());
    executor.run(serve(config, upstream, Arc::clone(&executor))).await
}

async fn serve<S>(config: RelayConfig, upstream: Upstream<S>, executor: Arc<Executor<'static>>) -> Result<(), RunError>
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

    let (reader, writer) = upstream.control.split();
    let (up, frames) = async_channel::bounded(limits::CONTROL_FRAMES);
    executor.spawn(read_upstream(reader, inputs.clone())).detach();
    let farewell = executor.spawn(write_control(writer, frames));

    let (data_reader, data_writer) = upstream.data.split();
    let (sums_up, sums) = async_channel::bounded(limits::CHUNKS);
    let (fold_says, fold_said) = async_channel::bounded(limits::EVENTS);
    let fold = folding::start(patience, sums_up, fold_says).map_err(RunError::Thread)?;
    executor.spawn(read_results(data_reader, inputs.clone())).detach();
    executor.spawn(pump(fold_said, inputs.clone(), Input::Fold)).detach();
    executor.spawn(pump(process_events, inputs.clone(), process_input)).detach();
    executor.spawn(send_sums(data_writer, sums, inputs.clone())).detach();

    if let Some(leave) = config.leave.clone() {
        executor.spawn(pump(leave, inputs.clone(), |()| Input::Leave)).detach();
    }

    let doors = Arc::new(doors_of(&config, patience, generation));
    let keep = Arc::clone(&doors).keep(socket.listener.clone(), Arc::downgrade(&executor), arrived);
    let door_task = executor.spawn(keep);

    let clock = Clock::start();
    let mut driver = Driver {
        relay: Relay::new(patience, clock.time()).restarting(config.restarts),
        clock,
        executor,
        agent,
        socket_path: socket.path.clone(),
        config,
        doors,
        wires: BTreeMap::new(),
        early: BTreeMap::new(),
        connections: 0,
        pipes: Pipes { inputs, up, fold },
        end: None,
    };
    let end = driver.drive(&incoming, &arrivals).await;

    drop(door_task);
    // Killing and waiting blocks: not on the executor's thread.
    let Driver { agent, pipes, .. } = driver;
    smol::unblock(move || drop(agent)).await;
    drop(pipes);
    // The controller may be gone; then nobody misses the last words.
    match within(limits::FAREWELL, farewell).await {
        Some(Ok(())) | Some(Err(_)) | None => {}
    }
    end.map_err(RunError::Ended)
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

impl Driver {
    async fn drive(&mut self, incoming: &Receiver<Input>, arrivals: &Receiver<Arrival>) -> Result<(), RelayError> {
        loop {
            if let Some(end) = self.end.take() {
                return end;
            }
            match self.next(incoming, arrivals).await {
                Event::Input(input) => self.feed(input),
                Event::Arrival(arrival) => self.arrive(*arrival),
                Event::Tick => self.feed(Input::Tick),
            }
        }
    }

    async fn next(&self, incoming: &Receiver<Input>, arrivals: &Receiver<Arrival>) -> Event {
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
        let tick = async {
            match self.relay.next_deadline() {
                Some(time) => Timer::at(self.clock.instant(time)).await,
                None => future::pending().await,
            };
            Event::Tick
        };
        // The deadline first, so that nobody can hold it up by talking; then a fair choice.
        future::or(tick, future::race(input, arrival)).await
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
                return self.pipes.up.try_send(frame).is_err().then_some(Input::UpstreamLost { why });
            }
            Output::Fold(order) => {
                let why = "the folding thread does not take its orders".to_owned();
                let sent = self.pipes.fold.try_send(Command::Order(order));
                return sent.is_err().then_some(Input::UpstreamLost { why });
            }
            Output::ToRank { connection, frame } => {
                let wires = self.wires.get(&connection)?;
                let why = "it does not take what it is sent".to_owned();
                return (!wires.send(frame)).then_some(Input::Closed { connection, why });
            }
            Output::Result { connection, chunk } => self.wires.get(&connection)?.result(chunk),
            Output::Start { rank, incarnation, place } => {
                self.agent.launch(self.launch_of(rank, incarnation, place));
            }
            Output::Kill { rank, incarnation } => self.agent.kill(rank, incarnation),
            Output::Close { connection, .. } => self.close(connection),
            Output::Warn(warning) => (self.config.agent.sink)(&format!("relay {}: {warning}", self.config.host.name())),
            Output::End(end) => self.end = Some(end),
        }
        None
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
        let (wires, data) = Wires::start(&self.executor, connection, arrival, self.pipes.inputs.clone());
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

    fn launch_of(&self, rank: Rank, incarnation: Incarnation, place: Place) -> Launch {
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
        Launch { rank, incarnation, env, keys }
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

/// The relay's task may have ended before it hears of this.
async fn lost(inputs: &Sender<Input>, why: String) {
    match inputs.send(Input::UpstreamLost { why }).await {
        Ok(()) | Err(_) => {}
    }
}

async fn read_upstream<S: AsyncRead + Unpin>(mut reader: FrameReader<ReadHalf<S>>, inputs: Sender<Input>) {
    let why = loop {
        match reader.next().await {
            Ok(Some(frame)) => {
                if inputs.send(Input::Upstream(frame)).await.is_err() {
                    return;
                }
            }
            Ok(None) => break "it closed the connection without saying that the run is over".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    lost(&inputs, why).await;
}

async fn send_sums<S>(writer: DataWriter<S>, sums: Receiver<Data>, inputs: Sender<Input>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(why) = writer.send_up(sums).await {
        lost(&inputs, format!("data cannot be sent to the root: {why}")).await;
    }
}

async fn read_results<S: AsyncRead + AsyncWrite + Unpin>(mut reader: DataReader<S>, inputs: Sender<Input>) {
    let why = loop {
        match reader.next().await {
            Ok(data) => {
                if inputs.send(Input::Result(data)).await.is_err() {
                    return;
                }
            }
            Err(why) => break format!("the root's results ended: {why}"),
        }
    };
    lost(&inputs, why).await;
}

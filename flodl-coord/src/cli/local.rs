//! The relay inside `flodl run`: joined by a pipe in memory, with the handshake and the frames that every relay has.

use super::args::{ProgramArgs, RankOutput};
use super::console::Console;
use super::controller::Setup;
use super::failure::Failure;
use super::root::Root;
use crate::shell::{Acceptor, settle};
use async_channel::{Receiver, Sender};
use core::time::Duration;
use flodl_relay::agent::{AgentConfig, Program};
use flodl_relay::relay::RelayError;
use flodl_relay::shell::{RelayConfig, RunError, Upstream, local_data_link, run};
use flodl_wire::io::{Duplex, connect, duplex};
use flodl_wire::secret::{DialKeys, HostKey};
use flodl_wire::{Capabilities, Channel, Hello, HostId, Role, SessionId};
use smol::future;
use std::path::Path;
use std::sync::Arc;
use std::{env, thread};

/// The name of the host that a controller's own relay stands for.
const NAME: &str = "local";
/// Bytes that each direction of the pipe holds.
const PIPE: usize = 64 * 1024;
/// From the order to kill the ranks to the end of the relay's thread.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// What a relay's agent needs: the program of its ranks, this very program as their guard, a folder for logs.
pub(crate) fn agent(program_args: &ProgramArgs, run_dir: &Path, console: &Console) -> Result<AgentConfig, Failure> {
    let own = env::current_exe()
        .map_err(|error| Failure::failed(format!("the path of this program cannot be found out: {error}")))?;
    let (path, args) = match program_args.program.split_first() {
        Some((path, args)) => (path.clone(), args),
        None => return Err(Failure::usage("give the training program after --")),
    };
    let (program, guard) = (Program::new(path, args), Program::new(own, ["guard"]));
    let is_shown = program_args.rank_output == RankOutput::Prefixed && !console.look().quiet;
    let shown = is_shown.then(|| console.rank_sink());
    Ok(AgentConfig { program, guard, run_dir: run_dir.to_owned(), sink: console.sink(), shown })
}

/// A relay that is about to join its own controller.
pub(crate) struct Host {
    config: RelayConfig,
    ranks: u32,
}

impl Host {
    /// The relay of `ranks` ranks that all run `program`, each started again so many times.
    pub(crate) fn new(program: &ProgramArgs, (ranks, restarts): (u32, u32), setup: &Setup) -> Result<Host, Failure> {
        let run_id = setup.config.run_id;
        let host = HostId::from_name(NAME).ok_or_else(|| Failure::failed("the host has no name"))?;
        let host_key: HostKey = setup.secret.host_key(run_id, host);
        let agent = agent(program, setup.dir.path(), &setup.console)?;
        Ok(Host {
            config: RelayConfig {
                host,
                run_id,
                host_key,
                gate_key: setup.secret.gate_key(),
                agent,
                restarts,
                leave: None,
                shares_memory: !program.no_shm,
            },
            ranks,
        })
    }

    /// Starts the relay on a thread of its own.
    pub(crate) fn start(self, acceptor: Acceptor, root: Root) -> Result<Joined, Failure> {
        let (keep, stop) = async_channel::bounded::<()>(1);
        let (alive, ended) = async_channel::bounded::<()>(1);
        let sink = Arc::clone(&self.config.agent.sink);
        let main = move || {
            let stopped = async {
                while stop.recv().await.is_ok() {}
                Ok(())
            };
            if let Err(error) = smol::block_on(future::or(self.join(acceptor, root), stopped)) {
                sink(&error);
            }
            drop(alive);
        };
        thread::Builder::new()
            .name("flodl-relay".to_owned())
            .spawn(main)
            .map_err(|error| Failure::failed(format!("the relay's thread cannot be started: {error}")))?;
        Ok(Joined { keep, ended })
    }

    async fn join(self, acceptor: Acceptor, root: Root) -> Result<(), String> {
        let (control, session) = self.connect(&acceptor).await?;
        let (up, down) = local_data_link::<Duplex, Duplex>();
        root.serve(session, down);
        // The thread must not keep the controller's parts alive: the monitor ends when the last of them is gone.
        drop((acceptor, root));
        match run(self.config, Upstream { control, data: up }).await {
            // A pipe in memory is lost by nothing but the controller's own end, and that has told why.
            Ok(()) | Err(RunError::Ended(RelayError::ControllerLost { .. })) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn connect(&self, acceptor: &Acceptor) -> Result<(flodl_wire::io::Link<Duplex>, SessionId), String> {
        let RelayConfig { host, run_id, host_key, gate_key, .. } = &self.config;
        let hello = Hello {
            role: Role::Relay { rank_count: self.ranks },
            channel: Channel::Control,
            session: SessionId(0),
            run_id: *run_id,
            host_id: *host,
            capabilities: Capabilities::NONE,
        };
        let keys = DialKeys { gate: gate_key.clone(), peer: host_key.clone().into() };
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|error| format!("the system gives no random bytes: {error}"))?;
        let (near, far) = duplex(PIPE);
        let (link, session) = future::zip(connect(near, hello, keys, nonce), acceptor.adopt(far)).await;
        Ok((link.map_err(|error| error.to_string())?, session.map_err(|error| error.to_string())?))
    }
}

/// The running relay.
pub(crate) struct Joined {
    keep: Sender<()>,
    ended: Receiver<()>,
}

impl Joined {
    /// Waits for the relay to end by itself, at most `at_most`; then its ranks are killed.
    pub(crate) async fn end(self, at_most: Duration) {
        let Joined { keep, ended } = self;
        if !settle(&ended, at_most).await {
            drop(keep);
            settle(&ended, KILLED_WITHIN).await;
        }
    }
}

//! `flodl join`: a relay alone, with this host's ranks.

use super::args::JoinArgs;
use super::console::Console;
use super::failure::Failure;
use super::look::Tone;
use super::rundir::RunDir;
use super::signals::Requests;
use super::{local, ticket};
use core::time::Duration;
use flodl_relay::shell::{Redial, RelayConfig, dial, dial_again, run_resuming};
use flodl_wire::Ticket;
use smol::future;
use smol::net::TcpStream;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// How long the controller is looked for. The run's own patience is not known before it answers.
const LOOK_FOR: Duration = Duration::from_secs(10);

/// Runs the relay until the controller says that the run is over.
pub(crate) fn join(args: &JoinArgs, console: &Console) -> Result<ExitCode, Failure> {
    let ticket = ticket::read(&args.ticket).map_err(Failure::failed)?;
    let address = args.address.clone().unwrap_or_else(|| ticket.address.clone());
    let dir = run_dir(args, &ticket)?;
    let agent = local::agent(&args.program, dir.path(), console)?;
    let mut requests = Requests::listen()?;
    console.say(&format!("joining run {} at {address} as host {}", ticket.run_id, ticket.host_id.name()));
    console.say(&format!("what this host's ranks write is in {}/rank<k>.log", dir.path().display()));
    if address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_unspecified()) {
        console.tell(
            Tone::Warning,
            "that address means this machine: from another one, give the controller's address behind the ticket",
        );
    }
    let (ask_to_leave, leave) = async_channel::bounded(1);
    let config = RelayConfig {
        host: ticket.host_id,
        run_id: ticket.run_id,
        host_key: ticket.host_key.clone(),
        gate_key: ticket.gate_key.clone(),
        agent,
        restarts: args.restarts,
        leave: Some(leave),
        shares_memory: !args.program.no_shm,
    };
    let work = async {
        let upstream = dial(&address, &ticket, args.ranks, LOOK_FOR).await.map_err(Failure::failed)?;
        let (patience, ranks) = (upstream.control.patience, args.ranks);
        let redial: Redial<TcpStream> = Arc::new(move |session| {
            let (address, ticket) = (address.clone(), ticket.clone());
            Box::pin(async move {
                let again = dial_again(&address, &ticket, (ranks, session), patience).await;
                again.map_err(|error| error.to_string())
            })
        });
        run_resuming(config, upstream, redial).await.map_err(Failure::failed)
    };
    let stopped = async {
        requests.next().await;
        console.say("leaving: this host's ranks bring in what they have trained; once more ends them at once");
        // A relay that has ended by now needs no asking.
        ask_to_leave.send(()).await.ok();
        requests.next().await;
        Err(Failure::failed("stopped: this host's ranks were ended, and the run goes on without them"))
    };
    smol::block_on(future::or(work, stopped))?;
    console.say("this host is done");
    Ok(ExitCode::SUCCESS)
}

fn run_dir(args: &JoinArgs, ticket: &Ticket) -> Result<RunDir, Failure> {
    let short: String = ticket.run_id.to_string().chars().take(8).collect();
    let default = || PathBuf::from(format!("flodl-join-{}-{short}", ticket.host_id.name()));
    let path = args.run_dir.clone().unwrap_or_else(default);
    Ok(RunDir::create(&path)?)
}

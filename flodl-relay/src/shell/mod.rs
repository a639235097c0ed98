//! The driver of a relay and of the root, over smol: one task owns each core, one reader task per connection, bounded
//! channels, folding on threads of its own.

mod clock;
mod dial;
mod doors;
mod driver;
mod folding;
mod inbox;
mod link;
mod queue;
mod root;
mod shared;
mod socket;
mod uplink;
mod wires;

pub use dial::{DialError, dial, dial_again};
pub use link::{DataLink, RelayEnd, RootEnd, local_data_link};
pub use root::{Consensus, Report, RootGone, RootHandle, SessionEnd, start_root, start_root_as};

use crate::agent::{AgentConfig, AgentError};
use crate::relay::RelayError;
use async_channel::Receiver;
use flodl_wire::io::Link;
use flodl_wire::secret::{GateKey, HostKey};
use flodl_wire::{HostId, RunId, SessionId};
use futures_lite::io::{AsyncRead, AsyncWrite};
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

/// What a relay is: whose host, with which keys, running what.
#[derive(Clone)]
pub struct RelayConfig {
    /// The host.
    pub host: HostId,
    /// The run.
    pub run_id: RunId,
    /// Derives the keys of this host's ranks.
    pub host_key: HostKey,
    /// The run's gate key.
    pub gate_key: GateKey,
    /// The ranks' program, the guard, the run directory, and where lines go.
    pub agent: AgentConfig,
    /// How often each rank is started again after its end.
    pub restarts: u32,
    /// A message on it asks this host to go.
    pub leave: Option<Receiver<()>>,
    /// Ranks may share memory with this relay, where the system gives it. Else their chunks go through sockets.
    pub shares_memory: bool,
}

/// The way up: connected and authenticated.
pub struct Upstream<S> {
    /// To the controller.
    pub control: Link<S>,
    /// To the root.
    pub data: DataLink<S>,
}

/// Connects a relay anew whose link broke in that session, for as long as it makes sense to try; else says what was tried.
pub type Redial<S> =
    Arc<dyn Fn(SessionId) -> Pin<Box<dyn Future<Output = Result<Upstream<S>, String>> + Send>> + Send + Sync>;

/// Why a relay ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The controller was lost, or refused this host.
    #[error(transparent)]
    Ended(#[from] RelayError),
    /// The host's processes cannot be looked after.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// Ranks cannot connect.
    #[error("cannot make the ranks' socket {}: {error}", path.display())]
    Socket {
        /// Where it was to be.
        path: PathBuf,
        /// Why it is not.
        error: io::Error,
    },
    /// No thread for folding.
    #[error("cannot start the folding thread: {0}; the limit of threads may be reached (ulimit -u)")]
    Thread(io::Error),
}

/// Runs a relay until the controller says that the run is over and its ranks have ended. Whatever the outcome, none of its
/// ranks is left; a future that is dropped kills them too.
///
/// # Errors
///
/// [`RunError`]; the ranks are gone then.
pub async fn run<S>(config: RelayConfig, upstream: Upstream<S>) -> Result<(), RunError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    driver::run(config, upstream, None).await
}

/// The same, with another link where this one breaks: the ranks go on, and the run with them.
///
/// # Errors
///
/// [`RunError`]; the ranks are gone then.
pub async fn run_resuming<S>(config: RelayConfig, upstream: Upstream<S>, redial: Redial<S>) -> Result<(), RunError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    driver::run(config, upstream, Some(redial)).await
}

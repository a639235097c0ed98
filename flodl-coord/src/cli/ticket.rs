//! `flodl ticket`: what a run leaves for its hosts, and the file that lets one of them in.

use super::args::{HostName, TicketArgs};
use super::rundir::{FileError, FindError, RunDir, read_small, write_private};
use flodl_wire::RunId;
use flodl_wire::limits::TICKET_TEXT;
use flodl_wire::secret::{Secret, Ticket, TicketError};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str;
use zeroize::Zeroizing;

/// The run's secret, as text.
const SECRET: &str = "secret";
/// Where the controller listens.
const ADDRESS: &str = "address";
/// The run's id.
const RUN_ID: &str = "run-id";

/// Why there is no ticket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoTicket {
    /// No run directory.
    #[error(transparent)]
    Find(#[from] FindError),
    /// One of its files.
    #[error(transparent)]
    File(#[from] FileError),
    /// A ticket that is none.
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: TicketError },
}

/// What a run writes into its directory for `flodl ticket`.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) run_id: RunId,
    pub(crate) secret: Secret,
    pub(crate) address: String,
}

impl Credentials {
    /// Writes the three files.
    pub(crate) fn write(&self, dir: &RunDir) -> Result<(), FileError> {
        dir.write(SECRET, self.secret.to_text().as_bytes())?;
        dir.write(RUN_ID, format!("{}\n", self.run_id).as_bytes())?;
        dir.write(ADDRESS, format!("{}\n", self.address).as_bytes())
    }

    /// Reads what [`Credentials::write`] wrote.
    pub(crate) fn read(dir: &RunDir) -> Result<Credentials, FileError> {
        let secret = Zeroizing::new(dir.read(SECRET)?);
        let damaged = |name: &str, what: &str| FileError::Damaged { path: dir.file(name), what: what.to_owned() };
        let secret = str::from_utf8(&secret).ok().and_then(|text| Secret::parse(text).ok());
        let secret = secret.ok_or_else(|| damaged(SECRET, "it is not a session secret"))?;
        let run_id = dir.read(RUN_ID)?;
        let run_id = str::from_utf8(&run_id).ok().and_then(|text| RunId::from_text(text.trim()));
        let run_id = run_id.ok_or_else(|| damaged(RUN_ID, "it is not a run id"))?;
        let address = String::from_utf8_lossy(&dir.read(ADDRESS)?).trim().to_owned();
        Ok(Credentials { run_id, secret, address })
    }

    /// The ticket of one host.
    pub(crate) fn ticket(&self, host: &HostName) -> Ticket {
        Ticket {
            address: self.address.clone(),
            run_id: self.run_id,
            host_id: host.id,
            host_key: self.secret.host_key(self.run_id, host.id),
            gate_key: self.secret.gate_key(),
        }
    }
}

/// What standard output is to say: the ticket, where that was asked for; else `ticket-HOST` is written into `here`, and this
/// says what to do with it. It may hold keys, so it is overwritten when it is dropped.
pub(crate) fn write(args: &TicketArgs, here: &Path) -> Result<Zeroizing<String>, NoTicket> {
    let dir = RunDir::find(args.run_dir.as_deref(), here)?;
    let credentials = Credentials::read(&dir)?;
    let ticket = credentials.ticket(&args.host).to_text();
    if args.stdout {
        return Ok(ticket);
    }
    let name = format!("ticket-{}", args.host.name);
    let path = here.join(&name);
    write_private(&path, ticket.as_bytes())?;
    let address = match credentials.address.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => format!(" THIS-MACHINE:{}", address.port()),
        _ => String::new(),
    };
    Ok(Zeroizing::new(format!(
        "wrote {name}: it lets one host join run {}. Copy it there (nobody else may read it) and start its ranks with\n  \
         flodl join --ticket {name}{address} -n RANKS -- PROGRAM",
        credentials.run_id
    )))
}

/// Reads a ticket; `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<Ticket, NoTicket> {
    let path = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
    let bytes = Zeroizing::new(read_small(path)?);
    let unreadable = |error| NoTicket::Unreadable { path: path.to_owned(), error };
    if bytes.len() > TICKET_TEXT {
        return Err(unreadable(TicketError::TooLong));
    }
    let text = str::from_utf8(&bytes).map_err(|_| unreadable(TicketError::FirstLine))?;
    Ticket::parse(text).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flodl_wire::HostId;

    fn host(name: &str) -> HostName {
        HostName { name: name.to_owned(), id: HostId::from_name(name).expect("is a name") }
    }

    #[test]
    fn a_ticket_comes_from_what_the_run_wrote() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = RunDir::create(&temp.path().join("flodl-run-1")).expect("can be made");
        let run_id = RunId([0xa5; 16]);
        let secret = Secret::from_bytes([9; 32]);
        let credentials = Credentials { run_id, secret, address: "127.0.0.1:4711".to_owned() };
        credentials.write(&dir).expect("can be written");

        let args = TicketArgs { host: host("box-2"), run_dir: None, stdout: false };
        let told = write(&args, temp.path()).expect("the run is there");
        assert!(told.contains("flodl join --ticket ticket-box-2 -n"), "{}", *told);
        let ticket = read(&temp.path().join("ticket-box-2")).expect("was written");
        assert_eq!((ticket.address.as_str(), ticket.run_id), ("127.0.0.1:4711", run_id));
        assert_eq!(ticket.host_key.expose(), credentials.ticket(&host("box-2")).host_key.expose());

        let args = TicketArgs { host: host("box-3"), run_dir: None, stdout: true };
        let told = write(&args, temp.path()).expect("the run is there");
        assert_eq!(*told, *credentials.ticket(&host("box-3")).to_text(), "the ticket and nothing else");
        assert!(!temp.path().join("ticket-box-3").exists(), "and no file");
    }

    #[test]
    fn what_is_missing_or_damaged_is_named() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = RunDir::create(&temp.path().join("run")).expect("can be made");
        let args = TicketArgs { host: host("a"), run_dir: Some(dir.path().to_owned()), stdout: false };
        let error = write(&args, temp.path()).expect_err("nothing there").to_string();
        assert!(error.contains("secret is not there") && error.contains("--run-dir"), "{error}");
        dir.write(SECRET, b"no secret").expect("can be written");
        let error = write(&args, temp.path()).expect_err("no secret").to_string();
        assert!(error.contains("not a session secret"), "{error}");
        let path = temp.path().join("ticket-a");
        assert!(read(&path).expect_err("none written").to_string().contains("is not there"));
        std::fs::write(&path, [0xff; 40]).expect("can be written");
        assert!(read(&path).expect_err("garbage").to_string().contains("not a ticket"));
    }
}

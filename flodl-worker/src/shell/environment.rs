//! What a rank finds in its environment: written by the relay that started it.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use flodl_wire::{HostId, Incarnation, Rank, RunId};
use std::ffi::OsString;
use std::path::PathBuf;
use thiserror::Error;

/// How long a rank tries to reach its relay, where `FLODL_PATIENCE_MS` does not say.
pub const PATIENCE_DEFAULT: Duration = Duration::from_secs(10);

/// Why the environment is not that of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnvironmentError {
    /// Not started by flodl at all.
    #[error(
        "this program trains under flodl, which gives it its rank and its samples: start it with \
         `flodl run -- {program}`"
    )]
    NotUnderFlodl {
        /// How the program was called.
        program: String,
    },
    /// A variable is missing.
    #[error(
        "{name} is not set although FLODL_SOCKET is: start this program with `flodl run` or `flodl join`, not by hand"
    )]
    Missing {
        /// The variable.
        name: &'static str,
    },
    /// A variable cannot be read.
    #[error(
        "{name} is \"{value}\", expected {expected}: start this program with `flodl run` or `flodl join`, not by hand"
    )]
    Malformed {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
}

/// A rank's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// `FLODL_RANK`: which rank this is.
    pub rank: Rank,
    /// `FLODL_INCARNATION`: which of its lives.
    pub incarnation: Incarnation,
    /// `FLODL_RUN_ID`: the run.
    pub run_id: RunId,
    /// `FLODL_HOST_ID`: the host, by name.
    pub host_id: HostId,
    /// `FLODL_SOCKET`: the relay's unix socket.
    pub socket: PathBuf,
    /// `FLODL_KEY_FD`: the number of the descriptor that the keys are read from.
    pub key_fd: i32,
    /// `FLODL_SHM_FDS`: the numbers of the descriptors of memory that is shared with the relay.
    pub shm_fds: Option<[i32; 3]>,
    /// `FLODL_PATIENCE_MS`: how long the relay is tried.
    pub patience: Duration,
}

impl Environment {
    /// Reads the environment through `variable` (`std::env::var_os`); `program` is how this one was called.
    ///
    /// # Errors
    /// A variable that is missing or malformed; without `FLODL_SOCKET`, that this program must be started by flodl.
    pub fn read(
        variable: impl Fn(&'static str) -> Option<OsString>,
        program: &str,
    ) -> Result<Environment, EnvironmentError> {
        let Some(socket) = variable("FLODL_SOCKET") else {
            return Err(EnvironmentError::NotUnderFlodl { program: program.to_owned() });
        };
        // A path may be any bytes; everything else is malformed where it is no text, and is shown with replacements.
        let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
        let required = |name| text(name).ok_or(EnvironmentError::Missing { name });
        let run_id = required("FLODL_RUN_ID")?;
        let host = required("FLODL_HOST_ID")?;
        let patience = match text("FLODL_PATIENCE_MS") {
            Some(value) => Duration::from_millis(number("FLODL_PATIENCE_MS", value)?),
            None => PATIENCE_DEFAULT,
        };
        Ok(Environment {
            rank: Rank(number("FLODL_RANK", required("FLODL_RANK")?)?),
            incarnation: Incarnation(number("FLODL_INCARNATION", required("FLODL_INCARNATION")?)?),
            run_id: RunId::from_text(&run_id).ok_or(EnvironmentError::Malformed {
                name: "FLODL_RUN_ID",
                value: run_id,
                expected: "32 hexadecimal digits",
            })?,
            host_id: HostId::from_name(&host).ok_or(EnvironmentError::Malformed {
                name: "FLODL_HOST_ID",
                value: host,
                expected: "a name of at most 16 letters, digits, -, _ and .",
            })?,
            socket: PathBuf::from(socket),
            key_fd: number("FLODL_KEY_FD", required("FLODL_KEY_FD")?)?,
            shm_fds: text("FLODL_SHM_FDS").map(descriptors).transpose()?,
            patience,
        })
    }
}

fn descriptors(value: String) -> Result<[i32; 3], EnvironmentError> {
    let numbers: Result<Vec<i32>, _> = value.split(',').map(str::parse).collect();
    // Each is taken over, and closed, by itself.
    let differ = |[a, b, c]: &[i32; 3]| a != b && b != c && a != c;
    let three = numbers.ok().and_then(|numbers| numbers.try_into().ok()).filter(differ);
    let expected = "three different numbers between commas";
    three.ok_or(EnvironmentError::Malformed { name: "FLODL_SHM_FDS", value, expected })
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of run {} on host {}", self.rank, self.run_id, self.host_id.name())
    }
}

fn number<N: FromStr>(name: &'static str, value: String) -> Result<N, EnvironmentError> {
    let parsed = value.parse();
    parsed.map_err(|_| EnvironmentError::Malformed { name, value, expected: "a number in range" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    const GOOD: [(&str, &str); 6] = [
        ("FLODL_RANK", "3"),
        ("FLODL_INCARNATION", "1"),
        ("FLODL_RUN_ID", "000102030405060708090a0b0c0d0eff"),
        ("FLODL_HOST_ID", "box-2"),
        ("FLODL_SOCKET", "/run/x/relay.sock"),
        ("FLODL_KEY_FD", "5"),
    ];

    fn read(change: Option<(&str, Option<&[u8]>)>) -> Result<Environment, EnvironmentError> {
        let variable = |name: &'static str| match change {
            Some((changed, value)) if changed == name => value.map(|value| OsString::from_vec(value.to_vec())),
            _ => GOOD.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)),
        };
        Environment::read(variable, "./softmax")
    }

    #[test]
    fn a_relays_environment_is_read() {
        let found = read(None).unwrap();
        assert_eq!(found.to_string(), "rank 3 of run 000102030405060708090a0b0c0d0eff on host box-2");
        assert_eq!((found.key_fd, found.patience), (5, PATIENCE_DEFAULT));
        assert_eq!(found.shm_fds, None);
        assert_eq!(read(Some(("FLODL_SHM_FDS", Some(b"7,8,9")))).unwrap().shm_fds, Some([7, 8, 9]));
        let hurried = read(Some(("FLODL_PATIENCE_MS", Some(b"250")))).unwrap();
        assert_eq!(hurried.patience, Duration::from_millis(250));
    }

    #[test]
    fn a_path_of_any_bytes_is_taken_as_it_is() {
        let found = read(Some(("FLODL_SOCKET", Some(b"/run/\xff\xfe/socket")))).unwrap();
        assert_eq!(found.socket, PathBuf::from(OsStr::from_bytes(b"/run/\xff\xfe/socket")));
        let error = read(Some(("FLODL_RANK", Some(b"\xff")))).unwrap_err().to_string();
        assert!(error.starts_with("FLODL_RANK is \"\u{fffd}\", expected a number"), "{error}");
    }

    #[test]
    fn anything_else_is_a_sentence() {
        let error = read(Some(("FLODL_SOCKET", None))).unwrap_err().to_string();
        assert!(error.ends_with("start it with `flodl run -- ./softmax`"), "{error}");
        for (name, _) in GOOD.into_iter().filter(|(name, _)| *name != "FLODL_SOCKET") {
            let error = read(Some((name, None))).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name} is not set")), "{error}");
        }
        for (name, value) in [
            ("FLODL_RANK", "-1"),
            ("FLODL_INCARNATION", "x"),
            ("FLODL_KEY_FD", "99999999999"),
            ("FLODL_PATIENCE_MS", ""),
            ("FLODL_SHM_FDS", "7,8"),
            ("FLODL_SHM_FDS", "7,8,x"),
            ("FLODL_SHM_FDS", "7,8,7"),
            ("FLODL_RUN_ID", "0001"),
            ("FLODL_RUN_ID", "000102030405060708090a0b0c0d0e\u{e9}"),
            ("FLODL_RUN_ID", "+00102030405060708090a0b0c0d0eff"),
            ("FLODL_HOST_ID", "a b"),
        ] {
            let error = read(Some((name, Some(value.as_bytes())))).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name} is \"{value}\", expected ")), "{error}");
        }
    }
}

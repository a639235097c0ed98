//! The unix socket that a relay's ranks connect to: in a directory that nobody else can enter.

use crate::limits;
use flodl_wire::HostId;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use smol::net::unix::{UnixListener, UnixStream};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process;

/// A listening socket in its own directory, both gone when it is dropped.
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    directory: PathBuf,
    pub(super) path: PathBuf,
}

impl Socket {
    /// Listens in a fresh directory of the run directory, or, where the path would be too long for a socket, of the
    /// system's temporary one.
    pub(super) fn bind(run_dir: &Path, host: HostId) -> Result<Socket, (PathBuf, io::Error)> {
        let (directory, path) =
            place(run_dir, &std::env::temp_dir(), &format!(".relay-{}-{}", host.name(), process::id()));
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|error| (directory.clone(), error))?;
        match UnixListener::bind(&path) {
            Ok(listener) => Ok(Socket { listener, directory, path }),
            Err(error) => {
                remove(&directory);
                Err((path, error))
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

/// Directory and path of the socket.
fn place(run_dir: &Path, temporary: &Path, name: &str) -> (PathBuf, PathBuf) {
    let inside = |directory: PathBuf| {
        let path = directory.join("socket");
        (directory, path)
    };
    let (directory, path) = inside(run_dir.join(name));
    if path.as_os_str().as_bytes().len() <= limits::SOCKET_PATH {
        return (directory, path);
    }
    inside(temporary.join(format!("flodl{name}")))
}

/// A directory that cannot be removed is left; it holds nothing but a dead socket.
fn remove(directory: &Path) {
    match fs::remove_dir_all(directory) {
        Ok(()) | Err(_) => {}
    }
}

/// Whether the process at the other end belongs to the user that this one belongs to.
pub(super) fn same_user(stream: &UnixStream) -> io::Result<bool> {
    Ok(socket_peercred(stream)?.uid == geteuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_too_long_for_a_socket_moves_to_the_temporary_directory() {
        let short = place(Path::new("/run"), Path::new("/tmp"), ".relay-a-1");
        assert_eq!(short, (PathBuf::from("/run/.relay-a-1"), PathBuf::from("/run/.relay-a-1/socket")));
        let deep = PathBuf::from("/").join("d".repeat(100));
        let long = place(&deep, Path::new("/tmp"), ".relay-a-1");
        assert_eq!(long.1, PathBuf::from("/tmp/flodl.relay-a-1/socket"));
    }
}

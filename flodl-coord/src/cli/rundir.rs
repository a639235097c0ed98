//! The folder that holds what a run leaves, and the files in it: whole or not there, and their owner's alone.

use flodl_wire::limits::TICKET_TEXT;
use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A run's folder; only its owner may look into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunDir {
    path: PathBuf,
}

/// Why there is no run directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunDirError {
    /// Something lies there.
    #[error("the run directory {} is not empty: name a new one with --run-dir, or empty this one", path.display())]
    NotEmpty { path: PathBuf },
    /// Not a folder.
    #[error("{} is not a folder: name another with --run-dir", path.display())]
    NotAFolder { path: PathBuf },
    /// It cannot be made or read.
    #[error("the run directory {} cannot be used: {error}; name another with --run-dir", path.display())]
    Unusable { path: PathBuf, error: io::Error },
}

/// Why a file of a run directory could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// It is not there.
    #[error(
        "{} is not there: give --run-dir the run directory that `flodl serve` printed, and --ticket the file that `flodl ticket` wrote",
        path.display()
    )]
    Missing { path: PathBuf },
    /// It cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// It cannot be written.
    #[error("{} cannot be written: {error}", path.display())]
    Unwritable { path: PathBuf, error: io::Error },
    /// It holds something else.
    #[error("{} is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
}

/// Why no run directory could be found where none was named.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FindError {
    /// None here.
    #[error("no flodl-run-* folder here: name the run directory of `flodl serve` with --run-dir")]
    None,
    /// More than one.
    #[error("{count} flodl-run-* folders here: name the one that is meant with --run-dir")]
    Several { count: usize },
}

/// Bytes that a small file of a run directory may have.
const SMALL_FILE_MAX: u64 = 64 * 1024;

impl RunDir {
    /// Makes `path` (its parents too), or takes it where it is an empty folder; it is the owner's alone afterwards.
    pub(crate) fn create(path: &Path) -> Result<RunDir, RunDirError> {
        let unusable = |error| RunDirError::Unusable { path: path.to_owned(), error };
        match fs::read_dir(path) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(RunDirError::NotEmpty { path: path.to_owned() });
                }
                fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(unusable)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(RunDirError::NotAFolder { path: path.to_owned() });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
            }
            Err(error) => return Err(unusable(error)),
        }
        // Ranks run in folders of their own choosing: what they are told must not depend on ours.
        let path = fs::canonicalize(path).map_err(unusable)?;
        Ok(RunDir { path })
    }

    /// One that is there.
    pub(crate) fn open(path: &Path) -> Result<RunDir, RunDirError> {
        let path = fs::canonicalize(path).map_err(|error| RunDirError::Unusable { path: path.to_owned(), error })?;
        if path.is_dir() { Ok(RunDir { path }) } else { Err(RunDirError::NotAFolder { path }) }
    }

    /// The run directory of another process: `named`, or the only `flodl-run-*` folder within `here`.
    pub(crate) fn find(named: Option<&Path>, here: &Path) -> Result<RunDir, FindError> {
        if let Some(path) = named {
            return Ok(RunDir { path: path.to_owned() });
        }
        let entries = fs::read_dir(here).map_err(|_| FindError::None)?;
        let is_run = |path: &PathBuf| {
            path.is_dir() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("flodl-run-"))
        };
        let mut runs: Vec<_> =
            entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).filter(is_run).collect();
        match (runs.pop(), runs.len()) {
            (None, _) => Err(FindError::None),
            (Some(path), 0) => Ok(RunDir { path }),
            (Some(_), others) => Err(FindError::Several { count: others + 1 }),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the file called `name` in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Reads the small file called `name`.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>, FileError> {
        read_small(&self.file(name))
    }

    /// Writes the file called `name`, for the owner's eyes only.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        write_private(&self.file(name), bytes)
    }
}

/// Reads a file that has no reason to be large.
pub(crate) fn read_small(path: &Path) -> Result<Vec<u8>, FileError> {
    let path = path.to_owned();
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FileError::Missing { path }),
        Err(error) => return Err(FileError::Unreadable { path, error }),
    };
    // Room for a secret or a ticket: a buffer that grows would leave copies of keys behind.
    let mut bytes = Vec::with_capacity(2 * TICKET_TEXT);
    match file.take(SMALL_FILE_MAX + 1).read_to_end(&mut bytes) {
        Err(error) => Err(FileError::Unreadable { path, error }),
        Ok(_) if bytes.len() as u64 > SMALL_FILE_MAX => {
            Err(FileError::Damaged { path, what: format!("more than {SMALL_FILE_MAX} bytes") })
        }
        Ok(_) => Ok(bytes),
    }
}

/// Writes `path` with mode 0600: under another name first, then renamed, so that nobody reads half of it and an older file
/// with wider permissions does not lend them to this one. What lies under that name is not written to, be it a link to a file
/// of somebody else: it is taken away.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let write = || -> io::Result<()> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let beside = path.with_file_name(name);
        let open = || {
            let nofollow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
            OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(nofollow).open(&beside)
        };
        let mut file = match open() {
            // Of a process that died, and had the same number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&beside)?;
                open()?
            }
            opened => opened?,
        };
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        let written = file.write_all(bytes).and_then(|()| fs::rename(&beside, path));
        if written.is_err() {
            fs::remove_file(&beside)?;
        }
        written
    };
    write().map_err(|error| FileError::Unwritable { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("is there").permissions().mode() & 0o777
    }

    #[test]
    fn a_run_directory_is_new_or_empty_and_private() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = RunDir::create(&temp.path().join("deep/run")).expect("can be made");
        assert_eq!(mode(dir.path()), 0o700);
        dir.write("secret", b"abc").expect("can be written");
        assert_eq!(mode(&dir.file("secret")), 0o600);
        assert_eq!(dir.read("secret").expect("can be read"), b"abc");
        assert!(matches!(RunDir::create(dir.path()), Err(RunDirError::NotEmpty { .. })));
        assert!(matches!(RunDir::create(&dir.file("secret")), Err(RunDirError::NotAFolder { .. })));
        assert!(matches!(dir.read("address"), Err(FileError::Missing { .. })));
    }

    #[test]
    fn the_only_run_directory_is_found() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(RunDir::find(None, temp.path()), Err(FindError::None));
        fs::create_dir(temp.path().join("flodl-run-aa")).expect("can be made");
        let found = RunDir::find(None, temp.path()).expect("is there");
        assert_eq!(found.path(), temp.path().join("flodl-run-aa"));
        fs::create_dir(temp.path().join("flodl-run-bb")).expect("can be made");
        assert_eq!(RunDir::find(None, temp.path()), Err(FindError::Several { count: 2 }));
        assert_eq!(RunDir::find(Some(Path::new("x")), temp.path()).map(|dir| dir.path), Ok(PathBuf::from("x")));
    }

    #[test]
    fn a_private_file_does_not_inherit_wider_permissions() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let path = temp.path().join("ticket");
        fs::write(&path, "old").expect("can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("can be set");
        write_private(&path, b"new").expect("can be written");
        assert_eq!((mode(&path), fs::read(&path).expect("can be read")), (0o600, b"new".to_vec()));
        assert_eq!(fs::read_dir(temp.path()).expect("can be listed").count(), 1);
    }

    #[test]
    fn what_lies_in_the_way_is_not_written_to() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let path = temp.path().join("secret");
        let beside = temp.path().join(format!("secret.{}", std::process::id()));
        let elsewhere = temp.path().join("elsewhere");
        fs::write(&elsewhere, "theirs").expect("can be written");
        let in_the_way: [&dyn Fn(); 3] = [
            &|| std::os::unix::fs::symlink(&elsewhere, &beside).expect("can be made"),
            &|| fs::hard_link(&elsewhere, &beside).expect("can be made"),
            &|| fs::write(&beside, "of one that died").expect("can be written"),
        ];
        for lay in in_the_way {
            lay();
            write_private(&path, b"ours").expect("can be written");
            assert_eq!((mode(&path), fs::read(&path).expect("can be read")), (0o600, b"ours".to_vec()));
            assert_eq!(fs::read(&elsewhere).expect("can be read"), b"theirs");
            assert!(!path.is_symlink() && !beside.exists());
        }
    }
}

//! What writing a set asks of a file system, each step by itself, so that a test can end the process at any of them.

use std::fs::{self, File};
use std::io::{ErrorKind, Result, Write};
use std::path::Path;

/// A file system that says when data is on the disk.
pub trait Storage {
    /// Makes a directory and those above it, where they are not there.
    ///
    /// # Errors
    /// The system's.
    fn create_dir_all(&mut self, path: &Path) -> Result<()>;

    /// Makes a new file of these parts. Its data need not be on the disk yet.
    ///
    /// # Errors
    /// The system's; a file that is there already is one.
    fn write_new(&mut self, path: &Path, parts: &[&[u8]]) -> Result<()>;

    /// Waits until a file's data is on the disk.
    ///
    /// # Errors
    /// The system's. After one nothing is known about the data, and trying again would not tell.
    fn sync_file(&mut self, path: &Path) -> Result<()>;

    /// Waits until a directory's names are on the disk.
    ///
    /// # Errors
    /// As for a file.
    fn sync_dir(&mut self, path: &Path) -> Result<()>;

    /// Gives a file, a link or a directory another name; a file or link of that name is replaced at once.
    ///
    /// # Errors
    /// The system's.
    fn rename(&mut self, from: &Path, to: &Path) -> Result<()>;

    /// Makes a link `link` to `target`, a name beside it.
    ///
    /// # Errors
    /// The system's.
    fn symlink(&mut self, target: &Path, link: &Path) -> Result<()>;

    /// The names in a directory, in any order.
    ///
    /// # Errors
    /// The system's.
    fn names(&mut self, dir: &Path) -> Result<Vec<String>>;

    /// Removes a file, a link or a whole directory. That it is not there is no error.
    ///
    /// # Errors
    /// The system's.
    fn remove(&mut self, path: &Path) -> Result<()>;
}

/// The real file system.
#[derive(Copy, Clone, Debug, Default)]
pub struct Disk;

impl Storage for Disk {
    fn create_dir_all(&mut self, path: &Path) -> Result<()> {
        fs::create_dir_all(path)
    }

    fn write_new(&mut self, path: &Path, parts: &[&[u8]]) -> Result<()> {
        let mut file = File::create_new(path)?;
        parts.iter().try_for_each(|part| file.write_all(part))
    }

    fn sync_file(&mut self, path: &Path) -> Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_dir(&mut self, path: &Path) -> Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to)
    }

    fn symlink(&mut self, target: &Path, link: &Path) -> Result<()> {
        std::os::unix::fs::symlink(target, link)
    }

    fn names(&mut self, dir: &Path) -> Result<Vec<String>> {
        // A name that is no text is none of ours.
        fs::read_dir(dir)?
            .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose())
            .collect()
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        let removed = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

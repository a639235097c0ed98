//! `flodl` under a pseudo terminal.

use crate::harness::{LONGEST, Program, World, poll, skipped};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A command whose standard error is a terminal.
pub(crate) struct Terminal {
    child: Child,
    near: File,
    seen: Arc<Mutex<Vec<u8>>>,
    stopped: Arc<AtomicBool>,
}

fn open(columns: u16) -> io::Result<(File, File)> {
    let near: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&near)?;
    unlockpt(&near)?;
    let name = ptsname(&near, Vec::new())?;
    tcsetwinsize(&near, size(columns))?;
    let far = OpenOptions::new().read(true).write(true).open(std::ffi::OsStr::from_bytes(name.as_bytes()))?;
    Ok((near.into(), far))
}

fn size(columns: u16) -> Winsize {
    Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl World {
    /// The trainer of these tests behind a script, under a terminal of so many columns; `None`, and a line that says so, where
    /// this machine has no pseudo terminals.
    pub(crate) fn train_on_terminal(&self, columns: u16, script: &str, line: &str, trainer: &str) -> Option<Terminal> {
        let (near, far) = match open(columns) {
            Ok(pair) => pair,
            Err(error) => {
                skipped(&format!("no pseudo terminal: {error}"));
                return None;
            }
        };
        let mut command = self.command(line, &Program::Script(script, trainer));
        command.env("TERM", "xterm").env_remove("NO_COLOR").stderr(far);
        let child = command.spawn().expect("flodl can be started");
        // The command holds the other end, and nobody but its child may.
        drop(command);
        let (seen, stopped) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let terminal = Terminal { child, near, seen, stopped };
        terminal.read();
        Some(terminal)
    }
}

impl Terminal {
    /// Reads on a thread, until there is nothing more or [`Terminal::stop_reading`].
    fn read(&self) {
        let mut near = self.near.try_clone().expect("can be cloned");
        let (seen, stopped) = (Arc::clone(&self.seen), Arc::clone(&self.stopped));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while !stopped.load(Ordering::Relaxed) {
                // At the end of the last process a terminal gives an error instead of an end.
                let Ok(read @ 1..) = near.read(&mut buffer) else { return };
                seen.lock().expect("is whole").extend_from_slice(&buffer[..read]);
            }
        });
    }

    /// From now on the terminal takes no more than its buffer holds.
    pub(crate) fn stop_reading(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// All that was written to it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.seen.lock().expect("is whole").clone()
    }

    /// Waits until `part` was written to it.
    pub(crate) fn shows(&mut self, part: &str) {
        let shown = || String::from_utf8_lossy(&self.bytes()).contains(part).then_some(());
        assert!(poll(LONGEST, shown).is_some(), "{part:?} is not shown: {}", String::from_utf8_lossy(&self.bytes()));
    }

    pub(crate) fn resize(&self, columns: u16) {
        tcsetwinsize(&self.near, size(columns)).expect("can be resized");
    }

    /// As Ctrl-C does.
    pub(crate) fn interrupt(&self) {
        let pid = i32::try_from(self.child.id()).expect("process ids are small");
        crate::harness::signal(pid, rustix::process::Signal::INT);
    }

    /// Waits for the end of the command and of its output.
    pub(crate) fn ends(&mut self) -> ExitStatus {
        let status = poll(LONGEST, || self.child.try_wait().expect("can be waited for"));
        let Some(status) = status else {
            self.child.kill().expect("can be killed");
            panic!("it does not end: {}", String::from_utf8_lossy(&self.bytes()));
        };
        // What was written before the end is in the terminal's buffer: it is read when nothing more comes.
        let mut before = usize::MAX;
        poll(Duration::from_secs(5), || {
            let now = self.bytes().len();
            (std::mem::replace(&mut before, now) == now).then_some(())
        });
        status
    }
}

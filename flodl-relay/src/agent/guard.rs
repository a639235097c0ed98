//! The guard: a process that outlives the relay by a moment and kills what the relay left behind.
//!
//! Its standard input is a pipe from the relay. Lines `+ID` and `-ID` name process groups that have come and gone; at end
//! of file it kills those that are left, and ends.

use super::{Program, kill_group};
use rustix::process::{Pid, setsid};
use std::collections::BTreeSet;
use std::io::{self, BufRead, PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

/// The relay's end of the guard.
pub(super) struct Guard {
    pipe: Mutex<Option<PipeWriter>>,
    child: Mutex<Child>,
}

impl Guard {
    /// Starts the guard.
    pub(super) fn start(program: &Program) -> io::Result<Guard> {
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new(&program.path);
        command.args(&program.args).stdin(reader).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: `detach` makes system calls only: it neither allocates nor locks, which is what a forked child may do.
        unsafe { command.pre_exec(detach) };
        let child = command.spawn()?;
        Ok(Guard { pipe: Mutex::new(Some(writer)), child: Mutex::new(child) })
    }

    /// What a rank needs to announce its group before its program runs; later would be too late, because a program may have
    /// children at once.
    ///
    /// # Errors
    ///
    /// Where the guard has ended: nothing may be started unguarded.
    pub(super) fn announcer(&self) -> io::Result<Announcer> {
        if self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait()?.is_some() {
            return Err(io::Error::other("the guard process has ended"));
        }
        match self.pipe.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(pipe) => Ok(Announcer(pipe.try_clone()?)),
            None => Err(io::Error::other("the relay is ending")),
        }
    }

    /// A group is gone. So is what a guard that has ended itself was good for: that is not worth an error here.
    pub(super) fn remove(&self, group: Pid) {
        if let Some(pipe) = self.pipe.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            match pipe.write_all(line(b'-', group).bytes()) {
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// A rank's way to the guard, used between fork and exec.
pub(super) struct Announcer(PipeWriter);

impl Announcer {
    /// Announces `group` with one system call: it neither allocates nor locks.
    pub(super) fn announce(&self, group: Pid) -> io::Result<()> {
        let line = line(b'+', group);
        // A line is shorter than a pipe's atomic size: it is written whole or not at all.
        rustix::io::write(&self.0, line.bytes())?;
        Ok(())
    }
}

/// A line of the guard's input, on the stack.
struct Line {
    bytes: [u8; 12],
    start: usize,
}

impl Line {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

fn line(sign: u8, group: Pid) -> Line {
    let mut line = Line { bytes: *b"           \n", start: 11 };
    let mut rest = group.as_raw_nonzero().get().unsigned_abs();
    while rest > 0 {
        line.start -= 1;
        line.bytes[line.start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    line.start -= 1;
    line.bytes[line.start] = sign;
    line
}

impl Guard {
    /// Ends the guard: whoever is left to end it has killed every group, so there is nothing that it could still do. It is
    /// killed and not waited for to notice, because a stopped guard would never notice.
    pub(super) fn end(&self) {
        *self.pipe.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = child.kill().and_then(|()| child.wait()) {
            debug_assert!(false, "the guard is a child of this process: {error}");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs in the forked child: leaves the terminal's session, ignores the signals that end a session, and lets no inherited
/// descriptor but the standard ones through.
fn detach() -> io::Result<()> {
    setsid()?;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: `signal` is async-signal-safe, and SIG_IGN is a valid disposition for these signals; it survives exec.
        if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    // A descriptor that this process inherited without close-on-exec must not be kept open by the guard. Kernels older than
    // 5.11 do not know the flag; there the guard keeps what its parent had inherited.
    // SAFETY: a system call on integers; it marks descriptors close-on-exec and touches no memory.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Ok(())
}

/// The guard's whole life: follows its standard input, and at its end kills the groups that are left.
///
/// A program that owns an [`Agent`](super::Agent) calls this when it was started as the guard, and exits with what it
/// returns.
#[must_use]
pub fn guard_main() -> ExitCode {
    let mut groups = Groups::default();
    // A read error leaves the guard blind, and then killing is what it is for.
    io::stdin().lock().lines().map_while(Result::ok).for_each(|line| groups.note(&line));
    groups.0.into_iter().filter_map(Pid::from_raw).for_each(kill_group);
    ExitCode::SUCCESS
}

/// The groups that are alive as far as the guard was told.
#[derive(Default, Debug, PartialEq)]
struct Groups(BTreeSet<i32>);

impl Groups {
    /// Takes a line. Ids below 2 are refused: to the kernel "group 1" and "group 0" mean every process and the own group.
    fn note(&mut self, line: &str) {
        let group = |id: &str| id.parse::<i32>().ok().filter(|&id| id > 1);
        if let Some(group) = line.strip_prefix('+').and_then(group) {
            self.0.insert(group);
        } else if let Some(group) = line.strip_prefix('-').and_then(group) {
            self.0.remove(&group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_line_is_what_the_guard_reads() {
        for (id, text) in [(2, "+2\n"), (90_210, "+90210\n"), (i32::MAX - 1, "+2147483646\n")] {
            assert_eq!(line(b'+', Pid::from_raw(id).unwrap()).bytes(), text.as_bytes());
        }
    }

    #[test]
    fn groups_come_and_go_and_nonsense_is_ignored() {
        let mut groups = Groups::default();
        for line in ["+41", "+42", "-41", "+0", "+1", "+-7", "", "+", "é9", "-99", "43", "+44 ", "+44"] {
            groups.note(line);
        }
        assert_eq!(groups.0.into_iter().collect::<Vec<_>>(), [42, 44]);
    }
}

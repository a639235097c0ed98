//! The checkpoint set that the controller writes: one at a time, of a consensus that nobody can change any more.

use crate::context::Context;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::{Time, Version};

/// What is being written, and what is.
#[derive(Debug, Default)]
pub(crate) struct Saving {
    /// What is being written, and until when somebody waits for it: one, and the end's beside it.
    pending: Vec<(Version, Time)>,
    /// The newest that is written.
    written: Option<Version>,
}

impl Saving {
    /// Whether that version is to be written: not while another one is, and not twice.
    pub(crate) fn wants(&self, version: Version) -> bool {
        !self.is_busy() && !self.is_written(version)
    }

    /// Whether any version is being written.
    pub(crate) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether that version is being written.
    pub(crate) fn is_writing(&self, version: Version) -> bool {
        self.pending.iter().any(|(pending, _)| *pending == version)
    }

    pub(crate) fn is_written(&self, version: Version) -> bool {
        self.written == Some(version)
    }

    /// It is asked for.
    pub(crate) fn begin(&mut self, ctx: &Context<'_>, version: Version) {
        self.pending.push((version, ctx.now.plus(ctx.deadlines.callback)));
    }

    /// It is written, or not, and training goes on either way. Whether somebody waited for it.
    pub(crate) fn done(
        &mut self,
        ctx: &mut Context<'_>,
        version: Version,
        result: Result<String, String>,
    ) -> Option<bool> {
        let at = self.pending.iter().position(|(pending, _)| *pending == version)?;
        self.pending.remove(at);
        let written = result.is_ok();
        if written {
            self.written = Some(version);
        }
        let (path, why) = match result {
            Ok(path) => (Some(path), None),
            Err(error) => (None, Some(Reason::new("not-saved", format!("the checkpoint was not written: {error}")))),
        };
        ctx.event(EventKind::Checkpoint { version, path }, why);
        Some(written)
    }

    /// Gives up what is not written in time.
    pub(crate) fn overdue(&mut self, ctx: &mut Context<'_>) {
        let late = self.pending.iter().filter(|(_, until)| ctx.now >= *until);
        for version in late.map(|&(version, _)| version).collect::<Vec<Version>>() {
            self.done(ctx, version, Err(format!("not done within {:?}", ctx.deadlines.callback)));
        }
    }

    /// When [`Saving::overdue`] has something to say.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.pending.iter().map(|&(_, until)| until).min()
    }
}

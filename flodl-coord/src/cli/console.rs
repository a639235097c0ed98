//! What people see while a run goes on: lines and one refreshed progress line, on standard error.

use core::time::Duration;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

/// Between two progress lines where they are not refreshed in place.
pub(crate) const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Standard error, shared by everybody who has a line for it.
#[derive(Clone, Debug)]
pub(crate) struct Console {
    bar: ProgressBar,
    terminal: bool,
}

impl Console {
    /// The process's standard error. It has no colours, so there is nothing for `NO_COLOR` to turn off.
    pub(crate) fn stderr() -> Console {
        let terminal = io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
            bar.set_style(style);
        }
        Console { bar, terminal }
    }

    /// Prints a line above the progress line.
    pub(crate) fn line(&self, text: &str) {
        // One write a line, so that lines of several threads do not mix. A terminal that is gone cannot be told so.
        let print = || io::stderr().write_all(format!("{text}\n").as_bytes()).ok();
        self.bar.suspend(print);
    }

    /// A line of flodl itself, told apart from those of ranks.
    pub(crate) fn say(&self, text: &str) {
        self.line(&format!("flodl: {text}"));
    }

    /// Whether progress is refreshed in place (and may come often) or is a line like any other.
    pub(crate) fn refreshes(&self) -> bool {
        self.terminal
    }

    /// Shows where the run is.
    pub(crate) fn progress(&self, text: &str) {
        if self.terminal {
            self.bar.set_message(text.to_owned());
        } else {
            self.say(text);
        }
    }

    /// Takes the progress line away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// A sink for the lines of ranks.
    pub(crate) fn sink(&self) -> Arc<dyn Fn(&str) + Send + Sync> {
        let console = self.clone();
        Arc::new(move |text| console.line(text))
    }
}

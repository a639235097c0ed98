//! How lines look: what stands before them, and in which colour, if any.

use clap::ValueEnum;
use flodl_wire::Rank;
use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};

/// When to use colours.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How urgent a line of flodl itself is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it should be.
    Plain,
    /// Something a person should look at.
    Warning,
    /// Something is lost.
    Bad,
}

/// A line and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// flodl's own.
    Own(Tone, String),
    /// A rank's.
    Rank(Rank, String),
}

/// How the console looks.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Lines have colours.
    pub(crate) color: bool,
    /// There is a bar below them.
    pub(crate) bar: bool,
    /// Nothing is shown but what a person must know.
    pub(crate) quiet: bool,
}

/// What the environment says of standard error.
#[derive(Copy, Clone, Debug, Default)]
struct Surroundings<'a> {
    terminal: bool,
    term: Option<&'a OsStr>,
    no_color: Option<&'a OsStr>,
}

/// Colours that can be told apart, one after another for ranks: cyan, magenta, green, blue, yellow and their bright forms.
/// Red is for what is lost.
const RANKS: [&str; 10] = ["36", "35", "32", "34", "33", "96", "95", "92", "94", "93"];

impl Look {
    /// How standard error of this process looks.
    pub(crate) fn of_stderr(color: Color, quiet: bool) -> Look {
        let (term, no_color) = (env::var_os("TERM"), env::var_os("NO_COLOR"));
        let terminal = io::stderr().is_terminal();
        Look::of(color, quiet, Surroundings { terminal, term: term.as_deref(), no_color: no_color.as_deref() })
    }

    fn of(color: Color, quiet: bool, around: Surroundings<'_>) -> Look {
        // A terminal without a name is taken for one that knows nothing, as `dumb` says of itself.
        let moves = around.terminal && around.term.is_some_and(|term| !term.is_empty() && term != "dumb");
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => moves && around.no_color.is_none_or(OsStr::is_empty),
        };
        Look { color, bar: moves && !quiet, quiet }
    }

    /// A line as it is written, without its end.
    pub(crate) fn dress(self, said: &Said) -> String {
        let (prefix, code, text) = match said {
            Said::Own(tone, text) => ("flodl:".to_owned(), tone.code(), text),
            Said::Rank(rank, text) => (format!("rank {} |", rank.0), RANKS[rank.0 as usize % RANKS.len()], text),
        };
        let line = if self.color { format!("\x1b[{code}m{prefix}\x1b[0m {text}") } else { format!("{prefix} {text}") };
        line.trim_end().to_owned()
    }
}

impl Tone {
    /// Select Graphic Rendition: bold, and yellow or red.
    fn code(self) -> &'static str {
        match self {
            Tone::Plain => "1",
            Tone::Warning => "1;33",
            Tone::Bad => "1;31",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_bar_are_where_they_can_be_seen_and_are_wanted() {
        let around = |terminal, term: Option<&'static str>, no_color: Option<&'static str>| Surroundings {
            terminal,
            term: term.map(OsStr::new),
            no_color: no_color.map(OsStr::new),
        };
        let xterm = Some("xterm");
        for (color, quiet, around, expected) in [
            (Color::Auto, false, around(true, xterm, None), (true, true)),
            (Color::Auto, false, around(true, xterm, Some("")), (true, true)),
            (Color::Auto, false, around(true, xterm, Some("0")), (false, true)),
            (Color::Auto, true, around(true, xterm, None), (true, false)),
            (Color::Auto, false, around(true, Some("dumb"), None), (false, false)),
            (Color::Auto, false, around(true, None, None), (false, false)),
            (Color::Auto, false, around(false, xterm, None), (false, false)),
            (Color::Always, false, around(false, xterm, Some("1")), (true, false)),
            (Color::Never, false, around(true, xterm, None), (false, true)),
        ] {
            let look = Look::of(color, quiet, around);
            assert_eq!((look.color, look.bar), expected, "{color:?} {quiet} {around:?}");
        }
    }

    #[test]
    fn everybody_has_a_prefix() {
        let (plain, colored) =
            (Look { color: false, bar: false, quiet: false }, Look { color: true, bar: true, quiet: false });
        let own = |tone| Said::Own(tone, "text".to_owned());
        let rank = |rank| Said::Rank(Rank(rank), "text".to_owned());
        assert_eq!(plain.dress(&own(Tone::Bad)), "flodl: text");
        assert_eq!(plain.dress(&rank(12)), "rank 12 | text");
        assert_eq!(plain.dress(&Said::Rank(Rank(0), String::new())), "rank 0 |");
        assert_eq!(colored.dress(&own(Tone::Plain)), "\x1b[1mflodl:\x1b[0m text");
        assert_eq!(colored.dress(&own(Tone::Bad)), "\x1b[1;31mflodl:\x1b[0m text");
        assert_eq!(colored.dress(&rank(1)), "\x1b[35mrank 1 |\x1b[0m text");
        assert_ne!(colored.dress(&rank(1)).replace('1', ""), colored.dress(&rank(2)).replace('2', ""));
        assert_eq!(colored.dress(&rank(u32::MAX)), "\x1b[96mrank 4294967295 |\x1b[0m text");
    }
}

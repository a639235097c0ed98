//! The bytes that put lines on a terminal above a bar of one row.

/// Knows what stands in the terminal's last row.
#[derive(Debug, Default)]
pub(crate) struct Painter {
    /// The bar as it stands there; `None`: the cursor is at the start of an empty row.
    bar: Option<String>,
}

/// To the start of the row, and the row emptied.
const CLEAR: &str = "\r\x1b[2K";

impl Painter {
    /// What to write so that `lines` stand above and `bar` is the last row. Where there has never been a bar this is the
    /// lines alone, without a control character.
    pub(crate) fn paint(&mut self, lines: impl Iterator<Item = String>, bar: Option<String>) -> String {
        let mut text = String::new();
        let mut lines = lines.peekable();
        if lines.peek().is_none() && self.bar == bar {
            return text;
        }
        if self.bar.is_some() {
            text.push_str(CLEAR);
        }
        for line in lines {
            text.push_str(&line);
            text.push('\n');
        }
        text.push_str(bar.as_deref().unwrap_or_default());
        self.bar = bar;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_above_the_bar_and_nothing_is_left_of_it() {
        let mut painter = Painter::default();
        for (lines, bar, expected) in [
            (&["one", "two"][..], None, "one\ntwo\n"),
            (&[], None, ""),
            (&[], Some("[>  ] 1%"), "[>  ] 1%"),
            (&[], Some("[>  ] 1%"), ""),
            (&["three"], Some("[>  ] 1%"), "\r\x1b[2Kthree\n[>  ] 1%"),
            (&[], Some("[=> ] 2%"), "\r\x1b[2K[=> ] 2%"),
            (&["four"], None, "\r\x1b[2Kfour\n"),
            (&["five"], None, "five\n"),
            (&[], Some("again"), "again"),
            (&[], None, "\r\x1b[2K"),
        ] {
            let lines = lines.iter().map(|line| (*line).to_owned());
            assert_eq!(painter.paint(lines, bar.map(str::to_owned)), expected);
        }
    }
}

//! A terminal's screen, as far as the program's output needs one: rows that wrap, carriage return, and erasing a row.

/// What a terminal of so many columns and endless rows shows.
pub(crate) struct Screen {
    columns: usize,
    rows: Vec<String>,
    /// The cursor's column in the last row.
    column: usize,
}

impl Screen {
    /// The screen after `bytes`. Any sequence that is not known here is a failure: the program uses no other.
    pub(crate) fn of(columns: u16, bytes: &[u8]) -> Screen {
        let mut screen = Screen { columns: columns.into(), rows: vec![String::new()], column: 0 };
        let text = String::from_utf8_lossy(bytes);
        let mut rest = text.as_ref();
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match c {
                '\n' => screen.next_row(),
                '\r' => screen.column = 0,
                '\u{1b}' => {
                    let end = rest.find(|c: char| c.is_ascii_alphabetic()).expect("a sequence has an end");
                    match &rest[..=end] {
                        "[2K" => screen.rows.last_mut().expect("has rows").clear(),
                        color if color.ends_with('m') => {}
                        other => panic!("the sequence {other:?} is not known"),
                    }
                    rest = &rest[end + 1..];
                }
                c => screen.put(c),
            }
        }
        screen
    }

    fn put(&mut self, c: char) {
        if self.column == self.columns {
            self.next_row();
        }
        let row = self.rows.last_mut().expect("has rows");
        let mut chars: Vec<char> = row.chars().collect();
        chars.resize(chars.len().max(self.column + 1), ' ');
        chars[self.column] = c;
        *row = chars.into_iter().collect();
        self.column += 1;
    }

    fn next_row(&mut self) {
        self.rows.push(String::new());
        self.column = 0;
    }

    pub(crate) fn rows(&self) -> &[String] {
        &self.rows
    }

    /// All rows, those that wrapped put together again where they are full.
    pub(crate) fn text(&self) -> String {
        let full = |row: &String| row.chars().count() == self.columns;
        self.rows.iter().map(|row| if full(row) { row.clone() } else { format!("{row}\n") }).collect()
    }
}

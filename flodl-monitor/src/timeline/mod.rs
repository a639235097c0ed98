//! The timeline: every record as one line of JSON, in `timeline.jsonl`, `timeline.1.jsonl`, `timeline.2.jsonl`, ...
//!
//! A file is only ever appended to, by one process, in writes that end with a line's end; so only the last line of a
//! file can be torn, and only by a crash. A file is never renamed, and a later process starts a file of its own: what
//! was written once stays where it is.

mod read;
mod write;

pub use read::{ReadError, Reader, Records};
pub use write::{Folder, Parts, SinkError, Timeline};

/// The longest line written or read, in bytes. The longest real ones (a plan for tens of thousands of ranks) are a few
/// MiB.
pub const MAX_LINE: usize = 16 * 1024 * 1024;

/// The name of the timeline's file `part`, from 0.
#[must_use]
pub fn file_name(part: u32) -> String {
    match part {
        0 => "timeline.jsonl".to_owned(),
        part => format!("timeline.{part}.jsonl"),
    }
}

/// Which file of a timeline is called `name`.
fn part_of(name: &str) -> Option<u32> {
    let part = match name.strip_prefix("timeline.")? {
        "jsonl" => 0,
        rest => rest.strip_suffix(".jsonl")?.parse().ok()?,
    };
    (file_name(part) == name).then_some(part)
}

#[cfg(test)]
mod tests;

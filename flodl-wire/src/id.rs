//! Who and what the messages speak of: ranks, hosts, runs, rounds, and ranges of sample positions.

use crate::hex;
use core::fmt;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $show:literal) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($show, "{}"), self.0)
            }
        }
    };
}

number!(
    /// One device, one training process. Given by the controller at admission: lowest free number first.
    Rank(u32), "rank "
);
number!(
    /// A rank's nth life, from 1. Given by the controller alone.
    Incarnation(u32), "incarnation "
);
number!(
    /// A connection of a relay (or of a rank to its relay), given by the side that accepted it; never used again.
    SessionId(u64), "session "
);
number!(
    /// One pass over the dataset's positions, from 0.
    Epoch(u64), "epoch "
);
number!(
    /// One average, from 0. Round 0 spreads the first parameters.
    Round(u64), "round "
);
number!(
    /// The work between two averages, from 1. A window that is planned again gets a new number.
    WindowId(u64), "window "
);
number!(
    /// How many rounds after round 0 have committed: version 0 is what round 0 spread.
    Version(u64), "version "
);

number!(
    /// A communicator of the run, from 1: each attempt to form one has its own number, and they only grow.
    NcclSession(u64), "NCCL session "
);

impl Version {
    /// The version after this one.
    #[must_use]
    pub fn next(self) -> Version {
        Version(self.0.saturating_add(1))
    }
}

macro_rules! sixteen_bytes {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 16]);

        /// Sixteen bytes on the wire; text where people read it.
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() { serializer.serialize_str(&self.text()) } else { self.0.serialize(serializer) }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if !deserializer.is_human_readable() {
                    return <[u8; 16]>::deserialize(deserializer).map($name);
                }
                let text = String::deserialize(deserializer)?;
                $name::from_text(&text).ok_or_else(|| D::Error::custom(concat!("not a ", stringify!($name))))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

sixteen_bytes!(
    /// Names a training run. 16 random bytes, shown as 32 hexadecimal digits.
    RunId
);
sixteen_bytes!(
    /// Names a host within a run: its name, cut or filled with zeros to 16 bytes. See [`HostId::from_name`].
    HostId
);

impl RunId {
    fn text(&self) -> String {
        self.to_string()
    }

    /// The id that is shown as `text`: 32 hexadecimal digits.
    #[must_use]
    pub fn from_text(text: &str) -> Option<RunId> {
        hex::parse(text).map(|bytes| RunId(*bytes))
    }
}

impl HostId {
    fn text(&self) -> String {
        self.name()
    }

    /// The id that [`HostId::name`] shows as `text`: a host's name, or 32 hexadecimal digits.
    #[must_use]
    pub fn from_text(text: &str) -> Option<HostId> {
        HostId::from_name(text).or_else(|| hex::parse(text).map(|bytes| HostId(*bytes)))
    }

    /// The id of the host called `name`: its UTF-8 bytes, filled with zeros. `None` where `name` is empty, longer than
    /// 16 bytes or holds anything but ASCII letters, digits, `-`, `_` and `.`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<HostId> {
        let ok = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > 16 || !name.bytes().all(ok) {
            return None;
        }
        let mut id = [0; 16];
        id.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        Some(HostId(id))
    }

    /// The host's name, where the id was made from one; else its hexadecimal digits.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.0.split(|&byte| byte == 0).next().unwrap_or_default();
        match core::str::from_utf8(name) {
            Ok(name) if HostId::from_name(name) == Some(*self) => name.to_owned(),
            _ => self.to_string(),
        }
    }
}

/// Positions `start..end` of an epoch's order (not dataset indices: the epoch's permutation maps one to the other).
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Range {
    /// The first position.
    pub start: u64,
    /// One past the last position; at least `start`.
    pub end: u64,
}

impl Range {
    /// How many positions; 0 where `end` is not past `start` (a hostile range).
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it holds no position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How many positions the ranges hold together; saturates.
#[must_use]
pub fn samples(ranges: &[Range]) -> u64 {
    ranges.iter().fold(0, |sum, range| sum.saturating_add(range.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_survive_and_odd_ones_are_refused() {
        for name in ["a", "box-2.lan", "sixteen-bytes-ok"] {
            assert_eq!(HostId::from_name(name).map(|id| id.name()), Some(name.to_owned()));
        }
        for name in ["", "seventeen-bytes-x", "a b", "../up", "é"] {
            assert_eq!(HostId::from_name(name), None, "{name}");
        }
        assert_eq!(HostId([7; 16]).name(), "07".repeat(16));
        for id in [HostId([7; 16]), HostId::from_name("box-2.lan").expect("a name")] {
            assert_eq!(HostId::from_text(&id.name()), Some(id));
        }
        assert_eq!(RunId::from_text(&RunId([0xa5; 16]).to_string()), Some(RunId([0xa5; 16])));
        for text in ["", "a5", &"g".repeat(32), &"é".repeat(16)] {
            assert_eq!(RunId::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn hostile_ranges_are_empty() {
        assert!(Range { start: 9, end: 3 }.is_empty());
        let all = Range { start: 0, end: u64::MAX };
        assert_eq!(samples(&[all, all]), u64::MAX);
    }
}

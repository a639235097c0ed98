//! A ticket: the file that lets one host join one run.
//!
//! ```text
//! flodl ticket 1
//! address  = 10.0.0.7:29500
//! run      = 000102030405060708090a0b0c0d0e0f
//! host     = box-2
//! host-key = <64 hexadecimal digits>
//! gate-key = <64 hexadecimal digits>
//! ```
//!
//! The first line names the format. Each other line is `name = value`; order and the space around both do not matter, empty
//! lines and lines that begin with `#` are skipped, every name must be there once.

use super::{GateKey, HostKey, Key};
use crate::hex;
use crate::limits::{ADDRESS_MAX, TICKET_TEXT};
use crate::{HostId, RunId};
use thiserror::Error;
use zeroize::Zeroizing;

const FIRST_LINE: &str = "flodl ticket 1";
const NAMES: [&str; 5] = ["address", "run", "host", "host-key", "gate-key"];

/// What a host needs to join a run: where the controller is, and the keys of that host in that run.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// `host:port` of the controller.
    pub address: String,
    /// The run.
    pub run_id: RunId,
    /// The host it is for.
    pub host_id: HostId,
    /// The host's key.
    pub host_key: HostKey,
    /// The run's gate key.
    pub gate_key: GateKey,
}

/// Why a text is not a ticket. Never quotes a value: it may be a key on the wrong line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TicketError {
    /// Longer than a ticket can be.
    #[error("this is not a ticket: it is longer than {TICKET_TEXT} bytes")]
    TooLong,
    /// The first line is not a ticket's.
    #[error("line 1: this is not a ticket of this version, its first line must be \"{FIRST_LINE}\"")]
    FirstLine,
    /// A line that is not `name = value`.
    #[error("line {line}: expected \"name = value\"")]
    NotAField {
        /// Which line, from 1.
        line: usize,
    },
    /// A name that no ticket has.
    #[error("line {line}: a ticket has no such field; it has address, run, host, host-key and gate-key")]
    Unknown {
        /// Which line, from 1.
        line: usize,
    },
    /// The same name again.
    #[error("line {line}: {name} is there twice")]
    Twice {
        /// Which line, from 1.
        line: usize,
        /// The name.
        name: &'static str,
    },
    /// A value of the wrong form.
    #[error("line {line}: {name} must be {expected}")]
    Value {
        /// Which line, from 1.
        line: usize,
        /// The field.
        name: &'static str,
        /// Its form.
        expected: &'static str,
    },
    /// A name that is not there.
    #[error("the ticket ends without {name}: make a new one with \"flodl ticket\"")]
    Missing {
        /// The name.
        name: &'static str,
    },
}

impl Ticket {
    /// The ticket's file. It holds keys: write it with mode 0600. The text is overwritten when it is dropped.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        // Room for all of it: a text that grows would leave copies of keys behind.
        let mut text = Zeroizing::new(String::with_capacity(TICKET_TEXT));
        text.push_str(FIRST_LINE);
        text.push_str(
            "\n# Whoever holds this file can join the run as this host. Keep it to its owner (mode 0600).\naddress  = ",
        );
        text.push_str(&self.address);
        text.push_str("\nrun      = ");
        hex::push(&mut text, &self.run_id.0);
        text.push_str("\nhost     = ");
        text.push_str(&self.host_id.name());
        text.push_str("\nhost-key = ");
        hex::push(&mut text, self.host_key.expose());
        text.push_str("\ngate-key = ");
        hex::push(&mut text, self.gate_key.expose());
        text.push('\n');
        text
    }

    /// The ticket that `text` is.
    ///
    /// # Errors
    ///
    /// Where it is not one, naming the line.
    pub fn parse(text: &str) -> Result<Ticket, TicketError> {
        if text.len() > TICKET_TEXT {
            return Err(TicketError::TooLong);
        }
        let fields = Fields::parse(text)?;
        let run = fields.value("run", "32 hexadecimal digits", hex::parse::<16>)?;
        Ok(Ticket {
            address: fields.value("address", "\"host:port\"", parse_address)?,
            run_id: RunId(*run),
            host_id: fields.value(
                "host",
                "a host name of at most 16 letters, digits, '-', '_', '.'",
                HostId::from_text,
            )?,
            host_key: HostKey(Key::from_bytes(&*fields.value("host-key", KEY_FORM, hex::parse::<32>)?)),
            gate_key: GateKey(Key::from_bytes(&*fields.value("gate-key", KEY_FORM, hex::parse::<32>)?)),
        })
    }
}

const KEY_FORM: &str = "64 hexadecimal digits";

/// The value of each of [`NAMES`] with its line.
struct Fields<'a>([Option<(usize, &'a str)>; NAMES.len()]);

impl<'a> Fields<'a> {
    fn parse(text: &'a str) -> Result<Fields<'a>, TicketError> {
        let mut lines = text.lines().map(str::trim).zip(1usize..);
        if lines.next().is_none_or(|(first, _)| first != FIRST_LINE) {
            return Err(TicketError::FirstLine);
        }
        let mut fields = Fields([None; NAMES.len()]);
        for (text, line) in lines.filter(|(text, _)| !text.is_empty() && !text.starts_with('#')) {
            let (name, value) = text.split_once('=').ok_or(TicketError::NotAField { line })?;
            let mut known = NAMES.into_iter().zip(&mut fields.0);
            let (name, field) = known.find(|(known, _)| *known == name.trim()).ok_or(TicketError::Unknown { line })?;
            if field.replace((line, value.trim())).is_some() {
                return Err(TicketError::Twice { line, name });
            }
        }
        Ok(fields)
    }

    fn value<T>(
        &self,
        name: &'static str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, TicketError> {
        let field = NAMES.iter().zip(&self.0).find(|(known, _)| **known == name).and_then(|(_, field)| *field);
        let (line, text) = field.ok_or(TicketError::Missing { name })?;
        parse(text).ok_or(TicketError::Value { line, name, expected })
    }
}

fn parse_address(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let ok = text.len() <= ADDRESS_MAX && !host.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
    (ok && port.parse::<u16>().is_ok_and(|port| port != 0)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    fn ticket() -> Ticket {
        let secret = Secret::from_bytes([9; 32]);
        let (run_id, host_id) = (RunId([0xa5; 16]), HostId([3; 16]));
        let address = "[::1]:4711".to_owned();
        Ticket { address, run_id, host_id, host_key: secret.host_key(run_id, host_id), gate_key: secret.gate_key() }
    }

    #[test]
    fn survives_its_text() {
        for host in ["box-2", "0123456789abcdef"] {
            let ticket = Ticket { host_id: HostId::from_name(host).unwrap(), ..ticket() };
            let back = Ticket::parse(&ticket.to_text()).unwrap();
            assert_eq!((&back.address, back.run_id, back.host_id), (&ticket.address, ticket.run_id, ticket.host_id));
            assert_eq!(back.host_key.expose(), ticket.host_key.expose());
            assert_eq!(back.gate_key.expose(), ticket.gate_key.expose());
        }
        assert_eq!(Ticket::parse(&ticket().to_text()).unwrap().host_id, ticket().host_id, "an id without a name");
    }

    #[test]
    fn space_comments_order_and_line_ends_do_not_matter() {
        let text = ticket().to_text();
        let mut lines: Vec<&str> = text.lines().collect();
        lines[1..].reverse();
        let text = lines.join("  \r\n\r\n# note\r\n").replace(" = ", "=");
        assert_eq!(Ticket::parse(&text).map(|ticket| ticket.run_id), Ok(RunId([0xa5; 16])));
    }

    #[test]
    fn errors_name_the_line() {
        let good = ticket().to_text().replacen("\n#", "\n\n#", 1);
        let line = |n: usize| good.lines().nth(n - 1).unwrap().to_owned();
        let with = |n: usize, new: &str| good.replace(&line(n), new);
        let value = |n, name, expected| TicketError::Value { line: n, name, expected };
        let cases = [
            ("hello".to_owned(), TicketError::FirstLine),
            (String::new(), TicketError::FirstLine),
            (with(1, "flodl ticket 2"), TicketError::FirstLine),
            (with(4, "address 10.0.0.1:5"), TicketError::NotAField { line: 4 }),
            (with(4, "adress = 10.0.0.1:5"), TicketError::Unknown { line: 4 }),
            (with(4, &line(5)), TicketError::Twice { line: 5, name: "run" }),
            (with(4, ""), TicketError::Missing { name: "address" }),
            (with(4, "address = 10.0.0.1"), value(4, "address", "\"host:port\"")),
            (with(4, "address = a:0"), value(4, "address", "\"host:port\"")),
            (with(5, "run = 12"), value(5, "run", "32 hexadecimal digits")),
            (with(7, "host-key = x"), value(7, "host-key", KEY_FORM)),
            (with(8, "gate-key = é"), value(8, "gate-key", KEY_FORM)),
            ("x".repeat(TICKET_TEXT + 1), TicketError::TooLong),
        ];
        for (text, expected) in cases {
            assert_eq!(Ticket::parse(&text).map(|_| ()), Err(expected), "{text}");
        }
        assert_eq!(
            Ticket::parse(&with(6, "host = a b")).unwrap_err().to_string(),
            "line 6: host must be a host name of at most 16 letters, digits, '-', '_', '.'"
        );
    }

    #[test]
    fn debug_shows_everything_but_the_keys() {
        let (run, host) = ("a5".repeat(16), "03".repeat(16));
        let expected = format!(
            "Ticket {{ address: \"[::1]:4711\", run_id: RunId({run}), host_id: HostId({host}), \
             host_key: HostKey(hidden), gate_key: GateKey(hidden) }}"
        );
        assert_eq!(format!("{:?}", ticket()), expected);
    }
}

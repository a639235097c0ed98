//! Frames become inputs or an error here, and nowhere else: what comes out names a sender that may say it.

use crate::Input;
use flodl_wire::codec::DecodeError;
use flodl_wire::{Frame, Incarnation, Kind, Rank, SessionId, Stream};

/// A frame that a control connection has no business sending: the connection is closed.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum EdgeError {
    /// Its payload is no message.
    #[error("a message that cannot be read: {0}")]
    Unreadable(#[from] DecodeError),
    /// Its kind and stream do not go together, or travel the other way.
    #[error("a {kind:?} frame on {stream:?}, which a relay does not send here")]
    Misplaced { kind: Kind, stream: Stream },
}

/// The input behind a frame that came through `session`'s control connection. Whether the session may speak for the rank
/// is asked of the core, by [`speaker`].
pub(crate) fn input(session: SessionId, frame: &Frame) -> Result<Input, EdgeError> {
    match (frame.kind, frame.stream) {
        (Kind::HostReport, Stream::Host) => Ok(Input::FromHost { session, report: frame.to_host_report()? }),
        (Kind::Report, Stream::Rank(rank)) => {
            Ok(Input::FromRank { session, rank, incarnation: frame.incarnation, report: frame.to_report()? })
        }
        (kind, stream) => Err(EdgeError::Misplaced { kind, stream }),
    }
}

/// The rank that an input speaks for, with its life. (Whom a fold waits for is named without one: that is the core's to check.)
pub(crate) fn speaker(input: &Input) -> Option<(Rank, Incarnation)> {
    input.speaks_as().map(|(_, rank, incarnation)| (rank, incarnation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flodl_wire::message::{Control, HostReport, Report};

    const SESSION: SessionId = SessionId(3);

    #[test]
    fn reports_become_inputs() {
        let frame = Frame::report(Rank(2), Incarnation(1), &Report::Heartbeat { step: 5 }).expect("fits");
        let got = input(SESSION, &frame).expect("is right");
        assert_eq!(speaker(&got), Some((Rank(2), Incarnation(1))));
        let frame = Frame::host_report(&HostReport::Heartbeat).expect("fits");
        let got = input(SESSION, &frame).expect("is right");
        assert_eq!(got, Input::FromHost { session: SESSION, report: HostReport::Heartbeat });
        assert_eq!(speaker(&got), None);
        let up = HostReport::RankUp { rank: Rank(7), incarnation: Incarnation(2), pid: 1 };
        let got = input(SESSION, &Frame::host_report(&up).expect("fits")).expect("is right");
        assert_eq!(speaker(&got), Some((Rank(7), Incarnation(2))));
    }

    #[test]
    fn what_a_relay_does_not_send_is_an_error() {
        let mut frame = Frame::host_report(&HostReport::Heartbeat).expect("fits");
        frame.stream = Stream::Rank(Rank(0));
        assert!(matches!(input(SESSION, &frame), Err(EdgeError::Misplaced { .. })));
        let frame = Frame::control(Stream::Host, Incarnation(0), &Control::Shutdown).expect("fits");
        assert!(matches!(input(SESSION, &frame), Err(EdgeError::Misplaced { .. })));
        let mut frame = Frame::report(Rank(2), Incarnation(1), &Report::Heartbeat { step: 5 }).expect("fits");
        frame.payload = vec![0xff; 9].into();
        assert!(matches!(input(SESSION, &frame), Err(EdgeError::Unreadable(_))));
    }
}

//! Who may connect as which rank, who has, and what a rank's connection may carry.

use flodl_wire::frame::{Frame, Kind, Stream};
use flodl_wire::handshake::{Channel, Hello, Role};
use flodl_wire::message::Data;
use flodl_wire::{Incarnation, Rank, SessionId};
use std::collections::BTreeMap;

/// An authenticated connection of a rank, numbered by the shell; a number is never used again.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

/// Whose connection it is, as the handshake proved.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who.
    pub rank: Rank,
    /// Which life.
    pub incarnation: Incarnation,
    /// What it carries.
    pub channel: Channel,
    /// The session of its control connection, which a data connection names.
    pub session: SessionId,
}

/// Why somebody may not connect. The text is what the other side is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// Only ranks connect here.
    #[error("this is a relay's socket for its own ranks: a {role} connects to the controller")]
    Role {
        /// What it is.
        role: &'static str,
    },
    /// A rank that this relay does not run.
    #[error("{rank} does not run under this relay; it has {here:?}")]
    Unknown {
        /// Who it says it is.
        rank: Rank,
        /// Ranks of this relay.
        here: Vec<u32>,
    },
    /// Another life of a rank.
    #[error("{rank} is in its {ours} here and says that it is in {theirs}: start it through its relay")]
    Life {
        /// Who.
        rank: Rank,
        /// The life that runs.
        ours: Incarnation,
        /// The life it says it is.
        theirs: Incarnation,
    },
    /// A second connection of the same kind.
    #[error("{rank} is already here with a {channel} connection")]
    Taken {
        /// Who.
        rank: Rank,
        /// Which of its two connections.
        channel: Channel,
    },
    /// A data connection without its control connection.
    #[error("{rank} names {session} for its data, which is not the session of its control connection")]
    Session {
        /// Who.
        rank: Rank,
        /// What it named.
        session: SessionId,
    },
}

/// Why a rank's connection is closed: it carried what it may not. Nothing of it was passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A frame that speaks for somebody else.
    #[error("{rank} ({life}) sent a frame of {named} ({named_life}): a rank speaks for itself only")]
    Impostor {
        /// Whose connection it is.
        rank: Rank,
        /// In which life.
        life: Incarnation,
        /// Whom the frame names.
        named: Stream,
        /// In which life.
        named_life: Incarnation,
    },
    /// A kind of frame that does not travel there.
    #[error("{rank} sent a {kind} frame on its {channel} connection, where it has no place")]
    Kind {
        /// Whose connection it is.
        rank: Rank,
        /// What came.
        kind: Kind,
        /// Where.
        channel: Channel,
    },
    /// A payload that is no message.
    #[error("{rank} sent a {kind} frame that cannot be read: {error}")]
    Payload {
        /// Whose connection it is.
        rank: Rank,
        /// What came.
        kind: Kind,
        /// Why.
        error: String,
    },
}

/// The host's ranks and their connections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    ranks: BTreeMap<Rank, Route>,
}

/// How one rank is reached.
#[derive(Clone, Debug, PartialEq)]
struct Route {
    incarnation: Incarnation,
    control: Option<(Connection, SessionId)>,
    data: Option<Connection>,
}

impl Routes {
    /// That life of the rank may connect from now on.
    pub fn expect(&mut self, rank: Rank, incarnation: Incarnation) {
        self.ranks.insert(rank, Route { incarnation, control: None, data: None });
    }

    /// Nobody may connect as that rank any more.
    pub fn forget(&mut self, rank: Rank) {
        self.ranks.remove(&rank);
    }

    /// Which life of which rank it is that says this, where it may connect now. A data connection may: its rank may have
    /// sent the last message of the control connection's handshake, and this side may not have read it yet.
    /// [`Routes::connect`] is where they meet.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`], whose text is for the other side.
    pub fn decide(&self, hello: &Hello) -> Result<(Rank, Incarnation), NotAdmitted> {
        let (rank, incarnation) = match hello.role {
            Role::Rank { rank, incarnation } => (rank, incarnation),
            Role::Relay { .. } => return Err(NotAdmitted::Role { role: "relay" }),
        };
        let peer = Peer { rank, incarnation, channel: hello.channel, session: hello.session };
        match self.check(&peer) {
            Err(NotAdmitted::Session { .. }) if self.control(rank).is_none() => {}
            decided => decided?,
        }
        Ok((rank, incarnation))
    }

    fn check(&self, peer: &Peer) -> Result<(), NotAdmitted> {
        let rank = peer.rank;
        let here = || self.ranks.keys().map(|rank| rank.0).collect();
        let route = self.ranks.get(&rank).ok_or_else(|| NotAdmitted::Unknown { rank, here: here() })?;
        if route.incarnation != peer.incarnation {
            return Err(NotAdmitted::Life { rank, ours: route.incarnation, theirs: peer.incarnation });
        }
        let taken = NotAdmitted::Taken { rank, channel: peer.channel };
        match peer.channel {
            Channel::Control if route.control.is_some() => Err(taken),
            Channel::Control => Ok(()),
            Channel::Data if route.control.is_none_or(|(_, session)| session != peer.session) => {
                Err(NotAdmitted::Session { rank, session: peer.session })
            }
            Channel::Data if route.data.is_some() => Err(taken),
            Channel::Data => Ok(()),
        }
    }

    /// A connection has finished its handshake.
    ///
    /// # Errors
    ///
    /// As [`Routes::decide`]: two connections may have been in their handshakes at once, and the second one loses.
    pub fn connect(&mut self, connection: Connection, peer: &Peer) -> Result<(), NotAdmitted> {
        self.check(peer)?;
        if let Some(route) = self.ranks.get_mut(&peer.rank) {
            match peer.channel {
                Channel::Control => route.control = Some((connection, peer.session)),
                Channel::Data => route.data = Some(connection),
            }
        }
        Ok(())
    }

    /// A connection has ended. Gives whose it was, if it was anybody's.
    pub fn leave(&mut self, connection: Connection) -> Option<(Rank, Incarnation, Channel)> {
        let (rank, incarnation, channel) = self.owner(connection)?;
        let route = self.ranks.get_mut(&rank)?;
        match channel {
            Channel::Control => route.control = None,
            Channel::Data => route.data = None,
        }
        Some((rank, incarnation, channel))
    }

    /// Whether somebody may connect as that rank.
    #[must_use]
    pub fn expects(&self, rank: Rank) -> bool {
        self.ranks.contains_key(&rank)
    }

    /// Whose connection it is.
    #[must_use]
    pub fn owner(&self, connection: Connection) -> Option<(Rank, Incarnation, Channel)> {
        self.ranks.iter().find_map(|(&rank, route)| {
            let control = route.control.is_some_and(|(ours, _)| ours == connection).then_some(Channel::Control);
            let data = (route.data == Some(connection)).then_some(Channel::Data);
            control.or(data).map(|channel| (rank, route.incarnation, channel))
        })
    }

    /// The rank's control connection.
    #[must_use]
    pub fn control(&self, rank: Rank) -> Option<Connection> {
        self.ranks.get(&rank)?.control.map(|(connection, _)| connection)
    }

    /// The rank's data connection.
    #[must_use]
    pub fn data(&self, rank: Rank) -> Option<Connection> {
        self.ranks.get(&rank)?.data
    }

    /// Every rank's control connection, in rank order.
    pub fn controls(&self) -> impl Iterator<Item = Connection> + '_ {
        self.ranks.values().filter_map(|route| route.control.map(|(connection, _)| connection))
    }
}

/// Whether that life of the rank may have sent the frame on that connection.
///
/// # Errors
///
/// [`Breach`], with which the connection is closed.
pub fn check_frame(frame: &Frame, peer: (Rank, Incarnation, Channel)) -> Result<(), Breach> {
    let (rank, life, channel) = peer;
    if frame.stream != Stream::Rank(rank) || frame.incarnation != life {
        return Err(Breach::Impostor { rank, life, named: frame.stream, named_life: frame.incarnation });
    }
    match (channel, frame.kind) {
        (Channel::Control, Kind::Report) | (Channel::Data, Kind::Contribution | Kind::Absent) => Ok(()),
        (_, kind) => Err(Breach::Kind { rank, kind, channel }),
    }
}

/// The message in a frame from a rank's data connection.
///
/// # Errors
///
/// [`Breach`], with which the connection is closed.
pub fn rank_data(frame: &Frame, rank: Rank, incarnation: Incarnation) -> Result<Data, Breach> {
    check_frame(frame, (rank, incarnation, Channel::Data))?;
    frame.to_data().map_err(|error| Breach::Payload { rank, kind: frame.kind, error: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use flodl_wire::{Capabilities, HostId, RunId};

    const LIFE: Incarnation = Incarnation(2);

    fn hello(rank: u32, incarnation: u32, channel: Channel, session: u64) -> Hello {
        Hello {
            role: Role::Rank { rank: Rank(rank), incarnation: Incarnation(incarnation) },
            channel,
            session: SessionId(session),
            run_id: RunId([1; 16]),
            host_id: HostId([2; 16]),
            capabilities: Capabilities::NONE,
        }
    }

    fn peer(rank: u32, channel: Channel, session: u64) -> Peer {
        Peer { rank: Rank(rank), incarnation: LIFE, channel, session: SessionId(session) }
    }

    fn routes() -> Routes {
        let mut routes = Routes::default();
        routes.expect(Rank(3), LIFE);
        routes.expect(Rank(4), LIFE);
        routes
    }

    #[test]
    fn a_rank_has_one_control_and_one_data_connection_of_that_session() {
        let mut routes = routes();
        let no_control = routes.connect(Connection(1), &peer(3, Channel::Data, 9));
        assert_eq!(no_control, Err(NotAdmitted::Session { rank: Rank(3), session: SessionId(9) }));
        assert_eq!(routes.connect(Connection(2), &peer(3, Channel::Control, 9)), Ok(()));
        assert_eq!(routes.connect(Connection(3), &peer(3, Channel::Data, 9)), Ok(()));
        assert_eq!((routes.control(Rank(3)), routes.data(Rank(3))), (Some(Connection(2)), Some(Connection(3))));
        assert_eq!(routes.owner(Connection(3)), Some((Rank(3), LIFE, Channel::Data)));
        assert_eq!(routes.controls().collect::<Vec<_>>(), [Connection(2)]);

        assert_eq!(routes.leave(Connection(2)), Some((Rank(3), LIFE, Channel::Control)));
        assert_eq!(routes.leave(Connection(2)), None);
        assert_eq!(routes.connect(Connection(5), &peer(3, Channel::Control, 10)), Ok(()), "its place is free again");
        routes.forget(Rank(3));
        assert_eq!((routes.owner(Connection(5)), routes.control(Rank(3))), (None, None));
    }

    #[test]
    fn everybody_else_is_refused_in_a_sentence_that_names_both() {
        let mut routes = routes();
        routes.connect(Connection(1), &peer(3, Channel::Control, 9)).unwrap();
        let relay = Hello { role: Role::Relay { rank_count: 2 }, ..hello(0, 0, Channel::Control, 0) };
        for (hello, said) in [
            (relay, "a relay connects to the controller"),
            (hello(7, 2, Channel::Control, 0), "rank 7 does not run under this relay; it has [3, 4]"),
            (
                hello(3, 1, Channel::Control, 0),
                "rank 3 is in its incarnation 2 here and says that it is in incarnation 1",
            ),
            (hello(3, 2, Channel::Control, 0), "rank 3 is already here with a control connection"),
            (hello(3, 2, Channel::Data, 8), "rank 3 names session 8"),
        ] {
            let refusal = routes.decide(&hello).unwrap_err().to_string();
            assert!(refusal.starts_with(said) || refusal.contains(said), "{refusal}");
        }
        assert_eq!(routes.decide(&hello(4, 2, Channel::Control, 0)), Ok((Rank(4), LIFE)));
        assert_eq!(routes.decide(&hello(3, 2, Channel::Data, 9)), Ok((Rank(3), LIFE)));
        let early = routes.decide(&hello(4, 2, Channel::Data, 9));
        assert_eq!(early, Ok((Rank(4), LIFE)), "its control connection may be on its way");
    }

    #[test]
    fn a_connection_carries_its_own_ranks_frames_and_nothing_else() {
        let frame = |kind, stream, incarnation| Frame { kind, stream, incarnation, payload: Bytes::from_static(b"x") };
        let own = Stream::Rank(Rank(3));
        let control = (Rank(3), LIFE, Channel::Control);
        let data = (Rank(3), LIFE, Channel::Data);
        assert_eq!(check_frame(&frame(Kind::Report, own, LIFE), control), Ok(()));
        assert_eq!(check_frame(&frame(Kind::Absent, own, LIFE), data), Ok(()));
        for (stream, life) in
            [(Stream::Rank(Rank(4)), LIFE), (Stream::Host, LIFE), (Stream::AllRanks, LIFE), (own, Incarnation(1))]
        {
            let refused = check_frame(&frame(Kind::Report, stream, life), control);
            assert!(matches!(refused, Err(Breach::Impostor { .. })), "{refused:?}");
        }
        for (kind, channel) in [
            (Kind::Control, control),
            (Kind::HostReport, control),
            (Kind::Contribution, control),
            (Kind::Dropped, data),
            (Kind::Consensus, data),
            (Kind::Report, data),
        ] {
            let refused = check_frame(&frame(kind, own, LIFE), channel);
            assert!(matches!(refused, Err(Breach::Kind { .. })), "{refused:?}");
        }
        let garbage = rank_data(&frame(Kind::Contribution, own, LIFE), Rank(3), LIFE);
        assert!(matches!(garbage, Err(Breach::Payload { .. })), "{garbage:?}");
    }
}

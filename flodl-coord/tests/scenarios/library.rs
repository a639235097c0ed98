//! What ranks do in a scenario whose rounds they average among themselves.

use super::common::DIGEST;
use super::common::puppet::received;
use super::stage::{Line, Stage, number};
use flodl_wire::message::Report;
use flodl_wire::message::nccl::{NcclAck, NcclId, Standing};
use flodl_wire::message::report::{SyncAck, SyncOutcome};
use flodl_wire::{NcclSession, Rank, Round};
use std::time::Duration;

/// What the coordinator said of communicators last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Library {
    /// Which one it asked for an id for, or had formed.
    pub(crate) session: NcclSession,
    pub(crate) members: Vec<u32>,
    /// The round that was issued.
    pub(crate) issued: Option<Round>,
    /// Who was asked for the id.
    pub(crate) asked: Option<Rank>,
}

impl Stage {
    /// `id 0`: it makes one. `id 0=fails`: its library makes none.
    pub(crate) fn id(&mut self, line: &Line<'_>) -> Result<(), String> {
        let session = self.library.session;
        let fails: Vec<(u32, &str)> = line.rank_sets()?;
        for rank in line.ranks()? {
            let outcome = Ok(Box::new(NcclId([7; NcclId::BYTES])));
            self.say(rank, Report::NewNcclIdGenerated { session, outcome })?;
        }
        for (rank, _) in fails {
            let outcome = Err("there is no NCCL".to_owned());
            self.say(rank, Report::NewNcclIdGenerated { session, outcome })?;
        }
        Ok(())
    }

    /// `begin 0 1`: they have begun to form the communicator. `begin 0=1`: one before.
    pub(crate) fn stand(&mut self, verb: &str, line: &Line<'_>) -> Result<(), String> {
        let standing = || match verb {
            "begin" => Standing::Begun,
            "formed" => Standing::Ready,
            "unformed" => Standing::NotFormed { why: "a peer did not come".to_owned() },
            _ => Standing::Lost { why: "unhandled system error".to_owned() },
        };
        let session = line.set("session").map_or(Ok(self.library.session), |text| number(text).map(NcclSession))?;
        line.ranks()?
            .into_iter()
            .try_for_each(|rank| self.say(rank, Report::NcclSession { session, standing: standing() }))
    }

    /// `collect 0 1`: the collective is done there. `session=1`: on an earlier communicator.
    pub(crate) fn collect(&mut self, line: &Line<'_>) -> Result<(), String> {
        let session = line.set("session").map_or(Ok(self.library.session), |text| number(text).map(NcclSession))?;
        let round = self.library.issued.ok_or("no round was issued")?;
        let (waited, copied) = (Duration::from_millis(2), Duration::from_millis(1));
        let others = line.rank_sets()?;
        for rank in line.ranks()? {
            let ack = SyncAck { round, outcome: SyncOutcome::Whole(received(DIGEST)), waited, copied };
            self.say(rank, Report::NcclAck(NcclAck { session, ack }))?;
        }
        for (rank, _) in others {
            let ack = SyncAck { round, outcome: SyncOutcome::Whole(received(DIGEST ^ 1)), waited, copied };
            self.say(rank, Report::NcclAck(NcclAck { session, ack }))?;
        }
        Ok(())
    }

    /// All members form the communicator that the coordinator asks for an id for.
    pub(crate) fn form(&mut self) -> Result<(), String> {
        let asked = self.library.asked.ok_or("nobody was asked for an id")?.0.to_string();
        self.id(&Line { names: vec![&asked], sets: Vec::new() })?;
        let members: Vec<String> = self.library.members.iter().map(u32::to_string).collect();
        let line = || Line { names: members.iter().map(String::as_str).collect(), sets: Vec::new() };
        self.stand("begin", &line())?;
        self.stand("formed", &line())
    }
}

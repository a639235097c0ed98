//! Windows and rounds side by side, where ranks train on while they average.

use crate::context::Context;
use crate::gate::{Arming, Hold};
use crate::members::Member;
use crate::round::OpenRound;
use crate::running::{Cycle, Running, Step};
use flodl_wire::Rank;
use flodl_wire::message::record::Reason;
use std::collections::BTreeMap;

impl Running {
    /// What holds up the gate beside windows: the round in flight.
    pub(crate) fn arming(&self) -> Arming<'_> {
        match &self.cycle {
            Cycle::Window => Arming::Armed,
            Cycle::Round(open) => open.finished().err().map_or(Arming::Armed, |lacks| Arming::InFlight(open.id, lacks)),
        }
    }

    /// Whether a round is in flight and the windows beside it have all begun.
    pub(crate) fn all_begun(&self) -> bool {
        matches!(&self.cycle, Cycle::Round(open) if open.next.as_ref().is_some_and(BTreeMap::is_empty))
    }

    /// Whether the open round ends a rank's window: one that began at that round's snapshot it does not.
    pub(crate) fn ends_window_of(&self, rank: Rank) -> bool {
        let is_to_stop =
            |open: &OpenRound| open.parts().get(&rank).is_none_or(|part| part.steps.is_none() || !part.is_awaited());
        matches!(&self.cycle, Cycle::Round(open) if is_to_stop(open))
    }

    /// While a round is in flight: where ranks train on and nobody has anything left to train, more of it is planned at once.
    pub(crate) fn beside_round(&mut self, ctx: &mut Context<'_>) -> Step {
        if self.all_begun()
            && self.stopping.is_none()
            && let Err(hold @ Hold::NothingMoved { available: available @ 1.., .. }) = self.verdict(ctx)
        {
            let why = Reason::from(&hold);
            return self.replan(ctx, available, why);
        }
        Step::Hold
    }

    /// Why windows that are open end now, though they are not over.
    pub(crate) fn ends_windows(&self, ctx: &Context<'_>) -> Option<Reason> {
        let tally = ctx.members.tally();
        if let Some(why) = self.stopping.filter(|_| tally.counts.take_part() > 0) {
            return Some(why.reason());
        }
        let in_window = |rank: &&Rank| ctx.members.get(**rank).is_some_and(Member::has_window);
        let &leaver = tally.marked.leavers.iter().find(in_window)?;
        let text = format!("{leaver} leaves, and brings in what it has trained");
        Some(Reason::new("leaving", text).about([leaver]))
    }

    /// Opens a round; where ranks train on, together with the windows that begin at its snapshots. Not where a duty is due:
    /// it begins when everybody holds the consensus and nothing else, so this once everybody waits.
    pub(crate) fn average(&mut self, ctx: &mut Context<'_>, why: Reason) -> Step {
        if self.overlaps && self.stopping.is_none() && self.waits_for_a_set(ctx) {
            return Step::Hold;
        }
        let goes_on = self.overlaps && self.stopping.is_none() && !self.needs_everybody(ctx);
        let ends = self.window;
        let next = goes_on.then(|| self.plan_next(ctx));
        let step = self.open_round(ctx, ends, why);
        if let Cycle::Round(open) = &mut self.cycle {
            open.next = next;
        }
        step
    }
}

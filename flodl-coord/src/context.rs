//! What every phase works with: the settings, the members, the time, and the outputs so far.

use crate::config::{Config, Deadlines};
use crate::members::Members;
use crate::output::Output;
use flodl_wire::message::Control;
use flodl_wire::message::record::{Body, Event, EventKind, Reason};
use flodl_wire::{Rank, Time};
use std::collections::VecDeque;

/// Borrowed for the handling of one input.
pub(crate) struct Context<'a> {
    pub(crate) config: &'a Config,
    pub(crate) deadlines: Deadlines,
    pub(crate) members: &'a mut Members,
    pub(crate) out: &'a mut VecDeque<Output>,
    pub(crate) now: Time,
}

impl Context<'_> {
    /// Says something to one rank; nothing where its life is over.
    pub(crate) fn tell(&mut self, rank: Rank, control: Control) {
        if let Some(member) = self.members.get(rank).filter(|member| !member.is_gone()) {
            let (session, incarnation) = (member.session, member.incarnation);
            self.out.push_back(Output::ToRank { session, rank, incarnation, control });
        }
    }

    /// Says something to all ranks and the root.
    pub(crate) fn broadcast(&mut self, control: Control) {
        self.out.push_back(Output::Broadcast(control));
    }

    pub(crate) fn record(&mut self, body: Body) {
        self.out.push_back(Output::Record(body));
    }

    pub(crate) fn event(&mut self, kind: EventKind, reason: Option<Reason>) {
        self.record(Body::Event(Box::new(Event { kind, reason })));
    }

    pub(crate) fn alert(&mut self, reason: Reason) {
        self.event(EventKind::Alert, Some(reason));
    }
}

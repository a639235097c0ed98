//! A controller that is killed, and another one that goes on with what is left: a journal on a disk that may be full or
//! lose its end, and what the hosts bring. Or the first one only stood still, and lives beside the other.

use super::controller::Controller;
use super::fabric::{Event, Fabric, Vital};
use super::host::Host;
use super::mutant::Mutant;
use super::net::Node;
use super::rng::Rng;
use super::violation::Rule;
use super::world::World;
use crate::journal::{Entry, Image, Store, read};
use crate::{Input, Output};
use flodl_wire::message::Control;
use flodl_wire::message::control::RoundOutcome;
use flodl_wire::{SessionId, Time};
use std::cell::Cell;
use std::io;
use std::rc::Rc;

/// How often a host that dials reaches the controller whose place was taken.
const ASTRAY: f64 = 0.5;

/// The journal's disk.
#[derive(Debug, Default)]
pub(crate) struct Paper {
    pub(crate) bytes: Vec<u8>,
    pub(crate) full: Rc<Cell<bool>>,
}

impl Store for Paper {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.full.get() {
            // Some of it still fits.
            self.bytes.extend_from_slice(&bytes[..bytes.len() / 2]);
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.full.get() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes = bytes.to_vec();
        Ok(())
    }
}

/// What is to become of a controller's death.
#[derive(Default)]
pub(crate) struct Succession {
    /// Another one is there so long after it.
    pub(crate) after_ns: Option<u64>,
    /// Bytes of its journal's end that are lost with it.
    pub(crate) loses: usize,
    /// It is on its way.
    pub(crate) due: bool,
    /// The controller whose place was taken while it stood still.
    pub(crate) former: Option<Box<Controller>>,
}

impl World {
    /// The controller has been killed.
    pub(crate) fn controller_died(&mut self) {
        if let Some(after) = self.succession.after_ns.take()
            && self.controller.exit.is_none()
        {
            self.succession.due = true;
            self.fab.after(after, Event::Succeed);
        }
    }

    /// Whoever stands still is waited for in vain, and may be so for long.
    fn nobody_follows(&mut self) {
        if self.fab.controller.alive {
            (0..self.hosts.len() as u32).for_each(|host| self.fab.touch(host));
        }
    }

    /// Another controller starts, with what is left of the journal.
    pub(crate) fn succeed(&mut self) {
        self.succession.due = false;
        let loses = core::mem::take(&mut self.succession.loses);
        let paper = self.controller.paper();
        let left = &paper.bytes[..paper.bytes.len().saturating_sub(loses)];
        let found = match read(left) {
            Ok(found) => found,
            Err(damage) => return self.fab.ledger.broken(Rule::Durable, format!("the journal is damaged: {damage}")),
        };
        let restored = match Image::of(found.entries.iter().cloned()).restored() {
            Ok(restored) => restored,
            Err(why) => {
                self.fab.say(|| format!("no controller follows: {why}"));
                return self.nobody_follows();
            }
        };
        self.fab.say(|| format!("another controller follows, with {} bytes of the journal", found.whole));
        match self.controller.successor(&self.fab, Image::of(found.entries), restored) {
            Ok(controller) => {
                let before = core::mem::replace(&mut self.controller, controller);
                let vital = core::mem::replace(&mut self.fab.controller, Vital::new());
                if vital.alive {
                    self.lives_beside(before, vital);
                }
            }
            Err(error) => return self.fab.ledger.broken(Rule::Exit, format!("the journal's settings: {error}")),
        }
        let now = self.fab.local(Node::Controller);
        self.fab.wake(Node::Controller, Some(now));
    }

    // Two controllers.

    /// The controller stands still, its hosts lose it, and another one starts. Then it goes on.
    pub(crate) fn second_controller(&mut self, rng: &mut Rng) -> Option<Time> {
        let now = self.fab.now;
        let stands = self.fab.controller.alive && !self.fab.controller.paused && self.controller.exit.is_none();
        if !stands || self.succession.due || self.succession.former.is_some() {
            return None;
        }
        let starts = self.some_time(rng, 0.02, 0.4);
        let returns = starts + self.some_time(rng, 0.05, 3.0);
        self.fab.controller.paused = true;
        self.succession.due = true;
        self.fab.after(starts, Event::Succeed);
        self.fab.after(returns, Event::Return);
        for host in 0..self.hosts.len() as u32 {
            self.loses_its_link(host);
        }
        Some(Time(now.0 + returns))
    }

    fn loses_its_link(&mut self, host: u32) {
        let link = self.hosts[host as usize].as_ref().and_then(|host| host.upstream());
        for conn in link.into_iter().flat_map(|(control, data)| [control, data]) {
            self.fab.reset(conn);
        }
    }

    fn lives_beside(&mut self, mut former: Controller, vital: Vital) {
        self.fab.net.rename(Node::Controller, Node::Former);
        self.fab.former = vital;
        former.is_outlived();
        self.succession.former = Some(Box::new(former));
    }

    /// It goes on. Some hosts lose the controller that they are with, and look for one.
    pub(crate) fn comes_back(&mut self) {
        if self.succession.former.is_none() {
            return self.resume(Node::Controller);
        }
        self.resume(Node::Former);
        for host in 0..self.hosts.len() as u32 {
            if self.fab.rng.chance(ASTRAY) {
                self.loses_its_link(host);
            }
        }
    }

    pub(crate) fn former_event(&mut self, event: Event) {
        self.with_former(|former, fab| former.event(fab, event));
    }

    fn with_former(&mut self, act: impl FnOnce(&mut Controller, &mut Fabric)) {
        let Some(former) = &mut self.succession.former else { return };
        act(former, &mut self.fab);
        // What it saves lies elsewhere.
        while let Some(request) = former.saves.pop_front() {
            let saved = Input::Saved { version: request.version, result: Ok("elsewhere".to_owned()) };
            former.told(&mut self.fab, saved);
        }
    }

    /// A host that dials may reach the controller whose place was taken, though not twice in a row. Only one that has been
    /// with the other can tell.
    pub(crate) fn reaches_the_former(&mut self, (host, first): (u32, SessionId)) -> bool {
        let is_there = self.fab.former.alive && !self.fab.former.paused && !self.fab.hosts[host as usize].paused;
        let Some(former) = self.succession.former.as_ref().filter(|_| is_there) else { return false };
        let (generation, newest) = (former.generation(), self.controller.generation());
        let knows = |host: &Host| host.generation() == newest && !host.astray;
        let knows = self.hosts[host as usize].as_ref().is_some_and(knows);
        if former.exit.is_some() || !knows || !self.fab.rng.chance(ASTRAY) {
            return false;
        }
        let conns = self.connect(host, Node::Former);
        self.with_former(|former, fab| {
            former.resumed(fab, (host, first), conns);
        });
        if let Some(owner) = &mut self.hosts[host as usize] {
            owner.resumed(&mut self.fab, conns, (generation, first));
        }
        true
    }

    /// Which of them the run's so-manieth controller is, if it is there.
    pub(crate) fn controller_of(&self, generation: u64) -> Option<Node> {
        let former = self.succession.former.as_ref().map(|former| former.generation());
        match generation {
            newest if newest == self.controller.generation() => Some(Node::Controller),
            older if Some(older) == former => Some(Node::Former),
            _ => None,
        }
    }

    /// Whose session it is.
    pub(crate) fn owner_of(&self, session: SessionId) -> Node {
        match self.succession.former.as_ref().is_some_and(|former| former.has(session)) {
            true => Node::Former,
            false => Node::Controller,
        }
    }
}

impl Controller {
    /// What a mutant keeps from those who would know what is true after its death: whether nobody hears of this output.
    pub(crate) fn forgets(&self, fab: &Fabric, output: &mut Output) -> bool {
        let record = matches!(
            output,
            Output::ToHost { control: Control::Commit(_) | Control::CommitPart { .. }, .. } | Output::Journal(_)
        );
        let begins = matches!(output, Output::Journal(Entry::Tensors(_) | Entry::Formed(_)));
        if fab.off(Mutant::RunAgain)
            && let Output::ToRank { control: Control::RoundDone { outcome, .. }, .. } = output
            && *outcome == RoundOutcome::Again
        {
            *outcome = RoundOutcome::Nothing;
        }
        fab.off(Mutant::RecordBeforeApply) && record && !begins && self.consensus().is_some()
    }
}

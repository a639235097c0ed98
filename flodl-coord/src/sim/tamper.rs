//! An adversary between two hosts: frames that come twice, and frames that come changed.

use super::class::Class;
use super::rng::Rng;
use super::world::World;
use flodl_wire::Time;

/// What the adversary does to the next frame of a pipe.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Sends it twice.
    Repeat,
    /// Changes a bit of it, drawn by this.
    Flip(u64),
}

impl World {
    /// Has the next frame of some connection come twice, or changed.
    pub(crate) fn tamper(&mut self, class: Class, rng: &mut Rng) -> Option<Time> {
        let host = self.some_host(rng)?;
        let (control, data) = self.hosts[host as usize].as_ref()?.upstream()?;
        let conn = if rng.chance(0.5) { control } else { data };
        let deed = if class == Class::Replay { Deed::Repeat } else { Deed::Flip(rng.next()) };
        // The connection is closed for it; the relay dials again, and nobody is lost.
        if self.dials_slowly() {
            self.fab.touch(host);
        }
        self.fab.net.tamper(conn, rng.chance(0.5), deed);
        Some(self.fab.now)
    }
}

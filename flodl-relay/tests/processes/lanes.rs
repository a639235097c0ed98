//! The rank of these tests over shared memory, and what it does there that a good rank does not.

use crate::rank::{PARAMETERS, replica};
use flodl_cpureduce::shm::{Bells, BoardReader, LaneWriter, NAP, Note};
use flodl_cpureduce::{Layout, Mass, contribution_chunk};
use flodl_wire::message::report::Received;
use flodl_wire::{Rank, Round};
use rustix::process::{Signal, getpid, kill_process};
use std::env;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::Duration;

/// A rank's end of what it shares with its relay.
pub(crate) struct Lanes {
    lane: LaneWriter,
    lane_file: OwnedFd,
    board: OwnedFd,
    results: Option<BoardReader>,
}

impl Lanes {
    /// Takes up what was inherited; `None` where nothing was.
    pub(crate) fn take_up() -> Option<Lanes> {
        let names = env::var("FLODL_SHM_FDS").ok()?;
        let open = |fd: &str| -> OwnedFd {
            let path = format!("/proc/self/fd/{fd}");
            // Where it cannot be opened for writing, reading is enough.
            let file = File::options().read(true).write(true).open(&path).or_else(|_| File::open(&path));
            file.unwrap().into()
        };
        let files: Vec<OwnedFd> = names.split(',').map(open).collect();
        let [lane_file, bells, board] = files.try_into().unwrap();
        let lane = LaneWriter::adopt(&lane_file, Bells::adopt(bells).unwrap().relay()).unwrap();
        lane.attach();
        Some(Lanes { lane, lane_file, board, results: None })
    }

    /// Sends a whole contribution, or as much of it as `plan` has.
    pub(crate) fn contribute(&mut self, round: Round, rank: Rank, (mass, plan): (Mass, &str)) {
        for spec in layout().iter() {
            let second = round == Round(1) && spec.index == 1;
            match plan {
                "die" if second => kill_process(getpid(), Signal::KILL).unwrap(),
                "stall" if second => sleep(Duration::from_secs(600)),
                "scribble" if second => self.scribble(),
                _ => {}
            }
            let (bytes, _) = contribution_chunk(&replica(rank, &spec), mass);
            while !self.lane.bell().wait(NAP, || self.lane.has_room()) {}
            self.lane.room(spec.bytes).unwrap().copy_from_slice(&bytes);
            let note = Note { round: round.0, version: 0, index: spec.index, mass: mass.value() };
            self.lane.slot().unwrap().send(&note, spec.bytes);
        }
    }

    /// Writes numbers into every word of its lane that no rank writes.
    fn scribble(&self) {
        // Once its first chunk is folded.
        let mut state = [1; 4];
        while state != [0; 4] {
            sleep(Duration::from_millis(5));
            rustix::io::pread(&self.lane_file, &mut state[..], 256).unwrap();
        }
        for at in (256..512).step_by(8) {
            rustix::io::pwrite(&self.lane_file, &0xffff_ffff_0000_0001_u64.to_le_bytes(), at).unwrap();
        }
        // Somebody has to look.
        sleep(Duration::from_secs(600));
    }

    /// Waits for the whole result.
    pub(crate) fn receive(&mut self, round: Round) -> Received {
        loop {
            if self.results.is_none() {
                self.results = BoardReader::adopt(&self.board, layout()).ok();
            }
            let results = self.results.as_ref();
            if let Some(whole) = results.and_then(|results| results.whole(round.0)) {
                let model = results.and_then(|results| results.model(round.0)).unwrap();
                assert_eq!(flodl_cpureduce::Digest::of(model), whole.digest, "the relay says what is there");
                return Received { digest: whole.digest, divergence: None, pre_norm: 0.0, post_norm: 0.0 };
            }
            self.lane.bell().wait(NAP, || results.is_some_and(|results| results.whole(round.0).is_some()));
        }
    }
}

fn layout() -> Layout {
    Layout::new(PARAMETERS, 0, 0).unwrap()
}

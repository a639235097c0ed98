//! A rank's communicator as its ranks share it, wherever they meet: in this process or in another one.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use crate::comm::{self, Comm};
use crate::crossing::{self, Deed, Seat};
use crate::driver::lock;
use crate::meeting::{Brought, IsOver, Meeting};
use crate::numbers::{self, Op};

/// One collective as one rank asked for it; addresses as numbers, so that it may go to a stream's thread.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) send: usize,
    pub(crate) receive: usize,
    pub(crate) count: usize,
    pub(crate) kind: i32,
    pub(crate) op: Op,
}

/// The ranks of one communicator.
pub(crate) struct Job {
    pub(crate) id: [u8; 128],
    pub(crate) size: usize,
    /// Where they meet; `None`: in another process.
    here: Option<Arc<Meeting>>,
}

/// A new id.
pub(crate) fn new_id() -> [u8; 128] {
    static NEXT: Mutex<u64> = Mutex::new(1);
    let mut next = lock(&NEXT);
    *next += 1;
    let mut id = [0x5a; 128];
    id[..8].copy_from_slice(&next.to_le_bytes());
    crossing::sign(&mut id);
    id
}

impl Job {
    /// The job of an id.
    pub(crate) fn of(id: [u8; 128], size: usize) -> Arc<Self> {
        let here = crossing::is_own(&id).then(|| Meeting::of(id, size));
        Arc::new(Self { id, size, here })
    }

    fn seat(&self, rank: usize) -> Seat {
        Seat { id: self.id, size: self.size, rank }
    }

    /// Does something that is a yes or a no where ranks meet elsewhere.
    fn there(&self, rank: usize, deed: Deed<'_>, is_over: IsOver<'_>) -> bool {
        crossing::deed(self.seat(rank), deed, is_over) == Some(vec![1])
    }

    /// Takes a rank in; `false` where it is there already.
    pub(crate) fn join(&self, rank: usize) -> bool {
        match &self.here {
            Some(meeting) => meeting.join(rank),
            // Where nobody is there any more, the rank waits for its peers in vain.
            None => {
                let given_up = std::time::Instant::now() + std::time::Duration::from_millis(200);
                let joined = crossing::deed(self.seat(rank), Deed::Join, &|| std::time::Instant::now() > given_up);
                joined.is_none_or(|joined| joined == [1])
            }
        }
    }

    pub(crate) fn wake(&self) {
        if let Some(meeting) = &self.here {
            meeting.wake();
        }
    }

    pub(crate) fn wait_for_all(&self, comm: &Comm) -> bool {
        let is_over = || comm.is_aborted();
        if comm.faults().init_hangs {
            match &self.here {
                Some(meeting) => meeting.leave(comm.rank),
                None => drop(self.there(comm.rank, Deed::Leave, &is_over)),
            }
            return stopped(&is_over);
        }
        match &self.here {
            Some(meeting) => meeting.wait_for_all(&is_over),
            None => self.there(comm.rank, Deed::WaitForAll, &is_over),
        }
    }

    pub(crate) fn wait_for_finalized(&self, comm: &Comm) -> bool {
        let is_over = || comm.is_aborted();
        match &self.here {
            Some(meeting) => meeting.wait_for_finalized(comm.rank, &is_over),
            None => self.there(comm.rank, Deed::WaitForFinalized, &is_over),
        }
    }

    /// One collective, on the stream's thread.
    pub(crate) fn run(&self, comm: &Comm, number: usize, work: Work) {
        let faults = comm.faults();
        if let Some(pause) = faults.slow {
            std::thread::sleep(pause);
        }
        let is_over = || comm.is_stopped();
        if faults.hang_at == Some(number) {
            stopped(&is_over);
            return;
        }
        if is_over() {
            return;
        }
        let Some(size) = numbers::size_of_kind(work.kind) else { return };
        let bytes = unsafe { std::slice::from_raw_parts(work.send as *const u8, work.count * size) }.to_vec();
        let brought = Brought { op: work.op, kind: work.kind, bytes };
        let result = match &self.here {
            Some(meeting) => meeting.exchange(comm.rank, brought, &is_over),
            None => crossing::deed(self.seat(comm.rank), Deed::Exchange(brought), &is_over),
        };
        let Some(result) = result else { return };
        unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), work.receive as *mut u8, result.len()) };
    }

    /// Makes the new communicator of the ranks with this color, in order of key and rank.
    pub(crate) fn split(&self, parent: &Arc<Comm>, color: i32, key: i32, out: usize) -> bool {
        let is_over = || parent.is_aborted();
        let members = match &self.here {
            Some(meeting) => meeting.split(parent.rank, (color, key), &is_over),
            None => crossing::deed(self.seat(parent.rank), Deed::Split((color, key)), &is_over).map(|members| {
                members.as_chunks::<8>().0.iter().map(|rank| u64::from_le_bytes(*rank) as usize).collect()
            }),
        };
        match members {
            None => false,
            Some(_) if color < 0 => true,
            Some(members) => self.child(parent, &members, color, out),
        }
    }

    /// Makes the new communicator of the ranks that are left.
    pub(crate) fn shrink(&self, parent: &Arc<Comm>, excluded: &[usize], out: usize) -> bool {
        let members: Vec<usize> = (0..self.size).filter(|rank| !excluded.contains(rank)).collect();
        let is_over = || parent.is_aborted();
        let change = (excluded, members.len());
        let all = match &self.here {
            Some(meeting) => meeting.change(parent.rank, change, &is_over),
            None => self.there(parent.rank, Deed::Change(change), &is_over),
        };
        all && self.child(parent, &members, 100, out)
    }

    /// Makes the new communicator of its ranks and others, who bring the id.
    pub(crate) fn grow(&self, parent: &Arc<Comm>, size: usize, out: usize) -> bool {
        born(Self::of(self.id_to_grow(), size), parent.rank, out)
    }

    /// The id that new members bring.
    pub(crate) fn id_to_grow(&self) -> [u8; 128] {
        self.id_of_child(200)
    }

    fn id_of_child(&self, salt: i32) -> [u8; 128] {
        let mut id = self.id;
        id[8] ^= 1;
        id[12..16].copy_from_slice(&salt.to_le_bytes());
        id[16] = id[16].wrapping_add(1);
        id
    }

    fn child(&self, parent: &Arc<Comm>, members: &[usize], salt: i32, out: usize) -> bool {
        let Some(place) = members.iter().position(|rank| *rank == parent.rank) else { return false };
        born(Self::of(self.id_of_child(salt), members.len()), place, out)
    }
}

/// Makes a communicator whose address the caller's pointer is given once it is there, as the real library does.
pub(crate) fn born(job: Arc<Job>, place: usize, out: usize) -> bool {
    if !job.join(place) {
        return false;
    }
    let child = Comm::new(job, place);
    let handle = comm::handle_of(&child);
    unsafe { std::ptr::write_volatile(out as *mut *mut c_void, handle) };
    child.in_background(|child| child.job.wait_for_all(child));
    true
}

/// Waits until it is over, and says that it came to nothing.
fn stopped(is_over: IsOver<'_>) -> bool {
    while !is_over() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    false
}

//! Ranks in other processes: each thing that a rank does at a meeting is a connection to the process that made the id,
//! which closes where the rank's communicator is aborted, or where its process dies.
//!
//! A process that made an id and died is met by nobody: what waits for it waits until it is aborted, as with the real
//! library.

use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::meeting::{Brought, IsOver, Meeting};
use crate::numbers::Op;

/// How long a read lasts before it looks again whether it was stopped.
const PAUSE: Duration = Duration::from_millis(1);

/// What a rank does at a meeting that is elsewhere.
pub(crate) enum Deed<'a> {
    Join,
    Leave,
    WaitForAll,
    WaitForFinalized,
    Exchange(Brought),
    Split((i32, i32)),
    Change((&'a [usize], usize)),
}

/// Who does it, and where.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) id: [u8; 128],
    pub(crate) size: usize,
    pub(crate) rank: usize,
}

/// The library as it is loaded here: other variants in the process are other ones.
fn own() -> [u8; 12] {
    static HERE: u8 = 0;
    let mut own = [0; 12];
    own[..4].copy_from_slice(&std::process::id().to_le_bytes());
    own[4..].copy_from_slice(&(&raw const HERE as u64).to_le_bytes());
    own
}

/// Where in an id it says who made it.
const MAKER: std::ops::Range<usize> = 24..36;

/// Signs an id, and listens for who brings it.
pub(crate) fn sign(id: &mut [u8; 128]) {
    static LISTENS: Once = Once::new();
    id[MAKER].copy_from_slice(&own());
    LISTENS.call_once(|| {
        let listener = UnixListener::bind_addr(&address(&own())).expect("the name is nobody else's");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream));
            }
        });
    });
}

/// Whether the id was made here.
pub(crate) fn is_own(id: &[u8; 128]) -> bool {
    id[MAKER] == own()
}

fn address(maker: &[u8]) -> SocketAddr {
    let name: String = maker.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("nccl-stand-in-{name}")).expect("it is short")
}

/// Does something at a meeting that is elsewhere. `None` where it was stopped.
pub(crate) fn deed(seat: Seat, deed: Deed<'_>, is_over: IsOver<'_>) -> Option<Vec<u8>> {
    let sent = UnixStream::connect_addr(&address(&seat.id[MAKER])).and_then(|mut stream| {
        stream.write_all(&encoded(seat, &deed))?;
        stream.set_read_timeout(Some(PAUSE))?;
        Ok(stream)
    });
    let mut answer = Vec::new();
    let mut stream = sent.ok();
    loop {
        if let Some(length) = answer.first_chunk::<8>().map(|length| u64::from_le_bytes(*length) as usize)
            && answer.len() == length + 8
        {
            return Some(answer.split_off(8));
        }
        if is_over() {
            return None;
        }
        let mut room = [0; 1 << 16];
        match stream.as_mut().map(|stream| stream.read(&mut room)) {
            Some(Ok(0)) => stream = None,
            Some(Ok(count)) => answer.extend_from_slice(&room[..count]),
            Some(Err(error)) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Some(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
            Some(Err(_)) => stream = None,
            // Whoever made the id is gone, and nobody will ever answer.
            None => std::thread::sleep(PAUSE),
        }
    }
}

fn encoded(seat: Seat, deed: &Deed<'_>) -> Vec<u8> {
    let (number, words, bytes): (u64, Vec<u64>, &[u8]) = match deed {
        Deed::Join => (0, vec![], &[]),
        Deed::Leave => (1, vec![], &[]),
        Deed::WaitForAll => (2, vec![], &[]),
        Deed::WaitForFinalized => (3, vec![], &[]),
        Deed::Exchange(Brought { op, kind, bytes }) => {
            let (op, value) = op.numbered();
            (4, vec![op, value, *kind as u64], bytes)
        }
        Deed::Split((color, key)) => (5, vec![*color as u64, *key as u64], &[]),
        Deed::Change((change, by)) => {
            let by = std::iter::once(*by as u64);
            (6, by.chain(change.iter().map(|rank| *rank as u64)).collect(), &[])
        }
    };
    let mut text = seat.id.to_vec();
    let head = [seat.size as u64, seat.rank as u64, number, words.len() as u64, bytes.len() as u64];
    text.extend(head.iter().chain(&words).flat_map(|word| word.to_le_bytes()));
    text.extend_from_slice(bytes);
    text
}

/// Does for a rank of another process what it asks for.
fn serve(mut stream: UnixStream) {
    let Some((seat, number, words, bytes)) = asked(&mut stream) else { return };
    let is_gone = Arc::new(AtomicBool::new(false));
    let watched = (stream.try_clone(), Arc::clone(&is_gone));
    std::thread::spawn(move || {
        // Nothing more comes: a read that returns says that the rank has let go.
        if let (Ok(mut stream), is_gone) = watched {
            drop(stream.read(&mut [0; 1]));
            is_gone.store(true, Ordering::Relaxed);
        }
    });
    let is_over = || is_gone.load(Ordering::Relaxed);
    let meeting = Meeting::of(seat.id, seat.size);
    let said = |is: bool| Some(vec![u8::from(is)]);
    let answer = match number {
        0 => said(meeting.join(seat.rank)),
        1 => {
            meeting.leave(seat.rank);
            said(true)
        }
        2 => said(meeting.wait_for_all(&is_over)),
        3 => said(meeting.wait_for_finalized(seat.rank, &is_over)),
        4 => Op::of(words[0], words[1])
            .and_then(|op| meeting.exchange(seat.rank, Brought { op, kind: words[2] as i32, bytes }, &is_over)),
        5 => {
            let members = meeting.split(seat.rank, (words[0] as i32, words[1] as i32), &is_over);
            members.map(|members| members.iter().flat_map(|rank| (*rank as u64).to_le_bytes()).collect())
        }
        _ => {
            let change: Vec<usize> = words[1..].iter().map(|rank| *rank as usize).collect();
            said(meeting.change(seat.rank, (&change, words[0] as usize), &is_over))
        }
    };
    if let Some(answer) = answer {
        let mut text = (answer.len() as u64).to_le_bytes().to_vec();
        text.extend(answer);
        // A rank that has let go does not hear it.
        drop(stream.write_all(&text));
    }
}

type Asked = (Seat, u64, Vec<u64>, Vec<u8>);

fn asked(stream: &mut UnixStream) -> Option<Asked> {
    let mut id = [0; 128];
    stream.read_exact(&mut id).ok()?;
    let mut word = || {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let (size, rank, number, count, length) = (word()?, word()?, word()?, word()?, word()?);
    let words = (0..count).map(|_| word()).collect::<Option<Vec<u64>>>()?;
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).ok()?;
    Some((Seat { id, size: size as usize, rank: rank as usize }, number, words, bytes))
}

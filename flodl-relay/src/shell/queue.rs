//! What waits to be sent of a result: at most one whole result, whoever is slow to take it.

use crate::id::round_of;
use async_channel::{Receiver, Sender};
use flodl_wire::Round;
use flodl_wire::message::Data;
use flodl_wire::message::data::Chunk;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is of a round.
pub(super) trait OfRound {
    /// Which.
    fn round(&self) -> Round;
}

impl OfRound for Chunk {
    fn round(&self) -> Round {
        self.round
    }
}

impl OfRound for Data {
    fn round(&self) -> Round {
        round_of(self)
    }
}

/// The sending end. Never waits: chunks share their bytes with everybody else's queue.
pub(super) struct ResultSender<T = Chunk> {
    chunks: Arc<Mutex<VecDeque<T>>>,
    bell: Sender<()>,
}

/// The taking end.
pub(super) struct ResultReceiver<T = Chunk> {
    chunks: Arc<Mutex<VecDeque<T>>>,
    bell: Receiver<()>,
}

/// A queue of one result.
pub(super) fn result_queue<T>() -> (ResultSender<T>, ResultReceiver<T>) {
    let chunks = Arc::new(Mutex::new(VecDeque::new()));
    let (sender, receiver) = async_channel::bounded(1);
    (ResultSender { chunks: Arc::clone(&chunks), bell: sender }, ResultReceiver { chunks, bell: receiver })
}

fn locked<T>(chunks: &Mutex<VecDeque<T>>) -> MutexGuard<'_, VecDeque<T>> {
    chunks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: OfRound> ResultSender<T> {
    /// Adds a chunk. What is left of another round's result goes: its receiver has been given up for that round.
    pub(super) fn push(&self, chunk: T) {
        let mut chunks = locked(&self.chunks);
        if chunks.back().is_some_and(|last| last.round() != chunk.round()) {
            chunks.clear();
        }
        chunks.push_back(chunk);
        drop(chunks);
        // A full bell is rung already; a closed one has nobody to hear it.
        match self.bell.try_send(()) {
            Ok(()) | Err(_) => {}
        }
    }
}

impl<T> ResultReceiver<T> {
    /// The next chunk, if one is there.
    pub(super) fn try_next(&self) -> Option<T> {
        locked(&self.chunks).pop_front()
    }

    /// The next chunk; `None` once the sender is gone and nothing is left.
    pub(super) async fn next(&self) -> Option<T> {
        loop {
            if let Some(chunk) = self.try_next() {
                return Some(chunk);
            }
            if self.bell.recv().await.is_err() {
                return self.try_next();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use flodl_wire::message::data::Codec;
    use flodl_wire::{Round, Version};
    use futures_lite::future::block_on;

    fn chunk(round: u64, chunk: u32) -> Chunk {
        let (round, bytes) = (Round(round), Bytes::new());
        Chunk { round, version: Version(0), chunk, mass: 1.0, codec: Codec::Exact, bytes }
    }

    #[test]
    fn a_whole_result_waits_and_a_newer_one_takes_its_place() {
        let (sender, receiver) = result_queue();
        (0..100).for_each(|index| sender.push(chunk(1, index)));
        for index in 0..3 {
            assert_eq!(block_on(receiver.next()), Some(chunk(1, index)));
        }
        sender.push(chunk(2, 0));
        sender.push(chunk(2, 1));
        drop(sender);
        assert_eq!(block_on(receiver.next()), Some(chunk(2, 0)));
        assert_eq!(block_on(receiver.next()), Some(chunk(2, 1)));
        assert_eq!(block_on(receiver.next()), None);
    }
}

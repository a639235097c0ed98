//! Bytes that wait to be written.

use crate::limits::WRITE_BEHIND;

/// What is to be written, and how much of it has been.
#[derive(Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    written: usize,
}

impl Outbox {
    /// How many bytes wait.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len().saturating_sub(self.written)
    }

    /// The bytes that wait.
    pub(crate) fn waiting(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    /// The first `n` of those that wait are written.
    pub(crate) fn written(&mut self, n: usize) {
        self.written = self.written.saturating_add(n).min(self.bytes.len());
        if self.written == self.bytes.len() {
            self.clear();
        }
    }

    /// Where more bytes are appended.
    pub(crate) fn end(&mut self) -> &mut Vec<u8> {
        // What is written goes away when the rest is moved for as much: each byte once, on the average.
        if self.written >= WRITE_BEHIND && self.written >= self.len() {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
        &mut self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.written = 0;
    }

    pub(crate) fn into_waiting(mut self) -> Vec<u8> {
        self.bytes.drain(..self.written.min(self.bytes.len()));
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_out_once_and_in_order_and_what_is_out_takes_no_room_for_long() {
        let (mut outbox, mut out, mut next) = (Outbox::default(), Vec::new(), 0u8);
        for _ in 0..40 {
            outbox.end().extend(core::iter::repeat_n(next, 100_000));
            next += 1;
            let n = outbox.len().min(90_000);
            out.extend_from_slice(&outbox.waiting()[..n]);
            outbox.written(n);
            assert!(outbox.bytes.len() <= outbox.len() + WRITE_BEHIND + 200_000);
        }
        out.extend_from_slice(outbox.waiting());
        assert!(out.chunks(100_000).zip(0..).all(|(part, n)| part.iter().all(|byte| *byte == n)));
        assert_eq!(out.len(), 40 * 100_000);
        let left = outbox.len();
        assert_eq!(outbox.into_waiting().len(), left);
        let mut outbox = Outbox::default();
        outbox.end().push(1);
        outbox.written(usize::MAX);
        assert_eq!((outbox.len(), outbox.waiting()), (0, &[][..]));
    }
}

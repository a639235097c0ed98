//! The keys of one direction of a connection: which is in force, which nonce is next.
//!
//! A key is used for at most [`FRAMES_PER_KEY`] frames and [`BYTES_PER_KEY`] bytes; the frame that would pass either is sealed
//! under `HKDF-Expand(key, "rekey")` and says so in its flags. Both sides count alike, so a flag that is set where it is not
//! due, or missing where it is, is refused. `seq` runs on over keys and ends the connection before it could repeat.

use crate::limits::{BYTES_PER_KEY, FRAME_TAG, FRAMES_PER_KEY};
use crate::secret::Key;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// Which way a frame goes. Part of the nonce, and each way has keys of its own.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the dialling side to the accepting one.
    Up,
    /// From the accepting side to the dialling one.
    Down,
}

impl Direction {
    pub(crate) fn other(self) -> Direction {
        match self {
            Direction::Up => Direction::Down,
            Direction::Down => Direction::Up,
        }
    }
}

/// How much one key may be used for.
#[derive(Copy, Clone)]
pub(super) struct Budget {
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

/// The key in force and its count.
pub(crate) struct Keys {
    key: Key,
    aead: LessSafeKey,
    direction: Direction,
    /// Of the next frame; `None` where every number is spent.
    seq: Option<u64>,
    left: Budget,
    budget: Budget,
}

impl Keys {
    pub(crate) fn new(key: Key, direction: Direction) -> Keys {
        Keys::with_budget(key, direction, Budget { frames: FRAMES_PER_KEY, bytes: BYTES_PER_KEY })
    }

    pub(super) fn with_budget(key: Key, direction: Direction, budget: Budget) -> Keys {
        Keys { aead: cipher(&key), key, direction, seq: Some(0), left: budget, budget }
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// The next frame's number; `None` where the connection has used them all.
    pub(super) fn seq(&self) -> Option<u64> {
        self.seq
    }

    /// Whether a frame with `len` bytes of payload must be the first of a new key.
    pub(super) fn rekey_due(&self, len: usize) -> bool {
        self.left.frames == 0 || self.left.bytes < len as u64
    }

    /// Encrypts `payload` in place as the next frame and gives its tag. `None`: the cipher refused (it never does for
    /// payloads within the limits).
    pub(super) fn seal(&mut self, header: &[u8], payload: &mut [u8]) -> Option<[u8; FRAME_TAG]> {
        let nonce = self.advance(payload.len())?;
        let tag = self.aead.seal_in_place_separate_tag(nonce, Aad::from(header), payload).ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Decrypts payload and tag in place as the next frame. `None`: they are not that frame under that header.
    pub(super) fn open(&mut self, header: &[u8], sealed: &mut [u8]) -> Option<()> {
        let nonce = self.advance(sealed.len().checked_sub(FRAME_TAG)?)?;
        self.aead.open_in_place(nonce, Aad::from(header), sealed).ok().map(|_| ())
    }

    fn advance(&mut self, len: usize) -> Option<Nonce> {
        let seq = self.seq?;
        if self.rekey_due(len) {
            self.key = self.key.expand(&[b"rekey"]);
            self.aead = cipher(&self.key);
            self.left = self.budget;
        }
        self.left.frames = self.left.frames.saturating_sub(1);
        self.left.bytes = self.left.bytes.saturating_sub(len as u64);
        self.seq = seq.checked_add(1);
        let mut nonce = [0; NONCE_LEN];
        nonce[0] = match self.direction {
            Direction::Up => 0,
            Direction::Down => 1,
        };
        nonce[4..].copy_from_slice(&seq.to_le_bytes());
        Some(Nonce::assume_unique_for_key(nonce))
    }

    #[cfg(test)]
    pub(super) fn skip_to(&mut self, seq: Option<u64>) {
        self.seq = seq;
    }
}

impl Drop for Keys {
    /// The cipher begins with its key and does not overwrite it: another takes its place.
    fn drop(&mut self) {
        self.aead = cipher(&Key::from_bytes(&[0; 32]));
        core::hint::black_box(&self.aead);
    }
}

fn cipher(key: &Key) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.bytes()).expect("AES-256 takes 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, HeaderError, OpenError, Opener, SealError, Sealer};
    use crate::handshake::Channel;
    use crate::limits::FRAME_HEADER;
    use crate::message::HostReport;

    fn sides(ours: Budget, theirs: Budget) -> (Sealer, Opener) {
        let keys = |budget| Keys::with_budget(Key::from_bytes(&[6; 32]), Direction::Up, budget);
        (Sealer::new(keys(ours), Channel::Control), Opener::new(keys(theirs), Channel::Control))
    }

    fn beat() -> Frame {
        Frame::host_report(&HostReport::Heartbeat).unwrap()
    }

    /// The flags of `n` frames, each of which arrives.
    fn flags(budget: Budget, n: usize) -> Vec<u8> {
        let (mut sealer, mut opener) = sides(budget, budget);
        let one = |_| {
            let mut bytes = Vec::new();
            sealer.seal(&beat(), &mut bytes).unwrap();
            assert_eq!(opener.feed(&mut &bytes[..]), Ok(Some(beat())));
            bytes[6]
        };
        (0..n).map(one).collect()
    }

    #[test]
    fn a_key_is_used_for_as_much_as_is_promised() {
        let mut keys = Keys::new(Key::from_bytes(&[6; 32]), Direction::Up);
        assert!(!keys.rekey_due(usize::try_from(BYTES_PER_KEY).unwrap()));
        assert!(keys.rekey_due(usize::try_from(BYTES_PER_KEY).unwrap() + 1));
        keys.left.frames = 1;
        assert!(!keys.rekey_due(0));
        keys.advance(0).unwrap();
        assert!(keys.rekey_due(0));
        keys.advance(0).unwrap();
        let Budget { frames, bytes } = keys.left;
        assert_eq!((frames, bytes), (FRAMES_PER_KEY - 1, BYTES_PER_KEY), "a new key has the same budget");
        assert_eq!((FRAMES_PER_KEY, BYTES_PER_KEY), (1 << 32, 1 << 40), "what docs/PROTOCOL.md promises");
    }

    #[test]
    fn the_key_changes_when_its_frames_or_bytes_are_used_up() {
        assert_eq!(flags(Budget { frames: 3, bytes: u64::MAX }, 8), [0, 0, 0, 1, 0, 0, 1, 0]);
        assert_eq!(beat().payload.len(), 1);
        assert_eq!(flags(Budget { frames: u64::MAX, bytes: 2 }, 6), [0, 0, 1, 0, 1, 0]);
    }

    #[test]
    fn a_change_that_is_not_due_or_does_not_come_is_refused() {
        let (often, seldom) = (Budget { frames: 1, bytes: 99 }, Budget { frames: 9, bytes: 99 });
        for (ours, theirs, due) in [(often, seldom, false), (seldom, often, true)] {
            let (mut sealer, mut opener) = sides(ours, theirs);
            let mut bytes = Vec::new();
            sealer.seal(&beat(), &mut bytes).unwrap();
            sealer.seal(&beat(), &mut bytes).unwrap();
            let mut input = &bytes[..];
            assert_eq!(opener.feed(&mut input), Ok(Some(beat())));
            assert_eq!(opener.feed(&mut input), Err(OpenError::Rekey { seq: 1, due }));
        }
    }

    #[test]
    fn the_old_key_opens_nothing_after_a_change() {
        let budget = Budget { frames: 1, bytes: 99 };
        let (mut sealer, _) = sides(budget, budget);
        let mut old = Keys::with_budget(Key::from_bytes(&[6; 32]), Direction::Up, Budget { frames: 9, bytes: 99 });
        let mut bytes = Vec::new();
        sealer.seal(&beat(), &mut bytes).unwrap();
        let second = bytes.len();
        sealer.seal(&beat(), &mut bytes).unwrap();
        old.skip_to(Some(1));
        let (header, sealed) = bytes[second..].split_at_mut(FRAME_HEADER);
        assert_eq!(old.open(header, sealed), None);
    }

    #[test]
    fn the_last_frame_number_is_used_once_and_then_the_connection_is_over() {
        let keys = || {
            let mut keys = Keys::new(Key::from_bytes(&[6; 32]), Direction::Up);
            keys.skip_to(Some(u64::MAX));
            keys
        };
        let (mut sealer, mut opener) = (Sealer::new(keys(), Channel::Control), Opener::new(keys(), Channel::Control));
        let mut bytes = Vec::new();
        sealer.seal(&beat(), &mut bytes).unwrap();
        assert_eq!(sealer.seal(&beat(), &mut bytes), Err(SealError::Exhausted));
        assert_eq!(opener.feed(&mut &bytes[..]), Ok(Some(beat())));
        assert_eq!(opener.feed(&mut &bytes[..]), Err(OpenError::Exhausted));
    }

    #[test]
    fn each_direction_refuses_the_kinds_of_the_other() {
        let (mut sealer, _) = sides(Budget { frames: 9, bytes: 99 }, Budget { frames: 9, bytes: 99 });
        let mut bytes = Vec::new();
        sealer.seal(&beat(), &mut bytes).unwrap();
        let down = Keys::new(Key::from_bytes(&[6; 32]), Direction::Down);
        let error = Opener::new(down, Channel::Control).feed(&mut &bytes[..]);
        assert_eq!(error, Err(OpenError::Header(HeaderError::Misplaced { kind: beat().kind })));
    }
}

//! HKDF and HMAC over SHA-256 (RFC 5869, RFC 2104), on keys of 32 bytes.

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Stack that is overwritten after a key was worked with: more than HKDF and HMAC use of it.
const STACK: usize = 4096;

/// Runs what works with a key in a frame of its own, and overwrites that part of the stack: hashing copies keys around there, and
/// what lies in it later gets into other memory as the padding of values.
fn apart<R>(work: impl FnOnce() -> R) -> R {
    #[inline(never)]
    fn alone<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
    #[inline(never)]
    fn overwrite() {
        core::hint::black_box(&mut [0u8; STACK]);
    }
    let result = alone(work);
    overwrite();
    result
}

/// Bytes of a whole tag.
pub(crate) const TAG_LEN: usize = 32;

/// 32 secret bytes, overwritten when dropped. On the heap, so that moving the key leaves no copy behind.
#[derive(Clone)]
pub(crate) struct Key(Box<Zeroizing<[u8; 32]>>);

impl Key {
    /// A key that `write` fills in place.
    pub(crate) fn fill(write: impl FnOnce(&mut [u8; 32])) -> Key {
        let mut key = Box::new(Zeroizing::new([0; 32]));
        write(&mut key);
        Key(key)
    }

    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Key {
        Key::fill(|key| key.copy_from_slice(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// HKDF-Extract.
    pub(crate) fn extract(salt: &[u8], ikm: &[u8; 32]) -> Key {
        apart(|| {
            let (mut prk, _) = Hkdf::<Sha256>::extract(Some(salt), ikm);
            let key = Key::fill(|key| key.copy_from_slice(&prk));
            zeroize::Zeroize::zeroize(prk.as_mut_slice());
            key
        })
    }

    /// HKDF-Expand of this key with the concatenated `info`, 32 bytes.
    pub(crate) fn expand(&self, info: &[&[u8]]) -> Key {
        apart(|| {
            let hkdf = Hkdf::<Sha256>::from_prk(self.bytes()).expect("a key is as long as HKDF asks for");
            Key::fill(|key| hkdf.expand_multi_info(info, key).expect("32 bytes are one HKDF block"))
        })
    }

    /// HMAC of the concatenated `parts`.
    pub(crate) fn tag(&self, parts: &[&[u8]]) -> [u8; TAG_LEN] {
        apart(|| self.mac(parts).finalize().into_bytes().into())
    }

    /// Whether `tag` is the beginning (or all) of the HMAC of the concatenated `parts`, in constant time.
    pub(crate) fn verifies(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        apart(|| self.mac(parts).verify_truncated_left(tag).is_ok())
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.bytes()).expect("HMAC takes keys of any length");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5869, test case 1, cut to the first 32 bytes of its output.
    #[test]
    fn agrees_with_the_published_vector() {
        let mut okm = [0; 32];
        let salt: Vec<u8> = (0..13).collect();
        let info: Vec<u8> = (0xf0..0xfa).collect();
        let (prk, _) = Hkdf::<Sha256>::extract(Some(&salt), &[0x0b; 22]);
        okm.copy_from_slice(Key::fill(|key| key.copy_from_slice(&prk)).expand(&[&info[..3], &info[3..]]).bytes());
        let expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf";
        assert_eq!(okm.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), expected);
    }

    #[test]
    fn a_tag_verifies_whole_or_cut_and_nothing_else_does() {
        let key = Key::from_bytes(&[3; 32]);
        let tag = key.tag(&[b"ab", b"c"]);
        assert!(key.verifies(&[b"abc"], &tag) && key.verifies(&[b"abc"], &tag[..16]));
        assert!(!key.verifies(&[b"abd"], &tag) && !key.verifies(&[b"abc"], &tag[1..]));
        assert!(!Key::from_bytes(&[4; 32]).verifies(&[b"abc"], &tag));
    }
}

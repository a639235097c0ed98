//! The long loop of xxh3, and what ends it.
//!
//! The algorithm is that of the reference implementation (Y. Collet, <https://github.com/Cyan4973/xxHash>, `xxhash.h`,
//! "XXH3 64-bit") with seed 0 and its default secret, for inputs of more than [`SHORT_MAX`] bytes.

/// Bytes after each of which the accumulators are scrambled.
pub(crate) const HASH_BLOCK: usize = STRIPE * (SECRET_WORDS - LANES);

/// Up to here another algorithm is used.
pub(crate) const SHORT_MAX: usize = 240;

/// Bytes that go into the accumulators at once: eight for each.
pub(crate) const STRIPE: usize = 8 * LANES;

const LANES: usize = 8;
const SECRET_WORDS: usize = 24;

const PRIME32_1: u64 = 0x9e37_79b1;
const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;

/// The accumulators.
pub(crate) type Accumulators = [u64; LANES];

/// Their first values: primes of the algorithm.
pub(crate) const START: Accumulators = [
    0xc2b2_ae3d,
    PRIME64_1,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0x85eb_ca77_c2b2_ae63,
    0x85eb_ca77,
    0x27d4_eb2f_1656_67c5,
    PRIME32_1,
];

#[rustfmt::skip]
const SECRET: [u8; 8 * SECRET_WORDS] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// Eight words of the secret, from that byte on.
const fn secret(from: usize) -> Accumulators {
    let mut words = [0; LANES];
    let mut byte = 0;
    while byte < STRIPE {
        words[byte / 8] |= (SECRET[from + byte] as u64) << (8 * (byte % 8));
        byte += 1;
    }
    words
}

/// The secret of each stripe of a block.
const SECRETS: [Accumulators; SECRET_WORDS - LANES] = {
    let mut secrets = [[0; LANES]; SECRET_WORDS - LANES];
    let mut stripe = 0;
    while stripe < secrets.len() {
        secrets[stripe] = secret(8 * stripe);
        stripe += 1;
    }
    secrets
};
const SECRET_OF_SCRAMBLE: Accumulators = secret(8 * (SECRET_WORDS - LANES));
const SECRET_OF_LAST: Accumulators = secret(8 * (SECRET_WORDS - LANES) - 7);
const SECRET_OF_END: Accumulators = secret(11);

#[inline(always)]
fn accumulate(sums: &mut Accumulators, stripe: &[[u8; 8]; LANES], secret: &Accumulators) {
    let data = stripe.map(u64::from_le_bytes);
    for lane in 0..LANES {
        let key = data[lane] ^ secret[lane];
        let product = (key & 0xffff_ffff).wrapping_mul(key >> 32);
        sums[lane] = sums[lane].wrapping_add(data[lane ^ 1]).wrapping_add(product);
    }
}

#[inline(always)]
fn stripes(data: &[u8]) -> &[[[u8; 8]; LANES]] {
    data.as_chunks().0.as_chunks().0
}

#[inline(always)]
pub(super) fn hash_blocks(sums: &mut Accumulators, blocks: &[[u8; HASH_BLOCK]]) {
    // Kept in registers over a block, which an argument behind a reference need not be.
    let mut own = *sums;
    for block in blocks {
        for (stripe, secret) in stripes(block).iter().zip(&SECRETS) {
            accumulate(&mut own, stripe, secret);
        }
        for (sum, secret) in own.iter_mut().zip(&SECRET_OF_SCRAMBLE) {
            *sum = (*sum ^ (*sum >> 47) ^ secret).wrapping_mul(PRIME32_1);
        }
    }
    *sums = own;
}

/// The hash of `total` bytes whose full blocks, but for the last 1 to [`HASH_BLOCK`] bytes in `rest`, are in the sums. `last`
/// are the last of all bytes, some of which can be in the blocks.
pub(crate) fn hash_end(mut sums: Accumulators, rest: &[u8], last: &[u8; STRIPE], total: u64) -> u64 {
    let before_last = &rest[..rest.len().saturating_sub(1)];
    for (stripe, secret) in stripes(before_last).iter().zip(&SECRETS) {
        accumulate(&mut sums, stripe, secret);
    }
    for stripe in stripes(last) {
        accumulate(&mut sums, stripe, &SECRET_OF_LAST);
    }
    let mut hash = total.wrapping_mul(PRIME64_1);
    for pair in 0..LANES / 2 {
        let (a, b) = (2 * pair, 2 * pair + 1);
        let product = u128::from(sums[a] ^ SECRET_OF_END[a]) * u128::from(sums[b] ^ SECRET_OF_END[b]);
        hash = hash.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    hash ^= hash >> 37;
    hash = hash.wrapping_mul(0x1656_6791_9e37_79f9);
    hash ^ (hash >> 32)
}

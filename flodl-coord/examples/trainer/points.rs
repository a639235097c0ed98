//! Points in a cube, of four classes: which of four directions a point lies furthest along.

use flodl_worker::dataset::Dataset;
use flodl_worker::trainee::Fault;

/// Coordinates of a point.
pub(crate) const FEATURES: usize = 8;
/// Classes of points.
pub(crate) const CLASSES: usize = 4;

/// The points numbered `first..first + len`.
#[derive(Clone, Debug)]
pub(crate) struct Points {
    pub(crate) first: u64,
    pub(crate) len: u64,
    pub(crate) features: usize,
}

/// Coordinates and class of each point.
pub(crate) type PointBatch = Vec<(Vec<f32>, usize)>;

impl Dataset for Points {
    type Batch = PointBatch;

    fn len(&self) -> u64 {
        self.len
    }

    fn signature(&self) -> [u8; 32] {
        let mut signature = [0; 32];
        signature[..8].copy_from_slice(&self.first.to_le_bytes());
        signature[8..16].copy_from_slice(&self.len.to_le_bytes());
        signature
    }

    fn batch(&self, indices: &[u64]) -> Result<PointBatch, Fault> {
        Ok(indices.iter().map(|index| point(self.first + index, self.features)).collect())
    }
}

fn point(number: u64, features: usize) -> (Vec<f32>, usize) {
    let coordinate =
        |at: usize| (scatter(number.wrapping_mul(64).wrapping_add(at as u64)) % 2001) as f32 / 1000.0 - 1.0;
    let point: Vec<f32> = (0..features).map(coordinate).collect();
    let along = |class: usize| point[class] - point[class + CLASSES];
    let class = (0..CLASSES).max_by(|&a, &b| along(a).total_cmp(&along(b))).unwrap_or(0);
    (point, class)
}

/// SplitMix64 (Steele, Lea, Flood 2014): turns a counter into evenly scattered bits.
pub(crate) fn scatter(number: u64) -> u64 {
    let z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

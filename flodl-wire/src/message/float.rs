//! Reading floats back from JSON: it has no NaN and no infinity, and its writer puts `null` in their place. A diverged
//! run must stay readable, so `null` reads as NaN here. Formats for machines keep every value as it is.

use serde::{Deserialize, Deserializer};

/// A number, or what JSON put in the place of one.
#[derive(Deserialize)]
struct OrNull(Option<f64>);

impl From<OrNull> for f64 {
    fn from(read: OrNull) -> f64 {
        read.0.unwrap_or(f64::NAN)
    }
}

/// For one float.
pub(super) fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    if from.is_human_readable() { OrNull::deserialize(from).map(f64::from) } else { f64::deserialize(from) }
}

/// For floats that belong to names or ranks.
pub(super) fn pairs_or_nan<'de, K: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<(K, f64)>, D::Error> {
    if !from.is_human_readable() {
        return Vec::deserialize(from);
    }
    let pairs: Vec<(K, OrNull)> = Vec::deserialize(from)?;
    Ok(pairs.into_iter().map(|(key, value)| (key, value.into())).collect())
}

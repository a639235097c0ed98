//! One line that says where the run is.

use crate::figures::Figures;
use crate::rank::State;
use crate::store::Store;
use crate::text;

/// Where the run is, on one plain line: epoch, samples, speed of the last ten seconds of commits, loss, fraction of the
/// ceiling so far, ranks, and whether some are slowed on purpose. What is not known yet is left out.
#[must_use]
pub fn line(store: &Store) -> String {
    let rounds = store.rounds();
    let Some(epoch) = rounds.epoch else { return forming(store) };
    let mut parts = Vec::new();
    let number = epoch.0.saturating_add(1);
    match store.meta() {
        Some(meta) => {
            parts.push(format!("epoch {}/{}", number.min(meta.epochs), meta.epochs));
            let expected = meta.epochs.saturating_mul(meta.epoch_len);
            parts.push(format!("{} of {}", rounds.committed, text::count(expected, "sample")));
        }
        None => {
            parts.push(format!("epoch {number}"));
            parts.push(text::count(rounds.committed, "sample"));
        }
    }
    if let Some(rate) = store.clock().recent.rate() {
        parts.push(format!("{} samples/s", text::rate(rate)));
    }
    if let Some(loss) = rounds.loss {
        parts.push(format!("loss {loss:.4}"));
    }
    if let Some(fraction) = Figures::of(store).fraction {
        parts.push(format!("{fraction:.2} of the ceiling"));
    }
    let alive = store.ranks().filter(|(_, rank)| matches!(rank.state, State::Active | State::Finished)).count();
    let all = store.ranks().filter(|(_, rank)| rank.took_part()).count();
    parts.push(format!("{alive} of {all} ranks"));
    if store.meta().is_some_and(|meta| !meta.emulated.is_empty()) {
        parts.push("emulation".to_owned());
    }
    parts.join(", ")
}

fn forming(store: &Store) -> String {
    let ready = store.ranks().filter(|(_, rank)| matches!(rank.state, State::Ready | State::Active)).count();
    match store.meta() {
        Some(meta) => format!("starting: {ready} of {} ranks ready", meta.world_size),
        None => format!("starting: {} ready", text::count(ready as u64, "rank")),
    }
}

//! Writes checkpoint sets, on a thread that may wait for the disk.

use super::root::Root;
use super::rundir::RunDir;
use crate::shell::{Event, Saves, limits};
use crate::{Input, SaveRequest};
use async_channel::{Receiver, Sender, bounded};
use core::num::NonZeroU32;
use core::pin::Pin;
use flodl_relay::shell::{Consensus, RootGone};
use flodl_wire::RunId;
use flodl_wire::message::join::TensorSpec;
use flodl_wire::message::record::Reason;
use flodl_worker::checkpoint::{self, CheckpointSet, EpochCoverage, State, tensors_of};
use std::path::{Path, PathBuf};

/// The folder of the run directory that holds the sets.
pub(crate) const FOLDER: &str = "checkpoints";

/// The consensus that the root had when it was asked.
type Held = Pin<Box<dyn Future<Output = Result<Option<Consensus>, RootGone>> + Send>>;

/// A set to be written.
struct Order {
    request: Box<SaveRequest>,
    held: Held,
}

/// Takes orders for sets.
pub(crate) struct Desk {
    root: Root,
    orders: Sender<Order>,
}

impl Saves for Desk {
    fn save(&mut self, request: Box<SaveRequest>) -> Result<(), String> {
        // Asked for here and not by the saver, because the next round may be committed before the disk is ready.
        let held = Box::pin(self.root.handle().consensus());
        let busy = |_| "the checkpoints before this one are still being written".to_owned();
        self.orders.try_send(Order { request, held }).map_err(busy)
    }
}

/// Writes the checkpoint sets of one run.
pub(crate) struct Saver {
    run_id: RunId,
    dir: PathBuf,
    keep: NonZeroU32,
    orders: Receiver<Order>,
}

impl Saver {
    /// A saver into the run directory that keeps the newest `keep` sets, and who takes its orders.
    pub(crate) fn new(run_id: RunId, dir: &RunDir, keep: NonZeroU32, root: Root) -> (Saver, Desk) {
        let (order, orders) = bounded(limits::SAVES);
        (Saver { run_id, dir: dir.file(FOLDER), keep, orders }, Desk { root, orders: order })
    }

    /// Writes each set that is asked for and says what came of it.
    pub(crate) async fn save_all(self, events: Sender<Event>) {
        while let Ok(Order { request, held }) = self.orders.recv().await {
            let version = request.version;
            let result = self.save(request, held).await;
            let pruned = if result.is_ok() { self.prune().await } else { Ok(()) };
            let notice = pruned.err().map(|text| Event::Notice(Reason::new("not-pruned", text)));
            let saved = Event::Input(Input::Saved { version, result });
            for event in [Some(saved), notice].into_iter().flatten() {
                if events.send(event).await.is_err() {
                    return;
                }
            }
        }
    }

    async fn save(&self, request: Box<SaveRequest>, held: Held) -> Result<String, String> {
        let consensus = held.await.map_err(|gone| gone.to_string())?.ok_or("the root holds no consensus")?;
        if consensus.version != request.version {
            return Err(format!("the root holds {}, not {}", consensus.version, request.version));
        }
        let (state, dir) = (state(&request, self.run_id), self.dir.clone());
        smol::unblock(move || write(&request.tensors, &consensus, &state, &dir)).await
    }

    /// Older sets go once a newer one is whole and `latest` names it.
    async fn prune(&self) -> Result<(), String> {
        let (dir, keep) = (self.dir.clone(), self.keep);
        smol::unblock(move || checkpoint::prune(&dir, keep)).await.map_err(|error| error.to_string())
    }
}

fn write(specs: &[TensorSpec], consensus: &Consensus, state: &State, dir: &Path) -> Result<String, String> {
    let tensors = tensors_of(specs, &consensus.bytes).map_err(|error| error.to_string())?;
    let outer = &consensus.outer[..];
    let path = CheckpointSet { tensors: &tensors, state, outer }.save(dir).map_err(|error| error.to_string())?;
    Ok(path.display().to_string())
}

fn state(request: &SaveRequest, run_id: RunId) -> State {
    let coverage = request.coverage.iter().map(|(epoch, ranges)| EpochCoverage {
        epoch: epoch.0,
        committed: ranges.iter().map(|range| (range.start, range.end)).collect(),
    });
    State {
        run_id: run_id.to_string(),
        version: request.version.0,
        epoch: request.epoch.0,
        epochs: request.epochs,
        global_step: request.global_step,
        seed: request.seed,
        dataset_len: request.dataset_len,
        epoch_len: request.epoch_len,
        batch_size: request.batch_size,
        coverage: coverage.collect(),
        scheduler: serde_json::json!({ "anchor": request.anchor }),
        why: request.why.clone(),
        ..State::default()
    }
}

//! Writes checkpoint sets, on a thread that may wait for the disk.

use super::root::Root;
use super::rundir::RunDir;
use crate::shell::Event;
use crate::{Input, SaveRequest};
use async_channel::{Receiver, Sender};
use flodl_relay::shell::Consensus;
use flodl_wire::RunId;
use flodl_wire::message::join::TensorSpec;
use flodl_worker::checkpoint::{CheckpointSet, EpochCoverage, State, tensors_of};
use std::path::{Path, PathBuf};

/// The folder of the run directory that holds the sets.
const FOLDER: &str = "checkpoints";

/// Writes the checkpoint sets of one run.
pub(crate) struct Saver {
    run_id: RunId,
    dir: PathBuf,
    root: Root,
}

impl Saver {
    /// A saver into the run directory.
    pub(crate) fn new(run_id: RunId, dir: &RunDir, root: Root) -> Saver {
        Saver { run_id, dir: dir.file(FOLDER), root }
    }

    /// Writes each set that is asked for and says what came of it.
    pub(crate) async fn save_all(self, requests: Receiver<Box<SaveRequest>>, events: Sender<Event>) {
        while let Ok(request) = requests.recv().await {
            let version = request.version;
            let result = self.save(request).await;
            if events.send(Event::Input(Input::Saved { version, result })).await.is_err() {
                return;
            }
        }
    }

    async fn save(&self, request: Box<SaveRequest>) -> Result<String, String> {
        let consensus = self.root.handle().consensus().await.map_err(|gone| gone.to_string())?;
        let consensus = consensus.ok_or("the root holds no consensus")?;
        if consensus.version != request.version {
            return Err(format!("the root holds {}, not {}", consensus.version, request.version));
        }
        let (state, dir) = (state(&request, self.run_id), self.dir.clone());
        smol::unblock(move || write(&request.tensors, &consensus, &state, &dir)).await
    }
}

fn write(specs: &[TensorSpec], consensus: &Consensus, state: &State, dir: &Path) -> Result<String, String> {
    let tensors = tensors_of(specs, &consensus.bytes).map_err(|error| error.to_string())?;
    let path = CheckpointSet { tensors: &tensors, state }.save(dir).map_err(|error| error.to_string())?;
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

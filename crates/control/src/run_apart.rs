//! Work apart from whoever waits for it, and from the threads that answer.

use std::future::Future;

use tessera_core::{Error, Result};

use crate::requester::{current_requester, on_behalf_of};

/// Does `work` to its end, also where whoever waits for it goes away: half a change would be
/// neither what was nor what should be.
pub(crate) async fn run_to_completion<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(on_behalf_of(current_requester(), work))
        .await
        .map_err(|error| change_aborted(&error))?
}

/// Does what reads and writes files apart from the threads that answer.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| change_aborted(&error))?
}

fn change_aborted(error: &tokio::task::JoinError) -> Error {
    Error::lost(format!("the change was broken off: {error}"))
}

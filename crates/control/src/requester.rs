//! Who asked for the change that is being carried out.

use std::future::Future;

tokio::task_local! {
    static REQUESTER: Option<String>;
}

/// Does work for somebody, where that is known: what it changes was asked for by them.
pub async fn on_behalf_of<T>(who: Option<String>, work: impl Future<Output = T>) -> T {
    REQUESTER.scope(who, work).await
}

/// Who asked for what is being done.
pub(crate) fn current_requester() -> Option<String> {
    REQUESTER.try_with(Clone::clone).ok().flatten()
}

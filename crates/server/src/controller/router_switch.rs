//! What answers at a port, changed while it does.

use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::extract::Request;
use tower_service::Service;

/// What answers at a port: another from one request to the next, where that is set.
#[derive(Clone)]
pub(super) struct RouterSwitch(Arc<RwLock<Router>>);

impl RouterSwitch {
    pub(super) fn new(router: Router) -> Self {
        Self(Arc::new(RwLock::new(router)))
    }

    /// Has this one answer from now on.
    pub(super) fn set_router(&self, router: Router) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = router;
    }

    /// The router that asks whichever is set.
    pub(super) fn router(&self) -> Router {
        let switch = Arc::clone(&self.0);
        Router::new().fallback(move |request: Request| {
            let current = switch.read().unwrap_or_else(PoisonError::into_inner).clone();
            async move {
                let mut current = current;
                current.call(request).await
            }
        })
    }
}

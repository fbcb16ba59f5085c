//! What keeps an endpoint going while somebody uses a part of it.

use std::any::Any;
use std::sync::Arc;

/// Held by senders, inboxes and pools, which need nothing of the endpoint but that it is there: its
/// thread moves what they send and receive.
pub(crate) type KeepAlive = Arc<dyn Any + Send + Sync>;

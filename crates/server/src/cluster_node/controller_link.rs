//! The connection to a controller, while there is one.

use std::sync::Mutex;

use tessera_cluster::ControllerConnection;
use tessera_core::lock;

/// The connection to a controller, while there is one.
#[derive(Default)]
pub(super) struct ControllerLink(Mutex<Option<ControllerConnection>>);

impl ControllerLink {
    pub(super) fn current(&self) -> Option<ControllerConnection> {
        lock(&self.0).clone()
    }

    /// From now on there is this one, or none.
    pub(super) fn set_current(&self, connection: Option<ControllerConnection>) {
        *lock(&self.0) = connection;
    }
}

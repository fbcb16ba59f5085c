//! How tasks are served that say nothing themselves.

use std::time::Duration;

use tessera_core::Device;
use tessera_deploy::{Isolation, TaskSettings};

/// How tasks are served that say nothing themselves; the server's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskDefaults {
    /// What keeps their units apart.
    pub isolation: Isolation,
    /// How long a request may take where the client says nothing.
    pub deadline: Duration,
    /// What their blocks run on.
    pub device: Device,
}

impl Default for TaskDefaults {
    fn default() -> Self {
        let TaskSettings { isolation, deadline, device, .. } = TaskSettings::default();
        Self { isolation, deadline, device }
    }
}

//! What is to be simulated: a GPU's memory, instances of models, and requests.

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use crate::residency::problem::exceeds_memory;
use crate::validation::{require_figure, require_positive, require_unique_names};

/// An instance of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvictionInstance {
    /// Tells it from the others.
    pub name: String,
    /// Bytes that it takes on the GPU.
    pub bytes: f64,
    /// Time that a request loses when it has to be loaded first.
    pub reload_ms: f64,
    /// How often it is asked for, where requests are drawn.
    #[serde(default)]
    pub rate_per_second: f64,
    /// Whether it is on the GPU at the start.
    #[serde(default)]
    pub resident: bool,
    /// Whether it has to stay once it is on the GPU.
    #[serde(default)]
    pub pinned: bool,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvictionRequest {
    /// When it comes.
    pub at_ms: f64,
    /// The name of the instance.
    pub instance: String,
}

/// Instances that do not all fit, and who asks for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvictionProblem {
    /// Memory of the GPU.
    pub memory_bytes: f64,
    /// The instances.
    pub instances: Vec<EvictionInstance>,
    /// The requests, in the order in which they come; drawn from the rates where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<EvictionRequest>,
}

impl EvictionProblem {
    /// Refuses what makes no sense, and instances that there is never room for.
    pub fn check_consistency(&self) -> Result<()> {
        let memory = require_positive("memory_bytes", self.memory_bytes)?;
        if self.instances.is_empty() {
            return Err(Error::invalid("instances: none, expected at least one"));
        }
        require_unique_names(
            "instances",
            self.instances.iter().map(|instance| instance.name.as_str()),
        )?;
        let pinned = self.instances.iter().filter(|instance| instance.pinned);
        let pinned: f64 = pinned.map(|instance| instance.bytes).sum();
        let mut resident = 0.0;
        for (number, instance) in self.instances.iter().enumerate() {
            let bytes = require_positive(&format!("instances[{number}].bytes"), instance.bytes)?;
            require_figure(&format!("instances[{number}].reload_ms"), instance.reload_ms)?;
            require_figure(
                &format!("instances[{number}].rate_per_second"),
                instance.rate_per_second,
            )?;
            let others = if instance.pinned { pinned - bytes } else { pinned };
            if exceeds_memory(bytes + others, memory) {
                return Err(Error::invalid(format!(
                    "instances[{number}].bytes: {bytes}, more than memory_bytes {memory} holds beside \
                     {others} of pinned instances"
                )));
            }
            resident += if instance.resident { bytes } else { 0.0 };
            if exceeds_memory(resident, memory) {
                return Err(Error::invalid(format!(
                    "instances[{number}].resident: with it {resident} bytes are on the GPU, and \
                     memory_bytes is {memory}"
                )));
            }
        }
        self.numbered_requests().map(|_| ())
    }

    /// The requests, by time and the number of the instance.
    pub(super) fn numbered_requests(&self) -> Result<Vec<(f64, usize)>> {
        let mut before = 0.0;
        let mut found = Vec::with_capacity(self.requests.len());
        for (number, request) in self.requests.iter().enumerate() {
            let at = require_figure(&format!("requests[{number}].at_ms"), request.at_ms)?;
            if at < before {
                return Err(Error::invalid(format!(
                    "requests[{number}].at_ms: {at}, expected no less than {before} of the one before"
                )));
            }
            before = at;
            let named = |instance: &EvictionInstance| instance.name == request.instance;
            let instance = self.instances.iter().position(named).ok_or_else(|| {
                Error::invalid(format!(
                    "requests[{number}].instance: \"{}\" is not among instances",
                    request.instance
                ))
            })?;
            found.push((at, instance));
        }
        Ok(found)
    }
}

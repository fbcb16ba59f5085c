//! What is to be played through: a GPU's memory, instances of models, and requests.

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use crate::check::{figure, names, positive};
use crate::residency::problem::exceeds;

/// An instance of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
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
pub struct Request {
    /// When it comes.
    pub at_ms: f64,
    /// The name of the instance.
    pub instance: String,
}

/// Instances that do not all fit, and who asks for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Problem {
    /// Memory of the GPU.
    pub memory_bytes: f64,
    /// The instances.
    pub instances: Vec<Instance>,
    /// The requests, in the order in which they come; drawn from the rates where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<Request>,
}

impl Problem {
    /// Refuses what makes no sense, and instances that there is never room for.
    pub fn check(&self) -> Result<()> {
        let memory = positive("memory_bytes", self.memory_bytes)?;
        if self.instances.is_empty() {
            return Err(Error::invalid("instances: none, expected at least one"));
        }
        names("instances", self.instances.iter().map(|instance| instance.name.as_str()))?;
        let pinned = self.instances.iter().filter(|instance| instance.pinned);
        let pinned: f64 = pinned.map(|instance| instance.bytes).sum();
        let mut resident = 0.0;
        for (number, instance) in self.instances.iter().enumerate() {
            let bytes = positive(&format!("instances[{number}].bytes"), instance.bytes)?;
            figure(&format!("instances[{number}].reload_ms"), instance.reload_ms)?;
            figure(&format!("instances[{number}].rate_per_second"), instance.rate_per_second)?;
            let others = if instance.pinned { pinned - bytes } else { pinned };
            if exceeds(bytes + others, memory) {
                return Err(Error::invalid(format!(
                    "instances[{number}].bytes: {bytes}, more than memory_bytes {memory} holds beside \
                     {others} of pinned instances"
                )));
            }
            resident += if instance.resident { bytes } else { 0.0 };
            if exceeds(resident, memory) {
                return Err(Error::invalid(format!(
                    "instances[{number}].resident: with it {resident} bytes are on the GPU, and \
                     memory_bytes is {memory}"
                )));
            }
        }
        self.numbers().map(|_| ())
    }

    /// The requests, by time and the number of the instance.
    pub(super) fn numbers(&self) -> Result<Vec<(f64, usize)>> {
        let mut before = 0.0;
        let mut found = Vec::with_capacity(self.requests.len());
        for (number, request) in self.requests.iter().enumerate() {
            let at = figure(&format!("requests[{number}].at_ms"), request.at_ms)?;
            if at < before {
                return Err(Error::invalid(format!(
                    "requests[{number}].at_ms: {at}, expected no less than {before} of the one before"
                )));
            }
            before = at;
            let named = |instance: &Instance| instance.name == request.instance;
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

//! What is to be planned: the layers of a model with their times, and the GPUs of a server.

use std::fmt;

use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use crate::validation::{require_figure, require_positive, require_unique_names};

/// A layer, as a profile knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidencyLayer {
    /// Tells it from the others.
    pub name: String,
    /// Bytes of its weights; 0 where it has none.
    #[serde(default)]
    pub bytes: f64,
    /// Time to copy the weights from the host to a GPU that has its PCIe switch to itself.
    #[serde(default)]
    pub load_us: f64,
    /// Time to run with the weights in the GPU's memory.
    pub in_memory_us: f64,
    /// Time to run with the weights in host memory that the GPU reads; none where it can't.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_us: Option<f64>,
}

impl ResidencyLayer {
    /// Time to run with the weights left on the host, where there are weights and that works.
    pub fn direct_time(&self) -> Option<f64> {
        self.direct_us.filter(|_| self.bytes > 0.0)
    }

    /// How much longer it runs when the weights stay on the host.
    pub(super) fn direct_penalty(&self) -> Option<f64> {
        self.direct_time().map(|direct| direct - self.in_memory_us)
    }
}

/// A GPU of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerGpu {
    /// Tells it from the others; may be left out where it is the only one.
    #[serde(default = "only_name")]
    pub name: String,
    /// The PCIe switch that it hangs below, by name or number.
    #[serde(default = "only_switch", deserialize_with = "name_or_number")]
    pub switch: String,
    /// Memory that is free for weights; none where it does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<f64>,
}

impl Default for ServerGpu {
    fn default() -> Self {
        Self { name: only_name(), switch: only_switch(), memory_bytes: None }
    }
}

/// Two GPUs that reach each other without PCIe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// The names of both.
    pub between: [String; 2],
    /// Bytes per second in one direction.
    pub bytes_per_second: f64,
}

/// A model that is not on the GPU yet, and the server that is to run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidencyProblem {
    /// The layers, in the order in which they run.
    pub layers: Vec<ResidencyLayer>,
    /// The GPUs; one without a limit where nothing is said.
    #[serde(default = "one_gpu")]
    pub gpus: Vec<ServerGpu>,
    /// The links between GPUs.
    #[serde(default)]
    pub nvlinks: Vec<NvLink>,
    /// The share of the loading rate that is lost while a layer is read from the host: 0 to 1.
    /// Nothing where nothing is said, as in the DeepPlan paper's own model.
    #[serde(default)]
    pub direct_contention: f64,
    /// The GPU that runs the model; the first where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

impl ResidencyProblem {
    /// A problem with one GPU whose memory does not matter.
    pub fn with_one_gpu(layers: Vec<ResidencyLayer>) -> Self {
        Self { layers, gpus: one_gpu(), nvlinks: Vec::new(), direct_contention: 0.0, target: None }
    }

    /// How much later all that is loaded behind a layer comes when that is read from the host: for
    /// as long as it waits for the bus it leaves little of it.
    pub(super) fn hold_up_us(&self, layer: &ResidencyLayer) -> f64 {
        self.direct_contention * layer.direct_penalty().unwrap_or(0.0).max(0.0)
    }

    /// The GPU that runs the model, by number.
    pub fn target_index(&self) -> usize {
        let named =
            |gpu: &ServerGpu| self.target.as_ref().is_some_and(|target| gpu.name == *target);
        self.gpus.iter().position(named).unwrap_or(0)
    }

    /// Memory of the GPU that runs the model.
    pub(super) fn target_memory(&self) -> Option<f64> {
        self.gpus.get(self.target_index()).and_then(|gpu| gpu.memory_bytes)
    }

    /// Refuses what makes no sense, and memory that no plan fits into.
    pub fn check_consistency(&self) -> Result<()> {
        self.check_layers()?;
        let contention = require_figure("direct_contention", self.direct_contention)?;
        if contention > 1.0 {
            return Err(Error::invalid(format!(
                "direct_contention: {contention}, expected a share from 0 to 1"
            )));
        }
        self.check_server()?;
        self.check_memory()
    }

    fn check_layers(&self) -> Result<()> {
        if self.layers.is_empty() {
            return Err(Error::invalid("layers: none, expected at least one"));
        }
        require_unique_names("layers", self.layers.iter().map(|layer| layer.name.as_str()))?;
        for (number, layer) in self.layers.iter().enumerate() {
            let bytes = require_figure(&format!("layers[{number}].bytes"), layer.bytes)?;
            let load = require_figure(&format!("layers[{number}].load_us"), layer.load_us)?;
            require_figure(&format!("layers[{number}].in_memory_us"), layer.in_memory_us)?;
            if let Some(direct) = layer.direct_us {
                require_figure(&format!("layers[{number}].direct_us"), direct)?;
            }
            if bytes > 0.0 && load == 0.0 {
                return Err(Error::invalid(format!(
                    "layers[{number}].load_us: 0, expected how long {bytes} bytes take to load"
                )));
            }
            if load > 0.0 && bytes == 0.0 {
                return Err(Error::invalid(format!(
                    "layers[{number}].bytes: 0, expected the bytes that take {load} µs to load"
                )));
            }
        }
        Ok(())
    }

    fn check_server(&self) -> Result<()> {
        if self.gpus.is_empty() {
            return Err(Error::invalid("gpus: none, expected at least one"));
        }
        require_unique_names("gpus", self.gpus.iter().map(|gpu| gpu.name.as_str()))?;
        for (number, gpu) in self.gpus.iter().enumerate() {
            if gpu.switch.is_empty() {
                return Err(Error::invalid(format!("gpus[{number}].switch: empty")));
            }
            if let Some(memory) = gpu.memory_bytes {
                require_figure(&format!("gpus[{number}].memory_bytes"), memory)?;
            }
        }
        let find = |name: &str| self.gpus.iter().position(|gpu| gpu.name == name);
        let unknown = |field: &str, name: &str| {
            let known: Vec<String> =
                self.gpus.iter().map(|gpu| format!("\"{}\"", gpu.name)).collect();
            Error::invalid(format!("{field}: no GPU \"{name}\", there is {}", known.join(", ")))
        };
        let mut linked: Vec<[usize; 2]> = Vec::with_capacity(self.nvlinks.len());
        for (number, link) in self.nvlinks.iter().enumerate() {
            let field = format!("nvlinks[{number}].between");
            let [one, other] = &link.between;
            let first = find(one).ok_or_else(|| unknown(&field, one))?;
            let second = find(other).ok_or_else(|| unknown(&field, other))?;
            if first == second {
                return Err(Error::invalid(format!("{field}: \"{one}\" and itself")));
            }
            let pair = [first.min(second), first.max(second)];
            if linked.contains(&pair) {
                return Err(Error::invalid(format!(
                    "{field}: \"{one}\" and \"{other}\" are linked already"
                )));
            }
            linked.push(pair);
            let field = format!("nvlinks[{number}].bytes_per_second");
            // Slower links would take longer than any figure may be.
            if require_positive(&field, link.bytes_per_second)? < 1.0 {
                let rate = link.bytes_per_second;
                return Err(Error::invalid(format!("{field}: {rate}, expected at least 1")));
            }
        }
        match &self.target {
            Some(target) if find(target).is_none() => Err(unknown("target", target)),
            _ => Ok(()),
        }
    }

    /// What can't stay on the host has to fit into the memory of the GPU that runs the model.
    fn check_memory(&self) -> Result<()> {
        let target = &self.gpus[self.target_index()];
        let Some(memory) = target.memory_bytes else { return Ok(()) };
        let mut needed = 0.0;
        for (number, layer) in self.layers.iter().enumerate() {
            if layer.direct_time().is_some() {
                continue;
            }
            needed += layer.bytes;
            if exceeds_memory(needed, memory) {
                return Err(Error::invalid(format!(
                    "layers[{number}]: \"{}\" can't be read from the host; with it the layers that \
                     must be loaded take {needed} bytes, and GPU \"{}\" has {memory}",
                    layer.name, target.name
                )));
            }
        }
        Ok(())
    }
}

/// Whether `bytes` are more than `memory` has, by more than adding up in another order makes.
pub(super) fn exceeds_memory(bytes: f64, memory: f64) -> bool {
    bytes > memory * (1.0 + 1e-9)
}

fn only_name() -> String {
    "gpu".to_owned()
}

fn only_switch() -> String {
    "0".to_owned()
}

fn one_gpu() -> Vec<ServerGpu> {
    vec![ServerGpu::default()]
}

fn name_or_number<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    struct NameOrNumber;

    impl Visitor<'_> for NameOrNumber {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the name or the number of a PCIe switch")
        }

        fn visit_str<E>(self, name: &str) -> Result<String, E> {
            Ok(name.to_owned())
        }

        fn visit_u64<E>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }

        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<String, E> {
            u64::try_from(number)
                .map(|number| number.to_string())
                .map_err(|_| E::custom(format!("{number}, expected a number from 0")))
        }

        fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<String, E> {
            if number >= 0.0 && number.fract() == 0.0 && number < 1e15 {
                Ok(number.to_string())
            } else {
                Err(E::custom(format!("{number}, expected a whole number from 0")))
            }
        }
    }

    from.deserialize_any(NameOrNumber).map_err(|error| D::Error::custom(format!("switch: {error}")))
}

//! What is to be placed, and where it could be.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use crate::validation;

/// Nodes, the network between them, and models whose layers are to be placed on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementProblem {
    /// Where layers can be.
    pub nodes: Vec<PlacementNode>,
    /// Bits per second from each node (row) to each other (column); 0 where there is no connection,
    /// null on the diagonal.
    pub throughput_bits_per_second: Vec<Vec<Option<f64>>>,
    /// Milliseconds that each transfer takes beside that.
    pub latency_ms: Vec<Vec<Option<f64>>>,
    /// The layers of the model, where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<PlacementLayer>,
    /// The models, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<PlacementModel>,
    /// What it costs to move layers away from where a previous plan has them.
    #[serde(default)]
    pub moving: MigrationCost,
}

/// A host that runs layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementNode {
    /// Its name.
    pub name: String,
    /// How far from where inputs come from; layers never go back to a lower tier.
    #[serde(default)]
    pub tier: u32,
    /// Whether inputs come from here; exactly one node says so.
    #[serde(default)]
    pub input: bool,
    /// What computes here, where layers have measured times ([`PlacementLayer::times_ms`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// How fast it computes, where layers have no measured time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops_per_second: Option<f64>,
    /// Memory for layers; none: enough for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<f64>,
    /// Storage for layers; none: enough for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_bytes: Option<f64>,
    /// What it draws while it computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// What sending costs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules_per_byte_sent: Option<f64>,
}

/// One of several models on the same nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementModel {
    /// Its name.
    pub name: String,
    /// How much its latency counts beside that of the others.
    #[serde(default = "one")]
    pub weight: f64,
    /// The node that its inputs come from, where that is another than that of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// Bytes of an answer, which goes back to where the input came from; none: it stays there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_bytes: Option<f64>,
    /// Bytes of its input, where the first layer doesn't say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_bytes: Option<f64>,
    /// Share of right answers where no exit is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Share of right answers that it must have: thresholds are then chosen for the least latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_accuracy: Option<f64>,
    /// Its layers, from the first to the last.
    pub layers: Vec<PlacementLayer>,
}

/// A layer, or a block of layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementLayer {
    /// What it is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is: layers of the same block on a node are there once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
    /// Multiply-adds of one inference.
    #[serde(default)]
    pub flops: f64,
    /// Measured milliseconds, by kind of node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times_ms: BTreeMap<String, f64>,
    /// Memory that it needs where it is.
    #[serde(default)]
    pub memory_bytes: f64,
    /// Storage that it needs where it is.
    #[serde(default)]
    pub storage_bytes: f64,
    /// Bytes that go into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_bytes: Option<f64>,
    /// Bytes that go from it to the next one, where that doesn't say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<f64>,
    /// Share of requests that get here, where exits are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_probability: Option<f64>,
    /// The settings of the exit behind it; the first is the one in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exit: Vec<ExitSetting>,
}

/// What a threshold of an exit brings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExitSetting {
    /// The confidence threshold.
    pub threshold: f64,
    /// Share of what gets here that leaves.
    pub rate: f64,
    /// Share of right answers among those that leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
}

/// What it costs to move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MigrationCost {
    /// Milliseconds that moving a layer costs, beside its bytes.
    pub layer_ms: f64,
    /// How fast a layer's storage is brought to its new node; 0: at once.
    pub bits_per_second: f64,
    /// Requests until the next plan: what moving costs is shared by them.
    pub requests: f64,
    /// Least gain for which a plan is changed at all, as a share of the latency.
    pub least_gain: f64,
}

impl Default for MigrationCost {
    fn default() -> Self {
        Self { layer_ms: 0.0, bits_per_second: 0.0, requests: 1.0, least_gain: 0.02 }
    }
}

fn one() -> f64 {
    1.0
}

impl PlacementProblem {
    /// The models; one without a name where the problem only lists layers.
    pub fn all_models(&self) -> Vec<PlacementModel> {
        if self.models.is_empty() {
            vec![PlacementModel {
                name: "model".to_owned(),
                weight: 1.0,
                input: None,
                reply_bytes: None,
                input_bytes: None,
                accuracy: None,
                least_accuracy: None,
                layers: self.layers.clone(),
            }]
        } else {
            self.models.clone()
        }
    }

    /// The node that inputs come from, where a model says nothing else.
    pub fn input_node(&self) -> usize {
        self.nodes.iter().position(|node| node.input).unwrap_or(0)
    }

    /// The node that the inputs of a model come from.
    pub fn input_of(&self, model: &PlacementModel) -> usize {
        let named = |name: &String| self.nodes.iter().position(|node| node.name == *name);
        model.input.as_ref().and_then(named).unwrap_or_else(|| self.input_node())
    }

    /// Refuses what makes no sense, and says which field it is.
    pub fn check_consistency(&self) -> Result<()> {
        self.check_nodes()?;
        self.check_links()?;
        if self.layers.is_empty() && self.models.is_empty() {
            return Err(Error::invalid("layers: none; nor are there models"));
        }
        if !self.layers.is_empty() && !self.models.is_empty() {
            return Err(Error::invalid("layers and models: both are there, expected one"));
        }
        validation::require_unique_names(
            "models",
            self.models.iter().map(|model| model.name.as_str()),
        )?;
        for (number, model) in self.all_models().iter().enumerate() {
            let field =
                if self.models.is_empty() { String::new() } else { format!("models[{number}].") };
            self.check_model(&field, model)?;
        }
        self.check_blocks()?;
        let moving = &self.moving;
        validation::require_figure("moving.layer_ms", moving.layer_ms)?;
        validation::require_figure("moving.bits_per_second", moving.bits_per_second)?;
        validation::require_positive("moving.requests", moving.requests)?;
        validation::require_fraction("moving.least_gain", moving.least_gain)?;
        Ok(())
    }

    fn check_nodes(&self) -> Result<()> {
        if self.nodes.is_empty() {
            return Err(Error::invalid("nodes: none"));
        }
        validation::require_unique_names(
            "nodes",
            self.nodes.iter().map(|node| node.name.as_str()),
        )?;
        for (number, node) in self.nodes.iter().enumerate() {
            let field = |name: &str| format!("nodes[{number}].{name}");
            if let Some(value) = node.flops_per_second {
                validation::require_positive(&field("flops_per_second"), value)?;
            }
            let others = [
                ("memory_bytes", node.memory_bytes),
                ("storage_bytes", node.storage_bytes),
                ("watts", node.watts),
                ("joules_per_byte_sent", node.joules_per_byte_sent),
            ];
            for (name, value) in others {
                validation::require_figure(&field(name), value.unwrap_or(0.0))?;
            }
        }
        let inputs: Vec<&str> =
            self.nodes.iter().filter(|node| node.input).map(|node| node.name.as_str()).collect();
        match inputs[..] {
            [] => Err(Error::invalid("nodes: none has input: true, expected exactly one")),
            [_] => Ok(()),
            _ => Err(Error::invalid(format!(
                "nodes: {} have input: true, expected exactly one",
                inputs.join(" and ")
            ))),
        }
    }

    fn check_links(&self) -> Result<()> {
        let tables = [
            ("throughput_bits_per_second", &self.throughput_bits_per_second),
            ("latency_ms", &self.latency_ms),
        ];
        let count = self.nodes.len();
        for (name, table) in tables {
            if table.len() != count {
                let rows = table.len();
                return Err(Error::invalid(format!(
                    "{name}: {rows} rows, expected one for each of {count} nodes"
                )));
            }
            for (from, row) in table.iter().enumerate() {
                if row.len() != count {
                    let cells = row.len();
                    return Err(Error::invalid(format!(
                        "{name}[{from}]: {cells} figures, expected one for each of {count} nodes"
                    )));
                }
                for (to, value) in row.iter().enumerate().filter(|&(to, _)| to != from) {
                    let field = format!("{name}[{from}][{to}]");
                    let (from, to) = (&self.nodes[from].name, &self.nodes[to].name);
                    match value {
                        Some(value) => validation::require_figure(&field, *value)?,
                        None => {
                            return Err(Error::invalid(format!(
                                "{field}: missing, the link from {from} to {to}; 0 bits per second where there is none"
                            )));
                        }
                    };
                }
            }
        }
        Ok(())
    }

    fn check_model(&self, field: &str, model: &PlacementModel) -> Result<()> {
        validation::require_positive(&format!("{field}weight"), model.weight)?;
        if let Some(bytes) = model.input_bytes {
            validation::require_figure(&format!("{field}input_bytes"), bytes)?;
        }
        if let Some(bytes) = model.reply_bytes {
            validation::require_figure(&format!("{field}reply_bytes"), bytes)?;
        }
        if let Some(name) = &model.input
            && self.nodes.iter().all(|node| node.name != *name)
        {
            return Err(Error::invalid(format!("{field}input: there is no node \"{name}\"")));
        }
        for (name, value) in
            [("accuracy", model.accuracy), ("least_accuracy", model.least_accuracy)]
        {
            validation::require_fraction(&format!("{field}{name}"), value.unwrap_or(0.0))?;
        }
        if model.layers.is_empty() {
            return Err(Error::invalid(format!("{field}layers: none")));
        }
        let with_exits = model.layers.iter().any(|layer| !layer.exit.is_empty());
        let mut reached = 1.0;
        for (number, layer) in model.layers.iter().enumerate() {
            let field = |name: &str| format!("{field}layers[{number}].{name}");
            for (name, value) in [
                ("flops", Some(layer.flops)),
                ("memory_bytes", Some(layer.memory_bytes)),
                ("storage_bytes", Some(layer.storage_bytes)),
                ("input_bytes", layer.input_bytes),
                ("output_bytes", layer.output_bytes),
            ] {
                validation::require_figure(&field(name), value.unwrap_or(0.0))?;
            }
            for (kind, &time) in &layer.times_ms {
                validation::require_figure(&field(&format!("times_ms.{kind}")), time)?;
            }
            if model.bytes_into(number).is_none() {
                return Err(Error::invalid(format!(
                    "{}: missing, and what comes before has no {}",
                    field("input_bytes"),
                    if number == 0 { "input_bytes" } else { "output_bytes" }
                )));
            }
            for node in &self.nodes {
                if layer.time_on(node).is_none() {
                    return Err(Error::invalid(match &node.kind {
                        Some(kind) => format!(
                            "{}: no time for {kind}, the kind of {}, which has no flops_per_second either",
                            field("times_ms"),
                            node.name
                        ),
                        None => format!(
                            "nodes: {} has neither flops_per_second nor a kind that {} knows",
                            node.name,
                            field("times_ms")
                        ),
                    }));
                }
            }
            if let Some(probability) = layer.execution_probability {
                let name = field("execution_probability");
                validation::require_fraction(&name, probability)?;
                if with_exits {
                    return Err(Error::invalid(format!(
                        "{name}: it follows from the exits that are listed"
                    )));
                }
                if probability > reached {
                    return Err(Error::invalid(format!(
                        "{name}: {probability}, above the {reached} of what comes before"
                    )));
                }
                reached = probability;
            }
            check_exit(&field("exit"), &layer.exit)?;
        }
        if model.least_accuracy.is_some() {
            let last = model.accuracy.is_some();
            let exits = model.layers.iter().flat_map(|layer| &layer.exit);
            if !last || exits.into_iter().any(|setting| setting.accuracy.is_none()) {
                return Err(Error::invalid(format!(
                    "{field}least_accuracy: the model and each setting of its exits need an accuracy for it"
                )));
            }
        }
        Ok(())
    }

    /// Layers of one block must be alike.
    fn check_blocks(&self) -> Result<()> {
        let mut seen: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for model in self.all_models() {
            for layer in model.layers {
                let Some(block) = layer.block else { continue };
                let size = (layer.memory_bytes, layer.storage_bytes);
                match seen.insert(block.clone(), size) {
                    Some(before) if before != size => {
                        return Err(Error::invalid(format!(
                            "block {block}: {} and {} bytes of memory, {} and {} of storage, expected the same for all layers of a block",
                            before.0, size.0, before.1, size.1
                        )));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn check_exit(field: &str, settings: &[ExitSetting]) -> Result<()> {
    for (number, setting) in settings.iter().enumerate() {
        let field = |name: &str| format!("{field}[{number}].{name}");
        validation::require_fraction(&field("threshold"), setting.threshold)?;
        validation::require_fraction(&field("rate"), setting.rate)?;
        validation::require_fraction(&field("accuracy"), setting.accuracy.unwrap_or(0.0))?;
        if settings[..number].iter().any(|before| before.threshold == setting.threshold) {
            return Err(Error::invalid(format!(
                "{}: {} is there twice",
                field("threshold"),
                setting.threshold
            )));
        }
    }
    Ok(())
}

impl PlacementModel {
    /// Bytes that go into a layer.
    pub fn bytes_into(&self, layer: usize) -> Option<f64> {
        self.layers[layer].input_bytes.or_else(|| match layer {
            0 => self.input_bytes,
            _ => self.layers[layer - 1].output_bytes,
        })
    }

    /// Share of requests that get to each layer with these settings of its exits.
    pub fn reach_by_layer(&self, settings: &[Option<usize>]) -> Vec<f64> {
        let mut reach = 1.0;
        let layers = self.layers.iter().enumerate().map(|(number, layer)| {
            // Where exits are not listed, a layer that doesn't say is as likely as the one before.
            reach = layer.execution_probability.unwrap_or(reach);
            let here = reach;
            if let Some(setting) =
                settings.get(number).copied().flatten().and_then(|setting| layer.exit.get(setting))
            {
                reach *= 1.0 - setting.rate;
            }
            here
        });
        layers.collect()
    }

    /// Share of requests that get their answer behind each layer.
    pub fn leaving_by_layer(&self, settings: &[Option<usize>]) -> Vec<f64> {
        let reach = self.reach_by_layer(settings);
        let after = reach.iter().skip(1).copied().chain([0.0]);
        reach.iter().zip(after).map(|(here, next)| here - next).collect()
    }

    /// The settings of the exits that are in use: the first of each.
    pub fn settings_in_use(&self) -> Vec<Option<usize>> {
        self.layers.iter().map(|layer| (!layer.exit.is_empty()).then_some(0)).collect()
    }

    /// Share of right answers with these settings of the exits, where it is known.
    pub fn accuracy_with(&self, settings: &[Option<usize>]) -> Option<f64> {
        let mut reach = 1.0;
        let mut right = 0.0;
        for (layer, setting) in self.layers.iter().zip(settings) {
            let Some(setting) = setting.and_then(|setting| layer.exit.get(setting)) else {
                continue;
            };
            if setting.rate > 0.0 {
                right += reach * setting.rate * setting.accuracy?;
                reach *= 1.0 - setting.rate;
            }
        }
        Some(right + reach * self.accuracy?)
    }
}

impl PlacementLayer {
    /// Seconds that it takes on a node: measured, or counted.
    pub fn time_on(&self, node: &PlacementNode) -> Option<f64> {
        let measured = node.kind.as_ref().and_then(|kind| self.times_ms.get(kind));
        match measured {
            Some(milliseconds) => Some(milliseconds / 1e3),
            None => node.flops_per_second.map(|speed| self.flops / speed),
        }
    }
}

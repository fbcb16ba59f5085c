//! What is known of nodes and links at a moment, as a problem of placement.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tessera_core::ContentHash;
use tessera_deploy::{PlannedTask, Unit, UnitId};
use tessera_plan::placement::{
    MigrationCost, ModelPlan, PlacementLayer, PlacementModel, PlacementNode, PlacementPlan,
    PlacementProblem,
};

use super::degrading::{UNKNOWN_MS, keep_exit_at_input};
use super::exit_choices::ExitChoices;
use super::exit_rates::LearnedExits;
use super::learned_hops::{LearnedHops, MeasuredLink, PAYLOAD_SHARE};
use super::node_table::KnownNode;
use super::task_blocks::TaskBlocks;

/// Most combinations of thresholds that are tried for tasks that are placed together, where no task
/// by itself has more.
const MOST_COMBINATIONS: usize = 256;
/// Most nodes that are thought of: those that compute the most, and all with gateways.
pub(super) const MOST_NODES: usize = 24;
/// How fast it is assumed that weights get to a node where it is not known: from the controller.
const FETCH_BYTES_PER_SECOND: f64 = 10e6;
/// Where requests were under way for so long and none was answered, a link that nothing is known of
/// may be why.
const STALLED_AFTER: Duration = Duration::from_secs(3);
/// What is left of a node's storage to others.
const STORAGE_SHARE: f64 = 0.9;
/// How long it is remembered what a unit took under load.
const FACTOR_MEMORY: Duration = Duration::from_secs(600);
/// How far what happens may be from what was found alone.
const FACTOR_RANGE: (f64, f64) = (0.2, 50.0);

/// How much longer than alone blocks take where they run, as it was seen.
#[derive(Default)]
pub(super) struct LearnedFactors(HashMap<(String, ContentHash), (f64, Instant)>);

impl LearnedFactors {
    /// Looks at what units took lately.
    pub(super) fn update(
        &mut self,
        nodes: &BTreeMap<String, KnownNode>,
        units: &BTreeMap<UnitId, Arc<Unit>>,
        alone: &HashMap<ContentHash, UnitId>,
    ) {
        let now = Instant::now();
        self.0.retain(|_, (_, at)| now.saturating_duration_since(*at) < FACTOR_MEMORY);
        for (name, node) in nodes {
            for (id, report) in &node.units {
                let (Some(unit), Some(recent)) = (units.get(id), report.recent_time) else {
                    continue;
                };
                let times = unit.block_hashes().map(|hash| node.profile_of(alone.get(&hash)?));
                let Some(expected) = times.sum::<Option<Duration>>() else { continue };
                if expected.is_zero() {
                    continue;
                }
                let factor = recent.as_secs_f64() / expected.as_secs_f64();
                let factor = factor.clamp(FACTOR_RANGE.0, FACTOR_RANGE.1);
                for hash in unit.block_hashes() {
                    self.0.insert((name.clone(), hash), (factor, now));
                }
            }
        }
    }

    fn factor(&self, node: &str, block: ContentHash) -> Option<f64> {
        self.0.get(&(node.to_owned(), block)).map(|(factor, _)| *factor)
    }

    /// What is to be expected of blocks at a node that did not run there yet.
    fn usual_factor(&self, node: &str) -> Option<f64> {
        let mut factors: Vec<f64> = self
            .0
            .iter()
            .filter(|((at, _), _)| at == node)
            .map(|(_, (factor, _))| *factor)
            .collect();
        factors.sort_by(f64::total_cmp);
        factors.get(factors.len() / 2).copied()
    }
}

/// Nodes that something may be placed at.
pub(super) fn placeable_nodes<'a>(
    nodes: &'a BTreeMap<String, KnownNode>,
    drained: &[String],
) -> Vec<(&'a str, &'a KnownNode)> {
    let is_open = |name: &str, node: &KnownNode| {
        node.is_attached() && !drained.iter().any(|drained| drained == name)
    };
    let open = nodes.iter().filter(|(name, node)| is_open(name, node));
    let mut open: Vec<(&str, &KnownNode)> =
        open.map(|(name, node)| (name.as_str(), node)).collect();
    if open.len() > MOST_NODES {
        let power = |node: &KnownNode| {
            let gateway = node.description.gateway.is_some();
            (gateway, node.description.cores)
        };
        open.sort_by_key(|(_, node)| std::cmp::Reverse(power(node)));
        open.truncate(MOST_NODES);
        open.sort_by_key(|(name, _)| *name);
    }
    open
}

/// The node that a task's requests come from: the one it names, or the gateway that answers the
/// most of them.
pub(super) fn input_node(
    blocks: &TaskBlocks,
    nodes: &BTreeMap<String, KnownNode>,
) -> Option<String> {
    if let Some(named) = &blocks.task.settings.input_node {
        return nodes.contains_key(&**named).then(|| named.to_string());
    }
    let gateways =
        nodes.iter().filter(|(_, node)| node.is_present() && node.description.gateway.is_some());
    // As many in a minute, roughly: whoever answers a few more is no reason to move.
    let answers = |node: &KnownNode| (node.requests_per_minute(&blocks.task.name) / 20.0) as u64;
    // The first by name where several answer as many.
    let most = gateways.rev().max_by_key(|(_, node)| answers(node));
    most.map(|(name, _)| name.clone())
}

/// A problem, and what its numbers stand for.
pub(super) struct ObservedProblem {
    /// As it is planned for.
    pub(super) problem: PlacementProblem,
    /// With the times that were measured, wherever something is to be.
    pub(super) measured: PlacementProblem,
    pub(super) nodes: Vec<Arc<str>>,
    /// The tasks, one for each model.
    pub(super) tasks: Vec<Arc<TaskBlocks>>,
    /// What can be chosen for the exits of each.
    pub(super) choices: Vec<ExitChoices>,
    /// Where they are today, where all of them are somewhere that is thought of.
    pub(super) current: Option<PlacementPlan>,
    /// Requests of the last minute, by task.
    pub(super) requests: Vec<f64>,
    /// Why the exit of each task can't be where its requests come in, though it may degrade.
    pub(super) degrade_reasons: Vec<Option<String>>,
    /// For each task, node and block, how long it takes to fetch what is missing there.
    fetch_seconds: Vec<Vec<Vec<f64>>>,
}

impl ObservedProblem {
    /// What fetching what blocks lack at these nodes costs each request of the next minute.
    pub(super) fn moving_seconds(&self, task: usize, nodes: &[usize]) -> f64 {
        let blocks = nodes.iter().enumerate();
        let seconds: f64 = blocks.map(|(block, &node)| self.fetch_seconds[task][node][block]).sum();
        seconds / self.requests[task].max(1.0)
    }

    /// The accuracy that a task must have, where it says one.
    pub(super) fn least_accuracy(&self, task: usize) -> Option<f64> {
        let goal = self.tasks[task].task.settings.accuracy_goal.as_ref();
        goal.map(|goal| goal.least_accuracy)
    }

    /// Where tasks are today, as what is planned is compared with: where no thresholds are chosen
    /// it is with those that a plan has.
    pub(super) fn previous_plan(&self) -> Option<PlacementPlan> {
        let mut previous = self.current.clone()?;
        for (plan, model) in previous.models.iter_mut().zip(&self.problem.models) {
            if model.least_accuracy.is_none() {
                plan.settings = model.settings_in_use();
            }
        }
        Some(previous)
    }
}

/// What problems are made of.
pub(super) struct Observation<'a> {
    pub(super) nodes: &'a BTreeMap<String, KnownNode>,
    pub(super) drained: &'a [String],
    pub(super) factors: &'a LearnedFactors,
    pub(super) exits: &'a LearnedExits,
    pub(super) hops: &'a LearnedHops,
    /// Whose thresholds are chosen first where there are many.
    pub(super) first_choice: usize,
    /// Bytes of nodes that are taken already.
    pub(super) reserved: &'a HashMap<Arc<str>, f64>,
    /// The units of the tasks that are placed: what they have is free.
    pub(super) placed_units: &'a HashSet<UnitId>,
    /// The tasks with the nodes and thresholds of today.
    pub(super) placed: &'a HashMap<String, Arc<PlannedTask>>,
}

impl Observation<'_> {
    /// The problem of placing these tasks; `None` where their requests come from nowhere, or there
    /// is nothing to place them at.
    pub(super) fn problem_of(&self, tasks: &[Arc<TaskBlocks>]) -> Option<ObservedProblem> {
        let mut open = placeable_nodes(self.nodes, self.drained);
        let inputs: Option<Vec<String>> =
            tasks.iter().map(|blocks| input_node(blocks, self.nodes)).collect();
        let inputs = inputs?;
        // Requests come in there, whatever else is given to it.
        for input in &inputs {
            if !open.iter().any(|(name, _)| name == input) {
                let (name, node) = self.nodes.get_key_value(input)?;
                open.push((name, node));
            }
        }
        let names: Vec<Arc<str>> = open.iter().map(|(name, _)| Arc::from(*name)).collect();
        let first_input = inputs.first()?;
        let nodes = open.iter().map(|(name, node)| PlacementNode {
            name: (*name).to_owned(),
            tier: node.description.tier,
            input: *name == first_input.as_str(),
            kind: Some((*name).to_owned()),
            flops_per_second: None,
            memory_bytes: self.is_open(name).then(|| self.memory_of(name, node)).or(Some(0.0)),
            storage_bytes: self.storage_of(node, tasks),
            watts: None,
            joules_per_byte_sent: None,
        });
        let nodes: Vec<PlacementNode> = nodes.collect();
        let (throughput, latency) = self.link_tables(&open, &self.links_in_use(tasks, &inputs));
        let mut choices: Vec<ExitChoices> =
            tasks.iter().map(|blocks| self.choices_of(blocks)).collect();
        limit_combinations(&mut choices, self.first_choice);
        let models =
            tasks.iter().zip(&inputs).zip(&mut choices).map(|((blocks, input), choices)| {
                let mut model = PlacementModel {
                    name: blocks.task.name.clone(),
                    weight: blocks.task.settings.weight.max(1) as f64,
                    input: Some(input.clone()),
                    reply_bytes: Some(blocks.reply_bytes),
                    input_bytes: None,
                    accuracy: None,
                    least_accuracy: None,
                    layers: self.layers_of(blocks, &open, choices),
                };
                choices.aim_model(&mut model);
                model
            });
        let models: Vec<PlacementModel> = models.collect();
        let mut problem = PlacementProblem {
            nodes,
            throughput_bits_per_second: throughput,
            latency_ms: latency,
            layers: Vec::new(),
            models,
            moving: MigrationCost { least_gain: 0.0, ..MigrationCost::default() },
        };
        let current = self.current_plan(tasks, &names, &choices);
        let fetches = tasks.iter().map(|blocks| {
            let of_node = |(name, node): &(&str, &KnownNode)| {
                let units = blocks.units.iter().zip(&blocks.weight_bytes);
                units
                    .map(|(unit, bytes)| self.fetch_seconds(&unit.id, *bytes, name, node))
                    .collect()
            };
            open.iter().map(of_node).collect()
        });
        let fetch_seconds = fetches.collect();
        let measured = problem.clone();
        let degrading = tasks.iter().enumerate().map(|(number, blocks)| {
            let task = &blocks.task;
            let may = task.settings.degrade;
            may.then(|| keep_exit_at_input(&mut problem, number, &task.graph)).flatten()
        });
        let degrade_reasons = degrading.collect();
        Some(ObservedProblem {
            problem,
            measured,
            degrade_reasons,
            current,
            requests: tasks.iter().map(|blocks| self.requests_of(&blocks.task.name)).collect(),
            fetch_seconds,
            nodes: names,
            tasks: tasks.to_vec(),
            choices,
        })
    }

    /// Bits per second and milliseconds from each node to each other.
    fn link_tables(
        &self,
        open: &[(&str, &KnownNode)],
        in_use: &UsedLinks,
    ) -> (LinkTable, LinkTable) {
        let measured = |from: &str, node: &KnownNode, to: &str| {
            let link = node.links.iter().find(|link| link.to == to)?;
            let link = MeasuredLink::of(link)?;
            Some((link.bits_per_second, link.ms + self.hops.hop_ms(from, to, link)))
        };
        let find = |from: &str, node: &KnownNode, to: &str| {
            let is_cut = node.links.iter().any(|link| link.to == to && link.is_cut);
            if is_cut {
                return None;
            }
            // Of one that nothing ever came over it is not known whether anything could.
            let is_used = || in_use.get(&(from.to_owned(), to.to_owned())) == Some(&true);
            measured(from, node, to).or_else(|| is_used().then_some(UNMEASURED_LINK))
        };
        let table = |figure: fn((f64, f64)) -> f64| {
            let row = |(from, node): &(&str, &KnownNode)| {
                let cell = |(to, _): &(&str, &KnownNode)| {
                    (from != to).then(|| find(from, node, to).map_or(0.0, figure))
                };
                open.iter().map(cell).collect()
            };
            open.iter().map(row).collect()
        };
        (table(|(rate, _)| rate), table(|(_, latency)| latency))
    }

    /// The links that requests of tasks pass where they are, and whether any of them get an answer.
    fn links_in_use(&self, tasks: &[Arc<TaskBlocks>], inputs: &[String]) -> UsedLinks {
        let mut used = UsedLinks::new();
        for (blocks, input) in tasks.iter().zip(inputs) {
            let Some(placed) = self.placed.get(&blocks.task.name) else { continue };
            let task = &blocks.task.name;
            let is_stalled = |node: &KnownNode| node.is_stalled_for(task, STALLED_AFTER);
            let answers = !self.nodes.values().any(is_stalled);
            let mut at = input.clone();
            for node in &placed.settings.nodes {
                *used.entry((at, node.to_string())).or_default() |= answers;
                *used.entry((node.to_string(), input.clone())).or_default() |= answers;
                at = node.to_string();
            }
        }
        used
    }

    fn is_open(&self, name: &str) -> bool {
        !self.drained.iter().any(|drained| drained == name)
            && self.nodes.get(name).is_some_and(KnownNode::is_attached)
    }

    /// Memory for weights: what is there, and what our units have of it.
    fn memory_of(&self, name: &str, node: &KnownNode) -> f64 {
        let own = node.units.iter().filter(|(unit, _)| self.placed_units.contains(*unit));
        let own: u64 = own.map(|(_, report)| report.weight_bytes).sum();
        let available = node.node_state.available_memory as f64;
        let memory = node.description.memory as f64;
        let reserved = self.reserved.get(name).copied().unwrap_or(0.0);
        let room = (available * 0.8 + own as f64).min(memory.max(available));
        (room - reserved).max(0.0)
    }

    /// Storage for weights: what is there, and what these tasks have of it. `None` where it was not
    /// said yet.
    fn storage_of(&self, node: &KnownNode, tasks: &[Arc<TaskBlocks>]) -> Option<f64> {
        if node.node_state.available_memory == 0 {
            return None;
        }
        let units = tasks.iter().flat_map(|blocks| blocks.units.iter().zip(&blocks.weight_bytes));
        let there = units.filter(|(unit, _)| node.has_at_hand(&unit.id));
        let own: HashMap<&UnitId, u64> = there.map(|(unit, bytes)| (&unit.id, *bytes)).collect();
        let own: u64 = own.values().sum();
        Some(node.node_state.available_storage as f64 * STORAGE_SHARE + own as f64)
    }

    /// How long it takes to fetch the weights of a unit, where they are not there: over the fastest
    /// link from a node that has them; else from the controller, over a link that is no faster than
    /// the others that lead there.
    fn fetch_seconds(&self, unit: &UnitId, bytes: u64, to: &str, node: &KnownNode) -> f64 {
        if node.has_at_hand(unit) {
            return 0.0;
        }
        let rates = |may: &dyn Fn(&KnownNode) -> bool| {
            let from = self.nodes.values().filter(|from| from.is_attached() && may(from));
            let links = from.flat_map(|from| &from.links);
            let open = links.filter(|link| link.to == to && !link.is_cut);
            let rates = open.filter_map(|link| link.bits_per_second);
            rates.map(|rate| rate * PAYLOAD_SHARE / 8.0).max_by(f64::total_cmp)
        };
        let from_peers = rates(&|from| from.has_at_hand(unit));
        let rate = from_peers.unwrap_or_else(|| {
            let fastest = rates(&|_| true).unwrap_or(FETCH_BYTES_PER_SECOND);
            fastest.min(FETCH_BYTES_PER_SECOND)
        });
        bytes as f64 / rate.max(1.0)
    }

    fn requests_of(&self, task: &str) -> f64 {
        let gateways = self.nodes.values();
        gateways.map(|node| node.requests_per_minute(task)).sum()
    }

    /// What can be chosen for the exits of a task.
    fn choices_of(&self, blocks: &TaskBlocks) -> ExitChoices {
        let task = &blocks.task;
        let in_use = self.placed.get(&task.name).map_or(&task.graph, |placed| &placed.graph);
        let leaving = |exit: &str| self.exit_share(&task.name, exit);
        ExitChoices::of_task(task, in_use, self.exits, leaving)
    }

    fn layers_of(
        &self,
        blocks: &TaskBlocks,
        open: &[(&str, &KnownNode)],
        choices: &ExitChoices,
    ) -> Vec<PlacementLayer> {
        let graph = &blocks.task.graph;
        let layer = |(number, unit): (usize, &Arc<Unit>)| {
            let hash = graph.blocks[number].block;
            let times = open.iter().map(|(name, node)| {
                let known = node.profile_of(&unit.id).filter(|_| self.is_open(name));
                let time =
                    known.map(|time| time.as_secs_f64() * 1e3 * self.factor_of(name, node, hash));
                ((*name).to_owned(), time.unwrap_or(UNKNOWN_MS))
            });
            let weights = blocks.weight_bytes[number] as f64;
            PlacementLayer {
                name: graph.blocks[number].outputs.first().map(|port| port.name.clone()),
                block: Some(unit.id.to_string()),
                flops: 0.0,
                times_ms: times.collect(),
                memory_bytes: weights,
                storage_bytes: weights,
                input_bytes: Some(blocks.input_bytes[number]),
                output_bytes: None,
                execution_probability: None,
                exit: choices.settings_of(number),
            }
        };
        blocks.units.iter().enumerate().map(layer).collect()
    }

    /// How much longer than alone a block takes at a node.
    fn factor_of(&self, name: &str, node: &KnownNode, block: ContentHash) -> f64 {
        let seen = self.factors.factor(name, block).or_else(|| self.factors.usual_factor(name));
        seen.unwrap_or_else(|| {
            // Where others leave less than a core, everything takes as much longer.
            let idle = node.node_state.idle_cores;
            let busy = node.units.is_empty() && idle < 1.0 && node.node_state.available_memory > 0;
            if busy { 1.0 / idle.max(0.1) } else { 1.0 }
        })
    }

    /// Share of a task's answers that leave at an exit.
    fn exit_share(&self, task: &str, exit: &str) -> f64 {
        let recent = self.nodes.values().filter_map(|node| node.recent_answers(task));
        let (taken, answered) = recent.fold((0.0, 0.0), |(taken, answered), recent| {
            (taken + recent.exits.get(exit).copied().unwrap_or(0.0), answered + recent.answered)
        });
        if answered > 0.0 { taken / answered } else { 0.0 }
    }

    fn current_plan(
        &self,
        tasks: &[Arc<TaskBlocks>],
        names: &[Arc<str>],
        choices: &[ExitChoices],
    ) -> Option<PlacementPlan> {
        let models = tasks.iter().zip(choices).map(|(blocks, choices)| {
            let placed = &self.placed.get(&blocks.task.name)?.settings.nodes;
            let find = |node: &Arc<str>| names.iter().position(|name| name == node);
            let nodes = placed.iter().map(find).collect::<Option<Vec<_>>>()?;
            let layers = blocks.units.len();
            (nodes.len() == layers).then(|| ModelPlan { nodes, settings: choices.in_use(layers) })
        });
        Some(PlacementPlan { models: models.collect::<Option<_>>()? })
    }
}

/// Leaves the thresholds of some tasks as they are where there would be too many combinations; the
/// one whose turn it is comes first.
fn limit_combinations(choices: &mut [ExitChoices], first: usize) {
    let count = choices.len();
    let mut room: Option<usize> = None;
    for number in (0..count).map(|number| (number + first) % count) {
        let combinations = choices[number].combinations();
        if combinations == 1 {
            continue;
        }
        let left = room.unwrap_or(MOST_COMBINATIONS.max(combinations));
        if combinations <= left {
            room = Some(left / combinations);
        } else {
            choices[number].close("thresholds of other tasks are chosen first".to_owned());
        }
    }
}

/// A link in use that was not measured yet is taken for one like this.
const UNMEASURED_LINK: (f64, f64) = (100e6, 2.0);

/// Links by the names of nodes, with whether requests that pass them get an answer.
type UsedLinks = HashMap<(String, String), bool>;

/// A table of figures, from each node to each other.
type LinkTable = Vec<Vec<Option<f64>>>;

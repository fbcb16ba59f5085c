//! Where a cluster's tasks are placed: what nodes have to find out for that, and when tasks move.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tessera_core::lock;
use tessera_deploy::{PlannedTask, TaskChange, UnitId};

use super::judging::{Judged, TaskMove};
use super::node_table::KnownNode;
use super::observed::{Observation, ObservedProblem, input_node, placeable_nodes};
use super::place_change::task_at;
use super::placed_change::{ChangeRequest, Nodes, PlacedChange};
use super::plan_status::LinkStatus;
use super::replacing::{MOST_TASKS, REPLACING_INTERVAL, given_up, link_statuses};
use super::site_inner::SiteInner;
use super::site_state::SiteState;
use super::task_blocks::TaskBlocks;
use crate::run_apart::run_blocking;

/// How long new tasks wait together for nodes to find out how long their blocks take.
const PROFILE_TIME: Duration = Duration::from_secs(10);
/// How long units may take to be fetched and started for a task that runs, and would only run
/// better elsewhere.
const MOVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Turns for which the thresholds of the same tasks are chosen, where there are too many.
const CHOICE_TURNS: usize = 20;
/// How long it waits for links to be measured.
const LINK_TIME: Duration = Duration::from_secs(3);

/// Looks again and again whether tasks are better placed elsewhere.
pub(super) fn keep_replacing(inner: &Arc<SiteInner>) {
    let weak = Arc::downgrade(inner);
    tokio::spawn(async move {
        let mut turn = 0;
        while let Some(inner) = weak.upgrade() {
            inner.replace_tasks(turn).await;
            turn += 1;
            drop(inner);
            tokio::time::sleep(REPLACING_INTERVAL).await;
        }
    });
}

impl SiteInner {
    /// Moves what is better placed elsewhere, and chooses thresholds. Where there are many tasks,
    /// some at a time.
    async fn replace_tasks(self: &Arc<Self>, turn: usize) {
        let drained = self.drained_nodes();
        let is_choice = {
            let state = lock(&self.state);
            let open = self.nodes.read(|nodes| placeable_nodes(nodes, &drained).len());
            open > 1 || (open == 1 && state.has_choices())
        };
        if !is_choice {
            let links = self.link_statuses();
            return self.replacer.note_nothing("there are not two nodes to choose from", links);
        }
        let unknown: Vec<Arc<PlannedTask>> = {
            let state = lock(&self.state);
            self.replacer.keep_tasks(|task| state.wished.contains_key(task));
            let wished = state.wished.values();
            let is_unknown = |task: &&Arc<PlannedTask>| {
                let is_refused = |known: &Arc<PlannedTask>| Arc::ptr_eq(known, task);
                !state.task_blocks.contains_key(&task.name)
                    && !state.unplannable.get(&task.name).is_some_and(is_refused)
            };
            wished.filter(is_unknown).cloned().collect()
        };
        self.consider_tasks(&unknown).await;
        let site = Arc::clone(self);
        let judged = run_blocking(move || Ok(site.judge_tasks(turn, &drained))).await;
        let Judged { moves, thresholds, .. } = judged.unwrap_or_default();
        for change in thresholds {
            self.choose_thresholds(&change.task, &change.thresholds).await;
            self.replacer.note_thresholds(&change);
        }
        for found in moves {
            let number = self.replacer.begin_move(&found);
            let site = Arc::clone(self);
            // What it needs may have to be fetched, and a link may be cut meanwhile.
            tokio::spawn(async move { site.move_task(&found, number).await });
        }
        // One that is not wanted any more ends now.
        self.nodes.note_progress();
    }

    /// Has a task run at other nodes than it does, for as long as that is the better plan.
    async fn move_task(self: &Arc<Self>, found: &TaskMove, number: u64) {
        let start = Instant::now();
        let place = |state: &SiteState, nodes: &Nodes, drained: &[String]| {
            let is_open = |name: &Arc<str>| {
                nodes.get(&**name).is_some_and(KnownNode::is_attached)
                    && !drained.iter().any(|drained| **drained == **name)
            };
            let is_movable = |task: &&Arc<PlannedTask>| {
                task.settings.nodes.is_empty()
                    && task.graph.blocks.len() == found.nodes.len()
                    && found.nodes.iter().all(is_open)
            };
            let task = state.wished.get(&found.task).filter(is_movable).ok_or_else(given_up)?;
            let put = vec![task_at(task, &found.nodes)];
            let placed = TaskChange { put, removed: Vec::new() };
            let fusion = state.deployment.fuses();
            // What is wished for stays what it is by then.
            Ok(PlacedChange { wished: TaskChange::default(), placed, fusion })
        };
        let is_wanted = || self.replacer.is_wanted(&found.task, number);
        let start_timeout = MOVE_TIMEOUT;
        let request = ChangeRequest { place: &place, is_wanted: &is_wanted, start_timeout };
        let moved = self.carry_out(request).await.map(drop);
        if let Err(error) = &moved {
            tracing::warn!(task = found.task, %error, "a task can't be moved");
        }
        self.replacer.end_move(found, number, start.elapsed(), &moved);
    }

    fn link_statuses(&self) -> Vec<LinkStatus> {
        self.nodes
            .read(|nodes| self.replacer.with_learned(|learned| link_statuses(nodes, &learned.hops)))
    }

    /// What is to be done now, for those tasks whose turn it is.
    fn judge_tasks(&self, turn: usize, drained: &[String]) -> Judged {
        let observed = self.observe_placed(turn, drained);
        let links = self.link_statuses();
        let Some(observed) = observed else {
            self.replacer.note_nothing("no task is there that could be placed elsewhere", links);
            return Judged::default();
        };
        self.replacer.judge(&observed, links)
    }

    /// Tasks that run at nodes which are all there, as a problem of placement.
    fn observe_placed(&self, turn: usize, drained: &[String]) -> Option<ObservedProblem> {
        let state = lock(&self.state);
        if state.adopting_until.is_some() {
            return None;
        }
        self.nodes.read(|nodes| {
            let open = placeable_nodes(nodes, drained);
            let is_open = |name: &Arc<str>| open.iter().any(|(open, _)| *open == &**name);
            let placed = state.task_blocks.values().filter_map(|blocks| {
                let placed = state.deployment.find_planned(&blocks.task.name)?;
                // One that is about to be another is looked at when it is.
                let is_placed = placed.version == blocks.task.version
                    && placed.settings.nodes.iter().all(is_open)
                    // One whose requests come from nowhere keeps no other from being placed.
                    && input_node(blocks, nodes).is_some();
                is_placed.then(|| (blocks, Arc::clone(placed)))
            });
            let all: Vec<(&Arc<TaskBlocks>, Arc<PlannedTask>)> = placed.collect();
            let (count, groups) = (all.len(), all.len().div_ceil(MOST_TASKS).max(1));
            let first = (turn % groups) * MOST_TASKS;
            let chosen = &all[first.min(count)..(first + MOST_TASKS).min(count)];
            if chosen.is_empty() {
                return None;
            }
            let tasks: Vec<Arc<TaskBlocks>> =
                chosen.iter().map(|(blocks, _)| Arc::clone(blocks)).collect();
            let placed = chosen.iter();
            let placed = placed.map(|(_, placed)| (placed.name.clone(), Arc::clone(placed)));
            let placed = placed.collect();
            let placed_units = tasks.iter().filter_map(|blocks| {
                let route = state.deployment.find_route(&blocks.task.name)?;
                Some(route.steps.iter().map(|step| step.unit.clone()))
            });
            let placed_units: HashSet<UnitId> = placed_units.flatten().collect();
            let alone = tasks.iter().flat_map(|blocks| {
                let hashes = blocks.task.graph.blocks.iter().map(|node| node.block);
                hashes.zip(blocks.units.iter().map(|unit| unit.id.clone()))
            });
            let alone = alone.collect();
            self.replacer.with_learned(|learned| {
                learned.factors.update(nodes, &state.units, &alone);
                learned.exits.update(nodes, &state.routes, &state.wished);
                learned.hops.update(nodes, &state.routes, &tasks, &placed);
                let observation = Observation {
                    nodes,
                    drained,
                    factors: &learned.factors,
                    exits: &learned.exits,
                    hops: &learned.hops,
                    first_choice: turn / groups / CHOICE_TURNS,
                    reserved: &HashMap::new(),
                    placed_units: &placed_units,
                    placed: &placed,
                };
                observation.problem_of(&tasks)
            })
        })
    }

    /// Has nodes find out how long the blocks of tasks take that may be placed anywhere.
    pub(super) async fn consider_tasks(&self, tasks: &[Arc<PlannedTask>]) {
        let mut is_news = false;
        for task in tasks.iter().filter(|task| task.settings.nodes.is_empty()) {
            let known = lock(&self.state).task_blocks.get(&task.name).cloned();
            if known.is_some_and(|known| Arc::ptr_eq(&known.task, task)) {
                continue;
            }
            let (content, considered) = (Arc::clone(&self.content), Arc::clone(task));
            let blocks = run_blocking(move || TaskBlocks::of_task(&considered, &*content)).await;
            match blocks {
                Ok(blocks) => {
                    let blocks = Arc::new(blocks);
                    lock(&self.state).task_blocks.insert(task.name.clone(), blocks);
                    is_news = true;
                }
                Err(error) => {
                    tracing::debug!(task = task.name, %error, "it is placed without a plan");
                    let refused = Arc::clone(task);
                    lock(&self.state).unplannable.insert(task.name.clone(), refused);
                }
            }
        }
        if is_news {
            self.assign_all();
        }
    }

    /// Forgets the blocks of tasks that are not wished for.
    pub(super) fn forget_unwished(&self) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let wished = &state.wished;
        state.unplannable.retain(|name, _| wished.contains_key(name));
        state.task_blocks.retain(|name, blocks| {
            wished.get(name).is_some_and(|task| {
                task.settings.nodes.is_empty() && Arc::ptr_eq(task, &blocks.task)
            })
        });
    }

    /// The best nodes for tasks that are placed nowhere yet, as far as they can be known.
    pub(super) async fn plan_tasks(
        self: &Arc<Self>,
        tasks: &[Arc<PlannedTask>],
        drained: &[String],
    ) -> HashMap<String, Vec<Arc<str>>> {
        let mut planned = HashMap::new();
        // What those before take of nodes that are thought to have room.
        let mut reserved: HashMap<Arc<str>, f64> = HashMap::new();
        let end = Instant::now() + PROFILE_TIME;
        for task in tasks.iter().filter(|task| task.settings.nodes.is_empty()) {
            let Some(blocks) = lock(&self.state).task_blocks.get(&task.name).cloned() else {
                continue;
            };
            let is_choice = self.nodes.read(|nodes| placeable_nodes(nodes, drained).len() > 1);
            if !is_choice {
                continue;
            }
            self.wait_for_profiles(&blocks, drained, end).await;
            self.wait_for_links(&blocks, drained, end).await;
            let (site, drained, taken) = (Arc::clone(self), drained.to_vec(), reserved.clone());
            let placed = Arc::clone(&blocks);
            let found = run_blocking(move || Ok(site.plan_one(&blocks, &drained, &taken))).await;
            if let Ok(Some(nodes)) = found {
                for (node, bytes) in nodes.iter().zip(&placed.weight_bytes) {
                    *reserved.entry(Arc::clone(node)).or_default() += *bytes as f64;
                }
                planned.insert(task.name.clone(), nodes);
            }
        }
        planned
    }

    fn plan_one(
        &self,
        blocks: &Arc<TaskBlocks>,
        drained: &[String],
        reserved: &HashMap<Arc<str>, f64>,
    ) -> Option<Vec<Arc<str>>> {
        let observed = self.nodes.read(|nodes| {
            self.replacer.with_learned(|learned| {
                let observation = Observation {
                    nodes,
                    drained,
                    factors: &learned.factors,
                    exits: &learned.exits,
                    hops: &learned.hops,
                    first_choice: 0,
                    reserved,
                    placed_units: &HashSet::new(),
                    placed: &HashMap::new(),
                };
                observation.problem_of(&[Arc::clone(blocks)])
            })
        })?;
        self.replacer.plan_anew(&observed)?.into_iter().next()
    }

    /// Waits until nodes know how long a task's blocks take there.
    async fn wait_for_profiles(&self, blocks: &TaskBlocks, drained: &[String], end: Instant) {
        let is_known = |nodes: &BTreeMap<String, KnownNode>| {
            let open = placeable_nodes(nodes, drained);
            let knows_all =
                |node: &KnownNode| blocks.units.iter().all(|unit| node.has_profile(&unit.id));
            open.iter().all(|(_, node)| knows_all(node)).then_some(())
        };
        let left = end.saturating_duration_since(Instant::now());
        if self.wait_until(left, is_known).await.is_none() {
            let task = &blocks.task.name;
            tracing::warn!(task, "not all nodes know yet how long its blocks take there");
        }
    }

    /// Waits until the links from where a task's requests come are known.
    async fn wait_for_links(&self, blocks: &TaskBlocks, drained: &[String], end: Instant) {
        let end = end.min(Instant::now() + LINK_TIME);
        let is_known = |nodes: &BTreeMap<String, KnownNode>| {
            let Some(input) = input_node(blocks, nodes) else { return true };
            let knows = |from: &str, to: &str| {
                let links = nodes.get(from).map(|node| &node.links[..]).unwrap_or_default();
                let link = links.iter().find(|link| link.to == to);
                link.is_some_and(|link| {
                    link.is_cut || link.is_filtered || link.bits_per_second.is_some()
                })
            };
            let open = placeable_nodes(nodes, drained);
            let others = open.iter().map(|(name, _)| *name).filter(|name| *name != input);
            others.into_iter().all(|name| knows(&input, name) && knows(name, &input))
        };
        while Instant::now() < end && !self.nodes.read(is_known) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

//! A unit and the tasks that share it: it is as apart as any of them wants it, and as many as the
//! one that wants most.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_core::Device;
use tessera_graph::BlockGraph;

use crate::batching::BatchingChoice;
use crate::fusion::TaskNumber;
use crate::isolation::Isolation;
use crate::residency_choice::ResidencyChoice;
use crate::unit::{Unit, UnitId, UnitSettings};

/// How a task wants a unit to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitWish {
    pub(crate) isolation: Isolation,
    pub(crate) replicas: usize,
    pub(crate) batching: BatchingChoice,
    pub(crate) residency: ResidencyChoice,
    /// Whether it is proved for the task's path that rows are independent.
    pub(crate) is_batchable: bool,
    /// Whether the task's rows may leave at exits.
    pub(crate) has_exits: bool,
}

/// A unit, and who uses it.
pub(crate) struct SharedUnit {
    /// Counts units, in the order in which they came.
    pub(crate) number: u64,
    pub(crate) unit: Arc<Unit>,
    tasks: BTreeMap<TaskNumber, UnitWish>,
    /// How many tasks want it so.
    wishes: BTreeMap<UnitWish, usize>,
}

impl SharedUnit {
    /// A unit that nobody uses yet.
    pub(crate) fn new(
        number: u64,
        key: &UnitId,
        graph: BlockGraph,
        (device, node): (Device, Option<String>),
        wish: UnitWish,
    ) -> Self {
        let UnitWish { isolation, replicas, batching, residency, is_batchable, has_exits } = wish;
        let settings = UnitSettings { isolation, replicas, device, node, batching, residency };
        let (id, takes_single_rows) = (name_unit(key, &settings), has_exits);
        let unit = Arc::new(Unit { id, graph, settings, is_batchable, takes_single_rows });
        Self { number, unit, tasks: BTreeMap::new(), wishes: BTreeMap::new() }
    }

    pub(crate) fn add_task(&mut self, task: TaskNumber, wish: UnitWish) {
        // A path may pass a unit twice, and be row-wise once.
        if let Some(before) = self.tasks.get(&task).copied() {
            if before >= wish {
                return;
            }
            self.remove_task(task);
        }
        self.tasks.insert(task, wish);
        *self.wishes.entry(wish).or_default() += 1;
    }

    pub(crate) fn remove_task(&mut self, task: TaskNumber) {
        let Some(wish) = self.tasks.remove(&task) else { return };
        if let Some(count) = self.wishes.get_mut(&wish) {
            *count -= 1;
            if *count == 0 {
                self.wishes.remove(&wish);
            }
        }
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The tasks that use it.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = &TaskNumber> {
        self.tasks.keys()
    }

    /// Makes it be as its tasks want it.
    pub(crate) fn settle(&mut self, key: &UnitId) {
        let before = &self.unit.settings;
        let wishes = || self.wishes.keys();
        let settings = UnitSettings {
            isolation: wishes().map(|wish| wish.isolation).max().unwrap_or(before.isolation),
            replicas: wishes().map(|wish| wish.replicas).max().unwrap_or(before.replicas),
            device: before.device,
            node: before.node.clone(),
            batching: wishes().map(|wish| wish.batching).max().unwrap_or(before.batching),
            residency: wishes().map(|wish| wish.residency).max().unwrap_or(before.residency),
        };
        // Proved for one path, it holds for all: the same blocks compute the same.
        let is_batchable = wishes().any(|wish| wish.is_batchable);
        let takes_single_rows = wishes().any(|wish| wish.has_exits);
        let known = (self.unit.is_batchable, self.unit.takes_single_rows);
        if *before != settings || known != (is_batchable, takes_single_rows) {
            let unit = Arc::make_mut(&mut self.unit);
            unit.id = name_unit(key, &settings);
            unit.settings = settings;
            unit.is_batchable = is_batchable;
            unit.takes_single_rows = takes_single_rows;
        }
    }
}

/// A name of what is computed and how: units that run in another way can't stand for each other.
fn name_unit(key: &UnitId, settings: &UnitSettings) -> UnitId {
    let UnitSettings { isolation, replicas: _, device: _, node: _, batching, residency } = settings;
    let mut hasher = blake3::Hasher::new();
    hasher.update(key.0.as_bytes());
    hasher.update(format!("{isolation} {batching:?}").as_bytes());
    // Others come and go as it is wanted; these are somewhere else, and are loaded so.
    if *residency == ResidencyChoice::Direct {
        hasher.update(b"direct");
    }
    UnitId(hasher.finalize().to_hex().as_str()[..12].to_owned())
}

//! What a change did, as `PUT /v1/system` answers it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::site::AppliedUnits;

/// What a change did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// Units that were started.
    pub started: Vec<String>,
    /// Units that ran before and still do.
    pub kept: Vec<String>,
    /// Units that were stopped.
    pub stopped: Vec<String>,
    /// Of the units that run, those made of several blocks.
    pub fused: Vec<Fused>,
    /// Blocks that the document lists and no task uses.
    pub unused: Vec<String>,
    /// Every task, with its version.
    pub tasks: BTreeMap<String, String>,
}

/// Blocks that run as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fused {
    /// The unit.
    pub unit: String,
    /// The hashes of its blocks.
    pub blocks: Vec<String>,
}

impl Changed {
    pub(crate) fn new(
        applied: AppliedUnits,
        unused: Vec<String>,
        tasks: BTreeMap<String, String>,
    ) -> Self {
        let AppliedUnits { started, kept, stopped, fused } = applied;
        let fused = fused.into_iter().map(|(unit, blocks)| Fused { unit, blocks }).collect();
        Self { started, kept, stopped, fused, unused, tasks }
    }
}

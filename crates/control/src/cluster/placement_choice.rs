//! How a cluster's tasks are placed: a strategy that is built in, or a program of the user's.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tessera_core::Result;
use tessera_plan::SearchLimit;
use tessera_plan::placement::{
    PlacementOptions, PlacementPlan, PlacementProblem, PlacementSolution, PlacementStrategy,
    find_placement_strategy, plan_placement,
};

use crate::plugin::PlacementPlugin;

/// How long a plan may take to be found.
const PLANNING_TIME: Duration = Duration::from_secs(1);

/// How tasks are placed.
#[derive(Clone)]
pub enum PlacementChoice {
    /// By a strategy that is built in.
    BuiltIn(&'static dyn PlacementStrategy),
    /// By an executable.
    Program(PathBuf),
}

impl PlacementChoice {
    /// The strategy of this name, or the program at this path, which has a slash.
    pub fn from_name(name: &str) -> Result<Self> {
        if name.contains('/') {
            return Ok(Self::Program(PathBuf::from(name)));
        }
        find_placement_strategy(name).map(Self::BuiltIn)
    }

    /// What it is called.
    pub fn name(&self) -> String {
        match self {
            Self::BuiltIn(strategy) => strategy.name().to_owned(),
            Self::Program(path) => path.display().to_string(),
        }
    }

    /// Plans; may take a while, and waits for programs. Where nothing is better than the previous
    /// plan, it is that.
    pub(super) fn find_plan(
        &self,
        problem: &PlacementProblem,
        previous: Option<&PlacementPlan>,
    ) -> Result<PlacementSolution> {
        let start = Instant::now();
        let is_late = || start.elapsed() > PLANNING_TIME;
        let limit = SearchLimit::new(&is_late);
        let options = PlacementOptions { previous, seed: 0, limit };
        match self {
            Self::BuiltIn(strategy) => plan_placement(*strategy, problem, &options),
            Self::Program(path) => {
                let plugin = PlacementPlugin::new(path.clone(), PLANNING_TIME);
                plan_placement(&plugin, problem, &options)
            }
        }
    }
}

impl std::fmt::Debug for PlacementChoice {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.name())
    }
}

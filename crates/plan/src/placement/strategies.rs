//! The strategies of placement that are built in. To add a placement strategy: its file, and a line
//! here.

use tessera_core::Result;

use super::cloud::CloudOnly;
use super::device::DeviceOnly;
use super::exact::ExactPlacement;
use super::first_fit::FirstFit;
use super::genetic::GeneticPlacement;
use super::pareto::ParetoPlacement;
use super::strategy::PlacementStrategy;
use crate::StrategyRegistry;

/// All strategies that are built in.
pub fn placement_strategies() -> StrategyRegistry<&'static dyn PlacementStrategy> {
    StrategyRegistry::new(
        "strategy",
        &[
            &ExactPlacement,
            &GeneticPlacement::DEFAULT,
            &GeneticPlacement::THESIS,
            &FirstFit,
            &CloudOnly,
            &DeviceOnly,
            &ParetoPlacement::DEFAULT,
        ],
    )
}

/// The strategy of that name.
pub fn find_placement_strategy(name: &str) -> Result<&'static dyn PlacementStrategy> {
    placement_strategies().find_strategy(name)
}

//! How the strategies of planners do on random problems: `tessera plan … --random`.

mod eviction;
mod figures;
mod overflow;
mod residency;

pub use eviction::{RandomEvictionOptions, choose_eviction_policy, measure_random_evictions};
pub use overflow::{
    RandomOverflowOptions, choose_overflow_strategy, measure_random_overflows, sequential_us,
};
pub use residency::{
    RandomResidencyOptions, choose_residency_strategy, measure_random_residencies, pipeline_us,
};

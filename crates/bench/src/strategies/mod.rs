//! How the strategies of planners do on random problems: `tessera plan … --random`.

mod eviction;
mod figures;
mod overflow;
mod residency;

pub use eviction::{RandomEvictionOptions, measure_random_evictions};
pub use overflow::{RandomOverflowOptions, measure_random_overflows};
pub use residency::{RandomResidencyOptions, measure_random_residencies};

//! Tests of a cluster's tasks, at nodes that only say what they were told to.

mod changes;
mod fake_cluster;
mod places;
mod thresholds;

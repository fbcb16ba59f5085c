//! Sharing and fusion: the memory of tasks that have blocks in common, and which neighbouring
//! blocks should run as one.
//!
//! A path has blocks that all who use them share, and `own` blocks, of which every task has its
//! own. A unit is a run of neighbouring blocks. Its memory is the sum of their weights, and what
//! the neediest of them needs besides; as a process of its own it takes a context too. Units of
//! shared blocks are there once, those with an own block once per task. So every hop that fusing
//! saves is a context saved, unless it makes a shared block part of several units: then its weights
//! are there several times.
//!
//! The thesis behind this ("BlockFlow", section 4.3) has three kinds of deployment: traditional
//! (4.6), a process per block (4.7 to 4.9), and neighbours fused where no task tells them apart
//! (4.12 to 4.14, read with sums where it prints products with the context). Here are two more: one
//! process for all, and the [cheapest](SharingStrategy::Cheapest) of all groupings, with a proof.

mod fused_groups;
mod grouping;
mod indices;
mod memory;
mod paths;
mod plan;
mod planner;
mod problem;
mod published;
mod strategies;

pub use indices::{PathIndices, mean_path_sharing_percent, path_indices};
pub use plan::{SharingMemory, SharingPlan, SharingUnit, TaskPlan};
pub use planner::{evaluate_sharing, plan_sharing};
pub use problem::{
    PublishedFigures, SharingBlock, SharingProblem, SharingScenario, SharingStep, SharingTask,
};
pub use published::Agreement;
pub use strategies::{SharingStrategy, sharing_strategies};

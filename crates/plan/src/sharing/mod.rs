//! Sharing and fusion: the memory of tasks that have blocks in common, and which neighbouring blocks
//! should run as one.
//!
//! A path has blocks that all who use them share, and `own` blocks, of which every task has its own. A
//! unit is a run of neighbouring blocks. Its memory is the sum of their weights, and what the neediest
//! of them needs besides; as a process of its own it takes a context too. Units of shared blocks are
//! there once, those with an own block once per task. So every hop that fusing saves is a context saved,
//! unless it makes a shared block part of several units: then its weights are there several times.
//!
//! The thesis behind this ("BlockFlow", section 4.3) has three kinds of deployment: traditional (4.6), a
//! process per block (4.7 to 4.9), and neighbours fused where no task tells them apart (4.12 to 4.14,
//! read with sums where it prints products with the context). Here are two more: one process for all,
//! and the [cheapest](Strategy::Cheapest) of all groupings, with a proof.

mod grouping;
mod indices;
mod memory;
mod problem;
mod strategy;

pub use indices::{Indices, indices, mean_path_sharing_percent};
pub use memory::{Memory, Plan, TaskPlan, Unit, judge, plan};
pub use problem::{Agreement, Block, Problem, Published, Scenario, Step, Task};
pub use strategy::Strategy;

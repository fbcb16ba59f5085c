//! What a cluster's planner would do and why, as people see it.

use std::collections::BTreeMap;

use serde::Serialize;
use tessera_plan::placement::PlacementProblem;

/// How tasks are placed, and why they stay or move.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterPlanStatus {
    /// What plans.
    pub strategy: String,
    /// Why there is no plan, where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The tasks that are placed by it.
    pub tasks: Vec<TaskPlanStatus>,
    /// The links that were measured.
    pub links: Vec<LinkStatus>,
    /// The last moves, the newest last.
    pub moves: Vec<MoveStatus>,
    /// The last times that thresholds were chosen, the newest last.
    pub threshold_changes: Vec<ThresholdChangeStatus>,
    /// What was planned for, as `tessera plan placement` takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<PlacementProblem>,
}

/// Where a task is, and where it would be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskPlanStatus {
    /// Its name.
    pub task: String,
    /// The node that its requests come from.
    pub input_node: String,
    /// The nodes of its blocks.
    pub nodes: Vec<String>,
    /// The nodes that they would be at.
    pub planned_nodes: Vec<String>,
    /// What a request is expected to take, in milliseconds; none where it can't get through.
    pub expected_ms: Option<f64>,
    /// What it would take.
    pub planned_ms: f64,
    /// Requests of a minute.
    pub requests_per_minute: f64,
    /// Whether it moves now.
    pub moves: bool,
    /// Why it stays, where another plan is better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why a task that may answer from its exit can't where the node that its requests come from is
    /// cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degrade_reason: Option<String>,
    /// Its exits.
    pub exits: Vec<ExitPlanStatus>,
    /// Share of right answers that it must have, where it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_accuracy: Option<f64>,
    /// Share of right answers that is expected, where that can be known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_accuracy: Option<f64>,
    /// What it would be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_accuracy: Option<f64>,
    /// Why thresholds stay as they are, or what keeps them from being chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold_reason: Option<String>,
}

/// How an exit is, and how it would be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExitPlanStatus {
    /// Name of its output.
    pub exit: String,
    /// Taken where the normalised entropy is at most this.
    pub threshold: f32,
    /// What it would be.
    pub planned_threshold: f32,
    /// Share of what gets there that leaves.
    pub rate: f64,
    /// What it would be.
    pub planned_rate: f64,
}

/// Thresholds that were chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThresholdChangeStatus {
    /// The name of the task.
    pub task: String,
    /// When it was decided, in milliseconds since 1970.
    pub decided_ms: u64,
    /// What they were, by exit.
    pub from: BTreeMap<String, f32>,
    /// What they are.
    pub to: BTreeMap<String, f32>,
    /// What a request took, and takes, as it is expected; none where they were not accurate enough.
    pub before_ms: Option<f64>,
    /// See `before_ms`.
    pub after_ms: f64,
}

/// What is known of a link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkStatus {
    /// From which node.
    pub from: String,
    /// To which.
    pub to: String,
    /// There and back; none where the link is cut.
    pub round_trip_ms: Option<f64>,
    /// How fast it is there.
    pub megabits_per_second: Option<f64>,
    /// What a request's way over it takes beside that, in milliseconds: encryption, queues,
    /// threads.
    pub hop_ms: Option<f64>,
    /// Bytes that were sent to find that out.
    pub probe_bytes: u64,
    /// Whether nothing comes through.
    pub is_cut: bool,
    /// Whether no UDP does: what is known is what is sent over TCP.
    pub is_filtered: bool,
}

/// A task that moved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MoveStatus {
    /// Its name.
    pub task: String,
    /// When it was decided, in milliseconds since 1970.
    pub decided_ms: u64,
    /// Where its blocks were.
    pub from: Vec<String>,
    /// Where they are.
    pub to: Vec<String>,
    /// What a request took, and takes, as it is expected.
    pub before_ms: Option<f64>,
    /// See `before_ms`.
    pub after_ms: f64,
    /// How long it took until requests went there; none while they do not.
    pub took_ms: Option<f64>,
    /// Why it failed, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

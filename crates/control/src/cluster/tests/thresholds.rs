//! Thresholds of exits, wherever their tasks run.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_core::ContentHash;
use tessera_deploy::{AccuracyGoal, PlannedTask, TaskChange, TaskSettings, ThresholdChoice};
use tessera_deploy::{TaskRoute, ThresholdSetting};

use super::super::plan_status::TaskPlanStatus;
use super::fake_cluster::{FakeCluster, FakeNode, planned, wait_for};
use crate::site::Site;
use crate::tests::fakes::early;

fn threshold(cluster: &FakeCluster, task: &str) -> Option<f32> {
    Some(cluster.route("device", task)?.exits.first()?.threshold)
}

/// The task with another threshold, as the manager hands it on.
fn with_threshold(task: &Arc<PlannedTask>, threshold: f32) -> Arc<PlannedTask> {
    let mut changed = PlannedTask::clone(task);
    changed.graph.exits[0].threshold = threshold;
    Arc::new(changed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_threshold_that_is_set_while_a_task_runs_stays_when_the_task_moves() {
    let cluster = FakeCluster::start();
    let device = cluster.add_node("device", 5.0, true);
    let cloud = cluster.add_node("cloud", 50.0, false);
    cluster.set_link(["device", "cloud"], 100.0, 1);
    let task = planned("m", early(), TaskSettings::default());
    cluster.put_task(&task).await.unwrap();
    cluster.wait_at("m", "device").await;
    cluster.site.set_threshold(&with_threshold(&task, 0.875), "exit_1").unwrap();
    wait_for("the gateway has it", || threshold(&cluster, "m") == Some(0.875)).await;
    device.set_block_ms(500.0);
    cloud.set_block_ms(1.0);
    cluster.wait_at("m", "cloud").await;
    wait_for("the gateway has the table", || {
        let route = cluster.route("device", "m");
        route.is_some_and(|route| cloud.units().iter().any(|unit| unit.id == route.steps[0].unit))
    })
    .await;
    assert_eq!(threshold(&cluster, "m"), Some(0.875));
    wait_for("it is planned with it", || {
        let problem = cluster.site.plan_status().problem;
        problem.is_some_and(|problem| problem.models[0].layers[1].exit[0].threshold == 0.875)
    })
    .await;
    let unknown = cluster.site.set_threshold(&task, "exit_2").unwrap_err();
    assert!(unknown.to_string().contains("no exit \"exit_2\""), "{unknown}");
}

/// A task whose exit answers right less often the more leave at it.
fn careful(least_accuracy: f64) -> Arc<PlannedTask> {
    let setting = |threshold, accuracy| ThresholdSetting { threshold, accuracy };
    let settings = vec![setting(0.125, 0.99), setting(0.25, 0.95), setting(0.5, 0.8)];
    let choice = ThresholdChoice { settings, is_pinned: false };
    let exits = BTreeMap::from([("exit_1".to_owned(), choice)]);
    let goal = AccuracyGoal { accuracy: 0.97, least_accuracy, exits };
    let mut graph = early();
    graph.exits[0].threshold = 0.125;
    planned("m", graph, TaskSettings { accuracy_goal: Some(goal), ..TaskSettings::default() })
}

/// Ten of these leave at the first threshold, fifty at the second, ninety at the third.
fn count_requests(node: &FakeNode) {
    for (entropy, more) in [(0.05, 10), (0.18, 40), (0.4, 40), (0.9, 10)] {
        node.count_entropies(ContentHash::of_content(b"head"), entropy, more);
    }
}

fn plan(cluster: &FakeCluster) -> TaskPlanStatus {
    cluster.plan_of("m").unwrap()
}

async fn start_careful(least_accuracy: f64) -> (FakeCluster, Arc<FakeNode>) {
    let cluster = FakeCluster::start();
    let device = cluster.add_node("device", 5.0, true);
    cluster.put_task(&careful(least_accuracy)).await.unwrap();
    wait_for("it is planned", || cluster.plan_of("m").is_some()).await;
    (cluster, device)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_threshold_is_chosen_at_which_most_leave_and_enough_answers_are_right() {
    let (cluster, device) = start_careful(0.95).await;
    // Nothing is known yet.
    assert_eq!(threshold(&cluster, "m"), Some(0.125));
    assert!(plan(&cluster).threshold_reason.unwrap().contains("too few requests"));
    count_requests(&device);
    // With half of them leaving, 0.5 of 0.95 and 0.5 of 0.97 are right.
    wait_for("it is chosen", || threshold(&cluster, "m") == Some(0.25)).await;
    wait_for("it is said", || plan(&cluster).exits[0].threshold == 0.25).await;
    let found = plan(&cluster);
    assert!((found.exits[0].rate - 0.5).abs() < 0.02, "{found:?}");
    assert!((found.expected_accuracy.unwrap() - 0.96).abs() < 0.001, "{found:?}");
    assert_eq!((found.least_accuracy, found.threshold_reason), (Some(0.95), None));
    let changes = cluster.site.plan_status().threshold_changes;
    let thresholds = |of: &BTreeMap<String, f32>| of["exit_1"];
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!((thresholds(&changes[0].from), thresholds(&changes[0].to)), (0.125, 0.25));
    assert!(changes[0].after_ms < changes[0].before_ms.unwrap(), "{changes:?}");
    // Its version is what it was: requests under way are none of another.
    assert_eq!(cluster.route("device", "m").map(|route: TaskRoute| route.version).unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thresholds_that_are_not_accurate_any_more_are_given_up_at_once() {
    let (cluster, device) = start_careful(0.95).await;
    count_requests(&device);
    wait_for("it is chosen", || threshold(&cluster, "m") == Some(0.25)).await;
    // Where this many leave at 0.25, right answers are as many as those of the exit: not enough for
    // another goal.
    let more = careful(0.965);
    let change = TaskChange { put: vec![Arc::clone(&more)], removed: Vec::new() };
    cluster.site.apply_tasks(change, true).await.unwrap();
    wait_for("it is given up", || threshold(&cluster, "m") == Some(0.125)).await;
    // And where nothing is accurate enough it is the most accurate, and said.
    cluster.put_task(&careful(0.999)).await.unwrap();
    wait_for("it is said", || {
        plan(&cluster).threshold_reason.is_some_and(|reason| reason.contains("no thresholds reach"))
    })
    .await;
    assert_eq!(threshold(&cluster, "m"), Some(0.125));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chosen_threshold_is_taken_up_by_the_next_controller() {
    let (cluster, device) = start_careful(0.95).await;
    count_requests(&device);
    wait_for("it is chosen", || threshold(&cluster, "m") == Some(0.25)).await;
    wait_for("it is kept", || !cluster.site.plan_status().threshold_changes.is_empty()).await;
    let next = FakeCluster::over(Arc::clone(&cluster.rows));
    next.add_node("device", 5.0, true);
    let change = TaskChange { put: vec![careful(0.95)], removed: Vec::new() };
    next.site.adopt_tasks(change, true).await.unwrap();
    wait_for("the gateway has the task", || threshold(&next, "m").is_some()).await;
    assert_eq!(threshold(&next, "m"), Some(0.25));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_threshold_that_somebody_sets_stays_whatever_the_plan() {
    let (cluster, device) = start_careful(0.95).await;
    let mut pinned = PlannedTask::clone(&careful(0.95));
    pinned.graph.exits[0].threshold = 0.0625;
    let goal = pinned.settings.accuracy_goal.as_mut().unwrap();
    goal.exits.get_mut("exit_1").unwrap().is_pinned = true;
    cluster.site.set_threshold(&Arc::new(pinned), "exit_1").unwrap();
    count_requests(&device);
    wait_for("how many leave is known", || plan(&cluster).exits[0].rate > 0.0).await;
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    assert_eq!(threshold(&cluster, "m"), Some(0.0625));
    // A task that is put without it has thresholds chosen again.
    cluster.put_task(&careful(0.95)).await.unwrap();
    wait_for("it is chosen", || threshold(&cluster, "m") == Some(0.25)).await;
}

//! Thresholds of exits, wherever their tasks run.

use std::sync::Arc;

use tessera_deploy::{PlannedTask, TaskSettings};

use super::fake_cluster::{FakeCluster, planned, wait_for};
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

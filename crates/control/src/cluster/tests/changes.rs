//! Changes that wait for what they need, and what happens meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tessera_core::{ErrorKind, lock};
use tessera_deploy::TaskSettings;

use super::fake_cluster::{FakeCluster, planned, wait_for};
use crate::tests::fakes::{block, early};

fn at(node: &str) -> TaskSettings {
    TaskSettings { nodes: vec![node.into()], ..TaskSettings::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ran_at_a_node_that_died_runs_elsewhere_while_a_change_waits_for_what_it_needs() {
    let cluster = Arc::new(FakeCluster::start());
    cluster.add_node("device", 50.0, true);
    cluster.add_node("cloud", 1.0, false);
    let stuck = cluster.add_node("stuck", 90.0, false);
    stuck.set_starts_units(false);
    for others in [["device", "cloud"], ["device", "stuck"], ["cloud", "stuck"]] {
        cluster.set_link(others, 100.0, 1);
    }
    cluster.put("m", early(), TaskSettings::default()).await.unwrap();
    cluster.wait_at("m", "cloud").await;
    let putting = {
        let cluster = Arc::clone(&cluster);
        tokio::spawn(async move { cluster.put("other", block("b", 4, 4), at("stuck")).await })
    };
    wait_for("its unit is to start", || !stuck.units().is_empty()).await;
    cluster.kill("cloud");
    let start = Instant::now();
    cluster.wait_at("m", "device").await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(!putting.is_finished());
    // It is carried out as soon as it can be.
    stuck.set_starts_units(true);
    putting.await.unwrap().unwrap();
    assert_eq!(cluster.places("other"), ["stuck"]);
    assert_eq!(cluster.places("m"), ["device"; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_cut_off_moves_while_a_move_of_it_waits_for_what_it_needs() {
    let cluster = FakeCluster::start();
    let device = cluster.add_node("device", 50.0, true);
    cluster.add_node("near", 10.0, false);
    let far = cluster.add_node("far", 90.0, false);
    for others in [["device", "near"], ["device", "far"], ["near", "far"]] {
        cluster.set_link(others, 100.0, 1);
    }
    cluster.put("m", early(), TaskSettings::default()).await.unwrap();
    cluster.wait_at("m", "near").await;
    far.set_starts_units(false);
    far.set_block_ms(1.0);
    wait_for("it is about to move", || !far.units().is_empty()).await;
    assert_eq!(cluster.places("m")[0], "near");
    cluster.set_link(["device", "near"], 0.0, 1);
    cluster.set_link(["device", "far"], 0.0, 1);
    let start = Instant::now();
    cluster.wait_at("m", "device").await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    wait_for("what it waited for is not wanted any more", || far.units().is_empty()).await;
    assert!(!device.units().is_empty());
    let moves = cluster.site.plan_status().moves;
    let given_up = moves.iter().find(|found| found.to[0] == "far").unwrap();
    assert!(given_up.error.as_ref().unwrap().contains("another plan"), "{moves:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_node_dies_meanwhile_leaves_nothing_behind() {
    let cluster = Arc::new(FakeCluster::start());
    cluster.add_node("device", 1.0, true);
    let stuck = cluster.add_node("stuck", 1.0, false);
    stuck.set_starts_units(false);
    cluster.put("m", early(), at("device")).await.unwrap();
    let putting = {
        let cluster = Arc::clone(&cluster);
        tokio::spawn(async move { cluster.put_task(&planned("m", early(), at("stuck"))).await })
    };
    wait_for("its units are to start", || !stuck.units().is_empty()).await;
    cluster.kill("stuck");
    let error = putting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let state = lock(&cluster.site.0.state);
    assert!(state.starting.is_empty());
    let nodes = state.units.values().map(|unit| unit.settings.node.as_deref().unwrap());
    assert!(nodes.into_iter().all(|node| node == "device"));
    assert_eq!(state.wished["m"].settings.nodes[..], at("device").nodes[..]);
    let planned = state.deployment.find_planned("m").unwrap();
    assert!(planned.settings.nodes.iter().all(|node| **node == *"device"));
}

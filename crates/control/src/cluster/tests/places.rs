//! Where tasks are placed, and what keeps them there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_deploy::TaskSettings;

use super::fake_cluster::{FakeCluster, FakeNode, wait_for};
use crate::tests::fakes::early;

fn slow_device(available_memory: u64) -> (FakeCluster, [Arc<FakeNode>; 2]) {
    let cluster = FakeCluster::start();
    let device = cluster.add_node("device", 50.0, true);
    device.set_memory(available_memory);
    let cloud = cluster.add_node("cloud", 1.0, false);
    cluster.set_link(["device", "cloud"], 100.0, 1);
    (cluster, [device, cloud])
}

fn degrading() -> TaskSettings {
    TaskSettings { degrade: true, ..TaskSettings::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exit_of_a_task_that_may_degrade_is_where_its_requests_come_in() {
    let (cluster, _nodes) = slow_device(1 << 30);
    cluster.put("plain", early(), TaskSettings::default()).await.unwrap();
    cluster.put("m", early(), degrading()).await.unwrap();
    wait_for("it is split", || cluster.places("m") == ["device", "device", "cloud"]).await;
    cluster.wait_at("plain", "cloud").await;
    wait_for("it is said", || cluster.plan_of("m").is_some()).await;
    let plan = cluster.plan_of("m").unwrap();
    assert_eq!(plan.degrade_reason, None);
    // What it is expected to take is what it takes.
    assert!((100.0..110.0).contains(&plan.expected_ms.unwrap()), "{plan:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_that_does_not_fit_where_requests_come_in_is_elsewhere_and_that_is_said() {
    let (cluster, _nodes) = slow_device(1000);
    cluster.put("m", early(), degrading()).await.unwrap();
    cluster.wait_at("m", "cloud").await;
    wait_for("it is said", || cluster.plan_of("m").is_some()).await;
    let reason = cluster.plan_of("m").unwrap().degrade_reason.unwrap();
    assert!(reason.contains("can't be at device, where requests come in"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_moves_where_that_pays_for_what_is_fetched_over_the_link_as_it_is() {
    let cluster = FakeCluster::start();
    let device = cluster.add_node("device", 0.5, true);
    let cloud = cluster.add_node("cloud", 50.0, false);
    cloud.has_weights.store(false, Ordering::SeqCst);
    // Three thousand bytes of weights take 26 ms.
    cluster.set_link(["device", "cloud"], 1.0, 1);
    cluster.put("m", early(), TaskSettings::default()).await.unwrap();
    cluster.wait_at("m", "device").await;
    device.set_block_ms(8.0);
    cloud.set_block_ms(0.001);
    wait_for("it is said why it stays", || {
        let reason = cluster.plan_of("m").and_then(|plan| plan.reason);
        reason.is_some_and(|reason| reason.contains("are needed for it to pay"))
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.places("m"), ["device"; 3]);
    cloud.has_weights.store(true, Ordering::SeqCst);
    cloud.set_block_ms(0.001);
    cluster.wait_at("m", "cloud").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_placed_where_there_is_no_storage_for_it() {
    let (cluster, [device, cloud]) = slow_device(1 << 30);
    cloud.has_weights.store(false, Ordering::SeqCst);
    cloud.set_storage(1500);
    cluster.put("m", early(), TaskSettings::default()).await.unwrap();
    wait_for("it is placed", || cluster.places("m").len() == 3).await;
    // One block fits there.
    let at_cloud = cluster.places("m").iter().filter(|node| *node == "cloud").count();
    assert!(at_cloud <= 1, "{:?}", cluster.places("m"));
    assert!(!device.units().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_task_stays_where_probes_are_filtered_and_goes_where_requests_get_no_answer() {
    let (cluster, _nodes) = slow_device(1 << 30);
    cluster.put("m", early(), TaskSettings::default()).await.unwrap();
    cluster.wait_at("m", "cloud").await;
    cluster.filter_link(["device", "cloud"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(cluster.places("m"), ["cloud"; 3]);
    let links = cluster.site.plan_status().links;
    assert!(links.iter().all(|link| link.is_filtered && !link.is_cut), "{links:?}");
    // Requests that are answered say that it is open, also while others are under way.
    cluster.set_traffic("device", "m", 5, 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.set_traffic("device", "m", 6, 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(cluster.places("m"), ["cloud"; 3]);
    // None is answered any more.
    cluster.set_traffic("device", "m", 6, 2);
    cluster.wait_at("m", "device").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_hops_take_is_learnt_from_how_long_requests_are_on_their_way() {
    let (cluster, _nodes) = slow_device(1 << 30);
    cluster.put("m", early(), TaskSettings::default()).await.unwrap();
    cluster.wait_at("m", "cloud").await;
    wait_for("it is said", || cluster.plan_of("m").is_some()).await;
    let expected = || cluster.plan_of("m").and_then(|plan| plan.expected_ms).unwrap();
    let before = expected();
    // Half a millisecond there, as much back, and little for a few hundred bytes.
    cluster.set_way("device", "m", 5, 0, Some(Duration::from_millis(11)));
    wait_for("it is learnt", || expected() > before + 8.0).await;
    wait_for("it is believed whole", || (9.0..9.5).contains(&(expected() - before))).await;
    let links = cluster.site.plan_status().links;
    assert!(links.iter().all(|link| link.hop_ms.is_some_and(|ms| ms > 4.8)), "{links:?}");
    // Of a link that is another by now nothing is known.
    cluster.set_link(["device", "cloud"], 10.0, 9);
    wait_for("it is forgotten", || expected() < before + 10.0).await;
}

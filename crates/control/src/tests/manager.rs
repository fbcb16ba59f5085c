//! Changes: that they are carried out and kept, or not at all.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tessera_core::{Device, ErrorKind};
use tessera_deploy::{Isolation, PlannedTask};

use super::fakes::{Setup, block};
use crate::store::IntentStore;
use crate::{System, TaskDefinition, on_behalf_of};

fn system(document: &Value) -> System {
    System::from_json(document).unwrap()
}

fn task(document: &Value) -> TaskDefinition {
    TaskDefinition::from_json(document).unwrap()
}

fn two_tasks() -> System {
    system(&json!({
        "blocks": ["block1", "block2", "block3"],
        "tasks": {"a": ["block1", "block2"], "b": ["block1", "block3"]}
    }))
}

fn versions(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
}

#[tokio::test]
async fn tasks_are_served_and_kept() {
    let setup = Setup::new();
    let changed = setup.manager.put_system(two_tasks()).await.unwrap();
    assert_eq!(changed.started.len(), 3);
    assert_eq!(changed.tasks["a"], "1");
    assert!(changed.unused.is_empty());
    assert_eq!(setup.manager.system(), two_tasks());
    assert_eq!(setup.store.load_intent().unwrap().unwrap().system, two_tasks());
    assert_eq!(setup.site.versions(), versions(&[("a", "1"), ("b", "1")]));
}

#[tokio::test]
async fn a_change_that_the_site_refuses_changes_nothing() {
    let setup = Setup::new();
    setup.manager.put_system(two_tasks()).await.unwrap();
    let kept = setup.store.load_intent().unwrap();
    setup.site.refuses.store(true, Ordering::SeqCst);
    let error = setup.manager.put_system(System::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(setup.manager.put_task("c", TaskDefinition::of_model("early")).await.is_err());
    assert!(setup.manager.remove_task("a").await.is_err());
    assert_eq!(setup.manager.system(), two_tasks());
    assert_eq!(setup.store.load_intent().unwrap(), kept);
    assert_eq!(setup.site.versions(), versions(&[("a", "1"), ("b", "1")]));
}

#[tokio::test]
async fn a_change_that_cannot_be_kept_is_taken_back() {
    let setup = Setup::new();
    let exits = json!({"model": "early", "exits": {"exit_1": 0.25}});
    setup.manager.put_task("a", task(&exits)).await.unwrap();
    setup.store.is_broken.store(true, Ordering::SeqCst);
    let error = setup.manager.put_system(two_tasks()).await.unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert!(setup.manager.set_threshold("a", "exit_1", 0.75).await.is_err());
    assert_eq!(setup.site.versions(), versions(&[("a", "1")]));
    assert_eq!(setup.manager.task_status("a").unwrap().exits[0].threshold, 0.25);
    assert_eq!(setup.manager.task_definition("a").unwrap(), task(&exits));
    assert!(setup.manager.task_definition("b").is_none());
}

#[tokio::test]
async fn a_version_goes_up_with_every_change_of_its_task() {
    let setup = Setup::new();
    let manager = &setup.manager;
    manager.put_system(two_tasks()).await.unwrap();
    manager.put_system(two_tasks()).await.unwrap();
    assert_eq!(setup.site.versions(), versions(&[("a", "1"), ("b", "1")]));
    let changed = json!({"path": ["block1", "block3"], "deadline_ms": 5});
    manager.put_task("a", task(&changed)).await.unwrap();
    assert_eq!(setup.site.versions(), versions(&[("a", "2"), ("b", "1")]));
    // The model behind a name is another one now.
    let other = block("another", 4, 10);
    setup.catalogue.0.lock().unwrap().insert("block3".to_owned(), other);
    manager.put_task("a", task(&changed)).await.unwrap();
    assert_eq!(setup.site.versions(), versions(&[("a", "3"), ("b", "1")]));
    let answer = manager.put_system(two_tasks()).await.unwrap();
    assert_eq!(setup.site.versions(), versions(&[("a", "4"), ("b", "2")]));
    assert_eq!(answer.tasks["b"], "2");
}

#[tokio::test]
async fn what_was_kept_is_served_after_a_restart() {
    let first = Setup::new();
    assert!(first.manager.restore_tasks().await.unwrap().changed.tasks.is_empty());
    first.manager.put_system(two_tasks()).await.unwrap();
    first.manager.put_task("a", task(&json!(["block1"]))).await.unwrap();
    let second = Setup::over(Arc::clone(&first.store), Arc::clone(&first.catalogue));
    let restored = second.manager.restore_tasks().await.unwrap();
    assert!(restored.left_out.is_empty());
    assert_eq!(restored.changed.tasks["a"], "2");
    assert_eq!(second.site.versions(), versions(&[("a", "2"), ("b", "1")]));
    assert_eq!(second.manager.system(), first.manager.system());
}

#[tokio::test]
async fn a_system_that_is_put_before_the_store_is_read_replaces_it() {
    let first = Setup::new();
    first.manager.put_system(two_tasks()).await.unwrap();
    let second = Setup::over(Arc::clone(&first.store), Arc::clone(&first.catalogue));
    let other = system(&json!({"tasks": {"c": ["block1"]}}));
    second.manager.put_system(other.clone()).await.unwrap();
    assert_eq!(second.store.load_intent().unwrap().unwrap().system, other);
    // Also what was put before it, and stays as it is.
    let between = Setup::over(Arc::clone(&first.store), Arc::clone(&first.catalogue));
    between.manager.put_task("c", task(&json!(["block1"]))).await.unwrap();
    between.manager.put_system(other.clone()).await.unwrap();
    assert_eq!(between.store.load_intent().unwrap().unwrap().system, other);
    // A task alone is added to what there is.
    let third = Setup::over(Arc::clone(&first.store), Arc::clone(&first.catalogue));
    third.manager.put_task("d", task(&json!(["block1"]))).await.unwrap();
    third.manager.restore_tasks().await.unwrap();
    assert_eq!(third.site.versions(), versions(&[("c", "1"), ("d", "1")]));
}

#[tokio::test]
async fn a_task_that_cannot_be_restored_does_not_keep_the_others_down() {
    let first = Setup::new();
    first.manager.put_system(two_tasks()).await.unwrap();
    first.catalogue.0.lock().unwrap().remove("block3");
    let second = Setup::over(Arc::clone(&first.store), Arc::clone(&first.catalogue));
    let restored = second.manager.restore_tasks().await.unwrap();
    assert!(restored.left_out["b"].contains("there is no model \"block3\""));
    assert_eq!(second.site.versions(), versions(&[("a", "1")]));
    assert_eq!(second.manager.system(), two_tasks());
    let lost = second.manager.task_status("b").unwrap();
    assert_eq!((lost.state.as_str(), lost.version.as_str()), ("unavailable", "1"));
    assert!(second.manager.set_threshold("b", "exit", 0.5).await.is_err());
    second.manager.put_task("c", task(&json!(["block1"]))).await.unwrap();
    second.manager.remove_task("b").await.unwrap();
    assert_eq!(second.site.versions(), versions(&[("a", "1"), ("c", "1")]));
    assert_eq!(second.manager.task_status("b").unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn there_is_one_change_at_a_time() {
    let setup = Setup::new();
    let changes: Vec<_> = (0..8)
        .map(|number| {
            let manager = setup.manager.clone();
            let name = format!("task{number}");
            tokio::spawn(
                async move { manager.put_task(&name, TaskDefinition::of_model("early")).await },
            )
        })
        .collect();
    for change in changes {
        change.await.unwrap().unwrap();
    }
    assert_eq!(setup.site.most_at_once.load(Ordering::SeqCst), 1);
    assert_eq!(setup.site.versions().len(), 8);
    assert_eq!(setup.store.load_intent().unwrap().unwrap().system.tasks.len(), 8);
}

#[tokio::test]
async fn a_change_goes_on_where_whoever_asked_for_it_goes_away() {
    let setup = Setup::new();
    let manager = setup.manager.clone();
    let asked =
        tokio::spawn(async move { manager.put_task("a", TaskDefinition::of_model("early")).await });
    tokio::task::yield_now().await;
    asked.abort();
    assert!(asked.await.is_err());
    for _ in 0..1000 {
        if setup.manager.task_definition("a").is_some() {
            assert_eq!(setup.site.versions(), versions(&[("a", "1")]));
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the change was never carried out");
}

#[tokio::test]
async fn tasks_come_and_go_one_by_one() {
    let setup = Setup::new();
    setup.manager.put_system(two_tasks()).await.unwrap();
    let changed = setup.manager.put_task("early", TaskDefinition::of_model("early")).await.unwrap();
    assert!(changed.stopped.is_empty());
    // What is told is about the task alone.
    assert_eq!(changed.tasks, [("early".to_owned(), "1".to_owned())].into());
    assert_eq!((changed.started.len(), changed.kept.len()), (3, 0));
    // The document stays one that could be put again.
    let system = setup.manager.system();
    assert!(system.blocks.as_ref().unwrap().contains(&"early".to_owned()));
    setup.manager.put_system(system).await.unwrap();
    let changed = setup.manager.remove_task("b").await.unwrap();
    assert!(changed.tasks.is_empty() && changed.kept.is_empty());
    // The blocks of the other are one unit now.
    assert_eq!((changed.started.len(), changed.stopped.len()), (1, 3));
    assert_eq!(changed.unused, ["block3"]);
    let error = setup.manager.remove_task("b").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::NotFound, "there is no task \"b\"")
    );
    let error = setup.manager.put_task("a/b", TaskDefinition::of_model("early")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[tokio::test]
async fn thresholds_are_those_of_the_task_and_can_be_set() {
    let setup = Setup::new();
    let manager = &setup.manager;
    let wrong = task(&json!({"model": "early", "exits": {"exit_2": 0.1}}));
    let error = manager.put_task("a", wrong).await.unwrap_err().to_string();
    assert_eq!(error, "task \"a\": there is no exit \"exit_2\", expected one of: exit_1");
    manager
        .put_task("a", task(&json!({"model": "early", "exits": {"exit_1": 0.1}})))
        .await
        .unwrap();
    assert_eq!(manager.task_status("a").unwrap().exits[0].threshold, 0.1);
    manager.set_threshold("a", "exit_1", 0.9).await.unwrap();
    assert_eq!(manager.task_status("a").unwrap().exits[0].threshold, 0.9);
    let kept = setup.store.load_intent().unwrap().unwrap();
    assert_eq!(kept.system.tasks["a"].exits["exit_1"], 0.9);
    for (task, exit) in [("a", "exit_2"), ("b", "exit_1")] {
        let error = manager.set_threshold(task, exit, 0.5).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert!(manager.set_threshold("a", "exit_1", f32::NAN).await.is_err());
    // The same task with the threshold that it has by now is no new version.
    manager.put_system(manager.system()).await.unwrap();
    assert_eq!(setup.site.versions(), versions(&[("a", "1")]));
}

#[tokio::test]
async fn a_threshold_that_is_set_is_no_longer_one_to_choose() {
    let setup = Setup::new();
    let manager = &setup.manager;
    let settings = json!([
        {"threshold": 0.25, "accuracy": 0.9}, {"threshold": 0.5, "accuracy": 0.8}
    ]);
    let document = |exit: &str| {
        json!({
            "model": "early", "thresholds": {exit: settings},
            "accuracy": 0.95, "least_accuracy": 0.85
        })
    };
    let error = manager.put_task("a", task(&document("exit_2"))).await.unwrap_err().to_string();
    assert!(error.contains("there is no exit \"exit_2\""), "{error}");
    let mut none = document("exit_1");
    none["thresholds"] = json!({});
    let error = manager.put_task("a", task(&none)).await.unwrap_err().to_string();
    assert!(error.contains("thresholds: none for exit \"exit_1\""), "{error}");
    let mut placed = document("exit_1");
    placed["node"] = json!("edge");
    let error = manager.put_task("a", task(&placed)).await.unwrap_err().to_string();
    assert!(error.contains("expected one of both"), "{error}");
    manager.put_task("a", task(&document("exit_1"))).await.unwrap();
    assert_eq!(manager.task_status("a").unwrap().exits[0].threshold, 0.25);
    let is_pinned = |task: &PlannedTask| {
        task.settings.accuracy_goal.as_ref().unwrap().exits["exit_1"].is_pinned
    };
    assert!(!is_pinned(&setup.site.running()[0]));
    manager.set_threshold("a", "exit_1", 0.5).await.unwrap();
    assert!(is_pinned(setup.site.with_threshold.lock().unwrap().as_ref().unwrap()));
    assert_eq!(manager.task_definition("a").unwrap().exits["exit_1"], 0.5);
    manager.put_task("a", task(&document("exit_1"))).await.unwrap();
    assert!(!is_pinned(&setup.site.running()[0]));
}

#[tokio::test]
async fn every_task_that_cannot_be_served_is_told() {
    let setup = Setup::new();
    let wrong = system(&json!({"tasks": {
        "a": ["block1", "wide"],
        "b": ["none"],
        "c": {"path": [{"block": "join", "inputs": ["block2", "$0"]}, "block2"]},
        "d": ["block1"]
    }}));
    let message = setup.manager.put_system(wrong).await.unwrap_err().to_string();
    for part in [
        "task \"a\": step 2 (\"wide\") input \"x\" expects f32[N,512], and step 1 (\"block1\") gives \
         \"y\": f32[N,4]",
        "; task \"b\": there is no model \"none\"",
        "; task \"c\": the path has a cycle",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(setup.site.versions().is_empty());
}

#[tokio::test]
async fn settings_are_the_tasks_or_the_documents_or_the_servers() {
    let setup = Setup::new();
    let document = json!({
        "isolation": "process",
        "tasks": {
            "a": {"path": ["block1"], "isolation": "thread", "deadline_ms": 5, "replicas": 3},
            "b": {"path": ["block1", {"block": "join", "inputs": ["block1", "block1"]}]}
        }
    });
    setup.manager.put_system(system(&document)).await.unwrap();
    let running = setup.site.running();
    assert_eq!(running[0].settings.isolation, Isolation::Thread);
    assert_eq!(running[0].settings.deadline, Duration::from_millis(5));
    assert_eq!(running[0].settings.replicas, 3);
    assert_eq!(running[1].settings.isolation, Isolation::Process);
    assert_eq!(running[1].settings.deadline, Duration::from_secs(30));
    assert_eq!(running[1].graph.blocks.len(), 2);
}

#[tokio::test]
async fn each_block_may_have_a_device_of_its_own() {
    let setup = Setup::new();
    let gpu = Device::Cuda(0);
    let document = json!({
        "tasks": {
            "a": {"model": "early", "device": ["cpu", "cpu", "cuda:0"]},
            "b": {"path": [{"block": "block1", "device": "cuda:0"}, "early"]},
            "c": {"path": ["block1", {"block": "early", "device": ["cpu", "cpu", "cuda:1"]}],
                  "device": "cuda:0"},
            "d": {"path": [{"block": "block1", "device": "cpu"}, "block2"],
                  "device": ["cuda:0", "cuda:0"]}
        }
    });
    setup.manager.put_system(system(&document)).await.unwrap();
    let devices = |number: usize| -> Vec<Device> {
        let running = setup.site.running();
        let task = &running[number];
        (0..task.graph.blocks.len()).map(|block| task.settings.device_of(block)).collect()
    };
    assert_eq!(devices(0), [Device::Cpu, Device::Cpu, gpu]);
    assert_eq!(devices(1), [gpu, Device::Cpu, Device::Cpu, Device::Cpu]);
    assert_eq!(devices(2), [gpu, Device::Cpu, Device::Cpu, Device::Cuda(1)]);
    assert_eq!(devices(3), [Device::Cpu, gpu]);
    for (document, expected) in [
        (
            json!({"model": "early", "device": ["cpu"]}),
            "task \"e\": device: a list of 1, expected one for each of its 3 blocks",
        ),
        (
            json!({"path": [{"block": "early", "name": "x", "device": ["cpu", "cpu"]}]}),
            "task \"e\": step \"x\": device: a list of 2, expected one for each of its 3 blocks",
        ),
    ] {
        let error = setup.manager.put_task("e", task(&document)).await.unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn who_asked_for_a_change_is_known_and_it_can_be_undone() {
    let setup = Setup::new();
    let manager = &setup.manager;
    let put = manager.put_system(two_tasks());
    on_behalf_of(Some("anna".to_owned()), put).await.unwrap();
    manager.put_system(system(&json!({"tasks": {"b": ["block2"]}}))).await.unwrap();
    // Nothing is another by that.
    manager.put_task("b", task(&json!(["block2"]))).await.unwrap();
    let changes = manager.list_changes();
    assert_eq!(changes.iter().map(|change| change.number).collect::<Vec<_>>(), [2, 1]);
    assert_eq!((changes[0].who.as_deref(), changes[1].who.as_deref()), (None, Some("anna")));
    assert_eq!(changes[1].started.len(), 3);
    let difference = &changes[0].tasks["a"];
    assert!(difference.before.is_some() && difference.after.is_none());
    manager.undo_change(2).await.unwrap();
    assert_eq!(manager.system().tasks, two_tasks().tasks);
    let changes = manager.list_changes();
    assert_eq!((changes[0].undoes, changes[1].undone_by), (Some(2), Some(3)));
    // It is as it was before by now.
    let error = manager.undo_change(2).await.unwrap_err();
    assert!(error.to_string().contains("is not what change 2 made of it"), "{error}");
    assert_eq!(manager.undo_change(9).await.unwrap_err().kind(), ErrorKind::NotFound);
    // One that fails is none.
    setup.store.is_broken.store(true, Ordering::SeqCst);
    manager.undo_change(1).await.unwrap_err();
    assert_eq!(manager.list_changes().len(), 3);
}

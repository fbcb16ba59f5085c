//! A cluster whose controller is away: what is started again meanwhile is found by the others.

use serde_json::json;

use crate::cluster::{
    join_address, node_state, restart_node, start_controller, start_node, wait_for_task,
};
use crate::models::{layers, row};
use crate::server::{Input, Place, assert_close, signal, wait_until};

#[test]
fn nodes_that_are_started_again_without_a_controller_are_found_by_the_others() {
    let place = Place::new();
    place.split("m", &layers(&[1, 2, 3]), &["--blocks", "3"]);
    let controller = start_controller(&place, &[]);
    let address = join_address(&controller);
    let (edge, cloud) =
        (start_node(&place, &controller, "edge"), start_node(&place, &controller, "cloud"));
    let task = json!({ "model": "m", "node": ["edge", "cloud", "edge"], "deadline_ms": 2000 });
    controller.put("/v1/tasks/m", &task).ok();
    let input = [Input::row(&row(1))];
    let expected = edge.infer("m", &input).output("y");
    wait_for_task(&cloud, "m");
    signal("KILL", controller.id());
    drop(controller);
    // First whom requests pass, then whom they come from and go back to, and so all of it.
    signal("KILL", cloud.id());
    drop(cloud);
    let cloud = restart_node(&place, &address, "cloud");
    wait_for_task(&edge, "m");
    wait_for_task(&cloud, "m");
    signal("KILL", edge.id());
    drop(edge);
    let edge = restart_node(&place, &address, "edge");
    wait_for_task(&cloud, "m");
    wait_for_task(&edge, "m");
    assert_close(&edge.infer("m", &input).output("y"), &expected);
    // The next controller takes up what there is.
    let controller = start_controller(&place, &["--listen", &address]);
    for name in ["edge", "cloud"] {
        wait_until("the node is back", || node_state(&controller, name) == "attached");
    }
    for gateway in [&edge, &cloud] {
        wait_for_task(gateway, "m");
        assert_close(&gateway.infer("m", &input).output("y"), &expected);
    }
}

#[test]
fn an_instance_that_is_started_again_without_a_controller_is_found_by_the_others() {
    let place = Place::new();
    place.split("m", &layers(&[1, 2]), &["--blocks", "2"]);
    let controller = start_controller(&place, &["--isolation", "process"]);
    let address = join_address(&controller);
    let (edge, cloud) =
        (start_node(&place, &controller, "edge"), start_node(&place, &controller, "cloud"));
    let task = json!({ "model": "m", "node": ["edge", "cloud"], "deadline_ms": 2000 });
    controller.put("/v1/tasks/m", &task).ok();
    let input = [Input::row(&row(1))];
    let expected = edge.infer("m", &input).output("y");
    wait_for_task(&cloud, "m");
    let units = controller.get("/v1/units");
    let units = units["units"].as_array().unwrap();
    let process = |node: &str| {
        let unit = units.iter().find(|unit| unit["node"] == node).unwrap();
        unit["instances"][0]["process"].as_u64().unwrap()
    };
    let killed = ["cloud", "edge"].map(process);
    signal("KILL", controller.id());
    drop(controller);
    for process in killed {
        // The nodes have to have noticed that nobody tells others what has changed.
        std::thread::sleep(std::time::Duration::from_millis(500));
        signal("KILL", process);
        for gateway in [&edge, &cloud] {
            wait_until("it answers again", || gateway.infer("m", &input).status == 200);
            assert_close(&gateway.infer("m", &input).output("y"), &expected);
        }
    }
    // Told by the next controller, gateways lose nothing with what has changed.
    let controller = start_controller(&place, &["--listen", &address]);
    for name in ["edge", "cloud"] {
        wait_until("the node is back", || node_state(&controller, name) == "attached");
    }
    for _ in 0..20 {
        for gateway in [&edge, &cloud] {
            wait_for_task(gateway, "m");
        }
    }
}

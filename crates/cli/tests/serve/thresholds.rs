//! Thresholds that a controller chooses, with real nodes: for the accuracy that a task must have.

use serde_json::{Value, json};

use crate::cluster::{admin, join_address, start_controller, start_node};
use crate::models::{CERTAIN, UNCERTAIN, with_exit};
use crate::server::{Input, Place, Server, signal, wait_until};

/// Four classes of which one is likelier than the others: its entropy is 0.38.
const LIKELY: [f32; 8] = [3.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0];

fn exit_of(controller: &Server<'_>) -> Value {
    controller.get("/v1/tasks/leaving/exits")["exits"][0].clone()
}

fn has_threshold(controller: &Server<'_>, threshold: f64) -> bool {
    (exit_of(controller)["threshold"].as_f64().unwrap() - threshold).abs() < 1e-6
}

/// Whether a request that is likely to be right leaves at the exit.
fn leaves(node: &Server<'_>) -> bool {
    node.infer("leaving", &[Input::row(&LIKELY)]).parameter("exit") == "early"
}

/// Half of these are certain or likely.
fn ask_some(node: &Server<'_>) {
    for row in [&CERTAIN, &LIKELY, &UNCERTAIN, &UNCERTAIN].into_iter().cycle().take(80) {
        node.infer("leaving", &[Input::row(row)]).ok();
    }
}

#[test]
fn the_better_threshold_is_chosen_after_some_requests_and_stays_until_somebody_sets_one() {
    let place = Place::new();
    place.model_with_exit("leaving", &with_exit(), 0.0);
    place.split("leaving", &with_exit(), &["--blocks", "2"]);
    let controller = start_controller(&place, &[]);
    let address = join_address(&controller);
    let edge = start_node(&place, &controller, "edge");
    let _cloud = start_node(&place, &controller, "cloud");
    let task = json!({
        "model": "leaving",
        "input_node": "edge",
        "thresholds": {
            "early": [
                { "threshold": 0.125, "accuracy": 0.99 },
                { "threshold": 0.5, "accuracy": 0.9 }
            ]
        },
        "accuracy": 0.98,
        "least_accuracy": 0.93
    });
    controller.put("/v1/tasks/leaving", &task).ok();
    wait_until("the gateway has the task", || {
        edge.infer("leaving", &[Input::row(&CERTAIN)]).status == 200
    });
    // The first is used until more is known.
    assert!(has_threshold(&controller, 0.125), "{}", exit_of(&controller));
    assert!(!leaves(&edge));
    ask_some(&edge);
    // With half of all leaving there, 0.94 of the answers are right.
    wait_until("it is chosen", || has_threshold(&controller, 0.5));
    wait_until("the gateway has it", || leaves(&edge));
    wait_until("it is noted", || {
        let plan = controller.get("/v1/plan");
        plan["threshold_changes"][0]["to"] == json!({ "early": 0.5 })
    });
    wait_until("it is said what is expected", || {
        let plan = controller.get("/v1/plan");
        let accuracy = plan["tasks"][0]["expected_accuracy"].as_f64();
        accuracy.is_some_and(|accuracy| (accuracy - 0.94).abs() < 0.02)
    });
    let shown = admin(&place, &controller, &["plan", "--cluster"]);
    assert!(shown.out.contains("early") && shown.out.contains("of 93.0%"), "{}", shown.out);
    // The next controller goes on with it.
    signal("KILL", controller.id());
    drop(controller);
    let controller = start_controller(&place, &["--listen", &address]);
    wait_until("it has the task", || exit_of(&controller)["threshold"].is_number());
    assert!(has_threshold(&controller, 0.5), "{}", exit_of(&controller));
    assert!(leaves(&edge));
    // Somebody knows better.
    let set = controller.put("/v1/tasks/leaving/exits/early", &json!({ "threshold": 0.25 })).ok();
    assert_eq!(set["threshold"], 0.25);
    wait_until("the gateway has it", || !leaves(&edge));
    ask_some(&edge);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(has_threshold(&controller, 0.25), "{}", exit_of(&controller));
    let definition = controller.get("/v1/tasks/leaving")["definition"].clone();
    assert_eq!(definition["exits"], json!({ "early": 0.25 }), "{definition}");
    controller.put("/v1/tasks/leaving", &task).ok();
    wait_until("it is chosen again", || has_threshold(&controller, 0.5));
    let wrong = json!({ "model": "leaving", "accuracy": 0.98, "least_accuracy": 0.9,
        "thresholds": {} });
    let message = controller.put("/v1/tasks/leaving", &wrong).refusal(400);
    assert!(message.contains("none for exit \"early\""), "{message}");
}

//! What a server tells of itself: metrics and events.

use serde_json::json;

use crate::http::Events;
use crate::models::{layers, row};
use crate::server::{Input, Place};

const METRICS: [&str; 25] = [
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
    "nv_inference_pending_request_count",
    "tessera_task_ready",
    "tessera_request_duration_seconds",
    "tessera_exits_taken_total",
    "tessera_degraded_total",
    "tessera_requests_retried_total",
    "tessera_unit_waiting_seconds",
    "tessera_unit_computing_seconds",
    "tessera_unit_overhead_seconds",
    "tessera_unit_batch_rows",
    "tessera_unit_restarts_total",
    "tessera_unit_in_flight",
    "tessera_unit_up",
    "tessera_process_resident_bytes",
    "tessera_queue_length",
    "tessera_copied_bytes_total",
];

#[test]
fn metrics_and_events_tell_of_requests_units_and_changes() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let other = place.model("other", &layers(&[9]));
    let server = place.serve(&[&chain, &other]);
    let unit = server.path("chain").remove(0);
    let mut events = Events::of(&server.control);
    let input = [Input::row(&row(1))];
    for _ in 0..3 {
        server.infer("chain", &input).ok();
    }
    server.infer_with("chain", &input, &json!({ "timeout": 1 })).refusal(503);

    for number in 0..4 {
        let event = events.next("request");
        assert_eq!(event["task"], "chain", "{event}");
        assert_eq!(event["rows"], 1, "{event}");
        assert!(event["at"].as_u64().is_some(), "{event}");
        if number < 3 {
            assert_eq!(event["outcome"], "answered", "{event}");
            assert_eq!(event["hops"][0]["unit"], unit, "{event}");
            assert!(event["hops"][0]["computed_us"].as_f64().unwrap() > 0.0, "{event}");
        } else {
            assert_ne!(event["outcome"], "answered", "{event}");
        }
    }
    server.delete("/v1/tasks/other").ok();
    let event = events.next("system");
    assert_eq!((&event["changed"], &event["removed"]), (&json!([]), &json!(["other"])), "{event}");
    assert_eq!(event["stopped"].as_array().unwrap().len(), 1, "{event}");
    let event = events.next("down");
    assert_eq!(event["comes_back"], false, "{event}");
    server.post(&format!("/v1/units/{unit}/stop")).ok();
    let event = events.next("down");
    assert_eq!((&event["unit"], &event["comes_back"]), (&json!(unit), &json!(false)));
    server.post(&format!("/v1/units/{unit}/start")).ok();
    assert_eq!(events.next("up")["unit"], unit);
    assert!(events.next("usage")["instances"].is_array());

    let metrics = server.metrics();
    for name in METRICS {
        assert!(metrics.contains(&format!("# TYPE {name} ")), "no {name} in: {metrics}");
    }
    let has = |line: &str| metrics.lines().any(|known| known == line);
    assert!(has("nv_inference_request_success{model=\"chain\",version=\"1\"} 3"), "{metrics}");
    assert!(has("nv_inference_count{model=\"chain\",version=\"1\"} 3"), "{metrics}");
    // Who listens does not keep a server from stopping.
    server.stop();
}

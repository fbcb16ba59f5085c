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
    "tessera_block_waiting_seconds",
    "tessera_block_computing_seconds",
    "tessera_block_overhead_seconds",
    "tessera_block_batch_rows",
    "tessera_block_restarts_total",
    "tessera_block_in_flight",
    "tessera_block_up",
    "tessera_process_resident_bytes",
    "tessera_queue_length",
    "tessera_copied_bytes_total",
];

#[test]
fn metrics_and_events_tell_of_requests_blocks_and_changes() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let other = place.model("other", &layers(&[9]));
    let server = place.serve(&[&chain, &other]);
    let block = server.path("chain").remove(0);
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
            assert_eq!(event["hops"][0]["block"], block, "{event}");
            assert!(event["hops"][0]["computed_us"].as_f64().unwrap() > 0.0, "{event}");
        } else {
            assert_ne!(event["outcome"], "answered", "{event}");
        }
    }
    server.delete("/v1/tasks/other").ok();
    let event = events.next("system");
    assert_eq!(event["tasks"], json!(["chain"]), "{event}");
    assert_eq!(event["stopped"].as_array().unwrap().len(), 1, "{event}");
    let event = events.next("down");
    assert_eq!(event["comes_back"], false, "{event}");
    server.post(&format!("/v1/blocks/{block}/stop")).ok();
    let event = events.next("down");
    assert_eq!((&event["block"], &event["comes_back"]), (&json!(block), &json!(false)));
    server.post(&format!("/v1/blocks/{block}/start")).ok();
    assert_eq!(events.next("up")["block"], block);
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

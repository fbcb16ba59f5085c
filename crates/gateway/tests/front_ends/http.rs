//! What works over HTTP.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::fake::{Server, f32_bytes};

fn add() -> serde_json::Value {
    json!({"id": "7", "inputs": [
        {"name": "a", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
        {"name": "b", "datatype": "FP32", "shape": [1, 3], "data": [[0.5, 0.5, 0.5]]},
    ]})
}

#[tokio::test]
async fn the_server_says_what_it_is_and_whether_it_is_ready() {
    let server = Server::new();
    let metadata = server.get("/v2").await.json();
    assert_eq!(metadata["name"], "tessera");
    assert!(metadata["extensions"].as_array().unwrap().contains(&json!("statistics")));
    assert_eq!(server.get("/v2/health/live").await.json(), json!({"live": true}));
    let ready = server.get("/v2/health/ready").await;
    assert_eq!((ready.status, ready.json()), (StatusCode::BAD_REQUEST, json!({"ready": false})));
    server.post("/v2/repository/models/late/load", "").await;
    assert_eq!(server.get("/v2/health/ready").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_task_is_described() {
    let server = Server::new();
    let expected = json!({
        "name": "add", "versions": ["1"], "platform": "onnxruntime_onnx",
        "properties": {"max_batch_size": "8"},
        "inputs": [{"name": "a", "datatype": "FP32", "shape": [-1, 3]},
                   {"name": "b", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "sum", "datatype": "FP32", "shape": [-1, 3]}],
    });
    assert_eq!(server.get("/v2/models/add").await.json(), expected);
    assert_eq!(server.get("/v2/models/add/versions/1").await.json(), expected);
    assert_eq!(server.get("/v2/models/add/versions/2").await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.get("/v2/models/a%20name%2F%C3%BC").await.json()["name"], "a name/ü");

    let config = server.get("/v2/models/add/config").await.json();
    assert_eq!(config["max_batch_size"], 8);
    assert_eq!(config["input"][0]["dims"], json!([3]));
    assert_eq!(config["input"][0]["data_type"], "TYPE_FP32");
    assert_eq!(config["dynamic_batching"]["max_queue_delay_microseconds"], 500);
    assert_eq!(
        (&config["platform"], &config["backend"]),
        (&json!("onnxruntime_onnx"), &json!("onnxruntime"))
    );
    assert_eq!(config["input"][0]["format"], "FORMAT_NCHW");
    assert_eq!(config["input"][1]["format"], "FORMAT_NONE");
    assert_eq!(config["output"][0]["label_filename"], "sums.txt");
    assert_eq!(
        (&config["instance_group"][0]["count"], &config["instance_group"][0]["kind"]),
        (&json!(2), &json!("KIND_CPU"))
    );
    assert_eq!(config["default_model_filename"], "model.onnx");
    assert_eq!(config["optimization"]["priority"], "PRIORITY_DEFAULT");
    let scalar = server.get("/v2/models/scalar/config").await.json();
    assert_eq!(
        (&scalar["input"][0]["dims"], &scalar["input"][0]["reshape"]),
        (&json!([1]), &json!({"shape": []}))
    );
    assert!(server.get("/v2/models/echo/config").await.json().get("dynamic_batching").is_none());
}

#[tokio::test]
async fn a_task_is_ready_or_it_is_not() {
    let server = Server::new();
    for (task, status) in [("add", 200), ("loading", 400), ("late", 400), ("nobody", 400)] {
        let reply = server.get(&format!("/v2/models/{task}/ready")).await;
        assert_eq!(reply.status.as_u16(), status, "{task}");
    }
    assert_eq!(server.get("/v2/models/add/versions/1/ready").await.status, StatusCode::OK);
    assert_eq!(server.get("/v2/models/add/versions/9/ready").await.status, 400);
}

#[tokio::test]
async fn statistics_are_told_of_one_task_or_of_all() {
    let server = Server::new();
    let one = server.get("/v2/models/add/stats").await.json();
    let statistics = &one["model_stats"][0];
    assert_eq!((&statistics["name"], &statistics["inference_count"]), (&json!("add"), &json!(5)));
    assert_eq!(statistics["inference_stats"]["success"], json!({"count": 3, "ns": 4500}));
    assert_eq!(statistics["inference_stats"]["cache_miss"]["count"], 0);
    assert_eq!(statistics["batch_stats"][0]["batch_size"], 4);
    assert_eq!(statistics["batch_stats"][0]["compute_infer"], json!({"count": 2, "ns": 900}));
    let all = server.get("/v2/models/stats").await.json();
    // With that of a task whose unit is being started, and without those that are not served.
    assert_eq!(all["model_stats"].as_array().unwrap().len(), 7);
    assert_eq!(server.get("/v2/models/nobody/stats").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_request_in_json_is_answered_in_json() {
    let server = Server::new();
    let reply = server.infer("add", &add()).await;
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(
        reply.json(),
        json!({
            "id": "7", "model_name": "add", "model_version": "1",
            "outputs": [{"name": "sum", "datatype": "FP32", "shape": [1, 3],
                         "data": [1.5, 2.5, 3.5]}],
        })
    );
}

#[tokio::test]
async fn binary_and_json_inputs_come_in_any_order() {
    let server = Server::new();
    let request = json!({
        "parameters": {"binary_data_output": true},
        "inputs": [
            {"name": "x", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}},
            {"name": "y", "datatype": "INT8", "shape": [2], "data": [-1, 1]},
            {"name": "z", "datatype": "BYTES", "shape": [2],
             "parameters": {"binary_data_size": 11}},
        ],
    });
    let strings = b"\x02\0\0\0ab\x01\0\0\0c";
    let reply = server.infer_binary("echo", &request, &[&[1, 2, 3, 4][..], &strings[..]]).await;
    assert_eq!(reply.header("content-type"), "application/octet-stream");
    let (json, tensors) = reply.split();
    let sizes: Vec<_> = json["outputs"].as_array().unwrap().iter().collect();
    let size = |index: usize| sizes[index]["parameters"]["binary_data_size"].as_u64().unwrap();
    assert_eq!([size(0), size(1), size(2)], [4, 2, 11]);
    assert_eq!(tensors, [&[1u8, 2, 3, 4, 255, 1][..], &strings[..]].concat());
    assert!(json.get("id").is_none());
}

#[tokio::test]
async fn outputs_are_chosen_with_their_form() {
    let server = Server::new();
    let mut request = json!({
        "inputs": [
            {"name": "x", "datatype": "INT32", "shape": [2], "data": [5, 6]},
            {"name": "y", "datatype": "BYTES", "shape": [1], "data": ["ü"]},
        ],
        "outputs": [{"name": "y"}, {"name": "x", "parameters": {"binary_data": true}}],
    });
    let (json, tensors) = {
        let reply = server.infer("echo", &request).await;
        let (json, tensors) = reply.split();
        (json, tensors.to_vec())
    };
    assert_eq!(json["outputs"][0]["data"], json!(["ü"]));
    assert_eq!(json["outputs"][1]["parameters"], json!({"binary_data_size": 8}));
    assert_eq!(tensors, [5, 0, 0, 0, 6, 0, 0, 0]);

    request["outputs"] = json!([{"name": "x", "parameters": {"binary_data": false}}]);
    let json = server.infer("echo", &request).await.json();
    assert_eq!(
        json["outputs"],
        json!([{"name": "x", "datatype": "INT32", "shape": [2],
                                        "data": [5, 6]}])
    );
}

#[tokio::test]
async fn classes_come_in_place_of_scores() {
    let server = Server::new();
    let mut request = add();
    request["outputs"] = json!([{"name": "sum", "parameters": {"classification": 2}}]);
    let json = server.infer("add", &request).await.json();
    let expected = json!({"name": "sum", "datatype": "BYTES", "shape": [1, 2],
                          "data": ["3.500000:2", "2.500000:1:one"]});
    assert_eq!(json["outputs"][0], expected);
}

#[tokio::test]
async fn a_body_without_json_is_the_one_input() {
    let server = Server::new();
    let headers = [("Inference-Header-Content-Length", "0")];
    let body = f32_bytes(&[1.0, 2.0, 3.0]);
    let path = "/v2/models/one/infer";
    let reply = server.call(Method::POST, path, &headers, body.clone()).await;
    let (json, tensors) = reply.split();
    assert_eq!(json["outputs"][0]["shape"], json!([1, 3]));
    assert_eq!(tensors, body);
    let short = server.call(Method::POST, path, &headers, vec![0; 8]).await;
    assert!(short.error().contains("needs 12 bytes, got 8"), "{}", short.error());
    // Where more is open than the length can tell, the batch has one row.
    let path = "/v2/models/open/infer";
    let reply = server.call(Method::POST, path, &headers, f32_bytes(&[0.0; 6])).await;
    assert_eq!(reply.split().0["outputs"][0]["shape"], json!([1, 2, 3]));
    let two = server.call(Method::POST, "/v2/models/add/infer", &headers, body).await;
    assert!(two.error().contains("one input"));
}

#[tokio::test]
async fn an_element_without_dimensions_may_come_with_one() {
    let server = Server::new();
    for shape in [json!([2]), json!([2, 1])] {
        let input = json!({"name": "x", "datatype": "FP32", "shape": shape, "data": [1, 2]});
        let json = server.infer("scalar", &json!({"inputs": [input]})).await.json();
        assert_eq!(json["outputs"][0]["shape"], json!([2]));
    }
}

#[tokio::test]
async fn timeout_trace_and_version_reach_the_service() {
    let server = Server::new();
    let mut request = add();
    request["parameters"] = json!({"timeout": 2500, "priority": 1, "mine": "own"});
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let reply = server
        .call(
            Method::POST,
            "/v2/models/add/versions/1/infer",
            &[("traceparent", traceparent)],
            request.to_string().into_bytes(),
        )
        .await;
    assert_eq!(reply.status, StatusCode::OK);
    let asked = server.fake.asked.lock().unwrap()[0].clone();
    assert_eq!(asked.timeout, Some(Duration::from_micros(2500)));
    assert_eq!(asked.trace.unwrap().span[0], 0xb7);
    assert_eq!(asked.version, "1");
}

#[tokio::test]
async fn exits_and_degraded_answers_are_told() {
    let server = Server::new();
    let mut request = add();
    request["id"] = json!("exit");
    let json = server.infer("add", &request).await.json();
    assert_eq!(json["parameters"], json!({"exit": "early"}));
    request["id"] = json!("exits");
    let json = server.infer("add", &request).await.json();
    let expected = json!({"exits": "early,", "degraded": true, "degraded_reason": "in a hurry"});
    assert_eq!(json["parameters"], expected);
    assert_eq!(json["id"], "exits");
}

#[tokio::test]
async fn a_refusal_says_when_to_come_back() {
    let server = Server::new();
    let mut request = add();
    request["id"] = json!("full");
    let reply = server.infer("add", &request).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(reply.header("retry-after"), "2");
    assert_eq!(reply.json(), json!({"error": "no room", "id": "full"}));
    request["id"] = json!("late");
    let reply = server.infer("add", &request).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(reply.headers.get("retry-after").is_none());
}

#[tokio::test]
async fn the_repository_is_listed_loaded_and_unloaded() {
    let server = Server::new();
    let index = server.post("/v2/repository/index", "").await.json();
    let late = index.as_array().unwrap().iter().find(|task| task["name"] == "late").unwrap();
    let expected =
        json!({"name": "late", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"});
    assert_eq!(*late, expected);
    let ready = server.post("/v2/repository/index", "{\"ready\": true}").await.json();
    assert!(ready.as_array().unwrap().iter().all(|task| task["state"] == "READY"));

    let loaded = server.post("/v2/repository/models/late/load", "{}").await;
    assert_eq!((loaded.status, loaded.body.len()), (StatusCode::OK, 0));
    assert_eq!(server.get("/v2/models/late/ready").await.status, StatusCode::OK);
    let body = "{\"parameters\": {\"unload_dependents\": false}}";
    let unloaded = server.post("/v2/repository/models/late/unload", body).await;
    assert_eq!(unloaded.status, StatusCode::OK);
    assert_eq!(server.get("/v2/models/late/ready").await.status, StatusCode::BAD_REQUEST);

    let unknown = server.post("/v2/repository/models/nobody/load", "").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert!(unknown.error().contains("nobody"));
    let nobody = server.post("/v2/repository/models/nobody/unload", "").await;
    assert_eq!(nobody.status, StatusCode::OK);
    let body = json!({"parameters": {"config": "{}", "file:1/model.onnx": "AQID", "mine": 1}});
    let loaded = server.post("/v2/repository/models/late/load", body.to_string()).await;
    assert_eq!(loaded.status, StatusCode::OK);
    let overrides = server.fake.overrides.lock().unwrap().clone();
    assert_eq!(overrides.config.as_deref(), Some("{}"));
    assert_eq!(overrides.files["1/model.onnx"], [1, 2, 3][..]);
    for (name, value) in [("config", json!({})), ("file:1/model.onnx", json!("!"))] {
        let body = json!({"parameters": {name: value}});
        let refused = server.post("/v2/repository/models/late/load", body.to_string()).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.error().contains(name), "{}", refused.error());
    }
    let broken = server.post("/v2/repository/index", "{ready").await;
    assert!(broken.error().contains("line 1 column 2"), "{}", broken.error());
}

#[tokio::test]
async fn what_is_not_there_says_so_in_json() {
    let server = Server::new();
    for (method, path, status) in [
        (Method::GET, "/", 404),
        (Method::GET, "/v1/models", 404),
        (Method::GET, "/v2/models/nobody", 404),
        (Method::POST, "/v2/models/nobody/infer", 404),
        (Method::GET, "/v2/models/add/infer", 405),
        (Method::POST, "/v2/health/live", 405),
        (Method::DELETE, "/v2/models/add", 405),
        (Method::GET, "/v2/models/nobody/trace/setting", 404),
        (Method::POST, "/v2/cudasharedmemory/region/r/register", 400),
        (Method::GET, "/v2/cudasharedmemory/region/r/status", 404),
        (Method::GET, "/v2/models/%FF", 400),
    ] {
        let reply = server.call(method.clone(), path, &[], Vec::new()).await;
        assert_eq!(reply.status.as_u16(), status, "{method} {path}");
        assert!(!reply.error().is_empty(), "{method} {path}");
    }
    assert_eq!(server.get("/v2/cudasharedmemory/status").await.json(), json!([]));
    assert_eq!(server.post("/v2/cudasharedmemory/unregister", "").await.status, StatusCode::OK);
}

#[tokio::test]
async fn numbers_that_json_has_no_words_for_are_strings() {
    let server = Server::new();
    for data in ["[NaN, Infinity, -Infinity]", r#"["NaN", "Infinity", "-Infinity"]"#] {
        let request = format!(
            r#"{{"inputs": [
                {{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": {data}}}]}}"#
        );
        let reply = server.post("/v2/models/one/infer", request).await;
        // Read by a strict reader.
        assert_eq!(reply.json()["outputs"][0]["data"], json!(["NaN", "Infinity", "-Infinity"]));
    }
    let request = json!({
        "parameters": {"binary_data_output": true},
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3],
                    "data": ["NaN", "Infinity", "-Infinity"]}],
    });
    let reply = server.infer("one", &request).await;
    assert_eq!(reply.split().1, f32_bytes(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]));
}

//! The REST interface, request by request; every answer is held against the OpenAPI document.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::fakes::Setup;
use super::schema::{check, conforms, follow};

/// Sends a request; the answer is as the OpenAPI document says.
async fn call(setup: &Setup, method: &str, path: &str, body: impl Into<Body>) -> (u16, Value) {
    call_with(setup, method, path, "application/json; charset=utf-8", body).await
}

/// The same, with a body that says something else of itself.
async fn call_with(
    setup: &Setup,
    method: &str,
    path: &str,
    media_type: &str,
    body: impl Into<Body>,
) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, media_type);
    let request = request.body(body.into()).unwrap();
    let response = setup.router().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let value: Value = serde_json::from_slice(&bytes).unwrap();
    is_documented(method, path, status, &value);
    (status, value)
}

fn is_documented(method: &str, path: &str, status: u16, value: &Value) {
    let document = crate::openapi_document();
    let fits = |template: &str| {
        let (mut parts, mut given) = (template.split('/'), path.split('/'));
        parts
            .by_ref()
            .zip(given.by_ref())
            .all(|(part, given)| part == given || (part.starts_with('{') && !given.is_empty()))
            && template.split('/').count() == path.split('/').count()
    };
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.iter().find(|(template, _)| fits(template)).map(|(_, value)| value);
    let Some(operation) = operations.and_then(|found| found.get(method.to_lowercase())) else {
        assert_eq!(status, if operations.is_some() { 405 } else { 404 }, "{method} {path}");
        conforms("Error", value).unwrap();
        return;
    };
    let response = &operation["responses"][status.to_string()];
    assert!(response.is_object(), "{method} {path} must not answer {status}: {value}");
    let response = match response.get("$ref") {
        Some(reference) => follow(&document, reference),
        None => response,
    };
    let schema = &response["content"]["application/json"]["schema"];
    check(&document, schema, value).unwrap_or_else(|error| panic!("{method} {path}: {error}"));
}

async fn put(setup: &Setup, path: &str, body: Value) -> (u16, Value) {
    call(setup, "PUT", path, body.to_string()).await
}

async fn get(setup: &Setup, path: &str) -> (u16, Value) {
    call(setup, "GET", path, Body::empty()).await
}

/// The status and the message of an answer that is an error.
fn error((status, value): (u16, Value)) -> (u16, String) {
    (status, value["error"].as_str().unwrap().to_owned())
}

fn system() -> Value {
    json!({
        "blocks": ["block1", "block2", "block3", "spare"],
        "tasks": {
            "task1": ["block1", "block2"],
            "task2": ["block1", "block3"],
            "early": {"model": "early", "exits": {"exit_1": 0.25}}
        }
    })
}

#[tokio::test]
async fn a_system_is_put_and_read_back() {
    let setup = Setup::new();
    assert_eq!(get(&setup, "/v1/system").await, (200, json!({"tasks": {}, "fusion": true})));
    let (status, changed) = put(&setup, "/v1/system", system()).await;
    assert_eq!(status, 200, "{changed}");
    assert_eq!(changed["unused"], json!(["spare"]));
    assert_eq!(changed["tasks"], json!({"early": "1", "task1": "1", "task2": "1"}));
    assert_eq!(changed["started"].as_array().unwrap().len(), 6);
    let (_, read) = get(&setup, "/v1/system").await;
    assert_eq!(read["tasks"]["task1"], json!({"path": ["block1", "block2"]}));
    // What was read can be put; BlockFlow's clients use POST.
    let (status, again) = call(&setup, "POST", "/v1/system", read.to_string()).await;
    assert_eq!(status, 200);
    assert_eq!((&again["started"], &again["stopped"]), (&json!([]), &json!([])));
    assert_eq!(again["tasks"]["task1"], "1");
}

#[tokio::test]
async fn a_change_that_does_not_say_that_it_is_json_is_refused() {
    let setup = Setup::new();
    for media_type in ["text/plain", "application/x-www-form-urlencoded", "", "text/json;x"] {
        for (method, path) in
            [("PUT", "/v1/system"), ("POST", "/v1/system"), ("PUT", "/v1/tasks/a")]
        {
            let body = system().to_string();
            let (status, message) = error(call_with(&setup, method, path, media_type, body).await);
            assert_eq!(status, 415, "{message}");
            assert!(message.contains("expected application/json"), "{message}");
        }
    }
    assert!(setup.site.versions().is_empty());
}

#[tokio::test]
async fn fused_blocks_are_told() {
    let setup = Setup::new();
    let one = json!({"tasks": {"one": ["block1", "block2"]}});
    let (_, changed) = put(&setup, "/v1/system", one).await;
    let fused = changed["fused"].as_array().unwrap();
    assert_eq!(fused.len(), 1);
    assert_eq!(fused[0]["unit"], changed["started"][0]);
    assert_eq!(fused[0]["blocks"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_what_would() {
    let setup = Setup::new();
    for (body, expected) in [
        ("{\"tasks\": {", "line 1 column 11"),
        ("", "line 1 column 0"),
        ("{\"tasks\": {\"a\": []}}", "tasks.a: the path has no steps"),
        ("{\"tasks\": {\"a\": [\"x\"], \"a\": [\"y\"]}}", "field \"a\" is given twice"),
        ("{\"tasks\": {}, \"task\": 1}", "task: unknown field"),
    ] {
        let (status, message) = error(call(&setup, "PUT", "/v1/system", body).await);
        assert_eq!(status, 400);
        assert!(message.contains(expected), "{message}");
    }
    let missing = json!({"tasks": {"a": ["block1", "none"]}});
    let (status, message) = error(put(&setup, "/v1/system", missing).await);
    assert_eq!((status, message.as_str()), (404, "task \"a\": there is no model \"none\""));
    let (status, _) = put(&setup, "/v1/tasks/a%2Fb", json!(["block1"])).await;
    assert_eq!(status, 400);
    setup.site.refuses.store(true, Ordering::SeqCst);
    assert_eq!(
        error(put(&setup, "/v1/system", system()).await),
        (503, "there is no room".to_owned())
    );
    setup.site.refuses.store(false, Ordering::SeqCst);
    setup.store.is_broken.store(true, Ordering::SeqCst);
    assert_eq!(error(put(&setup, "/v1/system", system()).await).0, 500);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let setup = Setup::new();
    let large = " ".repeat((1 << 20) + 1);
    let (status, message) = error(call(&setup, "PUT", "/v1/system", large).await);
    assert_eq!(status, 413);
    assert!(message.contains("1048576"), "{message}");
    let largest = format!("{{\"tasks\": {{}}}}{}", " ".repeat((1 << 20) - 13));
    assert_eq!(call(&setup, "PUT", "/v1/system", largest).await.0, 200);
}

#[tokio::test]
async fn what_is_not_there_is_answered_as_json() {
    let setup = Setup::new();
    for path in ["/", "/v1", "/v1/none", "/v1/tasks/", "/v1/tasks/a/b", "/v1/system/"] {
        let (status, message) = error(get(&setup, path).await);
        assert_eq!(status, 404);
        assert!(message.contains(path), "{message}");
    }
    for (method, path) in
        [("DELETE", "/v1/system"), ("GET", "/v1/units/a/ping"), ("PATCH", "/v1/tasks/a")]
    {
        let (status, message) = error(call(&setup, method, path, Body::empty()).await);
        assert_eq!(status, 405);
        assert!(message.contains(method), "{message}");
    }
    for path in
        ["/v1/tasks/none", "/v1/tasks/none/exits", "/v1/tasks/%ff", "/v1/units/none", "/v1/units/-"]
    {
        assert_eq!(get(&setup, path).await.0, 404, "{path}");
    }
    assert_eq!(call(&setup, "DELETE", "/v1/tasks/none", Body::empty()).await.0, 404);
    for action in ["ping", "stop", "start"] {
        let path = format!("/v1/units/none/{action}");
        assert_eq!(call(&setup, "POST", &path, Body::empty()).await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn tasks_are_listed_put_and_deleted() {
    let setup = Setup::new();
    put(&setup, "/v1/system", system()).await;
    let (_, tasks) = get(&setup, "/v1/tasks").await;
    assert_eq!(tasks["tasks"].as_array().unwrap().len(), 3);
    let (_, task) = get(&setup, "/v1/tasks/early").await;
    assert_eq!((&task["state"], &task["version"]), (&json!("ready"), &json!("1")));
    assert_eq!(task["definition"], json!({"model": "early", "exits": {"exit_1": 0.25}}));
    let (status, changed) = put(&setup, "/v1/tasks/early", json!(["early", "block2"])).await;
    assert_eq!((status, &changed["tasks"]["early"]), (200, &json!("2")));
    let (status, changed) = call(&setup, "DELETE", "/v1/tasks/early", Body::empty()).await;
    assert_eq!((status, &changed["tasks"]), (200, &json!({})));
    assert_eq!(call(&setup, "DELETE", "/v1/tasks/early", Body::empty()).await.0, 404);
    assert_eq!(error(put(&setup, "/v1/tasks/new", json!({"model": 1})).await).0, 400);
}

#[tokio::test]
async fn thresholds_are_read_and_set() {
    let setup = Setup::new();
    put(&setup, "/v1/system", system()).await;
    let (_, exits) = get(&setup, "/v1/tasks/early/exits").await;
    assert_eq!(exits, json!({"exits": [{"name": "exit_1", "threshold": 0.25, "taken": 0}]}));
    let path = "/v1/tasks/early/exits/exit_1";
    let (status, exit) = put(&setup, path, json!({"threshold": 0.75})).await;
    assert_eq!((status, exit), (200, json!({"name": "exit_1", "threshold": 0.75, "taken": 0})));
    let wrong = error(put(&setup, path, json!({"threshold": 1.5})).await);
    assert_eq!(wrong, (400, "threshold: threshold 1.5, expected 0 to 1".to_owned()));
    let value = json!({"threshold": 0.5});
    let missing = error(put(&setup, "/v1/tasks/early/exits/exit_2", value.clone()).await);
    assert_eq!(missing.0, 404);
    assert!(missing.1.contains("expected one of: exit_1"), "{}", missing.1);
    assert_eq!(put(&setup, "/v1/tasks/none/exits/exit_1", value).await.0, 404);
}

#[tokio::test]
async fn units_are_found_by_name_or_the_beginning_of_a_hash() {
    let setup = Setup::new();
    put(&setup, "/v1/system", json!({"tasks": {"a": ["block1"]}})).await;
    let (_, units) = get(&setup, "/v1/units").await;
    let name = units["units"][0]["name"].as_str().unwrap();
    let hash = units["units"][0]["blocks"][0].as_str().unwrap();
    for part in [name, hash, &name[..4], &hash[..6]] {
        let (status, unit) = get(&setup, &format!("/v1/units/{part}")).await;
        assert_eq!((status, &unit), (200, &units["units"][0]));
    }
    let ping = format!("/v1/units/{}/ping", &hash[..6]);
    let (_, pinged) = call(&setup, "POST", &ping, Body::empty()).await;
    assert_eq!(pinged["answers"][0]["instance"], format!("{name}.0"));
    for (action, state) in [("stop", "stopped"), ("start", "up")] {
        let path = format!("/v1/units/{name}/{action}");
        let (status, unit) = call(&setup, "POST", &path, Body::empty()).await;
        assert_eq!((status, &unit["instances"][0]["state"]), (200, &json!(state)));
    }
}

#[tokio::test]
async fn a_change_without_a_document_says_that_it_is_json_all_the_same() {
    let setup = Setup::new();
    put(&setup, "/v1/system", json!({"tasks": {"a": ["block1"]}})).await;
    let (_, units) = get(&setup, "/v1/units").await;
    let name = units["units"][0]["name"].as_str().unwrap();
    for action in ["ping", "stop", "start"] {
        let path = format!("/v1/units/{name}/{action}");
        for media_type in ["text/plain", "application/x-www-form-urlencoded", "", "json"] {
            let answer = call_with(&setup, "POST", &path, media_type, Body::empty()).await;
            let (status, message) = error(answer);
            assert_eq!(status, 415, "{path} {media_type}");
            assert!(message.contains("expected application/json"), "{message}");
        }
        let request = Request::builder().method("POST").uri(&path).body(Body::empty()).unwrap();
        assert_eq!(setup.router().oneshot(request).await.unwrap().status(), 415, "{path}");
    }
    let (_, after) = get(&setup, "/v1/units").await;
    assert_eq!(after["units"][0]["instances"][0]["state"], "up");
}

#[tokio::test]
async fn a_beginning_that_several_units_have_is_refused() {
    let setup = Setup::new();
    // Of so many units two begin with the same digit.
    let mut tasks = serde_json::Map::new();
    for number in 0..17 {
        let name = format!("many{number}");
        let graph = super::fakes::block(&name, 3, 4);
        setup.catalogue.0.lock().unwrap().insert(name.clone(), graph);
        tasks.insert(name.clone(), json!([name]));
    }
    put(&setup, "/v1/system", json!({"tasks": tasks})).await;
    let mut statuses = Vec::new();
    for digit in "0123456789abcdef".chars() {
        statuses.push(get(&setup, &format!("/v1/units/{digit}")).await.0);
    }
    assert!(statuses.contains(&400), "{statuses:?}");
}

#[tokio::test]
async fn events_come_as_they_happen_and_those_that_were_missed_are_counted() {
    let setup = Setup::new();
    let request = Request::builder().uri("/v1/events").body(Body::empty()).unwrap();
    let response = setup.router().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
    let mut body = response.into_body().into_data_stream();
    let send = |text: &str| setup.site.events.send(Arc::from(text)).unwrap();
    send("{\"kind\":\"a\"}");
    assert_eq!(body.next().await.unwrap().unwrap(), "data: {\"kind\":\"a\"}\n\n");
    // The channel holds two.
    for text in ["1", "2", "3", "4"] {
        send(text);
    }
    let lagged = body.next().await.unwrap().unwrap();
    assert_eq!(lagged, "data: {\"kind\":\"lagged\",\"missed\":2}\n\n");
    assert_eq!(body.next().await.unwrap().unwrap(), "data: 3\n\n");
}

#[tokio::test]
async fn the_document_describes_the_interface() {
    let setup = Setup::new();
    let (status, document) = get(&setup, "/openapi.json").await;
    assert_eq!((status, &document), (200, &crate::openapi::host_openapi_document()));
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.contains_key("/v1/units") && !paths.contains_key("/v1/nodes"));
}

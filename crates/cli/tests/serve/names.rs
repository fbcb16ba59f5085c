//! What tasks are called: as their files are, whatever the characters.

use serde_json::json;

use crate::common::tessera;
use crate::http::call;
use crate::models::{layers, row};
use crate::server::{Input, Place};

#[test]
fn a_task_is_called_as_its_file() {
    let place = Place::new();
    let names = ["模型", "50%", "my model (v2)", "größe"];
    let encoded = ["%E6%A8%A1%E5%9E%8B", "50%25", "my%20model%20(v2)", "gr%C3%B6%C3%9Fe"];
    let files: Vec<String> = names.iter().map(|name| place.model(name, &layers(&[0]))).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let server = place.serve(&files);
    for (name, encoded) in names.iter().zip(encoded) {
        let metadata = call(&server.http, "GET", &format!("/v2/models/{encoded}"), "").ok();
        assert_eq!(metadata["name"], *name);
        server.infer(encoded, &[Input::row(&row(1))]).ok();
        assert_eq!(server.task(encoded)["name"], *name);
        assert!(server.metrics().contains(&format!("model=\"{name}\"")));
    }
    // And so they are for the control plane, which takes any such name and no other.
    server.put("/v1/tasks/%E7%8C%AB", &json!({"model": "模型"})).ok();
    server.infer("%E7%8C%AB", &[Input::row(&row(1))]).ok();
    server.delete("/v1/tasks/%E7%8C%AB").ok();
    let refused = server.put("/v1/tasks/a%1B%5B31m", &json!({"model": "模型"})).refusal(400);
    assert!(refused.contains("a\\u{1b}[31m"), "{refused}");
    server.stop();
    // They are still there after a restart.
    let server = place.serve(&[]);
    server.infer(encoded[0], &[Input::row(&row(1))]).ok();
    server.stop();
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let place = Place::new();
    let file = place.model("bell\u{7}\u{1b}[2J", &layers(&[0]));
    let ran = tessera(place.path(), &["split", &file, "--repo", "other"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let ran = tessera(place.path(), &["repo", "list", "--repo", "other"]);
    assert!(ran.out.contains("bell%07%1B[2J"), "{}", ran.out);
    let ran = tessera(place.path(), &["split", &file, "--name", "a\u{1b}[2Jb", "--repo", "other"]);
    assert!(ran.err.contains("\\u{1b}[2Jb"), "{}", ran.err);
    for shown in [ran.out, ran.err] {
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
    }
}

//! What a server is started with: names of models, shapes, and models that can't be served.

use std::fs;

use crate::common::text;
use crate::models::{layers, row};
use crate::server::{Input, Place, assert_close};

#[test]
fn models_that_are_called_alike_have_the_names_of_their_folders() {
    let place = Place::new();
    let mut files = Vec::new();
    for (folder, seeds) in [("first", [0, 1]), ("second", [0, 2])] {
        let model = place.model(folder, &layers(&seeds));
        let folder = place.path().join(folder);
        fs::create_dir(&folder).unwrap();
        fs::rename(place.path().join(model), folder.join("model.onnx")).unwrap();
        files.push(text(&folder.join("model.onnx")).to_owned());
    }
    let named = format!("third={}", files[0]);
    let server = place.serve(&[&files[0], &files[1], &named]);
    let answer = |task: &str| server.infer(task, &[Input::row(&row(1))]).output("y");
    assert_close(&answer("first"), &answer("third"));
    assert_ne!(answer("first"), answer("second"));
    server.stop();
    // What would have the same name is refused before anything is made.
    let ran = place.serve_in_vain(&[&files[0], &files[0]]);
    assert!(ran.err.contains("both be called \"first\", expected NAME=FILE"), "{}", ran.err);
}

#[test]
fn a_model_that_cannot_be_served_does_not_keep_the_others_from_it() {
    let place = Place::new();
    let good = place.model("good", &layers(&[0, 1]));
    let bad = place.path().join("bad.onnx");
    fs::write(&bad, b"no model at all").unwrap();
    let server = place.serve(&[text(&bad), &good]);
    let answer = server.infer("good", &[Input::row(&row(1))]).output("y");
    assert_close(&answer, &place.run(&good, &[Input::row(&row(1))], &[])["y"]);
    assert_eq!(server.get("/v1/tasks")["tasks"].as_array().unwrap().len(), 1);
    server.stop();
    let errors = place.errors();
    let is_named = errors.contains("a model is not served") && errors.contains("bad.onnx");
    assert!(is_named, "{errors}");
    let ran = place.serve_in_vain(&[text(&bad)]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("bad.onnx: not an ONNX model"), "{}", ran.err);
}

#[test]
fn a_shape_can_be_of_one_model_or_of_all_that_have_the_input() {
    let place = Place::new();
    let (first, second) = (place.model("a", &layers(&[0])), place.model("b", &layers(&[1])));
    let width = row(0).len();
    let server = place.serve(&[&first, &second, "--shape", &format!("b:x=2,{width}")]);
    server.infer("a", &[Input::row(&row(1))]).ok();
    let refused = server.infer("b", &[Input::row(&row(1))]);
    assert_eq!(refused.status, 400, "{refused:?}");
    server.infer("b", &[Input::rows("x", width, &[row(1), row(2)].concat())]).ok();
    server.stop();
    let ran = place.serve_in_vain(&[&first, &second, "--shape", "c:x=2,8"]);
    assert!(ran.err.contains("--shape c:x=…: no model has such an input"), "{}", ran.err);
}

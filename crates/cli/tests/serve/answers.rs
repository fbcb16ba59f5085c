//! Answers are those of `tessera run`, however a model is cut and wherever its units run.

use serde_json::json;

use crate::http::call;
use crate::models::{
    WIDTH, difference, fork, layers, numbers, product, row, scaled, several, with_exit,
};
use crate::server::{Input, Place, assert_close, at_once};

/// Serves models of several kinds, and compares what they answer.
fn answers_are_those_of_run(arguments: &[&str], units_of_chain: usize) {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1, 2, 3]));
    let fork = place.model("fork", &fork(4, 5, 6));
    let several = place.model("several", &several());
    let models = [chain.as_str(), fork.as_str(), several.as_str()];
    let server = place.serve(&[&models[..], arguments].concat());
    assert_eq!(server.announced["tasks"].as_array().unwrap().len(), 3, "{}", server.announced);
    assert_eq!(server.path("chain").len(), units_of_chain);

    let three_rows = numbers(3 * WIDTH, 9);
    let (a, b) = (numbers(8, 1), numbers(8, 2));
    let cases = [
        ("chain", vec![Input::row(&row(1))]),
        ("chain", vec![Input::rows("x", WIDTH, &three_rows)]),
        ("fork", vec![Input::row(&row(2))]),
        ("fork", vec![Input::rows("x", WIDTH, &three_rows)]),
        ("several", vec![Input::rows("a", 8, &a), Input::rows("b", 8, &b)]),
        // Inputs have names, so that their order means nothing.
        ("several", vec![Input::rows("b", 8, &b), Input::rows("a", 8, &a)]),
    ];
    for (task, inputs) in cases {
        let expected = place.run(&format!("{task}.onnx"), &inputs, &[]);
        assert!(!expected.is_empty());
        // The first request finds out about shapes, later ones use memory again.
        for _ in 0..3 {
            let response = server.infer(task, &inputs);
            let answer = response.ok();
            assert_eq!(answer["model_name"], task);
            assert_eq!(answer["outputs"].as_array().unwrap().len(), expected.len(), "{answer}");
            for (output, values) in &expected {
                assert_close(&response.output(output), values);
            }
        }
    }
    server.stop();
}

#[test]
fn a_model_is_served_under_the_name_of_its_file_and_answers_as_run_does() {
    answers_are_those_of_run(&[], 1);
}

#[test]
fn an_input_that_has_a_value_may_be_given_or_left_out() {
    let place = Place::new();
    let scaled = place.model("scaled", &scaled());
    let left_out = place.run(&scaled, &[Input::row(&row(1))], &[]);
    let tripled: Vec<f64> = left_out["y"].iter().map(|value| value * 9.0 / 4.0).collect();
    for how in [
        &["--blocks", "1"][..],
        &["--every", "--no-fusion"],
        &["--every", "--no-fusion", "--isolation", "process"],
    ] {
        let server = place.serve(&[&[scaled.as_str()], how].concat());
        let scale = |value: f32| Input::rows("scale", 1, &[value]);
        for _ in 0..2 {
            let answer = server.infer("scaled", &[Input::row(&row(1))]);
            assert_close(&answer.output("y"), &left_out["y"]);
            let answer = server.infer("scaled", &[Input::row(&row(1)), scale(3.0)]);
            assert_close(&answer.output("y"), &tripled);
            let answer = server.infer("scaled", &[scale(2.0), Input::row(&row(1))]);
            assert_close(&answer.output("y"), &left_out["y"]);
        }
        server.infer("scaled", &[scale(2.0)]).refusal(400);
        // A step of a path has it as well, and the task then.
        let steps = json!({ "path": ["scaled", { "name": "again", "block": "scaled" }] });
        server.put("/v1/tasks/twice", &steps).ok();
        let twice = server.infer("twice", &[Input::row(&row(1))]).output("y");
        assert_eq!(server.infer("twice", &[Input::row(&row(1)), scale(2.0)]).output("y"), twice);
        let other = Input::rows("scale_2", 1, &[4.0]);
        let other = server.infer("twice", &[Input::row(&row(1)), other]).output("y");
        assert_close(&other, &twice.iter().map(|value| value * 4.0).collect::<Vec<_>>());
        server.stop();
    }
}

#[test]
fn units_in_processes_of_their_own_answer_as_run_does() {
    // Four products and four times the same activation.
    answers_are_those_of_run(&["--isolation", "process", "--every", "--no-fusion"], 8);
}

#[test]
fn a_path_that_branches_and_joins_answers_as_the_model_in_one_piece_does() {
    let place = Place::new();
    let whole = place.model("whole", &fork(4, 5, 6));
    for (name, model) in
        [("stem", product(4)), ("left", product(5)), ("right", product(6)), ("joint", difference())]
    {
        place.split(name, &model, &["--blocks", "1"]);
    }
    let input = [Input::row(&row(3))];
    let expected = &place.run(&whole, &input, &[])["y"];
    let server = place.serve(&[]);
    for (isolation, fusion) in [("thread", true), ("thread", false), ("process", false)] {
        let path = json!([
            { "name": "trunk", "block": "stem", "inputs": ["$0"] },
            { "name": "one", "block": "left", "inputs": ["trunk"] },
            { "name": "other", "block": "right", "inputs": ["trunk"] },
            { "block": "joint", "inputs": ["one", "other"] },
        ]);
        let task = json!({ "path": path, "isolation": isolation });
        let document = json!({ "fusion": fusion, "tasks": { "fork": task } });
        server.put("/v1/system", &document).ok();
        assert_eq!(server.path("fork").len(), if fusion { 1 } else { 4 });
        assert_close(&server.infer("fork", &input).output("y"), expected);
    }
    // The other way round is another answer.
    let path = json!([
        "stem",
        { "name": "one", "block": "left" },
        { "name": "other", "block": "right", "inputs": ["stem"] },
        { "block": "joint", "inputs": ["other", "one"] },
    ]);
    server.put("/v1/tasks/turned", &json!({ "path": path })).ok();
    let turned: Vec<f64> = expected.iter().map(|value| -value).collect();
    assert_close(&server.infer("turned", &input).output("y"), &turned);
    server.stop();
}

#[test]
fn siblings_share_the_block_that_they_have_in_common() {
    let place = Place::new();
    let ants = place.model("ants", &layers(&[0, 1, 2]));
    let bees = place.model("bees", &layers(&[0, 1, 9]));
    let server = place.serve(&[&ants, &bees]);
    let (path_of_ants, path_of_bees) = (server.path("ants"), server.path("bees"));
    assert_eq!((path_of_ants.len(), path_of_bees.len()), (2, 2));
    assert_eq!(path_of_ants[0], path_of_bees[0]);
    assert_ne!(path_of_ants[1], path_of_bees[1]);
    assert_eq!(server.units().len(), 3);
    let common = server.get(&format!("/v1/units/{}", path_of_ants[0]));
    assert_eq!(common["tasks"], json!(["ants", "bees"]));
    let input = [Input::row(&row(1))];
    for task in ["ants", "bees"] {
        let expected = &place.run(&format!("{task}.onnx"), &input, &[])["y"];
        assert_close(&server.infer(task, &input).output("y"), expected);
    }
    assert_eq!(server.instance(&path_of_ants[0])["requests"], 2);
    assert_eq!(server.instance(&path_of_bees[1])["requests"], 1);
    server.stop();
}

#[test]
fn a_request_that_makes_no_sense_is_refused_with_what_would() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0]));
    let server = place.serve(&[&chain]);
    let narrow = Input::rows("x", 7, &numbers(7, 1));
    let cases = [
        (vec![narrow], vec!["chain", "\"x\"", "f32[batch,64]", "f32[1,7]"]),
        (vec![], vec!["chain", "\"x\"", "f32[batch,64]"]),
        (vec![Input::rows("z", WIDTH, &row(1))], vec!["chain", "\"z\"", "x"]),
        (vec![Input::row(&row(1)), Input::row(&row(1))], vec!["\"x\"", "twice"]),
    ];
    for (inputs, words) in cases {
        let message = server.infer("chain", &inputs).refusal(400);
        for word in words {
            assert!(message.contains(word), "no {word} in: {message}");
        }
    }
    let message = server.infer("nobody", &[]).refusal(404);
    assert!(message.contains("nobody") && message.contains("chain"), "{message}");
    server.stop();
}

#[test]
fn a_batch_without_rows_has_an_answer_without_rows() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let leaving = place.model_with_exit("leaving", &with_exit(), 0.5);
    for isolation in ["thread", "process"] {
        let server = place.serve(&[&chain, &leaving, "--isolation", isolation]);
        let empty = json!({"inputs": [
            {"name": "x", "shape": [0, 8], "datatype": "FP32", "data": []},
        ]});
        let path = "/v2/models/leaving/infer";
        let answer = call(&server.http, "POST", path, &empty.to_string()).ok();
        assert_eq!(answer["outputs"][0]["shape"][0], 0, "{answer}");
        let empty = json!({"inputs": [
            {"name": "x", "shape": [0, 64], "datatype": "FP32", "data": []},
        ]});
        let answer = call(&server.http, "POST", "/v2/models/chain/infer", &empty.to_string()).ok();
        assert_eq!(answer["outputs"][0]["shape"], json!([0, 64]), "{answer}");
        assert_eq!(answer["outputs"][0]["data"], json!([]), "{answer}");
        // And among others, who are not disturbed.
        let answers = at_once(8, |number| match number % 2 {
            0 => call(&server.http, "POST", "/v2/models/chain/infer", &empty.to_string()),
            _ => server.infer("chain", &[Input::row(&row(number))]),
        });
        for answer in answers {
            answer.ok();
        }
        server.stop();
    }
}

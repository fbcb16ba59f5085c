//! Requests that are put together get the answers that they get alone.

use serde_json::{Value, json};

use crate::models::{centred_sound, every_pair, gated_by_the_batch, layers, row};
use crate::server::{Input, Place, assert_close, at_once};

/// The sum of a metric over its labels, for lines that have `label` in them.
fn sum(metrics: &str, name: &str, label: &str) -> f64 {
    let lines = metrics.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')) && line.contains(label)
    });
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[test]
fn requests_at_the_same_time_are_computed_as_one_batch() {
    const COUNT: usize = 8;
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let expected: Vec<Vec<f64>> = (0..COUNT)
        .map(|number| place.run(&chain, &[Input::row(&row(number))], &[])["y"].clone())
        .collect();
    let server = place.serve(&[&chain]);
    for isolation in ["thread", "process"] {
        let batching = json!({ "max_rows": COUNT, "max_wait_ms": 500 });
        let task = json!({ "model": "chain", "batching": batching, "isolation": isolation });
        server.put("/v1/tasks/chain", &task).ok();
        let unit = server.path("chain").remove(0);
        let answers = at_once(COUNT, |number| server.infer("chain", &[Input::row(&row(number))]));
        for (answer, expected) in answers.iter().zip(&expected) {
            assert_close(&answer.output("y"), expected);
        }
        let metrics = server.metrics();
        let name = "tessera_unit_batch_rows";
        let alone = sum(&metrics, &format!("{name}_bucket"), &format!("\"{unit}\",le=\"1\""));
        let runs = sum(&metrics, &format!("{name}_count"), &unit);
        let rows = sum(&metrics, &format!("{name}_sum"), &unit);
        assert!(alone < runs, "{alone} of {runs}");
        assert!(rows > runs, "{rows} in {runs}");
        assert_eq!(server.get(&format!("/v1/units/{unit}"))["max_batch_rows"], COUNT);
    }
    // Without it every request is computed for itself.
    server.put("/v1/tasks/chain", &json!({ "model": "chain", "batching": "off" })).ok();
    let unit = server.path("chain").remove(0);
    let answers = at_once(COUNT, |number| server.infer("chain", &[Input::row(&row(number))]));
    for (answer, expected) in answers.iter().zip(&expected) {
        assert_close(&answer.output("y"), expected);
    }
    let metrics = server.metrics();
    let name = "tessera_unit_batch_rows";
    let largest = sum(&metrics, &format!("{name}_sum"), &unit);
    let runs = sum(&metrics, &format!("{name}_count"), &unit);
    assert!((largest - runs).abs() < 1e-6, "{largest} in {runs}");
    server.stop();
}

#[test]
fn what_has_no_batch_is_not_put_together() {
    let place = Place::new();
    let pairs = place.model("pairs", &every_pair());
    let server = place.serve(&[&pairs]);
    let batching = json!({ "max_rows": 8, "max_wait_ms": 500 });
    let task = json!({ "model": "pairs", "batching": batching });
    // It may be refused, or left alone; what it may not be is wrong.
    if server.put("/v1/tasks/pairs", &task).status != 200 {
        return;
    }
    let answers = at_once(4, |number| {
        let a = [number as f32, 0.0, 0.0, 0.0];
        let inputs = [Input::rows("a", 4, &a), Input::rows("b", 4, &[1.0, 0.0, 0.0, 0.0])];
        server.infer("pairs", &inputs)
    });
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(answer.output("y"), [number as f64]);
    }
    server.stop();
}

/// A trial would find rows alike: these have an influence on each other for large values alone.
#[test]
fn rows_that_may_influence_each_other_are_never_put_together() {
    const COUNT: usize = 8;
    let place = Place::new();
    let gated = place.model("gated", &gated_by_the_batch());
    let asked = |number: usize| {
        let mut values = row(number);
        if number.is_multiple_of(2) {
            values[0] = 5.0 + number as f32 / 4.0;
        }
        values
    };
    let expected: Vec<Vec<f64>> = (0..COUNT)
        .map(|number| place.run(&gated, &[Input::row(&asked(number))], &[])["y"].clone())
        .collect();
    let server = place.serve(&[&gated]);
    let wanted = json!({ "max_rows": COUNT, "max_wait_ms": 100 });
    for batching in [json!("auto"), wanted] {
        let task = json!({ "model": "gated", "batching": batching });
        let changed: Value = server.put("/v1/tasks/gated", &task).ok();
        let warnings = changed["warnings"].as_array().unwrap();
        assert_eq!(warnings.len(), usize::from(batching != "auto"), "{changed}");
        for warning in warnings {
            let warning = warning.as_str().unwrap();
            assert!(warning.contains("node \"highest\" (ReduceMax) joins all rows"), "{warning}");
        }
        for _ in 0..5 {
            let answers =
                at_once(COUNT, |number| server.infer("gated", &[Input::row(&asked(number))]));
            for (answer, expected) in answers.iter().zip(&expected) {
                assert_close(&answer.output("y"), expected);
            }
        }
        let unit = server.path("gated").remove(0);
        assert_eq!(server.get(&format!("/v1/units/{unit}"))["max_batch_rows"], Value::Null);
    }
    assert!(place.errors().contains("joins all rows"), "{}", place.errors());
    server.stop();
}

#[test]
fn an_open_dimension_that_is_no_batch_has_no_most_rows() {
    let place = Place::new();
    let sound = place.model("sound", &centred_sound());
    let server = place.serve(&[&sound]);
    let samples: Vec<f32> = (0..300).map(|index| index as f32).collect();
    let answer = server.infer("sound", &[Input::rows("x", 1, &samples)]);
    let expected: Vec<f64> = samples.iter().map(|value| f64::from(*value) - 149.5).collect();
    assert_close(&answer.output("y"), &expected);
    server.stop();
}

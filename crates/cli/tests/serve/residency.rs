//! Residency: more models than there is memory for. What is asked for comes, what is not leaves,
//! and clients only infer.

use serde_json::{Value, json};
use tessera_core::{DType, Dim};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::onnx::ModelProto;

use crate::models::{numbers, row};
use crate::server::{Client, Input, Place, Server, assert_close, at_once, signal, wait_until};

/// Elements between the two layers: weights of 2.3 MB.
const HIDDEN: usize = 8192;
const WIDTH: usize = crate::models::WIDTH;
/// Bytes of the weights of a model.
const MODEL_BYTES: usize = (WIDTH * HIDDEN + HIDDEN * 8) * 4;

/// Two layers with weights of their own.
fn two_layers(seed: usize) -> ModelProto {
    let mut graph = GraphBuilder::new("two layers");
    let rows_of = |width| [Dim::Symbol("batch".to_owned()), Dim::Fixed(width)];
    let x = graph.add_input("x", DType::F32, rows_of(WIDTH));
    let first = graph.add_weight("a", &[WIDTH, HIDDEN], numbers(WIDTH * HIDDEN, seed));
    let second = graph.add_weight("b", &[HIDDEN, 8], numbers(HIDDEN * 8, seed + 1));
    let hidden = graph.add_node("MatMul", &[&x, &first], []);
    let hidden = graph.add_node("Tanh", &[&hidden], []);
    graph.add_node_into("second", "MatMul", &[&hidden, &second], &["y"], []);
    graph.add_typed_output("y", DType::F32, rows_of(8));
    graph.build_model()
}

/// What it computes of a row.
fn expected_output(seed: usize, row: &[f32]) -> Vec<f64> {
    let (first, second) = (numbers(WIDTH * HIDDEN, seed), numbers(HIDDEN * 8, seed + 1));
    let mut output = vec![0.0; 8];
    for unit in 0..HIDDEN {
        let sum: f64 = row
            .iter()
            .enumerate()
            .map(|(from, value)| f64::from(*value) * f64::from(first[from * HIDDEN + unit]))
            .sum();
        for (to, output) in output.iter_mut().enumerate() {
            *output += sum.tanh() * f64::from(second[unit * 8 + to]);
        }
    }
    output
}

/// Models in the files of a place, and what each computes of the same row.
fn models(place: &Place, count: usize) -> (Vec<String>, Vec<Vec<f64>>) {
    let row = row(3);
    let one = |number: usize| {
        let seed = 10 * number + 1;
        (place.model(&format!("m{number}"), &two_layers(seed)), expected_output(seed, &row))
    };
    (0..count).map(one).unzip()
}

/// Bytes that so many models take, and a little.
fn memory_of(models: usize) -> usize {
    models * MODEL_BYTES + 4096
}

/// Serves models within the memory of some of them.
fn serve_within<'a>(
    place: &'a Place,
    files: &[String],
    models: usize,
    more: &[&str],
) -> Server<'a> {
    let budget = memory_of(models).to_string();
    let mut arguments: Vec<&str> = files.iter().map(String::as_str).collect();
    arguments.extend(["--host-memory", &budget, "--no-batching"]);
    arguments.extend(more);
    place.serve(&arguments)
}

/// The value of a metric, summed over its series.
fn metric(client: &Client, name: &str) -> f64 {
    let metrics = client.metrics();
    let lines = metrics
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Where the weights of each unit's instance are.
fn places(client: &Client) -> Vec<Value> {
    let units = client.get("/v1/units");
    let units = units["units"].as_array().unwrap().iter();
    units.map(|unit| unit["instances"][0]["weights"]["place"].clone()).collect()
}

/// Asks at random, several at a time, and compares every answer.
fn ask_at_random(client: &Client, expected: &[Vec<f64>], count: usize) {
    let input = row(3);
    at_once(4, |client_number| {
        let mut random = 17 + client_number;
        for _ in 0..count {
            random = (random * 1_103_515_245 + 12_345) % (1 << 31);
            let number = (random >> 8) % expected.len();
            let response = client.infer(&format!("m{number}"), &[Input::row(&input)]);
            assert_close(&response.output("y"), &expected[number]);
        }
    });
}

#[test]
fn fifty_models_are_served_in_the_memory_of_ten() {
    let place = Place::new();
    let (files, expected) = models(&place, 50);
    let server = serve_within(&place, &files, 10, &[]);
    ask_at_random(&server, &expected, 60);
    let used = metric(&server, "tessera_weight_memory_used_bytes");
    assert!(used <= memory_of(10) as f64, "{used}");
    assert!(used >= 9.0 * MODEL_BYTES as f64, "{used}");
    let [loads, evictions, uses] = ["loads", "evictions", "uses"]
        .map(|what| metric(&server, &format!("tessera_unit_weight_{what}_total")));
    assert!(loads > 100.0 && evictions >= loads - 10.0 && uses > loads, "{loads} {evictions}");
    let places = places(&server);
    let count = |place: &str| places.iter().filter(|&it| it == place).count();
    assert_eq!((count("memory"), count("disk")), (10, 40), "{places:?}");
    server.stop();
}

#[test]
fn processes_bring_their_weights_back_also_after_they_were_killed() {
    let place = Place::new();
    let (files, expected) = models(&place, 8);
    let server = serve_within(&place, &files, 3, &["--isolation", "process"]);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_at_random(&server, &expected, 30));
        for number in 0..4 {
            std::thread::sleep(std::time::Duration::from_millis(300));
            let unit = &server.path(&format!("m{number}"))[0];
            if let Some(process) = server.instance(unit)["process"].as_u64() {
                signal("KILL", process);
            }
        }
        asking.join().unwrap();
    });
    ask_at_random(&server, &expected, 5);
    assert!(metric(&server, "tessera_unit_weight_evictions_total") > 8.0);
    let used = metric(&server, "tessera_weight_memory_used_bytes");
    assert!(used <= memory_of(3) as f64, "{used}");
    server.stop();
}

#[test]
fn tasks_say_where_their_weights_are_to_be() {
    let place = Place::new();
    let (files, expected) = models(&place, 4);
    let server = serve_within(&place, &files, 2, &[]);
    let wrong = server.put("/v1/tasks/m0", &json!({ "model": "m0", "residency": "gpu" }));
    let refusal = wrong.refusal(400);
    assert!(refusal.contains("residency") && refusal.contains("pinned"), "{refusal}");
    let place_of = |task: &str| {
        let unit = &server.path(task)[0];
        server.instance(unit)["weights"]["place"].clone()
    };
    let input = [Input::row(&row(3))];
    let ask = |number: usize| {
        let answer = server.infer(&format!("m{number}"), &input);
        assert_close(&answer.output("y"), &expected[number]);
    };
    server.put("/v1/tasks/m0", &json!({ "model": "m0", "residency": "pinned" })).ok();
    server.put("/v1/tasks/m1", &json!({ "model": "m1", "residency": "on-demand" })).ok();
    for number in [0, 1, 2, 3, 2, 3, 1] {
        ask(number);
    }
    assert_eq!(place_of("m0"), "memory");
    assert_eq!(place_of("m1"), "memory");
    // Whose weights are wanted on demand lets go of them by itself.
    wait_until("they leave", || place_of("m1") == "disk");
    assert_eq!(place_of("m0"), "memory");
    ask(1);
    server.stop();
}

#[test]
fn a_model_larger_than_all_memory_for_weights_answers() {
    let place = Place::new();
    let (files, expected) = models(&place, 2);
    let budget = (MODEL_BYTES / 2).to_string();
    for isolation in ["thread", "process"] {
        let (first, second) = (files[0].as_str(), files[1].as_str());
        let how = ["--host-memory", &budget, "--isolation", isolation, "--eviction"];
        let server = place.serve(&[&[first, second], &how[..], &["least-recently-used"]].concat());
        ask_at_random(&server, &expected, 3);
        server.stop();
    }
}

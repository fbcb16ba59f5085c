//! Blocks of a cluster that travel from node to node.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cluster::{join_address, start_controller, start_node};
use crate::common::listing;
use crate::models::{layers, row, wide, wide_output};
use crate::server::{Input, Place, Server, assert_close, wait_until};

/// The weights in a repository, without folders.
fn weights_in(repository: &Path) -> Vec<PathBuf> {
    let folder = repository.join("weights");
    let files = listing(&folder).into_iter().filter(|(_, bytes)| *bytes > 0);
    files.map(|(path, _)| folder.join(path)).collect()
}

/// Flips a bit of a file that nobody writes to.
fn flip_bit(file: &Path, place: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[place] ^= 1;
    fs::remove_file(file).unwrap();
    fs::write(file, bytes).unwrap();
}

fn run_at(controller: &Server<'_>, task: &str, model: &str, node: &str) {
    controller.put(&format!("/v1/tasks/{task}"), &json!({ "model": model, "node": node })).ok();
}

#[test]
fn a_node_gets_blocks_from_another_where_the_controller_lacks_their_weights() {
    let place = Place::new();
    place.split("m", &layers(&[1, 2, 3]), &["--blocks", "3"]);
    let controller = start_controller(&place, &[]);
    let first = start_node(&place, &controller, "first");
    let second = start_node(&place, &controller, "second");
    run_at(&controller, "m", "m", "first");
    let weights = place.repository().join("weights");
    fs::rename(&weights, place.path().join("elsewhere")).unwrap();
    run_at(&controller, "copy", "m", "second");
    let input = [Input::row(&row(1))];
    let expected = first.infer("m", &input).output("y");
    assert_close(&second.infer("copy", &input).output("y"), &expected);
    assert_eq!(weights_in(&place.path().join("second")).len(), 3);
    assert!(!weights.exists());
    // A node that was started again says what it has, also where it runs nothing of it.
    controller.delete("/v1/tasks/m").ok();
    controller.delete("/v1/tasks/copy").ok();
    drop(second);
    let address = join_address(&controller);
    let second = crate::cluster::restart_node(&place, &address, "second");
    wait_until("it is back", || crate::cluster::node_state(&controller, "second") == "attached");
    drop(first);
    let third = start_node(&place, &controller, "third");
    run_at(&controller, "m", "m", "third");
    assert_close(&third.infer("m", &input).output("y"), &expected);
    drop(second);
    // And what nobody has is said to be so.
    let fourth = start_node(&place, &controller, "fourth");
    drop(third);
    wait_until("it is noticed", || crate::cluster::node_state(&controller, "third") == "away");
    let refused = controller.put("/v1/tasks/more", &json!({ "model": "m", "node": "fourth" }));
    let message = refused.refusal(500);
    assert!(message.contains("can't be fetched: the controller: weight"), "{message}");
    drop(fourth);
}

#[test]
fn a_flipped_bit_at_a_peer_is_refused_and_the_rest_comes_from_the_controller() {
    let place = Place::new();
    place.split("m", &wide(), &["--blocks", "1"]);
    let controller = start_controller(&place, &[]);
    let first = start_node(&place, &controller, "first");
    let second = start_node(&place, &controller, "second");
    run_at(&controller, "m", "m", "first");
    let files = weights_in(&place.path().join("first"));
    let [file] = &files[..] else { panic!("{files:?}") };
    flip_bit(file, 2_500_000);
    run_at(&controller, "copy", "m", "second");
    let values: Vec<f32> = (0..1024).map(|number| (number % 7) as f32).collect();
    let (input, expected) = ([Input::row(&values)], wide_output(&values));
    assert_close(&second.infer("copy", &input).output("y"), &expected);
    let errors = place.errors();
    assert!(errors.contains("refused") && errors.contains("node \\\"first\\\""), "{errors}");
    assert!(errors.contains("cut short or altered"), "{errors}");
    drop(first);
}

//! Profiles to plan for: that of a well-known model, and made-up ones.

use tessera_core::{Error, Random, Result};

use super::problem::{Layer, Problem};
use super::topology::server;

/// Bytes per µs over PCIe 3, beside a few µs per copy: 10.87 GB/s over all of BERT-base (table 2).
const PCIE: f64 = 11_000.0;
const COPY_US: f64 = 4.0;

/// The shapes that there are.
pub fn shapes() -> &'static [&'static str] {
    &["bert-base"]
}

/// The profile of a well-known model on the server that the DeepPlan paper measures. Seed 0 gives the
/// figures themselves; others vary the times by up to a tenth, as another GPU of the kind would.
pub fn shape(name: &str, seed: u64) -> Result<Problem> {
    let mut layers = match name {
        "bert-base" => bert_base(),
        _ => {
            let known = shapes().join(", ");
            return Err(Error::usage(format!("shape \"{name}\": expected one of {known}")));
        }
    };
    if seed != 0 {
        let mut random = Random::new(seed);
        let mut vary = |time: &mut f64| *time *= 0.9 + 0.2 * random.unit();
        for layer in &mut layers {
            vary(&mut layer.load_us);
            vary(&mut layer.in_memory_us);
            if let Some(direct) = &mut layer.direct_us {
                vary(direct);
            }
        }
    }
    let (gpus, nvlinks) = server(4);
    Ok(Problem { layers, gpus, nvlinks, target: None })
}

/// BERT-base in float32 with 384 tokens on a V100: 199 layers, 438 MB. Sizes are the model's; loading takes
/// 40 ms and running from GPU memory 9.35 ms in all, as the paper says; reading from the host takes as
/// many PCIe transfers of 64 bytes as its table 1 counts.
fn bert_base() -> Vec<Layer> {
    let events = |count: f64| count * 64.0 / PCIE;
    let embedding = |name: &str, rows: f64| weights(name, rows * 3072.0, 14.0, events(18_400.0));
    let norm = |name: String| weights(&name, 6144.0, 12.0, 220.0);
    // Two sizes of fully connected layers, 2.25 MB and 9 MB: each is read about twelve times over.
    let small = |name: String| weights(&name, 2_362_368.0, 57.0, events(446_276.0));
    let large = |name: String, bytes: f64| weights(&name, bytes, 203.0, events(1_765_787.0));
    let mut layers = vec![
        embedding("embeddings.word", 30_522.0),
        embedding("embeddings.position", 512.0),
        embedding("embeddings.token_type", 2.0),
        norm("embeddings.norm".to_owned()),
        weightless("embeddings.dropout".to_owned(), 2.0),
    ];
    for number in 0..12 {
        let name = |part: &str| format!("encoder.{number}.{part}");
        layers.extend([
            small(name("query")),
            small(name("key")),
            small(name("value")),
            weightless(name("scores"), 32.0),
            weightless(name("mask"), 8.0),
            weightless(name("softmax"), 21.0),
            weightless(name("attention_dropout"), 2.0),
            weightless(name("context"), 30.0),
            small(name("projection")),
            weightless(name("projection_dropout"), 2.0),
            norm(name("projection_norm")),
            large(name("intermediate"), 9_449_472.0),
            weightless(name("gelu"), 17.0),
            large(name("output"), 9_440_256.0),
            weightless(name("output_dropout"), 2.0),
            norm(name("output_norm")),
        ]);
    }
    layers.push(weights("pooler", 2_362_368.0, 28.0, 240.0));
    layers.push(weightless("pooler.tanh".to_owned(), 2.0));
    layers
}

fn weights(name: &str, bytes: f64, in_memory_us: f64, direct_us: f64) -> Layer {
    let load_us = COPY_US + bytes / PCIE;
    Layer { name: name.to_owned(), bytes, load_us, in_memory_us, direct_us: Some(direct_us) }
}

fn weightless(name: String, in_memory_us: f64) -> Layer {
    Layer { name, bytes: 0.0, load_us: 0.0, in_memory_us, direct_us: None }
}

/// A made-up profile for one GPU: layers of all sizes, some without weights, some that can't be read from
/// the host, most slower from there by a factor between a fraction and many of their load times.
pub fn random(layers: usize, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    // Whether loading or running takes longer is drawn once per profile, so that there are both kinds.
    let balance = 0.1 * 40f64.powf(random.unit());
    let mut draw = |number: usize| {
        let name = format!("layer{number}");
        // Sizes over three orders of magnitude.
        let bytes = (30e3 * 1000f64.powf(random.unit())).round();
        let load_us = COPY_US + bytes / PCIE;
        let in_memory_us = 2.0 + load_us * balance * random.unit();
        match random.below(10) {
            0..3 => weightless(name, in_memory_us),
            3 => Layer { name, bytes, load_us, in_memory_us, direct_us: None },
            _ => {
                let times = 0.02 * 500f64.powf(random.unit());
                let direct_us = in_memory_us + load_us * times;
                Layer { name, bytes, load_us, in_memory_us, direct_us: Some(direct_us) }
            }
        }
    };
    Problem::of((0..layers).map(&mut draw).collect())
}

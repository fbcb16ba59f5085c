//! Profiles to plan for: that of a well-known model, and made-up ones.

use tessera_core::{Error, Random, Result};

use super::problem::{ResidencyLayer, ResidencyProblem};
use super::topology::deepplan_server;

/// Bytes per µs over PCIe 3, beside a few µs per copy: 10.87 GB/s over all of BERT-base (table 2).
const PCIE: f64 = 11_000.0;
const COPY_US: f64 = 4.0;

/// The profiles that there are.
pub fn profile_names() -> &'static [&'static str] {
    &["bert-base"]
}

/// The profile of a well-known model on the server that the DeepPlan paper measures. Seed 0 gives
/// the figures themselves; others vary the times by up to a tenth, as another GPU of the kind
/// would.
pub fn named_profile(name: &str, seed: u64) -> Result<ResidencyProblem> {
    let mut layers = match name {
        "bert-base" => bert_base(),
        _ => {
            let known = profile_names().join(", ");
            return Err(Error::usage(format!("profile \"{name}\": expected one of {known}")));
        }
    };
    if seed != 0 {
        let mut random = Random::new(seed);
        let mut vary = |time: &mut f64| *time *= 0.9 + 0.2 * random.next_fraction();
        for layer in &mut layers {
            vary(&mut layer.load_us);
            vary(&mut layer.in_memory_us);
            if let Some(direct) = &mut layer.direct_us {
                vary(direct);
            }
        }
    }
    let (gpus, nvlinks) = deepplan_server(4);
    Ok(ResidencyProblem { layers, gpus, nvlinks, direct_contention: 0.0, target: None })
}

/// BERT-base in float32 with 384 tokens on a V100: 199 layers, 438 MB. Sizes are the model's;
/// loading takes 40 ms and running from GPU memory 9.35 ms in all, as the paper says; reading from
/// the host takes as many PCIe transfers of 64 bytes as its table 1 counts.
fn bert_base() -> Vec<ResidencyLayer> {
    let events = |count: f64| count * 64.0 / PCIE;
    let embedding =
        |name: &str, rows: f64| layer_with_weights(name, rows * 3072.0, 14.0, events(18_400.0));
    let norm = |name: String| layer_with_weights(&name, 6144.0, 12.0, 220.0);
    // Two sizes of fully connected layers, 2.25 MB and 9 MB: each is read about twelve times over.
    let small = |name: String| layer_with_weights(&name, 2_362_368.0, 57.0, events(446_276.0));
    let large =
        |name: String, bytes: f64| layer_with_weights(&name, bytes, 203.0, events(1_765_787.0));
    let mut layers = vec![
        embedding("embeddings.word", 30_522.0),
        embedding("embeddings.position", 512.0),
        embedding("embeddings.token_type", 2.0),
        norm("embeddings.norm".to_owned()),
        layer_without_weights("embeddings.dropout".to_owned(), 2.0),
    ];
    for number in 0..12 {
        let name = |part: &str| format!("encoder.{number}.{part}");
        layers.extend([
            small(name("query")),
            small(name("key")),
            small(name("value")),
            layer_without_weights(name("scores"), 32.0),
            layer_without_weights(name("mask"), 8.0),
            layer_without_weights(name("softmax"), 21.0),
            layer_without_weights(name("attention_dropout"), 2.0),
            layer_without_weights(name("context"), 30.0),
            small(name("projection")),
            layer_without_weights(name("projection_dropout"), 2.0),
            norm(name("projection_norm")),
            large(name("intermediate"), 9_449_472.0),
            layer_without_weights(name("gelu"), 17.0),
            large(name("output"), 9_440_256.0),
            layer_without_weights(name("output_dropout"), 2.0),
            norm(name("output_norm")),
        ]);
    }
    layers.push(layer_with_weights("pooler", 2_362_368.0, 28.0, 240.0));
    layers.push(layer_without_weights("pooler.tanh".to_owned(), 2.0));
    layers
}

fn layer_with_weights(name: &str, bytes: f64, in_memory_us: f64, direct_us: f64) -> ResidencyLayer {
    let load_us = COPY_US + bytes / PCIE;
    ResidencyLayer {
        name: name.to_owned(),
        bytes,
        load_us,
        in_memory_us,
        direct_us: Some(direct_us),
    }
}

fn layer_without_weights(name: String, in_memory_us: f64) -> ResidencyLayer {
    ResidencyLayer { name, bytes: 0.0, load_us: 0.0, in_memory_us, direct_us: None }
}

/// A made-up profile for one GPU: layers of all sizes, some without weights, some that can't be
/// read from the host, most slower from there by a factor between a fraction and many of their load
/// times.
pub fn random_residency_problem(layers: usize, seed: u64) -> ResidencyProblem {
    let mut random = Random::new(seed);
    // Whether loading or running takes longer is drawn once per profile, so that there are both
    // kinds.
    let balance = 0.1 * 40f64.powf(random.next_fraction());
    let mut draw = |number: usize| {
        let name = format!("layer{number}");
        // Sizes over three orders of magnitude.
        let bytes = (30e3 * 1000f64.powf(random.next_fraction())).round();
        let load_us = COPY_US + bytes / PCIE;
        let in_memory_us = 2.0 + load_us * balance * random.next_fraction();
        match random.next_below(10) {
            0..3 => layer_without_weights(name, in_memory_us),
            3 => ResidencyLayer { name, bytes, load_us, in_memory_us, direct_us: None },
            _ => {
                let times = 0.02 * 500f64.powf(random.next_fraction());
                let direct_us = in_memory_us + load_us * times;
                ResidencyLayer { name, bytes, load_us, in_memory_us, direct_us: Some(direct_us) }
            }
        }
    };
    ResidencyProblem::with_one_gpu((0..layers).map(&mut draw).collect())
}

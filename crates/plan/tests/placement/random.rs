//! Random problems of placement.

use tessera_core::Random;
use tessera_plan::placement::{
    MigrationCost, PlacementLayer, PlacementModel, PlacementNode, PlacementProblem,
};

/// A random problem with up to so many layers, nodes and models, whose memory is tight as often as
/// not.
pub(crate) fn random(seed: u64, models: usize, layers: usize, nodes: usize) -> PlacementProblem {
    let mut random = Random::new(seed);
    let node_count = 1 + random.next_below(nodes as u64) as usize;
    let tiers = 1 + random.next_below(3);
    let tight = random.next_below(2) == 0;
    let blocks = ["a", "b", "c", "d"];
    let sizes = [3.0, 5.0, 2.0, 4.0];
    let make = |number: usize, random: &mut Random| {
        let count = 1 + random.next_below(layers as u64) as usize;
        let mut reached = 1.0;
        let layers = (0..count).map(|_| {
            let block = (random.next_below(3) == 0).then(|| random.next_below(4) as usize);
            if random.next_below(4) == 0 {
                reached *= random.next_fraction();
            }
            PlacementLayer {
                flops: (random.next_below(50) * 10) as f64,
                block: block.map(|block| blocks[block].to_owned()),
                memory_bytes: block
                    .map_or_else(|| random.next_below(8) as f64, |block| sizes[block]),
                storage_bytes: block.map_or_else(|| random.next_below(3) as f64, |_| 1.0),
                input_bytes: Some((random.next_below(20) * 10) as f64),
                execution_probability: Some(reached),
                ..PlacementLayer::default()
            }
        });
        let layers = layers.collect();
        PlacementModel {
            name: format!("model {number}"),
            weight: 0.5 + random.next_fraction(),
            input: (random.next_below(2) == 0)
                .then(|| format!("n{}", random.next_below(node_count as u64))),
            reply_bytes: (random.next_below(2) == 0).then(|| random.next_below(200) as f64),
            input_bytes: None,
            accuracy: None,
            least_accuracy: None,
            layers,
        }
    };
    let models: Vec<PlacementModel> = (0..models).map(|number| make(number, &mut random)).collect();
    let needed: f64 =
        models.iter().flat_map(|model| &model.layers).map(|layer| layer.memory_bytes).sum();
    let nodes = (0..node_count).map(|number| PlacementNode {
        name: format!("n{number}"),
        tier: (number as u64 * tiers / node_count as u64) as u32,
        input: number == 0,
        kind: None,
        flops_per_second: Some(50.0 + random.next_below(1000) as f64),
        memory_bytes: tight.then(|| {
            (needed / node_count as f64 * (0.7 + random.next_fraction())).max(4.0).round()
        }),
        storage_bytes: (random.next_below(3) == 0).then(|| 3.0 + random.next_below(8) as f64),
        watts: None,
        joules_per_byte_sent: None,
    });
    let nodes: Vec<PlacementNode> = nodes.collect();
    let mut table = |least: f64, most: f64| -> Vec<Vec<Option<f64>>> {
        (0..node_count)
            .map(|from| {
                (0..node_count)
                    .map(|to| (from != to).then(|| least + random.next_fraction() * (most - least)))
                    .collect()
            })
            .collect()
    };
    let throughput_bits_per_second = table(500.0, 20_000.0);
    let latency_ms = table(0.0, 300.0);
    let (layers, models) = match models.len() {
        1 => (models[0].layers.clone(), Vec::new()),
        _ => (Vec::new(), models),
    };
    PlacementProblem {
        nodes,
        throughput_bits_per_second,
        latency_ms,
        layers,
        models,
        moving: MigrationCost::default(),
    }
}

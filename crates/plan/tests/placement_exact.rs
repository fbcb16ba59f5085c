//! `exact` finds the optimum: that of an integer programme, that of trying everything, and one that
//! gets no worse when there is more of anything.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "placement/random.rs"]
mod random;

use random::random;
use serde::Deserialize;
use tessera_core::Random;
use tessera_plan::SearchLimit;
use tessera_plan::placement::{
    ExactPlacement, MigrationCost, ModelPlan, PlacementLayer, PlacementNode, PlacementOptions,
    PlacementPlan, PlacementProblem, PlacementSolution, evaluate_placement, find_violation,
    moving_cost, plan_placement,
};

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    layers: Vec<PlacementLayer>,
    instances: Vec<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    nodes: Vec<PlacementNode>,
    throughput_bits_per_second: Vec<Vec<Option<f64>>>,
    latency_ms: Vec<Vec<Option<f64>>>,
    layers: Option<Vec<PlacementLayer>>,
    optimum_seconds: Option<f64>,
    optimum_splits: Option<usize>,
    #[serde(default)]
    infeasible: bool,
}

impl Instance {
    fn problem(&self, layers: &[PlacementLayer]) -> PlacementProblem {
        PlacementProblem {
            nodes: self.nodes.clone(),
            throughput_bits_per_second: self.throughput_bits_per_second.clone(),
            latency_ms: self.latency_ms.clone(),
            layers: self.layers.clone().unwrap_or_else(|| layers.to_vec()),
            models: Vec::new(),
            moving: MigrationCost::default(),
        }
    }
}

fn exact(problem: &PlacementProblem) -> tessera_core::Result<PlacementSolution> {
    plan_placement(&ExactPlacement, problem, &PlacementOptions::default())
}

fn close(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * right.abs() + 1e-12
}

fn meets_optima(text: &str) -> (usize, usize) {
    let file: File = serde_json::from_str(text).unwrap();
    let (mut solved, mut infeasible) = (0, 0);
    for (number, instance) in file.instances.iter().enumerate() {
        let problem = instance.problem(&file.layers);
        let found = exact(&problem);
        if instance.infeasible {
            let error = found.map(|found| found.latency_seconds).expect_err("no plan exists");
            assert!(error.to_string().contains("layer"), "{number}: {error}");
            infeasible += 1;
            continue;
        }
        let found = found.unwrap_or_else(|error| panic!("{number}: {error}"));
        assert!(found.proved, "{number}: gap {:?}", found.optimality_gap());
        let optimum = instance.optimum_seconds.unwrap();
        assert!(close(found.latency_seconds, optimum), "{number}: {found:?}, not {optimum}");
        assert_eq!(find_violation(&problem, &found.plan), None, "{number}");
        if let Some(splits) = instance.optimum_splits {
            assert_eq!(evaluate_placement(&problem, &found.plan).splits, splits, "{number}");
        }
        solved += 1;
    }
    (solved, infeasible)
}

#[test]
fn meets_the_proved_optima_of_resnet152() {
    let text = include_str!("placement/resnet152-iot-edge-cloud.json");
    assert_eq!(meets_optima(text), (27, 0));
}

#[test]
fn meets_the_integer_programme_where_memory_binds() {
    let (solved, infeasible) = meets_optima(include_str!("placement/ilp.json"));
    assert!(solved >= 60 && infeasible >= 5, "{solved} solved, {infeasible} infeasible");
}

/// The least latency of all placements that meet the constraints, by trying all.
fn by_trying(problem: &PlacementProblem) -> Option<f64> {
    let models = problem.all_models();
    let genes: usize = models.iter().map(|model| model.layers.len()).sum();
    let mut best: Option<f64> = None;
    let mut nodes = vec![0usize; genes];
    loop {
        let mut rest = &nodes[..];
        let models = models.iter().map(|model| {
            let (own, others) = rest.split_at(model.layers.len());
            rest = others;
            ModelPlan { nodes: own.to_vec(), settings: model.settings_in_use() }
        });
        let plan = PlacementPlan { models: models.collect() };
        if find_violation(problem, &plan).is_none() {
            let latency = evaluate_placement(problem, &plan).latency_seconds;
            best = Some(best.map_or(latency, |best: f64| best.min(latency)));
        }
        let Some(at) = nodes.iter().position(|&node| node + 1 < problem.nodes.len()) else {
            return best;
        };
        nodes[..at].fill(0);
        nodes[at] += 1;
    }
}

#[test]
fn meets_trying_everything_with_one_model() {
    let (mut solved, mut infeasible) = (0, 0);
    for seed in 0..400 {
        let problem = random(seed, 1, 6, 4);
        match (exact(&problem), by_trying(&problem)) {
            (Ok(found), Some(best)) => {
                assert!(close(found.latency_seconds, best), "{seed}: {found:?}, not {best}");
                assert!(found.proved, "{seed}");
                solved += 1;
            }
            (Err(error), None) => {
                assert!(!error.to_string().contains('\n'), "{error}");
                infeasible += 1;
            }
            (found, best) => panic!("{seed}: {found:?}, not {best:?}"),
        }
    }
    assert!(solved > 200 && infeasible > 20, "{solved} {infeasible}");
}

#[test]
fn meets_trying_everything_with_several_models() {
    let (mut solved, mut infeasible, mut tied) = (0, 0, 0);
    for seed in 1000..1300 {
        let problem = random(seed, 2 + (seed % 2) as usize, 3, 3);
        match (exact(&problem), by_trying(&problem)) {
            (Ok(found), Some(best)) => {
                assert!(close(found.latency_seconds, best), "{seed}: {found:?}, not {best}");
                assert!(found.proved, "{seed}: {:?}", found.optimality_gap());
                solved += 1;
                let alone = problem.models.iter().map(|model| {
                    let alone = PlacementProblem { models: vec![model.clone()], ..problem.clone() };
                    exact(&alone).unwrap().latency_seconds * model.weight
                });
                let weights: f64 = problem.models.iter().map(|model| model.weight).sum();
                tied += usize::from(!close(alone.sum::<f64>() / weights, best));
            }
            (Err(_), None) => infeasible += 1,
            (found, best) => panic!("{seed}: {found:?}, not {best:?}"),
        }
    }
    // The models must have been in each other's way often enough for this to say anything.
    assert!(solved > 100 && infeasible > 20 && tied > 10, "{solved} {infeasible} {tied}");
}

#[test]
fn more_of_anything_is_never_worse() {
    for seed in 0..200 {
        let problem = random(seed, 1 + (seed % 3) as usize, 5, 5);
        let Ok(before) = exact(&problem) else { continue };
        let mut random = Random::new(seed);
        let node = random.next_below(problem.nodes.len() as u64) as usize;
        let mut faster = problem.clone();
        faster.nodes[node].flops_per_second =
            faster.nodes[node].flops_per_second.map(|speed| speed * 1.5);
        let mut roomier = problem.clone();
        roomier.nodes[node].memory_bytes =
            roomier.nodes[node].memory_bytes.map(|bytes| bytes * 1.5);
        let mut wider = problem.clone();
        wider.throughput_bits_per_second[node]
            .iter_mut()
            .flatten()
            .for_each(|throughput| *throughput *= 1.5);
        for (what, better) in [("faster", faster), ("roomier", roomier), ("wider", wider)] {
            let after = exact(&better).unwrap();
            assert!(
                after.latency_seconds <= before.latency_seconds * (1.0 + 1e-9),
                "{seed}: {what} {} to {}",
                before.latency_seconds,
                after.latency_seconds
            );
        }
    }
}

#[test]
fn planning_again_changes_nothing() {
    for seed in 0..200 {
        let mut problem = random(seed, 1 + (seed % 3) as usize, 5, 5);
        let mut random = Random::new(seed);
        problem.moving = MigrationCost {
            layer_ms: random.next_below(50) as f64,
            bits_per_second: if random.next_below(2) == 0 { 0.0 } else { 100.0 },
            requests: 1.0 + random.next_below(20) as f64,
            least_gain: random.next_fraction() * 0.1,
        };
        let Ok(first) = exact(&problem) else { continue };
        assert_eq!(exact(&problem).unwrap().plan, first.plan, "{seed}: not the same twice");
        // The network becomes another one, and back.
        let mut other = problem.clone();
        for cell in other.latency_ms.iter_mut().flatten().flatten() {
            *cell *= 0.2 + 2.0 * random.next_fraction();
        }
        let previous = Some(&first.plan);
        let second = plan_placement(
            &ExactPlacement,
            &other,
            &PlacementOptions { previous, ..PlacementOptions::default() },
        )
        .unwrap();
        let previous = Some(&second.plan);
        let third = plan_placement(
            &ExactPlacement,
            &other,
            &PlacementOptions { previous, ..PlacementOptions::default() },
        )
        .unwrap();
        assert_eq!(third.plan, second.plan, "{seed}");
        assert!(third.kept, "{seed}");
    }
}

#[test]
fn noise_does_not_move_layers() {
    let text = include_str!("placement/resnet152-iot-edge-cloud.json");
    let file: File = serde_json::from_str(text).unwrap();
    let mut problem = file.instances[26].problem(&file.layers);
    // Layers are brought at 100 Mbit/s, for a thousand requests.
    problem.moving.bits_per_second = 1e8;
    problem.moving.requests = 1000.0;
    let mut random = Random::new(1);
    let first = exact(&problem).unwrap().plan;
    let (mut today, mut flapping, mut free) = (first.clone(), 0, 0);
    let mut before = first;
    for _ in 0..100 {
        let mut measured = problem.clone();
        for cell in measured.throughput_bits_per_second.iter_mut().flatten().flatten() {
            *cell *= 0.95 + 0.1 * random.next_fraction();
        }
        let options = PlacementOptions { previous: Some(&today), ..PlacementOptions::default() };
        let next = plan_placement(&ExactPlacement, &measured, &options).unwrap();
        flapping += moving_cost(&measured, &today, &next.plan).0;
        today = next.plan;
        let without = exact(&measured).unwrap().plan;
        free += moving_cost(&measured, &before, &without).0;
        before = without;
    }
    assert!(free > 50, "the noise is too small to say anything: {free}");
    assert_eq!(flapping, 0, "without a cost of moving, {free} layers moved");
}

#[test]
fn says_how_far_it_can_be_from_the_optimum_when_stopped() {
    let text = include_str!("placement/resnet152-iot-edge-cloud.json");
    let file: File = serde_json::from_str(text).unwrap();
    let mut problem = file.instances[26].problem(&file.layers);
    let needed: f64 = problem.layers.iter().map(|layer| layer.memory_bytes).sum();
    for node in &mut problem.nodes {
        node.tier = 0;
        node.memory_bytes = Some(needed / 9.0);
        node.storage_bytes = None;
    }
    let optimum = exact(&problem).unwrap();
    assert!(optimum.proved);
    let limit = SearchLimit::new(&|| true);
    match plan_placement(
        &ExactPlacement,
        &problem,
        &PlacementOptions { limit, ..PlacementOptions::default() },
    ) {
        Ok(stopped) => {
            let bound = stopped.bound_seconds.unwrap();
            assert!(bound <= optimum.latency_seconds * (1.0 + 1e-9));
            assert!(stopped.latency_seconds >= optimum.latency_seconds * (1.0 - 1e-9));
            assert!(stopped.optimality_gap().unwrap() < 0.5, "{:?}", stopped.optimality_gap());
        }
        Err(error) => panic!("{error}"),
    }
}

//! What every strategy must keep to, and what each is for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "placement/random.rs"]
mod random;

use random::random;
use tessera_core::Random;
use tessera_plan::SearchLimit;
use tessera_plan::placement::{
    CloudOnly, DeviceOnly, ExactPlacement, ExitSetting, FirstFit, FrontPoint, GeneticPlacement,
    MigrationCost, ModelPlan, ParetoPlacement, PlacementInstances, PlacementLayer, PlacementModel,
    PlacementNode, PlacementOptions, PlacementOutcome, PlacementPlan, PlacementProblem,
    PlacementStrategy, evaluate_placement, find_placement_strategy, find_violation,
    placement_strategies, plan_placement,
};

fn instances() -> Vec<(PlacementProblem, f64)> {
    let text = include_str!("placement/resnet152-iot-edge-cloud.json");
    let file: PlacementInstances = serde_json::from_str(text).unwrap();
    file.iter_problems().map(|(problem, optimum)| (problem, optimum.unwrap())).collect()
}

fn node(name: &str, tier: u32, flops_per_second: f64, memory_bytes: f64) -> PlacementNode {
    PlacementNode {
        name: name.to_owned(),
        tier,
        input: tier == 0,
        kind: None,
        flops_per_second: Some(flops_per_second),
        memory_bytes: Some(memory_bytes),
        storage_bytes: None,
        watts: None,
        joules_per_byte_sent: None,
    }
}

fn layer(flops: f64, memory_bytes: f64, input_bytes: f64) -> PlacementLayer {
    PlacementLayer {
        flops,
        memory_bytes,
        input_bytes: Some(input_bytes),
        ..PlacementLayer::default()
    }
}

/// A device, an edge and a cloud, 8 kbit/s and 100 ms apart.
fn three_tiers(memory: [f64; 3], layers: Vec<PlacementLayer>) -> PlacementProblem {
    let nodes = vec![
        node("device", 0, 10.0, memory[0]),
        node("edge", 1, 20.0, memory[1]),
        node("cloud", 2, 100.0, memory[2]),
    ];
    let table = |value: f64| {
        (0..3).map(|from| (0..3).map(|to| (from != to).then_some(value)).collect()).collect()
    };
    PlacementProblem {
        nodes,
        throughput_bits_per_second: table(8000.0),
        latency_ms: table(100.0),
        layers,
        models: Vec::new(),
        moving: MigrationCost::default(),
    }
}

fn nodes(problem: &PlacementProblem, strategy: &dyn PlacementStrategy) -> Vec<usize> {
    plan_placement(strategy, problem, &PlacementOptions::default()).unwrap().plan.models[0]
        .nodes
        .clone()
}

#[test]
fn every_plan_of_every_strategy_meets_the_constraints_and_is_no_better_than_exact() {
    let mut planned = 0;
    for seed in 0..80 {
        let problem = random(seed, 1 + (seed % 3) as usize, 6, 5);
        let exact = plan_placement(&ExactPlacement, &problem, &PlacementOptions::default());
        for strategy in placement_strategies() {
            let name = strategy.name().to_owned();
            // A thousand chromosomes a generation: one in twenty is enough.
            if name == "genetic-thesis" && seed % 20 != 0 {
                continue;
            }
            let options = PlacementOptions { seed, ..PlacementOptions::default() };
            match plan_placement(strategy, &problem, &options) {
                Ok(found) => {
                    assert_eq!(find_violation(&problem, &found.plan), None, "{seed} {name}");
                    let best = exact.as_ref().unwrap().latency_seconds;
                    assert!(found.latency_seconds >= best * (1.0 - 1e-9), "{seed} {name}");
                    planned += 1;
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(!text.contains('\n') && text.len() > 10, "{seed} {name}: {text}");
                }
            }
        }
    }
    assert!(planned > 200, "{planned}");
}

#[test]
fn planning_again_from_its_own_plan_changes_nothing_with_any_strategy() {
    for seed in 0..60 {
        let problem = random(seed, 1 + (seed % 2) as usize, 6, 5);
        for strategy in
            placement_strategies().iter().filter(|strategy| strategy.name() != "genetic-thesis")
        {
            let options = PlacementOptions { seed, ..PlacementOptions::default() };
            let Ok(first) = plan_placement(strategy, &problem, &options) else { continue };
            let again = PlacementOptions { previous: Some(&first.plan), ..options };
            let second = plan_placement(strategy, &problem, &again).unwrap();
            assert_eq!(second.plan, first.plan, "{seed} {}", strategy.name());
            assert!(second.kept && second.moving_seconds == 0.0, "{seed} {}", strategy.name());
        }
    }
}

#[test]
fn genetic_is_within_a_hundredth_of_the_optimum_whatever_its_seed() {
    let mut losses = Vec::new();
    for (seed, (problem, optimum)) in
        (0..3).flat_map(|seed| instances().into_iter().map(move |one| (seed, one)))
    {
        let options = PlacementOptions { seed, ..PlacementOptions::default() };
        let found = plan_placement(&GeneticPlacement::default(), &problem, &options).unwrap();
        losses.push(found.latency_seconds / optimum - 1.0);
    }
    let worst = losses.iter().copied().fold(0.0, f64::max);
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean <= 0.001 && worst <= 0.01, "mean {mean}, worst {worst}");
}

#[test]
fn genetic_depends_on_its_seed_alone() {
    let (problem, _) = instances().swap_remove(20);
    let with = |seed| {
        let options = PlacementOptions { seed, ..PlacementOptions::default() };
        let hasty = GeneticPlacement { population: 10, generations: 3, ..GeneticPlacement::THESIS };
        plan_placement(&hasty, &problem, &options).unwrap().plan
    };
    assert_eq!(with(3), with(3));
    assert_ne!(with(3), with(4));
}

#[test]
fn first_fit_fills_the_input_node_and_then_the_most_powerful_ones() {
    let layers = vec![layer(10.0, 1.0, 10.0); 5];
    assert_eq!(nodes(&three_tiers([2.0, 9.0, 9.0], layers.clone()), &FirstFit), [0, 0, 2, 2, 2]);
    // A cloud that is too small for the layer at hand is passed over.
    assert_eq!(nodes(&three_tiers([2.0, 9.0, 0.5], layers.clone()), &FirstFit), [0, 0, 1, 1, 1]);
    // From the cloud there is no way back to the edge, though exact knows another.
    let stuck = three_tiers([2.0, 9.0, 2.0], layers);
    let error =
        plan_placement(&FirstFit, &stuck, &PlacementOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("first-fit: layer 4 needs 1 bytes of memory"), "{error}");
    assert!(error.contains("edge 9"), "{error}");
    assert!(plan_placement(&ExactPlacement, &stuck, &PlacementOptions::default()).is_ok());
}

#[test]
fn device_and_cloud_keep_everything_on_one_node_or_say_why_not() {
    let layers = vec![layer(10.0, 1.0, 10.0); 5];
    let roomy = three_tiers([9.0, 9.0, 9.0], layers.clone());
    assert_eq!(nodes(&roomy, &DeviceOnly), [0; 5]);
    assert_eq!(nodes(&roomy, &CloudOnly), [2; 5]);
    let small = three_tiers([4.0, 9.0, 4.0], layers);
    let refuse = |strategy: &dyn PlacementStrategy| {
        plan_placement(strategy, &small, &PlacementOptions::default()).unwrap_err().to_string()
    };
    let device = refuse(&DeviceOnly);
    assert!(device.contains("device has 4 bytes of memory") && device.contains('5'), "{device}");
    let cloud = refuse(&CloudOnly);
    assert!(cloud.contains("cloud has 4") && cloud.contains("needs 5 bytes"), "{cloud}");
}

#[test]
fn an_unknown_strategy_is_refused_with_those_that_there_are() {
    let error = find_placement_strategy("best").err().unwrap().to_string();
    assert!(error.contains("best") && error.contains("exact, genetic"), "{error}");
}

/// A model with two exits that have three settings each.
fn with_exits(least_accuracy: Option<f64>) -> PlacementProblem {
    let setting =
        |threshold, rate, accuracy| ExitSetting { threshold, rate, accuracy: Some(accuracy) };
    let mut layers = vec![layer(40.0, 1.0, 100.0); 6];
    layers[1].exit = vec![setting(0.99, 0.1, 0.98), setting(0.9, 0.4, 0.9), setting(0.5, 0.7, 0.8)];
    layers[3].exit =
        vec![setting(0.98, 0.2, 0.97), setting(0.8, 0.5, 0.92), setting(0.4, 0.8, 0.7)];
    let model = PlacementModel {
        name: "exits".to_owned(),
        weight: 1.0,
        input: None,
        reply_bytes: None,
        input_bytes: None,
        accuracy: Some(0.95),
        least_accuracy,
        layers,
    };
    PlacementProblem {
        models: vec![model],
        layers: Vec::new(),
        ..three_tiers([9.0; 3], Vec::new())
    }
}

/// Every plan of a problem with one model, with every setting of its exits.
fn all_plans(problem: &PlacementProblem) -> Vec<PlacementPlan> {
    let model = &problem.all_models()[0];
    let mut all = vec![ModelPlan { nodes: Vec::new(), settings: Vec::new() }];
    for layer in &model.layers {
        let settings: Vec<Option<usize>> = match layer.exit.len() {
            0 => vec![None],
            count => (0..count).map(Some).collect(),
        };
        let mut longer = Vec::new();
        for (before, node) in
            all.iter().flat_map(|plan| (0..problem.nodes.len()).map(move |node| (plan, node)))
        {
            for &setting in &settings {
                let mut with = ModelPlan::clone(before);
                with.nodes.push(node);
                with.settings.push(setting);
                longer.push(with);
            }
        }
        all = longer;
    }
    let plans = all.into_iter().map(|model| PlacementPlan { models: vec![model] });
    plans.filter(|plan| find_violation(problem, plan).is_none()).collect()
}

#[test]
fn thresholds_are_chosen_for_the_least_latency_with_the_accuracy_that_is_asked_for() {
    let mut chosen = Vec::new();
    for least in [0.85, 0.9, 0.93, 0.95] {
        let problem = with_exits(Some(least));
        let found =
            plan_placement(&ExactPlacement, &problem, &PlacementOptions::default()).unwrap();
        let outcome = evaluate_placement(&problem, &found.plan);
        assert!(outcome.accuracy.unwrap() >= least - 1e-12);
        let best = all_plans(&problem)
            .iter()
            .map(|plan| evaluate_placement(&problem, plan).latency_seconds)
            .fold(f64::INFINITY, f64::min);
        assert!((found.latency_seconds - best).abs() <= 1e-9 * best, "{least}");
        assert!(found.proved);
        chosen.push(found.plan.models[0].settings.clone());
    }
    assert_ne!(chosen[0], chosen[3], "what is asked for makes a difference");
    let error =
        plan_placement(&ExactPlacement, &with_exits(Some(0.99)), &PlacementOptions::default())
            .unwrap_err();
    assert!(error.to_string().contains("no thresholds reach more than 0.95"), "{error}");
}

/// What counts, the lower the better.
fn costs(outcome: &PlacementOutcome) -> [f64; 4] {
    [
        outcome.latency_seconds,
        outcome.throughput_per_second.map_or(0.0, |rate| 1.0 / rate),
        1.0 - outcome.accuracy.unwrap_or(1.0),
        outcome.energy_joules.unwrap_or(0.0),
    ]
}

/// Whether one is noticeably better than the other in something, and nowhere worse.
fn beats(one: &[f64; 4], other: &[f64; 4]) -> bool {
    let pairs = || one.iter().zip(other);
    pairs().all(|(one, other)| *one <= other * (1.0 + 1e-12))
        && pairs().any(|(one, other)| *one < other * (1.0 - 1e-6))
}

fn front(problem: &PlacementProblem) -> Vec<FrontPoint> {
    let pareto = ParetoPlacement { most: 10_000, ..ParetoPlacement::default() };
    plan_placement(&pareto, problem, &PlacementOptions::default()).unwrap().front
}

#[test]
fn nothing_beats_a_plan_of_the_front() {
    let mut points = 0;
    for seed in 0..40 {
        let mut problem = random(seed, 1, 5, 4);
        let mut random = Random::new(seed);
        if seed % 2 == 0 {
            for node in &mut problem.nodes {
                node.watts = Some(1.0 + random.next_fraction() * 20.0);
                node.joules_per_byte_sent = Some(random.next_fraction() * 0.01);
            }
        }
        let all: Vec<[f64; 4]> = all_plans(&problem)
            .iter()
            .map(|plan| costs(&evaluate_placement(&problem, plan)))
            .collect();
        if all.is_empty() {
            continue;
        }
        for point in front(&problem) {
            assert_eq!(find_violation(&problem, &point.plan), None, "{seed}");
            let own = costs(&point.outcome);
            assert!(!all.iter().any(|other| beats(other, &own)), "{seed}: {own:?}");
            points += 1;
        }
    }
    assert!(points > 60, "{points}");
}

#[test]
fn the_front_of_latency_throughput_and_accuracy_has_every_plan_that_nothing_beats() {
    let exits = (0..1).map(|_| with_exits(None));
    for problem in (0..40).map(|seed| random(seed, 1, 5, 4)).chain(exits) {
        let all: Vec<[f64; 4]> = all_plans(&problem)
            .iter()
            .map(|plan| costs(&evaluate_placement(&problem, plan)))
            .collect();
        if all.is_empty() {
            continue;
        }
        let found: Vec<[f64; 4]> =
            front(&problem).iter().map(|point| costs(&point.outcome)).collect();
        for wanted in all.iter().filter(|own| !all.iter().any(|other| beats(other, own))) {
            let there = found.iter().any(|point| {
                point
                    .iter()
                    .zip(wanted)
                    .all(|(one, other)| (one - other).abs() <= 1e-6 * other.abs())
            });
            assert!(there, "{wanted:?} is not among {found:?}");
        }
    }
}

#[test]
fn a_front_has_no_more_plans_than_are_wanted_and_keeps_its_ends() {
    let problem = with_exits(None);
    let all = front(&problem);
    assert!(all.len() > 5, "{}", all.len());
    let few = plan_placement(
        &ParetoPlacement { most: 5, ..ParetoPlacement::default() },
        &problem,
        &PlacementOptions::default(),
    )
    .unwrap();
    assert_eq!(few.front.len(), 5);
    let least = |front: &[FrontPoint], axis: usize| {
        front.iter().map(|point| costs(&point.outcome)[axis]).fold(f64::INFINITY, f64::min)
    };
    for axis in 0..3 {
        assert_eq!(least(&few.front, axis), least(&all, axis));
    }
}

#[test]
fn a_front_that_is_stopped_is_short_but_valid() {
    let limit = SearchLimit::new(&|| true);
    let problem = with_exits(None);
    let found = plan_placement(
        &ParetoPlacement::default(),
        &problem,
        &PlacementOptions { limit, ..PlacementOptions::default() },
    )
    .unwrap();
    assert_eq!(find_violation(&problem, &found.plan), None);
    assert_eq!(found.front.len(), 1);
}

#[test]
fn a_block_that_models_share_is_there_once() {
    let shared =
        |name: &str| PlacementLayer { block: Some(name.to_owned()), ..layer(40.0, 3.0, 10.0) };
    let model = |name: &str, weight: f64| PlacementModel {
        name: name.to_owned(),
        weight,
        input: None,
        reply_bytes: None,
        input_bytes: None,
        accuracy: None,
        least_accuracy: None,
        layers: vec![shared("backbone"), layer(10.0, 1.0, 10.0)],
    };
    let mut problem = three_tiers([5.0, 0.0, 0.0], Vec::new());
    problem.models = vec![model("one", 3.0), model("two", 1.0)];
    // 3 for both, and 1 for each: 5.
    let found = plan_placement(&ExactPlacement, &problem, &PlacementOptions::default()).unwrap();
    assert_eq!(evaluate_placement(&problem, &found.plan).nodes[0].memory_bytes, 5.0);
    for model in &mut problem.models {
        model.layers[0].block = None;
    }
    assert!(plan_placement(&ExactPlacement, &problem, &PlacementOptions::default()).is_err());
}

#[test]
fn the_model_with_the_larger_weight_gets_the_better_node() {
    let model = |name: &str, weight: f64| PlacementModel {
        name: name.to_owned(),
        weight,
        input: None,
        reply_bytes: None,
        input_bytes: None,
        accuracy: None,
        least_accuracy: None,
        layers: vec![layer(100.0, 4.0, 10.0)],
    };
    for (weights, first) in [([3.0, 1.0], 2), ([1.0, 3.0], 1)] {
        let mut problem = three_tiers([0.0, 4.0, 4.0], Vec::new());
        problem.models = vec![model("one", weights[0]), model("two", weights[1])];
        let found =
            plan_placement(&ExactPlacement, &problem, &PlacementOptions::default()).unwrap();
        assert_eq!(found.plan.models[0].nodes, [first]);
    }
}

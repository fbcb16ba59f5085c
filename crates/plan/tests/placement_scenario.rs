//! The hierarchy and the models of the thesis' experiments, beside what it prints of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use tessera_plan::placement::{
    HierarchyScenario, PlacementModel, PlacementPlan, evaluate_placement, find_violation,
    iot_edge_cloud, resnet152_model, vgg13_model,
};

/// Sums over the layers: multiply-adds, bytes of memory, bytes of storage.
fn sums(model: &PlacementModel) -> [f64; 3] {
    let sum = |figure: fn(&tessera_plan::placement::PlacementLayer) -> f64| {
        model.layers.iter().map(figure).sum::<f64>()
    };
    [sum(|layer| layer.flops), sum(|layer| layer.memory_bytes), sum(|layer| layer.storage_bytes)]
}

/// Where the side exit is.
fn exit(model: &PlacementModel) -> usize {
    model.layers.iter().position(|layer| !layer.exit.is_empty()).unwrap()
}

#[test]
fn the_models_have_the_sums_that_table_7_3_prints() {
    // Printed to a tenth of a GFLOP and to a megabyte.
    let cases = [
        (resnet152_model(0), 56, 15, [11.6e9, 593e6, 234e6]),
        (vgg13_model(0), 35, 20, [11.4e9, 1204e6, 994e6]),
    ];
    for (model, layers, position, printed) in cases {
        assert_eq!(model.layers.len(), layers, "{}", model.name);
        assert_eq!(exit(&model), position, "{}", model.name);
        let [flops, memory, storage] = sums(&model);
        assert!((flops - printed[0]).abs() <= 0.05e9, "{}: {flops}", model.name);
        assert!((memory - printed[1]).abs() <= 0.5e6, "{}: {memory}", model.name);
        assert!((storage - printed[2]).abs() <= 0.5e6, "{}: {storage}", model.name);
    }
}

#[test]
fn every_variant_exits_as_often_and_is_right_as_often_as_printed() {
    type Table = (fn(usize) -> PlacementModel, [(f64, f64, f64); 3]);
    let tables: [Table; 2] = [
        (resnet152_model, [(0.0, 1.0, 0.9739), (0.995, 0.63, 0.9346), (0.9995, 0.24, 0.8366)]),
        (vgg13_model, [(0.0, 1.0, 0.9216), (0.995, 0.63, 0.9281), (0.9995, 0.25, 0.9216)]),
    ];
    for (make, variants) in tables {
        for (variant, (threshold, main, accuracy)) in variants.into_iter().enumerate() {
            let model = make(variant);
            let at = exit(&model);
            let settings = model.settings_in_use();
            let used = &model.layers[at].exit[settings[at].unwrap()];
            assert_eq!(used.threshold, threshold, "{} {variant}", model.name);
            let reach = model.reach_by_layer(&settings);
            assert_eq!(reach[at], 1.0);
            assert!((reach[at + 1] - main).abs() < 1e-12, "{} {variant}", model.name);
            let right = model.accuracy_with(&settings).unwrap();
            assert!((right - accuracy).abs() < 1e-12, "{} {variant}: {right}", model.name);
            // The other thresholds are there to choose from.
            let mut all: Vec<f64> =
                model.layers[at].exit.iter().map(|setting| setting.threshold).collect();
            all.sort_by(f64::total_cmp);
            assert_eq!(all, [0.0, 0.995, 0.9995]);
        }
    }
}

#[test]
fn nodes_are_spread_evenly_and_only_the_first_is_where_inputs_come_from() {
    let model = resnet152_model(1);
    for count in 1..=40 {
        let problem = iot_edge_cloud(count, &model, 7, &HierarchyScenario::default());
        problem.check_consistency().unwrap();
        assert_eq!(problem.nodes.len(), count);
        let tier = |tier: u32| problem.nodes.iter().filter(|node| node.tier == tier).count();
        let counts = [tier(0), tier(1), tier(2)];
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        let inputs: Vec<bool> = problem.nodes.iter().map(|node| node.input).collect();
        assert!(inputs[0] && !inputs[1..].contains(&true));
    }
    assert!(
        iot_edge_cloud(0, &model, 7, &HierarchyScenario::default()).check_consistency().is_err()
    );
}

#[test]
fn links_have_between_a_tenth_and_all_of_what_is_listed_and_the_same_both_ways() {
    let listed = [[1e9, 50e6, 10e6], [50e6, 1e9, 100e6], [10e6, 100e6, 1e9]];
    let latency = [[10.0, 25.0, 50.0], [25.0, 10.0, 25.0], [50.0, 25.0, 10.0]];
    let problem = iot_edge_cloud(30, &resnet152_model(1), 3, &HierarchyScenario::default());
    let (mut least, mut most) = (f64::INFINITY, 0.0f64);
    for (from, a) in problem.nodes.iter().enumerate() {
        for (to, b) in problem.nodes.iter().enumerate() {
            let rate = problem.throughput_bits_per_second[from][to];
            if from == to {
                assert_eq!(rate, None);
                continue;
            }
            assert_eq!(rate, problem.throughput_bits_per_second[to][from]);
            let share = rate.unwrap() / listed[a.tier as usize][b.tier as usize];
            assert!((0.1..=1.0).contains(&share), "{share}");
            (least, most) = (least.min(share), most.max(share));
            let expected = latency[a.tier as usize][b.tier as usize];
            assert_eq!(problem.latency_ms[from][to], Some(expected));
        }
    }
    assert!(least < 0.15 && most > 0.95, "{least} to {most}: not drawn from all of it");
}

#[test]
fn nodes_differ_and_tiers_are_free_only_where_that_is_asked_for() {
    let model = resnet152_model(1);
    let plain = iot_edge_cloud(12, &model, 3, &HierarchyScenario::default());
    assert!(plain.nodes.iter().all(|node| match node.tier {
        0 => node.flops_per_second == Some(4.93e9) && node.memory_bytes == Some(0.5e9),
        1 => node.flops_per_second == Some(13.5e9) && node.memory_bytes == Some(4e9),
        _ => node.flops_per_second == Some(184e9) && node.memory_bytes == Some(16e9),
    }));
    let drawn = HierarchyScenario { least_resources: 0.1, ..HierarchyScenario::default() };
    let drawn = iot_edge_cloud(12, &model, 3, &drawn);
    assert_eq!(drawn.throughput_bits_per_second, plain.throughput_bits_per_second);
    for (node, whole) in drawn.nodes.iter().zip(&plain.nodes) {
        let share = node.flops_per_second.unwrap() / whole.flops_per_second.unwrap();
        assert!((0.1..1.0).contains(&share), "{share}");
        assert_ne!(node.memory_bytes, whole.memory_bytes);
        assert_ne!(node.storage_bytes, whole.storage_bytes);
    }
    let free = HierarchyScenario { free_inside: true, ..HierarchyScenario::default() };
    let free = iot_edge_cloud(12, &model, 3, &free);
    assert_eq!(free.throughput_bits_per_second[0][1], Some(1e9));
    assert_eq!(free.latency_ms[0][1], Some(0.0));
    assert_eq!(free.latency_ms[0][11], Some(50.0));
    assert_eq!(free.throughput_bits_per_second[0][11], plain.throughput_bits_per_second[0][11]);
}

#[test]
fn the_same_seed_gives_the_same_problem_and_another_one_another() {
    let (model, scenario) = (vgg13_model(2), HierarchyScenario::default());
    let make = |seed| iot_edge_cloud(9, &model, seed, &scenario);
    assert_eq!(make(5), make(5));
    assert_ne!(make(5), make(6));
}

#[test]
fn a_plan_costs_what_the_tables_say() {
    // All on the only cloud node: the input crosses from tier 0 to tier 2.
    let scenario = HierarchyScenario { least_throughput: 1.0, ..HierarchyScenario::default() };
    let problem = iot_edge_cloud(3, &resnet152_model(1), 0, &scenario);
    let plan = PlacementPlan {
        models: vec![tessera_plan::placement::ModelPlan {
            nodes: vec![2; 56],
            settings: problem.models[0].settings_in_use(),
        }],
    };
    assert_eq!(find_violation(&problem, &plan), None);
    let before: f64 = problem.models[0].layers[..16].iter().map(|layer| layer.flops).sum();
    let after: f64 = problem.models[0].layers[16..].iter().map(|layer| layer.flops).sum();
    let expected = 0.05 + 602_539.0 * 8.0 / 10e6 + (before + 0.63 * after) / 184e9;
    let latency = evaluate_placement(&problem, &plan).latency_seconds;
    assert!((latency - expected).abs() < 1e-12, "{latency}, expected {expected}");
}

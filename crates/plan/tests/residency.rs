//! Residency: what plans cost, and that each strategy keeps its promises.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use tessera_core::Random;
use tessera_plan::SearchLimit;
use tessera_plan::residency::{
    NvLink, Residency, ResidencyLayer, ResidencyPlan, ResidencyProblem, ResidencySolution,
    ServerGpu, algorithm_1_as_printed, deepplan_server, find_residency_strategy, named_profile,
    random_residency_problem, residency_strategies, simulate_residency,
};

const HERE: Residency = Residency::Loaded { through: 0 };
const THERE: Residency = Residency::Loaded { through: 1 };
const DIRECT: Residency = Residency::Direct;

fn layer(name: &str, load_us: f64, in_memory_us: f64, direct_us: Option<f64>) -> ResidencyLayer {
    ResidencyLayer { name: name.to_owned(), bytes: load_us * 1e3, load_us, in_memory_us, direct_us }
}

/// Three layers, small enough to compute by hand.
fn three() -> ResidencyProblem {
    ResidencyProblem::with_one_gpu(vec![
        layer("a", 10.0, 2.0, Some(5.0)),
        layer("b", 20.0, 3.0, Some(8.0)),
        layer("c", 30.0, 4.0, None),
    ])
}

/// Two GPUs with a link of 10 GB/s.
fn three_on_two(switches: [&str; 2]) -> ResidencyProblem {
    let gpu = |name: &str, switch: &str| ServerGpu {
        name: name.to_owned(),
        switch: switch.to_owned(),
        memory_bytes: None,
    };
    ResidencyProblem {
        gpus: vec![gpu("one", switches[0]), gpu("two", switches[1])],
        nvlinks: vec![NvLink {
            between: ["one".to_owned(), "two".to_owned()],
            bytes_per_second: 10e9,
        }],
        ..three()
    }
}

fn pipelined(layers: &[Residency]) -> ResidencyPlan {
    ResidencyPlan { layers: layers.to_vec(), pipelined: true }
}

fn plan(name: &str, problem: &ResidencyProblem) -> ResidencySolution {
    find_residency_strategy(name).unwrap().find_plan(problem, None, &SearchLimit::none()).unwrap()
}

fn assert_close(one: f64, other: f64) {
    assert!((one - other).abs() <= 1e-9 * one.abs().max(1.0), "{one} is not {other}");
}

/// A random problem with some of what can be: several GPUs, short memory, layers quicker from the
/// host.
fn varied(layers: usize, seed: u64) -> ResidencyProblem {
    let mut dice = Random::new(seed ^ 0x5eed);
    let mut problem = random_residency_problem(layers, seed);
    for layer in &mut problem.layers {
        if layer.direct_us.is_some() && dice.next_below(8) == 0 {
            layer.direct_us = Some(layer.in_memory_us * dice.next_fraction());
        }
    }
    (problem.gpus, problem.nvlinks) = deepplan_server(1 + dice.next_below(6) as usize);
    problem.nvlinks.retain(|_| dice.next_below(5) > 0);
    for link in &mut problem.nvlinks {
        link.bytes_per_second = 2e9 * 40f64.powf(dice.next_fraction());
    }
    let all: f64 = problem.layers.iter().map(|layer| layer.bytes).sum();
    let must: f64 = problem
        .layers
        .iter()
        .filter(|layer| layer.direct_time().is_none())
        .map(|layer| layer.bytes)
        .sum();
    if dice.next_below(2) == 0 {
        problem.gpus[0].memory_bytes = Some(must + (all - must) * dice.next_fraction());
    }
    for gpu in problem.gpus.iter_mut().skip(1) {
        if dice.next_below(3) == 0 {
            gpu.memory_bytes = Some(all * dice.next_fraction());
        }
    }
    problem.check_consistency().unwrap();
    problem
}

#[test]
fn loading_before_running_takes_the_sum_of_both() {
    let run = simulate_residency(&three(), &plan("load-then-run", &three()).plan).unwrap();
    assert_close(run.total_us, 69.0);
    assert_close(run.stall_us, 60.0);
    assert_close(run.gpu_bytes, 60e3);
}

#[test]
fn a_pipeline_waits_for_each_layer_that_comes_after_the_one_before_has_run() {
    let run = simulate_residency(&three(), &pipelined(&[HERE, HERE, HERE])).unwrap();
    let stalls: Vec<f64> = run.layers.iter().map(|layer| layer.stall_us).collect();
    assert_eq!(stalls, [10.0, 18.0, 27.0]);
    assert_close(run.total_us, 64.0);
    assert_close(plan("pipeline", &three()).total_us, 64.0);
}

#[test]
fn a_layer_on_the_host_runs_at_once_and_lets_later_ones_load_sooner() {
    let run = simulate_residency(&three(), &pipelined(&[DIRECT, HERE, HERE])).unwrap();
    assert_eq!((run.layers[0].start_us, run.layers[0].end_us), (0.0, 5.0));
    assert!(run.layers[0].load.is_none());
    let load = run.layers[1].load.unwrap();
    assert_eq!((load.start_us, load.end_us), (0.0, 20.0));
    assert_close(run.total_us, 54.0);
    assert_close(run.stall_us, 15.0 + 27.0);
    assert_close(run.gpu_bytes, 50e3);
    // With both on the host only the last one is loaded: 30 + 4.
    assert_close(plan("direct-host-access", &three()).total_us, 34.0);
}

#[test]
fn a_second_gpu_loads_beside_the_first_and_forwards_over_nvlink() {
    let problem = three_on_two(["0", "1"]);
    let run = simulate_residency(&problem, &pipelined(&[HERE, HERE, THERE])).unwrap();
    let forward = run.layers[2].forward.unwrap();
    assert_eq!((forward.start_us, forward.end_us), (30.0, 33.0));
    // "b" is there at 30 and runs until 33, when "c" is there, too.
    assert_close(run.total_us, 37.0);
    assert_close(run.stall_us, 10.0 + 18.0);
    assert_eq!(run.temporary_bytes, [0.0, 30e3]);
}

#[test]
fn gpus_below_one_switch_load_at_half_the_rate() {
    let problem = three_on_two(["0", "0"]);
    let run = simulate_residency(&problem, &pipelined(&[HERE, HERE, THERE])).unwrap();
    let ends: Vec<f64> = run.layers.iter().map(|layer| layer.load.unwrap().end_us).collect();
    assert_eq!(ends, [20.0, 60.0, 60.0]);
    assert_close(run.total_us, 67.0);
    // So no strategy lets the second one help.
    for strategy in residency_strategies() {
        let planned = strategy.find_plan(&problem, None, &SearchLimit::none()).unwrap();
        assert_eq!(planned.plan.loading_gpus(&problem), 1, "{}", strategy.name());
    }
}

#[test]
fn a_stream_that_ends_leaves_the_switch_to_the_others() {
    let problem = three_on_two(["0", "0"]);
    let run = simulate_residency(&problem, &pipelined(&[THERE, HERE, HERE])).unwrap();
    let ends: Vec<f64> = run.layers.iter().map(|layer| layer.load.unwrap().end_us).collect();
    // 20 µs together, then the first alone: 10 of "b" are left, and 30 of "c".
    assert_eq!(ends, [20.0, 30.0, 60.0]);
}

#[test]
fn what_is_read_from_the_host_holds_up_what_is_loaded_behind_it() {
    let mut problem = three();
    let direct = pipelined(&[DIRECT, HERE, HERE]);
    let ends = |problem: &ResidencyProblem| -> Vec<f64> {
        let run = simulate_residency(problem, &direct).unwrap();
        run.layers.iter().filter_map(|layer| Some(layer.load?.end_us)).collect()
    };
    assert_eq!(ends(&problem), [20.0, 50.0]);
    problem.direct_contention = 0.5;
    // "a" takes 3 µs longer from the host.
    assert_eq!(ends(&problem), [21.5, 51.5]);
    problem.direct_contention = 1.1;
    let error = problem.check_consistency().unwrap_err().to_string();
    assert!(error.contains("direct_contention: 1.1"), "{error}");
}

#[test]
fn plans_with_contention_are_as_quick_as_they_are_simulated() {
    let mut less_is_read = 0;
    for seed in 0..200 {
        let mut problem = random_residency_problem(1 + seed as usize % 60, seed);
        let before = plan("direct-host-access", &problem);
        problem.direct_contention = 0.85;
        let after = plan("direct-host-access", &problem);
        assert_close(simulate_residency(&problem, &after.plan).unwrap().total_us, after.total_us);
        assert!(after.total_us <= plan("pipeline", &problem).total_us * (1.0 + 1e-9), "{seed}");
        let exact = plan("exact", &problem);
        assert!(exact.total_us <= after.total_us * (1.0 + 1e-9), "{seed}");
        assert!(exact.bound_us.unwrap() <= exact.total_us * (1.0 + 1e-9), "{seed}");
        less_is_read += usize::from(after.plan.direct_layers() < before.plan.direct_layers());
    }
    assert!(less_is_read > 50, "{less_is_read}");
}

#[test]
fn layers_wait_on_a_helper_until_its_link_is_free() {
    let mut problem = three_on_two(["0", "1"]);
    problem.nvlinks[0].bytes_per_second = 0.5e9;
    let run = simulate_residency(&problem, &pipelined(&[THERE, THERE, HERE])).unwrap();
    // "a" passes from 10 to 30, "b" is loaded at 30 and passes from 30 to 70.
    assert_close(run.layers[1].forward.unwrap().end_us, 70.0);
    assert_eq!(run.temporary_bytes, [0.0, 30e3]);
    problem.gpus[1].memory_bytes = Some(25e3);
    let error =
        simulate_residency(&problem, &pipelined(&[THERE, THERE, HERE])).unwrap_err().to_string();
    assert!(error.contains("\"two\"") && error.contains("30000 bytes"), "{error}");
}

#[test]
fn direct_host_access_is_never_slower_than_the_pipeline_on_1000_random_profiles() {
    let mut gained = 0;
    for seed in 0..1000 {
        let problem = random_residency_problem(1 + seed as usize % 90, seed);
        let (pipeline, direct) = (plan("pipeline", &problem), plan("direct-host-access", &problem));
        assert!(direct.total_us <= pipeline.total_us, "seed {seed}");
        gained += usize::from(direct.total_us < 0.9 * pipeline.total_us);
    }
    // It gains a tenth on most, or there would be little to compare.
    assert!(gained > 600, "{gained}");
}

#[test]
fn what_knows_more_ways_is_never_slower() {
    for seed in 0..300 {
        let problem = varied(2 + seed as usize % 40, seed);
        let total = |name: &str| plan(name, &problem).total_us;
        let (pipeline, direct) = (total("pipeline"), total("direct-host-access"));
        let (parallel, both) = (total("parallel"), total("parallel-direct"));
        assert!(pipeline <= total("load-then-run"), "seed {seed}");
        assert!(direct <= pipeline, "seed {seed}");
        assert!(parallel <= pipeline, "seed {seed}");
        assert!(both <= parallel && both <= direct, "seed {seed}");
    }
}

#[test]
fn every_plan_is_valid_and_planning_again_with_it_changes_nothing() {
    for seed in 0..120 {
        let problem = varied(1 + seed as usize % 12, 1000 + seed);
        for strategy in residency_strategies() {
            let planned = strategy.find_plan(&problem, None, &SearchLimit::none()).unwrap();
            let run = simulate_residency(&problem, &planned.plan).unwrap();
            assert_close(run.total_us, planned.total_us);
            let memory = problem.gpus[0].memory_bytes.unwrap_or(f64::INFINITY);
            assert!(run.gpu_bytes <= memory * (1.0 + 1e-9), "{} seed {seed}", strategy.name());
            for (gpu, bytes) in problem.gpus.iter().zip(&run.temporary_bytes) {
                assert!(*bytes <= gpu.memory_bytes.unwrap_or(f64::INFINITY) * (1.0 + 1e-9));
            }
            let again =
                strategy.find_plan(&problem, Some(&planned.plan), &SearchLimit::none()).unwrap();
            assert_eq!(again.plan, planned.plan, "{} seed {seed}", strategy.name());
        }
    }
}

#[test]
fn a_previous_plan_that_is_as_good_is_kept_and_a_worse_one_is_not() {
    let problem = ResidencyProblem::with_one_gpu(vec![
        layer("a", 10.0, 2.0, Some(12.0)),
        layer("b", 1.0, 2.0, None),
    ]);
    // "a" from the host ends at 12, as it does loaded; and "b" is there by then either way.
    let direct = pipelined(&[DIRECT, HERE]);
    let name = "direct-host-access";
    assert_eq!(plan(name, &problem).plan, pipelined(&[HERE, HERE]));
    let kept = find_residency_strategy(name)
        .unwrap()
        .find_plan(&problem, Some(&direct), &SearchLimit::none())
        .unwrap();
    assert_eq!(kept.plan, direct);
    let worse = pipelined(&[HERE, HERE, HERE]);
    let kept = find_residency_strategy(name)
        .unwrap()
        .find_plan(&three(), Some(&worse), &SearchLimit::none())
        .unwrap();
    assert_close(kept.total_us, 34.0);
}

/// The total of the quickest of all plans with at most one helper.
fn quickest(problem: &ResidencyProblem, helper: Option<usize>) -> f64 {
    let options = |layer: &ResidencyLayer| {
        let mut options = vec![HERE];
        if layer.bytes > 0.0 {
            options.extend(helper.map(|through| Residency::Loaded { through }));
            options.extend(layer.direct_time().map(|_| DIRECT));
        }
        options
    };
    let options: Vec<Vec<Residency>> = problem.layers.iter().map(options).collect();
    let count: usize = options.iter().map(Vec::len).product();
    let total = |mut number: usize| {
        let mut layers = Vec::with_capacity(options.len());
        for options in &options {
            layers.push(options[number % options.len()]);
            number /= options.len();
        }
        simulate_residency(problem, &pipelined(&layers)).map_or(f64::INFINITY, |run| run.total_us)
    };
    (0..count).map(total).fold(f64::INFINITY, f64::min)
}

#[test]
fn exact_finds_what_trying_everything_finds() {
    for seed in 0..150 {
        let mut problem = varied(1 + seed as usize % 8, 2000 + seed);
        (problem.gpus[0].switch, problem.nvlinks) = ("0".to_owned(), Vec::new());
        let exact = plan("exact", &problem);
        assert!(exact.proved, "seed {seed}");
        assert_close(exact.total_us, quickest(&problem, None));
        assert_close(exact.bound_us.unwrap(), exact.total_us);
    }
}

#[test]
fn exact_finds_what_trying_everything_with_a_second_gpu_finds() {
    for seed in 0..60 {
        let mut problem = varied(1 + seed as usize % 6, 3000 + seed);
        let memory = problem.gpus[0].memory_bytes;
        (problem.gpus, problem.nvlinks) = deepplan_server(3);
        problem.gpus[0].memory_bytes = memory;
        problem.nvlinks.iter_mut().for_each(|link| link.bytes_per_second = 8e9 + seed as f64 * 1e9);
        let exact = plan("exact", &problem);
        assert!(exact.proved, "seed {seed}");
        assert_close(exact.total_us, quickest(&problem, Some(2)));
    }
}

#[test]
fn nothing_is_quicker_than_exact() {
    for seed in 0..60 {
        let problem = varied(3 + seed as usize % 12, 4000 + seed);
        let exact = plan("exact", &problem);
        for strategy in residency_strategies() {
            let total = strategy.find_plan(&problem, None, &SearchLimit::none()).unwrap().total_us;
            assert!(exact.total_us <= total * (1.0 + 1e-9), "{} seed {seed}", strategy.name());
        }
    }
}

#[test]
fn direct_host_access_is_close_to_the_optimum() {
    let loss = |seed: u64| {
        let problem = random_residency_problem(25, 5000 + seed);
        plan("direct-host-access", &problem).total_us / plan("exact", &problem).total_us - 1.0
    };
    let mean = (0..100).map(loss).sum::<f64>() / 100.0;
    assert!(mean < 0.005, "{mean}");
}

#[test]
fn quicker_loads_runs_and_links_and_more_memory_never_make_the_optimum_worse() {
    for seed in 0..60 {
        let problem = varied(2 + seed as usize % 8, 6000 + seed);
        let known = plan("exact", &problem).total_us;
        let changes: [fn(&mut ResidencyProblem); 5] = [
            |problem| problem.layers.iter_mut().for_each(|layer| layer.load_us *= 0.8),
            |problem| problem.layers.iter_mut().for_each(|layer| layer.in_memory_us *= 0.8),
            |problem| {
                let direct = |layer: &mut ResidencyLayer| {
                    layer.direct_us = layer.direct_us.map(|direct| direct * 0.8);
                };
                problem.layers.iter_mut().for_each(direct);
            },
            |problem| problem.nvlinks.iter_mut().for_each(|link| link.bytes_per_second *= 1.5),
            |problem| {
                let memory = |gpu: &mut ServerGpu| {
                    gpu.memory_bytes = gpu.memory_bytes.map(|memory| memory * 1.3);
                };
                problem.gpus.iter_mut().take(1).for_each(memory);
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut better = problem.clone();
            change(&mut better);
            let total = plan("exact", &better).total_us;
            assert!(total <= known * (1.0 + 1e-9), "change {number}, seed {seed}: {total} {known}");
        }
    }
}

#[test]
fn a_search_that_is_stopped_gives_its_best_plan_with_a_bound() {
    let problem = named_profile("bert-base", 0).unwrap();
    let stop = || true;
    let planned = find_residency_strategy("exact")
        .unwrap()
        .find_plan(&problem, None, &SearchLimit::new(&stop))
        .unwrap();
    let bound = planned.bound_us.unwrap();
    assert!(!planned.proved);
    assert!(bound < planned.total_us);
    assert!(planned.total_us < bound * 1.05, "{} {bound}", planned.total_us);
    assert!(planned.total_us <= plan("parallel-direct", &problem).total_us);
    simulate_residency(&problem, &planned.plan).unwrap();
}

#[test]
fn bert_base_has_the_papers_load_and_run_times_and_strategies_gain_on_it() {
    let mut problem = named_profile("bert-base", 0).unwrap();
    assert_eq!(problem.layers.len(), 199);
    let (load, run) = problem
        .layers
        .iter()
        .fold((0.0, 0.0), |(load, run), layer| (load + layer.load_us, run + layer.in_memory_us));
    assert!((load - 40_000.0).abs() < 1_000.0, "{load}");
    assert!((run - 9_350.0).abs() < 100.0, "{run}");
    let total = |name: &str| plan(name, &problem).total_us;
    // The printed algorithm, which ours improves upon.
    let printed =
        simulate_residency(&problem, &algorithm_1_as_printed(&problem).unwrap()).unwrap().total_us;
    assert!(total("direct-host-access") < printed && printed < 0.8 * total("pipeline"));
    assert!(total("parallel-direct") < 0.55 * total("direct-host-access"));
    (problem.gpus, problem.nvlinks) = deepplan_server(1);
    let exact = plan("exact", &problem);
    assert!(exact.proved);
    assert!(plan("direct-host-access", &problem).total_us < 1.01 * exact.total_us);
}

#[test]
fn what_does_not_fit_stays_on_the_host() {
    let mut problem = three();
    problem.gpus[0].memory_bytes = Some(45e3);
    // Without "a" 50 kB are left, without "b" 40 kB.
    let planned = plan("pipeline", &problem);
    assert_eq!(planned.plan.layers, [HERE, DIRECT, HERE]);
    // 10 + 2, "b" from the host until 20, "c" is there at 40.
    assert_close(planned.total_us, 44.0);
}

#[test]
fn a_bad_problem_is_refused_with_the_field_at_fault() {
    type Case = (fn(&mut ResidencyProblem), &'static str);
    let cases: [Case; 18] = [
        (|p| p.layers.clear(), "layers: none"),
        (|p| p.layers[1].name = "a".to_owned(), "layers[1].name: \"a\" is there twice"),
        (|p| p.layers[1].name.clear(), "layers[1].name: empty"),
        (|p| p.layers[2].load_us = -1.0, "layers[2].load_us: -1"),
        (|p| p.layers[2].bytes = f64::NAN, "layers[2].bytes: NaN"),
        (|p| p.layers[0].in_memory_us = 1e19, "layers[0].in_memory_us: 1"),
        (|p| p.layers[0].direct_us = Some(f64::INFINITY), "layers[0].direct_us: inf"),
        (|p| p.layers[0].load_us = 0.0, "layers[0].load_us: 0, expected how long 10000 bytes"),
        (|p| p.layers[0].bytes = 0.0, "layers[0].bytes: 0, expected the bytes"),
        (|p| p.gpus.clear(), "gpus: none"),
        (|p| p.gpus[1].name = "one".to_owned(), "gpus[1].name: \"one\" is there twice"),
        (|p| p.gpus[1].switch.clear(), "gpus[1].switch: empty"),
        (|p| p.gpus[0].memory_bytes = Some(-4.0), "gpus[0].memory_bytes: -4"),
        (|p| p.nvlinks[0].between[1] = "six".to_owned(), "nvlinks[0].between: no GPU \"six\""),
        (|p| p.nvlinks[0].between[1] = "one".to_owned(), "nvlinks[0].between: \"one\" and itself"),
        (|p| p.nvlinks[0].bytes_per_second = 0.0, "nvlinks[0].bytes_per_second: 0"),
        (
            |p| p.target = Some("six".to_owned()),
            "target: no GPU \"six\", there is \"one\", \"two\"",
        ),
        (|p| p.gpus[0].memory_bytes = Some(29e3), "layers[2]: \"c\" can't be read from the host"),
    ];
    for (spoil, expected) in cases {
        let mut problem = three_on_two(["0", "1"]);
        problem.check_consistency().unwrap();
        spoil(&mut problem);
        let error = problem.check_consistency().unwrap_err().to_string();
        assert!(error.contains(expected), "{error} does not say {expected}");
    }
}

#[test]
fn a_bad_plan_is_refused_with_the_layer_at_fault() {
    let mut problem = three_on_two(["0", "1"]);
    problem.nvlinks.clear();
    problem.gpus[0].memory_bytes = Some(50e3);
    let beyond = Residency::Loaded { through: 7 };
    let cases = [
        (vec![HERE], "plan.layers: 1 layers, expected 3"),
        (vec![DIRECT, HERE, DIRECT], "plan.layers[2]: \"c\" can't be read from the host"),
        (vec![DIRECT, beyond, HERE], "plan.layers[1]: \"b\" comes through GPU 7"),
        (
            vec![DIRECT, THERE, HERE],
            "plan.layers[1]: \"b\" comes through GPU \"two\", which has no",
        ),
        (vec![HERE, HERE, HERE], "60000 bytes are loaded, and GPU \"one\" has 50000"),
    ];
    for (layers, expected) in cases {
        let error = simulate_residency(&problem, &pipelined(&layers)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} does not say {expected}");
    }
}

#[test]
fn a_problem_file_needs_no_more_than_layers() {
    let text = r#"{"layers": [{"name": "a", "in_memory_us": 2}]}"#;
    let problem: ResidencyProblem = serde_json::from_str(text).unwrap();
    problem.check_consistency().unwrap();
    assert_close(plan("exact", &problem).total_us, 2.0);
    let text =
        r#"{"layers": [], "gpus": [{"name": "x", "switch": 3}, {"name": "y", "switch": "3"}]}"#;
    let problem: ResidencyProblem = serde_json::from_str(text).unwrap();
    assert_eq!(problem.gpus[0].switch, problem.gpus[1].switch);
    for (text, expected) in [
        (r#"{"layers": [], "gpu": 1}"#, "unknown field `gpu`"),
        (r#"{"layers": [{"name": "a"}]}"#, "missing field `in_memory_us`"),
        (r#"{"layers": [], "gpus": [{"switch": -1}]}"#, "switch: -1"),
    ] {
        let error = serde_json::from_str::<ResidencyProblem>(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_unknown_strategy_or_profile_is_refused_with_those_there_are() {
    let error = find_residency_strategy("fast").err().unwrap().to_string();
    assert!(error.contains("\"fast\"") && error.contains("parallel-direct"), "{error}");
    let error = named_profile("gpt-9", 0).unwrap_err().to_string();
    assert!(error.contains("\"gpt-9\"") && error.contains("bert-base"), "{error}");
}

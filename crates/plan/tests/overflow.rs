//! Overflow to the CPU: the simulator against cases that were worked out by hand, and what holds
//! for the plans of all strategies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use tessera_core::Random;
use tessera_plan::SearchLimit;
use tessera_plan::overflow::{
    CopyRates, OverflowBlock, OverflowDevice, OverflowEdge, OverflowPlan, OverflowProblem,
    OverflowRun, OverflowSolution, algorithm_1, find_overflow_strategy, overflow_strategies,
    random_overflow_problem, simulate_overflow,
};

use OverflowDevice::{Cpu, Gpu};

/// How far sums of times may be apart.
const CLOSE: f64 = 1e-6;

/// A block that runs on both devices.
fn block(name: &str, cpu_us: f64, gpu_us: f64) -> OverflowBlock {
    let (cpu_us, gpu_us) = (Some(cpu_us), Some(gpu_us));
    OverflowBlock { name: name.to_owned(), cpu_us, gpu_us, input_bytes: 0.0, output_bytes: 0.0 }
}

fn edge(from: &str, to: &str, bytes: f64) -> OverflowEdge {
    OverflowEdge { from: from.to_owned(), to: to.to_owned(), bytes }
}

/// Copies two bytes per µs to the GPU, and one byte per µs from it.
fn problem(blocks: Vec<OverflowBlock>, edges: Vec<OverflowEdge>) -> OverflowProblem {
    let rates = CopyRates {
        cpu_to_gpu_bytes_per_second: 2e6,
        gpu_to_cpu_bytes_per_second: 1e6,
        latency_us: 0.0,
    };
    OverflowProblem { blocks, edges, rates, threshold_us: 100.0, dispatch_us: 0.0 }
}

fn first_come(devices: &[OverflowDevice]) -> OverflowPlan {
    OverflowPlan { devices: devices.to_vec(), order: None, sequential: false }
}

fn in_order(devices: &[OverflowDevice], order: &[usize]) -> OverflowPlan {
    OverflowPlan { devices: devices.to_vec(), order: Some(order.to_vec()), sequential: false }
}

/// When blocks start and end.
fn spans(run: &OverflowRun) -> Vec<(f64, f64)> {
    run.blocks.iter().map(|block| (block.start_us, block.end_us)).collect()
}

fn plan(problem: &OverflowProblem, name: &str) -> OverflowSolution {
    find_overflow_strategy(name).unwrap().find_plan(problem, None, &SearchLimit::none()).unwrap()
}

/// A random problem whose node is a random one too: slow and fast copies, dear and free dispatch.
fn varied(blocks: usize, seed: u64) -> OverflowProblem {
    let mut random_node = Random::new(seed ^ 0x5eed);
    let mut problem = random_overflow_problem(blocks, seed);
    let mut rate = || 10f64.powf(8.0 + 3.0 * random_node.next_fraction());
    problem.rates.cpu_to_gpu_bytes_per_second = rate();
    problem.rates.gpu_to_cpu_bytes_per_second = rate();
    problem.rates.latency_us = [0.0, 5.0, 30.0][random_node.next_below(3) as usize];
    problem.dispatch_us = [0.0, 1.0, 20.0][random_node.next_below(3) as usize];
    problem.threshold_us = [0.0, 10.0, 100.0, 1000.0][random_node.next_below(4) as usize];
    problem
}

#[test]
fn a_chain_on_one_device_pays_for_the_queue_once() {
    let blocks = vec![block("a", 90.0, 10.0), block("b", 90.0, 20.0), block("c", 90.0, 30.0)];
    let mut problem = problem(blocks, vec![edge("a", "b", 8.0), edge("b", "c", 8.0)]);
    problem.dispatch_us = 2.0;
    for plan in [first_come(&[Gpu; 3]), in_order(&[Gpu; 3], &[0, 1, 2])] {
        let run = simulate_overflow(&problem, &plan).unwrap();
        assert_eq!(spans(&run), [(0.0, 12.0), (12.0, 32.0), (32.0, 62.0)]);
        assert_eq!((run.makespan_us, run.copied_bytes), (62.0, 0.0));
        assert_eq!((run.gpu_utilisation, run.cpu_utilisation), (1.0, 0.0));
    }
}

#[test]
fn a_chain_over_two_devices_pays_for_each_queue() {
    let blocks = vec![block("a", 5.0, 10.0), block("b", 90.0, 20.0)];
    let mut problem = problem(blocks, vec![edge("a", "b", 8.0)]);
    problem.dispatch_us = 2.0;
    let run = simulate_overflow(&problem, &first_come(&[Cpu, Gpu])).unwrap();
    assert_eq!(spans(&run), [(0.0, 7.0), (11.0, 33.0)]);
}

#[test]
fn a_chain_that_an_order_breaks_pays_twice() {
    let blocks = vec![block("a", 90.0, 10.0), block("b", 90.0, 20.0), block("x", 90.0, 5.0)];
    let mut problem = problem(blocks, vec![edge("a", "b", 8.0)]);
    problem.dispatch_us = 2.0;
    let makespan = |order: &[usize]| {
        simulate_overflow(&problem, &in_order(&[Gpu; 3], order)).unwrap().makespan_us
    };
    assert_eq!(makespan(&[0, 1, 2]), 39.0);
    assert_eq!(makespan(&[0, 2, 1]), 41.0);
}

#[test]
fn the_branches_of_a_fork_run_beside_each_other_and_copies_go_both_ways() {
    let blocks = vec![
        block("a", 90.0, 10.0),
        block("b", 90.0, 20.0),
        block("c", 15.0, 30.0),
        block("d", 90.0, 4.0),
    ];
    let edges =
        vec![edge("a", "b", 7.0), edge("a", "c", 5.0), edge("b", "d", 9.0), edge("c", "d", 6.0)];
    let mut problem = problem(blocks, edges);
    problem.dispatch_us = 1.0;
    let run = simulate_overflow(&problem, &first_come(&[Gpu, Gpu, Cpu, Gpu])).unwrap();
    assert_eq!(spans(&run), [(0.0, 11.0), (11.0, 32.0), (16.0, 32.0), (35.0, 40.0)]);
    assert_eq!(run.makespan_us, 40.0);
    let copies: Vec<_> = run.copies.iter().map(|copy| (copy.from, copy.to, copy.device)).collect();
    assert_eq!(copies, [(Some(0), Some(2), Cpu), (Some(2), Some(3), Gpu)]);
    let times: Vec<_> = run.copies.iter().map(|copy| (copy.start_us, copy.end_us)).collect();
    assert_eq!(times, [(11.0, 16.0), (32.0, 35.0)]);
    assert_eq!((run.copied_bytes, run.copy_us), (11.0, 8.0));
    assert_eq!((run.cpu_utilisation, run.gpu_utilisation), (16.0 / 40.0, 37.0 / 40.0));
    assert_eq!((run.mean_wait_cpu_us, run.mean_wait_gpu_us), (0.0, 0.0));
}

#[test]
fn inputs_and_results_of_the_model_are_with_the_host() {
    let mut only = block("a", 30.0, 10.0);
    only.input_bytes = 4.0;
    only.output_bytes = 5.0;
    let mut problem = problem(vec![only], Vec::new());
    problem.rates.latency_us = 1.0;
    let on_gpu = simulate_overflow(&problem, &first_come(&[Gpu])).unwrap();
    assert_eq!((spans(&on_gpu), on_gpu.makespan_us), (vec![(3.0, 13.0)], 19.0));
    let ends: Vec<_> = on_gpu.copies.iter().map(|copy| (copy.from, copy.to, copy.end_us)).collect();
    assert_eq!(ends, [(None, Some(0), 3.0), (Some(0), None, 19.0)]);
    let on_cpu = simulate_overflow(&problem, &first_come(&[Cpu])).unwrap();
    assert_eq!((on_cpu.makespan_us, on_cpu.copies.len()), (30.0, 0));
    let one_by_one = OverflowPlan { sequential: true, ..first_come(&[Gpu]) };
    assert_eq!(simulate_overflow(&problem, &one_by_one).unwrap().makespan_us, 19.0);
}

#[test]
fn first_come_is_first_served_unless_the_plan_has_an_order() {
    let blocks = vec![block("a", 90.0, 10.0), block("b", 90.0, 20.0), block("c", 5.0, 90.0)];
    let problem = problem(blocks, vec![edge("b", "c", 0.0)]);
    let devices = [Gpu, Gpu, Cpu];
    let run = simulate_overflow(&problem, &first_come(&devices)).unwrap();
    assert_eq!(spans(&run), [(0.0, 10.0), (10.0, 30.0), (30.0, 35.0)]);
    assert_eq!((run.blocks[1].waited_us, run.mean_wait_gpu_us), (10.0, 5.0));
    let run = simulate_overflow(&problem, &in_order(&devices, &[1, 0, 2])).unwrap();
    assert_eq!(spans(&run), [(20.0, 30.0), (0.0, 20.0), (20.0, 25.0)]);
}

#[test]
fn a_device_waits_for_the_block_whose_turn_it_is() {
    let blocks = vec![block("a", 10.0, 90.0), block("x", 90.0, 5.0), block("y", 90.0, 5.0)];
    let problem = problem(blocks, vec![edge("a", "x", 0.0)]);
    let devices = [Cpu, Gpu, Gpu];
    let run = simulate_overflow(&problem, &in_order(&devices, &[0, 1, 2])).unwrap();
    assert_eq!(spans(&run), [(0.0, 10.0), (10.0, 15.0), (15.0, 20.0)]);
    assert_eq!(run.blocks[2].waited_us, 15.0);
    assert_eq!(simulate_overflow(&problem, &first_come(&devices)).unwrap().makespan_us, 15.0);
}

#[test]
fn a_sequential_plan_runs_one_block_or_copy_at_a_time() {
    let mut blocks = vec![
        block("a", 90.0, 10.0),
        block("b", 90.0, 7.0),
        block("c", 5.0, 90.0),
        block("d", 90.0, 6.0),
    ];
    blocks[2].gpu_us = None;
    let mut problem = problem(blocks, vec![edge("a", "c", 4.0), edge("c", "d", 6.0)]);
    // Without queues there is nothing to pay for them.
    problem.dispatch_us = 50.0;
    let planned = plan(&problem, "sequential");
    assert_eq!(planned.plan.devices, [Gpu, Gpu, Cpu, Gpu]);
    let run = simulate_overflow(&problem, &planned.plan).unwrap();
    assert_eq!(spans(&run), [(0.0, 10.0), (10.0, 17.0), (21.0, 26.0), (29.0, 35.0)]);
    assert_eq!((run.blocks[1].waited_us, run.blocks[2].waited_us), (10.0, 7.0));
    assert_eq!((planned.makespan_us, run.makespan_us), (35.0, 35.0));
}

#[test]
fn queueing_delay_and_slowdown_take_what_their_rules_say() {
    // One after the other on the GPU: a waits 0, b waits 10, c waits 30.
    let blocks = vec![block("a", 11.0, 10.0), block("b", 31.0, 20.0), block("c", 59.0, 30.0)];
    let mut problem = problem(blocks, Vec::new());
    assert_eq!(plan(&problem, "queueing-delay").plan.devices, [Gpu, Gpu, Cpu]);
    problem.threshold_us = 20.0;
    assert_eq!(plan(&problem, "slowdown").plan.devices, [Cpu, Cpu, Gpu]);
}

#[test]
fn algorithm_1_divides_data_by_rate_and_repeats_until_nothing_changes() {
    // From the GPU, a copy takes a µs per byte; to it, half a µs.
    let blocks = vec![
        block("heavy", 9000.0, 1000.0),
        block("much", 30.0, 10.0),
        block("little", 30.0, 10.0),
        block("before", 20.0, 10.0),
    ];
    let edges = vec![
        edge("heavy", "much", 150.0),
        edge("heavy", "little", 70.0),
        edge("before", "much", 190.0),
    ];
    let mut problem = problem(blocks, edges);
    // `before` is looked at while `much` is still on the CPU, as nothing comes before either of the
    // others; it goes back a round later: 20 + 190 / 2 > 10 + 100.
    problem.blocks.rotate_right(1);
    assert_eq!(algorithm_1(&problem).unwrap(), [Gpu, Gpu, Gpu, Cpu]);
    // With little to hand over it stays.
    problem.edges[2].bytes = 170.0;
    assert_eq!(algorithm_1(&problem).unwrap(), [Cpu, Gpu, Gpu, Cpu]);
}

/// What holds for every run of a plan that fits.
fn assert_possible(problem: &OverflowProblem, plan: &OverflowPlan) -> OverflowRun {
    plan.check_against(problem).unwrap();
    let run = simulate_overflow(problem, plan).unwrap();
    let find = |name: &str| problem.blocks.iter().position(|block| block.name == name).unwrap();
    let copy = |bytes: f64, rate: f64| bytes / rate * 1e6 + problem.rates.latency_us;
    let to_gpu = |bytes| copy(bytes, problem.rates.cpu_to_gpu_bytes_per_second);
    let to_cpu = |bytes| copy(bytes, problem.rates.gpu_to_cpu_bytes_per_second);
    for edge in &problem.edges {
        let (from, to) = (&run.blocks[find(&edge.from)], &run.blocks[find(&edge.to)]);
        let copied = match (from.device, to.device) {
            (Cpu, Gpu) => to_gpu(edge.bytes),
            (Gpu, Cpu) => to_cpu(edge.bytes),
            _ => 0.0,
        };
        assert!(to.start_us >= from.end_us + copied - CLOSE, "{edge:?} is taken too early");
    }
    let mut last = 0.0f64;
    for (block, executed) in problem.blocks.iter().zip(&run.blocks) {
        let is_on_gpu = executed.device == Gpu;
        let time = if is_on_gpu { block.gpu_us } else { block.cpu_us }.unwrap();
        let extra = executed.end_us - executed.start_us - time;
        assert!(extra.abs() < CLOSE || (extra - problem.dispatch_us).abs() < CLOSE, "{extra}");
        assert!(executed.waited_us >= -CLOSE);
        if is_on_gpu && block.input_bytes > 0.0 {
            assert!(executed.start_us >= to_gpu(block.input_bytes) - CLOSE);
        }
        let has_copy = is_on_gpu && block.output_bytes > 0.0;
        let result = if has_copy { to_cpu(block.output_bytes) } else { 0.0 };
        last = last.max(executed.end_us + result);
    }
    assert!((run.makespan_us - last).abs() < CLOSE);
    for device in OverflowDevice::ALL {
        let on = run.blocks.iter().filter(|block| plan.sequential || block.device == device);
        let mut spans: Vec<_> = on.map(|block| (block.start_us, block.end_us)).collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let is_apart = spans.windows(2).all(|pair| pair[0].1 <= pair[1].0 + CLOSE);
        assert!(is_apart, "{device} runs two blocks at once");
    }
    run
}

#[test]
fn every_plan_can_be_run_and_costs_what_its_strategy_says() {
    for seed in 0..120 {
        let problem = varied(1 + seed as usize % 45, seed);
        for strategy in overflow_strategies() {
            if strategy.name() == "exact" && problem.blocks.len() > 9 {
                continue;
            }
            let planned = strategy.find_plan(&problem, None, &SearchLimit::none()).unwrap();
            let run = assert_possible(&problem, &planned.plan);
            assert_eq!(run.makespan_us, planned.makespan_us, "{} {seed}", strategy.name());
        }
    }
}

#[test]
fn planning_again_with_the_previous_plan_changes_nothing() {
    for seed in 0..60 {
        let problem = varied(2 + seed as usize % 40, seed);
        for strategy in overflow_strategies() {
            if strategy.name() == "exact" && problem.blocks.len() > 9 {
                continue;
            }
            let first = strategy.find_plan(&problem, None, &SearchLimit::none()).unwrap();
            let again =
                strategy.find_plan(&problem, Some(&first.plan), &SearchLimit::none()).unwrap();
            assert_eq!(first, again, "{} {seed}", strategy.name());
        }
    }
}

#[test]
fn a_previous_plan_stays_where_no_other_is_better() {
    let mut problem = problem(vec![block("a", 10.0, 10.0)], Vec::new());
    let previous = first_come(&[Gpu]);
    let again = |problem: &OverflowProblem| {
        let communication = find_overflow_strategy("communication").unwrap();
        communication
            .find_plan(problem, Some(&previous), &SearchLimit::none())
            .unwrap()
            .plan
            .devices
    };
    assert_eq!(plan(&problem, "communication").plan.devices, [Cpu]);
    assert_eq!(again(&problem), [Gpu]);
    problem.blocks[0].cpu_us = Some(9.0);
    assert_eq!(again(&problem), [Cpu]);
}

#[test]
fn a_previous_plan_that_no_longer_fits_is_replaced() {
    let problem = varied(20, 3);
    let planned = plan(&problem, "communication");
    for stale in [first_come(&[Gpu]), in_order(&planned.plan.devices, &[0; 20])] {
        let communication = find_overflow_strategy("communication").unwrap();
        let again = communication.find_plan(&problem, Some(&stale), &SearchLimit::none()).unwrap();
        assert_eq!(again, planned);
    }
}

#[test]
fn communication_is_never_worse_than_sequential() {
    for seed in 0..400 {
        let problem = varied(1 + seed as usize % 60, seed);
        let (planned, before) = (plan(&problem, "communication"), plan(&problem, "sequential"));
        let (planned_us, before_us) = (planned.makespan_us, before.makespan_us);
        assert!(planned_us <= before_us, "seed {seed}: {planned_us} above {before_us}");
    }
}

#[test]
fn communication_is_close_to_the_optimum_in_the_mean() {
    let losses = (0..60).filter_map(|seed| {
        let problem = random_overflow_problem(10, seed);
        let exact = plan(&problem, "exact");
        let planned = plan(&problem, "communication");
        exact.proved.then(|| planned.makespan_us / exact.makespan_us - 1.0)
    });
    let losses: Vec<f64> = losses.collect();
    assert!(losses.len() >= 50, "{} of 60 proved", losses.len());
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean < 0.02, "{mean}");
}

#[test]
fn a_graph_of_five_thousand_blocks_is_planned() {
    let problem = random_overflow_problem(5_000, 1);
    let (planned, before) = (plan(&problem, "communication"), plan(&problem, "sequential"));
    assert!(planned.makespan_us < 0.9 * before.makespan_us);
    assert_possible(&problem, &planned.plan);
}

/// Every order in which blocks can run, by trying.
fn all_orders(problem: &OverflowProblem) -> Vec<Vec<usize>> {
    fn grow(inputs: &[Vec<usize>], order: &mut Vec<usize>, found: &mut Vec<Vec<usize>>) {
        if order.len() == inputs.len() {
            found.push(order.clone());
        }
        for block in 0..inputs.len() {
            if !order.contains(&block) && inputs[block].iter().all(|input| order.contains(input)) {
                order.push(block);
                grow(inputs, order, found);
                order.pop();
            }
        }
    }
    let find = |name: &str| problem.blocks.iter().position(|block| block.name == name).unwrap();
    let inputs = problem.blocks.iter().map(|block| {
        let edges = problem.edges.iter().filter(|edge| edge.to == block.name);
        edges.map(|edge| find(&edge.from)).collect()
    });
    let mut found = Vec::new();
    grow(&inputs.collect::<Vec<Vec<usize>>>(), &mut Vec::new(), &mut found);
    found
}

/// The best of all placements in all orders, and of today's sequential plan.
fn by_trying_all(problem: &OverflowProblem) -> f64 {
    let mut best = plan(problem, "sequential").makespan_us;
    let orders = all_orders(problem);
    for placement in 0..1usize << problem.blocks.len() {
        let device = |block: usize| if placement >> block & 1 == 1 { Cpu } else { Gpu };
        let devices: Vec<OverflowDevice> = (0..problem.blocks.len()).map(device).collect();
        if first_come(&devices).check_against(problem).is_err() {
            continue;
        }
        for order in &orders {
            best = best
                .min(simulate_overflow(problem, &in_order(&devices, order)).unwrap().makespan_us);
        }
    }
    best
}

#[test]
fn exact_finds_what_trying_everything_finds() {
    for seed in 0..48 {
        let problem = varied(1 + seed as usize % 6, seed);
        let exact = plan(&problem, "exact");
        assert!(exact.proved, "seed {seed}");
        let (found, best) = (exact.makespan_us, by_trying_all(&problem));
        assert!((found - best).abs() <= 1e-8 * best, "seed {seed}: {found}, best {best}");
    }
}

#[test]
fn nothing_beats_exact() {
    for seed in 0..60 {
        let problem = varied(1 + seed as usize % 10, seed);
        let exact = plan(&problem, "exact");
        assert!(exact.bound_us.unwrap() <= exact.makespan_us);
        for strategy in overflow_strategies() {
            let other = plan(&problem, strategy.name()).makespan_us;
            assert!(exact.makespan_us <= other * (1.0 + 1e-9), "{} {seed}", strategy.name());
        }
    }
}

/// For a given plan without an order this need not hold: a block that is ready earlier may be
/// served before one that matters more. The optimum is over all orders, and for each of them it
/// holds.
#[test]
fn faster_devices_and_copies_never_make_the_optimum_worse() {
    for seed in 0..60 {
        let problem = varied(2 + seed as usize % 8, seed);
        let before = plan(&problem, "exact");
        let mut random = Random::new(seed);
        let mut faster = problem.clone();
        match seed % 4 {
            0 => faster.rates.cpu_to_gpu_bytes_per_second *= 1.0 + random.next_fraction(),
            1 => faster.rates.gpu_to_cpu_bytes_per_second *= 1.0 + random.next_fraction(),
            2 => faster.rates.latency_us *= random.next_fraction(),
            _ => {
                for block in &mut faster.blocks {
                    block.cpu_us = block.cpu_us.map(|time| time * random.next_fraction());
                    block.gpu_us = block.gpu_us.map(|time| time * random.next_fraction());
                }
            }
        }
        let after = plan(&faster, "exact");
        assert!(before.proved && after.proved, "seed {seed}");
        assert!(after.makespan_us <= before.makespan_us * (1.0 + 1e-8), "seed {seed}");
    }
}

#[test]
fn a_limit_that_is_reached_at_once_still_gives_a_plan() {
    let reached = || true;
    for seed in 0..20 {
        let problem = varied(20, seed);
        for strategy in overflow_strategies() {
            let planned = strategy.find_plan(&problem, None, &SearchLimit::new(&reached)).unwrap();
            assert_possible(&problem, &planned.plan);
            if ["communication", "exact"].contains(&strategy.name()) {
                assert!(planned.makespan_us <= plan(&problem, "sequential").makespan_us);
            }
            if strategy.name() == "exact" {
                assert!(planned.bound_us.unwrap() > 0.0);
                assert!(planned.bound_us.unwrap() <= planned.makespan_us);
                assert!(!planned.proved && planned.optimality_gap().unwrap() >= 0.0);
            }
        }
    }
}

#[test]
fn exact_refuses_what_it_cannot_solve_and_unknown_strategies_are_named() {
    let too_many = find_overflow_strategy("exact").unwrap().find_plan(
        &random_overflow_problem(25, 0),
        None,
        &SearchLimit::none(),
    );
    assert_eq!(too_many.unwrap_err().to_string(), "exact: 25 blocks, expected at most 24");
    let unknown = find_overflow_strategy("fastest").err().unwrap().to_string();
    assert!(unknown.contains("\"fastest\"") && unknown.contains("queueing-delay"), "{unknown}");
}

/// Makes a good problem a bad one.
type Spoil = fn(&mut OverflowProblem);

#[test]
fn what_is_wrong_with_a_problem_is_named() {
    let good = || {
        let blocks = vec![block("a", 3.0, 1.0), block("b", 3.0, 1.0), block("c", 3.0, 1.0)];
        problem(blocks, vec![edge("a", "b", 8.0), edge("b", "c", 8.0)])
    };
    good().check_consistency().unwrap();
    let cases: [(&str, Spoil); 19] = [
        ("blocks: none", |problem| problem.blocks.clear()),
        ("\"b\" → \"c\" → \"b\" is a cycle", |problem| problem.edges.push(edge("c", "b", 1.0))),
        ("edges[1].from: there is no block \"x\"", |problem| problem.edges[1].from = "x".into()),
        ("edges[0].to: there is no block \"y\"", |problem| problem.edges[0].to = "y".into()),
        ("edges[2]: from \"a\" to itself", |problem| problem.edges.push(edge("a", "a", 1.0))),
        ("edges[2]: \"a\" to \"b\" is there twice", |problem| {
            problem.edges.push(edge("a", "b", 1.0));
        }),
        ("blocks[2].name: \"a\" is there twice", |problem| problem.blocks[2].name = "a".into()),
        ("blocks[1].name: empty", |problem| problem.blocks[1].name.clear()),
        ("blocks[1].cpu_us: NaN", |problem| problem.blocks[1].cpu_us = Some(f64::NAN)),
        ("blocks[0].gpu_us: -1", |problem| problem.blocks[0].gpu_us = Some(-1.0)),
        ("blocks[0].gpu_us: inf", |problem| problem.blocks[0].gpu_us = Some(f64::INFINITY)),
        ("blocks[2].cpu_us: 2", |problem| problem.blocks[2].cpu_us = Some(2e18)),
        ("\"b\" has no cpu_us and no gpu_us", |problem| {
            (problem.blocks[1].cpu_us, problem.blocks[1].gpu_us) = (None, None);
        }),
        ("blocks[0].input_bytes: -5", |problem| problem.blocks[0].input_bytes = -5.0),
        ("edges[1].bytes: NaN", |problem| problem.edges[1].bytes = f64::NAN),
        ("rates.cpu_to_gpu_bytes_per_second: 0", |problem| {
            problem.rates.cpu_to_gpu_bytes_per_second = 0.0;
        }),
        ("rates.latency_us: -1", |problem| problem.rates.latency_us = -1.0),
        ("dispatch_us: NaN", |problem| problem.dispatch_us = f64::NAN),
        ("edges[0].bytes: 8 bytes take", |problem| {
            problem.rates.gpu_to_cpu_bytes_per_second = 1e-200;
        }),
    ];
    for (expected, spoil) in cases {
        let mut bad = good();
        spoil(&mut bad);
        let error = bad.check_consistency().unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?}, expected {expected:?}");
        assert!(!error.contains('\n'));
        for strategy in overflow_strategies() {
            let refused = strategy.find_plan(&bad, None, &SearchLimit::none()).unwrap_err();
            assert_eq!(refused.to_string(), error);
        }
    }
}

#[test]
fn what_is_wrong_with_a_plan_is_named() {
    let mut blocks = vec![block("a", 3.0, 1.0), block("b", 3.0, 1.0)];
    blocks[1].gpu_us = None;
    let problem = problem(blocks, vec![edge("a", "b", 8.0)]);
    let fits = [Gpu, Cpu];
    let cases = [
        ("devices: 1, expected one for each of 2 blocks", first_come(&[Gpu])),
        ("devices[1]: \"b\" can't run on the GPU", first_come(&[Gpu, Gpu])),
        ("order: 1 blocks, expected all 2", in_order(&fits, &[0])),
        ("order[1]: \"a\" is there twice", in_order(&fits, &[0, 0])),
        ("order[1]: 7, expected a number below 2", in_order(&fits, &[0, 7])),
        ("order[0]: \"b\" takes what \"a\" makes later", in_order(&fits, &[1, 0])),
    ];
    for (expected, plan) in cases {
        assert_eq!(plan.check_against(&problem).unwrap_err().to_string(), expected);
        assert_eq!(simulate_overflow(&problem, &plan).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_problem_is_read_with_its_defaults_and_unknown_fields_are_refused() {
    let text = r#"{"blocks": [{"name": "a", "gpu_us": 5}], "rates": {
        "cpu_to_gpu_bytes_per_second": 1e9, "gpu_to_cpu_bytes_per_second": 1e9}}"#;
    let problem: OverflowProblem = serde_json::from_str(text).unwrap();
    assert_eq!((problem.threshold_us, problem.dispatch_us), (100.0, 0.0));
    assert_eq!((problem.rates.latency_us, problem.blocks[0].cpu_us), (0.0, None));
    let misspelt = text.replace("gpu_us", "gpu_ms");
    let error = serde_json::from_str::<OverflowProblem>(&misspelt).unwrap_err().to_string();
    assert!(error.contains("gpu_ms"), "{error}");
    let planned = plan(&problem, "sequential").plan;
    let written = serde_json::to_string(&planned).unwrap();
    assert_eq!(written, r#"{"devices":["gpu"],"sequential":true}"#);
    assert_eq!(serde_json::from_str::<OverflowPlan>(&written).unwrap(), planned);
}

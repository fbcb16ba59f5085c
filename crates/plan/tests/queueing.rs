//! Queueing: formulas against known values and a simulation, replicas against trying all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::{BTreeMap, BinaryHeap};

use tessera_core::Random;
use tessera_plan::queueing::{
    QueueingBatch, QueueingBlock, QueueingProblem, QueueingTask, ReplicaBudget, ReplicaPlan,
    ReplicaSolution, compute_load, erlang_c, evaluate_replicas, mean_waiting_time,
    mean_waiting_time_batched, plan_replicas,
};

fn block(name: &str, time_us: f64) -> QueueingBlock {
    QueueingBlock {
        name: name.to_owned(),
        time_us,
        overhead_us: 0.0,
        variation: 0.0,
        batch: None,
        replicas: 1,
        cores: 1.0,
        bytes: 0.0,
    }
}

fn task(name: &str, rate_per_second: f64, path: &[&str]) -> QueueingTask {
    QueueingTask {
        name: name.to_owned(),
        rate_per_second,
        path: path.iter().map(|block| (*block).to_owned()).collect(),
        exits: BTreeMap::new(),
        transfer_us: 0.0,
        latency_us: None,
    }
}

fn problem(blocks: Vec<QueueingBlock>, tasks: Vec<QueueingTask>) -> QueueingProblem {
    QueueingProblem { blocks, tasks, utilisation: 0.7, hysteresis: 0.1, budget: None }
}

fn is_about(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * b.abs()
}

/// The pipeline of the thesis on its first server: inference of table 4.2, the last block with its
/// classifier, and a quarter of the 2.55 ms of overhead for each.
fn pipeline(overhead_us: f64, rate: f64) -> QueueingProblem {
    let times = [("b1", 2401.0), ("b2", 2718.0), ("b3", 4021.0), ("b4", 2276.0 + 287.0)];
    let blocks = times.map(|(name, time)| QueueingBlock { overhead_us, ..block(name, time) });
    let mut task = task("resnet50", rate, &["b1", "b2", "b3", "b4"]);
    task.transfer_us = 2000.0;
    problem(blocks.to_vec(), vec![task])
}

#[test]
fn the_highest_rate_of_the_thesis_is_met_when_overhead_keeps_a_block_busy() {
    // With (4.2) as printed, 1 / 4.021 ms; it measured 217 requests a second.
    let printed = compute_load(&pipeline(0.0, 100.0)).unwrap();
    assert_eq!(printed.bottleneck.as_deref(), Some("b3"));
    assert!(is_about(printed.tasks[0].highest_rate_per_second, 248.69, 1e-4));
    let busy = compute_load(&pipeline(2550.0 / 4.0, 100.0)).unwrap();
    let highest = busy.tasks[0].highest_rate_per_second;
    assert!(is_about(highest, 214.66, 1e-4));
    assert!(is_about(highest, 217.0, 0.011));
    assert!(is_about(busy.highest_scale.unwrap(), 2.1466, 1e-4));
    // 11.703 ms of inference, 2.55 ms of overhead, and 2 ms to and fro.
    assert!(is_about(busy.tasks[0].unloaded_us, 16253.0, 1e-9));
    // It saw about 18 ms for 1 to 4 clients that wait for each answer, and more from 5 on: by
    // Little's law, the bottleneck is always busy from 3.9 on.
    let clients = 0.018 * highest;
    assert!(clients > 3.5 && clients < 4.5, "{clients}");
}

#[test]
fn a_block_gets_what_all_its_tasks_send_less_what_left_at_exits() {
    let blocks = vec![block("b1", 1000.0), block("b2", 2000.0), block("b3", 4000.0)];
    let mut early = task("early", 100.0, &["b1", "b2", "b3"]);
    early.exits = BTreeMap::from([("b1".to_owned(), 0.4), ("b2".to_owned(), 0.5)]);
    let whole = task("whole", 50.0, &["b1", "b3"]);
    let found = compute_load(&problem(blocks, vec![early, whole])).unwrap();
    let arrivals: Vec<f64> = found.blocks.iter().map(|block| block.arrivals_per_second).collect();
    assert_eq!(arrivals, [150.0, 60.0, 80.0]);
    let utilisations: Vec<f64> = found.blocks.iter().map(|block| block.utilisation).collect();
    assert!(utilisations.iter().zip([0.15, 0.12, 0.32]).all(|(a, b)| is_about(*a, b, 1e-9)));
    // 1 ms for all, 2 ms for 60 of 100, 4 ms for 30.
    assert!(is_about(found.tasks[0].unloaded_us, 3400.0, 1e-9));
    assert!(is_about(found.highest_scale.unwrap(), 3.125, 1e-9));
    // b3 does 250 a second; 50 are the other's, and 0.3 of its own get there.
    assert!(is_about(found.tasks[0].highest_rate_per_second, 200.0 / 0.3, 1e-9));
    assert!(is_about(found.tasks[1].highest_rate_per_second, 220.0, 1e-9));
}

#[test]
fn the_bottleneck_is_the_busiest_block_and_not_the_slowest() {
    let blocks = vec![block("shared", 2000.0), block("slow", 5000.0)];
    let mut tasks = vec![task("t0", 100.0, &["shared", "slow"])];
    tasks.extend((1..4).map(|number| task(&format!("t{number}"), 100.0, &["shared"])));
    let found = compute_load(&problem(blocks, tasks)).unwrap();
    assert_eq!(found.bottleneck.as_deref(), Some("shared"));
    // 400 a second are more than the slowest block could do, and all is well.
    assert!(found.is_stable);
}

#[test]
fn an_overloaded_block_has_no_waiting_time_and_its_tasks_no_latency() {
    let blocks = vec![block("b1", 1000.0), block("b2", 1000.0)];
    let tasks = vec![task("fast", 1100.0, &["b1"]), task("other", 10.0, &["b2"])];
    let found = compute_load(&problem(blocks, tasks)).unwrap();
    assert!(!found.is_stable);
    assert_eq!((found.blocks[0].wait_us, found.tasks[0].latency_us), (None, None));
    assert!(found.tasks[1].latency_us.is_some());
    assert!(is_about(found.highest_scale.unwrap(), 1000.0 / 1100.0, 1e-9));
}

#[test]
fn without_requests_there_is_no_bottleneck() {
    let found =
        compute_load(&problem(vec![block("b", 10.0)], vec![task("t", 0.0, &["b"])])).unwrap();
    assert_eq!((found.bottleneck, found.highest_scale, found.is_stable), (None, None, true));
    assert_eq!(found.tasks[0].latency_us, Some(10.0));
}

#[test]
fn waiting_has_its_known_values() {
    assert!(is_about(erlang_c(1, 0.5), 0.5, 1e-12));
    assert!(is_about(erlang_c(2, 1.0), 1.0 / 3.0, 1e-12));
    assert!(is_about(erlang_c(3, 2.0), 4.0 / 9.0, 1e-12));
    assert_eq!(erlang_c(2, 2.5), 1.0);
    // One replica: exponential times wait rho / (1 - rho), steady ones half of it.
    assert!(is_about(mean_waiting_time(1, 0.8, 1.0, 1.0).unwrap(), 4.0, 1e-12));
    assert!(is_about(mean_waiting_time(1, 0.8, 1.0, 0.0).unwrap(), 2.0, 1e-12));
    assert_eq!(mean_waiting_time(2, 2.0, 1.0, 1.0), None);
    assert!(erlang_c(50_000, 49_900.0) < 1.0);
}

/// The mean wait in a queue with Poisson arrivals, simulated.
fn simulated(replicas: u32, arrivals: f64, service: impl Fn(&mut Random) -> f64) -> f64 {
    let mut random = Random::new(11);
    let (mut now, mut waited, count) = (0.0, 0.0, 400_000);
    // When each replica is free, the earliest on top; in whole steps, as floats have no order.
    let steps = 1e9;
    let mut free: BinaryHeap<std::cmp::Reverse<u64>> =
        (0..replicas).map(|_| std::cmp::Reverse(0)).collect();
    for _ in 0..count {
        now -= random.next_fraction().ln() / arrivals;
        let start = (free.pop().unwrap().0 as f64 / steps).max(now);
        waited += start - now;
        free.push(std::cmp::Reverse(((start + service(&mut random)) * steps) as u64));
    }
    waited / f64::from(count)
}

#[test]
fn waiting_is_what_a_simulation_finds() {
    type Service = fn(&mut Random) -> f64;
    let exponential: Service = |random| -random.next_fraction().ln();
    let steady: Service = |_| 1.0;
    let even: Service = |random| 2.0 * random.next_fraction();
    for (replicas, arrivals, service, variation, tolerance) in [
        (1, 0.7, exponential, 1.0, 0.03),
        (3, 2.4, exponential, 1.0, 0.04),
        (1, 0.7, steady, 0.0, 0.02),
        (1, 0.7, even, 1.0 / 3.0_f64.sqrt(), 0.02),
        // With several replicas it is an approximation.
        (2, 1.4, steady, 0.0, 0.06),
        (4, 2.8, steady, 0.0, 0.12),
        (4, 2.8, even, 1.0 / 3.0_f64.sqrt(), 0.08),
    ] {
        let found = mean_waiting_time(replicas, arrivals, 1.0, variation).unwrap();
        let expected = simulated(replicas, arrivals, service);
        assert!(is_about(found, expected, tolerance), "{replicas}, {arrivals}: {found} {expected}");
    }
}

/// How much longer than alone requests take that run in batches of what waits, simulated.
fn simulated_batches(arrivals: f64, one: f64, full: f64, size: u32) -> f64 {
    let mut random = Random::new(12);
    let mut now = 0.0;
    let times: Vec<f64> = (0..200_000)
        .map(|_| {
            now -= random.next_fraction().ln() / arrivals;
            now
        })
        .collect();
    let each = (full - one) / f64::from(size - 1);
    let (mut free, mut at, mut sum) = (0.0_f64, 0, 0.0);
    while at < times.len() {
        let start = free.max(times[at]);
        let waiting = times[at..].iter().take(size as usize).take_while(|time| **time <= start);
        let count = waiting.count();
        free = start + one + each * (count - 1) as f64;
        sum += times[at..at + count].iter().map(|time| free - time).sum::<f64>();
        at += count;
    }
    sum / times.len() as f64 - one
}

#[test]
fn waiting_for_batches_is_close_to_what_a_simulation_finds() {
    for (size, full) in [(4, 1.3), (8, 2.4), (8, 4.5), (16, 2.5), (2, 1.5), (8, 6.6)] {
        for utilisation in [0.2, 0.5, 0.7, 0.8] {
            let arrivals = utilisation * f64::from(size) / full;
            let found = 1.0 + mean_waiting_time_batched(1, arrivals, 1.0, full, size).unwrap();
            let expected = 1.0 + simulated_batches(arrivals, 1.0, full, size);
            let ratio = found / expected;
            assert!((0.93..=1.25).contains(&ratio), "{size}, {full}, {utilisation}: {ratio}");
        }
    }
    // It does four a second.
    assert!(mean_waiting_time_batched(1, 3.9, 1.0, 2.0, 8).is_some());
    assert_eq!(mean_waiting_time_batched(1, 4.0, 1.0, 2.0, 8), None);
}

#[test]
fn a_batch_raises_the_highest_rate_where_it_is_quicker() {
    let batch = |time_us| Some(QueueingBatch { size: 8, time_us });
    let highest = |batch: Option<QueueingBatch>| {
        let block = QueueingBlock { batch, ..block("b", 1000.0) };
        compute_load(&problem(vec![block], vec![task("t", 10.0, &["b"])])).unwrap().tasks[0]
            .highest_rate_per_second
    };
    assert!(is_about(highest(batch(2000.0)), 4000.0, 1e-9));
    assert!(is_about(highest(batch(9000.0)), 1000.0, 1e-9));
    assert!(is_about(highest(None), 1000.0, 1e-9));
}

fn counts(planned: &ReplicaSolution) -> Vec<u32> {
    planned.plan.replicas.values().copied().collect()
}

fn random(random: &mut Random, with_latency: bool) -> QueueingProblem {
    let names = ["b0", "b1", "b2"];
    let blocks = names.map(|name| QueueingBlock {
        overhead_us: random.next_below(200) as f64,
        variation: random.next_below(3) as f64 / 2.0,
        ..block(name, 500.0 + random.next_below(3000) as f64)
    });
    let tasks = (0..1 + random.next_below(3)).map(|number| {
        let mut path: Vec<&str> = names.into_iter().filter(|_| random.next_below(3) > 0).collect();
        if path.is_empty() {
            path.push("b0");
        }
        let mut task = task(&format!("t{number}"), random.next_below(400) as f64, &path);
        if random.next_below(3) == 0 {
            task.exits.insert(path[0].to_owned(), random.next_below(90) as f64 / 100.0);
        }
        if with_latency && random.next_below(4) > 0 {
            let served: f64 = path.len() as f64 * 1500.0;
            task.latency_us = Some(served * (0.9 + random.next_below(100) as f64 / 100.0));
        }
        task
    });
    let tasks = tasks.collect();
    problem(blocks.to_vec(), tasks)
}

/// Whether replicas meet the targets, by what [`compute_load`] says of them; targets below the time
/// without waiting are left out.
fn meets(problem: &QueueingProblem, counts: &[u32]) -> bool {
    let mut problem = problem.clone();
    for (block, &count) in problem.blocks.iter_mut().zip(counts) {
        block.replicas = count;
    }
    let load = compute_load(&problem).unwrap();
    load.blocks.iter().all(|block| block.utilisation <= problem.utilisation * (1.0 + 1e-9))
        && load.tasks.iter().all(|task| match (task.target_us, task.latency_us) {
            (Some(target), Some(latency)) => {
                task.unloaded_us >= target || latency <= target * (1.0 + 1e-9)
            }
            (Some(_), None) => false,
            (None, _) => true,
        })
}

fn fewest_by_trying_all(problem: &QueueingProblem, most: u32) -> u32 {
    let all =
        (1..=most).flat_map(|a| (1..=most).flat_map(move |b| (1..=most).map(move |c| [a, b, c])));
    let enough = all.filter(|counts| meets(problem, counts));
    enough.map(|counts| counts.iter().sum()).min().expect("some are enough")
}

#[test]
fn the_replicas_are_the_fewest_of_all_that_meet_the_targets() {
    let mut numbers = Random::new(21);
    let (mut tried, mut unproved, mut more) = (0, 0, 0);
    for _ in 0..120 {
        let problem = random(&mut numbers, true);
        let plan = plan_replicas(&problem, None).unwrap();
        let found = counts(&plan);
        assert!(meets(&problem, &found));
        let (sum, most) = (found.iter().sum::<u32>(), *found.iter().max().unwrap());
        if most > 6 {
            continue;
        }
        tried += 1;
        let fewest = fewest_by_trying_all(&problem, most + 2);
        if plan.proved {
            assert_eq!(sum, fewest);
        } else {
            (unproved, more) = (unproved + 1, more + sum - fewest);
        }
    }
    assert!(tried > 60, "{tried}");
    assert!(unproved < tried / 5 && more <= 2, "{unproved} unproved, {more} too many");
}

#[test]
fn a_budget_that_is_too_small_gives_the_least_busy_bottleneck_that_it_can_pay() {
    let mut numbers = Random::new(22);
    let mut bound = 0;
    for _ in 0..100 {
        let mut problem = random(&mut numbers, false);
        for block in &mut problem.blocks {
            block.cores = 1.0 + numbers.next_below(3) as f64;
        }
        let cores = problem.blocks.iter().map(|block| block.cores).sum::<f64>();
        let limit = cores + numbers.next_below(4) as f64;
        problem.budget = Some(ReplicaBudget { cores: Some(limit), ..ReplicaBudget::default() });
        let plan = plan_replicas(&problem, None).unwrap();
        assert!(plan.taken.cores.unwrap() <= limit);
        assert!(plan.proved);
        if plan.unmet.is_empty() {
            continue;
        }
        bound += 1;
        let peak = |counts: &[u32]| {
            let blocks = plan.load.blocks.iter().zip(counts);
            let loads = blocks.map(|(block, count)| {
                block.utilisation * f64::from(block.replicas) / f64::from(*count)
            });
            loads.fold(0.0, f64::max)
        };
        let all = (1..6).flat_map(|a| (1..6).flat_map(move |b| (1..6).map(move |c| [a, b, c])));
        let fit = all.filter(|counts| {
            let pairs = problem.blocks.iter().zip(counts);
            pairs.map(|(block, count)| block.cores * f64::from(*count)).sum::<f64>() <= limit
        });
        let best = fit.map(|counts| peak(&counts)).fold(f64::INFINITY, f64::min);
        assert!(is_about(peak(&counts(&plan)), best, 1e-9));
    }
    assert!(bound > 20, "{bound}");
}

#[test]
fn planning_again_changes_nothing() {
    let mut numbers = Random::new(23);
    for _ in 0..150 {
        let mut problem = random(&mut numbers, true);
        if numbers.next_below(2) == 0 {
            let limit = 3 + numbers.next_below(6) as u32;
            problem.budget =
                Some(ReplicaBudget { replicas: Some(limit), ..ReplicaBudget::default() });
        }
        let first = plan_replicas(&problem, None).unwrap();
        for task in &mut problem.tasks {
            task.rate_per_second *= 0.5 + numbers.next_fraction();
        }
        let second = plan_replicas(&problem, Some(&first.plan)).unwrap();
        let third = plan_replicas(&problem, Some(&second.plan)).unwrap();
        assert_eq!(counts(&third), counts(&second));
        let limit = problem.budget.and_then(|budget| budget.replicas).unwrap_or(u32::MAX);
        assert!(counts(&second).iter().sum::<u32>() <= limit);
    }
}

#[test]
fn noise_below_the_hysteresis_changes_each_block_once_at_most() {
    let mut numbers = Random::new(24);
    let (mut with, mut without) = (0, 0);
    for _ in 0..40 {
        let base = random(&mut numbers, false);
        let mut previous: Option<ReplicaSolution> = None;
        let (mut changes, mut before) = (0, None);
        for _ in 0..30 {
            let mut problem = base.clone();
            // From 0.96 to 1.04 for all tasks: less than 1.1 apart.
            let noise = 0.96 + 0.08 * numbers.next_fraction();
            for task in &mut problem.tasks {
                task.rate_per_second *= noise;
            }
            let plan =
                plan_replicas(&problem, previous.as_ref().map(|planned| &planned.plan)).unwrap();
            changes += u32::from(previous.as_ref().is_some_and(|old| counts(old) != counts(&plan)));
            previous = Some(plan);
            let fresh = counts(&plan_replicas(&problem, None).unwrap());
            without += u32::from(before.as_ref().is_some_and(|before| *before != fresh));
            before = Some(fresh);
        }
        with += changes;
        // Each of three blocks may grow once.
        assert!(changes <= 3, "{changes}");
    }
    assert!(without > 4 * with, "{with} changes with a previous plan, {without} without");
}

#[test]
fn replicas_follow_a_load_that_really_changes() {
    let at = |rate: f64| problem(vec![block("b", 1000.0)], vec![task("t", rate, &["b"])]);
    let first = plan_replicas(&at(1400.0), None).unwrap();
    assert_eq!(counts(&first), [2]);
    let more = plan_replicas(&at(1410.0), Some(&first.plan)).unwrap();
    assert_eq!(counts(&more), [3]);
    // 2 would do for 1300, but not for a tenth more.
    let stays = plan_replicas(&at(1300.0), Some(&more.plan)).unwrap();
    assert_eq!((counts(&stays), stays.proved), (vec![3], false));
    let less = plan_replicas(&at(1200.0), Some(&stays.plan)).unwrap();
    assert_eq!((counts(&less), less.proved), (vec![2], true));
}

#[test]
fn a_target_that_cannot_be_met_is_told_with_its_task_and_costs_no_replica() {
    let mut problem = problem(vec![block("b", 1000.0)], vec![task("t", 100.0, &["b"])]);
    problem.tasks[0].latency_us = Some(900.0);
    let plan = plan_replicas(&problem, None).unwrap();
    assert_eq!(counts(&plan), [1]);
    let expected = "task \"t\": it takes 1.00 ms without any waiting, more than 0.90 ms";
    assert_eq!(plan.unmet, [expected]);
    // With a budget, what could be met but is not says so.
    problem.tasks[0].latency_us = Some(1010.0);
    problem.budget = Some(ReplicaBudget { replicas: Some(1), ..ReplicaBudget::default() });
    let plan = plan_replicas(&problem, None).unwrap();
    assert_eq!(plan.unmet, ["task \"t\": 1.06 ms, more than 1.01 ms"]);
    problem.budget = None;
    assert_eq!(counts(&plan_replicas(&problem, None).unwrap()), [2]);
}

#[test]
fn a_given_plan_is_evaluated_with_the_figures_of_the_problem() {
    let problem = problem(vec![block("b", 1000.0)], vec![task("t", 1400.0, &["b"])]);
    let given = |count: u32| ReplicaPlan { replicas: BTreeMap::from([("b".to_owned(), count)]) };
    let few = evaluate_replicas(&problem, &given(1)).unwrap();
    assert_eq!(few.unmet, ["block \"b\": utilisation 1.40, more than 0.70"]);
    assert!(!few.load.is_stable && !few.proved);
    assert!(evaluate_replicas(&problem, &given(2)).unwrap().proved);
    let many = evaluate_replicas(&problem, &given(7)).unwrap();
    assert!(many.unmet.is_empty() && !many.proved);
    let mut other = given(0);
    let refused = |plan: &ReplicaPlan| evaluate_replicas(&problem, plan).unwrap_err().to_string();
    assert!(refused(&other).contains("replicas.b: 0, expected"));
    other.replicas = BTreeMap::from([("c".to_owned(), 1)]);
    assert!(refused(&other).contains("replicas: there is no block \"c\""));
    other.replicas.clear();
    assert!(refused(&other).contains("replicas.b: missing"));
}

#[test]
fn a_replica_more_never_makes_a_request_slower() {
    let mut numbers = Random::new(25);
    for _ in 0..100 {
        let mut problem = random(&mut numbers, false);
        for block in &mut problem.blocks {
            block.replicas = 1 + numbers.next_below(4) as u32;
        }
        let before = compute_load(&problem).unwrap();
        problem.blocks[numbers.next_below(3) as usize].replicas += 1;
        let after = compute_load(&problem).unwrap();
        for (before, after) in before.tasks.iter().zip(&after.tasks) {
            let time = |latency: Option<f64>| latency.unwrap_or(f64::INFINITY);
            assert!(time(after.latency_us) <= time(before.latency_us) * (1.0 + 1e-12));
            assert!(after.highest_rate_per_second >= before.highest_rate_per_second);
        }
    }
}

#[test]
fn a_problem_has_defaults_and_a_plan_is_the_same_after_json() {
    let text = r#"{"blocks": [{"name": "b", "time_us": 1000}],
                   "tasks": [{"name": "t", "rate_per_second": 1000, "path": ["b"]}]}"#;
    let problem: QueueingProblem = serde_json::from_str(text).unwrap();
    assert_eq!(
        (problem.utilisation, problem.hysteresis, problem.blocks[0].replicas),
        (0.7, 0.1, 1)
    );
    let plan = plan_replicas(&problem, None).unwrap();
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<ReplicaSolution>(&text).unwrap(), plan);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_name_of_the_field() {
    type Change = fn(&mut QueueingProblem);
    let cases: [(Change, &str); 22] = [
        (|problem| problem.utilisation = 1.0, "utilisation: 1,"),
        (|problem| problem.utilisation = f64::NAN, "utilisation: NaN"),
        (|problem| problem.hysteresis = -0.1, "hysteresis: -0.1"),
        (|problem| problem.blocks.clear(), "blocks: none"),
        (
            |problem| problem.blocks[1].name = "b1".to_owned(),
            "blocks[1].name: \"b1\" is there twice",
        ),
        (|problem| problem.blocks[2].time_us = 0.0, "blocks[2].time_us: 0"),
        (|problem| problem.blocks[2].time_us = f64::NAN, "blocks[2].time_us: NaN"),
        (|problem| problem.blocks[2].overhead_us = -1.0, "blocks[2].overhead_us: -1"),
        (|problem| problem.blocks[0].variation = -1.0, "blocks[0].variation: -1"),
        (|problem| problem.blocks[0].replicas = 0, "blocks[0].replicas: 0"),
        (|problem| problem.blocks[0].cores = f64::INFINITY, "blocks[0].cores: inf"),
        (
            |problem| problem.blocks[0].batch = Some(QueueingBatch { size: 0, time_us: 1.0 }),
            "blocks[0].batch.size: 0",
        ),
        (|problem| problem.tasks.clear(), "tasks: none"),
        (|problem| problem.tasks[0].path.clear(), "tasks[0].path: no blocks"),
        (
            |problem| problem.tasks[0].path[1] = "b9".to_owned(),
            "tasks[0].path[1]: there is no block",
        ),
        (
            |problem| problem.tasks[0].path[1] = "b1".to_owned(),
            "tasks[0].path[1]: \"b1\" is there twice",
        ),
        (|problem| problem.tasks[0].rate_per_second = -1.0, "tasks[0].rate_per_second: -1"),
        (|problem| problem.tasks[0].rate_per_second = 1e12, "tasks: they keep"),
        (|problem| problem.tasks[0].latency_us = Some(0.0), "tasks[0].latency_us: 0"),
        (
            |problem| problem.tasks[0].exits = BTreeMap::from([("b9".to_owned(), 0.5)]),
            "tasks[0].exits: \"b9\" is not on its path",
        ),
        (
            |problem| problem.tasks[0].exits = BTreeMap::from([("b2".to_owned(), 1.5)]),
            "tasks[0].exits.b2: 1.5",
        ),
        (
            |problem| {
                problem.budget =
                    Some(ReplicaBudget { cores: Some(3.0), ..ReplicaBudget::default() });
            },
            "budget.cores: 3, expected at least 4",
        ),
    ];
    for (change, expected) in cases {
        let mut problem = pipeline(0.0, 100.0);
        change(&mut problem);
        let error = plan_replicas(&problem, None).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}: expected {expected}");
    }
}

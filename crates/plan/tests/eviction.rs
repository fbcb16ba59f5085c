//! Eviction: who leaves, what requests lose by it, and that weighing the cost pays.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use tessera_core::Random;
use tessera_plan::residency::eviction::{
    EvictionInstance, EvictionPolicy, EvictionProblem, EvictionRequest, RequestRates,
    ResidentInstance, draw_requests, random_eviction_problem, simulate_eviction,
};

fn resident(bytes: f64, reload_ms: f64, rate: f64, last_used_ms: f64) -> ResidentInstance {
    ResidentInstance { bytes, reload_ms, rate, last_used_ms, pinned: false }
}

fn instance(name: &str, bytes: f64, reload_ms: f64) -> EvictionInstance {
    EvictionInstance {
        name: name.to_owned(),
        bytes,
        reload_ms,
        rate_per_second: 0.0,
        resident: false,
        pinned: false,
    }
}

/// Room for two of three alike, of which "dear" takes ten times longer to reload.
fn three(order: &str) -> EvictionProblem {
    let name = |letter: char| match letter {
        'd' => "dear",
        'x' => "x",
        _ => "y",
    };
    let request = |(number, letter): (usize, char)| EvictionRequest {
        at_ms: number as f64,
        instance: name(letter).to_owned(),
    };
    EvictionProblem {
        memory_bytes: 20.0,
        instances: vec![
            instance("dear", 10.0, 100.0),
            instance("x", 10.0, 10.0),
            instance("y", 10.0, 10.0),
        ],
        requests: order.chars().enumerate().map(request).collect(),
    }
}

#[test]
fn least_recently_used_goes_by_age_alone() {
    let all = [
        resident(5.0, 1.0, 1.0, 30.0),
        resident(5.0, 9.0, 9.0, 10.0),
        resident(5.0, 1.0, 1.0, 20.0),
    ];
    let policy = EvictionPolicy::LeastRecentlyUsed;
    assert_eq!(policy.choose_victims(&all, 5.0), Some(vec![1]));
    assert_eq!(policy.choose_victims(&all, 6.0), Some(vec![1, 2]));
    assert_eq!(policy.choose_victims(&all, 0.0), Some(vec![]));
}

#[test]
fn reload_cost_goes_by_rate_times_cost_per_byte() {
    let policy = EvictionPolicy::ReloadCost;
    // 2 × 10 / 10, 1 × 30 / 10, 8 × 10 / 80.
    let all = [
        resident(10.0, 10.0, 2.0, 0.0),
        resident(10.0, 30.0, 1.0, 1.0),
        resident(80.0, 10.0, 8.0, 2.0),
    ];
    assert_eq!(policy.choose_victims(&all, 50.0), Some(vec![2]));
    // The largest costs the least per byte; but the first one alone makes room enough, for 20 and
    // not 80.
    assert_eq!(policy.choose_victims(&all, 10.0), Some(vec![0]));
    assert_eq!(policy.choose_victims(&all, 85.0), Some(vec![2, 0]));
}

#[test]
fn reload_cost_spares_what_others_make_room_enough_without() {
    let all = [
        resident(1.0, 1.0, 1.0, 0.0),
        resident(10.0, 20.0, 1.0, 0.0),
        resident(10.0, 90.0, 1.0, 0.0),
    ];
    // By cost per byte the first goes first, but then the second has to go anyway.
    assert_eq!(EvictionPolicy::ReloadCost.choose_victims(&all, 10.0), Some(vec![1]));
}

#[test]
fn of_alike_instances_reload_cost_evicts_the_one_used_least_recently() {
    let all = [3.0, 1.0, 2.0].map(|last| resident(5.0, 4.0, 1.0, last));
    assert_eq!(EvictionPolicy::ReloadCost.choose_victims(&all, 10.0), Some(vec![1, 2]));
}

#[test]
fn a_pinned_instance_never_leaves_and_too_many_leave_no_way() {
    let mut all = [resident(5.0, 1.0, 0.0, 0.0), resident(5.0, 1.0, 5.0, 9.0)];
    all[0].pinned = true;
    for policy in EvictionPolicy::all() {
        assert_eq!(policy.choose_victims(&all, 5.0), Some(vec![1]));
        assert_eq!(policy.choose_victims(&all, 6.0), None);
        assert_eq!(policy.choose_victims(&[], 1.0), None);
    }
}

#[test]
fn what_is_evicted_makes_room_enough_and_none_of_it_could_stay() {
    let mut dice = Random::new(7);
    for round in 0..500 {
        let count = 1 + dice.next_below(12) as usize;
        let mut all: Vec<ResidentInstance> = (0..count)
            .map(|_| {
                let mut draw = || 1.0 + 99.0 * dice.next_fraction();
                resident(draw(), draw(), draw(), draw())
            })
            .collect();
        all.iter_mut().for_each(|one| one.pinned = dice.next_below(4) == 0);
        let free: f64 = all.iter().filter(|one| !one.pinned).map(|one| one.bytes).sum();
        let needed = free * dice.next_fraction();
        for policy in EvictionPolicy::all() {
            let chosen = policy.choose_victims(&all, needed).unwrap();
            let freed: f64 = chosen.iter().map(|&one| all[one].bytes).sum();
            assert!(freed >= needed * (1.0 - 1e-9), "round {round}");
            assert!(chosen.iter().all(|&one| !all[one].pinned), "round {round}");
            if policy != EvictionPolicy::LeastRecentlyUsed {
                let spared = |&one: &usize| freed - all[one].bytes >= needed * (1.0 + 1e-9);
                assert!(!chosen.iter().any(spared), "round {round}");
            }
        }
    }
}

#[test]
fn a_trace_by_hand_costs_what_it_should() {
    // Each request is for the one that has just left: three loads, then three more.
    let outcome = simulate_eviction(&three("dxydxy"), EvictionPolicy::LeastRecentlyUsed).unwrap();
    assert_eq!(outcome.loads, [2, 2, 2]);
    assert_eq!((outcome.cold_starts, outcome.evictions), (6, 4));
    assert!((outcome.reload_ms - 240.0).abs() < 1e-9);
    assert!((outcome.mean_added_ms - 40.0).abs() < 1e-9);
    // Reload cost: "dear" stays, and x and y make room for each other.
    let outcome = simulate_eviction(&three("dxydxy"), EvictionPolicy::ReloadCost).unwrap();
    assert_eq!(outcome.loads, [1, 2, 2]);
    assert!((outcome.reload_ms - 140.0).abs() < 1e-9);
    assert!((outcome.hit_rate - 1.0 / 6.0).abs() < 1e-9);
    assert_eq!(outcome.resident, ["dear", "y"]);
}

#[test]
fn who_knows_the_future_lets_go_what_is_not_asked_for_again() {
    let problem = three("dxyxyxyxy");
    let outcome = simulate_eviction(&problem, EvictionPolicy::Offline).unwrap();
    assert_eq!(outcome.loads, [1, 1, 1]);
    assert_eq!(outcome.resident, ["x", "y"]);
    // Reload cost learns it from the requests.
    let learnt =
        simulate_eviction(&three(&format!("d{}", "xy".repeat(100))), EvictionPolicy::ReloadCost)
            .unwrap();
    assert_eq!(learnt.loads[0], 1);
    assert_eq!(learnt.resident, ["x", "y"]);
}

#[test]
fn instances_that_are_there_need_no_load_and_pinned_ones_stay() {
    let mut problem = three("dxyxyxydxy");
    problem.instances[0].resident = true;
    problem.instances[0].pinned = true;
    for policy in EvictionPolicy::all() {
        assert_eq!(simulate_eviction(&problem, policy).unwrap().loads[0], 0);
    }
    problem.memory_bytes = 30.0;
    for policy in EvictionPolicy::all() {
        let outcome = simulate_eviction(&problem, policy).unwrap();
        assert_eq!((outcome.cold_starts, outcome.evictions), (2, 0));
    }
}

#[test]
fn counts_follow_a_change() {
    let mut rates = RequestRates::new(2);
    (0..100).for_each(|_| rates.count_request(0));
    assert!(rates.rate_of(0) > 5.0 && rates.rate_of(1) == 0.0);
    (0..20).for_each(|_| rates.count_request(1));
    assert!(rates.rate_of(1) > rates.rate_of(0));
    // Many requests do not overflow.
    (0..100_000).for_each(|number| rates.count_request(number % 2));
    assert!(
        rates.rate_of(0).is_finite() && (rates.rate_of(0) / rates.rate_of(1) - 1.0).abs() < 0.1
    );
    assert_eq!(rates.rate_of(9), 0.0);
}

#[test]
fn requests_are_drawn_by_the_rates_and_the_same_for_the_same_seed() {
    let mut problem = three("");
    for (instance, rate) in problem.instances.iter_mut().zip([1.0, 3.0, 0.0]) {
        instance.rate_per_second = rate;
    }
    let requests = draw_requests(&problem, 20_000, 1).unwrap();
    assert_eq!(requests, draw_requests(&problem, 20_000, 1).unwrap());
    assert_ne!(requests, draw_requests(&problem, 20_000, 2).unwrap());
    let share = |name: &str| {
        requests.iter().filter(|request| request.instance == name).count() as f64 / 20_000.0
    };
    assert!((share("x") - 0.75).abs() < 0.02 && share("y") == 0.0);
    // Four requests per second.
    let seconds = requests.last().unwrap().at_ms / 1e3;
    assert!((seconds / 5_000.0 - 1.0).abs() < 0.03, "{seconds}");
    problem.requests = requests;
    problem.check_consistency().unwrap();
}

#[test]
fn no_more_is_on_the_gpu_than_it_holds() {
    for seed in 0..50 {
        let problem = random_eviction_problem(500, seed);
        problem.check_consistency().unwrap();
        for policy in EvictionPolicy::all() {
            let outcome = simulate_eviction(&problem, policy).unwrap();
            let bytes = |name: &String| {
                problem.instances.iter().find(|one| one.name == *name).unwrap().bytes
            };
            let held: f64 = outcome.resident.iter().map(bytes).sum();
            assert!(held <= problem.memory_bytes * (1.0 + 1e-9), "seed {seed}");
            assert_eq!(outcome.cold_starts - outcome.evictions, outcome.resident.len());
        }
    }
}

#[test]
fn reload_cost_loses_less_than_least_recently_used_on_random_workloads() {
    let (mut sum, mut worse, mut offline) = (0.0, 0, 0.0);
    for seed in 0..100 {
        let problem = random_eviction_problem(4000, seed);
        let lost = EvictionPolicy::all()
            .map(|policy| simulate_eviction(&problem, policy).unwrap().reload_ms);
        sum += lost[1] / lost[0];
        offline += lost[2] / lost[0];
        worse += usize::from(lost[1] > lost[0]);
    }
    assert!(sum / 100.0 < 0.76, "{sum}");
    assert!(worse <= 2, "{worse}");
    assert!(offline < sum, "{offline} {sum}");
}

#[test]
fn a_bad_problem_is_refused_with_the_field_at_fault() {
    type Case = (fn(&mut EvictionProblem), &'static str);
    let cases: [Case; 13] = [
        (|p| p.memory_bytes = 0.0, "memory_bytes: 0"),
        (|p| p.memory_bytes = f64::NAN, "memory_bytes: NaN"),
        (|p| p.instances.clear(), "instances: none"),
        (|p| p.instances[1].name = "dear".to_owned(), "instances[1].name: \"dear\" is there twice"),
        (|p| p.instances[0].bytes = 0.0, "instances[0].bytes: 0"),
        (|p| p.instances[0].bytes = 21.0, "instances[0].bytes: 21, more than memory_bytes 20"),
        (|p| p.instances[2].reload_ms = -1.0, "instances[2].reload_ms: -1"),
        (|p| p.instances[2].rate_per_second = 1e19, "instances[2].rate_per_second"),
        (
            |p| p.instances.iter_mut().for_each(|one| one.pinned = true),
            "instances[0].bytes: 10, more than memory_bytes 20 holds beside 20 of pinned",
        ),
        (
            |p| p.instances.iter_mut().for_each(|one| one.resident = true),
            "instances[2].resident: with it 30 bytes",
        ),
        (|p| p.requests[1].instance = "z".to_owned(), "requests[1].instance: \"z\""),
        (|p| p.requests[2].at_ms = 0.5, "requests[2].at_ms: 0.5, expected no less than 1"),
        (|p| p.requests[2].at_ms = f64::NAN, "requests[2].at_ms: NaN"),
    ];
    for (spoil, expected) in cases {
        let mut problem = three("dxy");
        problem.check_consistency().unwrap();
        spoil(&mut problem);
        let error = problem.check_consistency().unwrap_err().to_string();
        assert!(error.contains(expected), "{error} does not say {expected}");
    }
    let error = draw_requests(&three(""), 5, 0).unwrap_err().to_string();
    assert!(error.contains("rate_per_second"), "{error}");
    let error = EvictionPolicy::from_name("fifo").unwrap_err().to_string();
    assert!(error.contains("\"fifo\"") && error.contains("reload-cost"), "{error}");
}

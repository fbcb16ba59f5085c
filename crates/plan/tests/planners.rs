//! What every planner of every family keeps to, and every list of strategies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "placement/random.rs"]
mod random;

use std::collections::HashSet;
use std::fmt::Debug;

use tessera_plan::overflow::{overflow_strategies, random_overflow_problem};
use tessera_plan::placement::{PlacementPlanner, placement_strategies};
use tessera_plan::queueing::{QueueingProblem, replica_strategies};
use tessera_plan::residency::eviction::eviction_policies;
use tessera_plan::residency::{random_residency_problem, residency_strategies};
use tessera_plan::sharing::{SharingProblem, sharing_strategies};
use tessera_plan::{Planner, SearchLimit, Strategy, StrategyRegistry};

/// The same problem gives the same plan; and with that as the previous one, it gives it again.
fn check_planner<P: Planner + ?Sized>(
    planner: &P,
    problem: &P::Problem,
    plan_of: impl Fn(P::Solution) -> P::Plan,
) where
    P::Plan: PartialEq + Debug,
{
    let find = |previous: Option<&P::Plan>| {
        planner.find_plan(problem, previous, &SearchLimit::none()).map(&plan_of)
    };
    let Ok(first) = find(None) else {
        assert!(find(None).is_err(), "{}", planner.name());
        return;
    };
    assert_eq!(find(None).unwrap(), first, "{}", planner.name());
    assert_eq!(find(Some(&first)).unwrap(), first, "{}", planner.name());
}

#[test]
fn every_planner_gives_the_same_plan_again_and_keeps_its_own() {
    for seed in 0..20 {
        let problem = random_overflow_problem(10, seed);
        for planner in overflow_strategies() {
            check_planner(planner, &problem, |found| found.plan);
        }
        let problem = random_residency_problem(12, seed);
        for planner in residency_strategies() {
            check_planner(planner, &problem, |found| found.plan);
        }
        let problem = random::random(seed, 1 + (seed % 2) as usize, 6, 5);
        // A thousand chromosomes a generation take long, and may find better ones the next time.
        for strategy in placement_strategies().iter().filter(|one| one.name() != "genetic-thesis") {
            let planner = PlacementPlanner { strategy, seed };
            check_planner(&planner, &problem, |found| found.plan);
        }
    }
    let problem: SharingProblem = serde_json::from_str(
        r#"{
            "context_bytes": 300e6,
            "blocks": [
                {"name": "stem", "bytes": 1e6}, {"name": "body", "bytes": 40e6},
                {"name": "neck", "bytes": 9e6}, {"name": "head", "bytes": 2e6}
            ],
            "tasks": [
                {"name": "cats", "path": ["stem", "body", "neck", "own head"]},
                {"name": "dogs", "count": 3, "path": ["stem", "body", "own neck", "own head"]}
            ]
        }"#,
    )
    .unwrap();
    for planner in sharing_strategies() {
        check_planner(&planner, &problem, |plan| plan);
    }
    let problem: QueueingProblem = serde_json::from_str(
        r#"{
            "blocks": [{"name": "stem", "time_us": 900}, {"name": "head", "time_us": 2500}],
            "tasks": [
                {"name": "cats", "rate_per_second": 1500, "path": ["stem", "head"],
                 "latency_us": 4000},
                {"name": "dogs", "rate_per_second": 300, "path": ["stem"]}
            ]
        }"#,
    )
    .unwrap();
    for planner in replica_strategies() {
        check_planner(planner, &problem, |found| found.plan);
    }
}

fn check_registry<S: Strategy + Copy>(registry: StrategyRegistry<S>, kind: &str) {
    let mut seen = HashSet::new();
    for (name, summary) in registry.help_lines() {
        assert!(seen.insert(name), "{name} is there twice");
        assert!(!summary.is_empty() && !summary.contains('\n'), "{name}: {summary}");
        assert_eq!(registry.find_strategy(name).unwrap().name(), name);
    }
    let names: Vec<&str> = registry.help_lines().map(|(name, _)| name).collect();
    let error = registry.find_strategy("no such").err().unwrap().to_string();
    assert_eq!(error, format!("{kind} \"no such\", expected one of {}", names.join(", ")));
}

#[test]
fn every_strategy_is_found_by_its_name_and_an_unknown_name_is_answered_with_all() {
    check_registry(overflow_strategies(), "strategy");
    check_registry(residency_strategies(), "strategy");
    check_registry(placement_strategies(), "strategy");
    check_registry(sharing_strategies(), "strategy");
    check_registry(replica_strategies(), "strategy");
    check_registry(eviction_policies(), "policy");
}

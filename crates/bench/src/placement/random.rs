//! Strategies on random problems of a size: with tight memory, and with enough of it.

use serde::Serialize;
use tessera_core::{Random, Result};
use tessera_plan::placement::{MigrationCost, PlacementLayer, PlacementNode, PlacementProblem};
use tessera_report::{Table, format_milliseconds, output};

use super::arguments::BenchPlacement;
use super::measure::{
    StrategySettings, TimeSpread, format_loss, optimality_gap, plan_once, spread_of, worst_of,
};

/// How much memory nodes have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryTightness {
    /// So little that about half of the nodes are needed.
    Tight,
    /// All layers would fit on each.
    Enough,
}

#[derive(Serialize)]
struct RandomProblemsRow {
    strategy: String,
    layers: usize,
    nodes: usize,
    problems: usize,
    failed: usize,
    proved: usize,
    /// How far a plan may be from the optimum at most.
    worst_gap: Option<f64>,
    plan_ms: Option<TimeSpread>,
}

pub(crate) fn bench_random_problems(
    arguments: &BenchPlacement,
    (layers, nodes): (usize, usize),
    memory: MemoryTightness,
) -> Result<()> {
    let names = super::chosen_strategies(arguments, &["exact"])?;
    let problems = arguments.repetitions.get();
    let bar = output::progress_bar((problems * names.len()) as u64, "planning");
    let mut results: Vec<Vec<_>> = names.iter().map(|_| Vec::new()).collect();
    for number in 0..problems {
        let seed = arguments.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
        let problem = draw_problem(layers, nodes, memory, seed);
        let settings = StrategySettings { seed, time_limit: arguments.time_limit };
        for (name, results) in names.iter().zip(&mut results) {
            results.push(plan_once(name, &problem, settings));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let rows = names.iter().zip(&results).map(|(strategy, results)| {
        let plans = || results.iter().filter_map(|(planned, _)| planned.as_ref().ok());
        RandomProblemsRow {
            strategy: strategy.clone(),
            layers,
            nodes,
            problems,
            failed: problems - plans().count(),
            proved: plans().filter(|planned| planned.proved).count(),
            worst_gap: worst_of(plans().filter_map(optimality_gap)),
            plan_ms: spread_of(results.iter().map(|(_, took)| *took)),
        }
    });
    let rows: Vec<RandomProblemsRow> = rows.collect();
    if arguments.json {
        return output::print_json(&rows);
    }
    let table = random_problems_table(&rows);
    if arguments.csv { table.print_csv() } else { table.print_table() }
}

fn random_problems_table(rows: &[RandomProblemsRow]) -> Table {
    let mut table = Table::new(&[
        "strategy",
        ">layers",
        ">nodes",
        ">problems",
        ">no plan",
        ">proved",
        ">worst gap",
        ">time",
        ">most",
    ]);
    for row in rows {
        let time = |figure: fn(&TimeSpread) -> f64| {
            row.plan_ms.as_ref().map_or("-".to_owned(), |times| format_milliseconds(figure(times)))
        };
        table.add_row([
            row.strategy.clone(),
            row.layers.to_string(),
            row.nodes.to_string(),
            row.problems.to_string(),
            row.failed.to_string(),
            row.proved.to_string(),
            format_loss(row.worst_gap),
            time(|times| times.median),
            time(|times| times.max),
        ]);
    }
    table
}

/// Three tiers, faster and further away from tier to tier; figures are spread over a factor of ten.
fn draw_problem(
    layers: usize,
    nodes: usize,
    memory: MemoryTightness,
    seed: u64,
) -> PlacementProblem {
    let mut lots = Random::new(seed);
    let mut spread = |low: f64| low * 10f64.powf(lots.next_fraction());
    let layers: Vec<PlacementLayer> = (0..layers)
        .map(|_| PlacementLayer {
            flops: spread(3e7),
            memory_bytes: spread(3e6).round(),
            input_bytes: Some(spread(1e5).round()),
            ..PlacementLayer::default()
        })
        .collect();
    let total: f64 = layers.iter().map(|layer| layer.memory_bytes).sum();
    let largest = layers.iter().map(|layer| layer.memory_bytes).fold(0.0, f64::max);
    // Half of the nodes have room for all, and some of it is left over at the ends of runs.
    let share = total / (nodes as f64 / 2.0).max(1.0);
    let tier = |number: usize| number * 3 / nodes;
    let made = (0..nodes).map(|number| PlacementNode {
        name: format!("node{number}"),
        tier: tier(number) as u32,
        input: number == 0,
        kind: None,
        flops_per_second: Some(spread([2e9, 1e10, 5e10][tier(number)])),
        memory_bytes: Some(match memory {
            MemoryTightness::Tight => (share * (0.5 + spread(0.1))).max(largest).round(),
            MemoryTightness::Enough => total,
        }),
        storage_bytes: None,
        watts: None,
        joules_per_byte_sent: None,
    });
    let made: Vec<PlacementNode> = made.collect();
    let mut throughput = vec![vec![None; nodes]; nodes];
    let mut latency = throughput.clone();
    for from in 0..nodes {
        for to in from + 1..nodes {
            let apart = tier(to) - tier(from);
            let (rate, delay) = (spread([1e8, 2e7, 1e7][apart]), spread([0.1, 1.0, 3.0][apart]));
            (throughput[from][to], throughput[to][from]) = (Some(rate), Some(rate));
            (latency[from][to], latency[to][from]) = (Some(delay), Some(delay));
        }
    }
    PlacementProblem {
        nodes: made,
        throughput_bits_per_second: throughput,
        latency_ms: latency,
        layers,
        models: Vec::new(),
        moving: MigrationCost::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_problems_are_sound_and_tight_where_they_should_be() {
        for (layers, nodes) in [(1, 1), (5, 2), (56, 20)] {
            for seed in 0..20 {
                let tight = draw_problem(layers, nodes, MemoryTightness::Tight, seed);
                let enough = draw_problem(layers, nodes, MemoryTightness::Enough, seed);
                tight.check_consistency().unwrap();
                enough.check_consistency().unwrap();
                let total: f64 = tight.layers.iter().map(|layer| layer.memory_bytes).sum();
                let most = |problem: &PlacementProblem| {
                    problem.nodes.iter().filter_map(|node| node.memory_bytes).fold(0.0, f64::max)
                };
                assert!(most(&enough) >= total);
                assert!(nodes < 8 || most(&tight) < total / 2.0, "one node holds half of it");
                assert_eq!(tight, draw_problem(layers, nodes, MemoryTightness::Tight, seed));
            }
        }
    }
}

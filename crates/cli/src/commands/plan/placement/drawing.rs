//! Pictures of placements.

use tessera_core::Result;
use tessera_plan::placement::{FrontPoint, Plan, Problem, evaluate};

use super::report::{Report, bytes, runs, seconds, short, thresholds, way};
use crate::picture::bars::Bars;
use crate::picture::front::{Front, Point};
use crate::picture::placement::{Hop, NodeBox, Placement, Tier};

/// The nodes with what is on them, and the way of a request.
pub(super) fn placement(problem: &Problem, plan: &Plan, strategy: &str) -> String {
    let outcome = evaluate(problem, plan);
    let runs = runs(problem, plan);
    let several = outcome.models.len() > 1;
    let mut levels: Vec<u32> = problem.nodes.iter().map(|node| node.tier).collect();
    levels.sort_unstable();
    levels.dedup();
    let node = |at: usize| {
        let (node, used) = (&problem.nodes[at], outcome.nodes[at].memory_bytes);
        let here = runs.iter().filter(|run| run.node == at).map(|run| {
            let of = match several {
                true => format!("{}: ", outcome.models[run.model].name),
                false => String::new(),
            };
            let time = seconds(run.compute_seconds);
            (run.model, format!("{of}layers {}, {time}", run.layers()))
        });
        NodeBox {
            name: node.name.clone(),
            input: node.input,
            used: node.memory_bytes.filter(|&all| all > 0.0).map(|all| used / all),
            memory: match node.memory_bytes {
                Some(all) => format!("{} of {}", bytes(used), bytes(all)),
                None => bytes(used),
            },
            runs: here.collect(),
        }
    };
    let tiers = levels.iter().map(|&level| {
        let here = (0..problem.nodes.len()).filter(|&at| problem.nodes[at].tier == level);
        Tier { name: format!("tier {level}"), nodes: here.map(node).collect() }
    });
    let hops = runs.iter().filter_map(|run| {
        let (from, took) = run.transfer?;
        Some(Hop {
            model: run.model,
            from: problem.nodes[from].name.clone(),
            to: problem.nodes[run.node].name.clone(),
            label: seconds(took),
        })
    });
    let picture = Placement {
        title: format!("Placement ({strategy}): latency {}", seconds(outcome.latency_seconds)),
        models: outcome.models.iter().map(|model| model.name.clone()).collect(),
        tiers: tiers.collect(),
        hops: hops.collect(),
    };
    picture.svg()
}

/// Plans to choose from.
pub(super) fn front(problem: &Problem, points: &[FrontPoint]) -> String {
    let accuracy = points.iter().any(|point| point.outcome.accuracy.is_some());
    let points = points.iter().map(|point| {
        let outcome = &point.outcome;
        let colour = if accuracy { outcome.accuracy } else { outcome.energy_joules };
        let more = [
            outcome.accuracy.map(|accuracy| format!("accuracy {}", short(accuracy))),
            outcome.energy_joules.map(|energy| format!("{} J", short(energy))),
            Some(thresholds(problem, &point.plan))
                .filter(|thresholds| !thresholds.is_empty())
                .map(|thresholds| format!("thresholds {thresholds}")),
        ];
        let first = [way(problem, &point.plan), seconds(outcome.latency_seconds)];
        let tip: Vec<String> = first.into_iter().chain(more.into_iter().flatten()).collect();
        Point {
            x: outcome.latency_seconds * 1e3,
            // Where nothing takes any time, there is no bottleneck, nor a place in the picture.
            y: outcome.throughput_per_second.unwrap_or(f64::NAN),
            colour,
            tip: tip.join(", "),
        }
    });
    let picture = Front {
        title: "Plans to choose from".to_owned(),
        x_label: "latency (ms)".to_owned(),
        y_label: "throughput of the bottleneck (requests/s)".to_owned(),
        colour_label: if accuracy { "accuracy" } else { "energy (J)" }.to_owned(),
        points: points.collect(),
    };
    picture.svg()
}

/// The latency of each strategy.
pub(super) fn comparison(rows: &[(String, Result<Report>)]) -> String {
    let planned = || rows.iter().filter_map(|(name, report)| Some((name, report.as_ref().ok()?)));
    let picture = Bars {
        title: "Expected latency by strategy".to_owned(),
        y_label: "latency (ms)".to_owned(),
        groups: planned().map(|(name, _)| name.clone()).collect(),
        series: vec![(
            "latency".to_owned(),
            planned().map(|(_, report)| report.latency_seconds * 1e3).collect(),
        )],
    };
    picture.svg()
}

//! Pictures of placements.

use tessera_plan::placement::{FrontPoint, PlacementPlan, PlacementProblem, evaluate_placement};
use tessera_report::picture::bars::BarChart;
use tessera_report::picture::pareto_plot::{ParetoPlot, ParetoPoint};
use tessera_report::picture::placement::{HopArrow, NodeBox, PlacementDiagram, TierColumn};
use tessera_report::{format_bytes_f64, format_seconds};

use super::report::{PlacementReport, exit_thresholds, node_path, node_runs, short_figure};

/// The nodes with what is on them, and the way of a request.
pub(super) fn draw_placement(
    problem: &PlacementProblem,
    plan: &PlacementPlan,
    strategy: &str,
) -> String {
    let outcome = evaluate_placement(problem, plan);
    let runs = node_runs(problem, plan);
    let several = outcome.models.len() > 1;
    let mut levels: Vec<u32> = problem.nodes.iter().map(|node| node.tier).collect();
    levels.sort_unstable();
    levels.dedup();
    let node = |at: usize| {
        let (node, used) = (&problem.nodes[at], outcome.nodes[at].memory_bytes);
        let here = runs.iter().filter(|run| run.node == at).map(|run| {
            let of = if several {
                format!("{}: ", outcome.models[run.model].name)
            } else {
                String::new()
            };
            let time = format_seconds(run.compute_seconds);
            (run.model, format!("{of}layers {}, {time}", run.layer_range()))
        });
        NodeBox {
            name: node.name.clone(),
            input: node.input,
            used: node.memory_bytes.filter(|&all| all > 0.0).map(|all| used / all),
            memory: match node.memory_bytes {
                Some(all) => format!("{} of {}", format_bytes_f64(used), format_bytes_f64(all)),
                None => format_bytes_f64(used),
            },
            runs: here.collect(),
        }
    };
    let tiers = levels.iter().map(|&level| {
        let here = (0..problem.nodes.len()).filter(|&at| problem.nodes[at].tier == level);
        TierColumn { name: format!("tier {level}"), nodes: here.map(node).collect() }
    });
    let hops = runs.iter().filter_map(|run| {
        let (from, took) = run.transfer?;
        Some(HopArrow {
            model: run.model,
            from: problem.nodes[from].name.clone(),
            to: problem.nodes[run.node].name.clone(),
            label: format_seconds(took),
        })
    });
    let picture = PlacementDiagram {
        title: format!(
            "Placement ({strategy}): latency {}",
            format_seconds(outcome.latency_seconds)
        ),
        models: outcome.models.iter().map(|model| model.name.clone()).collect(),
        tiers: tiers.collect(),
        hops: hops.collect(),
    };
    picture.to_svg()
}

/// Plans to choose from.
pub(super) fn draw_front(problem: &PlacementProblem, points: &[FrontPoint]) -> String {
    let accuracy = points.iter().any(|point| point.outcome.accuracy.is_some());
    let points = points.iter().map(|point| {
        let outcome = &point.outcome;
        let colour = if accuracy { outcome.accuracy } else { outcome.energy_joules };
        let more = [
            outcome.accuracy.map(|accuracy| format!("accuracy {}", short_figure(accuracy))),
            outcome.energy_joules.map(|energy| format!("{} J", short_figure(energy))),
            Some(exit_thresholds(problem, &point.plan))
                .filter(|thresholds| !thresholds.is_empty())
                .map(|thresholds| format!("thresholds {thresholds}")),
        ];
        let first = [node_path(problem, &point.plan), format_seconds(outcome.latency_seconds)];
        let tip: Vec<String> = first.into_iter().chain(more.into_iter().flatten()).collect();
        ParetoPoint {
            x: outcome.latency_seconds * 1e3,
            // Where nothing takes any time, there is no bottleneck, nor a place in the picture.
            y: outcome.throughput_per_second.unwrap_or(f64::NAN),
            colour,
            tip: tip.join(", "),
        }
    });
    let picture = ParetoPlot {
        title: "Plans to choose from".to_owned(),
        x_label: "latency (ms)".to_owned(),
        y_label: "throughput of the bottleneck (requests/s)".to_owned(),
        colour_label: if accuracy { "accuracy" } else { "energy (J)" }.to_owned(),
        points: points.collect(),
    };
    picture.to_svg()
}

/// The latency of each strategy.
pub(super) fn draw_comparison<'a>(reports: impl Iterator<Item = &'a PlacementReport>) -> String {
    let (groups, latencies) =
        reports.map(|report| (report.strategy.clone(), report.latency_seconds * 1e3)).unzip();
    let picture = BarChart {
        title: "Expected latency by strategy".to_owned(),
        y_label: "latency (ms)".to_owned(),
        groups,
        series: vec![("latency".to_owned(), latencies)],
    };
    picture.to_svg()
}

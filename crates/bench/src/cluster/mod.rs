//! `tessera bench cluster`: a cluster on networks in a box.
//!
//! Each experiment has hosts, a controller and nodes of its own, which are this program as its users
//! start it, and a row for each bound.

mod adapts;
mod blocks;
mod cut;
mod gateways;
mod idle;
mod join;
mod lab_cluster;
mod large_tensors;
mod leaders;
mod links;
mod node_kills;
mod overload;
mod places;
mod scale;
mod tiers;
mod two_hosts;
mod without_controller;

use clap::Args;
use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_report::{Table, output};

use crate::finding::Finding;

/// Options of `tessera bench cluster`.
#[derive(Args)]
pub struct BenchCluster {
    /// Experiments to make; all of them if none is named
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Seconds for which the controller is away
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub(crate) away: u64,
    /// How many nodes are killed, one after the other
    #[arg(long, default_value_t = 100)]
    pub(crate) kills: usize,
    /// How many nodes there are that only say that they are some
    #[arg(long, default_value_t = 1000)]
    pub(crate) nodes: usize,
    /// Clients that ask meanwhile
    #[arg(long, default_value_t = 4)]
    pub(crate) clients: usize,
    /// Models to place; repeat for more
    #[arg(long = "model", value_name = "NAME",
          default_values_t = ["resnet152".to_owned(), "vgg13".to_owned()])]
    pub(crate) models: Vec<String>,
    /// Name the experiments that there are
    #[arg(long)]
    pub(crate) list: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Something that is tried with a cluster.
pub(crate) struct Experiment {
    /// What it is called on the command line.
    pub(crate) name: &'static str,
    /// What is done, in a line.
    pub(crate) about: &'static str,
    /// Does it.
    pub(crate) make: fn(&BenchCluster) -> Result<Vec<Finding>>,
}

const EXPERIMENTS: [Experiment; 17] = [
    join::JOIN,
    links::LINKS,
    large_tensors::LARGE_TENSORS,
    places::PLACES,
    tiers::TIERS,
    adapts::ADAPTS,
    adapts::FLAPS,
    cut::CUT,
    blocks::BLOCKS,
    two_hosts::TWO_HOSTS,
    node_kills::NODE_KILLS,
    without_controller::WITHOUT_CONTROLLER,
    leaders::LEADERS,
    gateways::GATEWAYS,
    overload::OVERLOAD,
    idle::IDLE,
    scale::SCALE,
];

#[derive(Serialize)]
struct ClusterReport {
    rows: Vec<ClusterRow>,
}

#[derive(Serialize)]
struct ClusterRow {
    experiment: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

/// Makes experiments, and fails where a bound did not hold.
pub(crate) fn bench_cluster(arguments: &BenchCluster) -> Result<()> {
    if arguments.list {
        return list_experiments(arguments.json);
    }
    let mut rows = Vec::new();
    for experiment in chosen_experiments(&arguments.names)? {
        let working = output::spinner(format!("{}: {}", experiment.name, experiment.about));
        let made = (experiment.make)(arguments);
        working.finish_and_clear();
        let findings = match made {
            Ok(findings) => findings,
            // Where this machine can't have such networks, nothing else can be tried either; what
            // was found before that counts all the same.
            Err(error) if error.kind() == tessera_core::ErrorKind::Unsupported => {
                if rows.is_empty() {
                    return Err(error);
                }
                output::print_notice(&format!("SKIPPED {}: {error}", experiment.name));
                continue;
            }
            Err(error) => vec![Finding::cut_short(&error)],
        };
        let experiment = experiment.name;
        rows.extend(findings.into_iter().map(|finding| ClusterRow { experiment, finding }));
    }
    let report = ClusterReport { rows };
    if arguments.json {
        output::print_json(&report)?;
    } else {
        print_report(&report)?;
    }
    let broken = report.rows.iter().filter(|row| !row.finding.held).count();
    if broken == 0 { Ok(()) } else { Err(Error::engine(format!("{broken} bounds did not hold"))) }
}

fn chosen_experiments(names: &[String]) -> Result<Vec<&'static Experiment>> {
    if names.is_empty() {
        return Ok(EXPERIMENTS.iter().collect());
    }
    let find = |name: &String| {
        let found = EXPERIMENTS.iter().find(|experiment| experiment.name == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = EXPERIMENTS.iter().map(|known| known.name).collect();
            Error::usage(format!("experiment \"{name}\", expected one of {}", known.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

fn list_experiments(json: bool) -> Result<()> {
    if json {
        let entry = |one: &Experiment| serde_json::json!({ "name": one.name, "about": one.about });
        return output::print_json(&EXPERIMENTS.iter().map(entry).collect::<Vec<_>>());
    }
    let mut table = Table::new(&["experiment", "what is done"]);
    for experiment in &EXPERIMENTS {
        table.add_row([experiment.name.to_owned(), experiment.about.to_owned()]);
    }
    table.print_table()
}

fn print_report(report: &ClusterReport) -> Result<()> {
    let mut table = Table::new(&["experiment", "measured", "found", "bound", "held", ""]);
    for ClusterRow { experiment, finding } in &report.rows {
        table.add_row([(*experiment).to_owned()].into_iter().chain(finding.cells()));
    }
    table.print_table()
}

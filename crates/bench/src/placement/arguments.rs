//! The command line of `tessera bench placement`.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tessera_command::parse_seconds;
use tessera_core::{Error, Result};

/// Options of `tessera bench placement`.
#[derive(Args)]
pub struct BenchPlacement {
    /// Which nodes: iot-edge-cloud, three tiers of devices, edge nodes and servers
    #[arg(long, default_value = "iot-edge-cloud", value_parser = parse_scenario)]
    pub(crate) scenario: String,
    /// How many nodes: a number, or a range such as 3..20
    #[arg(long, default_value = "3..20", value_name = "FROM..TO", value_parser = parse_nodes)]
    pub(crate) nodes: RangeInclusive<usize>,
    /// How many problems are drawn: for each number of nodes, or in all with --tight and --loose
    #[arg(long, default_value = "10")]
    pub(crate) repetitions: NonZeroUsize,
    /// Seed of the problems, and of strategies that draw lots
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Strategies to compare, by name [default: exact,genetic,first-fit,cloud; exact with
    /// --instances, --tight and --loose]
    #[arg(long = "strategy", value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) strategies: Vec<String>,
    /// Whose layers are placed: resnet152 or vgg13
    #[arg(long, default_value = "resnet152", value_parser = parse_model)]
    pub(crate) model: String,
    /// How many requests leave at the side exit: 0 none, 1 about a third, 2 about three quarters
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) variant: u8,
    /// Plan the instances of this file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tight", "loose"])]
    pub(crate) instances: Option<PathBuf>,
    /// Plan random problems whose memory is so tight that about half of the nodes are needed
    #[arg(long, value_name = "LAYERSxNODES", value_parser = parse_size, conflicts_with = "loose")]
    pub(crate) tight: Option<(usize, usize)>,
    /// Plan random problems with memory enough for all layers on each node
    #[arg(long, value_name = "LAYERSxNODES", value_parser = parse_size)]
    pub(crate) loose: Option<(usize, usize)>,
    /// How long a strategy may search for one plan
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) time_limit: Duration,
    /// Draw times, memory, latency, loss and splits over the number of nodes into this file
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["instances", "tight", "loose"])]
    pub(crate) plot: Option<PathBuf>,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// In a process of its own: plan one problem and print how much memory that took
    #[arg(long, hide = true)]
    pub(crate) alone: bool,
}

fn parse_scenario(text: &str) -> Result<String> {
    match text {
        "iot-edge-cloud" => Ok(text.to_owned()),
        _ => Err(Error::usage("expected iot-edge-cloud")),
    }
}

fn parse_model(text: &str) -> Result<String> {
    match text {
        "resnet152" | "vgg13" => Ok(text.to_owned()),
        _ => Err(Error::usage("expected resnet152 or vgg13")),
    }
}

/// A number of nodes or a range of these; fewer than 3 would leave a tier empty.
fn parse_nodes(text: &str) -> Result<RangeInclusive<usize>> {
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    match (low.parse(), high.parse()) {
        (Ok(low), Ok(high)) if 3 <= low && low <= high && high <= 10_000 => Ok(low..=high),
        _ => Err(Error::usage("expected a number of nodes from 3 on, or a range such as 3..20")),
    }
}

/// Layers and nodes: `56x20`.
fn parse_size(text: &str) -> Result<(usize, usize)> {
    let sizes = text.split_once('x').and_then(|(layers, nodes)| {
        Some((layers.parse::<usize>().ok()?, nodes.parse::<usize>().ok()?))
    });
    match sizes {
        Some((layers @ 1..=100_000, nodes @ 1..=10_000)) => Ok((layers, nodes)),
        _ => Err(Error::usage("expected numbers of layers and of nodes, such as 56x20")),
    }
}

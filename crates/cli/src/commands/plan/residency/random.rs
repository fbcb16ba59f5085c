//! How the strategies do on random profiles.

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_plan::residency::{Problem, random, server, strategies};

use super::{choose, pipeline_us, timed};
use crate::arguments::plan::residency::ResidencyArguments;
use crate::commands::plan::figures::{self, Planning, Sample, Samples, Spread};
use crate::output::{self, Table};

/// The largest random profiles that `exact` is asked for with one GPU: it takes some ten milliseconds.
const EXACT_LAYERS: u64 = 200;

/// The same where other GPUs help.
const EXACT_LAYERS_PARALLEL: u64 = 12;

/// How the strategies did.
#[derive(Serialize)]
struct Measured {
    profiles: u64,
    layers: u64,
    gpus: u64,
    seed: u64,
    /// How many of the profiles `exact` solved; none where they are too large to ask.
    solved: Option<usize>,
    figures: Vec<Figures>,
}

/// How a strategy did.
#[derive(Serialize)]
struct Figures {
    strategy: &'static str,
    to_pipeline: Spread,
    /// On how many profiles it was slower than the pipeline.
    slower_than_pipeline: usize,
    #[serde(flatten)]
    planning: Planning,
}

impl Figures {
    fn new(samples: Samples) -> Option<Self> {
        Some(Self {
            strategy: samples.strategy,
            to_pipeline: Spread::of(&samples.to_baseline)?,
            slower_than_pipeline: samples.worse_by(0.0),
            planning: samples.planning()?,
        })
    }

    fn cells(&self) -> impl Iterator<Item = String> {
        [self.strategy.to_owned()]
            .into_iter()
            .chain(self.to_pipeline.cells(2))
            .chain([self.slower_than_pipeline.to_string()])
            .chain(self.planning.cells(2))
    }
}

/// Plans random profiles with the strategies that the user means, and prints how they did.
pub(super) fn measure(arguments: &ResidencyArguments, profiles: u64) -> Result<()> {
    let gpus = arguments.gpus.unwrap_or(1);
    // Two GPUs hang below the same switch, and don't help each other.
    let most = if gpus > 2 { EXACT_LAYERS_PARALLEL } else { EXACT_LAYERS };
    let can_solve = arguments.layers <= most;
    let mut chosen: Vec<&'static str> = match arguments.strategy.as_deref() {
        None | Some("all") => strategies().iter().map(|strategy| strategy.name()).collect(),
        Some(name) => vec![choose(name)?.name()],
    };
    chosen.retain(|name| can_solve || *name != "exact");
    if chosen.is_empty() {
        let message =
            format!("--layers: exact is asked for at most {most} layers with --gpus {gpus}");
        return Err(Error::usage(message));
    }
    let draw = |number: u64| {
        let mut problem = random(arguments.layers as usize, arguments.seed.wrapping_add(number));
        (problem.gpus, problem.nvlinks) = server(gpus as usize);
        let pipeline_us = pipeline_us(&problem)?;
        Ok((problem, pipeline_us))
    };
    let plan = |problem: &Problem, name: &str| {
        let (planned, plan_ms) = timed(arguments, problem, None, choose(name)?)?;
        Ok(Sample { time_us: planned.total_us, proved: planned.proved, plan_ms })
    };
    let (samples, solved) = figures::measure(&chosen, can_solve, profiles, draw, plan)?;
    let measured = Measured {
        profiles,
        layers: arguments.layers,
        gpus,
        seed: arguments.seed,
        solved,
        figures: samples.into_iter().filter_map(Figures::new).collect(),
    };
    match arguments.json {
        true => output::print_json(&measured),
        false => measured.print(most),
    }
}

impl Measured {
    fn print(&self, most: u64) -> Result<()> {
        let mut table = Table::new(&[
            "strategy",
            ">to pipeline",
            ">worst",
            ">profiles slower",
            ">to exact",
            ">worst",
            ">plan, median",
            ">max",
        ]);
        self.figures.iter().for_each(|figures| table.row(figures.cells()));
        table.print()?;
        let Self { profiles, layers, gpus, seed, .. } = self;
        let what = format!("{profiles} random profiles of {layers} layers, seeds from {seed}");
        let what = format!("{what}; {gpus} {}", if *gpus == 1 { "GPU" } else { "GPUs" });
        output::print(&match self.solved {
            Some(solved) => format!("{what}; exact solved {solved}"),
            None => format!("{what}; exact is asked for at most {most} layers"),
        })
    }
}

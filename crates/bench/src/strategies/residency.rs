//! How the strategies do on random profiles.

use std::time::Duration;
use tessera_report::{Table, output};

use serde::Serialize;
use tessera_command::{flag_error, plan_timed};
use tessera_core::{Error, Result};
use tessera_plan::residency::{
    ResidencyProblem, deepplan_server, find_residency_strategy, pipeline_us,
    random_residency_problem, residency_strategies,
};

use super::figures::{self, PlanSample, PlanningFigures, RatioSpread, StrategySamples};

/// The largest random profiles that `exact` is asked for with one GPU: it takes some ten
/// milliseconds.
const EXACT_LAYERS: u64 = 200;

/// The same where other GPUs help.
const EXACT_LAYERS_PARALLEL: u64 = 12;

/// What is measured.
pub struct RandomResidencyOptions<'a> {
    /// How many profiles.
    pub profiles: u64,
    /// Layers of each.
    pub layers: u64,
    /// GPUs of the server.
    pub gpus: u64,
    /// Seed of the first; the next one has the next seed.
    pub seed: u64,
    /// One strategy, or all.
    pub strategy: Option<&'a str>,
    /// How long a strategy may search.
    pub time_limit: Duration,
    /// Whether it is printed for machines.
    pub json: bool,
}

/// How the strategies did.
#[derive(Serialize)]
struct RandomResidencies {
    profiles: u64,
    layers: u64,
    gpus: u64,
    seed: u64,
    /// How many of the profiles `exact` solved; none where they are too large to ask.
    solved: Option<usize>,
    figures: Vec<ResidencyFigures>,
}

/// How a strategy did.
#[derive(Serialize)]
struct ResidencyFigures {
    strategy: &'static str,
    to_pipeline: RatioSpread,
    /// On how many profiles it was slower than the pipeline.
    slower_than_pipeline: usize,
    #[serde(flatten)]
    planning: PlanningFigures,
}

impl ResidencyFigures {
    fn new(samples: StrategySamples) -> Option<Self> {
        Some(Self {
            strategy: samples.strategy,
            to_pipeline: RatioSpread::from_ratios(&samples.to_baseline)?,
            slower_than_pipeline: samples.worse_by(0.0),
            planning: samples.into_planning()?,
        })
    }

    fn table_cells(&self) -> impl Iterator<Item = String> {
        [self.strategy.to_owned()]
            .into_iter()
            .chain(self.to_pipeline.table_cells(2))
            .chain([self.slower_than_pipeline.to_string()])
            .chain(self.planning.table_cells(2))
    }
}

/// Plans random profiles with the strategies that the user means, and prints how they did.
pub fn measure_random_residencies(options: &RandomResidencyOptions<'_>) -> Result<()> {
    let gpus = options.gpus;
    // Two GPUs hang below the same switch, and don't help each other.
    let most = if gpus > 2 { EXACT_LAYERS_PARALLEL } else { EXACT_LAYERS };
    let can_solve = options.layers <= most;
    let mut chosen: Vec<&'static str> = match options.strategy {
        None | Some("all") => {
            residency_strategies().iter().map(|strategy| strategy.name()).collect()
        }
        Some(name) => vec![find_residency_strategy(name).map_err(flag_error)?.name()],
    };
    chosen.retain(|name| can_solve || *name != "exact");
    if chosen.is_empty() {
        let message =
            format!("--layers: exact is asked for at most {most} layers with --gpus {gpus}");
        return Err(Error::usage(message));
    }
    let draw = |number: u64| {
        let mut problem =
            random_residency_problem(options.layers as usize, options.seed.wrapping_add(number));
        (problem.gpus, problem.nvlinks) = deepplan_server(gpus as usize);
        let pipeline_us = pipeline_us(&problem)?;
        Ok((problem, pipeline_us))
    };
    let plan = |problem: &ResidencyProblem, name: &str| {
        let strategy = find_residency_strategy(name).map_err(flag_error)?;
        let (planned, plan_ms) =
            plan_timed(options.time_limit, |limit| strategy.find_plan(problem, None, limit))?;
        Ok(PlanSample { time_us: planned.total_us, proved: planned.proved, plan_ms })
    };
    let (samples, solved) =
        figures::measure_strategies(&chosen, can_solve, options.profiles, draw, plan)?;
    let measured = RandomResidencies {
        profiles: options.profiles,
        layers: options.layers,
        gpus,
        seed: options.seed,
        solved,
        figures: samples.into_iter().filter_map(ResidencyFigures::new).collect(),
    };
    if options.json { output::print_json(&measured) } else { measured.print_table(most) }
}

impl RandomResidencies {
    fn print_table(&self, most: u64) -> Result<()> {
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
        self.figures.iter().for_each(|figures| table.add_row(figures.table_cells()));
        table.print_table()?;
        let Self { profiles, layers, gpus, seed, .. } = self;
        let what = format!("{profiles} random profiles of {layers} layers, seeds from {seed}");
        let what = format!("{what}; {gpus} {}", if *gpus == 1 { "GPU" } else { "GPUs" });
        output::print_line(&match self.solved {
            Some(solved) => format!("{what}; exact solved {solved}"),
            None => format!("{what}; exact is asked for at most {most} layers"),
        })
    }
}

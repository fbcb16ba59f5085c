//! How the strategies do on random graphs.

use serde::Serialize;
use std::time::Duration;
use tessera_core::{Error, Result};
use tessera_plan::overflow::{
    OverflowProblem, find_overflow_strategy, overflow_strategies, random_overflow_problem,
    sequential_us,
};
use tessera_report::{Table, output};

use super::figures::{self, PlanSample, PlanningFigures, RatioSpread, StrategySamples};
use tessera_command::{flag_error, plan_timed};

/// The largest random graphs that `exact` is asked for: nearly all of them are solved in
/// milliseconds.
const EXACT_BLOCKS: u64 = 12;

/// How much worse than sequential counts as worse: less is rounding.
const ROUNDING: f64 = 1e-12;

/// What is measured.
pub struct RandomOverflowOptions<'a> {
    /// How many graphs.
    pub graphs: u64,
    /// Blocks of each.
    pub blocks: u64,
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
struct RandomOverflows {
    graphs: u64,
    blocks: u64,
    seed: u64,
    /// How many of the graphs `exact` solved; none where they are too large to ask.
    solved: Option<usize>,
    figures: Vec<OverflowFigures>,
}

/// How a strategy did.
#[derive(Serialize)]
struct OverflowFigures {
    strategy: &'static str,
    to_sequential: RatioSpread,
    /// On how many graphs it was worse than the sequential plan.
    worse_than_sequential: usize,
    #[serde(flatten)]
    planning: PlanningFigures,
}

impl OverflowFigures {
    fn new(samples: StrategySamples) -> Option<Self> {
        Some(Self {
            strategy: samples.strategy,
            to_sequential: RatioSpread::from_ratios(&samples.to_baseline)?,
            worse_than_sequential: samples.worse_by(ROUNDING),
            planning: samples.into_planning()?,
        })
    }

    fn table_cells(&self) -> impl Iterator<Item = String> {
        [self.strategy.to_owned()]
            .into_iter()
            .chain(self.to_sequential.table_cells(1))
            .chain([self.worse_than_sequential.to_string()])
            .chain(self.planning.table_cells(1))
    }
}

/// Plans random graphs with the strategies that the user means, and prints how they did.
pub fn measure_random_overflows(options: &RandomOverflowOptions<'_>) -> Result<()> {
    let can_solve = options.blocks <= EXACT_BLOCKS;
    let mut chosen: Vec<&'static str> = match options.strategy {
        None | Some("all") => {
            overflow_strategies().iter().map(|strategy| strategy.name()).collect()
        }
        Some(name) => vec![find_overflow_strategy(name).map_err(flag_error)?.name()],
    };
    chosen.retain(|name| can_solve || *name != "exact");
    if chosen.is_empty() {
        let message = format!("--blocks: exact is asked for at most {EXACT_BLOCKS} blocks");
        return Err(Error::usage(message));
    }
    let draw = |number: u64| {
        let problem =
            random_overflow_problem(options.blocks as usize, options.seed.wrapping_add(number));
        let sequential_us = sequential_us(&problem)?;
        Ok((problem, sequential_us))
    };
    let plan = |problem: &OverflowProblem, name: &str| {
        let strategy = find_overflow_strategy(name).map_err(flag_error)?;
        let (planned, plan_ms) =
            plan_timed(options.time_limit, |limit| strategy.find_plan(problem, None, limit))?;
        Ok(PlanSample { time_us: planned.makespan_us, proved: planned.proved, plan_ms })
    };
    let (samples, solved) =
        figures::measure_strategies(&chosen, can_solve, options.graphs, draw, plan)?;
    let measured = RandomOverflows {
        graphs: options.graphs,
        blocks: options.blocks,
        seed: options.seed,
        solved,
        figures: samples.into_iter().filter_map(OverflowFigures::new).collect(),
    };
    if options.json { output::print_json(&measured) } else { measured.print_table() }
}

impl RandomOverflows {
    fn print_table(&self) -> Result<()> {
        let mut table = Table::new(&[
            "strategy",
            ">to sequential",
            ">worst",
            ">graphs worse",
            ">to exact",
            ">worst",
            ">plan, median",
            ">max",
        ]);
        self.figures.iter().for_each(|figures| table.add_row(figures.table_cells()));
        table.print_table()?;
        let Self { graphs, blocks, seed, .. } = self;
        let seeds = format!("{graphs} random graphs of {blocks} blocks, seeds from {seed}");
        output::print_line(&match self.solved {
            Some(solved) => format!("{seeds}; exact solved {solved}"),
            None => format!("{seeds}; exact is asked for at most {EXACT_BLOCKS} blocks"),
        })
    }
}

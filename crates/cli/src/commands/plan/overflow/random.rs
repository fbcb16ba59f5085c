//! How the strategies do on random graphs.

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_plan::overflow::{Problem, random, strategies};

use super::{choose, sequential_us, timed};
use crate::arguments::plan::overflow::OverflowArguments;
use crate::commands::plan::figures::{self, Planning, Sample, Samples, Spread};
use crate::output::{self, Table};

/// The largest random graphs that `exact` is asked for: nearly all of them are solved in milliseconds.
const EXACT_BLOCKS: u64 = 12;

/// How much worse than sequential counts as worse: less is rounding.
const ROUNDING: f64 = 1e-12;

/// How the strategies did.
#[derive(Serialize)]
struct Measured {
    graphs: u64,
    blocks: u64,
    seed: u64,
    /// How many of the graphs `exact` solved; none where they are too large to ask.
    solved: Option<usize>,
    figures: Vec<Figures>,
}

/// How a strategy did.
#[derive(Serialize)]
struct Figures {
    strategy: &'static str,
    to_sequential: Spread,
    /// On how many graphs it was worse than the sequential plan.
    worse_than_sequential: usize,
    #[serde(flatten)]
    planning: Planning,
}

impl Figures {
    fn new(samples: Samples) -> Option<Self> {
        Some(Self {
            strategy: samples.strategy,
            to_sequential: Spread::of(&samples.to_baseline)?,
            worse_than_sequential: samples.worse_by(ROUNDING),
            planning: samples.planning()?,
        })
    }

    fn cells(&self) -> impl Iterator<Item = String> {
        [self.strategy.to_owned()]
            .into_iter()
            .chain(self.to_sequential.cells(1))
            .chain([self.worse_than_sequential.to_string()])
            .chain(self.planning.cells(1))
    }
}

/// Plans random graphs with the strategies that the user means, and prints how they did.
pub(super) fn measure(arguments: &OverflowArguments, graphs: u64) -> Result<()> {
    let can_solve = arguments.blocks <= EXACT_BLOCKS;
    let mut chosen: Vec<&'static str> = match arguments.strategy.as_deref() {
        None | Some("all") => strategies().iter().map(|strategy| strategy.name()).collect(),
        Some(name) => vec![choose(name)?.name()],
    };
    chosen.retain(|name| can_solve || *name != "exact");
    if chosen.is_empty() {
        let message = format!("--blocks: exact is asked for at most {EXACT_BLOCKS} blocks");
        return Err(Error::usage(message));
    }
    let draw = |number: u64| {
        let problem = random(arguments.blocks as usize, arguments.seed.wrapping_add(number));
        let sequential_us = sequential_us(&problem)?;
        Ok((problem, sequential_us))
    };
    let plan = |problem: &Problem, name: &str| {
        let (planned, plan_ms) = timed(arguments, problem, None, choose(name)?)?;
        Ok(Sample { time_us: planned.makespan_us, proved: planned.proved, plan_ms })
    };
    let (samples, solved) = figures::measure(&chosen, can_solve, graphs, draw, plan)?;
    let measured = Measured {
        graphs,
        blocks: arguments.blocks,
        seed: arguments.seed,
        solved,
        figures: samples.into_iter().filter_map(Figures::new).collect(),
    };
    match arguments.json {
        true => output::print_json(&measured),
        false => measured.print(),
    }
}

impl Measured {
    fn print(&self) -> Result<()> {
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
        self.figures.iter().for_each(|figures| table.row(figures.cells()));
        table.print()?;
        let Self { graphs, blocks, seed, .. } = self;
        let seeds = format!("{graphs} random graphs of {blocks} blocks, seeds from {seed}");
        output::print(&match self.solved {
            Some(solved) => format!("{seeds}; exact solved {solved}"),
            None => format!("{seeds}; exact is asked for at most {EXACT_BLOCKS} blocks"),
        })
    }
}

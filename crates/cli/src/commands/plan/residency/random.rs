//! How the strategies do on random profiles.

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_node::median;
use tessera_plan::residency::{Strategy, random, server, strategies};

use super::{change, choose, pipeline_us, ratio, timed};
use crate::arguments::plan::residency::ResidencyArguments;
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
    /// On the profiles that `exact` solved.
    to_exact: Option<Spread>,
    plan_ms_median: f64,
    plan_ms_max: f64,
}

/// Ratios of times.
#[derive(Serialize)]
struct Spread {
    mean: f64,
    worst: f64,
}

impl Spread {
    fn of(ratios: &[f64]) -> Option<Self> {
        let worst = ratios.iter().copied().reduce(f64::max)?;
        Some(Self { mean: ratios.iter().sum::<f64>() / ratios.len() as f64, worst })
    }
}

/// What a strategy was measured to do, profile by profile.
struct Samples {
    strategy: &'static dyn Strategy,
    to_pipeline: Vec<f64>,
    to_exact: Vec<f64>,
    plan_ms: Vec<f64>,
}

impl Samples {
    fn new(strategy: &'static dyn Strategy) -> Self {
        Self { strategy, to_pipeline: Vec::new(), to_exact: Vec::new(), plan_ms: Vec::new() }
    }

    fn figures(mut self) -> Option<Figures> {
        self.plan_ms.sort_by(f64::total_cmp);
        Some(Figures {
            strategy: self.strategy.name(),
            to_pipeline: Spread::of(&self.to_pipeline)?,
            slower_than_pipeline: self.to_pipeline.iter().filter(|ratio| **ratio > 1.0).count(),
            to_exact: Spread::of(&self.to_exact),
            plan_ms_median: median(&self.plan_ms)?,
            plan_ms_max: self.plan_ms.last().copied()?,
        })
    }
}

/// Plans random profiles with the strategies that the user means, and prints how they did.
pub(super) fn measure(arguments: &ResidencyArguments, profiles: u64) -> Result<()> {
    let gpus = arguments.gpus.unwrap_or(1);
    // Two GPUs hang below the same switch, and don't help each other.
    let most = if gpus > 2 { EXACT_LAYERS_PARALLEL } else { EXACT_LAYERS };
    let can_solve = arguments.layers <= most;
    let chosen: Vec<&'static dyn Strategy> = match arguments.strategy.as_deref() {
        None | Some("all") => strategies().to_vec(),
        Some(name) => vec![choose(name)?],
    };
    let is_asked = |strategy: &&'static dyn Strategy| can_solve || strategy.name() != "exact";
    let mut samples: Vec<Samples> = chosen.into_iter().filter(is_asked).map(Samples::new).collect();
    if samples.is_empty() {
        let message =
            format!("--layers: exact is asked for at most {most} layers with --gpus {gpus}");
        return Err(Error::usage(message));
    }
    let exact = choose("exact")?;
    let bar = output::progress(profiles, "planning");
    let mut solved = 0;
    for number in 0..profiles {
        let mut problem = random(arguments.layers as usize, arguments.seed.wrapping_add(number));
        (problem.gpus, problem.nvlinks) = server(gpus as usize);
        let pipeline_us = pipeline_us(&problem)?;
        let optimum = match can_solve {
            true => Some(timed(arguments, &problem, None, exact)?),
            false => None,
        };
        let optimum_us = optimum.as_ref().filter(|(planned, _)| planned.proved);
        let optimum_us = optimum_us.map(|(planned, _)| planned.total_us);
        solved += usize::from(optimum_us.is_some());
        for samples in &mut samples {
            // The optimum is not searched twice.
            let (total_us, plan_ms) = match &optimum {
                Some((planned, took)) if samples.strategy.name() == "exact" => {
                    (planned.total_us, *took)
                }
                _ => {
                    let (planned, took) = timed(arguments, &problem, None, samples.strategy)?;
                    (planned.total_us, took)
                }
            };
            samples.to_pipeline.push(ratio(total_us, pipeline_us));
            samples.to_exact.extend(optimum_us.map(|least| ratio(total_us, least)));
            samples.plan_ms.push(plan_ms);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let measured = Measured {
        profiles,
        layers: arguments.layers,
        gpus,
        seed: arguments.seed,
        solved: can_solve.then_some(solved),
        figures: samples.into_iter().filter_map(Samples::figures).collect(),
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
        for figures in &self.figures {
            let to_exact = |part: fn(&Spread) -> f64| {
                figures.to_exact.as_ref().map_or("-".to_owned(), |spread| change(part(spread)))
            };
            table.row([
                figures.strategy.to_owned(),
                change(figures.to_pipeline.mean),
                change(figures.to_pipeline.worst),
                figures.slower_than_pipeline.to_string(),
                to_exact(|spread| spread.mean),
                to_exact(|spread| spread.worst),
                output::milliseconds(figures.plan_ms_median),
                output::milliseconds(figures.plan_ms_max),
            ]);
        }
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

//! What the measurements of all planners share.

use serde::Serialize;
use tessera_core::Result;
use tessera_node::median_of_sorted;
use tessera_report::{format_change, format_milliseconds, output, time_ratio};

/// What came of planning one problem.
#[derive(Clone, Copy)]
pub(super) struct PlanSample {
    /// How long the plan takes.
    pub(super) time_us: f64,
    pub(super) proved: bool,
    /// How long planning took.
    pub(super) plan_ms: f64,
}

/// What a strategy was measured to do, problem by problem.
pub(super) struct StrategySamples {
    pub(super) strategy: &'static str,
    /// Times by those of the plan that all strategies are compared with.
    pub(super) to_baseline: Vec<f64>,
    /// Times by the least ones, of the problems that `exact` solved.
    to_exact: Vec<f64>,
    plan_ms: Vec<f64>,
}

impl StrategySamples {
    fn new(strategy: &'static str) -> Self {
        Self { strategy, to_baseline: Vec::new(), to_exact: Vec::new(), plan_ms: Vec::new() }
    }

    /// On how many problems the plan takes longer than the baseline, by more than this part of it.
    pub(super) fn worse_by(&self, part: f64) -> usize {
        self.to_baseline.iter().filter(|ratio| **ratio > 1.0 + part).count()
    }

    /// How the planning went; none without problems.
    pub(super) fn into_planning(mut self) -> Option<PlanningFigures> {
        self.plan_ms.sort_by(f64::total_cmp);
        Some(PlanningFigures {
            to_exact: RatioSpread::from_ratios(&self.to_exact),
            plan_ms_median: median_of_sorted(&self.plan_ms)?,
            plan_ms_max: self.plan_ms.last().copied()?,
        })
    }
}

/// How near to the optimum a strategy came, and how long it took for that.
#[derive(Serialize)]
pub(super) struct PlanningFigures {
    /// On the problems that `exact` solved.
    to_exact: Option<RatioSpread>,
    plan_ms_median: f64,
    plan_ms_max: f64,
}

impl PlanningFigures {
    /// To exact, the worst, the median time and the longest.
    pub(super) fn table_cells(&self, decimals: usize) -> [String; 4] {
        let to_exact = self.to_exact.as_ref().map(|spread| spread.table_cells(decimals));
        let [mean, worst] = to_exact.unwrap_or(["-", "-"].map(str::to_owned));
        let time = format_milliseconds;
        [mean, worst, time(self.plan_ms_median), time(self.plan_ms_max)]
    }
}

/// Ratios of times.
#[derive(Serialize)]
pub(super) struct RatioSpread {
    mean: f64,
    worst: f64,
}

impl RatioSpread {
    /// None without ratios.
    pub(super) fn from_ratios(ratios: &[f64]) -> Option<Self> {
        let worst = ratios.iter().copied().reduce(f64::max)?;
        Some(Self { mean: ratios.iter().sum::<f64>() / ratios.len() as f64, worst })
    }

    /// The mean and the worst.
    pub(super) fn table_cells(&self, decimals: usize) -> [String; 2] {
        [self.mean, self.worst].map(|ratio| format_change(ratio, decimals))
    }
}

/// Plans random problems with the strategies of these names, and counts those that `exact` solved
/// where it can. A problem is drawn by its number, with how long the baseline takes.
pub(super) fn measure_strategies<Problem>(
    strategies: &[&'static str],
    can_solve: bool,
    problems: u64,
    draw: impl Fn(u64) -> Result<(Problem, f64)>,
    plan: impl Fn(&Problem, &str) -> Result<PlanSample>,
) -> Result<(Vec<StrategySamples>, Option<usize>)> {
    let mut measured: Vec<StrategySamples> =
        strategies.iter().copied().map(StrategySamples::new).collect();
    let mut solved = 0;
    let bar = output::progress_bar(problems, "planning");
    for number in 0..problems {
        let (problem, baseline_us) = draw(number)?;
        let exact = can_solve.then(|| plan(&problem, "exact")).transpose()?;
        let least_us = exact.filter(|exact| exact.proved).map(|exact| exact.time_us);
        solved += usize::from(least_us.is_some());
        for samples in &mut measured {
            // The optimum is not searched twice.
            let planned = match exact {
                Some(exact) if samples.strategy == "exact" => exact,
                _ => plan(&problem, samples.strategy)?,
            };
            samples.to_baseline.push(time_ratio(planned.time_us, baseline_us));
            samples.to_exact.extend(least_us.map(|least_us| time_ratio(planned.time_us, least_us)));
            samples.plan_ms.push(planned.plan_ms);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok((measured, can_solve.then_some(solved)))
}

//! `tessera plan queueing`: how busy blocks are, and how many replicas they need.

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_plan::queueing::{
    Budget, Load, Plan, Planned, Problem, TaskLoad, judge, load, replicas,
};

use super::previous;
use crate::arguments::plan::queueing::QueueingArguments;
use crate::output::{self, Table};
use crate::picture::bars::Bars;
use crate::problem_file;

pub(super) fn run(arguments: &QueueingArguments) -> Result<()> {
    let mut problem: Problem = problem_file::read(&arguments.problem)?;
    let name = problem_file::name(&arguments.problem);
    if let Some(utilisation) = arguments.utilisation {
        if !(utilisation > 0.0 && utilisation < 1.0) {
            return Err(Error::usage(format!(
                "--utilisation: {utilisation}, expected a number above 0 and below 1"
            )));
        }
        problem.utilisation = utilisation;
    }
    let now = load(&problem).map_err(|error| error.within(&name))?;
    let planned = match &arguments.plan {
        Some(path) => {
            let given: Plan = previous(path)?;
            judge(&problem, &given).map_err(|error| error.within(problem_file::name(path)))?
        }
        None => {
            let old: Option<Plan> = arguments.previous.as_deref().map(previous).transpose()?;
            replicas(&problem, old.as_ref()).map_err(|error| error.within(&name))?
        }
    };
    let report = Report { now, planned };
    if let Some(file) = &arguments.svg {
        problem_file::write(file, &report.picture().svg())?;
    }
    match arguments.json {
        true => output::print_json(&report),
        false => report.print(&problem),
    }
}

/// How it is, and how it would be.
#[derive(Serialize)]
struct Report {
    now: Load,
    #[serde(flatten)]
    planned: Planned,
}

impl Report {
    fn print(&self, problem: &Problem) -> Result<()> {
        self.print_blocks()?;
        output::print("")?;
        self.print_tasks()?;
        output::print("")?;
        output::print(&scale("now", &self.now))?;
        output::print(&scale("planned", &self.planned.load))?;
        output::print(&self.taken(problem))?;
        for unmet in &self.planned.unmet {
            output::print(&format!("not met: {unmet}"))?;
        }
        Ok(())
    }

    fn print_blocks(&self) -> Result<()> {
        let mut table = Table::new(&[
            "block",
            ">arrivals/s",
            ">busy",
            ">replicas",
            ">utilisation",
            ">wait",
            ">planned",
            ">utilisation",
            ">wait",
            "",
        ]);
        for (now, planned) in self.now.blocks.iter().zip(&self.planned.load.blocks) {
            let is_bottleneck = self.now.bottleneck.as_ref() == Some(&now.block);
            table.row([
                now.block.clone(),
                format!("{:.1}", now.arrivals_per_second),
                output::milliseconds(now.busy_us / 1e3),
                now.replicas.to_string(),
                format!("{:.2}", now.utilisation),
                time(now.wait_us),
                planned.replicas.to_string(),
                format!("{:.2}", planned.utilisation),
                time(planned.wait_us),
                if is_bottleneck { "bottleneck".to_owned() } else { String::new() },
            ]);
        }
        table.print()
    }

    fn print_tasks(&self) -> Result<()> {
        let mut table = Table::new(&[
            "task",
            ">requests/s",
            ">at most",
            ">alone",
            ">latency",
            ">planned",
            ">at most",
            ">target",
        ]);
        let rate = |task: &TaskLoad| format!("{:.1}", task.highest_rate_per_second);
        for (now, planned) in self.now.tasks.iter().zip(&self.planned.load.tasks) {
            table.row([
                now.task.clone(),
                format!("{:.1}", now.rate_per_second),
                rate(now),
                time(Some(now.unloaded_us)),
                time(now.latency_us),
                time(planned.latency_us),
                rate(planned),
                now.target_us.map_or("-".to_owned(), |target| time(Some(target))),
            ]);
        }
        table.print()
    }

    /// What the planned replicas take, and whether fewer would do.
    fn taken(&self, problem: &Problem) -> String {
        let Budget { replicas, cores, bytes } = self.planned.taken;
        let budget = problem.budget.unwrap_or_default();
        let before: u32 = self.now.blocks.iter().map(|block| block.replicas).sum();
        let mut parts = vec![match budget.replicas {
            Some(limit) => {
                format!("{before} replicas now, {} of {limit} planned", replicas.unwrap_or(0))
            }
            None => format!("{before} replicas now, {} planned", replicas.unwrap_or(0)),
        }];
        let part = |taken: Option<f64>, limit: Option<f64>, show: &dyn Fn(f64) -> String| {
            let taken = taken.filter(|taken| *taken > 0.0 || limit.is_some())?;
            Some(match limit {
                Some(limit) => format!("{} of {}", show(taken), show(limit)),
                None => show(taken),
            })
        };
        parts.extend(part(cores, budget.cores, &|cores| format!("{cores} cores")));
        parts.extend(part(bytes, budget.bytes, &|bytes| output::bytes(bytes.round() as u64)));
        let target = problem.utilisation * (1.0 + 1e-9);
        let is_busier = self.planned.load.blocks.iter().any(|block| block.utilisation > target);
        let proof = match (self.planned.proved, is_busier, self.planned.unmet.is_empty()) {
            (false, _, _) => "",
            (true, true, _) => "; proved: within the budget no bottleneck is less busy",
            (true, false, true) => "; proved: no plan with fewer meets the targets",
            (true, false, false) => "; proved: no plan with fewer meets the other targets",
        };
        format!("{}{proof}", parts.join(", "))
    }

    fn picture(&self) -> Bars {
        let series = [("now", &self.now), ("planned", &self.planned.load)].map(|(name, load)| {
            (name.to_owned(), load.blocks.iter().map(|block| block.utilisation).collect())
        });
        Bars {
            title: "Utilisation of blocks".to_owned(),
            y_label: "utilisation (1 is always busy)".to_owned(),
            groups: self.now.blocks.iter().map(|block| block.block.clone()).collect(),
            series: series.into(),
        }
    }
}

/// How much more all tasks could send.
fn scale(when: &str, load: &Load) -> String {
    match (&load.bottleneck, load.highest_scale) {
        (Some(block), Some(scale)) if load.is_stable => {
            format!("{when}: stable up to {scale:.2} times the requests; {block} is the bottleneck")
        }
        (Some(block), Some(scale)) => format!(
            "{when}: not stable, {block} can do {scale:.2} times the requests; its queue grows without end"
        ),
        _ => format!("{when}: no requests"),
    }
}

fn time(micros: Option<f64>) -> String {
    match micros {
        Some(micros) if micros > 0.0 => output::milliseconds(micros / 1e3),
        Some(_) => "0".to_owned(),
        None => "endless".to_owned(),
    }
}

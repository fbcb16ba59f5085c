//! `tessera plan queueing`: how busy blocks are, and how many replicas they need.

use serde::Serialize;
use tessera_command::problem_file;
use tessera_core::{Error, Result};
use tessera_plan::queueing::{
    QueueingLoad, QueueingProblem, ReplicaBudget, ReplicaPlan, ReplicaSolution, TaskLoad,
    compute_load, evaluate_replicas, plan_replicas,
};
use tessera_report::picture::bars::BarChart;
use tessera_report::{Table, format_bytes_f64, format_microseconds, output};

use super::outline::{PlanOutput, PlanView};
use super::read_previous_plan;
use crate::arguments::plan::queueing::QueueingArguments;

pub(super) fn plan_queueing(arguments: &QueueingArguments) -> Result<()> {
    let mut problem: QueueingProblem = problem_file::read_problem(&arguments.problem)?;
    let name = problem_file::display_name(&arguments.problem);
    if let Some(utilisation) = arguments.utilisation {
        if !(utilisation > 0.0 && utilisation < 1.0) {
            return Err(Error::usage(format!(
                "--utilisation: {utilisation}, expected a number above 0 and below 1"
            )));
        }
        problem.utilisation = utilisation;
    }
    let now = compute_load(&problem).map_err(|error| error.with_context(&name))?;
    let planned = match &arguments.plan {
        Some(path) => {
            let given: ReplicaPlan = read_previous_plan(path)?;
            evaluate_replicas(&problem, &given)
                .map_err(|error| error.with_context(problem_file::display_name(path)))?
        }
        None => {
            let old: Option<ReplicaPlan> =
                arguments.previous.as_deref().map(read_previous_plan).transpose()?;
            plan_replicas(&problem, old.as_ref()).map_err(|error| error.with_context(&name))?
        }
    };
    let report = QueueingReport { now, planned };
    let shown = PlanOutput { svg: arguments.svg.as_deref(), json: arguments.json };
    shown.show_view(&problem, &report)
}

/// How it is, and how it would be.
#[derive(Serialize)]
struct QueueingReport {
    now: QueueingLoad,
    #[serde(flatten)]
    planned: ReplicaSolution,
}

impl PlanView<QueueingProblem> for QueueingReport {
    fn draw_svg(&self, _problem: &QueueingProblem) -> String {
        self.utilisation_chart().to_svg()
    }

    fn print_view(&self, problem: &QueueingProblem) -> Result<()> {
        self.print_blocks()?;
        output::print_line("")?;
        self.print_tasks()?;
        output::print_line("")?;
        output::print_line(&headroom_line("now", &self.now))?;
        output::print_line(&headroom_line("planned", &self.planned.load))?;
        output::print_line(&self.resources_line(problem))?;
        for unmet in &self.planned.unmet {
            output::print_line(&format!("not met: {unmet}"))?;
        }
        Ok(())
    }
}

impl QueueingReport {
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
            table.add_row([
                now.block.clone(),
                format!("{:.1}", now.arrivals_per_second),
                format_microseconds(now.busy_us),
                now.replicas.to_string(),
                format!("{:.2}", now.utilisation),
                format_wait(now.wait_us),
                planned.replicas.to_string(),
                format!("{:.2}", planned.utilisation),
                format_wait(planned.wait_us),
                if is_bottleneck { "bottleneck".to_owned() } else { String::new() },
            ]);
        }
        table.print_table()
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
            table.add_row([
                now.task.clone(),
                format!("{:.1}", now.rate_per_second),
                rate(now),
                format_wait(Some(now.unloaded_us)),
                format_wait(now.latency_us),
                format_wait(planned.latency_us),
                rate(planned),
                now.target_us.map_or("-".to_owned(), |target| format_wait(Some(target))),
            ]);
        }
        table.print_table()
    }

    /// What the planned replicas take, and whether fewer would do.
    fn resources_line(&self, problem: &QueueingProblem) -> String {
        let ReplicaBudget { replicas, cores, bytes } = self.planned.taken;
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
        parts.extend(part(bytes, budget.bytes, &format_bytes_f64));
        let target = problem.utilisation * (1.0 + 1e-9);
        let is_busier = self.planned.load.blocks.iter().any(|block| block.utilisation > target);
        let proof = if !self.planned.proved {
            ""
        } else if is_busier {
            "; proved: within the budget no bottleneck is less busy"
        } else if self.planned.unmet.is_empty() {
            "; proved: no plan with fewer meets the targets"
        } else {
            "; proved: no plan with fewer meets the other targets"
        };
        format!("{}{proof}", parts.join(", "))
    }

    fn utilisation_chart(&self) -> BarChart {
        let series = [("now", &self.now), ("planned", &self.planned.load)].map(|(name, load)| {
            (name.to_owned(), load.blocks.iter().map(|block| block.utilisation).collect())
        });
        BarChart {
            title: "Utilisation of blocks".to_owned(),
            y_label: "utilisation (1 is always busy)".to_owned(),
            groups: self.now.blocks.iter().map(|block| block.block.clone()).collect(),
            series: series.into(),
        }
    }
}

/// How much more all tasks could send.
fn headroom_line(when: &str, load: &QueueingLoad) -> String {
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

fn format_wait(micros: Option<f64>) -> String {
    match micros {
        Some(micros) if micros > 0.0 => format_microseconds(micros),
        Some(_) => "0".to_owned(),
        None => "endless".to_owned(),
    }
}

//! A placement for people and for machines.

use serde::Serialize;
use tessera_core::Result;
use tessera_plan::placement::{
    Landscape, Outcome, Plan, PlanFile, Planned, Problem, evaluate, moved,
};

use crate::output::{self, Table};

/// A plan and what is known about it.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) strategy: String,
    pub(super) plan: PlanFile,
    pub(super) outcome: Outcome,
    pub(super) latency_seconds: f64,
    pub(super) proved: bool,
    bound_seconds: Option<f64>,
    pub(super) gap: Option<f64>,
    kept: bool,
    moving: Moving,
    plan_ms: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    front: Vec<Choice>,
}

/// What it takes to get to a plan from the previous one.
#[derive(Serialize)]
pub(super) struct Moving {
    pub(super) layers: usize,
    /// What it costs a request, shared by those until the next plan.
    pub(super) seconds: f64,
}

/// A plan to choose.
#[derive(Serialize)]
struct Choice {
    plan: PlanFile,
    outcome: Outcome,
}

/// Layers of a model that are neighbours on a node.
pub(super) struct Run {
    pub(super) model: usize,
    pub(super) node: usize,
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) compute_seconds: f64,
    /// From which node its input comes, and what that takes; none where it is there already.
    pub(super) transfer: Option<(usize, f64)>,
    memory_bytes: f64,
}

impl Run {
    /// Its layers: `3-5`, or `3`.
    pub(super) fn layers(&self) -> String {
        match self.end - self.first {
            1 => self.first.to_string(),
            _ => format!("{}-{}", self.first, self.end - 1),
        }
    }
}

/// What moving from the previous plan to another one takes.
pub(super) fn moving(problem: &Problem, old: Option<&Plan>, plan: &Plan) -> Moving {
    let (layers, seconds) = old.map_or((0, 0.0), |old| moved(problem, old, plan));
    Moving { layers, seconds }
}

/// The runs of layers of all models, in the order in which a request meets them.
pub(super) fn runs(problem: &Problem, plan: &Plan) -> Vec<Run> {
    let settings = plan.models.iter().map(|model| model.settings.clone()).collect();
    let landscape = Landscape::new(problem, settings, None);
    let network = &landscape.network;
    let mut runs = Vec::new();
    for (model, (chain, placed)) in landscape.chains.iter().zip(&plan.models).enumerate() {
        let mut at = network.input;
        let mut first = 0;
        for here in placed.nodes.chunk_by(|one, other| one == other) {
            let (node, end) = (here[0], first + here.len());
            let layers = &landscape.models[model].layers[first..end];
            let once = layers.iter().enumerate().filter(|(number, layer)| {
                let before = &layers[..*number];
                layer.block.is_none() || before.iter().all(|other| other.block != layer.block)
            });
            runs.push(Run {
                model,
                node,
                first,
                end,
                compute_seconds: (first..end).map(|layer| chain.time(node, layer)).sum(),
                transfer: (node != at).then(|| (at, chain.entry(network, first, at, node))),
                memory_bytes: once.map(|(_, layer)| layer.memory_bytes).sum(),
            });
            (at, first) = (node, end);
        }
    }
    runs
}

impl Report {
    pub(super) fn new(
        problem: &Problem,
        strategy: &str,
        planned: &Planned,
        old: Option<&Plan>,
        plan_ms: f64,
    ) -> Self {
        let front = planned.front.iter().map(|point| Choice {
            plan: point.plan.to_file(problem),
            outcome: point.outcome.clone(),
        });
        Self {
            strategy: strategy.to_owned(),
            plan: planned.plan.to_file(problem),
            outcome: evaluate(problem, &planned.plan),
            latency_seconds: planned.latency_seconds,
            proved: planned.proved,
            bound_seconds: planned.bound_seconds.filter(|bound| bound.is_finite()),
            // A bound is summed up in another order than the plan.
            gap: match planned.proved {
                true => Some(0.0),
                false => planned.gap().filter(|gap| gap.is_finite()),
            },
            kept: planned.kept,
            moving: moving(problem, old, &planned.plan),
            plan_ms,
            front: front.collect(),
        }
    }

    /// Prints the plan, or the plans to choose from, for people. Nothing in it depends on the clock.
    pub(super) fn print(&self, problem: &Problem, planned: &Planned) -> Result<()> {
        if !planned.front.is_empty() {
            return print_front(problem, planned);
        }
        self.print_runs(problem, planned)?;
        output::print("")?;
        self.print_nodes(problem)?;
        output::print("")?;
        if self.outcome.models.len() > 1 {
            self.print_models(problem)?;
            output::print("")?;
        }
        self.print_exits(problem, planned)?;
        output::print(&self.summary())?;
        output::print(&self.proof())?;
        match (self.kept, self.moving.layers) {
            (true, _) => {
                let least = percent(problem.moving.least_gain);
                output::print(&format!(
                    "the previous plan stays: no change gains more than {least}"
                ))
            }
            (false, 0) => Ok(()),
            (false, layers) => output::print(&format!(
                "{} from the previous plan, which costs each request {} until the next one",
                counted(layers, "layer moves", "layers move"),
                seconds(self.moving.seconds)
            )),
        }
    }

    fn print_runs(&self, problem: &Problem, planned: &Planned) -> Result<()> {
        let several = !problem.models.is_empty();
        let mut heads = vec!["layers", "node", ">compute", ">transfer in", ">memory"];
        if several {
            heads.insert(0, "model");
        }
        let mut table = Table::new(&heads);
        for run in runs(problem, &planned.plan) {
            let model = several.then(|| self.outcome.models[run.model].name.clone());
            let cells = [
                run.layers(),
                problem.nodes[run.node].name.clone(),
                seconds(run.compute_seconds),
                run.transfer.map_or("-".to_owned(), |(_, transfer)| seconds(transfer)),
                bytes(run.memory_bytes),
            ];
            table.row(model.into_iter().chain(cells));
        }
        table.print()
    }

    fn print_nodes(&self, problem: &Problem) -> Result<()> {
        let mut table = Table::new(&["node", ">tier", ">memory", ">of", ">busy"]);
        for (node, outcome) in problem.nodes.iter().zip(&self.outcome.nodes) {
            table.row([
                node.name.clone(),
                node.tier.to_string(),
                bytes(outcome.memory_bytes),
                node.memory_bytes.map_or("any".to_owned(), bytes),
                seconds(outcome.busy_seconds),
            ]);
        }
        table.print()
    }

    fn print_models(&self, problem: &Problem) -> Result<()> {
        let heads = ["model", ">weight", ">latency", ">compute", ">transfers", ">splits"];
        let mut table = Table::new(&heads);
        for (model, outcome) in problem.models.iter().zip(&self.outcome.models) {
            table.row([
                outcome.name.clone(),
                model.weight.to_string(),
                seconds(outcome.latency_seconds),
                seconds(outcome.compute_seconds),
                seconds(outcome.transfer_seconds),
                outcome.splits.to_string(),
            ]);
        }
        table.print()
    }

    /// The thresholds of exits.
    fn print_exits(&self, problem: &Problem, planned: &Planned) -> Result<()> {
        for (model, placed) in problem.models().iter().zip(&planned.plan.models) {
            let of = match self.outcome.models.len() {
                1 => String::new(),
                _ => format!(" of {}", model.name),
            };
            for (number, (layer, setting)) in model.layers.iter().zip(&placed.settings).enumerate()
            {
                if let Some(setting) = setting.and_then(|setting| layer.exit.get(setting)) {
                    output::print(&format!(
                        "exit at layer {number}{of}: threshold {}, {} of what gets there leaves",
                        setting.threshold,
                        percent(setting.rate)
                    ))?;
                }
            }
        }
        Ok(())
    }

    fn summary(&self) -> String {
        let outcome = &self.outcome;
        let latency = match &outcome.models[..] {
            [only] => format!(
                "latency {}: {} computing, {} in transfers",
                seconds(outcome.latency_seconds),
                seconds(only.compute_seconds),
                seconds(only.transfer_seconds)
            ),
            _ => format!("latency {} in the weighted mean", seconds(outcome.latency_seconds)),
        };
        let splits = counted(outcome.splits, "split", "splits");
        let more = [
            outcome.throughput_per_second.map(|rate| format!("{} requests/s", short(rate))),
            outcome.accuracy.map(|accuracy| format!("accuracy {}", short(accuracy))),
            outcome.energy_joules.map(|energy| format!("{} J", short(energy))),
        ];
        [latency, splits]
            .into_iter()
            .chain(more.into_iter().flatten())
            .collect::<Vec<_>>()
            .join("; ")
    }

    fn proof(&self) -> String {
        let by = &self.strategy;
        match (self.proved, self.gap) {
            (true, _) => format!("{by}: proved, no plan is better"),
            (false, Some(gap)) => {
                format!("{by}: not proved, the optimum is at most {} below", percent(gap))
            }
            (false, None) => format!("{by}: how far the optimum is from this is not known"),
        }
    }
}

/// Prints plans to choose from.
fn print_front(problem: &Problem, planned: &Planned) -> Result<()> {
    let heads = [
        ">plan",
        ">latency",
        ">requests/s",
        ">accuracy",
        ">energy",
        ">splits",
        "nodes",
        "thresholds",
    ];
    let with_exits = problem
        .models()
        .iter()
        .any(|model| model.layers.iter().any(|layer| !layer.exit.is_empty()));
    let shown = if with_exits { heads.len() } else { heads.len() - 1 };
    let mut table = Table::new(&heads[..shown]);
    for (number, point) in planned.front.iter().enumerate() {
        let outcome = &point.outcome;
        let optional = |figure: Option<f64>| figure.map_or("-".to_owned(), short);
        let cells = [
            number.to_string(),
            seconds(outcome.latency_seconds),
            optional(outcome.throughput_per_second),
            optional(outcome.accuracy),
            outcome.energy_joules.map_or("-".to_owned(), |energy| format!("{} J", short(energy))),
            outcome.splits.to_string(),
            way(problem, &point.plan),
            thresholds(problem, &point.plan),
        ];
        table.row(cells.into_iter().take(shown));
    }
    table.print()?;
    output::print(&match planned.front.len() {
        1 => "1 plan: no other is better in any way".to_owned(),
        count => format!("{count} plans: each is better in some way than each other"),
    })
}

/// The nodes that a request meets: `device > cloud`.
pub(super) fn way(problem: &Problem, plan: &Plan) -> String {
    let of = |nodes: &[usize]| {
        let runs = nodes.chunk_by(|one, other| one == other);
        let names: Vec<&str> = runs.map(|run| problem.nodes[run[0]].name.as_str()).collect();
        names.join(" > ")
    };
    plan.models.iter().map(|model| of(&model.nodes)).collect::<Vec<_>>().join("; ")
}

/// The thresholds of all exits, in order.
pub(super) fn thresholds(problem: &Problem, plan: &Plan) -> String {
    let models = problem.models();
    let all = models.iter().zip(&plan.models).flat_map(|(model, placed)| {
        let settings = model.layers.iter().zip(&placed.settings);
        settings.filter_map(|(layer, &setting)| Some(layer.exit.get(setting?)?.threshold))
    });
    all.map(|threshold| threshold.to_string()).collect::<Vec<_>>().join(" ")
}

/// What came of each strategy, for machines.
#[derive(Serialize)]
pub(super) struct Comparison {
    strategies: Vec<Compared>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Compared {
    Planned {
        #[serde(flatten)]
        report: Box<Report>,
        loss: Option<f64>,
    },
    Failed {
        strategy: String,
        error: String,
    },
}

type Row = (String, Result<Report>);

/// How much longer than with `exact` a request takes, as a share.
fn loss(rows: &[Row], report: &Report) -> Option<f64> {
    let exact = rows.iter().find(|(name, _)| name == "exact")?.1.as_ref().ok()?;
    let least = exact.latency_seconds;
    (least > 0.0).then(|| report.latency_seconds / least - 1.0)
}

/// The strategies side by side, for machines.
pub(super) fn comparison(rows: Vec<Row>) -> Comparison {
    let losses: Vec<Option<f64>> =
        rows.iter().map(|(_, report)| loss(&rows, report.as_ref().ok()?)).collect();
    let strategies = rows.into_iter().zip(losses).map(|((strategy, report), loss)| match report {
        Ok(report) => Compared::Planned { report: Box::new(report), loss },
        Err(error) => Compared::Failed { strategy, error: error.to_string() },
    });
    Comparison { strategies: strategies.collect() }
}

/// The strategies side by side, for people.
pub(super) fn print_comparison(rows: &[Row]) -> Result<()> {
    let heads = ["strategy", ">latency", ">loss", ">splits", ">requests/s", "proved"];
    let mut table = Table::new(&heads);
    for (name, report) in rows {
        let cells = match report {
            Ok(report) => [
                seconds(report.latency_seconds),
                loss(rows, report).map_or("-".to_owned(), percent),
                report.outcome.splits.to_string(),
                report.outcome.throughput_per_second.map_or("-".to_owned(), short),
                if report.proved { "yes" } else { "no" }.to_owned(),
            ],
            Err(_) => ["-", "-", "-", "-", "no plan"].map(str::to_owned),
        };
        table.row([name.clone()].into_iter().chain(cells));
    }
    table.print()?;
    for (name, report) in rows {
        if let Err(error) = report {
            // Most strategies name themselves.
            let error = error.to_string();
            let named = format!("{name}: ");
            output::print(&format!("{named}{}", error.strip_prefix(&named).unwrap_or(&error)))?;
        }
    }
    Ok(())
}

/// Seconds as people write them.
pub(super) fn seconds(value: f64) -> String {
    match value {
        0.0 => "0 ms".to_owned(),
        value => output::milliseconds(value * 1e3),
    }
}

/// Bytes as people write them.
pub(super) fn bytes(value: f64) -> String {
    output::bytes(value.round() as u64)
}

fn percent(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A figure with four digits that count.
pub(super) fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = (3 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn counted(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

//! A placement for people and for machines.

use serde::Serialize;
use tessera_core::Result;
use tessera_plan::placement::{
    PlacementCostModel, PlacementOutcome, PlacementPlan, PlacementPlanFile, PlacementProblem,
    PlacementSolution, evaluate_placement, moving_cost,
};
use tessera_report::{Table, format_bytes_f64, format_seconds, format_short_percent, output};

/// A plan and what is known about it.
#[derive(Serialize)]
pub(crate) struct PlacementReport {
    pub(super) strategy: String,
    pub(super) plan: PlacementPlanFile,
    pub(super) outcome: PlacementOutcome,
    pub(super) latency_seconds: f64,
    pub(super) proved: bool,
    bound_seconds: Option<f64>,
    pub(super) gap: Option<f64>,
    kept: bool,
    moving: MovingSummary,
    plan_ms: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    front: Vec<FrontChoice>,
    /// What the strategy returned.
    #[serde(skip)]
    pub(super) planned: PlacementSolution,
}

/// What it takes to get to a plan from the previous one.
#[derive(Serialize)]
pub(super) struct MovingSummary {
    pub(super) layers: usize,
    /// What it costs a request, shared by those until the next plan.
    pub(super) seconds: f64,
}

/// A plan to choose.
#[derive(Serialize)]
struct FrontChoice {
    plan: PlacementPlanFile,
    outcome: PlacementOutcome,
}

/// Layers of a model that are neighbours on a node.
pub(super) struct NodeRun {
    pub(super) model: usize,
    pub(super) node: usize,
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) compute_seconds: f64,
    /// From which node its input comes, and what that takes; none where it is there already.
    pub(super) transfer: Option<(usize, f64)>,
    memory_bytes: f64,
}

impl NodeRun {
    /// Its layers: `3-5`, or `3`.
    pub(super) fn layer_range(&self) -> String {
        match self.end - self.first {
            1 => self.first.to_string(),
            _ => format!("{}-{}", self.first, self.end - 1),
        }
    }
}

/// What moving from the previous plan to another one takes.
pub(super) fn moving_from_previous(
    problem: &PlacementProblem,
    old: Option<&PlacementPlan>,
    plan: &PlacementPlan,
) -> MovingSummary {
    let (layers, seconds) = old.map_or((0, 0.0), |old| moving_cost(problem, old, plan));
    MovingSummary { layers, seconds }
}

/// The runs of layers of all models, in the order in which a request meets them.
pub(super) fn node_runs(problem: &PlacementProblem, plan: &PlacementPlan) -> Vec<NodeRun> {
    let settings = plan.models.iter().map(|model| model.settings.clone()).collect();
    let cost_model = PlacementCostModel::new(problem, settings, None);
    let network = &cost_model.network;
    let mut runs = Vec::new();
    for (model, (chain, placed)) in cost_model.chains.iter().zip(&plan.models).enumerate() {
        let mut at = chain.input;
        let mut first = 0;
        for here in placed.nodes.chunk_by(|one, other| one == other) {
            let (node, end) = (here[0], first + here.len());
            let layers = &cost_model.models[model].layers[first..end];
            let once = layers.iter().enumerate().filter(|(number, layer)| {
                let before = &layers[..*number];
                layer.block.is_none() || before.iter().all(|other| other.block != layer.block)
            });
            runs.push(NodeRun {
                model,
                node,
                first,
                end,
                compute_seconds: (first..end).map(|layer| chain.layer_seconds(node, layer)).sum(),
                transfer: (node != at).then(|| (at, chain.entry_seconds(network, first, at, node))),
                memory_bytes: once.map(|(_, layer)| layer.memory_bytes).sum(),
            });
            (at, first) = (node, end);
        }
    }
    runs
}

impl PlacementReport {
    pub(super) fn new(
        problem: &PlacementProblem,
        strategy: &str,
        planned: PlacementSolution,
        old: Option<&PlacementPlan>,
        plan_ms: f64,
    ) -> Self {
        let front = planned.front.iter().map(|point| FrontChoice {
            plan: point.plan.to_file(problem),
            outcome: point.outcome.clone(),
        });
        Self {
            strategy: strategy.to_owned(),
            plan: planned.plan.to_file(problem),
            outcome: evaluate_placement(problem, &planned.plan),
            latency_seconds: planned.latency_seconds,
            proved: planned.proved,
            bound_seconds: planned.bound_seconds.filter(|bound| bound.is_finite()),
            // A bound is summed up in another order than the plan.
            gap: if planned.proved {
                Some(0.0)
            } else {
                planned.optimality_gap().filter(|gap| gap.is_finite())
            },
            kept: planned.kept,
            moving: moving_from_previous(problem, old, &planned.plan),
            plan_ms,
            front: front.collect(),
            planned,
        }
    }

    /// Prints the plan, or the plans to choose from, for people. Nothing in it depends on the
    /// clock.
    pub(super) fn print_report(&self, problem: &PlacementProblem) -> Result<()> {
        let planned = &self.planned;
        if !planned.front.is_empty() {
            return print_front(problem, planned);
        }
        self.print_runs(problem, planned)?;
        output::print_line("")?;
        self.print_nodes(problem)?;
        output::print_line("")?;
        if self.outcome.models.len() > 1 {
            self.print_models(problem)?;
            output::print_line("")?;
        }
        self.print_exits(problem, planned)?;
        output::print_line(&self.summary_line())?;
        output::print_line(&self.proof_line())?;
        match (self.kept, self.moving.layers) {
            (true, _) => {
                let least = format_short_percent(problem.moving.least_gain);
                output::print_line(&format!(
                    "the previous plan stays: no change gains more than {least}"
                ))
            }
            (false, 0) => Ok(()),
            (false, layers) => output::print_line(&format!(
                "{} from the previous plan, which costs each request {} until the next one",
                count_with_noun(layers, "layer moves", "layers move"),
                format_seconds(self.moving.seconds)
            )),
        }
    }

    fn print_runs(&self, problem: &PlacementProblem, planned: &PlacementSolution) -> Result<()> {
        let several = !problem.models.is_empty();
        let mut heads = vec!["layers", "node", ">compute", ">transfer in", ">memory"];
        if several {
            heads.insert(0, "model");
        }
        let mut table = Table::new(&heads);
        for run in node_runs(problem, &planned.plan) {
            let model = several.then(|| self.outcome.models[run.model].name.clone());
            let cells = [
                run.layer_range(),
                problem.nodes[run.node].name.clone(),
                format_seconds(run.compute_seconds),
                run.transfer.map_or("-".to_owned(), |(_, transfer)| format_seconds(transfer)),
                format_bytes_f64(run.memory_bytes),
            ];
            table.add_row(model.into_iter().chain(cells));
        }
        table.print_table()
    }

    fn print_nodes(&self, problem: &PlacementProblem) -> Result<()> {
        let mut table = Table::new(&["node", ">tier", ">memory", ">of", ">busy"]);
        for (node, outcome) in problem.nodes.iter().zip(&self.outcome.nodes) {
            table.add_row([
                node.name.clone(),
                node.tier.to_string(),
                format_bytes_f64(outcome.memory_bytes),
                node.memory_bytes.map_or("any".to_owned(), format_bytes_f64),
                format_seconds(outcome.busy_seconds),
            ]);
        }
        table.print_table()
    }

    fn print_models(&self, problem: &PlacementProblem) -> Result<()> {
        let heads = ["model", ">weight", ">latency", ">compute", ">transfers", ">splits"];
        let mut table = Table::new(&heads);
        for (model, outcome) in problem.models.iter().zip(&self.outcome.models) {
            table.add_row([
                outcome.name.clone(),
                model.weight.to_string(),
                format_seconds(outcome.latency_seconds),
                format_seconds(outcome.compute_seconds),
                format_seconds(outcome.transfer_seconds),
                outcome.splits.to_string(),
            ]);
        }
        table.print_table()
    }

    /// The thresholds of exits.
    fn print_exits(&self, problem: &PlacementProblem, planned: &PlacementSolution) -> Result<()> {
        for (model, placed) in problem.all_models().iter().zip(&planned.plan.models) {
            let of = match self.outcome.models.len() {
                1 => String::new(),
                _ => format!(" of {}", model.name),
            };
            for (number, (layer, setting)) in model.layers.iter().zip(&placed.settings).enumerate()
            {
                if let Some(setting) = setting.and_then(|setting| layer.exit.get(setting)) {
                    output::print_line(&format!(
                        "exit at layer {number}{of}: threshold {}, {} of what gets there leaves",
                        setting.threshold,
                        format_short_percent(setting.rate)
                    ))?;
                }
            }
        }
        Ok(())
    }

    fn summary_line(&self) -> String {
        let outcome = &self.outcome;
        let latency = match &outcome.models[..] {
            [only] => format!(
                "latency {}: {} computing, {} in transfers",
                format_seconds(outcome.latency_seconds),
                format_seconds(only.compute_seconds),
                format_seconds(only.transfer_seconds)
            ),
            _ => {
                format!("latency {} in the weighted mean", format_seconds(outcome.latency_seconds))
            }
        };
        let splits = count_with_noun(outcome.splits, "split", "splits");
        let more = [
            outcome.throughput_per_second.map(|rate| format!("{} requests/s", short_figure(rate))),
            outcome.accuracy.map(|accuracy| format!("accuracy {}", short_figure(accuracy))),
            outcome.energy_joules.map(|energy| format!("{} J", short_figure(energy))),
        ];
        [latency, splits]
            .into_iter()
            .chain(more.into_iter().flatten())
            .collect::<Vec<_>>()
            .join("; ")
    }

    fn proof_line(&self) -> String {
        let by = &self.strategy;
        match (self.proved, self.gap) {
            (true, _) => format!("{by}: proved, no plan is better"),
            (false, Some(gap)) => {
                format!(
                    "{by}: not proved, the optimum is at most {} below",
                    format_short_percent(gap)
                )
            }
            (false, None) => format!("{by}: how far the optimum is from this is not known"),
        }
    }
}

/// Prints plans to choose from.
fn print_front(problem: &PlacementProblem, planned: &PlacementSolution) -> Result<()> {
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
        .all_models()
        .iter()
        .any(|model| model.layers.iter().any(|layer| !layer.exit.is_empty()));
    let shown = if with_exits { heads.len() } else { heads.len() - 1 };
    let mut table = Table::new(&heads[..shown]);
    for (number, point) in planned.front.iter().enumerate() {
        let outcome = &point.outcome;
        let optional = |figure: Option<f64>| figure.map_or("-".to_owned(), short_figure);
        let cells = [
            number.to_string(),
            format_seconds(outcome.latency_seconds),
            optional(outcome.throughput_per_second),
            optional(outcome.accuracy),
            outcome
                .energy_joules
                .map_or("-".to_owned(), |energy| format!("{} J", short_figure(energy))),
            outcome.splits.to_string(),
            node_path(problem, &point.plan),
            exit_thresholds(problem, &point.plan),
        ];
        table.add_row(cells.into_iter().take(shown));
    }
    table.print_table()?;
    output::print_line(&match planned.front.len() {
        1 => "1 plan: no other is better in any way".to_owned(),
        count => format!("{count} plans: each is better in some way than each other"),
    })
}

/// The nodes that a request meets: `device > cloud`.
pub(super) fn node_path(problem: &PlacementProblem, plan: &PlacementPlan) -> String {
    let of = |nodes: &[usize]| {
        let runs = nodes.chunk_by(|one, other| one == other);
        let names: Vec<&str> = runs.map(|run| problem.nodes[run[0]].name.as_str()).collect();
        names.join(" > ")
    };
    plan.models.iter().map(|model| of(&model.nodes)).collect::<Vec<_>>().join("; ")
}

/// The thresholds of all exits, in order.
pub(super) fn exit_thresholds(problem: &PlacementProblem, plan: &PlacementPlan) -> String {
    let models = problem.all_models();
    let all = models.iter().zip(&plan.models).flat_map(|(model, placed)| {
        let settings = model.layers.iter().zip(&placed.settings);
        settings.filter_map(|(layer, &setting)| Some(layer.exit.get(setting?)?.threshold))
    });
    all.map(|threshold| threshold.to_string()).collect::<Vec<_>>().join(" ")
}

/// A figure with four digits that count.
pub(super) fn short_figure(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = (3 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn count_with_noun(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

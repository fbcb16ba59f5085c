//! What can be chosen for the exits of a task, as planning sees it: the thresholds that the task
//! lists, how many leave at each, and whether that is accurate enough.

use std::collections::BTreeMap;

use tessera_deploy::{AccuracyGoal, PlannedTask, ThresholdChoice};
use tessera_graph::{BlockGraph, Exit};
use tessera_plan::placement::{ExitSetting, PlacementModel};

use super::exit_rates::LearnedExits;

/// What can be chosen for the exits of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ExitChoices {
    /// The exits, by the number of the block that is their head.
    exits: BTreeMap<usize, ExitChoice>,
    accuracy: Option<f64>,
    least_accuracy: Option<f64>,
    /// Why nothing is chosen, where a task wants that.
    pub(super) reason: Option<String>,
}

/// What can be chosen for an exit.
#[derive(Clone, Debug, PartialEq)]
struct ExitChoice {
    name: String,
    settings: Vec<ExitSetting>,
    /// Which of them is in use.
    in_use: usize,
}

impl ExitChoices {
    /// What there is to choose for a task, whose exits are as `in_use` has them. `leaving` says
    /// which share of all answers leaves at an exit as it is.
    pub(super) fn of_task(
        task: &PlannedTask,
        in_use: &BlockGraph,
        learned: &LearnedExits,
        leaving: impl Fn(&str) -> f64,
    ) -> Self {
        let mut left = 1.0;
        let mut choices = Self::default();
        let goal = task.settings.accuracy_goal.as_ref();
        // In the order in which requests get there.
        let heads =
            (0..in_use.blocks.len()).filter_map(|block| Some((block, in_use.exit_of(block)?)));
        for (block, exit) in heads {
            let taken = leaving(&exit.output);
            // Some always get further, as far as anybody knows.
            let rate = if left > 0.0 { (taken / left).clamp(0.0, 0.98) } else { 0.0 };
            left -= taken;
            let choice = goal.and_then(|goal| goal.exits.get(&exit.output));
            let found = match choice {
                Some(choice) => open_choice(task, exit, choice, learned, rate),
                None => fixed_choice(exit, rate, None),
            };
            choices.exits.insert(block, found);
        }
        if let Some(goal) = goal {
            choices.aim_at(goal);
        }
        choices
    }

    /// Has thresholds be chosen for a goal, as far as it can be known what they bring.
    fn aim_at(&mut self, goal: &AccuracyGoal) {
        let unknown = self.exits.values().find(|exit| {
            let accuracies = exit.settings.iter().map(|setting| setting.accuracy);
            accuracies.into_iter().any(|accuracy| accuracy.is_none())
        });
        if let Some(exit) = unknown {
            let threshold = exit.settings[exit.in_use].threshold as f32;
            let name = &exit.name;
            return self.close(format!(
                "exit \"{name}\" was set to {threshold}, of which thresholds says no accuracy"
            ));
        }
        self.accuracy = Some(goal.accuracy);
        self.least_accuracy = Some(goal.least_accuracy);
        let is_open = self.exits.values().any(|exit| exit.settings.len() > 1);
        let lists = goal.exits.values().any(|exit| !exit.is_pinned && exit.settings.len() > 1);
        if lists && !is_open {
            self.least_accuracy = None;
            self.reason =
                Some("too few requests came to know how many would leave at each".to_owned());
        }
    }

    /// In how many ways thresholds can be chosen.
    pub(super) fn combinations(&self) -> usize {
        if self.least_accuracy.is_none() {
            return 1;
        }
        let counts = self.exits.values().map(|exit| exit.settings.len());
        counts.fold(1, usize::saturating_mul)
    }

    /// Leaves all thresholds as they are, for a reason.
    pub(super) fn close(&mut self, reason: String) {
        for exit in self.exits.values_mut() {
            exit.settings = vec![exit.settings[exit.in_use].clone()];
            exit.in_use = 0;
        }
        (self.least_accuracy, self.reason) = (None, Some(reason));
    }

    /// The settings of the exit whose head a block is.
    pub(super) fn settings_of(&self, block: usize) -> Vec<ExitSetting> {
        self.exits.get(&block).map(|exit| exit.settings.clone()).unwrap_or_default()
    }

    /// What is in use, by block.
    pub(super) fn in_use(&self, blocks: usize) -> Vec<Option<usize>> {
        (0..blocks).map(|block| Some(self.exits.get(&block)?.in_use)).collect()
    }

    /// The name of each exit and the number of the block that is its head.
    pub(super) fn names(&self) -> impl Iterator<Item = (usize, &str)> {
        self.exits.iter().map(|(block, exit)| (*block, exit.name.as_str()))
    }

    /// Tells a model what it must reach. Where nothing does, the most accurate thresholds are all
    /// that is left to choose.
    pub(super) fn aim_model(&mut self, model: &mut PlacementModel) {
        model.accuracy = self.accuracy;
        let Some(least) = self.least_accuracy else { return };
        let reached = best_settings(model);
        if reached.1 >= least - 1e-12 {
            model.least_accuracy = Some(least);
            return;
        }
        self.reason = Some(format!(
            "no thresholds reach least_accuracy {least} with as many leaving as do: {:.4} at most",
            reached.1
        ));
        // The first is what a plan takes; the second what is in use, where that is another.
        for (block, exit) in &mut self.exits {
            let Some(best) = reached.0[*block] else { continue };
            let mut settings = vec![exit.settings[best].clone()];
            if best != exit.in_use {
                settings.push(exit.settings[exit.in_use].clone());
            }
            exit.in_use = settings.len() - 1;
            exit.settings.clone_from(&settings);
            model.layers[*block].exit = settings;
        }
    }
}

/// The most accurate settings of a model, and their accuracy.
fn best_settings(model: &PlacementModel) -> (Vec<Option<usize>>, f64) {
    let mut best = (model.settings_in_use(), 0.0);
    let mut settings = model.settings_in_use();
    loop {
        let accuracy = model.accuracy_with(&settings).unwrap_or(0.0);
        if accuracy > best.1 {
            best = (settings.clone(), accuracy);
        }
        // The next combination, as a number counts up.
        let next = settings.iter_mut().zip(&model.layers).any(|(setting, layer)| {
            let Some(at) = setting else { return false };
            *at = (*at + 1) % layer.exit.len();
            *at > 0
        });
        if !next {
            return best;
        }
    }
}

fn fixed_choice(exit: &Exit, rate: f64, accuracy: Option<f64>) -> ExitChoice {
    let threshold = f64::from(exit.threshold);
    let settings = vec![ExitSetting { threshold, rate, accuracy }];
    ExitChoice { name: exit.output.clone(), settings, in_use: 0 }
}

/// All that is listed, where it is known how many would leave at each.
fn open_choice(
    task: &PlannedTask,
    exit: &Exit,
    choice: &ThresholdChoice,
    learned: &LearnedExits,
    rate: f64,
) -> ExitChoice {
    let known = |threshold| learned.rate(task, &exit.output, threshold);
    let settings = choice.settings.iter().map(|setting| {
        Some(ExitSetting {
            threshold: f64::from(setting.threshold),
            rate: known(setting.threshold)?,
            accuracy: Some(setting.accuracy),
        })
    });
    let settings: Option<Vec<ExitSetting>> = settings.collect();
    let in_use = choice.settings.iter().position(|setting| setting.threshold == exit.threshold);
    match (settings, in_use) {
        (Some(settings), Some(in_use)) if !choice.is_pinned => {
            ExitChoice { name: exit.output.clone(), settings, in_use }
        }
        _ => {
            let rate = known(exit.threshold).unwrap_or(rate);
            fixed_choice(exit, rate, choice.accuracy_at(exit.threshold))
        }
    }
}

//! A placement: which layer is on which node, and at which thresholds requests leave.

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use super::problem::PlacementProblem;

/// Where the layers of each model are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementPlan {
    /// One for each model of the problem.
    pub models: Vec<ModelPlan>,
}

/// Where the layers of a model are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// The node of each layer.
    pub nodes: Vec<usize>,
    /// For each layer with an exit, which of its settings is used.
    pub settings: Vec<Option<usize>>,
}

/// A plan as people and programs write it: with names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementPlanFile {
    /// The nodes of the layers, where there is one model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// The threshold of each layer's exit; null where a layer has none. Where left out, those in
    /// use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thresholds: Option<Vec<Option<f64>>>,
    /// The models, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelPlanFile>,
}

/// The plan of one of several models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPlanFile {
    /// Its name.
    pub name: String,
    /// The node of each layer.
    pub nodes: Vec<String>,
    /// The threshold of each layer's exit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thresholds: Option<Vec<Option<f64>>>,
}

impl PlacementPlan {
    /// The plan with the names of the problem.
    pub fn to_file(&self, problem: &PlacementProblem) -> PlacementPlanFile {
        let models = problem.all_models();
        let mut files: Vec<ModelPlanFile> = models
            .iter()
            .zip(&self.models)
            .map(|(model, plan)| {
                let thresholds: Vec<Option<f64>> = model
                    .layers
                    .iter()
                    .zip(&plan.settings)
                    .map(|(layer, &setting)| Some(layer.exit.get(setting?)?.threshold))
                    .collect();
                ModelPlanFile {
                    name: model.name.clone(),
                    nodes: plan
                        .nodes
                        .iter()
                        .map(|&node| problem.nodes[node].name.clone())
                        .collect(),
                    thresholds: thresholds.iter().any(Option::is_some).then_some(thresholds),
                }
            })
            .collect();
        match (problem.models.is_empty(), files.pop()) {
            (true, Some(only)) => PlacementPlanFile {
                nodes: only.nodes,
                thresholds: only.thresholds,
                models: Vec::new(),
            },
            (_, last) => {
                files.extend(last);
                PlacementPlanFile { nodes: Vec::new(), thresholds: None, models: files }
            }
        }
    }

    /// The plan that a file means, for a problem that was checked. Whether it meets the constraints
    /// is another question: see [`super::find_violation`].
    pub fn from_file(problem: &PlacementProblem, file: &PlacementPlanFile) -> Result<Self> {
        let models = problem.all_models();
        let mut plans = Vec::with_capacity(models.len());
        let several = !problem.models.is_empty();
        if several != file.nodes.is_empty() || several == file.models.is_empty() {
            return Err(Error::invalid(if several {
                "models: missing, expected the nodes of each model's layers"
            } else {
                "nodes: missing, expected the name of the node of each layer"
            }));
        }
        if several && file.models.len() != models.len() {
            return Err(Error::invalid(format!(
                "models: {}, expected one for each of {} models",
                file.models.len(),
                models.len()
            )));
        }
        for (number, model) in models.iter().enumerate() {
            let (field, nodes, thresholds) = if several {
                let found = file.models.iter().position(|plan| plan.name == model.name);
                let Some(at) = found else {
                    return Err(Error::invalid(format!("models: none for {}", model.name)));
                };
                let plan = &file.models[at];
                (format!("models[{at}]."), &plan.nodes, &plan.thresholds)
            } else {
                (String::new(), &file.nodes, &file.thresholds)
            };
            plans.push(model_plan(problem, number, &field, nodes, thresholds.as_deref())?);
        }
        Ok(Self { models: plans })
    }
}

fn model_plan(
    problem: &PlacementProblem,
    number: usize,
    field: &str,
    names: &[String],
    thresholds: Option<&[Option<f64>]>,
) -> Result<ModelPlan> {
    let model = &problem.all_models()[number];
    if names.len() != model.layers.len() {
        return Err(Error::invalid(format!(
            "{field}nodes: {}, expected one for each of {} layers",
            names.len(),
            model.layers.len()
        )));
    }
    let mut nodes = Vec::with_capacity(names.len());
    for (layer, name) in names.iter().enumerate() {
        match problem.nodes.iter().position(|node| node.name == *name) {
            Some(node) => nodes.push(node),
            None => {
                return Err(Error::invalid(format!("{field}nodes[{layer}]: no node \"{name}\"")));
            }
        }
    }
    let mut settings = model.settings_in_use();
    if let Some(thresholds) = thresholds {
        if thresholds.len() != model.layers.len() {
            return Err(Error::invalid(format!(
                "{field}thresholds: {}, expected one for each of {} layers",
                thresholds.len(),
                model.layers.len()
            )));
        }
        for (number, (layer, wanted)) in model.layers.iter().zip(thresholds).enumerate() {
            let Some(wanted) = wanted else { continue };
            let known = layer.exit.iter().position(|setting| setting.threshold == *wanted);
            if known.is_none() {
                return Err(Error::invalid(format!(
                    "{field}thresholds[{number}]: {wanted}, which is no setting of that layer's exit"
                )));
            }
            settings[number] = known;
        }
    }
    Ok(ModelPlan { nodes, settings })
}

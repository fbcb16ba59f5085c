//! Thresholds of exits as part of a plan.

use tessera_core::{Error, Result};

use super::problem::PlacementModel;

/// Most combinations of settings that are tried.
const MOST_COMBINATIONS: usize = 10_000;

/// The settings of all exits that are to be tried, for each model: those in use, or where an
/// accuracy is asked for, all that reach it.
pub(super) fn threshold_choices(models: &[PlacementModel]) -> Result<Vec<Vec<Vec<Option<usize>>>>> {
    let mut all: Vec<Vec<Vec<Option<usize>>>> = vec![Vec::new()];
    for model in models {
        let settings = match model.least_accuracy {
            None => vec![model.settings_in_use()],
            Some(least) => {
                let all = setting_combinations(model)?;
                let best = all.iter().filter_map(|settings| model.accuracy_with(settings));
                let best = best.fold(0.0, f64::max);
                // What reaches the accuracy up to how sums are rounded.
                let reaching = all.into_iter().filter(|settings| {
                    model.accuracy_with(settings).is_some_and(|accuracy| accuracy >= least - 1e-12)
                });
                let reaching: Vec<_> = reaching.collect();
                if reaching.is_empty() {
                    return Err(Error::invalid(format!(
                        "{}: least_accuracy {least}, but no thresholds reach more than {best}",
                        model.name
                    )));
                }
                reaching
            }
        };
        all = with_each(model, &all, &settings)?;
    }
    Ok(all)
}

/// Each of the combinations of the models before with each of the settings of one more.
pub(super) fn with_each(
    model: &PlacementModel,
    before: &[Vec<Vec<Option<usize>>>],
    settings: &[Vec<Option<usize>>],
) -> Result<Vec<Vec<Vec<Option<usize>>>>> {
    if before.len() * settings.len() > MOST_COMBINATIONS {
        return Err(too_many(model));
    }
    let with = |before: &Vec<Vec<Option<usize>>>| {
        let with = |settings| before.iter().chain([settings]).cloned().collect::<Vec<_>>();
        settings.iter().map(with).collect::<Vec<_>>()
    };
    Ok(before.iter().flat_map(with).collect())
}

fn too_many(model: &PlacementModel) -> Error {
    Error::invalid(format!(
        "{}: more than {MOST_COMBINATIONS} combinations of thresholds; list fewer settings",
        model.name
    ))
}

/// Every combination of the settings of a model's exits.
pub(super) fn setting_combinations(model: &PlacementModel) -> Result<Vec<Vec<Option<usize>>>> {
    let mut all = vec![model.settings_in_use()];
    for (number, layer) in model.layers.iter().enumerate() {
        if layer.exit.len() < 2 {
            continue;
        }
        if all.len() * layer.exit.len() > MOST_COMBINATIONS {
            return Err(too_many(model));
        }
        all = all
            .iter()
            .flat_map(|before| {
                (0..layer.exit.len()).map(|setting| {
                    let mut with = before.clone();
                    with[number] = Some(setting);
                    with
                })
            })
            .collect();
    }
    Ok(all)
}

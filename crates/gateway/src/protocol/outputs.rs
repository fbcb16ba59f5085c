//! Which outputs a client wants, and in which form.

use tessera_core::{Error, Result, Tensor};
use tessera_cuda::to_host;

use super::classification::classify;
use super::parameters::Parameters;
use crate::service::TaskInfo;
use crate::shared_regions::Place;

/// An output that a client asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    /// Whether it comes as bytes after the JSON; `None` where the output does not say.
    pub(crate) binary: Option<bool>,
    /// How many classes are wanted in its place; 0 for the output itself.
    classes: usize,
    /// Where in shared memory it goes.
    pub(crate) place: Option<Place>,
}

/// An output on its way to the client.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) wanted: Wanted,
    pub(crate) tensor: Tensor,
}

impl Wanted {
    /// Reads what a request says of an output.
    pub(crate) fn new(name: String, parameters: &Parameters) -> Result<Self> {
        let read = || {
            let binary = parameters.flag("binary_data")?;
            let classes = parameters.size("classification")?.unwrap_or(0);
            let place = parameters.place()?;
            if classes > 0 && place.is_some() {
                return Err(Error::invalid(
                    "classification can't be written to shared memory, ask for one of the two",
                ));
            }
            Ok((binary, usize::try_from(classes).unwrap_or(usize::MAX), place))
        };
        let (binary, classes, place) =
            read().map_err(|error| error.within(format_args!("output \"{name}\"")))?;
        Ok(Self { name, binary, classes, place })
    }

    fn plain(name: String) -> Self {
        Self { name, binary: None, classes: 0, place: None }
    }
}

/// Refuses outputs that the task does not have and those that are asked for twice.
pub(crate) fn check_wanted(wanted: &[Wanted], task: &TaskInfo) -> Result<()> {
    for (index, output) in wanted.iter().enumerate() {
        let name = &output.name;
        if !task.outputs.iter().any(|port| &port.name == name) {
            let names: Vec<String> =
                task.outputs.iter().map(|port| format!("\"{}\"", port.name)).collect();
            return Err(Error::invalid(format!(
                "task \"{}\" has no output \"{name}\", it has {}",
                task.name,
                names.join(", ")
            )));
        }
        if wanted[..index].iter().any(|earlier| &earlier.name == name) {
            return Err(Error::invalid(format!("output \"{name}\" is asked for twice")));
        }
    }
    Ok(())
}

/// The outputs that were asked for, in that order; all of them where none was named.
pub(crate) fn pick(
    outputs: Vec<(String, Tensor)>,
    wanted: Vec<Wanted>,
    task: &TaskInfo,
) -> Result<Vec<Output>> {
    if wanted.is_empty() {
        return outputs
            .into_iter()
            .map(|(name, tensor)| {
                Ok(Output { wanted: Wanted::plain(name), tensor: to_host(&tensor)?.settled()? })
            })
            .collect();
    }
    wanted
        .into_iter()
        .map(|wanted| {
            let found = outputs.iter().find(|(name, _)| *name == wanted.name);
            let (_, tensor) = found.ok_or_else(|| {
                Error::engine(format!("the answer has no output \"{}\"", wanted.name))
            })?;
            let mut tensor = match wanted.place {
                // Written from where it is.
                Some(_) => tensor.clone().settled()?,
                None => to_host(tensor)?.settled()?,
            };
            if wanted.classes > 0 {
                tensor = classify(&tensor, wanted.classes, task.max_batch_size > 0)
                    .map_err(|error| error.within(format_args!("output \"{}\"", wanted.name)))?;
            }
            Ok(Output { wanted, tensor })
        })
        .collect()
}

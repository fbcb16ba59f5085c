//! Inputs for models that nobody has any for: the same for the same seed.

use std::collections::HashMap;

use tessera_core::{Error, Random, RandomElements, Result, Tensor, TensorType, random_tensor};
use tessera_graph::TensorPort;

/// Random inputs for a model, and the default of those that may be left out; `ranges` are those of
/// integers, by the name of the input.
pub fn random_inputs(
    inputs: &[TensorPort],
    ranges: &HashMap<String, (i64, i64)>,
    seed: u64,
) -> Result<Vec<Tensor>> {
    let mut random = Random::new(seed);
    let tensor =
        |port: &TensorPort| random_input(&mut random, port, ranges.get(&port.name).copied());
    inputs.iter().map(tensor).collect()
}

/// A random input, or its default where it has one and no range is given; the same seed gives the
/// same one.
pub fn random_input(
    random: &mut Random,
    port: &TensorPort,
    range: Option<(i64, i64)>,
) -> Result<Tensor> {
    let TensorType { dtype, dims } = &port.tensor_type;
    if let Some(default) = port.default.as_ref().filter(|_| range.is_none()) {
        return default.to_tensor(*dtype);
    }
    let dims = dims.as_ref().ok_or_else(|| {
        Error::usage(format!("input \"{}\" has no shape, use --shape {0}=…", port.name))
    })?;
    // A dimension that is open is one: one sample, one step.
    let shape: Vec<usize> = dims.iter().map(|dim| dim.fixed_size().unwrap_or(1)).collect();
    random_tensor(random, *dtype, &shape, RandomElements::Integers(range))
        .map_err(|error| error.with_context(format!("input \"{}\"", port.name)))
}

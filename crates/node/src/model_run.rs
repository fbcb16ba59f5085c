//! Runs a loaded model: block by block, out at the first exit that is certain enough.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tessera_core::{DType, Error, Result, Tensor, TensorMut, lock};
use tessera_engine::to_host;
use tessera_graph::{TensorSource, check_inputs};

use crate::LoadedModel;
use crate::entropy::highest_entropy;
use crate::executor::entropy_by_row_anywhere;

/// What to do with exits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitPolicy {
    /// Stop at the first exit that is certain enough for every sample of the batch.
    #[default]
    TakeExits,
    /// Run to the end; heads of exits are skipped.
    SkipExits,
    /// Run to the end, and the heads of all exits too.
    AllExits,
}

/// An exit that was taken.
#[derive(Clone, Debug)]
pub struct ExitTaken {
    /// Name of the exit's output.
    pub output: String,
    /// Its threshold.
    pub threshold: f32,
    /// The normalised entropy of the least certain sample.
    pub entropy: f64,
}

/// What came out of a run.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// The outputs by name; those of the exit alone where one was taken.
    pub outputs: Vec<(String, Tensor)>,
    /// The outputs of heads that ran and were not taken.
    pub exits: Vec<(String, Tensor)>,
    /// The exit that was taken.
    pub exit: Option<ExitTaken>,
    /// Per block, how long it ran; `None` for those that did not run.
    pub times: Vec<Option<Duration>>,
}

impl LoadedModel {
    /// Checks inputs against what the model expects.
    pub fn check_inputs(&self, inputs: &[Tensor]) -> Result<()> {
        check_inputs(&self.graph.inputs, inputs, self.graph.relies_on_dim_names)
    }

    /// Memory for the outputs of a block whose shapes are known for sure.
    fn bind_outputs(&self, block: usize, in_place: bool) -> Result<Vec<Option<TensorMut>>> {
        let outputs = self.graph.blocks[block].outputs.iter();
        if !in_place || !self.confirmed[block].load(Ordering::Relaxed) {
            return Ok(outputs.map(|_| None).collect());
        }
        outputs
            .map(|port| {
                let dtype = port.tensor_type.dtype;
                let shape = port.tensor_type.fixed_shape().filter(|_| dtype != DType::String);
                shape.map(|shape| self.buffers.allocate_tensor(dtype, &shape)).transpose()
            })
            .collect()
    }

    /// Notes whether a block's outputs have the shapes that were inferred.
    fn confirm_shapes(&self, block: usize, outputs: &[Tensor]) {
        let expected =
            self.graph.blocks[block].outputs.iter().map(|port| port.tensor_type.fixed_shape());
        let agree = expected
            .zip(outputs)
            .all(|(expected, found)| expected.is_none_or(|expected| expected == found.shape()));
        self.confirmed[block].store(agree, Ordering::Relaxed);
    }

    /// Runs the model.
    pub fn run_model(&self, inputs: &[Tensor], policy: ExitPolicy) -> Result<RunResult> {
        self.check_inputs(inputs)?;
        let mut values: Vec<Vec<Option<Tensor>>> = Vec::with_capacity(self.blocks.len());
        let mut left = self.uses.clone();
        let mut times = vec![None; self.blocks.len()];
        let mut exits = Vec::new();
        for (index, node) in self.graph.blocks.iter().enumerate() {
            let exit = self.graph.exit_of(index);
            if exit.is_some() && policy == ExitPolicy::SkipExits {
                values.push(vec![None; node.outputs.len()]);
                continue;
            }
            let given = node
                .inputs
                .iter()
                .map(|&source| take_tensor(inputs, &mut values, &mut left, source))
                .collect::<Result<Vec<Tensor>>>()?;
            let mut session = lock(&self.blocks[index]);
            let start = Instant::now();
            let bound = self.bind_outputs(index, session.computes_in_place())?;
            let outputs = session.run_inference(&given, bound)?;
            times[index] = Some(start.elapsed());
            drop(session);
            self.confirm_shapes(index, &outputs);
            if let Some(exit) = exit {
                let scores = outputs.into_iter().next().ok_or_else(|| {
                    Error::engine(format!("exit \"{}\" gave no scores", exit.output))
                })?;
                let scores = to_host(&scores)?.wait_fence_on_host()?;
                let entropies = entropy_by_row_anywhere(&scores, exit.scores);
                let what = || format!("exit \"{}\"", exit.output);
                let entropy =
                    highest_entropy(&entropies.map_err(|error| error.with_context(what()))?);
                if policy == ExitPolicy::TakeExits && entropy <= f64::from(exit.threshold) {
                    let taken = ExitTaken {
                        output: exit.output.clone(),
                        threshold: exit.threshold,
                        entropy,
                    };
                    let outputs = vec![(exit.output.clone(), scores)];
                    return Ok(RunResult { outputs, exits, exit: Some(taken), times });
                }
                exits.push((exit.output.clone(), scores));
                values.push(vec![None; node.outputs.len()]);
                continue;
            }
            values.push(outputs.into_iter().map(Some).collect());
        }
        let outputs = self
            .graph
            .outputs
            .iter()
            .map(|(port, source)| {
                let value = take_tensor(inputs, &mut values, &mut left, *source)?;
                Ok((port.name.clone(), to_host(&value)?))
            })
            .collect::<Result<Vec<_>>>()?;
        // Copies of all of them are on their way before the first is waited for.
        let outputs =
            outputs.into_iter().map(|(name, value)| Ok((name, value.wait_fence_on_host()?)));
        let outputs = outputs.collect::<Result<_>>()?;
        Ok(RunResult { outputs, exits, exit: None, times })
    }
}

/// A tensor for its next user; the last one gets the only reference, so that memory is given back.
fn take_tensor(
    inputs: &[Tensor],
    values: &mut [Vec<Option<Tensor>>],
    left: &mut [Vec<usize>],
    source: TensorSource,
) -> Result<Tensor> {
    let missing = || Error::invalid("a block uses what no earlier block computes");
    match source {
        TensorSource::Input(index) => inputs.get(index).cloned().ok_or_else(missing),
        TensorSource::Block { block, output } => {
            let slot = values.get_mut(block).and_then(|outputs| outputs.get_mut(output));
            let (slot, left) = (slot.ok_or_else(missing)?, &mut left[block][output]);
            *left = left.saturating_sub(1);
            if *left == 0 { slot.take() } else { slot.clone() }.ok_or_else(missing)
        }
    }
}

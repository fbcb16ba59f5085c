//! A block together with its weights: what an engine loads.

use std::sync::Arc;

use tessera_core::{DType, Error, Result, Tensor, display_shape};
use tessera_graph::Block;

use crate::Mapping;

/// A weight in memory that we own.
#[derive(Clone)]
pub struct ProgramWeight {
    /// The weight.
    pub tensor: Tensor,
    /// The file mapping it lies in, where it does.
    pub mapping: Option<Arc<Mapping>>,
}

/// A block and its weights, in memory that we own and that sessions only refer to.
#[derive(Clone)]
pub struct Program {
    block: Block,
    weights: Vec<ProgramWeight>,
}

impl Program {
    /// Joins a block with its weights, given in the block's order.
    pub fn new(block: Block, weights: Vec<ProgramWeight>) -> Result<Self> {
        if weights.len() != block.weights().len() {
            return Err(Error::usage(format!(
                "block {}: {} weights, expected {}",
                block.hash().short(),
                weights.len(),
                block.weights().len()
            )));
        }
        for (expected, found) in block.weights().iter().zip(&weights) {
            let tensor = &found.tensor;
            if tensor.dtype() != expected.dtype || tensor.shape() != expected.shape {
                return Err(Error::invalid(format!(
                    "block {}: weight {} is {}, expected {}",
                    block.hash().short(),
                    expected.hash.short(),
                    display_shape(tensor.dtype(), tensor.shape()),
                    display_shape(expected.dtype, &expected.shape)
                )));
            }
        }
        Ok(Self { block, weights })
    }

    /// The block.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// The weights, in the block's order.
    pub fn weights(&self) -> &[ProgramWeight] {
        &self.weights
    }

    /// How messages name the block.
    pub fn label(&self) -> String {
        format!("block {}", self.block.hash().short())
    }
}

/// Checks what a caller passes to a run against what the block expects.
pub(crate) fn check_run(
    label: &str,
    expected: &[(String, DType)],
    inputs: &[Tensor],
    outputs: (usize, usize),
) -> Result<()> {
    if inputs.len() != expected.len() {
        return Err(Error::usage(format!(
            "{label}: {} inputs, expected {}",
            inputs.len(),
            expected.len()
        )));
    }
    for ((name, dtype), input) in expected.iter().zip(inputs) {
        if input.dtype() != *dtype {
            return Err(Error::invalid(format!(
                "{label}: input {name} expects {dtype}, got {}",
                display_shape(input.dtype(), input.shape())
            )));
        }
    }
    if outputs.0 != outputs.1 {
        return Err(Error::usage(format!(
            "{label}: {} outputs, expected {}",
            outputs.0, outputs.1
        )));
    }
    Ok(())
}

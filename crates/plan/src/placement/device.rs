//! `device`: everything where the inputs come from.
//!
//! Nothing is sent anywhere, which is what the other strategies are measured against on the near side.

use tessera_core::{Error, Result};

use super::landscape::Landscape;
use super::outcome::violation;
use super::strategy::{Options, Proposal, Strategy};

/// Places all layers of all models on the input node.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceOnly;

impl Strategy for DeviceOnly {
    fn name(&self) -> &str {
        "device"
    }

    fn about(&self) -> &str {
        "all layers on the node that inputs come from"
    }

    fn propose(&self, landscape: &Landscape<'_>, _: &Options<'_>) -> Result<Proposal> {
        let input = landscape.network.input;
        let chains = landscape.chains.iter();
        let nodes: Vec<Vec<usize>> = chains.map(|chain| vec![input; chain.layers]).collect();
        match violation(landscape.problem, &landscape.plan(nodes.clone())) {
            Some(broken) => Err(Error::invalid(format!("device: {broken}"))),
            None => Ok(Proposal { nodes, bound_seconds: None, front: Vec::new() }),
        }
    }
}

//! Whether requests are certain enough to leave at an exit.

use tessera_core::{Error, Result, Tensor};
use tessera_plan::ExitLeg;

use super::door::Item;
use crate::uncertainty::{by_row, highest};

/// How uncertain the least certain row of each request is; `None` for one that is at no exit.
pub(super) type Uncertainties = Vec<Option<f64>>;

/// Finds that for a batch.
///
/// `outputs` are those of all of them, one after the other, and `rows` how many each has.
pub(super) fn uncertainties(
    batch: &[Item],
    outputs: &[Tensor],
    rows: &[usize],
) -> Result<Uncertainties> {
    // All of a batch are at one block, and what its scores are is the same for all.
    let Some(exit) = batch.iter().find_map(|item| item.leg.exit.as_ref()) else {
        return Ok(batch.iter().map(|_| None).collect());
    };
    let scores = outputs.first().ok_or_else(|| Error::engine("an exit gave no scores"))?;
    let found = by_row(scores, exit.scores)?;
    let total: usize = rows.iter().sum();
    // A row of a request may have several of scores.
    let each = found.len().checked_div(total).unwrap_or(0);
    if batch.len() > 1 && each * total != found.len() {
        return Err(Error::engine("an exit gave no scores for some rows of a batch"));
    }
    let mut rest = &found[..];
    let of_item = |(index, item): (usize, &Item)| {
        let len = if batch.len() > 1 {
            rows.get(index).map_or(0, |rows| rows * each)
        } else {
            rest.len()
        };
        let (here, after) = rest.split_at(len.min(rest.len()));
        rest = after;
        item.leg.exit.as_ref().map(|_| highest(here))
    };
    Ok(batch.iter().enumerate().map(of_item).collect())
}

/// Whether a request leaves.
pub(super) fn leaves(exit: &ExitLeg, uncertainty: Option<f64>) -> bool {
    uncertainty.is_some_and(|highest| highest <= f64::from(exit.threshold))
}

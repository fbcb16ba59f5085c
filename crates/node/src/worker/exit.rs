//! Early exit: whether requests are certain enough to leave.

use tessera_core::{Error, Result, Tensor};
use tessera_deploy::HopExit;
use tessera_graph::ScoreKind;

use super::batch_item::{BatchItem, RequestEntropy};
use crate::entropy::highest_entropy;

/// Finds the normalised entropy of each row of scores, where they are.
pub(crate) type EntropyByRow = fn(&Tensor, ScoreKind) -> Result<Vec<f64>>;

/// Finds how uncertain each request of a batch is; `None` for one that is at no exit.
///
/// `outputs` are those of all of them, one after the other, and `rows` how many each has.
pub(crate) fn request_entropies(
    batch: &[BatchItem],
    outputs: &[Tensor],
    rows: &[usize],
    entropy_by_row: EntropyByRow,
) -> Vec<Option<RequestEntropy>> {
    match find_entropies(batch, outputs, rows, entropy_by_row) {
        Ok(found) => found.into_iter().map(|found| found.map(Ok)).collect(),
        // The others of the batch have nothing to do with it.
        Err(error) => {
            let failed = |item: &BatchItem| item.is_at_exit().then(|| Err(error.to_string()));
            batch.iter().map(failed).collect()
        }
    }
}

fn find_entropies(
    batch: &[BatchItem],
    outputs: &[Tensor],
    rows: &[usize],
    entropy_by_row: EntropyByRow,
) -> Result<Vec<Option<f64>>> {
    // All of a batch are at one unit, and what its scores are is the same for all.
    let exit = batch.iter().find_map(|item| item.route.current_hop()?.exit());
    let Some(exit) = exit else {
        return Ok(batch.iter().map(|_| None).collect());
    };
    let scores = outputs.first().ok_or_else(|| Error::engine("an exit gave no scores"))?;
    let found = entropy_by_row(scores, exit.scores)?;
    if batch.len() == 1 {
        return Ok(vec![Some(highest_entropy(&found))]);
    }
    let total: usize = rows.iter().sum();
    // A row of a request may have several of scores.
    let each = found.len().checked_div(total).unwrap_or(0);
    if each * total != found.len() {
        return Err(Error::engine("an exit gave no scores for some rows of a batch"));
    }
    let mut rest = &found[..];
    let of_item = |(item, rows): (&BatchItem, &usize)| {
        let (here, after) = rest.split_at((rows * each).min(rest.len()));
        rest = after;
        item.is_at_exit().then(|| highest_entropy(here))
    };
    Ok(batch.iter().zip(rows).map(of_item).collect())
}

/// Whether a request leaves.
pub(crate) fn should_exit(exit: &HopExit, entropy: Option<RequestEntropy>) -> Result<bool, String> {
    let highest = entropy.transpose()?;
    Ok(highest.is_some_and(|highest| highest <= f64::from(exit.threshold)))
}

//! Whether requests are certain enough to leave at an exit.

use tessera_core::{Error, Result, Tensor};
use tessera_plan::ExitLeg;

use super::door::Item;
use crate::entropy::{by_row, highest};

/// How uncertain the least certain row of a request is, or why that can't be told.
pub(super) type Entropy = Result<f64, String>;

/// Finds that for each request of a batch; `None` for one that is at no exit.
///
/// `outputs` are those of all of them, one after the other, and `rows` how many each has.
pub(super) fn entropies(
    batch: &[Item],
    outputs: &[Tensor],
    rows: &[usize],
) -> Vec<Option<Entropy>> {
    match find(batch, outputs, rows) {
        Ok(found) => found.into_iter().map(|found| found.map(Ok)).collect(),
        // The others of the batch have nothing to do with it.
        Err(error) => {
            let told = |item: &Item| item.leg.exit.as_ref().map(|_| Err(error.to_string()));
            batch.iter().map(told).collect()
        }
    }
}

fn find(batch: &[Item], outputs: &[Tensor], rows: &[usize]) -> Result<Vec<Option<f64>>> {
    // All of a batch are at one block, and what its scores are is the same for all.
    let Some(exit) = batch.iter().find_map(|item| item.leg.exit.as_ref()) else {
        return Ok(batch.iter().map(|_| None).collect());
    };
    let scores = outputs.first().ok_or_else(|| Error::engine("an exit gave no scores"))?;
    let found = by_row(scores, exit.scores)?;
    if batch.len() == 1 {
        return Ok(vec![Some(highest(&found))]);
    }
    let total: usize = rows.iter().sum();
    // A row of a request may have several of scores.
    let each = found.len().checked_div(total).unwrap_or(0);
    if each * total != found.len() {
        return Err(Error::engine("an exit gave no scores for some rows of a batch"));
    }
    let mut rest = &found[..];
    let of_item = |(item, rows): (&Item, &usize)| {
        let (here, after) = rest.split_at((rows * each).min(rest.len()));
        rest = after;
        item.leg.exit.as_ref().map(|_| highest(here))
    };
    Ok(batch.iter().zip(rows).map(of_item).collect())
}

/// Whether a request leaves.
pub(super) fn leaves(exit: &ExitLeg, entropy: Option<Entropy>) -> Result<bool, String> {
    let highest = entropy.transpose()?;
    Ok(highest.is_some_and(|highest| highest <= f64::from(exit.threshold)))
}

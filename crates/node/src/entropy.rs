//! How uncertain the scores of an exit are.

use tessera_core::{Error, Result, Tensor};
use tessera_engine::{entropy_on_device, to_host};
use tessera_graph::{ScoreKind, normalised_entropy};

/// The normalised entropy of each row of scores. Those on a GPU stay there: a number for each row comes back.
pub(crate) fn by_row(scores: &Tensor, kind: ScoreKind) -> Result<Vec<f64>> {
    match entropy_on_device(scores, kind == ScoreKind::Probabilities) {
        Ok(Some(found)) => return numbers(&found.settled()?),
        Ok(None) => {}
        // What a GPU can't do the host can.
        Err(error) => tracing::debug!(%error, "scores of an exit come to the host"),
    }
    let scores = to_host(scores)?.settled()?;
    let classes = scores.shape().last().copied().unwrap_or(1).max(1);
    let rows = numbers(&scores)?;
    Ok(rows.chunks(classes).map(|row| normalised_entropy(row, kind)).collect())
}

/// The least certain of them.
pub(crate) fn highest(entropies: &[f64]) -> f64 {
    entropies.iter().copied().fold(0.0, f64::max)
}

fn numbers(scores: &Tensor) -> Result<Vec<f64>> {
    let unknown = || Error::unsupported(format!("an exit has scores of {}", scores.dtype()));
    scores.to_f64().ok_or_else(unknown)
}

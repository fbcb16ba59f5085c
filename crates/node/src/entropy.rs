//! How uncertain the scores of an exit are.

use tessera_core::{Error, Result, Tensor};
use tessera_graph::{ScoreKind, normalised_entropy};

/// The normalised entropy of each row of scores.
pub(crate) fn entropy_by_row(scores: &Tensor, kind: ScoreKind) -> Result<Vec<f64>> {
    let classes = scores.shape().last().copied().unwrap_or(1).max(1);
    let rows = scores_as_f64(scores)?;
    Ok(rows.chunks(classes).map(|row| normalised_entropy(row, kind)).collect())
}

/// The least certain of them.
pub(crate) fn highest_entropy(entropies: &[f64]) -> f64 {
    entropies.iter().copied().fold(0.0, f64::max)
}

/// Scores, or entropies, as numbers of the host.
pub(crate) fn scores_as_f64(scores: &Tensor) -> Result<Vec<f64>> {
    let unknown = || Error::unsupported(format!("an exit has scores of {}", scores.dtype()));
    scores.to_f64().ok_or_else(unknown)
}

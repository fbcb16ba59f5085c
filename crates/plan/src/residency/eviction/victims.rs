//! Which instances a policy evicts.

use super::strategies::EvictionPolicy;
use crate::residency::problem::exceeds_memory;

/// An instance that is on the GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResidentInstance {
    /// Bytes that it takes.
    pub bytes: f64,
    /// Time that the next request loses when it has to be loaded again.
    pub reload_ms: f64,
    /// How often it is asked for; any unit, as long as it is the same for all.
    pub rate: f64,
    /// When it was used last.
    pub last_used_ms: f64,
    /// Whether it has to stay: it is in use, or somebody said so.
    pub pinned: bool,
}

impl ResidentInstance {
    /// What is lost per unit of time without it.
    fn reload_loss(&self) -> f64 {
        self.rate * self.reload_ms
    }
}

impl EvictionPolicy {
    /// Which to evict so that `needed_bytes` become free, in the order in which to do so; none
    /// where that can't be done because too many are pinned.
    pub fn choose_victims(
        self,
        resident: &[ResidentInstance],
        needed_bytes: f64,
    ) -> Option<Vec<usize>> {
        let mut order: Vec<usize> =
            (0..resident.len()).filter(|&one| !resident[one].pinned).collect();
        let free = order.iter().map(|&one| resident[one].bytes).sum();
        if exceeds_memory(needed_bytes, free) {
            return None;
        }
        let rank = |one: usize| match self {
            Self::LeastRecentlyUsed => resident[one].last_used_ms,
            Self::ReloadCost | Self::Offline => {
                resident[one].reload_loss() / resident[one].bytes.max(1.0)
            }
        };
        // Alike ones go by age.
        order.sort_by(|&one, &other| {
            let by_age = resident[one].last_used_ms.total_cmp(&resident[other].last_used_ms);
            rank(one).total_cmp(&rank(other)).then(by_age)
        });
        let mut freed = 0.0;
        order.retain(|&one| {
            let is_needed = exceeds_memory(needed_bytes, freed);
            if is_needed {
                freed += resident[one].bytes;
            }
            is_needed
        });
        if self != Self::LeastRecentlyUsed {
            spare_victims(resident, needed_bytes, freed, &mut order);
        }
        Some(order)
    }
}

/// Keeps what need not go: of those chosen, the ones that the others make room enough without; or
/// all, where one other instance makes enough room and costs less.
fn spare_victims(
    resident: &[ResidentInstance],
    needed_bytes: f64,
    mut freed: f64,
    chosen: &mut Vec<usize>,
) {
    for position in (0..chosen.len()).rev() {
        let bytes = resident[chosen[position]].bytes;
        if !exceeds_memory(needed_bytes, freed - bytes) {
            freed -= bytes;
            chosen.remove(position);
        }
    }
    let loss: f64 = chosen.iter().map(|&one| resident[one].reload_loss()).sum();
    let suits = |&one: &usize| {
        let it = &resident[one];
        !it.pinned && !exceeds_memory(needed_bytes, it.bytes) && it.reload_loss() < loss
    };
    let single = (0..resident.len()).filter(suits);
    if let Some(one) = single.min_by(|&one, &other| {
        resident[one].reload_loss().total_cmp(&resident[other].reload_loss())
    }) {
        *chosen = vec![one];
    }
}

//! How chromosomes come about, mix and change. All work on the genes of one model.

use tessera_core::Random;

use super::super::cost_model::PlacementNetwork;

/// A number below `limit`; zero where there is none.
pub(super) fn random_below(random: &mut Random, limit: usize) -> usize {
    random.next_below(limit.max(1) as u64) as usize
}

/// Whether something of this probability happens.
pub(super) fn happens_by_chance(random: &mut Random, probability: f64) -> bool {
    random.next_fraction() <= probability
}

/// Any node for each gene: as in Algorithm 6.1.
pub(super) fn random_genes(random: &mut Random, nodes: usize, genes: &mut [usize]) {
    for gene in genes {
        *gene = random_below(random, nodes);
    }
}

/// A few runs of layers, on nodes in the order of their tiers.
pub(super) fn random_runs(random: &mut Random, network: &PlacementNetwork, genes: &mut [usize]) {
    let most = network.nodes.min(genes.len());
    // Mostly few runs, as good plans have, but now and then up to as many as there can be.
    let mut runs = 1;
    while runs < most && happens_by_chance(random, 0.7) {
        runs += 1;
    }
    let mut nodes: Vec<usize> = (0..network.nodes).collect();
    for at in 0..runs {
        let other = at + random_below(random, nodes.len() - at);
        nodes.swap(at, other);
    }
    nodes.truncate(runs);
    nodes.sort_by_key(|&node| network.tiers[node]);
    let mut borders: Vec<usize> = (1..runs).map(|_| random_below(random, genes.len())).collect();
    borders.sort_unstable();
    borders.push(genes.len());
    let mut first = 0;
    for (node, end) in nodes.into_iter().zip(borders) {
        genes[first..end].fill(node);
        first = end;
    }
}

/// Swaps genes between two chromosomes, each with this probability.
pub(super) fn uniform_crossover(
    random: &mut Random,
    probability: f64,
    one: &mut [usize],
    other: &mut [usize],
) {
    for (one, other) in one.iter_mut().zip(other) {
        if happens_by_chance(random, probability) {
            std::mem::swap(one, other);
        }
    }
}

/// Swaps all genes from some layer on: runs stay together.
pub(super) fn tail_crossover(random: &mut Random, one: &mut [usize], other: &mut [usize]) {
    let cut = random_below(random, one.len());
    one[cut..].swap_with_slice(&mut other[cut..]);
}

/// Gives genes another node, each with this probability.
pub(super) fn uniform_mutation(
    random: &mut Random,
    probability: f64,
    nodes: usize,
    genes: &mut [usize],
) {
    for gene in genes {
        if happens_by_chance(random, probability) {
            *gene = random_below(random, nodes);
        }
    }
}

/// Moves a border between two runs, moves a run to another node, or gives a part of a run to one.
pub(super) fn run_mutation(random: &mut Random, nodes: usize, genes: &mut [usize]) {
    let at = random_below(random, genes.len());
    let node = genes[at];
    let first = genes[..at].iter().rposition(|&gene| gene != node).map_or(0, |before| before + 1);
    let length = genes[at..].iter().position(|&gene| gene != node);
    let end = length.map_or(genes.len(), |length| at + length);
    match random_below(random, 3) {
        0 if first > 0 => {
            // The run before takes the layers up to here; or this one some of that.
            let before = genes[first - 1];
            if random.next_below(2) == 0 {
                genes[first..=at].fill(before);
            } else {
                let from = genes[..first].iter().rposition(|&gene| gene != before);
                let from = from.map_or(0, |from| from + 1);
                let from = from + random_below(random, first - from);
                genes[from..first].fill(node);
            }
        }
        0 | 1 => genes[first..end].fill(random_below(random, nodes)),
        _ => {
            let new = random_below(random, nodes);
            match random.next_below(2) {
                0 => genes[first..=at].fill(new),
                _ => genes[at..end].fill(new),
            }
        }
    }
}

/// No layer in a lower tier than the one before (Algorithm 6.2).
pub(super) fn enforce_tiers(network: &PlacementNetwork, genes: &mut [usize]) {
    for layer in 1..genes.len() {
        let (before, node) = (genes[layer - 1], genes[layer]);
        if node != before && !network.may_follow(before, node) {
            genes[layer] = before;
        }
    }
}

/// A node's layers contiguous (Algorithm 6.3): what lies between its first and last is its own.
pub(super) fn enforce_adjacency(last: &mut [usize], genes: &mut [usize]) {
    for (layer, &node) in genes.iter().enumerate() {
        last[node] = layer;
    }
    let mut layer = 0;
    while layer < genes.len() {
        let node = genes[layer];
        let end = last[node] + 1;
        genes[layer..end].fill(node);
        layer = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_layers_become_contiguous_as_in_the_example() {
        let mut genes = [1, 3, 2, 2, 3];
        enforce_adjacency(&mut [0; 4], &mut genes);
        assert_eq!(genes, [1, 3, 3, 3, 3]);
    }
}

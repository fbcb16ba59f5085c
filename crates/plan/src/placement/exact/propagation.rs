//! What follows from where some layers are: where others can't be any more.
//!
//! Prices find what is dear, and are slow to find out that there is no room at all. This is quick
//! at that: layers whose node is known take up room, keep what lies between them together, and keep
//! those before and after out of higher and lower tiers.

use super::super::cost_model::PlacementNetwork;

/// What several models need of nodes that they share.
pub(super) struct PlacementConstraints<'a> {
    pub(super) network: &'a PlacementNetwork,
    /// For each model and layer, its block as a number.
    pub(super) blocks: &'a [Vec<usize>],
    /// Memory and storage of each block.
    pub(super) sizes: &'a [[f64; 2]],
    /// Memory and storage of each node.
    pub(super) rooms: &'a [[f64; 2]],
}

/// How far sums are off that are rounded in another order.
const SAME: f64 = 1e-12;

impl PlacementConstraints<'_> {
    /// Takes away what is not possible any more, from `allowed` by model, node and layer. False
    /// where there is no way left.
    pub(super) fn propagate_all(&self, allowed: &mut [Vec<bool>]) -> bool {
        loop {
            let mut changed = false;
            for (model, allowed) in allowed.iter_mut().enumerate() {
                let layers = self.blocks[model].len();
                changed |= self.keep_together(allowed, layers);
                changed |= self.keep_tiers(allowed, layers);
            }
            let Some(filled) = self.propagate_room(allowed) else { return false };
            if !(changed | filled) {
                return true;
            }
        }
    }

    /// The one node where a layer can still be.
    fn only_node(&self, allowed: &[bool], layers: usize, layer: usize) -> Option<usize> {
        let mut nodes = (0..self.network.nodes).filter(|node| allowed[node * layers + layer]);
        nodes.next().filter(|_| nodes.next().is_none())
    }

    /// A node's layers are neighbours: those between two are there too, and where one can't be
    /// there, nor can those beyond it.
    fn keep_together(&self, allowed: &mut [bool], layers: usize) -> bool {
        let mut changed = false;
        for layer in 0..layers {
            let Some(node) = self.only_node(allowed, layers, layer) else { continue };
            let row = node * layers;
            let mut forbid = |from: &mut dyn Iterator<Item = usize>| {
                let mut gap = false;
                for other in from {
                    gap |= !allowed[row + other];
                    changed |= gap && std::mem::replace(&mut allowed[row + other], false);
                }
            };
            forbid(&mut (layer + 1..layers));
            forbid(&mut (0..layer).rev());
            let last = (layer + 1..layers)
                .rfind(|&other| self.only_node(allowed, layers, other) == Some(node));
            for between in last.map_or(0..0, |last| layer + 1..last) {
                for other in (0..self.network.nodes).filter(|&other| other != node) {
                    changed |= std::mem::replace(&mut allowed[other * layers + between], false);
                }
            }
        }
        changed
    }

    /// Layers never go back to a lower tier.
    fn keep_tiers(&self, allowed: &mut [bool], layers: usize) -> bool {
        let tiers = &self.network.tiers;
        let mut changed = false;
        let mut lowest = 0;
        for layer in 0..layers {
            let there = (0..tiers.len()).filter(|node| allowed[node * layers + layer]);
            lowest = there.map(|node| tiers[node]).min().map_or(lowest, |tier| lowest.max(tier));
            for node in (0..tiers.len()).filter(|&node| tiers[node] < lowest) {
                changed |= std::mem::replace(&mut allowed[node * layers + layer], false);
            }
        }
        let mut highest = u32::MAX;
        for layer in (0..layers).rev() {
            let there = (0..tiers.len()).filter(|node| allowed[node * layers + layer]);
            highest = there.map(|node| tiers[node]).max().map_or(highest, |tier| highest.min(tier));
            for node in (0..tiers.len()).filter(|&node| tiers[node] > highest) {
                changed |= std::mem::replace(&mut allowed[node * layers + layer], false);
            }
        }
        changed
    }

    /// Layers whose node is known take up room: others only go where there is enough left. None
    /// where a node is too full, or a layer is nowhere; else whether anything changed.
    fn propagate_room(&self, allowed: &mut [Vec<bool>]) -> Option<bool> {
        let (nodes, count) = (self.network.nodes, self.sizes.len());
        let mut there = vec![false; nodes * count];
        let mut somewhere = vec![false; count];
        let mut left = self.rooms.to_vec();
        let over = |room: &[f64; 2], node: usize| {
            (0..2).any(|kind| room[kind] < -SAME * self.rooms[node][kind].max(1.0))
        };
        for (model, allowed) in allowed.iter().enumerate() {
            let layers = self.blocks[model].len();
            for (layer, &block) in self.blocks[model].iter().enumerate() {
                if (0..nodes).all(|node| !allowed[node * layers + layer]) {
                    return None;
                }
                let Some(node) = self.only_node(allowed, layers, layer) else { continue };
                somewhere[block] = true;
                if !std::mem::replace(&mut there[node * count + block], true) {
                    (0..2).for_each(|kind| left[node][kind] -= self.sizes[block][kind]);
                }
                if over(&left[node], node) {
                    return None;
                }
            }
        }
        for kind in 0..2 {
            let needed = (0..count).filter(|&block| !somewhere[block]);
            let needed: f64 = needed.map(|block| self.sizes[block][kind]).sum();
            let room: f64 = left.iter().map(|room| room[kind]).sum();
            let all: f64 = self.rooms.iter().map(|room| room[kind]).sum();
            if needed > room + SAME * all.max(1.0) {
                return None;
            }
        }
        let mut changed = false;
        for (model, allowed) in allowed.iter_mut().enumerate() {
            let layers = self.blocks[model].len();
            for (layer, &block) in self.blocks[model].iter().enumerate() {
                for node in (0..nodes).filter(|&node| !there[node * count + block]) {
                    let [memory, storage] = self.sizes[block];
                    let room = [left[node][0] - memory, left[node][1] - storage];
                    if over(&room, node) {
                        changed |= std::mem::replace(&mut allowed[node * layers + layer], false);
                    }
                }
            }
        }
        Some(changed)
    }
}

//! Which nodes have which content: as they say themselves, block by block.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tessera_cluster::wire::ContentHolder;
use tessera_core::{ContentHash, lock};

use super::content_reader::ContentReader;
use super::node_table::{KnownNode, NodeTable};

/// How many nodes are named at most, and for each content: a node asks the nearest of them.
const MOST_HOLDERS: usize = 16;
const HOLDERS_OF_EACH: usize = 4;

/// Finds the nodes that have content.
pub(super) struct ContentDirectory {
    nodes: Arc<NodeTable>,
    content: Arc<dyn ContentReader>,
    /// The weights of blocks; they never change.
    weights: Mutex<HashMap<ContentHash, Arc<[ContentHash]>>>,
}

/// A node that is there, and what it has.
struct PresentNode {
    name: String,
    address: String,
    blocks: Arc<HashSet<ContentHash>>,
    /// How far it is from whoever asks, where that is known.
    round_trip: Option<Duration>,
}

impl ContentDirectory {
    pub(super) fn new(nodes: Arc<NodeTable>, content: Arc<dyn ContentReader>) -> Self {
        Self { nodes, content, weights: Mutex::default() }
    }

    /// The nodes that have some of this, for one that asks. May wait for a disk.
    pub(super) fn locate(&self, asking: &str, wanted: &[ContentHash]) -> Vec<ContentHolder> {
        let mut present = self.nodes.read(|nodes| present_nodes(nodes, asking));
        // The nearest first, as far as it is known; others are not all asked by all.
        present.sort_by_cached_key(|node| {
            let mut hasher = DefaultHasher::new();
            (asking, &node.name).hash(&mut hasher);
            (node.round_trip.unwrap_or(Duration::MAX), hasher.finish())
        });
        let places: HashMap<ContentHash, u32> =
            wanted.iter().zip(0u32..).map(|(hash, place)| (*hash, place)).collect();
        let blocks: HashSet<ContentHash> =
            present.iter().flat_map(|node| node.blocks.iter().copied()).collect();
        let useful = blocks.into_iter().filter_map(|block| {
            let weights = self.weights_of(block);
            let parts = std::iter::once(&block).chain(&*weights);
            let found: Vec<u32> = parts.filter_map(|part| places.get(part).copied()).collect();
            (!found.is_empty()).then_some((block, found))
        });
        let useful: HashMap<ContentHash, Vec<u32>> = useful.collect();
        let mut counts = vec![0; wanted.len()];
        let mut holders = Vec::new();
        for node in present {
            let has = useful.iter().filter(|(block, _)| node.blocks.contains(*block));
            let mut has: Vec<u32> = has.flat_map(|(_, found)| found.iter().copied()).collect();
            has.sort_unstable();
            has.dedup();
            let is_needed = |place: &u32| counts[*place as usize] < HOLDERS_OF_EACH;
            if !has.iter().any(is_needed) {
                continue;
            }
            has.iter().for_each(|place| counts[*place as usize] += 1);
            holders.push(ContentHolder { node: node.name, address: node.address, has });
            if holders.len() >= MOST_HOLDERS {
                break;
            }
        }
        holders
    }

    /// The weights of a block; none where it is not known here.
    fn weights_of(&self, block: ContentHash) -> Arc<[ContentHash]> {
        if let Some(known) = lock(&self.weights).get(&block) {
            return Arc::clone(known);
        }
        let Ok(found) = self.content.block_weights(block) else { return Arc::default() };
        let found: Arc<[ContentHash]> = found.into();
        lock(&self.weights).insert(block, Arc::clone(&found));
        found
    }
}

fn present_nodes(nodes: &BTreeMap<String, KnownNode>, asking: &str) -> Vec<PresentNode> {
    let links = nodes.get(asking).map(|node| &node.links[..]).unwrap_or_default();
    let round_trips: HashMap<&str, Duration> =
        links.iter().filter_map(|link| Some((link.to.as_str(), link.round_trip?))).collect();
    let others = nodes.iter().filter(|(name, node)| *name != asking && node.is_attached());
    let others = others.filter(|(_, node)| {
        !node.held_blocks.is_empty() && !node.description.content_address.is_empty()
    });
    let present = others.map(|(name, node)| PresentNode {
        name: name.clone(),
        address: node.description.content_address.clone(),
        blocks: Arc::clone(&node.held_blocks),
        round_trip: round_trips.get(name.as_str()).copied(),
    });
    present.collect()
}

#[cfg(test)]
mod tests {
    use tessera_cluster::LinkEstimate;
    use tessera_cluster::wire::NodeDescription;
    use tessera_core::{ContentTree, Error, Result};

    use super::*;
    use crate::cluster::content_service::{ContentSlice, ServedContent};

    /// Each block has one weight.
    struct OneWeight;

    fn hash(text: &str) -> ContentHash {
        ContentHash::of_content(text.as_bytes())
    }

    fn weight_of(block: ContentHash) -> ContentHash {
        hash(&format!("weight of {block}"))
    }

    impl ServedContent for OneWeight {
        fn read_content(&self, _: &str, _: ContentHash, _: u64, _: usize) -> Result<ContentSlice> {
            Err(Error::not_found("nothing"))
        }

        fn content_tree(&self, _: &str, _: ContentHash) -> Result<Arc<ContentTree>> {
            Err(Error::not_found("nothing"))
        }
    }

    impl ContentReader for OneWeight {
        fn weight_bytes(&self, _: ContentHash) -> Result<u64> {
            Ok(0)
        }

        fn block_weights(&self, block: ContentHash) -> Result<Vec<ContentHash>> {
            Ok(vec![weight_of(block)])
        }
    }

    /// A node that is attached for as long as what is returned is there.
    fn attach(nodes: &NodeTable, name: &str, blocks: &[ContentHash]) -> u64 {
        let (session, orders) = nodes.attach(name);
        // Nobody takes orders here.
        drop(orders);
        let content_address = format!("{name}:9");
        let description = NodeDescription { content_address, ..NodeDescription::default() };
        nodes.describe(name, session, description);
        let held = Arc::new(blocks.iter().copied().collect());
        nodes.update(name, session, |node| node.held_blocks = held);
        session
    }

    fn names(holders: &[ContentHolder]) -> Vec<&str> {
        holders.iter().map(|holder| holder.node.as_str()).collect()
    }

    #[test]
    fn nodes_that_are_there_are_named_for_blocks_and_for_their_weights() {
        let nodes = Arc::new(NodeTable::new(1));
        let directory = ContentDirectory::new(Arc::clone(&nodes), Arc::new(OneWeight));
        let (one, two) = (hash("one"), hash("two"));
        attach(&nodes, "a", &[one]);
        let gone = attach(&nodes, "b", &[one, two]);
        let asking = attach(&nodes, "c", &[two]);
        let found = directory.locate("c", &[weight_of(two), one]);
        let has: BTreeMap<&str, &[u32]> =
            found.iter().map(|holder| (holder.node.as_str(), &holder.has[..])).collect();
        assert_eq!(has, BTreeMap::from([("a", &[1][..]), ("b", &[0, 1])]));
        assert_eq!(found[0].address, format!("{}:9", found[0].node));
        // The nearest is named first.
        let link = |to: &str, milliseconds: u64| LinkEstimate {
            is_filtered: false,
            to: to.to_owned(),
            round_trip: Some(Duration::from_millis(milliseconds)),
            bits_per_second: None,
            probe_bytes: 0,
            is_cut: false,
        };
        for (near, far) in [("a", "b"), ("b", "a")] {
            nodes.update("c", asking, |node| node.links = vec![link(near, 2), link(far, 30)]);
            assert_eq!(names(&directory.locate("c", &[one])), [near, far]);
        }
        nodes.detach("b", gone, "it is gone");
        assert_eq!(names(&directory.locate("c", &[one])), ["a"]);
        assert!(directory.locate("c", &[hash("unknown")]).is_empty());
    }

    #[test]
    fn of_many_nodes_a_few_are_named_and_not_the_same_to_all() {
        let nodes = Arc::new(NodeTable::new(1));
        let directory = ContentDirectory::new(Arc::clone(&nodes), Arc::new(OneWeight));
        let blocks: Vec<ContentHash> = (0..10).map(|number| hash(&number.to_string())).collect();
        for number in 0..200 {
            attach(&nodes, &format!("n{number}"), &blocks);
        }
        let found = directory.locate("n0", &blocks);
        assert_eq!(found.len(), HOLDERS_OF_EACH);
        assert_eq!(found[0].has.len(), 10);
        assert_ne!(names(&found), names(&directory.locate("n1", &blocks)));
        for (number, block) in blocks.iter().enumerate() {
            for copy in 0..5 {
                attach(&nodes, &format!("only{number}-{copy}"), &[hash("other"), *block]);
            }
        }
        assert!(directory.locate("n0", &blocks).len() <= MOST_HOLDERS);
    }
}

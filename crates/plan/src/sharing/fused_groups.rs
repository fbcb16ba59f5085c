//! The grouping without a search: neighbours that no task tells apart are one unit.

use std::collections::HashMap;

use super::paths::{PathGroups, SharingPath};

/// Neighbours that no task tells apart, fused: shared ones, and with `own` those of a single task
/// too.
pub(super) fn fused_groups(paths: &[SharingPath], own: bool) -> Vec<PathGroups> {
    let mut users: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut pairs: HashMap<(usize, usize), usize> = HashMap::new();
    for (number, path) in paths.iter().enumerate() {
        for &(block, _) in path.steps.iter().filter(|(_, own)| !own) {
            users.entry(block).or_default().push(number);
        }
        for pair in path.steps.windows(2) {
            if let [(first, false), (second, false)] = *pair {
                *pairs.entry((first, second)).or_default() += 1;
            }
        }
    }
    // A shared block that one task alone uses is as good as its own.
    let is_alone = |path: &SharingPath, block: usize| {
        path.count == 1.0 && users.get(&block).is_some_and(|users| users.len() == 1)
    };
    let joins = |path: &SharingPath, at: usize| match (path.steps[at], path.steps[at + 1]) {
        ((first, false), (second, false)) => {
            let count = |block: usize| users.get(&block).map(Vec::len);
            let together = pairs.get(&(first, second)).copied();
            together == count(first) && together == count(second)
        }
        ((_, true), (_, true)) => own,
        ((block, false), _) | (_, (block, false)) => own && is_alone(path, block),
    };
    paths
        .iter()
        .map(|path| {
            let mut groups: PathGroups = Vec::new();
            for at in 0..path.steps.len() {
                match groups.last_mut() {
                    Some(group) if joins(path, at - 1) => group.end = at + 1,
                    _ => groups.push(at..at + 1),
                }
            }
            groups
        })
        .collect()
}

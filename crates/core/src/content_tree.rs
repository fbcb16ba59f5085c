//! Content in ranges, each of which can be checked as soon as it is there.
//!
//! BLAKE3 is a tree over chunks, and a content's hash is its root. A level of that tree is enough
//! to check parts: whoever has it from anybody at all merges it to the root, which is the name of
//! the content, and then knows of each range alone whether it is the right one.

use std::ops::Range;

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::{ContentHash, Error, Result};

/// Bytes of a range, but for the last one of some content: a power of two.
pub const RANGE_BYTES: u64 = 1 << 20;
const HASH_BYTES: usize = 32;

/// How long some content is, and a hash for each of its ranges.
///
/// One that merges to a content's hash can't have wrong bytes taken for right. That it has as many
/// ranges as the content is known when its last range has been found to fit: until then, whoever
/// made it up could have right bytes taken for wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentTree {
    total: u64,
    hashes: Vec<[u8; HASH_BYTES]>,
}

impl ContentTree {
    /// The tree of `content`.
    pub fn of_content(content: &[u8]) -> Self {
        let total = content.len() as u64;
        if total <= RANGE_BYTES {
            return Self::of_one_range(ContentHash::of_content(content), total);
        }
        let ranges = content.chunks(RANGE_BYTES as usize).enumerate();
        let hash = |(index, bytes): (usize, &[u8])| {
            Hasher::new()
                .set_input_offset(index as u64 * RANGE_BYTES)
                .update(bytes)
                .finalize_non_root()
        };
        Self { total, hashes: ranges.map(hash).collect() }
    }

    /// The tree of content that is no longer than a range: its hash is that of its one range.
    pub fn of_one_range(hash: ContentHash, total: u64) -> Self {
        Self { total: total.min(RANGE_BYTES), hashes: vec![*hash.as_bytes()] }
    }

    /// The tree that somebody says content of this hash has; an error where it is none.
    pub fn from_parts(hash: ContentHash, total: u64, ranges: &[u8]) -> Result<Self> {
        let wrong = |why: String| {
            Error::corrupt(format!("the ranges of content {}: {why}", hash.short_hex()))
        };
        let (hashes, rest) = ranges.as_chunks::<HASH_BYTES>();
        let count = total.div_ceil(RANGE_BYTES).max(1);
        if hashes.len() as u64 != count || !rest.is_empty() {
            let found = ranges.len();
            return Err(wrong(format!("{found} bytes, expected {count} hashes of {HASH_BYTES}")));
        }
        let tree = Self { total, hashes: hashes.to_vec() };
        if tree.content_hash() != hash {
            return Err(wrong("they are those of other content".to_owned()));
        }
        Ok(tree)
    }

    /// The hashes of all ranges, one after the other, as they are sent.
    pub fn range_hashes(&self) -> Vec<u8> {
        self.hashes.concat()
    }

    /// The hash of the content.
    pub fn content_hash(&self) -> ContentHash {
        let root = match &self.hashes[..] {
            [] => *blake3::hash(&[]).as_bytes(),
            [only] => *only,
            several => {
                let (left, right) = several.split_at(left_count(several.len()));
                *merge_subtrees_root(&merge(left), &merge(right), Mode::Hash).as_bytes()
            }
        };
        ContentHash::from_bytes(root)
    }

    /// The length of the content.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many ranges there are, at least one.
    pub fn range_count(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// Where a range is.
    pub fn range(&self, index: u64) -> Range<u64> {
        let start = index.saturating_mul(RANGE_BYTES).min(self.total);
        start..start.saturating_add(RANGE_BYTES).min(self.total)
    }

    /// Checks the bytes of a range as they come; where there is no such range, none are right.
    pub fn begin_range(&self, index: u64) -> RangeCheck {
        let Range { start, end } = self.range(index);
        let expected = usize::try_from(index).ok().and_then(|index| self.hashes.get(index));
        let is_whole = self.hashes.len() == 1;
        let mut hasher = Hasher::new();
        if expected.is_some() && !is_whole {
            hasher.set_input_offset(start);
        }
        RangeCheck { hasher, expected: expected.copied(), missing: end - start, is_whole }
    }

    /// Whether these are the bytes of a range.
    pub fn fits_range(&self, index: u64, bytes: &[u8]) -> bool {
        let mut check = self.begin_range(index);
        check.missing() == bytes.len() as u64 && {
            check.update(bytes);
            check.is_right()
        }
    }
}

/// A range that is being read.
pub struct RangeCheck {
    hasher: Hasher,
    expected: Option<[u8; HASH_BYTES]>,
    missing: u64,
    /// Whether there is no other range.
    is_whole: bool,
}

impl RangeCheck {
    /// Bytes that are to come.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Takes what comes next; what is past the range's end is left out. Returns how much it took.
    pub fn update(&mut self, bytes: &[u8]) -> usize {
        let taken = usize::try_from(self.missing).map_or(bytes.len(), |most| bytes.len().min(most));
        self.hasher.update(&bytes[..taken]);
        self.missing -= taken as u64;
        taken
    }

    /// Whether all of it came, and is right.
    pub fn is_right(&self) -> bool {
        if self.missing > 0 {
            return false;
        }
        let found = if self.is_whole {
            *self.hasher.finalize().as_bytes()
        } else if self.hasher.count() == 0 {
            return false;
        } else {
            self.hasher.finalize_non_root()
        };
        self.expected == Some(found)
    }
}

/// How many of several ranges are below the left side of the tree.
fn left_count(ranges: usize) -> usize {
    ranges.next_power_of_two() / 2
}

/// The node above these ranges, of which there is at least one.
fn merge(hashes: &[[u8; HASH_BYTES]]) -> [u8; HASH_BYTES] {
    match hashes {
        [] => [0; HASH_BYTES],
        [only] => *only,
        several => {
            let (left, right) = several.split_at(left_count(several.len()));
            merge_subtrees_non_root(&merge(left), &merge(right), Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content(length: u64, seed: u8) -> Vec<u8> {
        (0..length).map(|place| (place.wrapping_mul(31) >> 3) as u8 ^ seed).collect()
    }

    fn parts_of(tree: &ContentTree) -> (ContentHash, u64, Vec<u8>) {
        (tree.content_hash(), tree.total(), tree.range_hashes())
    }

    /// Lengths around those where something changes.
    fn lengths() -> impl Strategy<Value = u64> {
        (0..6 * RANGE_BYTES, 0..4u8).prop_map(|(any, kind)| match kind {
            0 => any % 3000,
            1 => (any / RANGE_BYTES) * RANGE_BYTES,
            2 => (any / RANGE_BYTES) * RANGE_BYTES + any % 3,
            _ => any,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn content_of_any_length_has_the_hash_that_its_ranges_merge_to(
            length in lengths(), seed: u8,
        ) {
            let bytes = content(length, seed);
            let tree = ContentTree::of_content(&bytes);
            prop_assert_eq!(tree.content_hash(), ContentHash::of_content(&bytes));
            let (hash, total, hashes) = parts_of(&tree);
            prop_assert_eq!(&ContentTree::from_parts(hash, total, &hashes).unwrap(), &tree);
            for index in 0..tree.range_count() {
                let range = tree.range(index);
                let part = &bytes[range.start as usize..range.end as usize];
                prop_assert!(tree.fits_range(index, part));
                // However it is cut into pieces.
                let mut check = tree.begin_range(index);
                part.chunks(77_777).for_each(|piece| assert!(check.update(piece) > 0));
                prop_assert!(check.is_right());
            }
        }

        #[test]
        fn any_bit_that_is_flipped_in_a_range_is_noticed(
            length in lengths(), place: u64, bit in 0..8u32,
        ) {
            let mut bytes = content(length.max(1), 7);
            let tree = ContentTree::of_content(&bytes);
            let place = place % tree.total();
            bytes[place as usize] ^= 1 << bit;
            let range = tree.range(place / RANGE_BYTES);
            let part = &bytes[range.start as usize..range.end as usize];
            prop_assert!(!tree.fits_range(place / RANGE_BYTES, part));
            prop_assert!(!tree.fits_range(place / RANGE_BYTES, &part[1..]));
        }

        #[test]
        fn any_bit_that_is_flipped_in_a_tree_is_noticed(
            length in lengths(), place: usize, bit in 0..8u32,
        ) {
            let (hash, total, mut hashes) = parts_of(&ContentTree::of_content(&content(length, 1)));
            let place = place % hashes.len();
            hashes[place] ^= 1 << bit;
            prop_assert!(ContentTree::from_parts(hash, total, &hashes).is_err());
        }
    }

    #[test]
    fn a_tree_that_is_cut_or_of_something_else_is_refused() {
        let tree = ContentTree::of_content(&content(3 * RANGE_BYTES, 0));
        let (hash, total, hashes) = parts_of(&tree);
        assert!(ContentTree::from_parts(hash, total, &hashes[1..]).is_err());
        assert!(ContentTree::from_parts(hash, total, &hashes[32..]).is_err());
        assert!(ContentTree::from_parts(hash, total + 1, &hashes).is_err());
        assert!(ContentTree::from_parts(hash, u64::MAX, &hashes).is_err());
        let other = ContentHash::of_content(b"other");
        let error = ContentTree::from_parts(other, total, &hashes).unwrap_err().to_string();
        assert!(error.contains("those of other content"), "{error}");
    }

    #[test]
    fn a_tree_with_too_few_ranges_merges_but_its_last_range_fits_nothing() {
        let bytes = content(4 * RANGE_BYTES, 3);
        let (hash, _, hashes) = parts_of(&ContentTree::of_content(&bytes));
        let (left, right) = hashes.split_at(64);
        let pair = |pair: &[u8]| merge(pair.as_chunks::<HASH_BYTES>().0).to_vec();
        let shorter = [left.to_vec(), pair(right)].concat();
        let tree = ContentTree::from_parts(hash, 3 * RANGE_BYTES, &shorter).unwrap();
        let part =
            |index: usize| &bytes[index * RANGE_BYTES as usize..(index + 1) * RANGE_BYTES as usize];
        assert!(tree.fits_range(0, part(0)) && tree.fits_range(1, part(1)));
        assert!(!tree.fits_range(2, part(2)));
    }

    #[test]
    fn a_range_takes_no_more_than_is_missing() {
        let tree = ContentTree::of_content(b"tessera");
        let mut check = tree.begin_range(0);
        assert_eq!(check.update(b"tess"), 4);
        assert!(!check.is_right());
        assert_eq!(check.update(b"era and more"), 3);
        assert!(check.is_right());
        assert!(!tree.fits_range(1, b""), "there is no such range");
        let uneven = ContentTree::of_content(&content(RANGE_BYTES + 5, 0));
        assert!(!uneven.fits_range(2, b""), "nor here");
        assert!(ContentTree::of_content(b"").fits_range(0, b""));
    }
}

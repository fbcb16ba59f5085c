//! Content fetched from sources that are slow, cut off, wrong or hostile: what is right comes, and
//! what is wrong costs a range.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::HashMap;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use tessera_core::{ContentHash, ContentTree, Error, RANGE_BYTES, Result};
use tessera_repository::{
    ContentFetcher, ContentKind, ContentName, ContentPieces, ContentSource, OpenedContent,
    Repository, SourceSpeed,
};

/// What is wrong with a source.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// It has nothing.
    Lacks,
    /// A byte is another.
    Flipped(u64),
    /// The connection ends after so many bytes.
    CutAfter(u64),
    /// It says that there are fewer ranges, with hashes that merge.
    ShortTree,
    /// It has the content, and can't say what it is checked with.
    NoTree,
    /// It takes so long for each piece.
    Slow(Duration),
}

struct FakeSource {
    name: String,
    fault: Fault,
    content: HashMap<ContentName, Vec<u8>>,
    expected: Option<SourceSpeed>,
    sent: Arc<AtomicU64>,
    opened: AtomicU64,
}

struct FakePieces {
    bytes: Bytes,
    fault: Fault,
    sent: Arc<AtomicU64>,
    so_far: u64,
}

impl ContentPieces for FakePieces {
    fn next_piece(&mut self) -> Result<Option<Bytes>> {
        match self.fault {
            Fault::Slow(time) => std::thread::sleep(time),
            Fault::CutAfter(bytes) if self.so_far >= bytes => {
                return Err(Error::lost("the connection was cut"));
            }
            _ => {}
        }
        let piece = self.bytes.split_to(self.bytes.len().min(100_000));
        self.so_far += piece.len() as u64;
        self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Ok((!piece.is_empty()).then_some(piece))
    }
}

impl FakeSource {
    fn new(name: &str, fault: Fault, content: &[Vec<u8>]) -> Arc<Self> {
        let named = content.iter().map(|bytes| (weight(bytes), bytes.clone()));
        let mut content: HashMap<_, _> = named.collect();
        if let Fault::Flipped(place) = fault {
            for bytes in content.values_mut().filter(|bytes| !bytes.is_empty()) {
                let place = place as usize % bytes.len();
                bytes[place] ^= 1;
            }
        }
        let (sent, opened) = (Arc::default(), AtomicU64::new(0));
        let name = name.to_owned();
        Arc::new(Self { name, fault, content, expected: None, sent, opened })
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn find(&self, name: ContentName) -> Result<&Vec<u8>> {
        let found = self.content.get(&name).filter(|_| self.fault != Fault::Lacks);
        found.ok_or_else(|| Error::not_found(format!("{name}: it is not here")))
    }
}

impl ContentSource for FakeSource {
    fn source_name(&self) -> &str {
        &self.name
    }

    fn is_shared(&self) -> bool {
        self.name == "shared"
    }

    fn expected_speed(&self) -> Option<SourceSpeed> {
        self.expected
    }

    fn read_tree(&self, name: ContentName) -> Result<ContentTree> {
        let tree = ContentTree::of_content(self.find(name)?);
        match self.fault {
            Fault::NoTree => Err(Error::lost("no tree")),
            Fault::ShortTree => Ok(shortened(name.hash, &tree)),
            // It does not look, and says what it should be.
            _ => ContentTree::from_parts(name.hash, tree.total(), &tree.range_hashes()),
        }
    }

    fn open_content(&self, name: ContentName, offset: u64) -> Result<OpenedContent> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let bytes = Bytes::from(self.find(name)?.clone());
        let total = bytes.len() as u64;
        let bytes = bytes.slice((offset.min(total) as usize)..);
        let (fault, sent) = (self.fault, Arc::clone(&self.sent));
        let pieces = Box::new(FakePieces { bytes, fault, sent, so_far: 0 });
        let total = match fault {
            Fault::ShortTree if total > 3 * RANGE_BYTES => 3 * RANGE_BYTES,
            _ => total,
        };
        Ok(OpenedContent { total, pieces })
    }
}

/// A tree of 3 ranges that merges to the hash of 4.
fn shortened(hash: ContentHash, tree: &ContentTree) -> ContentTree {
    if tree.range_count() != 4 {
        return tree.clone();
    }
    let hashes = tree.range_hashes();
    let mut pair = [[0; 32]; 2];
    pair[0].copy_from_slice(&hashes[64..96]);
    pair[1].copy_from_slice(&hashes[96..]);
    let above =
        blake3::hazmat::merge_subtrees_non_root(&pair[0], &pair[1], blake3::hazmat::Mode::Hash);
    let hashes = [&hashes[..64], &above].concat();
    ContentTree::from_parts(hash, 3 * RANGE_BYTES, &hashes).unwrap()
}

fn weight(bytes: &[u8]) -> ContentName {
    ContentName { kind: ContentKind::Weight, hash: ContentHash::of_content(bytes) }
}

fn content(length: u64, seed: u64) -> Vec<u8> {
    (0..length).map(|place| (place.wrapping_mul(37 + seed) >> 4) as u8).collect()
}

fn repository() -> (tempfile::TempDir, Repository) {
    let folder = tempfile::tempdir().unwrap();
    let repository = Repository::open_or_create(&folder.path().join("repo")).unwrap();
    (folder, repository)
}

fn fetch(
    fetcher: &ContentFetcher,
    repository: &Repository,
    name: ContentName,
    sources: &[Arc<FakeSource>],
) -> Result<()> {
    let list = |_| sources.iter().map(|source| Arc::clone(source) as Arc<_>).collect();
    fetcher.fetch(repository, name, &list)
}

fn assert_has(repository: &Repository, bytes: &[u8]) {
    let read = repository.read_content_range(weight(bytes), 0, bytes.len() + 1).unwrap();
    assert!(read.bytes == bytes, "{} instead of {} bytes", read.bytes.len(), bytes.len());
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Lacks),
        any::<u64>().prop_map(Fault::Flipped),
        (0..5 * RANGE_BYTES).prop_map(Fault::CutAfter),
        Just(Fault::ShortTree),
        Just(Fault::NoTree),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn whoever_is_wrong_costs_two_ranges_at_most_where_one_source_is_right(
        length in prop_oneof![0..3000u64, Just(4 * RANGE_BYTES), 0..5 * RANGE_BYTES],
        wrong in proptest::collection::vec(faults(), 0..4),
        place in 0..4usize,
        there in 0..5 * RANGE_BYTES,
        damage: Option<u64>,
    ) {
        let (_folder, repository) = repository();
        let bytes = content(length, 1);
        let name = weight(&bytes);
        // Somebody began before, and what is there may be damaged.
        let there = there.min(length) as usize;
        let mut begun = bytes[..there].to_vec();
        if let (Some(place), true) = (damage, there > 0) {
            begun[place as usize % there] ^= 4;
        }
        let path = repository.root().join("tmp").join(format!("import-weight-{}", name.hash));
        std::fs::write(path, &begun).unwrap();
        let content = [bytes.clone()];
        let mut sources: Vec<Arc<FakeSource>> = wrong
            .iter()
            .enumerate()
            .map(|(number, fault)| FakeSource::new(&format!("wrong {number}"), *fault, &content))
            .collect();
        let right = FakeSource::new("right", Fault::None, &content);
        sources.insert(place.min(sources.len()), Arc::clone(&right));
        let fetcher = ContentFetcher::default();
        fetch(&fetcher, &repository, name, &sources).unwrap();
        assert_has(&repository, &bytes);
        let sent: u64 = sources.iter().map(|source| source.sent()).sum();
        let intact = if damage.is_some() { 0 } else { there as u64 / RANGE_BYTES * RANGE_BYTES };
        let extra = 2 * RANGE_BYTES * (wrong.len() as u64 + 1);
        prop_assert!(sent <= length - intact + extra, "{sent} of {length}, {intact} there");
    }
}

#[test]
fn a_flipped_bit_costs_one_range_and_the_rest_comes_from_the_next() {
    let (_folder, repository) = repository();
    let bytes = content(4 * RANGE_BYTES, 2);
    let damaged = Fault::Flipped(5 * RANGE_BYTES / 2);
    let near = SourceSpeed { round_trip: Duration::ZERO, bytes_per_second: Some(1e9) };
    let mut peer = FakeSource::new("peer", damaged, from_ref(&bytes));
    Arc::get_mut(&mut peer).unwrap().expected = Some(near);
    let shared = FakeSource::new("shared", Fault::None, from_ref(&bytes));
    let fetcher = ContentFetcher::default();
    let both = [Arc::clone(&peer), Arc::clone(&shared)];
    fetch(&fetcher, &repository, weight(&bytes), &both).unwrap();
    assert_has(&repository, &bytes);
    // Two good ranges and the wrong one from the peer, and the last, which proves the tree, twice.
    assert!(peer.sent() >= 3 * RANGE_BYTES && peer.sent() < 3 * RANGE_BYTES + 100_000);
    assert!(shared.sent() <= 3 * RANGE_BYTES, "{}", shared.sent());
    // It is not asked for that again while somebody else has it, and then it is.
    let path = repository.root().join("weights");
    std::fs::remove_dir_all(&path).unwrap();
    let before = peer.opened.load(Ordering::Relaxed);
    fetch(&fetcher, &repository, weight(&bytes), &both).unwrap();
    assert_eq!(peer.opened.load(Ordering::Relaxed), before);
    std::fs::remove_dir_all(&path).unwrap();
    let error = fetch(&fetcher, &repository, weight(&bytes), &[peer]).unwrap_err().to_string();
    assert!(error.contains("peer: ") && error.contains("of other content"), "{error}");
    let mended = FakeSource::new("peer", Fault::None, from_ref(&bytes));
    fetch(&fetcher, &repository, weight(&bytes), &[mended]).unwrap();
    assert_has(&repository, &bytes);
}

#[test]
fn a_fetch_that_was_cut_goes_on_with_at_most_one_range_again() {
    let (_folder, repository) = repository();
    let bytes = content(5 * RANGE_BYTES, 3);
    let cut = FakeSource::new("cut", Fault::CutAfter(7 * RANGE_BYTES / 2), from_ref(&bytes));
    let fetcher = ContentFetcher::default();
    let error = fetch(&fetcher, &repository, weight(&bytes), &[Arc::clone(&cut)]).unwrap_err();
    assert!(error.to_string().contains("the connection was cut"), "{error}");
    let next = FakeSource::new("next", Fault::None, from_ref(&bytes));
    // Another process goes on.
    fetch(&ContentFetcher::default(), &repository, weight(&bytes), &[Arc::clone(&next)]).unwrap();
    assert_has(&repository, &bytes);
    assert!(cut.sent() + next.sent() <= bytes.len() as u64 + RANGE_BYTES);
}

#[test]
fn what_many_want_at_once_comes_once() {
    let (_folder, repository) = repository();
    let all: Vec<Vec<u8>> = (0..9).map(|seed| content(300_000 + seed, seed)).collect();
    let slow = Fault::Slow(Duration::from_millis(2));
    let source = FakeSource::new("a", slow, &all);
    let fetcher = ContentFetcher::default();
    let names: Vec<ContentName> = all.iter().map(|bytes| weight(bytes)).collect();
    let list = |_: ContentName| vec![Arc::clone(&source) as Arc<dyn ContentSource>];
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let note = |_: ContentName| {
                    seen.fetch_add(1, Ordering::Relaxed);
                };
                fetcher.fetch_all(&repository, &names, &list, &note).unwrap();
            });
        }
    });
    all.iter().for_each(|bytes| assert_has(&repository, bytes));
    assert_eq!(source.sent(), all.iter().map(|bytes| bytes.len() as u64).sum::<u64>());
    assert_eq!(seen.load(Ordering::Relaxed), 5 * 9);
}

#[test]
fn a_source_that_is_far_slower_than_another_is_left_for_that_one() {
    let (_folder, repository) = repository();
    let bytes = content(8 * RANGE_BYTES, 4);
    let slow = Fault::Slow(Duration::from_millis(100));
    let promising = SourceSpeed { round_trip: Duration::ZERO, bytes_per_second: Some(1e10) };
    let mut slow = FakeSource::new("slow", slow, from_ref(&bytes));
    Arc::get_mut(&mut slow).unwrap().expected = Some(promising);
    let quick = FakeSource::new("shared", Fault::None, from_ref(&bytes));
    let start = Instant::now();
    let both = [Arc::clone(&slow), Arc::clone(&quick)];
    fetch(&ContentFetcher::default(), &repository, weight(&bytes), &both).unwrap();
    assert_has(&repository, &bytes);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    assert!(slow.sent() >= 500_000 && quick.sent() > 5 * RANGE_BYTES);
    assert!(slow.sent() + quick.sent() <= bytes.len() as u64 + RANGE_BYTES);
}

#[test]
fn what_nobody_has_is_an_error_that_names_everybody() {
    let (_folder, repository) = repository();
    let bytes = content(10, 5);
    let fetcher = ContentFetcher::default();
    let error = fetch(&fetcher, &repository, weight(&bytes), &[]).unwrap_err();
    assert!(error.to_string().contains("nobody is there to fetch it from"), "{error}");
    let lacks = |name: &str| FakeSource::new(name, Fault::Lacks, &[]);
    let both = [lacks("one"), lacks("two")];
    let error = fetch(&fetcher, &repository, weight(&bytes), &both).unwrap_err().to_string();
    assert!(error.contains("one: ") && error.contains("two: "), "{error}");
    fetcher.cancel();
    let right = FakeSource::new("right", Fault::None, from_ref(&bytes));
    let error = fetch(&fetcher, &repository, weight(&bytes), &[right]).unwrap_err();
    assert!(error.to_string().contains("interrupted"), "{error}");
}

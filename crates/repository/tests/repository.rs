//! A repository keeps what is put into it, once, and never hands out what was damaged.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use tempfile::{TempDir, tempdir};
use tessera_core::{ContentHash, DType, Error, ErrorKind};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::{NoExternalData, Partition, Split, infer, onnx, split_into_chain};
use tessera_repository::{ContentUse, Repository};

/// A chain of layers, a block each; layers of the same number are the same.
fn model(layers: &[u32]) -> Partition {
    let mut builder = GraphBuilder::new("chain");
    let mut value = builder.add_input("x", DType::F32, [1, 64]);
    for layer in layers {
        let element = |index: u32| ((index * 31 + layer * 7919) % 257) as f32 / 2048.0;
        let weights: Vec<f32> = (0..64 * 64).map(element).collect();
        let w = builder.add_weight("w", &[64, 64], weights);
        value = builder.add_node("MatMul", &[&value, &w], []);
    }
    builder.add_output(&value);
    let graph = onnx::read::from_proto(builder.build_model(), &mut NoExternalData).unwrap();
    let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
    split_into_chain(&graph, &types, &Split::Every, &[]).unwrap()
}

fn fresh() -> (TempDir, Repository) {
    let folder = tempdir().unwrap();
    let repository = Repository::open_or_create(&folder.path().join("repository")).unwrap();
    (folder, repository)
}

/// Where content lies.
fn path_of(repository: &Repository, kind: &str, hash: ContentHash) -> PathBuf {
    let name = hash.to_string();
    repository.root().join(kind).join(&name[..2]).join(&name)
}

/// All files of a repository but its lock, with their content.
fn content(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else if path != root.join("lock") {
                found.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// What is wrong with a repository.
fn problems(repository: &Repository) -> Vec<String> {
    let found = repository.verify_integrity(&mut |_| {}).unwrap();
    found.into_iter().map(|problem| problem.message).collect()
}

fn kind_of<T>(result: Result<T, Error>) -> ErrorKind {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.kind(),
    }
}

/// Ways in which a file gets damaged.
type Damage = (&'static str, fn(&mut Vec<u8>));
const DAMAGES: [Damage; 5] = [
    ("cut short by one byte", |bytes| bytes.truncate(bytes.len() - 1)),
    ("cut in half", |bytes| bytes.truncate(bytes.len() / 2)),
    ("emptied", Vec::clear),
    ("one bit flipped", |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
    }),
    ("one byte longer", |bytes| bytes.push(0)),
];

/// Replaces a file by a damaged one, as a broken disk or a careless person would.
fn damage(path: &Path, how: fn(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    how(&mut bytes);
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_model_reads_back_as_it_was_put() {
    let (_folder, repository) = fresh();
    let partition = model(&[1, 2, 3]);
    let hash = repository.put_model("chain", &partition).unwrap();
    let again = Repository::open(repository.root()).unwrap();
    assert_eq!(again.read_model("chain").unwrap(), partition.graph);
    let entries = again.list_models().unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].name.as_str(), entries[0].hash), ("chain", hash));
    assert_eq!(partition.graph.blocks.len(), 3);
    for (hash, block) in &partition.blocks {
        let program = again.load_program(*hash).unwrap();
        assert_eq!(program.block().program(), block.program());
        assert_eq!(program.weights().len(), 1);
        for (reference, weight) in block.weights().iter().zip(program.weights()) {
            let expected = &partition.weights[&reference.hash];
            assert_eq!(weight.tensor.bytes().unwrap(), &expected[..]);
            assert!(weight.mapping.is_some(), "weights are mapped");
        }
    }
    assert_eq!(problems(&again), Vec::<String>::new());
}

#[test]
fn a_weight_that_is_in_use_is_mapped_once() {
    let (_folder, repository) = fresh();
    let partition = model(&[1]);
    repository.put_model("chain", &partition).unwrap();
    let block = partition.graph.blocks[0].block;
    let (first, second) =
        (repository.load_program(block).unwrap(), repository.load_program(block).unwrap());
    assert_eq!(first.weights()[0].tensor.address(), second.weights()[0].tensor.address());
}

#[test]
fn the_same_model_again_adds_nothing() {
    let (_folder, repository) = fresh();
    let first = repository.put_model("chain", &model(&[1, 2])).unwrap();
    let before = content(repository.root());
    let second = repository.put_model("chain", &model(&[1, 2])).unwrap();
    assert_eq!(first, second);
    assert!(before == content(repository.root()));
    // Under another name it is the same content, and one name more.
    repository.put_model("other", &model(&[1, 2])).unwrap();
    assert_eq!(content(repository.root()).len(), before.len() + 1);
}

#[test]
fn layers_that_two_models_have_in_common_are_kept_once() {
    let (_folder, repository) = fresh();
    repository.put_model("first", &model(&[1, 2, 3])).unwrap();
    repository.put_model("second", &model(&[1, 2, 4])).unwrap();
    let usage = repository.measure_usage().unwrap();
    assert_eq!((usage.models, usage.blocks, usage.weights), (2, 4, 4));
    assert_eq!(usage.weight_bytes, 4 * 64 * 64 * 4);
}

#[test]
fn a_name_may_pass_to_another_model() {
    let (_folder, repository) = fresh();
    repository.put_model("current", &model(&[1, 2])).unwrap();
    let next = model(&[1, 3]);
    repository.put_model("current", &next).unwrap();
    assert_eq!(repository.read_model("current").unwrap(), next.graph);
    let removed = repository.collect_garbage(false).unwrap();
    assert_eq!((removed.models, removed.blocks, removed.weights), (1, 1, 1));
    assert_eq!(problems(&repository), Vec::<String>::new());
}

#[test]
fn several_writers_at_once_all_succeed() {
    let (_folder, repository) = fresh();
    let root = repository.root();
    let writers = 8;
    let start = Barrier::new(writers);
    std::thread::scope(|scope| {
        for writer in 0..writers as u32 {
            let start = &start;
            scope.spawn(move || {
                let partition = model(&[1, 2, 3, 10 + writer % 4]);
                let repository = Repository::open_or_create(root).unwrap();
                start.wait();
                for round in 0..5 {
                    let name = format!("model-{writer}-{round}");
                    repository.put_model(&name, &partition).unwrap();
                    assert_eq!(repository.read_model(&name).unwrap(), partition.graph);
                }
            });
        }
    });
    assert_eq!(problems(&repository), Vec::<String>::new());
    let usage = repository.measure_usage().unwrap();
    assert_eq!((usage.models, usage.blocks, usage.weights), (8 * 5, 3 + 4, 3 + 4));
    assert_eq!(repository.collect_garbage(true).unwrap().unfinished, 0);
}

#[test]
fn several_may_make_the_same_repository_at_once() {
    let folder = tempdir().unwrap();
    for round in 0..20 {
        let root = folder.path().join(round.to_string());
        let start = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    Repository::open_or_create(&root).unwrap();
                });
            }
        });
        Repository::open(&root).unwrap();
    }
}

#[test]
fn gc_while_others_write_takes_nothing_away_from_them() {
    let (_folder, repository) = fresh();
    let root = repository.root();
    std::thread::scope(|scope| {
        for writer in 0..3u32 {
            scope.spawn(move || {
                let repository = Repository::open(root).unwrap();
                for round in 0..8 {
                    let partition = model(&[1, 100 * writer + round]);
                    repository.put_model(&format!("writer-{writer}"), &partition).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                repository.collect_garbage(false).unwrap();
            }
        });
    });
    assert_eq!(problems(&repository), Vec::<String>::new());
    repository.collect_garbage(false).unwrap();
    let usage = repository.measure_usage().unwrap();
    assert_eq!((usage.models, usage.blocks), (3, 4));
    for entry in repository.list_models().unwrap() {
        for block in repository.read_model(&entry.name).unwrap().distinct_blocks() {
            repository.load_program(block).unwrap();
        }
    }
}

#[test]
fn a_damaged_weight_is_reported_and_not_handed_out() {
    for (what, how) in DAMAGES {
        let (_folder, repository) = fresh();
        let partition = model(&[1, 2]);
        repository.put_model("chain", &partition).unwrap();
        let block = &partition.blocks[&partition.graph.blocks[0].block];
        let weight = block.weights()[0].hash;
        damage(&path_of(&repository, "weights", weight), how);
        let error = repository.load_program(block.hash()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        let text = error.to_string();
        assert!(text.contains(&weight.short_hex()), "{what}: {text}");
        assert!(text.contains(&block.hash().short_hex()), "{what}: {text}");
        let found = problems(&repository);
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        assert!(found[0].contains(&weight.short_hex()), "{what}: {found:?}");
        // The other block is none the worse.
        repository.load_program(partition.graph.blocks[1].block).unwrap();
    }
}

#[test]
fn a_damaged_block_is_reported_and_not_handed_out() {
    for (what, how) in DAMAGES {
        let (_folder, repository) = fresh();
        let partition = model(&[1, 2]);
        repository.put_model("chain", &partition).unwrap();
        let block = partition.graph.blocks[0].block;
        damage(&path_of(&repository, "blocks", block), how);
        for result in
            [repository.load_program(block).map(|_| ()), repository.read_block(block).map(|_| ())]
        {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
            assert!(error.to_string().contains(&block.short_hex()), "{error}");
        }
        let found = problems(&repository);
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        assert!(found[0].contains(&block.short_hex()), "{what}: {found:?}");
    }
}

#[test]
fn a_damaged_model_is_reported_and_not_handed_out() {
    for (what, how) in DAMAGES {
        let (_folder, repository) = fresh();
        let record = repository.put_model("chain", &model(&[1, 2])).unwrap();
        damage(&path_of(&repository, "models", record), how);
        let error = repository.read_model("chain").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(error.to_string().contains("\"chain\""), "{what}: {error}");
        let found = problems(&repository);
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        assert!(found[0].contains(&record.short_hex()), "{what}: {found:?}");
    }
}

#[test]
fn content_that_is_missing_is_reported_with_the_model_that_needs_it() {
    let (_folder, repository) = fresh();
    let partition = model(&[1, 2]);
    repository.put_model("chain", &partition).unwrap();
    let block = &partition.blocks[&partition.graph.blocks[0].block];
    let weight = block.weights()[0].hash;
    fs::remove_file(path_of(&repository, "weights", weight)).unwrap();
    let error = repository.load_program(block.hash()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let found = problems(&repository);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("\"chain\""), "{found:?}");
    assert!(found[0].contains(&weight.short_hex()), "{found:?}");
}

#[test]
fn a_name_that_leads_nowhere_is_reported() {
    let (_folder, repository) = fresh();
    repository.put_model("chain", &model(&[1])).unwrap();
    damage(&repository.root().join("names/chain"), |bytes| {
        *bytes = b"garbage\n".to_vec();
    });
    assert_eq!(kind_of(repository.read_model("chain")), ErrorKind::Corrupt);
    // Whichever way it is told, it is told.
    match repository.verify_integrity(&mut |_| {}) {
        Ok(found) => assert!(!found.is_empty()),
        Err(error) => assert!(error.to_string().contains("chain"), "{error}"),
    }
    // What the model needs can't be told, so nothing may be removed.
    let before = content(repository.root());
    assert!(repository.collect_garbage(false).is_err());
    assert!(before == content(repository.root()));
}

#[test]
fn putting_a_model_again_heals_what_was_damaged() {
    let (_folder, repository) = fresh();
    let partition = model(&[1, 2]);
    let record = repository.put_model("chain", &partition).unwrap();
    let block = &partition.blocks[&partition.graph.blocks[0].block];
    let damaged = [
        path_of(&repository, "weights", block.weights()[0].hash),
        path_of(&repository, "blocks", block.hash()),
        path_of(&repository, "models", record),
    ];
    for (what, how) in DAMAGES {
        for path in &damaged {
            damage(path, how);
        }
        assert_ne!(problems(&repository).len(), 0, "{what}");
        repository.put_model("chain", &partition).unwrap();
        assert_eq!(problems(&repository), Vec::<String>::new(), "{what}");
        repository.load_program(block.hash()).unwrap();
    }
}

#[test]
fn gc_removes_what_no_model_needs_and_nothing_else() {
    let (_folder, repository) = fresh();
    repository.put_model("first", &model(&[1, 2, 3])).unwrap();
    repository.put_model("second", &model(&[1, 2, 4])).unwrap();
    assert_eq!(repository.collect_garbage(false).unwrap().bytes, 0);

    let lone = content(repository.root());
    repository.remove_model("first").unwrap();
    let left = repository.root().join("tmp/tessera-1-unfinished");
    fs::write(&left, "half of it").unwrap();
    let before = content(repository.root());
    let pretended = repository.collect_garbage(true).unwrap();
    assert!(before == content(repository.root()), "pretending changes nothing");

    let removed = repository.collect_garbage(false).unwrap();
    assert_eq!(pretended, removed);
    assert_eq!((removed.models, removed.blocks, removed.weights), (1, 1, 1));
    assert_eq!(removed.unfinished, 1);
    assert!(!left.exists());
    let after = content(repository.root());
    let gone: usize = before
        .iter()
        .filter(|(path, _)| !after.contains_key(*path))
        .map(|(_, bytes)| bytes.len())
        .sum();
    assert_eq!(removed.bytes, gone as u64);
    assert_eq!(problems(&repository), Vec::<String>::new());
    assert_eq!(repository.measure_usage().unwrap().weights, 3);
    for block in repository.read_model("second").unwrap().distinct_blocks() {
        repository.load_program(block).unwrap();
    }

    // The model that was removed can come back.
    repository.put_model("first", &model(&[1, 2, 3])).unwrap();
    assert!(lone == content(repository.root()));
}

#[test]
fn what_a_server_uses_stays_until_it_does_not_or_is_gone() {
    let (_folder, repository) = fresh();
    let partition = model(&[1, 2, 3]);
    repository.put_model("served", &partition).unwrap();
    repository.put_model("other", &model(&[1, 5])).unwrap();
    let holder = repository.begin_holding().unwrap();
    let used = ContentUse {
        task: "ants".to_owned(),
        models: vec!["served".to_owned()],
        blocks: partition.graph.distinct_blocks(),
    };
    let held = holder.hold_content(&used).unwrap();
    let refused = repository.remove_model("served").unwrap_err();
    let process = std::process::id().to_string();
    assert!(refused.to_string().contains("\"ants\"") && refused.to_string().contains(&process));
    repository.remove_model("other").unwrap();

    // Another model under its name, as a new version: what runs is the old one.
    repository.put_model("served", &model(&[7, 8])).unwrap();
    let removed = repository.collect_garbage(false).unwrap();
    assert_eq!((removed.models, removed.blocks), (2, 1), "the block of the other model");
    for block in &used.blocks {
        repository.load_program(*block).unwrap();
    }

    drop(held);
    repository.collect_garbage(false).unwrap();
    assert!(repository.load_program(used.blocks[0]).is_err());
    repository.remove_model("served").unwrap();

    // A folder that nobody has locked is of a process that was killed.
    let left = repository.root().join("holds/1-left");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("lock"), "").unwrap();
    fs::write(left.join("0.json"), serde_json::to_vec(&used).unwrap()).unwrap();
    repository.collect_garbage(true).unwrap();
    assert!(left.exists(), "pretending changes nothing");
    repository.collect_garbage(false).unwrap();
    assert!(!left.exists());
    drop(holder);
    assert_eq!(fs::read_dir(repository.root().join("holds")).unwrap().count(), 0);
}

#[test]
fn gc_removes_nothing_where_it_cannot_tell_what_is_needed() {
    let (_folder, repository) = fresh();
    let record = repository.put_model("chain", &model(&[1, 2])).unwrap();
    damage(&path_of(&repository, "models", record), |bytes| {
        bytes.truncate(10);
    });
    let before = content(repository.root());
    assert_eq!(kind_of(repository.collect_garbage(false)), ErrorKind::Corrupt);
    assert!(before == content(repository.root()));
}

#[test]
fn a_model_that_is_not_there_is_answered_with_those_that_are() {
    let (_folder, repository) = fresh();
    repository.put_model("ants", &model(&[1])).unwrap();
    repository.put_model("bees", &model(&[2])).unwrap();
    for error in
        [repository.remove_model("wasps").unwrap_err(), repository.read_model("wasps").unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let text = error.to_string();
        for word in ["\"wasps\"", "ants", "bees"] {
            assert!(text.contains(word), "{text}");
        }
    }
    assert_eq!(repository.list_models().unwrap().len(), 2);
}

#[test]
fn names_that_would_lead_out_of_the_folder_are_refused() {
    let (folder, repository) = fresh();
    let partition = model(&[1]);
    let before = content(folder.path());
    let (long, wide) = ("x".repeat(129), "模".repeat(100));
    let hidden = ["a\0b", "a\nb", "\u{202e}", &long, &wide];
    for name in ["../x", "", ".hidden", "a/b", "/etc/x", ".."].into_iter().chain(hidden) {
        assert_eq!(kind_of(repository.put_model(name, &partition)), ErrorKind::Usage);
        assert_eq!(kind_of(repository.read_model(name)), ErrorKind::Usage);
        assert_eq!(kind_of(repository.remove_model(name)), ErrorKind::Usage);
    }
    let after = content(folder.path());
    assert!(before.keys().eq(after.keys()), "nothing was written");
    for name in ["a", "resnet50-v1.5", "user@model+2", "A_b", "模型", "50% (v2)"] {
        repository.put_model(name, &partition).unwrap();
    }
}

#[test]
fn what_is_no_repository_is_not_opened() {
    let folder = tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = Repository::open(&missing).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(!missing.exists());

    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("letter.txt"), "dear").unwrap();
    assert!(Repository::open(&other).is_err());
    assert_eq!(kind_of(Repository::open_or_create(&other)), ErrorKind::Usage);
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);

    fs::write(other.join("format"), "tessera repository 999\n").unwrap();
    let error = Repository::open(&other).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("999"), "{error}");

    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(Repository::open(&file).is_err());
    assert!(Repository::open_or_create(&file).is_err());

    // An empty folder is nobody's.
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    Repository::open_or_create(&empty).unwrap();
    Repository::open(&empty).unwrap();
}

#[test]
fn content_cannot_be_written_by_accident() {
    let (_folder, repository) = fresh();
    repository.put_model("chain", &model(&[1, 2])).unwrap();
    let mut seen = 0;
    for path in content(repository.root()).keys() {
        let relative = path.strip_prefix(repository.root()).unwrap();
        let is_content =
            ["blocks", "weights", "models"].iter().any(|kind| relative.starts_with(kind));
        if is_content {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o222, 0, "{} has mode {mode:o}", path.display());
            seen += 1;
        }
    }
    assert_eq!(seen, 2 + 2 + 1);
}

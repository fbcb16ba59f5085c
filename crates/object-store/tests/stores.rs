//! Every kind of store, held to the same: a folder, and S3 as SeaweedFS speaks it.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;
use tessera_core::{ContentHash, DType, Dim, ErrorKind, RANGE_BYTES};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::{NoExternalData, Split, infer, read_model, split_into_chain};
use tessera_object_store::{ObjectStore, StoreAddress};
use tessera_repository::{
    ClassLabels, ContentFetcher, ContentKind, ContentName, ContentSource, ModelDescription,
    Repository,
};

fn repository(folder: &TempDir, name: &str) -> Repository {
    Repository::open_or_create(&folder.path().join(name)).unwrap()
}

/// Puts a model of two blocks into a repository: a weight of 3.2 MB, and one of a seed's own.
fn put_model(repository: &Repository, name: &str, seed: usize) {
    let mut graph = GraphBuilder::new("layers");
    let rows = |width| [Dim::Symbol("batch".to_owned()), Dim::Fixed(width)];
    let mut value = graph.add_input("x", DType::F32, rows(900));
    for (number, seed) in [1, seed].into_iter().enumerate() {
        let numbers = (0..900 * 900).map(|index| ((index * 31 + seed * 7) % 97) as f32).collect();
        let weight = graph.add_weight("w", &[900, 900], numbers);
        let product = graph.add_node("MatMul", &[&value, &weight], []);
        value = if number == 1 { "y".to_owned() } else { "hidden".to_owned() };
        graph.add_node_into(&format!("tanh{number}"), "Tanh", &[&product], &[&value], []);
    }
    graph.add_typed_output("y", DType::F32, rows(900));
    let model = prost::Message::encode_to_vec(&graph.build_model());
    let graph = read_model(model.into(), &mut NoExternalData).unwrap();
    let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
    let partition = split_into_chain(&graph, &types, &Split::Blocks(2), &[]).unwrap();
    repository.put_model(name, &partition).unwrap();
}

fn open(address: &str, environment: &BTreeMap<String, String>) -> Arc<ObjectStore> {
    let address: StoreAddress = address.parse().unwrap();
    Arc::new(ObjectStore::open_with(&address, environment).unwrap())
}

fn content(seed: usize, length: u64) -> Vec<u8> {
    (0..length as usize).map(|place| ((place * 13 + seed) >> 3) as u8).collect()
}

fn put_weight(repository: &Repository, bytes: &[u8]) -> ContentName {
    let tree = tessera_core::ContentTree::of_content(bytes);
    let name = ContentName { kind: ContentKind::Weight, hash: tree.content_hash() };
    let mut import = repository.begin_import(name).unwrap();
    import.check_with(tree).unwrap();
    import.append(bytes).unwrap();
    import.finish(repository).unwrap();
    name
}

fn read_from(store: &ObjectStore, name: ContentName, offset: u64) -> (u64, Vec<u8>) {
    let mut opened = store.open_content(name, offset).unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = opened.pieces.next_piece().unwrap() {
        bytes.extend_from_slice(&piece);
    }
    (opened.total, bytes)
}

/// What every store does.
fn check_store(store: &Arc<ObjectStore>) {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (repository(&folder, "from"), repository(&folder, "to"));
    for length in [0, 5, RANGE_BYTES, 2 * RANGE_BYTES + 9] {
        let bytes = content(3, length);
        let name = put_weight(&from, &bytes);
        assert!(!store.has_content(name).unwrap());
        assert_eq!(store.put_content(&from, name).unwrap(), length);
        assert!(store.has_content(name).unwrap());
        assert_eq!(store.put_content(&from, name).unwrap(), 0, "never twice");
        for offset in [0, length / 2, length, length + 7] {
            let expected = &bytes[(offset.min(length) as usize)..];
            let (total, read) = read_from(store, name, offset);
            assert!(total == length && read == expected, "{length} from {offset}");
        }
        let tree = store.read_tree(name);
        if length > RANGE_BYTES {
            assert_eq!(tree.unwrap().content_hash(), name.hash);
        } else {
            assert_eq!(tree.unwrap_err().kind(), ErrorKind::NotFound);
        }
    }
    let lacking = ContentName { kind: ContentKind::Weight, hash: ContentHash::of_content(b"?") };
    assert_eq!(store.open_content(lacking, 0).err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(store.open_content(lacking, 9).err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(store.list_models().unwrap(), Vec::<String>::new());
    check_models(store, &from, &to);
}

fn check_models(store: &Arc<ObjectStore>, from: &Repository, to: &Repository) {
    let fetcher = ContentFetcher::default();
    let missing = store.pull_model(to, &fetcher, "first", &|_| ()).unwrap_err();
    assert!(missing.to_string().contains("no model \"first\" in object store"), "{missing}");
    put_model(from, "first", 2);
    put_model(from, "second é %20", 3);
    let labels = ClassLabels { file: "labels.txt".into(), labels: vec!["cat".into()] };
    let described = ModelDescription {
        labels: [("y".to_owned(), labels)].into(),
        ..ModelDescription::default()
    };
    from.put_description("first", &described).unwrap();
    let seen = AtomicU64::new(0);
    let note = |bytes: u64| {
        seen.fetch_add(bytes, Ordering::Relaxed);
    };
    let pushed = store.push_model(from, "first", &note).unwrap();
    // Two weights, two blocks and the record.
    assert_eq!(pushed.files, 5);
    assert_eq!(pushed.bytes, seen.load(Ordering::Relaxed));
    assert!(pushed.bytes > 2 * 900 * 900 * 4);
    assert_eq!(store.push_model(from, "first", &note).unwrap().files, 0);
    // What they share is there already.
    assert_eq!(store.push_model(from, "second é %20", &note).unwrap().files, 3);
    assert_eq!(store.list_models().unwrap(), ["first", "second é %20"]);
    seen.store(0, Ordering::Relaxed);
    let graph = store.pull_graph(to, &fetcher, "first").unwrap();
    assert_eq!(graph.files, 3);
    let block = to.read_model("first").unwrap().distinct_blocks()[0];
    assert_eq!(to.missing_weights(block).unwrap().len(), 1);
    let pulled = store.pull_model(to, &fetcher, "first", &note).unwrap();
    assert_eq!((pulled.files, pulled.bytes), (2, 2 * 900 * 900 * 4));
    assert_eq!(pulled.bytes, seen.load(Ordering::Relaxed));
    assert_eq!(to.read_description("first").unwrap(), described);
    store.pull_model(to, &fetcher, "second é %20", &note).unwrap();
    assert_eq!(to.list_models().unwrap(), from.list_models().unwrap());
    assert!(to.verify_integrity(&mut |_| ()).unwrap().is_empty());
    // A name may come to mean another model.
    put_model(from, "first", 5);
    store.push_model(from, "first", &note).unwrap();
    store.pull_model(to, &fetcher, "first", &note).unwrap();
    assert_eq!(to.model_hash("first").unwrap(), from.model_hash("first").unwrap());
}

#[test]
fn a_folder_is_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    check_store(&open(&format!("file://{}", store.display()), &BTreeMap::new()));
    let left = std::fs::read_dir(store.join("tmp")).unwrap().count();
    assert_eq!(left, 0, "nothing is unfinished");
}

#[test]
fn what_was_altered_in_a_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("store");
    let store = open(&format!("file://{}", at.display()), &BTreeMap::new());
    let (from, to) = (repository(&folder, "from"), repository(&folder, "to"));
    put_model(&from, "m", 2);
    store.push_model(&from, "m", &|_| ()).unwrap();
    let file = largest_file(&at.join("weights"));
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[2_000_000] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let error = store.pull_model(&to, &ContentFetcher::default(), "m", &|_| ()).unwrap_err();
    assert!(error.to_string().contains("from 1048576 on were cut short or altered"), "{error}");
    assert!(to.read_model("m").is_err(), "its name comes last");
    bytes[2_000_000] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    store.pull_model(&to, &ContentFetcher::default(), "m", &|_| ()).unwrap();
    // What is damaged here does not get there.
    let file = largest_file(&to.root().join("weights"));
    let damaged = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, &damaged[1..]).unwrap();
    let other = open(&format!("file://{}/other", folder.path().display()), &BTreeMap::new());
    let error = other.push_model(&to, "m", &|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(other.list_models().unwrap(), Vec::<String>::new());
}

fn largest_file(folder: &Path) -> std::path::PathBuf {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        for file in std::fs::read_dir(entry.unwrap().path()).unwrap() {
            let file = file.unwrap();
            files.push((file.metadata().unwrap().len(), file.path()));
        }
    }
    files.into_iter().max().unwrap().1
}

#[cfg(not(feature = "s3"))]
#[test]
fn a_build_without_s3_says_how_to_get_one() {
    let address: StoreAddress = "s3://models".parse().unwrap();
    let error = ObjectStore::open(&address).err().unwrap().to_string();
    assert!(error.contains("--features s3") && error.contains("file:///FOLDER"), "{error}");
}

/// What was started, or nothing where SeaweedFS is not there, which is said.
#[cfg(feature = "s3")]
fn started(
    server: tessera_core::Result<tessera_lab::SeaweedServer>,
) -> Option<tessera_lab::SeaweedServer> {
    match server {
        Ok(server) => Some(server),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            assert!(std::env::var_os("CI").is_none(), "{error}");
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[cfg(feature = "s3")]
#[test]
fn a_bucket_is_a_store() {
    let Some(server) = started(tessera_lab::SeaweedServer::start()) else { return };
    let environment = server.environment().map(|(name, value)| (name.to_owned(), value));
    let mut environment = BTreeMap::from(environment);
    check_store(&open("s3://models", &environment));
    check_store(&open("s3://models/a/prefix", &environment));
    // Whoever has another key is told so, and soon.
    environment.insert("AWS_SECRET_ACCESS_KEY".to_owned(), "wrong".to_owned());
    let error = open("s3://models", &environment).list_models().unwrap_err();
    assert!(error.to_string().contains("object store s3://models"), "{error}");
    environment.remove("AWS_ACCESS_KEY_ID");
    let address: StoreAddress = "s3://models".parse().unwrap();
    let error = ObjectStore::open_with(&address, &environment).err().unwrap();
    assert!(error.to_string().contains("expected AWS_ACCESS_KEY_ID"), "{error}");
}

#[cfg(feature = "s3")]
#[test]
fn a_bucket_over_https_is_a_store_for_those_who_trust_its_authority() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    let (key, own_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap().pem();
    let own = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let own = own.signed_by(&own_key, &Issuer::new(params, key)).unwrap().pem();
    let server = tessera_lab::SeaweedServer::start_secured(&own, &own_key.serialize_pem());
    let Some(server) = started(server) else { return };
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("authority.pem");
    std::fs::write(&bundle, authority).unwrap();
    let environment = server.environment().map(|(name, value)| (name.to_owned(), value));
    let mut environment = BTreeMap::from(environment);
    // Nobody else's authorities have signed it.
    let error = open("s3://models", &environment).list_models().unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    let bundle = bundle.display().to_string();
    environment.insert("AWS_CA_BUNDLE".to_owned(), bundle.clone());
    check_store(&open("s3://models", &environment));
    // A file without any is a mistake, in place of which no other is believed.
    std::fs::write(&bundle, "nothing of the kind").unwrap();
    let address: StoreAddress = "s3://models".parse().unwrap();
    let error = ObjectStore::open_with(&address, &environment).err().unwrap();
    assert_eq!(
        error.to_string(),
        format!("AWS_CA_BUNDLE={bundle}: expected a PEM file with certificates")
    );
}

#[cfg(feature = "s3")]
#[test]
fn a_bucket_that_is_away_is_an_error_within_seconds() {
    let environment = [
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_ENDPOINT", "http://127.0.0.1:9"),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let store = open("s3://models", &BTreeMap::from(environment));
    let start = std::time::Instant::now();
    let error = store.list_models().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}

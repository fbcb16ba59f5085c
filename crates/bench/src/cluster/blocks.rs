//! Blocks that a node lacks: how much is fetched, and how much again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;
use tessera_command::HttpMethod;
use tessera_core::{Error, Result};
use tessera_lab::{LabHost, LinkShape, LinkTraffic};
use tessera_zoo::{Architecture, Recipe, SharedStages};

use super::lab_cluster::{LabCluster, LabNode, ask_at, wait_until};
use super::{BenchCluster, Experiment};
use crate::finding::Finding;
use crate::stored_model::store_split;
use crate::zoo_file;

pub(super) const BLOCKS: Experiment = Experiment {
    name: "blocks",
    about: "ResNet-152 is fetched, a sibling, and that from a peer; with a kill; with flipped bits",
    make: fetch_blocks,
};

/// Bytes that IP and TCP add to each packet, with timestamps.
const PACKET_HEADER_BYTES: u64 = 52;
/// Bytes of a mebibyte, of which a chunk is a quarter.
const MEBIBYTE: f64 = 1_048_576.0;

fn fetch_blocks(_: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cluster = LabCluster::start()?;
    let mut node = cluster.add_node("node", &["--engine", "rten"])?;
    let first = store_model(&cluster, 0, None)?;
    let shared = SharedStages { seed: 0, stages: 3 };
    let second = store_model(&cluster, 1, Some(shared))?;
    let mut findings = Vec::new();
    let fetched = fetch_task(&cluster, &node, "m0")?;
    let ratio = fetched / first;
    findings.push(
        Finding::at_most("bytes fetched over bytes missing", ratio, 1.01, "×")
            .with_detail(format!("{:.0} MB missing", first / 1e6)),
    );
    let missing = missing_bytes(&cluster, second)?;
    let fetched = fetch_task(&cluster, &node, "m1")?;
    findings.push(
        Finding::at_most("the same for a sibling", fetched / missing, 1.01, "×")
            .with_detail(format!("{:.0} of its {:.0} MB missing", missing / 1e6, second / 1e6)),
    );
    let peer = cluster.add_node("peer", &["--engine", "rten"])?;
    findings.extend(fetch_from_peer(&cluster, &node, &peer, second)?);
    findings.push(fetch_with_kill(&mut cluster, &mut node, ratio)?);
    findings.push(fetch_flipped_bit(&cluster)?);
    findings.push(fetch_from_damaged_peer(&cluster, &peer)?);
    Ok(findings)
}

/// Has the sibling run at another node, too.
fn fetch_from_peer(
    cluster: &LabCluster,
    node: &LabNode,
    peer: &LabNode,
    missing: f64,
) -> Result<[Finding; 2]> {
    let between = || link_bytes(cluster, &node.host, &peer.host);
    let before = (sent_bytes(cluster, peer), between());
    cluster.put_task("m1-too", &json!({ "model": "m1", "node": "peer" }))?;
    let from_controller = sent_bytes(cluster, peer) - before.0;
    let from_peer = between() - before.1;
    let all = (from_controller + from_peer) / missing;
    Ok([
        Finding::at_most("the same for a node that has a peer", all, 1.01, "×")
            .with_detail(format!("{:.0} MB missing", missing / 1e6)),
        Finding::at_most("of that from the controller", from_controller / missing, 0.01, "×")
            .with_detail(format!("{:.1} MB, and the rest from its peer", from_controller / 1e6)),
    ])
}

/// Cuts and stores a model; returns the bytes of its blocks and weights.
fn store_model(cluster: &LabCluster, seed: u64, shared: Option<SharedStages>) -> Result<f64> {
    let path = cluster.path().join(format!("m{seed}.onnx"));
    let recipe =
        Recipe { seed, shared_stages: shared, ..Recipe::new("resnet152".parse::<Architecture>()?) };
    zoo_file::write_recipe(&recipe, &path)?;
    store_split(&path, &format!("m{seed}"), 8, &cluster.repository())?;
    let length =
        std::fs::metadata(&path).map_err(|error| Error::from_io(path.display(), &error))?;
    Ok(length.len() as f64)
}

/// What a sibling has that the repository of the first has not.
fn missing_bytes(cluster: &LabCluster, all: f64) -> Result<f64> {
    let used = folder_bytes(&cluster.repository().join("weights"))? as f64;
    let at_node = folder_bytes(&cluster.path().join("node").join("weights"))? as f64;
    Ok((used - at_node).min(all))
}

fn folder_bytes(folder: &Path) -> Result<u64> {
    let fail = |error: std::io::Error| Error::from_io(folder.display(), &error);
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let metadata = entry.metadata().map_err(fail)?;
        bytes += if metadata.is_dir() { folder_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

/// Has a task run at the node; returns the bytes that were sent to it for that.
fn fetch_task(cluster: &LabCluster, node: &LabNode, task: &str) -> Result<f64> {
    let before = sent_bytes(cluster, node);
    cluster.put_task(task, &json!({ "model": task, "node": "node" }))?;
    Ok(sent_bytes(cluster, node) - before)
}

/// Bytes that the controller has sent to a node.
fn sent_bytes(cluster: &LabCluster, node: &LabNode) -> f64 {
    link_bytes(cluster, &cluster.controller_host, &node.host)
}

fn link_bytes(cluster: &LabCluster, from: &LabHost, to: &LabHost) -> f64 {
    let LinkTraffic { bytes, packets, .. } = cluster.lab.traffic(from, to);
    (bytes - packets * PACKET_HEADER_BYTES) as f64
}

/// Kills the node while it fetches; returns what came again.
fn fetch_with_kill(
    cluster: &mut LabCluster,
    node: &mut LabNode,
    usual_ratio: f64,
) -> Result<Finding> {
    let missing = store_model(cluster, 2, None)?;
    let shape = LinkShape { queue: std::time::Duration::from_millis(20), ..LinkShape::default() };
    cluster.lab.set_link(&cluster.controller_host, &node.host, shape.with_megabits(400));
    let before = sent_bytes(cluster, node);
    let asking = {
        // It answers when the units run, or when the node is away.
        let (url, controller) = (cluster.control_url(), cluster.controller_host.clone());
        std::thread::spawn(move || {
            let body = json!({ "model": "m2", "node": "node" });
            let put = || ask_at(url, HttpMethod::PUT, "/v1/tasks/m2", Some(&body));
            controller.run_inside(put)
        })
    };
    wait_until("half of it is there", || Ok(sent_bytes(cluster, node) - before > missing / 2.0))?;
    node.process.kill();
    cluster.restart_node(node)?;
    cluster.wait_for_state("node", "attached")?;
    // The change failed with its node, and is asked for again.
    drop(asking.join());
    cluster.put_task("m2", &json!({ "model": "m2", "node": "node" }))?;
    let again = (sent_bytes(cluster, node) - before - missing * usual_ratio).max(0.0);
    Ok(Finding::at_most("mebibytes that were sent again after a kill", again / MEBIBYTE, 1.0, "×")
        .with_detail(format!("of {:.0} MB", missing / 1e6)))
}

/// Flips a bit of what the controller has; returns how often that came to a node's notice.
fn fetch_flipped_bit(cluster: &LabCluster) -> Result<Finding> {
    let weights = cluster.repository().join("weights");
    let before = list_files(&weights)?;
    store_model(cluster, 3, None)?;
    let file = largest_of(list_files(&weights)?.difference(&before))?;
    let whole = flip_last_bit(&file)?;
    let task = json!({ "model": "m3", "node": "node" });
    let refused = cluster.put_task("m3", &task);
    let said = refused.err().map_or_else(String::new, |error| error.to_string());
    let is_noticed = said.contains("cut short or altered");
    replace_file(&file, &whole)?;
    cluster.put_task("m3", &task)?;
    let said: String = said.chars().take(80).collect();
    Ok(Finding::exactly("a flipped bit is refused", usize::from(is_noticed), 1).with_detail(said))
}

/// Flips a bit of what a peer has; returns what the controller had to send for it.
fn fetch_from_damaged_peer(cluster: &LabCluster, peer: &LabNode) -> Result<Finding> {
    let weights = cluster.path().join("node").join("weights");
    let before = list_files(&weights)?;
    store_model(cluster, 4, None)?;
    cluster.put_task("m4", &json!({ "model": "m4", "node": "node" }))?;
    let file = largest_of(list_files(&weights)?.difference(&before))?;
    flip_last_bit(&file)?;
    let before = sent_bytes(cluster, peer);
    // What it runs it has checked once more.
    cluster.put_task("m4-too", &json!({ "model": "m4", "node": "peer" }))?;
    let sent = (sent_bytes(cluster, peer) - before) / MEBIBYTE;
    let length = std::fs::metadata(&file).map_or(0, |found| found.len()) as f64 / MEBIBYTE;
    Ok(Finding::at_most(
        "mebibytes from the controller for a flipped bit at a peer",
        sent,
        5.0,
        "×",
    )
    .with_detail(format!("in a weight of {length:.0}; the range, and one that proves it")))
}

fn largest_of<'a>(files: impl Iterator<Item = &'a PathBuf>) -> Result<PathBuf> {
    let largest = files.max_by_key(|file| std::fs::metadata(file).map_or(0, |found| found.len()));
    largest.cloned().ok_or_else(|| Error::engine("a model without weights of its own"))
}

/// Flips a bit at the end of a file; returns what was in it.
fn flip_last_bit(file: &Path) -> Result<Vec<u8>> {
    let whole = std::fs::read(file).map_err(|error| Error::from_io(file.display(), &error))?;
    let mut flipped = whole.clone();
    if let Some(byte) = flipped.last_mut() {
        *byte ^= 1;
    }
    replace_file(file, &flipped)?;
    Ok(whole)
}

/// Content is not written to again, so that it is put there anew.
fn replace_file(file: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::remove_file(file)
        .and_then(|()| std::fs::write(file, bytes))
        .map_err(|error| Error::from_io(file.display(), &error))
}

/// The files below a folder.
fn list_files(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let fail = |error: std::io::Error| Error::from_io(folder.display(), &error);
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.is_dir() {
            found.extend(list_files(&path)?);
        } else {
            found.insert(path);
        }
    }
    Ok(found)
}

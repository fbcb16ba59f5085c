//! Who joins, how soon, and who does not; and what somebody on the way sees.

use std::time::Duration;

use serde_json::json;
use tessera_command::HttpMethod;
use tessera_core::Result;

use super::lab_cluster::LabCluster;
use super::{BenchCluster, Experiment};
use crate::background_clients::write_siblings;
use crate::finding::Finding;
use crate::stored_model::store_split;

pub(super) const JOIN: Experiment = Experiment {
    name: "join",
    about: "a node joins; others with wrong, used, expired, revoked and foreign tokens; bytes on \
            the way are searched for tensors",
    make: try_joining,
};

/// Bytes of a tensor that are looked for: as many as nobody meets by chance.
const SEARCHED_BYTES: usize = 32;

fn try_joining(_: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cluster = LabCluster::start()?;
    cluster.lab.start_capture();
    let edge = cluster.add_node("edge", &["--gateway"])?;
    let cloud = cluster.add_node("cloud", &[])?;
    let slowest = edge.ready_in.max(cloud.ready_in).as_secs_f64();
    let mut findings = vec![Finding::at_most("from start to ready", slowest, 1.0, "s")];
    findings.extend(refused_tokens(&mut cluster)?);
    findings.push(foreign_certificate(&mut cluster)?);
    // The input travels from one host to the other, and nobody in between sees it.
    let (files, requests) = write_siblings("resnet18", 1, cluster.path())?;
    store_split(&files[0], "task0", 2, &cluster.repository())?;
    cluster.put_task("task0", &json!({ "model": "task0", "node": "cloud" }))?;
    let tensor = requests[0].tensor.clone();
    let before = cluster.lab.traffic(&edge.host, &cloud.host).bytes;
    edge.check_requests(requests)?;
    let carried = cluster.lab.traffic(&edge.host, &cloud.host).bytes - before;
    let captured = cluster.lab.take_capture();
    let found = tensor
        .chunks_exact(SEARCHED_BYTES)
        .step_by(64)
        .filter(|part| part.iter().any(|byte| *byte != 0))
        .filter(|part| memchr::memmem::find(&captured, part).is_some())
        .count();
    let carried = format!("{} MB were carried between the hosts", carried / 1_000_000);
    findings.push(Finding::exactly("parts of tensors on the wire", found, 0).with_detail(carried));
    Ok(findings)
}

/// Tries to join with tokens that let nobody in.
fn refused_tokens(cluster: &mut LabCluster) -> Result<Vec<Finding>> {
    let host = cluster.lab.add_host("stranger")?;
    let used = {
        let tokens = cluster.ask(HttpMethod::GET, "/v1/tokens", None)?;
        tokens["tokens"].as_array().map_or(0, Vec::len)
    };
    let expired = cluster.create_token(1)?;
    let revoked = cluster.create_token(60)?;
    let id = revoked.split('.').nth(2).unwrap_or_default().to_owned();
    cluster.ask(HttpMethod::DELETE, &format!("/v1/tokens/{id}"), None)?;
    let mut wrong = cluster.create_token(60)?;
    let last = if wrong.ends_with('0') { "1" } else { "0" };
    wrong.replace_range(wrong.len() - 1.., last);
    let reused = cluster.create_token(60)?;
    let other = LabCluster::start()?;
    let foreign = other.create_token(60)?;
    std::thread::sleep(Duration::from_millis(1200));
    let join = |cluster: &LabCluster, token: &str, folder: &str| {
        let (address, join) = (host.address().to_string(), cluster.join_address());
        let folder = cluster.path().join(folder).display().to_string();
        cluster.run_at(
            &host,
            &[
                "node",
                "--listen",
                &address,
                "--name",
                folder_name(&folder),
                "--join",
                &join,
                "--token",
                token,
                "--repo",
                &folder,
                "--log",
                "off",
                "--drain",
                "0",
            ],
        )
    };
    let taken = cluster.ask(HttpMethod::GET, "/v1/nodes", None)?;
    let nodes = taken["nodes"].as_array().map_or(0, Vec::len);
    let mut refused = 0;
    for (token, folder, why) in [
        (&wrong, "wrong", "none of this cluster"),
        (&expired, "expired", "has expired"),
        (&revoked, "revoked", "was revoked"),
        (&foreign, "foreign", "not the cluster that the token is for"),
    ] {
        let said = String::from_utf8_lossy(&join(cluster, token, folder)?.stderr).into_owned();
        refused += usize::from(said.contains(why));
    }
    // The one that lets in once is used by a node of its own first.
    let spare = cluster.add_node_with_token("spare", &reused, &[])?;
    let said = String::from_utf8_lossy(&join(cluster, &reused, "reused")?.stderr).into_owned();
    refused += usize::from(said.contains("used already"));
    drop(spare);
    let after = cluster.ask(HttpMethod::GET, "/v1/nodes", None)?;
    let after = after["nodes"].as_array().map_or(0, Vec::len);
    Ok(vec![
        Finding::exactly(
            "refused with the reason: wrong, expired, revoked, foreign, used",
            refused,
            5,
        ),
        Finding::exactly("nodes more than were let in", after - nodes - 1, 0)
            .with_detail(format!("{used} tokens were used before")),
    ])
}

fn folder_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Somebody with a certificate of another cluster tries to attach.
fn foreign_certificate(cluster: &mut LabCluster) -> Result<Finding> {
    let mut other = LabCluster::start()?;
    let mut foreigner = other.add_node("foreigner", &[])?;
    foreigner.process.kill();
    let host = cluster.lab.add_host("foreigner")?;
    let folder = other.path().join("foreigner").display().to_string();
    let (address, join) = (host.address().to_string(), cluster.join_address());
    let ran = cluster.run_for(
        Duration::from_secs(3),
        &host,
        &[
            "node",
            "--listen",
            &address,
            "--name",
            "foreigner",
            "--join",
            &join,
            "--repo",
            &folder,
            "--log",
            "warn",
        ],
    )?;
    let nodes = cluster.ask(HttpMethod::GET, "/v1/nodes", None)?;
    let nodes = nodes["nodes"].as_array().cloned().unwrap_or_default();
    let attached = nodes.iter().filter(|node| node["name"] == "foreigner").count();
    let said = ran.lines().find(|line| line.contains("no controller")).unwrap_or_default();
    let said: String = said.chars().skip(28).take(90).collect();
    Ok(Finding::exactly("attached with a foreign certificate", attached, 0).with_detail(said))
}

//! Regions of shared memory, registered without end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_repository::unfinished_files::{unfinished_prefix, watch_folder};
use tessera_zoo::TinyModel;

use super::Attack;
use super::victim::Victim;
use crate::finding::Finding;
use crate::server_files::SHARED_MEMORY;
use crate::test_client::{HttpAnswer, TestClient};

pub(crate) const REGION_FLOOD: Attack = Attack {
    name: "region-flood",
    about: "eight clients that register regions of shared memory without end",
    isolations: super::ON_BOTH,
    carry_out: flood_regions,
};

const CLIENTS: usize = 8;

/// How many each tries to register.
const REGIONS_EACH: usize = 500;

/// The most that there may be (`docs/serving.md`).
const MOST_REGIONS: usize = 256;

fn flood_regions(isolation: Isolation) -> Result<Vec<Finding>> {
    let victim = Victim::start_victim(isolation, &[TinyModel::Linear], &[])?;
    let address = victim.address();
    let calm = victim.calm_footprint()?;
    let file = SharedFile::create_file()?;
    let refusals = register_at_once(address, &file.key)?;
    let listed = call(address, "GET", "/v2/systemsharedmemory/status", "")?;
    let listed: Value = serde_json::from_slice(&listed.body)
        .map_err(|error| Error::invalid(format!("the list of regions: {error}")))?;
    let registered = listed.as_array().map_or(0, Vec::len);
    std::thread::sleep(Duration::from_secs(1));
    let flooded = victim.footprint()?;
    call(address, "POST", "/v2/systemsharedmemory/unregister", "")?.require_ok("unregister")?;
    std::thread::sleep(Duration::from_secs(1));
    let after = victim.footprint()?;
    let with_regions = (calm.descriptors + MOST_REGIONS) as f64;
    let without = calm.descriptors as f64;
    Ok(vec![
        Finding::at_most("regions registered", registered as f64, MOST_REGIONS as f64, ""),
        Finding::exactly(
            "others refused (4xx, 503)",
            refusals,
            CLIENTS * REGIONS_EACH - registered,
        ),
        Finding::at_most("descriptors", flooded.descriptors as f64, with_regions, "")
            .with_detail(format!("{} before", calm.descriptors)),
        Finding::at_most("descriptors, regions gone", after.descriptors as f64, without, "")
            .with_detail(after.differences(&calm)),
        Finding::exactly("small request answered after", still_answers(&victim), 1),
    ])
}

fn still_answers(victim: &Victim) -> usize {
    usize::from(victim.answers_within(Duration::from_secs(10)))
}

/// Registers regions of this key from several clients; how many were refused.
fn register_at_once(address: SocketAddr, key: &str) -> Result<usize> {
    let body = json!({ "key": key, "offset": 0, "byte_size": 4096 }).to_string();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let body = body.clone();
            std::thread::spawn(move || register_many(address, client, &body))
        })
        .collect();
    let mut refused = 0;
    for client in clients {
        refused += client.join().map_err(|_| Error::lost("a client ended early"))??;
    }
    Ok(refused)
}

fn register_many(address: SocketAddr, client: usize, body: &str) -> Result<usize> {
    let mut refused = 0;
    for number in 0..REGIONS_EACH {
        let path = format!("/v2/systemsharedmemory/region/flood-{client}-{number}/register");
        let status = call(address, "POST", &path, body)?.status;
        refused += usize::from(matches!(status, 400..=499 | 503));
    }
    Ok(refused)
}

fn call(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<HttpAnswer> {
    let headers = ["Host: tessera", "Content-Type: application/json"];
    TestClient::connect(address)?.send_body(method, path, &headers, body.as_bytes())
}

/// A file of shared memory, which is gone when this is dropped.
struct SharedFile {
    key: String,
    path: PathBuf,
}

impl SharedFile {
    fn create_file() -> Result<Self> {
        let folder = Path::new(SHARED_MEMORY);
        watch_folder(folder);
        let name = format!("{}regions", unfinished_prefix());
        let path = folder.join(&name);
        std::fs::write(&path, [0; 4096]).map_err(|error| Error::from_io(path.display(), &error))?;
        Ok(Self { key: format!("/{name}"), path })
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
    }
}

//! Bodies that become large when they are unpacked, and JSON that takes long to read.

use std::io::Write;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_zoo::TinyModel;

use super::Attack;
use super::small_request_watch::SmallRequestWatch;
use super::victim::{Victim, post_json};
use crate::finding::Finding;
use crate::test_client::HttpAnswer;

pub(crate) const GZIP_BOMBS: Attack = Attack {
    name: "gzip-bombs",
    about: "six bodies of 0.5 MB that unpack to 500 MB, with --max-body-memory 1GB",
    isolations: super::ON_BOTH,
    carry_out: send_bombs,
};

pub(crate) const LARGE_JSON: Attack = Attack {
    name: "large-json",
    about: "four bodies of 100 MB of JSON, the same with one NaN, and small requests meanwhile",
    isolations: super::ON_BOTH,
    carry_out: send_large_json,
};

const BOMBS: usize = 6;

/// What a bomb unpacks to, in megabytes.
const UNPACKED_MEGABYTES: usize = 500;

const LARGE_BODIES: usize = 4;

/// Rows of a large body, of about 1 MB each.
const JSON_ROWS: usize = 100;

/// Elements of a row of a large body.
const JSON_COLUMNS: usize = 110_000;

fn send_bombs(isolation: Isolation) -> Result<Vec<Finding>> {
    let bomb = Arc::new(make_bomb()?);
    let arguments = ["--max-body-memory", "1GB"];
    let mut victim = Victim::start_victim(isolation, &[TinyModel::Linear], &arguments)?;
    let calm = victim.calm_footprint()?;
    let sending =
        send_at_once(&victim, BOMBS, TinyModel::Linear, &["Content-Encoding: gzip"], &bomb);
    let mut most = calm.memory_bytes;
    while sending.iter().any(|client| !client.is_finished()) {
        most = most.max(victim.footprint()?.memory_bytes);
        std::thread::sleep(Duration::from_millis(50));
    }
    let statuses = collect_statuses(sending)?;
    let beyond = (most - calm.memory_bytes) as f64 / 1e6;
    let answers = victim.answers_within(Duration::from_secs(10));
    Ok(vec![
        Finding::at_most("memory at most, beyond calm", beyond, 1_500.0, "MB")
            .with_detail(statuses),
        Finding::exactly("server alive", usize::from(victim.server.is_running()), 1),
        Finding::exactly("small request answered after", usize::from(answers), 1),
    ])
}

/// JSON with very many spaces, packed.
fn make_bomb() -> Result<Vec<u8>> {
    let fail = |error: std::io::Error| Error::from_io("a packed body", &error);
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    let start = br#"{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":["#;
    packed.write_all(start).map_err(fail)?;
    let spaces = vec![b' '; 1_000_000];
    for _ in 0..UNPACKED_MEGABYTES {
        packed.write_all(&spaces).map_err(fail)?;
    }
    packed.write_all(b"1]}]}").map_err(fail)?;
    packed.finish().map_err(fail)
}

fn send_large_json(isolation: Isolation) -> Result<Vec<Finding>> {
    let models = [TinyModel::Absolute, TinyModel::Linear];
    let victim = Victim::start_victim(isolation, &models, &[])?;
    let plain = make_large_json();
    let odd = put_nan_last(&plain);
    let mut findings = Vec::new();
    for (what, body) in [("", plain), (", with a NaN", odd)] {
        let body = Arc::new(body);
        let watch = SmallRequestWatch::start_watch(victim.address());
        let sending = send_at_once(&victim, LARGE_BODIES, TinyModel::Absolute, &[], &body);
        let statuses = collect_statuses(sending)?;
        let mut meanwhile = watch.stop_watch().findings(1.5);
        meanwhile[0].detail = format!("{}; large ones: {statuses}", meanwhile[0].detail);
        meanwhile.iter_mut().for_each(|finding| finding.what.push_str(what));
        findings.extend(meanwhile);
    }
    Ok(findings)
}

/// A body of JSON of 100 MB.
pub(super) fn make_large_json() -> Vec<u8> {
    let row = format!("[{}]", ["0.123456"; JSON_COLUMNS].join(","));
    let rows = vec![row; JSON_ROWS].join(",");
    let shape = format!("[{JSON_ROWS},{JSON_COLUMNS}]");
    format!(r#"{{"inputs":[{{"name":"x","shape":{shape},"datatype":"FP32","data":[{rows}]}}]}}"#)
        .into_bytes()
}

/// The same with one NaN, its last element: no JSON, and some clients write it all the same.
fn put_nan_last(json: &[u8]) -> Vec<u8> {
    let last = json.windows(8).rposition(|bytes| bytes == b"0.123456").unwrap_or_default();
    [&json[..last], b"NaN", json.get(last + 8..).unwrap_or_default()].concat()
}

/// Clients that each send a body.
fn send_at_once(
    victim: &Victim,
    count: usize,
    task: TinyModel,
    headers: &'static [&'static str],
    body: &Arc<Vec<u8>>,
) -> Vec<JoinHandle<Result<(Duration, HttpAnswer)>>> {
    let address = victim.address();
    let send = || {
        let body = Arc::clone(body);
        std::thread::spawn(move || post_json(address, task, headers, &body))
    };
    (0..count).map(|_| send()).collect()
}

/// What they got, in words.
fn collect_statuses(sending: Vec<JoinHandle<Result<(Duration, HttpAnswer)>>>) -> Result<String> {
    let mut statuses = Vec::new();
    for client in sending {
        let ended = client.join().map_err(|_| Error::lost("a client ended early"))?;
        statuses.push(ended.map_or_else(
            |error| error.to_string(),
            |(took, answer)| format!("{} after {:.1} s", answer.status, took.as_secs_f64()),
        ));
    }
    Ok(statuses.join(", "))
}

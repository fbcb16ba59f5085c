//! Memory that was needed once: it is given back, whatever it was needed for.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_report::format_bytes;
use tessera_zoo::TinyModel;

use super::Attack;
use super::victim::{Victim, matrix_request, post_json};
use crate::finding::Finding;
use crate::server_footprint::ServerFootprint;
use crate::test_client::{TestClient, TestInferRequest};

pub(crate) const MEMORY_RETURNS: Attack = Attack {
    name: "memory-returns",
    about: "large, refused and oddly sized requests, and what is left of them after a minute",
    isolations: super::ON_BOTH,
    carry_out: fill_memory,
};

/// How much more than when it was calm a server may hold.
const MOST_RATIO: f64 = 1.2;

/// How long it may take to give memory back.
const GIVE_BACK: Duration = Duration::from_secs(60);

/// Elements of 300 MB.
const LARGE: usize = 75_000_000;

/// Elements of 0.6 MB.
const ROW: usize = 150_000;

/// One way to have a server need memory: its name, and what is sent.
type MemoryDemand = (&'static str, fn(SocketAddr) -> Result<()>);

const DEMANDS: [MemoryDemand; 5] = [
    ("four requests of 300 MB", send_large),
    ("ten sizes", send_ten_sizes),
    ("ten refused ones of 300 MB", send_refused),
    ("batches of 1 to 24 × 0.6 MB", send_batches),
    ("3 million keys of JSON", send_many_keys),
];

fn fill_memory(isolation: Isolation) -> Result<Vec<Finding>> {
    let models = [TinyModel::Absolute, TinyModel::Linear];
    let victim = Victim::start_victim(isolation, &models, &[])?;
    let calm = victim.calm_footprint()?;
    let mut findings = Vec::new();
    for (name, send) in DEMANDS {
        send(victim.address())?;
        findings.push(memory_after(&victim, &calm, name)?);
    }
    findings.extend(leftovers_after(&victim, &calm)?);
    Ok(findings)
}

/// What is there beyond what was, once that holds the bounds or a minute is over. Looked at as the
/// calm server was: after a little was asked for, and some silence.
fn leftovers_after(victim: &Victim, calm: &ServerFootprint) -> Result<Vec<Finding>> {
    let start = Instant::now();
    loop {
        let findings = leftover_findings(calm, &victim.calm_footprint()?);
        let all_held = findings.iter().all(|finding| finding.held);
        if all_held || start.elapsed() > GIVE_BACK {
            return Ok(findings);
        }
    }
}

/// The memory over the calm one, once that holds the bound or a minute is over.
pub(crate) fn memory_after(victim: &Victim, calm: &ServerFootprint, name: &str) -> Result<Finding> {
    let (start, mut now) = (Instant::now(), victim.footprint()?);
    let before_bytes = now.memory_bytes;
    while now.memory_ratio(calm) > MOST_RATIO && start.elapsed() < GIVE_BACK {
        std::thread::sleep(Duration::from_secs(1));
        // A server that is asked for little gives back as well.
        victim.ask_each_a_little()?;
        now = victim.footprint()?;
    }
    let detail = format!(
        "{:.0} s later; calm {}, then {}, now {}",
        start.elapsed().as_secs_f64(),
        format_bytes(calm.memory_bytes),
        format_bytes(before_bytes),
        format_bytes(now.memory_bytes)
    );
    let what = format!("memory over calm after {name}");
    Ok(Finding::at_most(what, now.memory_ratio(calm), MOST_RATIO, "×").with_detail(detail))
}

/// That no more descriptors, threads and processes are there than before.
pub(crate) fn leftover_findings(before: &ServerFootprint, after: &ServerFootprint) -> Vec<Finding> {
    let pairs = [
        ("descriptors", before.descriptors, after.descriptors),
        ("threads", before.threads, after.threads),
        ("processes", before.processes, after.processes),
    ];
    let finding = |(what, before, after): (&str, usize, usize)| {
        Finding::at_most(format!("{what} at the end"), after as f64, before as f64, "")
    };
    let mut findings: Vec<Finding> = pairs.into_iter().map(finding).collect();
    findings[0].detail = after.differences(before);
    findings
}

fn send_once(address: SocketAddr, request: &TestInferRequest) -> Result<u16> {
    Ok(request.send_to(&mut TestClient::connect(address)?)?.1.status)
}

fn require_status(status: u16, expected: u16) -> Result<()> {
    if status == expected {
        return Ok(());
    }
    Err(Error::engine(format!("the server answered {status}, expected {expected}")))
}

fn send_large(address: SocketAddr) -> Result<()> {
    let request = matrix_request(1, LARGE);
    (0..4).try_for_each(|_| require_status(send_once(address, &request)?, 200))
}

fn send_ten_sizes(address: SocketAddr) -> Result<()> {
    (0..10).try_for_each(|number| {
        let request = matrix_request(1, 5_000_000 + number * 1_850_000);
        require_status(send_once(address, &request)?, 200)
    })
}

fn send_refused(address: SocketAddr) -> Result<()> {
    let tensor = vec![0; LARGE * 4];
    let task = TinyModel::Absolute.task_name();
    let request = TestInferRequest::new(task, "no_such_input", &[1, LARGE], &tensor);
    (0..10).try_for_each(|_| require_status(send_once(address, &request)?, 400))
}

fn send_batches(address: SocketAddr) -> Result<()> {
    let send = move |rows: usize| send_once(address, &matrix_request(rows, ROW));
    let sending: Vec<_> = (1..=24).map(|rows| std::thread::spawn(move || send(rows))).collect();
    sending.into_iter().try_for_each(|client| {
        let ended = client.join().map_err(|_| Error::lost("a client ended early"))?;
        require_status(ended?, 200)
    })
}

fn send_many_keys(address: SocketAddr) -> Result<()> {
    let mut body = String::from(r#"{"inputs":[],"parameters":{"k":1"#);
    for number in 0..3_000_000 {
        write!(body, r#","k{number}":1"#)
            .map_err(|error| Error::invalid(format!("JSON: {error}")))?;
    }
    body.push_str("}}");
    let status = post_json(address, TinyModel::Linear, &[], body.as_bytes())?.1.status;
    require_status(status, 400)
}

//! Runs that never end: whoever asks for one gets an error in time, and nobody else waits for it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_zoo::TinyModel;

use super::Attack;
use super::small_request_watch::SmallRequestWatch;
use super::victim::{Victim, ask_with_json};
use crate::finding::Finding;
use crate::test_client::HttpAnswer;

pub(crate) const ENDLESS_RUNS: Attack = Attack {
    name: "endless-runs",
    about: "four runs without end, others meanwhile, and a server that is to stop amid one",
    isolations: super::ON_BOTH,
    carry_out: run_without_end,
};

pub(crate) const PATIENT_RUNS: Attack = Attack {
    name: "patient-runs",
    about: "runs without end after an honest long one, and without a timeout of their own",
    isolations: super::ON_BOTH,
    carry_out: run_patiently,
};

/// A step that takes a million runs of a loop: an honest long run.
const LONG_STEP: f64 = 1e-6;

/// How long a request may take that says nothing (`--deadline`), and what is added to that.
const DEFAULT_DEADLINE: f64 = 30.0 + 3.0;

/// How many at the same time.
const RUNS: usize = 4;

/// What an endless request gives itself.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How long others are watched.
const WATCHED: Duration = Duration::from_secs(8);

fn run_without_end(isolation: Isolation) -> Result<Vec<Finding>> {
    let models = [TinyModel::Counting, TinyModel::Linear];
    let mut victim = Victim::start_victim(isolation, &models, &[])?;
    let address = victim.address();
    count_up(address, 0.5, None)?.1.require_ok("a run that ends")?;
    let watch = SmallRequestWatch::start_watch(address);
    let start = Instant::now();
    let ended = ask_endlessly(address, Some(TIMEOUT), 3.0)?;
    std::thread::sleep(WATCHED.saturating_sub(start.elapsed()));
    let mut findings = ended;
    findings.extend(watch.stop_watch().findings(3.0));
    let again = count_up(address, 0.5, Some(Duration::from_secs(10)))?.1;
    findings.push(Finding::exactly("status of a run that ends, later", again.status.into(), 200));
    findings.push(stop_amid_run(&mut victim)?);
    Ok(findings)
}

/// Adds up in steps of this; one of 0 has no end.
fn count_up(
    address: SocketAddr,
    step: f64,
    timeout: Option<Duration>,
) -> Result<(Duration, HttpAnswer)> {
    ask_with_json(address, TinyModel::Counting, &[1], &json!(step), timeout)
}

/// What is learnt from a long run makes the next one no longer than its request waits for it.
fn run_patiently(isolation: Isolation) -> Result<Vec<Finding>> {
    let models = [TinyModel::Counting, TinyModel::Linear];
    let victim = Victim::start_victim(isolation, &models, &[])?;
    let address = victim.address();
    let (took, answer) = count_up(address, LONG_STEP, None)?;
    answer.require_ok("a long run")?;
    let watch = SmallRequestWatch::start_watch(address);
    let mut findings = ask_endlessly(address, Some(TIMEOUT), 3.0)?;
    let seconds = took.as_secs_f64();
    findings[0].detail = format!("after an honest run of {seconds:.1} s");
    let unsaid = ask_endlessly(address, None, DEFAULT_DEADLINE)?;
    findings.extend(unsaid.into_iter().map(|mut finding| {
        finding.what.push_str(", no timeout");
        finding
    }));
    findings.extend(watch.stop_watch().findings(3.0));
    let again = count_up(address, 0.5, Some(Duration::from_secs(10)))?.1;
    findings.push(Finding::exactly("status of a run that ends, later", again.status.into(), 200));
    Ok(findings)
}

/// Asks for runs without end; each is refused within so many seconds.
fn ask_endlessly(
    address: SocketAddr,
    timeout: Option<Duration>,
    limit: f64,
) -> Result<Vec<Finding>> {
    let ask = move || count_up(address, 0.0, timeout);
    let asking: Vec<_> = (0..RUNS).map(|_| std::thread::spawn(ask)).collect();
    let (mut refused, mut slowest) = (0, Duration::ZERO);
    for client in asking {
        let ended = client.join().map_err(|_| Error::lost("a client ended early"))?;
        let (took, answer) = ended?;
        refused += usize::from(matches!(answer.status, 503 | 504));
        slowest = slowest.max(took);
    }
    Ok(vec![
        Finding::exactly("endless requests refused (503, 504)", refused, RUNS),
        Finding::at_most("slowest refusal", slowest.as_secs_f64(), limit, "s"),
    ])
}

/// How long a server takes to stop while a run without end is under way.
fn stop_amid_run(victim: &mut Victim) -> Result<Finding> {
    let address = victim.address();
    // It gets no answer, or any.
    let asking = std::thread::spawn(move || {
        count_up(address, 0.0, Some(Duration::from_secs(600))).ok();
    });
    std::thread::sleep(Duration::from_secs(1));
    let stopped = victim.server.stop_within(Duration::from_secs(60));
    let what = "SIGTERM amid a run to the end";
    let finding = match stopped {
        Some((status, took)) => {
            Finding::at_most(what, took.as_secs_f64(), 15.0, "s").with_detail(status.to_string())
        }
        None => Finding::at_most(what, f64::INFINITY, 15.0, "s"),
    };
    victim.server.kill_server();
    asking.join().map_err(|_| Error::lost("a client ended early"))?;
    Ok(finding)
}

//! `tessera bench soak`: very many requests of known answers, while everything goes on that a
//! server must bear: units are killed, tasks come and go, clients cancel, stall and misbehave.

mod disturbances;
mod soak_clients;
mod soak_request;
mod soak_tally;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_report::{Table, format_bytes, output};
use tessera_zoo::TinyModel;

use super::attack::{Victim, leftover_findings};
use super::isolation_choice::IsolationChoice;
use super::server_files::{shared_memory_files, working_folders};
use super::server_footprint::ServerFootprint;
use crate::finding::Finding;
use disturbances::{DisturbanceCounts, disturb_server};
use soak_clients::{RequestNumbers, ask_all};
use soak_tally::{SoakTally, sum_counts};

/// Options of `tessera bench soak`.
#[derive(Args)]
pub struct BenchSoak {
    /// How many requests
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) requests: u64,
    /// Clients that ask as fast as they get answers; one more is slow
    #[arg(long, default_value_t = 8)]
    pub(crate) clients: usize,
    /// Where units run; they are killed in processes
    #[arg(long, default_value = "process", value_enum)]
    pub(crate) isolation: IsolationChoice,
    /// Seconds of silence before the server is looked at, before and after; what is told of memory
    /// holds for a minute
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub(crate) silence: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Requests before the memory of the calm server is measured: each kind has been there by then.
const WARM_UP_REQUESTS: u64 = 2_000;

/// Numbers of requests that are not asked before.
const FIRST_REQUEST: u64 = 1 << 32;

/// How much more than when it was calm the server may hold after all.
const MOST_RATIO: f64 = 1.2;

#[derive(Serialize)]
struct SoakRow {
    isolation: Isolation,
    seconds: f64,
    requests: SoakTally,
    disturbances: DisturbanceCounts,
    /// What the server took when it was calm, before.
    before: ServerFootprint,
    /// What it took after the last request, and the silence.
    after: ServerFootprint,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct SoakReport {
    rows: Vec<SoakRow>,
}

/// Asks a server for long while it is disturbed, and looks what is left of that.
pub(crate) fn bench_soak(arguments: &BenchSoak) -> Result<()> {
    let mut report = SoakReport { rows: Vec::new() };
    for &isolation in arguments.isolation.isolations() {
        report.rows.push(soak_server(arguments, isolation)?);
    }
    if arguments.json {
        output::print_json(&report)?;
    } else {
        report.rows.iter().try_for_each(print_soak)?;
    }
    report.rows.iter().try_for_each(check_soak)
}

fn soak_server(arguments: &BenchSoak, isolation: Isolation) -> Result<SoakRow> {
    let working = output::spinner(format!("preparing, units on {isolation}"));
    let models = [TinyModel::Linear, TinyModel::Absolute, TinyModel::Pooled];
    let shared_before = shared_memory_files();
    let victim = Victim::start_victim(isolation, &models, &[])?;
    // Its model is for tasks that come and go, which have a unit of their own then.
    let path = format!("/v1/tasks/{}", TinyModel::Pooled.task_name());
    victim.server.call_control("DELETE", &path, None)?;
    let warm_up = RequestNumbers::new(0, WARM_UP_REQUESTS, output::ProgressBar::hidden());
    ask_all(victim.address(), arguments.clients.max(1), &warm_up)?.require_sound()?;
    let silence = Duration::from_secs(arguments.silence);
    let before = footprint_after_silence(&victim, silence)?;
    working.finish_and_clear();
    let start = Instant::now();
    let (requests, disturbances) = ask_while_disturbed(arguments, isolation, &victim)?;
    let seconds = start.elapsed().as_secs_f64();
    let working = output::spinner("silence");
    let after = footprint_after_silence(&victim, silence)?;
    let mut findings = end_findings(&before, &after);
    findings.push(leftover_files(&victim, &shared_before));
    working.finish_and_clear();
    Ok(SoakRow { isolation, seconds, requests, disturbances, before, after, findings })
}

/// What the server takes a while later, when it was asked for no more than a little.
fn footprint_after_silence(victim: &Victim, silence: Duration) -> Result<ServerFootprint> {
    std::thread::sleep(silence);
    victim.calm_footprint()
}

fn ask_while_disturbed(
    arguments: &BenchSoak,
    isolation: Isolation,
    victim: &Victim,
) -> Result<(SoakTally, DisturbanceCounts)> {
    let bar = output::progress_bar(arguments.requests, "asking");
    let numbers = RequestNumbers::new(FIRST_REQUEST, arguments.requests, bar.clone());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let disturbing = scope.spawn(|| disturb_server(&victim.server, isolation, &over));
        let tally = ask_all(victim.address(), arguments.clients.max(1), &numbers);
        over.store(true, Ordering::Relaxed);
        let disturbed = disturbing.join().map_err(|_| Error::lost("a client ended early"))?;
        bar.finish_and_clear();
        Ok((tally?, disturbed?))
    })
}

fn end_findings(before: &ServerFootprint, after: &ServerFootprint) -> Vec<Finding> {
    let shown = |footprint: &ServerFootprint| {
        let &ServerFootprint { memory_bytes, file_bytes, .. } = footprint;
        format!("{} ({} of files)", format_bytes(memory_bytes), format_bytes(file_bytes))
    };
    let detail = format!("{} after {}", shown(after), shown(before));
    let ratio = after.memory_ratio(before);
    let what = "memory over calm at the end";
    let mut findings = vec![Finding::at_most(what, ratio, MOST_RATIO, "×").with_detail(detail)];
    findings.extend(leftover_findings(before, after));
    findings
}

/// Temporary files and shared memory that are there now and were not before.
fn leftover_files(victim: &Victim, shared_before: &[String]) -> Finding {
    let place = victim.place();
    let mut left = working_folders(&[place.temporary_folder(), place.repository()]);
    left.extend(shared_memory_files().into_iter().filter(|file| !shared_before.contains(file)));
    Finding::exactly("files left", left.len(), 0).with_detail(left.join(", "))
}

fn print_soak(row: &SoakRow) -> Result<()> {
    let SoakRow { isolation, seconds, requests, disturbances, .. } = row;
    output::print_line(&format!(
        "units on {isolation}: {} requests in {seconds:.0} s, {:.0} per second, slowest {:.0} ms",
        requests.asked,
        requests.asked as f64 / seconds,
        requests.slowest_ms
    ))?;
    print_tally("requests", requests)?;
    print_tally("of tasks that come and go", &disturbances.visitors)?;
    output::print_line(&format!(
        "meanwhile: {} kills, {} changes of tasks ({} failed), {} requests cancelled, {} hostile \
         ones",
        disturbances.kills,
        disturbances.changes,
        sum_counts(&disturbances.changes_failed),
        disturbances.cancelled,
        disturbances.hostile
    ))?;
    for (error, count) in disturbances.changes_failed.iter().take(5) {
        output::print_line(&format!("  {count} × {error}"))?;
    }
    let mut table = Table::new(&["measured", ">found", "bound", "held", ""]);
    for finding in &row.findings {
        table.add_row(finding.cells());
    }
    table.print_table()
}

fn print_tally(what: &str, tally: &SoakTally) -> Result<()> {
    let [refused, wrong, unanswered] =
        [&tally.refused, &tally.wrong, &tally.unanswered].map(sum_counts);
    output::print_line(&format!(
        "{what}: {} right, {refused} refused, {wrong} wrong, {unanswered} unanswered, {} twice",
        tally.right, tally.answered_twice
    ))?;
    for counts in [&tally.refused, &tally.wrong, &tally.unanswered] {
        for (reason, count) in counts.iter().take(5) {
            output::print_line(&format!("  {count} × {reason}"))?;
        }
    }
    Ok(())
}

fn check_soak(row: &SoakRow) -> Result<()> {
    row.requests.require_sound()?;
    row.disturbances.visitors.require_sound()?;
    let answered = row.disturbances.malformed_answered;
    if answered > 0 {
        return Err(Error::engine(format!("{answered} malformed requests were answered")));
    }
    let broken: Vec<&str> = row
        .findings
        .iter()
        .filter(|finding| !finding.held)
        .map(|finding| finding.what.as_str())
        .collect();
    if broken.is_empty() {
        return Ok(());
    }
    Err(Error::engine(format!("bounds that did not hold: {}", broken.join("; "))))
}

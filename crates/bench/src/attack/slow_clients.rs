//! Clients that never send the rest, and clients that never read.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use tessera_core::Result;
use tessera_deploy::Isolation;
use tessera_report::format_bytes;
use tessera_zoo::TinyModel;

use super::Attack;
use super::memory_returns::memory_after;
use super::small_request_watch::SmallRequestWatch;
use super::victim::{Victim, matrix_request};
use crate::finding::Finding;
use crate::hostile_connections::{
    is_closed_by_server, leave_answer_unread, send_half_head, stall_late, stall_upload,
};
use crate::test_client::TestClient;

pub(crate) const SLOW_HEADS: Attack = Attack {
    name: "slow-heads",
    about: "200 connections that send half a head",
    isolations: super::ON_BOTH,
    carry_out: send_slow_heads,
};

pub(crate) const STALLED_UPLOADS: Attack = Attack {
    name: "stalled-uploads",
    about: "700 uploads that stop after two bytes",
    isolations: super::ON_BOTH,
    carry_out: stall_uploads,
};

pub(crate) const STALLED_GIGABYTES: Attack = Attack {
    name: "stalled-gigabytes",
    about: "uploads of 1 GiB: eight that stop after two bytes, two a byte before the end",
    isolations: super::ON_BOTH,
    carry_out: stall_gigabytes,
};

pub(crate) const UNREAD_ANSWERS: Attack = Attack {
    name: "unread-answers",
    about: "150 clients that never read their answers of 8 MB",
    isolations: super::ON_BOTH,
    carry_out: leave_unread,
};

const HEADS: usize = 200;
const UPLOADS: usize = 700;
const UNREAD: usize = 150;

/// Elements of 1 GiB less 4 KiB, so that the request is within the limit of a body.
const GIGABYTE_ELEMENTS: usize = (1 << 28) - 1024;
/// Uploads of a gigabyte that begin.
const BEGUN: usize = 8;
/// Uploads of a gigabyte that nearly end.
const NEARLY_DONE: usize = 2;

/// Requests of the same size as the stalled uploads.
const HONEST: usize = 20;

/// Elements of a stalled upload: 0.6 MB.
const UPLOAD_ELEMENTS: usize = 150_000;

/// Elements of an answer that nobody reads: 8 MB.
const ANSWER_ELEMENTS: usize = 2_000_000;

/// How much more than when it was calm a server may hold while answers are not read.
const MOST_UNREAD_RATIO: f64 = 1.3;

fn send_slow_heads(isolation: Isolation) -> Result<Vec<Finding>> {
    let victim = Victim::start_victim(isolation, &[TinyModel::Linear], &[])?;
    let start = Instant::now();
    let streams = (0..HEADS).map(|_| send_half_head(victim.address()));
    let streams = streams.collect::<Result<Vec<_>>>()?;
    Ok(closing_findings(streams, start, 20.0))
}

fn stall_uploads(isolation: Isolation) -> Result<Vec<Finding>> {
    let models = [TinyModel::Absolute, TinyModel::Linear];
    let victim = Victim::start_victim(isolation, &models, &[])?;
    let address = victim.address();
    let watch = SmallRequestWatch::start_watch(address);
    let start = Instant::now();
    let task = TinyModel::Absolute.task_name();
    let streams = (0..UPLOADS).map(|_| stall_upload(address, task, UPLOAD_ELEMENTS));
    let streams = streams.collect::<Result<Vec<_>>>()?;
    let honest = matrix_request(1, UPLOAD_ELEMENTS);
    let answered = (0..HONEST).filter(|_| {
        let answer =
            TestClient::connect(address).and_then(|mut client| honest.send_to(&mut client));
        answer.is_ok_and(|(_, answer)| answer.status == 200)
    });
    let answered = answered.count();
    let mut findings =
        vec![Finding::exactly("requests of the same size answered", answered, HONEST)];
    findings.extend(closing_findings(streams, start, 25.0));
    findings.extend(watch.stop_watch().findings(3.0));
    Ok(findings)
}

fn stall_gigabytes(isolation: Isolation) -> Result<Vec<Finding>> {
    let models = [TinyModel::Absolute, TinyModel::Linear];
    let victim = Victim::start_victim(isolation, &models, &[])?;
    let (address, calm) = (victim.address(), victim.calm_footprint()?);
    let task = TinyModel::Absolute.task_name();
    let watch = SmallRequestWatch::start_watch(address);
    let begun = (0..BEGUN).map(|_| stall_upload(address, task, GIGABYTE_ELEMENTS));
    let mut streams = begun.collect::<Result<Vec<_>>>()?;
    // What is refused on the way is closed by then.
    let nearly = (0..NEARLY_DONE).map(|_| stall_late(address, task, GIGABYTE_ELEMENTS));
    streams.extend(nearly.collect::<Result<Vec<_>>>()?);
    let start = Instant::now();
    let honest = matrix_request(1, UPLOAD_ELEMENTS);
    let answered = (0..HONEST).filter(|_| {
        let answer =
            TestClient::connect(address).and_then(|mut client| honest.send_to(&mut client));
        answer.is_ok_and(|(_, answer)| answer.status == 200)
    });
    let answered = answered.count();
    let mut findings =
        vec![Finding::exactly("requests of 0.6 MB answered meanwhile", answered, HONEST)];
    findings.extend(closing_findings(streams, start, 25.0));
    findings.extend(watch.stop_watch().findings(3.0));
    findings.push(memory_after(&victim, &calm, "they were closed")?);
    Ok(findings)
}

/// That the server closes all of these within so many seconds.
pub(super) fn closing_findings(
    mut streams: Vec<TcpStream>,
    start: Instant,
    limit: f64,
) -> Vec<Finding> {
    let count = streams.len();
    while !streams.is_empty() && start.elapsed().as_secs_f64() < limit + 10.0 {
        streams.retain_mut(|stream| !is_closed_by_server(stream));
        std::thread::sleep(Duration::from_millis(50));
    }
    let closed = count - streams.len();
    vec![
        Finding::exactly("connections closed", closed, count),
        Finding::at_most("until the last was closed", start.elapsed().as_secs_f64(), limit, "s"),
    ]
}

fn leave_unread(isolation: Isolation) -> Result<Vec<Finding>> {
    let models = [TinyModel::Absolute, TinyModel::Linear];
    let victim = Victim::start_victim(isolation, &models, &[])?;
    let calm = victim.calm_footprint()?;
    let watch = SmallRequestWatch::start_watch(victim.address());
    let request = matrix_request(1, ANSWER_ELEMENTS);
    let streams = (0..UNREAD).map(|_| leave_answer_unread(victim.address(), &request));
    let streams = streams.collect::<Result<Vec<_>>>()?;
    std::thread::sleep(Duration::from_secs(3));
    let early = victim.footprint()?;
    std::thread::sleep(Duration::from_secs(42));
    let late = victim.footprint()?;
    let detail = format!(
        "calm {}, 3 s after the last {}, 45 s {}",
        format_bytes(calm.memory_bytes),
        format_bytes(early.memory_bytes),
        format_bytes(late.memory_bytes)
    );
    let ratio = late.memory_ratio(&calm);
    let mut findings = watch.stop_watch().findings(1.0);
    findings.push(
        Finding::at_most("memory over calm 45 s later", ratio, MOST_UNREAD_RATIO, "×")
            .with_detail(detail),
    );
    drop(streams);
    findings.push(memory_after(&victim, &calm, "they left")?);
    Ok(findings)
}

//! The attacks, each over gRPC and over TLS.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_zoo::TinyModel;
use tokio::task::JoinHandle;

use super::WireKind;
use super::wire_connection::WireStatus;
use super::wire_request::WireRequest;
use super::wire_victim::WireVictim;
use super::wire_watch::WireWatch;
use crate::attack::large_bodies::make_large_json;
use crate::attack::slow_clients::closing_findings;
use crate::attack::{Attack, ON_BOTH};
use crate::finding::Finding;

/// An attack of this kind, with a name for each way.
macro_rules! wire_attack {
    ($name:ident, $called:literal, $about:literal, $carry_out:ident, $kind:expr) => {
        pub(in crate::attack) const $name: Attack = Attack {
            name: $called,
            about: $about,
            isolations: ON_BOTH,
            carry_out: |isolation| $carry_out($kind, isolation),
        };
    };
}

wire_attack!(
    GRPC_STALLED_UPLOADS,
    "grpc-stalled-uploads",
    "300 calls that stop after two bytes of a tensor",
    stall_uploads,
    WireKind::Grpc
);
wire_attack!(
    TLS_STALLED_UPLOADS,
    "tls-stalled-uploads",
    "300 uploads over TLS that stop after two bytes of a tensor",
    stall_uploads,
    WireKind::Tls
);
wire_attack!(
    GRPC_BOMBS,
    "grpc-bombs",
    "six messages of 0.5 MB that unpack to 500 MB, with --max-body-memory 1GB",
    send_bombs,
    WireKind::Grpc
);
wire_attack!(
    TLS_BOMBS,
    "tls-gzip-bombs",
    "six bodies over TLS of 0.5 MB that unpack to 500 MB, with --max-body-memory 1GB",
    send_bombs,
    WireKind::Tls
);
wire_attack!(
    GRPC_LARGE_MESSAGES,
    "grpc-large-messages",
    "four messages of 100 MB, and small calls meanwhile",
    send_large,
    WireKind::Grpc
);
wire_attack!(
    TLS_LARGE_JSON,
    "tls-large-json",
    "four bodies of 100 MB of JSON over TLS, and small requests meanwhile",
    send_large,
    WireKind::Tls
);

pub(in crate::attack) const TLS_HALF_HANDSHAKES: Attack = Attack {
    name: "tls-half-handshakes",
    about: "200 connections that begin with TLS and say no more",
    isolations: &[Isolation::Thread],
    carry_out: |isolation| begin_handshakes(isolation),
};

const UPLOADS: usize = 300;
/// Elements of a stalled upload: 0.6 MB.
const UPLOAD_ELEMENTS: usize = 150_000;
/// Requests of the same size as the stalled uploads.
const HONEST: usize = 20;
const BOMBS: usize = 6;
/// What a bomb unpacks to, in megabytes.
const UNPACKED_MEGABYTES: usize = 500;
const LARGE: usize = 4;
/// Elements of a large message: 100 MB.
const LARGE_ELEMENTS: usize = 25_000_000;
const HANDSHAKES: usize = 200;

/// What became of requests that were sent at the same time, and when.
type EndedRequest = (Duration, Result<WireStatus>);

/// Sends requests at the same time.
fn send_at_once(
    victim: &WireVictim,
    count: usize,
    request: &WireRequest,
) -> Vec<JoinHandle<EndedRequest>> {
    let send = || {
        let (target, request) = (victim.target.clone(), request.clone());
        victim.runtime.spawn(async move {
            let start = Instant::now();
            let answer = target.ask(request).await;
            (start.elapsed(), answer)
        })
    };
    (0..count).map(|_| send()).collect()
}

fn wait_for_all(
    victim: &WireVictim,
    sending: Vec<JoinHandle<EndedRequest>>,
) -> Result<Vec<EndedRequest>> {
    let gone = |_| Error::lost("a client ended early");
    sending.into_iter().map(|one| victim.runtime.block_on(one).map_err(gone)).collect()
}

/// What they got, in words.
fn describe_ended(ended: &[EndedRequest]) -> String {
    let describe = |(took, answer): &EndedRequest| {
        let seconds = took.as_secs_f64();
        match answer {
            Ok(status) => format!("{status} after {seconds:.1} s"),
            Err(error) => error.to_string(),
        }
    };
    ended.iter().map(describe).collect::<Vec<_>>().join(", ")
}

fn stall_uploads(kind: WireKind, isolation: Isolation) -> Result<Vec<Finding>> {
    let models = [TinyModel::Absolute, TinyModel::Linear];
    let victim = WireVictim::start_victim(kind, isolation, &models, &[])?;
    let watch = WireWatch::start_watch(&victim);
    let stalled = WireRequest::stalled(kind, TinyModel::Absolute, UPLOAD_ELEMENTS);
    let sending = send_at_once(&victim, UPLOADS, &stalled);
    std::thread::sleep(Duration::from_secs(1));
    let honest = WireRequest::of_zeros(kind, TinyModel::Absolute, UPLOAD_ELEMENTS);
    let answered = (0..HONEST).filter(|_| {
        let answer = victim.runtime.block_on(victim.target.ask(honest.clone()));
        answer.is_ok_and(WireStatus::is_ok)
    });
    let answered = answered.count();
    let ended = wait_for_all(&victim, sending)?;
    // Our own patience is longer than any server may take.
    let by_server = ended.iter().filter(|(took, _)| *took < Duration::from_secs(100)).count();
    let last = ended.iter().map(|(took, _)| took.as_secs_f64()).fold(0.0, f64::max);
    let mut findings = vec![
        Finding::exactly("requests of the same size answered", answered, HONEST),
        Finding::exactly("uploads ended by the server", by_server, UPLOADS)
            .with_detail(describe_ended(&ended[..1])),
        Finding::at_most("until the last was ended", last, 25.0, "s"),
    ];
    findings.extend(watch.stop_watch(&victim)?.findings(3.0));
    Ok(findings)
}

fn send_bombs(kind: WireKind, isolation: Isolation) -> Result<Vec<Finding>> {
    let bomb = WireRequest::bomb(kind, UNPACKED_MEGABYTES)?;
    let arguments = ["--max-body-memory", "1GB"];
    let mut victim = WireVictim::start_victim(kind, isolation, &[TinyModel::Linear], &arguments)?;
    let calm = victim.calm_footprint()?;
    let sending = send_at_once(&victim, BOMBS, &bomb);
    let mut most = calm.memory_bytes;
    while sending.iter().any(|client| !client.is_finished()) {
        most = most.max(victim.victim.footprint()?.memory_bytes);
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = wait_for_all(&victim, sending)?;
    let beyond = most.saturating_sub(calm.memory_bytes) as f64 / 1e6;
    let answers = victim.answers_within(Duration::from_secs(10));
    let alive = victim.victim.server.is_running();
    Ok(vec![
        Finding::at_most("memory at most, beyond calm", beyond, 1_500.0, "MB")
            .with_detail(describe_ended(&ended)),
        Finding::exactly("server alive", usize::from(alive), 1),
        Finding::exactly("small request answered after", usize::from(answers), 1),
    ])
}

fn send_large(kind: WireKind, isolation: Isolation) -> Result<Vec<Finding>> {
    let models = [TinyModel::Absolute, TinyModel::Linear];
    let victim = WireVictim::start_victim(kind, isolation, &models, &[])?;
    let request = match kind {
        WireKind::Grpc => WireRequest::of_zeros(kind, TinyModel::Absolute, LARGE_ELEMENTS),
        WireKind::Tls => WireRequest::of_json(TinyModel::Absolute, make_large_json().into()),
    };
    let watch = WireWatch::start_watch(&victim);
    let ended = wait_for_all(&victim, send_at_once(&victim, LARGE, &request))?;
    let mut findings = watch.stop_watch(&victim)?.findings(1.5);
    let statuses = describe_ended(&ended);
    findings[0].detail = format!("{}; large ones: {statuses}", findings[0].detail);
    Ok(findings)
}

fn begin_handshakes(isolation: Isolation) -> Result<Vec<Finding>> {
    let kind = WireKind::Tls;
    let victim = WireVictim::start_victim(kind, isolation, &[TinyModel::Linear], &[])?;
    let address = victim.target.address;
    let watch = WireWatch::start_watch(&victim);
    let start = Instant::now();
    let fail = |error: std::io::Error| Error::from_io(address, &error);
    let begin = |_| {
        let mut stream = TcpStream::connect(address).map_err(fail)?;
        // A record of a handshake that announces 512 bytes, of which one comes.
        stream.write_all(&[0x16, 3, 1, 2, 0, 1]).map_err(fail)?;
        Ok(stream)
    };
    let streams = (0..HANDSHAKES).map(begin).collect::<Result<Vec<_>>>()?;
    let mut findings = closing_findings(streams, start, 20.0);
    findings.extend(watch.stop_watch(&victim)?.findings(3.0));
    Ok(findings)
}

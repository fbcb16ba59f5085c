//! Connections that are there and ask for nothing.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_zoo::TinyModel;

use super::Attack;
use super::memory_returns::memory_after;
use super::small_request_watch::SmallRequestWatch;
use super::victim::Victim;
use crate::finding::Finding;
use crate::hostile_connections::is_closed_by_server;

pub(crate) const IDLE_CONNECTIONS: Attack = Attack {
    name: "idle-connections",
    about: "10,000 connections that ask for nothing, and small requests meanwhile",
    isolations: super::ON_BOTH,
    carry_out: hold_connections,
};

const CONNECTIONS: usize = 10_000;

/// Descriptors of this process that are no connections.
const OTHERS: usize = 200;

/// How long they are held: longer than a head or a body may take.
const HELD: Duration = Duration::from_secs(12);

/// What one may take of the server's memory.
const MOST_KILOBYTES: f64 = 32.0;

fn hold_connections(isolation: Isolation) -> Result<Vec<Finding>> {
    // The server gets the same limit.
    let count = CONNECTIONS.min(raise_descriptor_limit().saturating_sub(OTHERS));
    let victim = Victim::start_victim(isolation, &[TinyModel::Linear], &[])?;
    let calm = victim.calm_footprint()?;
    let watch = SmallRequestWatch::start_watch(victim.address());
    let mut streams = open_connections(victim.address(), count)?;
    std::thread::sleep(HELD);
    let held = victim.footprint()?;
    let answers = watch.stop_watch();
    let closed = streams.iter_mut().filter_map(|stream| is_closed_by_server(stream).then_some(()));
    let closed = closed.count();
    drop(streams);
    let each = held.memory_bytes.saturating_sub(calm.memory_bytes) as f64 / count as f64 / 1e3;
    let mut findings = vec![
        Finding::at_least("connections", count as f64, 1_000.0, "")
            .with_detail(format!("of {CONNECTIONS}, as many as the limit of descriptors allows")),
        Finding::exactly("connections closed by the server", closed, 0),
        Finding::at_most("memory for each", each, MOST_KILOBYTES, "kB"),
    ];
    findings.extend(answers.findings(3.0));
    findings.push(memory_after(&victim, &calm, "they left")?);
    Ok(findings)
}

fn open_connections(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    let open = |_| TcpStream::connect(address).map_err(|error| Error::from_io(address, &error));
    (0..count).map(open).collect()
}

/// Raises the limit of descriptors as far as this process may; how many there may be then.
fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let limit = setrlimit(Resource::Nofile, raised).map_or(limit.current, |()| limit.maximum);
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

//! What processes used in the last minute.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use crate::clock::UnixClock;
use crate::process::{self, ProcessReading};
use crate::sample::SystemSample;

/// How often a second processes are looked at.
pub(crate) const HERTZ: u64 = 10;

/// A minute.
const POINTS_KEPT: usize = 60 * HERTZ as usize;

/// What the server itself goes by where units and instances are named.
pub(crate) const SERVER_LABEL: &str = "server";

/// The processes of units and our own.
#[derive(Debug, Default)]
pub(crate) struct ProcessUsage {
    /// By instance.
    processes: BTreeMap<String, WatchedProcess>,
}

#[derive(Debug)]
struct WatchedProcess {
    unit: String,
    pid: u32,
    points: VecDeque<UsagePoint>,
}

/// A reading, and when it was taken by the host's monotonic clock.
#[derive(Clone, Copy, Debug)]
struct UsagePoint {
    at: u64,
    reading: ProcessReading,
}

/// What a process uses now.
#[derive(Debug)]
pub(crate) struct CurrentUsage {
    pub(crate) unit: String,
    pub(crate) instance: String,
    pub(crate) pid: u32,
    /// Processor time since it began.
    pub(crate) cpu_seconds: f64,
    /// Cores that it kept busy over the last second.
    pub(crate) cpu: f64,
    pub(crate) resident: u64,
    pub(crate) shared: u64,
}

impl CurrentUsage {
    /// Bytes that nobody else holds.
    pub(crate) fn private_bytes(&self) -> u64 {
        self.resident.saturating_sub(self.shared)
    }
}

impl ProcessUsage {
    /// From now on follows the processes of the sample, and our own.
    pub(crate) fn follow_processes(&mut self, sample: &SystemSample) {
        let own = std::process::id();
        let mut before = std::mem::take(&mut self.processes);
        let mut keep = |unit: &str, instance: &str, pid: u32| {
            let known = before.remove(instance).filter(|process| process.pid == pid);
            let process = known.unwrap_or_else(|| WatchedProcess {
                unit: unit.to_owned(),
                pid,
                points: VecDeque::new(),
            });
            self.processes.insert(instance.to_owned(), process);
        };
        keep(SERVER_LABEL, SERVER_LABEL, own);
        for instance in &sample.instances {
            // What runs within the server is part of what the server uses.
            if let Some(pid) = instance.pid.filter(|&pid| pid != own) {
                keep(&instance.unit, &instance.instance, pid);
            }
        }
    }

    /// Looks at every process. Those that have ended are dropped.
    pub(crate) fn read_processes(&mut self, now: u64) {
        self.processes.retain(|_, process| {
            let Some(reading) = process::read_process(process.pid) else {
                return false;
            };
            if process.points.back().is_some_and(|last| last.reading.began != reading.began) {
                process.points.clear();
            }
            if process.points.len() >= POINTS_KEPT {
                process.points.pop_front();
            }
            process.points.push_back(UsagePoint { at: now, reading });
            true
        });
    }

    /// What every process uses now.
    pub(crate) fn current_usage(&self) -> Vec<CurrentUsage> {
        let used = |(instance, process): (&String, &WatchedProcess)| {
            let last = process.points.back()?;
            let second_ago = process.points.iter().rev().nth(HERTZ as usize);
            let earlier = second_ago.or(process.points.front())?;
            Some(CurrentUsage {
                unit: process.unit.clone(),
                instance: instance.clone(),
                pid: process.pid,
                cpu_seconds: cpu_seconds(last.reading.ticks),
                cpu: cores_busy(earlier, last),
                resident: last.reading.resident,
                shared: last.reading.shared,
            })
        };
        self.processes.iter().filter_map(used).collect()
    }

    /// The last minute of every process, as columns.
    pub(crate) fn last_minute(&self, clock: UnixClock) -> Value {
        let columns = |(instance, process): (&String, &WatchedProcess)| {
            // The first has none before it to be compared with.
            let points = || process.points.iter().skip(1);
            let cpu = process.points.iter().zip(points());
            json!({
                "unit": process.unit,
                "instance": instance,
                "pid": process.pid,
                "at": points().map(|point| clock.unix_milliseconds(point.at)).collect::<Vec<u64>>(),
                "cpu": cpu.map(|(before, point)| cores_busy(before, point)).collect::<Vec<f64>>(),
                "resident": points().map(|point| point.reading.resident).collect::<Vec<u64>>(),
                "shared": points().map(|point| point.reading.shared).collect::<Vec<u64>>(),
            })
        };
        let instances: Vec<Value> = self.processes.iter().map(columns).collect();
        json!({ "hertz": HERTZ, "instances": instances })
    }
}

fn cpu_seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64
}

fn cores_busy(earlier: &UsagePoint, later: &UsagePoint) -> f64 {
    let seconds = later.at.saturating_sub(earlier.at) as f64 / 1e9;
    let ticks = later.reading.ticks.saturating_sub(earlier.reading.ticks);
    if seconds > 0.0 { cpu_seconds(ticks) / seconds } else { 0.0 }
}

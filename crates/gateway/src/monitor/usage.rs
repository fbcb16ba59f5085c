//! What processes used in the last minute.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use super::clock::Clock;
use super::process::{self, Reading};
use super::sample::Sample;

/// How often a second processes are looked at.
pub(super) const HERTZ: u64 = 10;

/// A minute.
const KEPT: usize = 60 * HERTZ as usize;

/// What the server itself goes by where blocks and instances are named.
pub(super) const SERVER: &str = "server";

/// The processes of blocks and our own.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// By instance.
    processes: BTreeMap<String, Process>,
}

#[derive(Debug)]
struct Process {
    block: String,
    number: u32,
    points: VecDeque<Point>,
}

/// A reading, and when it was taken by the host's monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: u64,
    reading: Reading,
}

/// What a process uses now.
#[derive(Debug)]
pub(super) struct UsedNow {
    pub(super) block: String,
    pub(super) instance: String,
    pub(super) process: u32,
    /// Processor time since it began.
    pub(super) cpu_seconds: f64,
    /// Cores that it kept busy over the last second.
    pub(super) cpu: f64,
    pub(super) resident: u64,
    pub(super) shared: u64,
}

impl UsedNow {
    /// Bytes that nobody else holds.
    pub(super) fn private(&self) -> u64 {
        self.resident.saturating_sub(self.shared)
    }
}

impl Usage {
    /// From now on follows the processes of the sample, and our own.
    pub(super) fn follow(&mut self, sample: &Sample) {
        let own = std::process::id();
        let mut before = std::mem::take(&mut self.processes);
        let mut keep = |block: &str, instance: &str, number: u32| {
            let known = before.remove(instance).filter(|process| process.number == number);
            let process = known.unwrap_or_else(|| Process {
                block: block.to_owned(),
                number,
                points: VecDeque::new(),
            });
            self.processes.insert(instance.to_owned(), process);
        };
        keep(SERVER, SERVER, own);
        for instance in &sample.instances {
            // What runs within the server is part of what the server uses.
            if let Some(number) = instance.process.filter(|&number| number != own) {
                keep(&instance.block, &instance.instance, number);
            }
        }
    }

    /// Looks at every process. Those that have ended are dropped.
    pub(super) fn read(&mut self, now: u64) {
        self.processes.retain(|_, process| {
            let Some(reading) = process::read(process.number) else {
                return false;
            };
            if process.points.back().is_some_and(|last| last.reading.began != reading.began) {
                process.points.clear();
            }
            if process.points.len() >= KEPT {
                process.points.pop_front();
            }
            process.points.push_back(Point { at: now, reading });
            true
        });
    }

    /// What every process uses now.
    pub(super) fn now(&self) -> Vec<UsedNow> {
        let used = |(instance, process): (&String, &Process)| {
            let last = process.points.back()?;
            let second_ago = process.points.iter().rev().nth(HERTZ as usize);
            let earlier = second_ago.or(process.points.front())?;
            Some(UsedNow {
                block: process.block.clone(),
                instance: instance.clone(),
                process: process.number,
                cpu_seconds: cpu_seconds(last.reading.ticks),
                cpu: cores_busy(earlier, last),
                resident: last.reading.resident,
                shared: last.reading.shared,
            })
        };
        self.processes.iter().filter_map(used).collect()
    }

    /// The last minute of every process, as columns.
    pub(super) fn last_minute(&self, clock: Clock) -> Value {
        let columns = |(instance, process): (&String, &Process)| {
            // The first has none before it to be compared with.
            let points = || process.points.iter().skip(1);
            let cpu = process.points.iter().zip(points());
            json!({
                "block": process.block,
                "instance": instance,
                "pid": process.number,
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

fn cores_busy(earlier: &Point, later: &Point) -> f64 {
    let seconds = later.at.saturating_sub(earlier.at) as f64 / 1e9;
    let ticks = later.reading.ticks.saturating_sub(earlier.reading.ticks);
    if seconds > 0.0 { cpu_seconds(ticks) / seconds } else { 0.0 }
}

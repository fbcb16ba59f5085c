//! The metrics, by name.
//!
//! What Triton has a metric for goes by Triton's name and labels, so that dashboards made for it work
//! here. What only we have is `tessera_…`. The time of a request in a block is told as in BlockFlow's
//! equation 4.1: overhead + inference + waiting.

use super::counters::{BlockCounts, Counters, REASONS, VersionCounts};
use super::exposition::{Exposition, Kind};
use super::gpus;
use super::histogram::Histogram;
use super::sample::Sample;
use super::usage::UsedNow;

/// Everything there is to tell.
pub(super) struct Told<'a> {
    pub(super) counters: &'a Counters,
    pub(super) sample: &'a Sample,
    pub(super) used: &'a [UsedNow],
    /// Spans that no collector got; `None` where there are no traces.
    pub(super) lost_spans: Option<u64>,
}

type OfVersion = fn(&VersionCounts) -> f64;
type OfBlock = fn(&BlockCounts) -> &Histogram;
type OfProcess = fn(&UsedNow) -> f64;

const OF_VERSIONS: [(&str, &str, OfVersion); 8] = [
    ("nv_inference_request_success", "Requests that were answered", |counts| counts.success as f64),
    ("nv_inference_count", "Rows that were answered", |counts| counts.rows as f64),
    (
        "nv_inference_exec_count",
        "Runs of the task's first block; where a run was for several tasks, the task's share of it",
        |counts| counts.executions,
    ),
    (
        "nv_inference_request_duration_us",
        "Microseconds from acceptance to answer, in all",
        |counts| microseconds(counts.duration),
    ),
    (
        "nv_inference_queue_duration_us",
        "Microseconds that requests waited before blocks and between them, in all",
        |counts| microseconds(counts.waited),
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Microseconds for getting inputs ready; part of the output's here, so always 0",
        |_| 0.0,
    ),
    ("nv_inference_compute_infer_duration_us", "Microseconds of computing, in all", |counts| {
        microseconds(counts.computed)
    }),
    (
        "nv_inference_compute_output_duration_us",
        "Microseconds of what the rest took in blocks, in all",
        |counts| microseconds(counts.overhead),
    ),
];

const OF_BLOCKS: [(&str, &str, OfBlock); 4] = [
    (
        "tessera_block_waiting_seconds",
        "How long a request waited before a block: on its way, in the queue, and for a core",
        |counts| &counts.waiting,
    ),
    ("tessera_block_computing_seconds", "How long a request was computed in a block", |counts| {
        &counts.computing
    }),
    (
        "tessera_block_overhead_seconds",
        "What the rest took in a block: putting a batch together, deciding on an exit, sending on",
        |counts| &counts.overhead,
    ),
    (
        "tessera_block_batch_rows",
        "Rows of each run of a block; every request of a batch counts its share of the run",
        |counts| &counts.batch_rows,
    ),
];

const OF_PROCESSES: [(&str, Kind, &str, OfProcess); 5] = [
    (
        "tessera_process_cpu_seconds_total",
        Kind::Counter,
        "Processor time of a process since it began",
        |used| used.cpu_seconds,
    ),
    (
        "tessera_process_cpu_ratio",
        Kind::Gauge,
        "Cores that a process kept busy over the last second",
        |used| used.cpu,
    ),
    (
        "tessera_process_resident_bytes",
        Kind::Gauge,
        "Bytes of a process that are in memory",
        |used| used.resident as f64,
    ),
    (
        "tessera_process_resident_shared_bytes",
        Kind::Gauge,
        "Those of them that other processes may hold too: shared memory and files",
        |used| used.shared as f64,
    ),
    (
        "tessera_process_resident_private_bytes",
        Kind::Gauge,
        "Those of them that no other process holds",
        |used| used.private() as f64,
    ),
];

/// The metrics as text.
pub(super) fn render(told: &Told<'_>) -> String {
    let mut exposition = Exposition::default();
    tasks(&mut exposition, told.counters, told.sample);
    blocks(&mut exposition, told.counters, told.sample);
    processes(&mut exposition, told.used);
    gpus::write(&mut exposition, told.sample);
    let waiting = told.sample.waiting as f64;
    exposition
        .family("tessera_queue_length", Kind::Gauge, "Requests that wait at the dispatcher")
        .value(&[], waiting);
    let copied = told.sample.copied_bytes as f64;
    exposition
        .family("tessera_copied_bytes_total", Kind::Counter, "Bytes of tensors that were copied")
        .value(&[], copied);
    if let Some(lost) = told.lost_spans {
        exposition
            .family("tessera_spans_lost_total", Kind::Counter, "Spans that no collector got")
            .value(&[], lost as f64);
    }
    exposition.into_text()
}

fn tasks(exposition: &mut Exposition, counters: &Counters, sample: &Sample) {
    let versions = || {
        counters.tasks.iter().flat_map(|(task, counts)| {
            let of_task = counts.versions.iter();
            of_task.map(move |(version, counts)| (task.as_str(), version.as_str(), counts))
        })
    };
    for (name, help, of) in OF_VERSIONS {
        let mut family = exposition.family(name, Kind::Counter, help);
        for (task, version, counts) in versions() {
            family.value(&[("model", task), ("version", version)], of(counts));
        }
    }
    let mut family = exposition.family(
        "nv_inference_request_failure",
        Kind::Counter,
        "Requests that were not answered, by reason",
    );
    for (task, version, counts) in versions() {
        for reason in REASONS {
            let failures = counts.failures.get(reason).copied().unwrap_or(0);
            let labels = [("model", task), ("version", version), ("reason", reason)];
            family.value(&labels, failures as f64);
        }
    }
    let mut family = exposition.family(
        "nv_inference_pending_request_count",
        Kind::Gauge,
        "Requests that wait or are on their way",
    );
    for task in &sample.tasks {
        let labels = [("model", task.name.as_str()), ("version", task.version.as_str())];
        family.value(&labels, task.in_flight as f64);
    }
    let mut family = exposition.family("tessera_task_ready", Kind::Gauge, "1 where a task answers");
    for task in &sample.tasks {
        let labels = [("task", task.name.as_str()), ("version", task.version.as_str())];
        family.value(&labels, f64::from(u8::from(task.ready)));
    }
    let mut family = exposition.family(
        "tessera_request_duration_seconds",
        Kind::Histogram,
        "From acceptance to answer, of requests that were answered",
    );
    for (task, counts) in &counters.tasks {
        family.histogram(&[("task", task.as_str())], &counts.duration);
    }
    let mut family =
        exposition.family("tessera_exits_taken_total", Kind::Counter, "Rows that left at an exit");
    for (task, counts) in &counters.tasks {
        for (exit, &rows) in &counts.exits {
            family.value(&[("task", task.as_str()), ("exit", exit.as_str())], rows as f64);
        }
    }
    let mut family = exposition.family(
        "tessera_degraded_total",
        Kind::Counter,
        "Requests that were answered from an exit that was not certain enough",
    );
    for (task, counts) in &counters.tasks {
        family.value(&[("task", task.as_str())], counts.degraded as f64);
    }
    let mut family = exposition.family(
        "tessera_requests_retried_total",
        Kind::Counter,
        "Requests of which a part was sent again",
    );
    for (task, counts) in &counters.tasks {
        family.value(&[("task", task.as_str())], counts.retried as f64);
    }
}

fn blocks(exposition: &mut Exposition, counters: &Counters, sample: &Sample) {
    for (name, help, of) in OF_BLOCKS {
        let mut family = exposition.family(name, Kind::Histogram, help);
        for (block, counts) in &counters.blocks {
            family.histogram(&[("block", block.as_str())], of(counts));
        }
    }
    let mut family = exposition.family(
        "tessera_block_restarts_total",
        Kind::Counter,
        "How often instances of a block were started again",
    );
    for (block, counts) in &counters.blocks {
        family.value(&[("block", block.as_str())], counts.restarts() as f64);
    }
    let mut family = exposition.family(
        "tessera_block_in_flight",
        Kind::Gauge,
        "Requests on their way to an instance or through it",
    );
    for instance in &sample.instances {
        let labels = [("block", instance.block.as_str()), ("instance", instance.instance.as_str())];
        family.value(&labels, instance.in_flight as f64);
    }
    let mut family =
        exposition.family("tessera_block_up", Kind::Gauge, "1 where an instance takes requests");
    for instance in &sample.instances {
        let labels = [
            ("block", instance.block.as_str()),
            ("instance", instance.instance.as_str()),
            ("isolation", instance.isolation.as_str()),
        ];
        family.value(&labels, f64::from(u8::from(instance.up)));
    }
}

fn processes(exposition: &mut Exposition, used: &[UsedNow]) {
    for (name, kind, help, of) in OF_PROCESSES {
        let mut family = exposition.family(name, kind, help);
        for used in used {
            let process = used.process.to_string();
            let labels = [
                ("block", used.block.as_str()),
                ("instance", used.instance.as_str()),
                ("pid", process.as_str()),
            ];
            family.value(&labels, of(used));
        }
    }
}

fn microseconds(nanoseconds: u64) -> f64 {
    (nanoseconds / 1000) as f64
}

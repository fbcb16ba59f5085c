//! The metrics, by name.
//!
//! What Triton has a metric for goes by Triton's name and labels, so that dashboards made for it
//! work here. What only we have is `tessera_…`. The time of a request in a unit is told as in
//! BlockFlow's equation 4.1: overhead + inference + waiting.

use crate::counters::{FAILURE_REASONS, RequestCounters, UnitCounts, VersionCounts};
use crate::exposition::{Exposition, MetricKind};
use crate::histogram::Histogram;
use crate::sample::SystemSample;
use crate::usage::CurrentUsage;
use crate::{gpu_metrics, residency_metrics};

/// Everything there is to tell.
pub(crate) struct MetricsSnapshot<'a> {
    pub(crate) counters: &'a RequestCounters,
    pub(crate) sample: &'a SystemSample,
    pub(crate) used: &'a [CurrentUsage],
    /// Spans that no collector got; `None` where there are no traces.
    pub(crate) lost_spans: Option<u64>,
}

type VersionValue = fn(&VersionCounts) -> f64;
type UnitHistogram = fn(&UnitCounts) -> &Histogram;
type ProcessValue = fn(&CurrentUsage) -> f64;

const VERSION_METRICS: [(&str, &str, VersionValue); 8] = [
    ("nv_inference_request_success", "Requests that were answered", |counts| counts.success as f64),
    ("nv_inference_count", "Rows that were answered", |counts| counts.rows as f64),
    (
        "nv_inference_exec_count",
        "Runs of the task's first unit; where a run was for several tasks, the task's share of it",
        |counts| counts.executions,
    ),
    (
        "nv_inference_request_duration_us",
        "Microseconds from acceptance to answer, in all",
        |counts| to_microseconds(counts.duration),
    ),
    (
        "nv_inference_queue_duration_us",
        "Microseconds that requests waited before units and between them, in all",
        |counts| to_microseconds(counts.waited),
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Microseconds for getting inputs ready; part of the output's here, so always 0",
        |_| 0.0,
    ),
    ("nv_inference_compute_infer_duration_us", "Microseconds of computing, in all", |counts| {
        to_microseconds(counts.computed)
    }),
    (
        "nv_inference_compute_output_duration_us",
        "Microseconds of what the rest took in units, in all",
        |counts| to_microseconds(counts.overhead),
    ),
];

const UNIT_METRICS: [(&str, &str, UnitHistogram); 4] = [
    (
        "tessera_unit_waiting_seconds",
        "How long a request waited before a unit: on its way, in the queue, and for a core",
        |counts| &counts.waiting,
    ),
    ("tessera_unit_computing_seconds", "How long a request was computed in a unit", |counts| {
        &counts.computing
    }),
    (
        "tessera_unit_overhead_seconds",
        "What the rest took in a unit: putting a batch together, deciding on an exit, forwarding",
        |counts| &counts.overhead,
    ),
    (
        "tessera_unit_batch_rows",
        "Rows of each run of a unit; every request of a batch counts its share of the run",
        |counts| &counts.batch_rows,
    ),
];

const PROCESS_METRICS: [(&str, MetricKind, &str, ProcessValue); 5] = [
    (
        "tessera_process_cpu_seconds_total",
        MetricKind::Counter,
        "Processor time of a process since it began",
        |used| used.cpu_seconds,
    ),
    (
        "tessera_process_cpu_ratio",
        MetricKind::Gauge,
        "Cores that a process kept busy over the last second",
        |used| used.cpu,
    ),
    (
        "tessera_process_resident_bytes",
        MetricKind::Gauge,
        "Bytes of a process that are in memory",
        |used| used.resident as f64,
    ),
    (
        "tessera_process_resident_shared_bytes",
        MetricKind::Gauge,
        "Bytes of a process that others may hold, too: shared memory and files",
        |used| used.shared as f64,
    ),
    (
        "tessera_process_resident_private_bytes",
        MetricKind::Gauge,
        "Bytes of a process that no other holds",
        |used| used.private_bytes() as f64,
    ),
];

/// The metrics as text.
pub(crate) fn render_metrics(snapshot: &MetricsSnapshot<'_>) -> String {
    let mut exposition = Exposition::default();
    write_task_metrics(&mut exposition, snapshot.counters, snapshot.sample);
    write_unit_metrics(&mut exposition, snapshot.counters, snapshot.sample);
    write_process_metrics(&mut exposition, snapshot.used);
    gpu_metrics::write_gpu_metrics(&mut exposition, snapshot.sample);
    residency_metrics::write_residency_metrics(&mut exposition, snapshot.sample);
    let waiting = snapshot.sample.waiting as f64;
    exposition
        .begin_family(
            "tessera_queue_length",
            MetricKind::Gauge,
            "Requests that wait at the dispatcher",
        )
        .write_value(&[], waiting);
    let copied = snapshot.sample.copied_bytes as f64;
    exposition
        .begin_family(
            "tessera_copied_bytes_total",
            MetricKind::Counter,
            "Bytes of tensors that were copied",
        )
        .write_value(&[], copied);
    if let Some(lost) = snapshot.lost_spans {
        exposition
            .begin_family(
                "tessera_spans_lost_total",
                MetricKind::Counter,
                "Spans that no collector got",
            )
            .write_value(&[], lost as f64);
    }
    exposition.into_text()
}

fn write_task_metrics(
    exposition: &mut Exposition,
    counters: &RequestCounters,
    sample: &SystemSample,
) {
    let versions = || {
        counters.tasks.iter().flat_map(|(task, counts)| {
            let of_task = counts.versions.iter();
            of_task.map(move |(version, counts)| (task.as_str(), version.as_str(), counts))
        })
    };
    for (name, help, of) in VERSION_METRICS {
        let mut family = exposition.begin_family(name, MetricKind::Counter, help);
        for (task, version, counts) in versions() {
            family.write_value(&[("model", task), ("version", version)], of(counts));
        }
    }
    let mut family = exposition.begin_family(
        "nv_inference_request_failure",
        MetricKind::Counter,
        "Requests that were not answered, by reason",
    );
    for (task, version, counts) in versions() {
        for reason in FAILURE_REASONS {
            let failures = counts.failures.get(reason).copied().unwrap_or(0);
            let labels = [("model", task), ("version", version), ("reason", reason)];
            family.write_value(&labels, failures as f64);
        }
    }
    let mut family = exposition.begin_family(
        "nv_inference_pending_request_count",
        MetricKind::Gauge,
        "Requests that wait or are on their way",
    );
    for task in &sample.tasks {
        let labels = [("model", task.name.as_str()), ("version", task.version.as_str())];
        family.write_value(&labels, task.in_flight as f64);
    }
    let mut family =
        exposition.begin_family("tessera_task_ready", MetricKind::Gauge, "1 where a task answers");
    for task in &sample.tasks {
        let labels = [("task", task.name.as_str()), ("version", task.version.as_str())];
        family.write_value(&labels, f64::from(u8::from(task.ready)));
    }
    let mut family = exposition.begin_family(
        "tessera_request_duration_seconds",
        MetricKind::Histogram,
        "From acceptance to answer, of requests that were answered",
    );
    for (task, counts) in &counters.tasks {
        family.write_histogram(&[("task", task.as_str())], &counts.duration);
    }
    let mut family = exposition.begin_family(
        "tessera_exits_taken_total",
        MetricKind::Counter,
        "Rows that left at an exit",
    );
    for (task, counts) in &counters.tasks {
        for (exit, &rows) in &counts.exits {
            family.write_value(&[("task", task.as_str()), ("exit", exit.as_str())], rows as f64);
        }
    }
    let mut family = exposition.begin_family(
        "tessera_degraded_total",
        MetricKind::Counter,
        "Requests that were answered from an exit that was not certain enough",
    );
    for (task, counts) in &counters.tasks {
        family.write_value(&[("task", task.as_str())], counts.degraded as f64);
    }
    let mut family = exposition.begin_family(
        "tessera_requests_retried_total",
        MetricKind::Counter,
        "Requests of which a part was sent again",
    );
    for (task, counts) in &counters.tasks {
        family.write_value(&[("task", task.as_str())], counts.retried as f64);
    }
}

fn write_unit_metrics(
    exposition: &mut Exposition,
    counters: &RequestCounters,
    sample: &SystemSample,
) {
    for (name, help, of) in UNIT_METRICS {
        let mut family = exposition.begin_family(name, MetricKind::Histogram, help);
        for (unit, counts) in &counters.units {
            family.write_histogram(&[("unit", unit.as_str())], of(counts));
        }
    }
    let mut family = exposition.begin_family(
        "tessera_unit_restarts_total",
        MetricKind::Counter,
        "How often instances of a unit were started again",
    );
    for (unit, counts) in &counters.units {
        family.write_value(&[("unit", unit.as_str())], counts.restarts() as f64);
    }
    let mut family = exposition.begin_family(
        "tessera_unit_in_flight",
        MetricKind::Gauge,
        "Requests on their way to an instance or through it",
    );
    for instance in &sample.instances {
        let labels = [("unit", instance.unit.as_str()), ("instance", instance.instance.as_str())];
        family.write_value(&labels, instance.in_flight as f64);
    }
    let mut family = exposition.begin_family(
        "tessera_unit_up",
        MetricKind::Gauge,
        "1 where an instance takes requests",
    );
    for instance in &sample.instances {
        let labels = [
            ("unit", instance.unit.as_str()),
            ("instance", instance.instance.as_str()),
            ("isolation", instance.isolation.as_str()),
        ];
        family.write_value(&labels, f64::from(u8::from(instance.up)));
    }
}

fn write_process_metrics(exposition: &mut Exposition, used: &[CurrentUsage]) {
    for (name, kind, help, of) in PROCESS_METRICS {
        let mut family = exposition.begin_family(name, kind, help);
        for used in used {
            let pid = used.pid.to_string();
            let labels = [
                ("unit", used.unit.as_str()),
                ("instance", used.instance.as_str()),
                ("pid", pid.as_str()),
            ];
            family.write_value(&labels, of(used));
        }
    }
}

fn to_microseconds(nanoseconds: u64) -> f64 {
    (nanoseconds / 1000) as f64
}

//! The metrics of GPUs.

use std::collections::BTreeMap;

use crate::exposition::{Exposition, MetricKind};
use crate::sample::{GpuSample, InstanceGpuSample, InstanceSample, SystemSample};
use crate::usage::SERVER_LABEL;

type GpuValue = fn(&GpuSample) -> Option<f64>;

/// What a GPU tells, under Triton's names where there are some.
const GPU_METRICS: [(&str, MetricKind, &str, GpuValue); 7] = [
    ("nv_gpu_utilization", MetricKind::Gauge, "Share of the time that a GPU was busy", |gpu| {
        gpu.utilisation
    }),
    ("nv_gpu_memory_total_bytes", MetricKind::Gauge, "Memory of a GPU", |gpu| {
        gpu.memory_bytes.map(|bytes| bytes as f64)
    }),
    (
        "nv_gpu_memory_used_bytes",
        MetricKind::Gauge,
        "Memory of a GPU that is in use, by all",
        |gpu| gpu.used_bytes.map(|bytes| bytes as f64),
    ),
    ("nv_gpu_power_usage", MetricKind::Gauge, "Watts that a GPU draws", |gpu| gpu.watts),
    (
        "nv_energy_consumption",
        MetricKind::Counter,
        "Joules that a GPU has drawn since its driver was loaded",
        |gpu| gpu.joules,
    ),
    ("tessera_gpu_clock_hertz", MetricKind::Gauge, "Clock of a GPU's multiprocessors", |gpu| {
        gpu.clock_mhz.map(|clock| f64::from(clock) * 1e6)
    }),
    ("tessera_gpu_temperature_celsius", MetricKind::Gauge, "Temperature of a GPU", |gpu| {
        gpu.celsius.map(f64::from)
    }),
];

/// Everything there is to tell of GPUs.
pub(crate) fn write_gpu_metrics(exposition: &mut Exposition, sample: &SystemSample) {
    write_gpu_readings(exposition, &sample.gpus);
    write_process_memory(exposition, sample);
    write_unit_gpu_metrics(exposition, &sample.instances);
}

type UnitGpuValue = fn(&InstanceGpuSample) -> f64;

/// What a unit did on its GPU, and has there.
const UNIT_GPU_METRICS: [(&str, MetricKind, &str, UnitGpuValue); 5] = [
    (
        "tessera_unit_gpu_seconds_total",
        MetricKind::Counter,
        "Seconds that a GPU worked for a unit",
        |gpu| gpu.seconds,
    ),
    ("tessera_unit_gpu_runs_total", MetricKind::Counter, "Runs of a unit on a GPU", |gpu| {
        gpu.runs as f64
    }),
    (
        "tessera_unit_gpu_replayed_runs_total",
        MetricKind::Counter,
        "Runs of a unit on a GPU that were replayed from a CUDA graph",
        |gpu| gpu.replayed_runs as f64,
    ),
    (
        "tessera_unit_gpu_weight_bytes",
        MetricKind::Gauge,
        "Weights of a unit that runs on a GPU, whether or not they are there now",
        |gpu| gpu.weight_bytes as f64,
    ),
    (
        "tessera_unit_gpu_pool_bytes",
        MetricKind::Gauge,
        "Buffers in the memory of a GPU that a unit hands over to other processes",
        |gpu| gpu.pool_bytes as f64,
    ),
];

fn write_unit_gpu_metrics(exposition: &mut Exposition, instances: &[InstanceSample]) {
    let known = || instances.iter().filter_map(|instance| Some((instance, instance.gpu.as_ref()?)));
    if known().next().is_none() {
        return;
    }
    for (name, kind, help, of) in UNIT_GPU_METRICS {
        let mut family = exposition.begin_family(name, kind, help);
        for (instance, gpu) in known() {
            let labels = [
                ("unit", instance.unit.as_str()),
                ("instance", instance.instance.as_str()),
                ("device", gpu.device.as_str()),
            ];
            family.write_value(&labels, of(gpu));
        }
    }
    let copied = || known().filter_map(|(instance, gpu)| Some((instance, gpu, gpu.copies?)));
    if copied().next().is_none() {
        return;
    }
    let help = "Copies of a unit's process between host and GPU, and on the GPU";
    let mut family =
        exposition.begin_family("tessera_unit_gpu_copies_total", MetricKind::Counter, help);
    for (instance, gpu, copies) in copied() {
        for (direction, count) in ["to_gpu", "to_host", "on_gpu"].into_iter().zip(copies) {
            let labels = [
                ("unit", instance.unit.as_str()),
                ("instance", instance.instance.as_str()),
                ("device", gpu.device.as_str()),
                ("direction", direction),
            ];
            family.write_value(&labels, count as f64);
        }
    }
}

fn write_gpu_readings(exposition: &mut Exposition, gpus: &[GpuSample]) {
    for (name, kind, help, of) in GPU_METRICS {
        let known = || gpus.iter().filter_map(|gpu| Some((gpu, of(gpu)?)));
        // Without a GPU there is nothing to say of them.
        if known().next().is_none() {
            continue;
        }
        let mut family = exposition.begin_family(name, kind, help);
        for (gpu, value) in known() {
            family.write_value(
                &[("gpu_uuid", gpu.uuid.as_str()), ("device", gpu.device.as_str())],
                value,
            );
        }
    }
}

/// Memory by process, of our own ones: what others use is not ours to tell.
fn write_process_memory(exposition: &mut Exposition, sample: &SystemSample) {
    let ours = own_processes(sample);
    // In a container, processes may be missing or go by other numbers. Nothing is told of them
    // then: a zero would be wrong.
    let known = || {
        sample.gpus.iter().flat_map(|gpu| {
            let used =
                |(&pid, name)| Some((gpu.device.as_str(), pid, name, process_memory(gpu, pid)?));
            ours.iter().filter_map(used)
        })
    };
    if known().next().is_none() {
        return;
    }
    let mut family = exposition.begin_family(
        "tessera_gpu_process_memory_bytes",
        MetricKind::Gauge,
        "Memory of a GPU that the server or a unit's process uses",
    );
    for (device, pid, process, bytes) in known() {
        let pid = pid.to_string();
        let labels = [("device", device), ("pid", pid.as_str()), ("process", process)];
        family.write_value(&labels, bytes as f64);
    }
}

/// The server and the processes of units, by number.
fn own_processes(sample: &SystemSample) -> BTreeMap<u32, String> {
    let units = sample.instances.iter().filter_map(|instance| {
        let pid = instance.pid?;
        Some((pid, format!("unit {}", instance.unit)))
    });
    // Last, so that our own process goes by this name whatever runs in it.
    units.chain([(std::process::id(), SERVER_LABEL.to_owned())]).collect()
}

/// What a process uses of a GPU. It is listed once for each part of a GPU that was divided.
fn process_memory(gpu: &GpuSample, pid: u32) -> Option<u64> {
    let listed = gpu.processes.iter().filter(|process| process.pid == pid);
    listed.filter_map(|process| process.bytes).reduce(u64::saturating_add)
}

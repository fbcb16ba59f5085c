//! The metrics of GPUs.

use std::collections::BTreeMap;

use super::exposition::{Exposition, Kind};
use super::sample::{GpuSample, InstanceGpu, InstanceSample, Sample};
use super::usage::SERVER;

type OfGpu = fn(&GpuSample) -> Option<f64>;

/// What a GPU tells, under Triton's names where there are some.
const OF_GPUS: [(&str, Kind, &str, OfGpu); 7] = [
    ("nv_gpu_utilization", Kind::Gauge, "Share of the time that a GPU was busy", |gpu| {
        gpu.utilisation
    }),
    ("nv_gpu_memory_total_bytes", Kind::Gauge, "Memory of a GPU", |gpu| {
        gpu.memory_bytes.map(|bytes| bytes as f64)
    }),
    ("nv_gpu_memory_used_bytes", Kind::Gauge, "Memory of a GPU that is in use, by all", |gpu| {
        gpu.used_bytes.map(|bytes| bytes as f64)
    }),
    ("nv_gpu_power_usage", Kind::Gauge, "Watts that a GPU draws", |gpu| gpu.watts),
    (
        "nv_energy_consumption",
        Kind::Counter,
        "Joules that a GPU has drawn since its driver was loaded",
        |gpu| gpu.joules,
    ),
    ("tessera_gpu_clock_hertz", Kind::Gauge, "Clock of a GPU's multiprocessors", |gpu| {
        gpu.clock_mhz.map(|clock| f64::from(clock) * 1e6)
    }),
    ("tessera_gpu_temperature_celsius", Kind::Gauge, "Temperature of a GPU", |gpu| {
        gpu.celsius.map(f64::from)
    }),
];

/// Everything there is to tell of GPUs.
pub(super) fn write(exposition: &mut Exposition, sample: &Sample) {
    readings(exposition, &sample.gpus);
    processes(exposition, sample);
    blocks(exposition, &sample.instances);
}

type OfBlock = fn(&InstanceGpu) -> f64;

/// What a block did on its GPU, and has there.
const OF_BLOCKS: [(&str, Kind, &str, OfBlock); 5] = [
    (
        "tessera_block_gpu_seconds_total",
        Kind::Counter,
        "Seconds that a GPU worked for a block",
        |gpu| gpu.seconds,
    ),
    ("tessera_block_gpu_runs_total", Kind::Counter, "Runs of a block on a GPU", |gpu| {
        gpu.runs as f64
    }),
    (
        "tessera_block_gpu_played_runs_total",
        Kind::Counter,
        "Runs of a block on a GPU that were played from a recording",
        |gpu| gpu.played as f64,
    ),
    (
        "tessera_block_gpu_weight_bytes",
        Kind::Gauge,
        "Weights of a block in the memory of a GPU",
        |gpu| gpu.weight_bytes as f64,
    ),
    (
        "tessera_block_gpu_pool_bytes",
        Kind::Gauge,
        "Buffers in the memory of a GPU that a block hands over to other processes",
        |gpu| gpu.pool_bytes as f64,
    ),
];

fn blocks(exposition: &mut Exposition, instances: &[InstanceSample]) {
    let known = || instances.iter().filter_map(|instance| Some((instance, instance.gpu.as_ref()?)));
    if known().next().is_none() {
        return;
    }
    for (name, kind, help, of) in OF_BLOCKS {
        let mut family = exposition.family(name, kind, help);
        for (instance, gpu) in known() {
            let labels = [
                ("block", instance.block.as_str()),
                ("instance", instance.instance.as_str()),
                ("device", gpu.device.as_str()),
            ];
            family.value(&labels, of(gpu));
        }
    }
    let copied = || known().filter_map(|(instance, gpu)| Some((instance, gpu, gpu.copies?)));
    if copied().next().is_none() {
        return;
    }
    let help = "Copies of a block's process between host and GPU, and on the GPU";
    let mut family = exposition.family("tessera_block_gpu_copies_total", Kind::Counter, help);
    for (instance, gpu, copies) in copied() {
        for (direction, count) in ["to_gpu", "to_host", "on_gpu"].into_iter().zip(copies) {
            let labels = [
                ("block", instance.block.as_str()),
                ("instance", instance.instance.as_str()),
                ("device", gpu.device.as_str()),
                ("direction", direction),
            ];
            family.value(&labels, count as f64);
        }
    }
}

fn readings(exposition: &mut Exposition, gpus: &[GpuSample]) {
    for (name, kind, help, of) in OF_GPUS {
        let known = || gpus.iter().filter_map(|gpu| Some((gpu, of(gpu)?)));
        // Without a GPU there is nothing to say of them.
        if known().next().is_none() {
            continue;
        }
        let mut family = exposition.family(name, kind, help);
        for (gpu, value) in known() {
            family
                .value(&[("gpu_uuid", gpu.uuid.as_str()), ("device", gpu.device.as_str())], value);
        }
    }
}

/// Memory by process, of our own ones: what others use is not ours to tell.
fn processes(exposition: &mut Exposition, sample: &Sample) {
    let ours = ours(sample);
    // In a container, processes may be missing or go by other numbers. Nothing is told of them then: a zero
    // would be wrong.
    let known = || {
        sample.gpus.iter().flat_map(|gpu| {
            let used = |(&pid, name)| Some((gpu.device.as_str(), pid, name, used(gpu, pid)?));
            ours.iter().filter_map(used)
        })
    };
    if known().next().is_none() {
        return;
    }
    let mut family = exposition.family(
        "tessera_gpu_process_memory_bytes",
        Kind::Gauge,
        "Memory of a GPU that the server or a block's process uses",
    );
    for (device, pid, process, bytes) in known() {
        let pid = pid.to_string();
        let labels = [("device", device), ("pid", pid.as_str()), ("process", process)];
        family.value(&labels, bytes as f64);
    }
}

/// The server and the processes of blocks, by number.
fn ours(sample: &Sample) -> BTreeMap<u32, String> {
    let blocks = sample.instances.iter().filter_map(|instance| {
        let pid = instance.process?;
        Some((pid, format!("block {}", instance.block)))
    });
    // Last, so that our own process goes by this name whatever runs in it.
    blocks.chain([(std::process::id(), SERVER.to_owned())]).collect()
}

/// What a process uses of a GPU. It is listed once for each part of a GPU that was divided.
fn used(gpu: &GpuSample, pid: u32) -> Option<u64> {
    let listed = gpu.processes.iter().filter(|process| process.pid == pid);
    listed.filter_map(|process| process.bytes).reduce(u64::saturating_add)
}

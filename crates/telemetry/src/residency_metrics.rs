//! The metrics of weights that come and go.

use crate::exposition::{Exposition, MetricKind};
use crate::sample::{InstanceWeightSample, SystemSample};

type WeightValue = fn(&InstanceWeightSample) -> f64;

/// How often the weights of an instance came and went.
const WEIGHT_METRICS: [(&str, &str, WeightValue); 5] = [
    (
        "tessera_unit_weight_uses_total",
        "How often the weights of an instance were used, or were to be",
        |weights| weights.uses as f64,
    ),
    (
        "tessera_unit_weight_loads_total",
        "How often the weights of an instance were loaded",
        |weights| weights.loads as f64,
    ),
    (
        "tessera_unit_weight_evictions_total",
        "How often the weights of an instance left memory because others needed the room",
        |weights| weights.evictions as f64,
    ),
    ("tessera_unit_weight_loaded_bytes_total", "Bytes of weights that were loaded", |weights| {
        weights.loaded_bytes as f64
    }),
    ("tessera_unit_weight_load_seconds_total", "Seconds that loading weights took", |weights| {
        weights.load_seconds
    }),
];

/// Everything there is to tell of weights where memory for them is bounded.
pub(crate) fn write_residency_metrics(exposition: &mut Exposition, sample: &SystemSample) {
    if sample.weight_memory.is_empty() {
        return;
    }
    let mut family = exposition.begin_family(
        "tessera_weight_memory_budget_bytes",
        MetricKind::Gauge,
        "Memory that the weights of units may take",
    );
    for memory in &sample.weight_memory {
        family.write_value(&[("device", memory.device.as_str())], memory.budget_bytes as f64);
    }
    let mut family = exposition.begin_family(
        "tessera_weight_memory_used_bytes",
        MetricKind::Gauge,
        "Memory that the weights of units take",
    );
    for memory in &sample.weight_memory {
        family.write_value(&[("device", memory.device.as_str())], memory.used_bytes as f64);
    }
    let of_instances = || {
        let all = sample.instances.iter();
        all.filter_map(|it| Some((it.unit.as_str(), it.instance.as_str(), it.weights.as_ref()?)))
    };
    let mut family = exposition.begin_family(
        "tessera_unit_residency",
        MetricKind::Gauge,
        "1 for the place where the weights of an instance are",
    );
    for (unit, instance, weights) in of_instances() {
        let labels = [("unit", unit), ("instance", instance), ("residency", weights.place)];
        family.write_value(&labels, 1.0);
    }
    for (name, help, of) in WEIGHT_METRICS {
        let mut family = exposition.begin_family(name, MetricKind::Counter, help);
        for (unit, instance, weights) in of_instances() {
            family.write_value(&[("unit", unit), ("instance", instance)], of(weights));
        }
    }
}

//! What a metrics page says of GPUs, under the names that Triton gave them.

use std::collections::BTreeMap;

use crate::prometheus;

/// GPUs by what tells them from all others.
pub(crate) type GpuMetricsByUuid = BTreeMap<String, GpuMetrics>;

/// What a page says of a GPU. What it doesn't say is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GpuMetrics {
    /// Its number, as in `cuda:0`; Tessera tells it, Triton doesn't.
    pub(crate) device: Option<String>,
    /// What it has drawn since some time in the past.
    pub(crate) joules: Option<f64>,
    /// What it draws.
    pub(crate) watts: Option<f64>,
    /// Share of the time that something ran on it, lately.
    pub(crate) utilisation: Option<f64>,
    /// Memory in use, by all.
    pub(crate) used_bytes: Option<f64>,
}

/// The GPUs of a page.
pub(crate) fn read_gpu_metrics(page: &str) -> GpuMetricsByUuid {
    let mut gpus = GpuMetricsByUuid::new();
    for sample in prometheus::parse_samples(page) {
        let Some(uuid) = sample.label_value("gpu_uuid") else { continue };
        let field: fn(&mut GpuMetrics) -> &mut Option<f64> = match sample.name.as_str() {
            "nv_energy_consumption" => |gpu| &mut gpu.joules,
            "nv_gpu_power_usage" => |gpu| &mut gpu.watts,
            "nv_gpu_utilization" => |gpu| &mut gpu.utilisation,
            "nv_gpu_memory_used_bytes" => |gpu| &mut gpu.used_bytes,
            _ => continue,
        };
        let gpu = gpus.entry(uuid.to_owned()).or_default();
        gpu.device = gpu.device.take().or_else(|| sample.label_value("device").map(str::to_owned));
        // None of them can be below zero, or without end.
        *field(gpu) = Some(sample.value).filter(|value| value.is_finite() && *value >= 0.0);
    }
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_told_apart_and_the_rest_of_the_page_is_passed_over() {
        let gpus = read_gpu_metrics(
            "# TYPE nv_energy_consumption counter\n\
             nv_energy_consumption{gpu_uuid=\"GPU-1\",device=\"cuda:0\"} 1.5e6\n\
             nv_energy_consumption{gpu_uuid=\"GPU-2\"} 7\n\
             nv_gpu_power_usage{gpu_uuid=\"GPU-1\",device=\"cuda:0\"} 300.5\n\
             nv_gpu_utilization{gpu_uuid=\"GPU-1\",device=\"cuda:0\"} NaN\n\
             nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-2\"} -1\n\
             nv_energy_consumption 9\n\
             nv_inference_count{model=\"m\",version=\"1\"} 3\n\
             nv_gpu_memory_total_bytes{gpu_uuid=\"GPU-3\"} 3\n",
        );
        let first = GpuMetrics {
            device: Some("cuda:0".to_owned()),
            joules: Some(1.5e6),
            watts: Some(300.5),
            ..GpuMetrics::default()
        };
        let second = GpuMetrics { joules: Some(7.0), ..GpuMetrics::default() };
        assert_eq!(gpus, [("GPU-1".to_owned(), first), ("GPU-2".to_owned(), second)].into());
    }
}

//! What NVML tells of the GPU while something runs: memory and energy. Without a GPU, nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tessera_core::{Device, Result};
use tessera_cuda::{NvmlMonitor, pci_bus_id};
use tessera_report::output;

/// How often memory is looked at.
const MEMORY_INTERVAL: Duration = Duration::from_millis(50);
/// How often energy is looked at: more often than its counter changes.
const ENERGY_INTERVAL: Duration = Duration::from_millis(10);
/// How long memory must stay the same to count as stable, and how long that is waited for.
const STABLE_FOR: Duration = Duration::from_millis(300);
const STABLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads one GPU.
pub(crate) struct GpuMeter {
    gpu: Option<(NvmlMonitor, String)>,
}

/// Video memory in use over some time, by all.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct VideoMemoryUsage {
    pub(crate) mean_bytes: f64,
    pub(crate) most_bytes: f64,
}

/// What a GPU drew over some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EnergyReading {
    pub(crate) joules: f64,
    pub(crate) watts: f64,
}

/// Tells a thread to stop, whatever happens here.
struct StopAtEnd<'a>(&'a AtomicBool, std::thread::Thread);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.unpark();
    }
}

impl GpuMeter {
    /// Reads this device, which must be there; says so where it can't be read.
    pub(crate) fn open(device: Device) -> Result<Self> {
        let Device::Cuda(number) = device else { return Ok(Self { gpu: None }) };
        let place = pci_bus_id(number).map_err(|error| error.with_context(device))?;
        match NvmlMonitor::open() {
            Ok(monitor) => Ok(Self { gpu: Some((monitor, place)) }),
            Err(error) => {
                output::print_notice(&format!("no figures of memory and energy: {error}"));
                Ok(Self { gpu: None })
            }
        }
    }

    /// Version of the driver.
    pub(crate) fn driver(&self) -> Option<String> {
        self.gpu.as_ref()?.0.driver_version()
    }

    /// Memory in use by all.
    pub(crate) fn used_bytes(&self) -> Option<u64> {
        let (monitor, place) = self.gpu.as_ref()?;
        monitor.used_bytes(place)
    }

    fn joules(&self) -> Option<f64> {
        let (monitor, place) = self.gpu.as_ref()?;
        monitor.energy_joules(place)
    }

    /// Memory in use by all, once it does not change any more: processes that ended give theirs
    /// back a moment later.
    pub(crate) fn stable_used_bytes(&self) -> Option<u64> {
        let mut last = self.used_bytes()?;
        let (begun, mut since) = (Instant::now(), Instant::now());
        while since.elapsed() < STABLE_FOR && begun.elapsed() < STABLE_TIMEOUT {
            std::thread::sleep(STABLE_FOR / 6);
            let now = self.used_bytes()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Some(last)
    }

    /// Does this, and tells what memory was in use meanwhile.
    pub(crate) fn watch_memory<T>(
        &self,
        work: impl FnOnce() -> T,
    ) -> (T, Option<VideoMemoryUsage>) {
        let used = |meter: &Self| meter.used_bytes().map(|bytes| bytes as f64);
        let (done, samples) = self.sample_while(MEMORY_INTERVAL, used, work);
        let bytes = || samples.iter().map(|sample| sample.1);
        let usage = (!samples.is_empty()).then(|| VideoMemoryUsage {
            mean_bytes: bytes().sum::<f64>() / samples.len() as f64,
            most_bytes: bytes().fold(0.0, f64::max),
        });
        (done, usage)
    }

    /// Does this, and tells what the GPU drew meanwhile.
    pub(crate) fn watch_energy<T>(&self, work: impl FnOnce() -> T) -> (T, Option<EnergyReading>) {
        let start = Instant::now();
        let (done, samples) = self.sample_while(ENERGY_INTERVAL, Self::joules, work);
        (done, energy_of_samples(&samples, start.elapsed()))
    }

    /// Does this, while a thread reads something again and again.
    fn sample_while<T>(
        &self,
        every: Duration,
        read: impl Fn(&Self) -> Option<f64> + Send,
        work: impl FnOnce() -> T,
    ) -> (T, Vec<(Instant, f64)>) {
        if self.gpu.is_none() {
            return (work(), Vec::new());
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            let reader = scope.spawn(move || {
                let mut samples = Vec::new();
                loop {
                    let is_last = stop.load(Ordering::Relaxed);
                    samples.extend(read(self).map(|value| (Instant::now(), value)));
                    if is_last {
                        return samples;
                    }
                    std::thread::park_timeout(every);
                }
            });
            let at_end = StopAtEnd(stop, reader.thread().clone());
            let done = work();
            drop(at_end);
            (done, reader.join().unwrap_or_default())
        })
    }
}

/// What was drawn in this time, from readings of the counter. It changes 10 to 50 times a second,
/// so the power is taken between two of its changes.
fn energy_of_samples(samples: &[(Instant, f64)], took: Duration) -> Option<EnergyReading> {
    let changes: Vec<&(Instant, f64)> =
        samples.windows(2).filter(|pair| pair[0].1 != pair[1].1).map(|pair| &pair[1]).collect();
    let between = |first: &(Instant, f64), last: &(Instant, f64)| {
        let seconds = last.0.duration_since(first.0).as_secs_f64();
        (seconds > 0.0).then(|| (last.1 - first.1) / seconds)
    };
    let watts = match (changes.first(), changes.last()) {
        (Some(first), Some(last)) if first.0 < last.0 => between(first, last),
        _ => between(samples.first()?, samples.last()?),
    }?;
    Some(EnergyReading { joules: watts * took.as_secs_f64(), watts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_is_taken_between_changes_of_the_counter() {
        let start = Instant::now();
        // 300 W; the counter changes every 100 ms and is read every 10 ms, from the middle on.
        let sample = |number: u64| {
            let at = 50 + number * 10;
            (start + Duration::from_millis(at), (at / 100 * 30) as f64)
        };
        let samples: Vec<_> = (0..80).map(sample).collect();
        let found = energy_of_samples(&samples, Duration::from_millis(800)).unwrap();
        assert!((found.watts - 300.0).abs() < 1.0, "{found:?}");
        assert!((found.joules - 240.0).abs() < 1.0, "{found:?}");
    }

    #[test]
    fn a_counter_that_stands_still_is_no_power_and_none_is_none() {
        let start = Instant::now();
        let still = [(start, 5.0), (start + Duration::from_millis(10), 5.0)];
        assert_eq!(
            energy_of_samples(&still, Duration::from_millis(10)).map(|found| found.watts),
            Some(0.0)
        );
        assert_eq!(energy_of_samples(&[], Duration::from_millis(10)), None);
        let without = GpuMeter::open(Device::Cpu).unwrap();
        assert_eq!(without.watch_memory(|| 7), (7, None));
        assert_eq!(without.stable_used_bytes(), None);
    }
}

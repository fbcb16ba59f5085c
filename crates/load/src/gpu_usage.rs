//! What GPUs drew and did in the measured time.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use crate::gpu_metrics::GpuMetrics;
use crate::metrics_page::MetricsScrape;
use crate::metrics_scraper::ScrapedMetrics;

/// What a GPU of the server drew and did in the measured time. What is unknown is missing.
///
/// It is all that the GPU did, for whomever: idle, it draws power too.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuUsageSummary {
    /// What tells it from all others.
    pub uuid: String,
    /// Its number, as in `cuda:0`, where the server tells.
    pub device: Option<String>,
    /// Energy that it drew.
    pub joules: Option<f64>,
    /// What it drew on average: by its counter of energy, or else the mean of its readings.
    pub mean_watts: Option<f64>,
    /// Energy for each answer that was OK.
    pub joules_per_answer: Option<f64>,
    /// Rows of each answer, where a batch was asked for.
    pub rows_per_answer: Option<usize>,
    /// Energy for each row, where a batch was asked for.
    pub joules_per_row: Option<f64>,
    /// Share of the time that something ran on it, the mean of its readings.
    pub mean_utilisation: Option<f64>,
    /// The most memory that was in use on it, by all.
    pub highest_memory_bytes: Option<u64>,
    /// Why the energy is unknown.
    pub note: Option<String>,
}

/// What came of it, which energy is to be shared out among.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredWork {
    /// The measured time.
    pub(crate) duration: Duration,
    /// Answers that were OK and came within it.
    pub(crate) answers: u64,
    /// Rows of each.
    pub(crate) rows: Option<usize>,
}

/// The GPUs that the page has metrics of; where it has none, why.
pub(crate) fn sum_up_gpus(
    scraped: &ScrapedMetrics,
    work: MeasuredWork,
) -> (Vec<GpuUsageSummary>, Option<String>) {
    let uuids: BTreeSet<&String> = all_scrapes(scraped).flat_map(|one| one.gpus.keys()).collect();
    if uuids.is_empty() {
        let url = &scraped.url;
        let reason = match (&scraped.first, &scraped.last) {
            (Err(reason), Err(_)) => format!("unknown: {reason}"),
            _ => format!("unknown: {url} has no metrics of GPUs"),
        };
        return (Vec::new(), Some(reason));
    }
    (uuids.into_iter().map(|uuid| usage_of_gpu(scraped, uuid, work)).collect(), None)
}

fn all_scrapes(scraped: &ScrapedMetrics) -> impl DoubleEndedIterator<Item = &MetricsScrape> {
    scraped.first.iter().chain(&scraped.between).chain(&scraped.last)
}

fn usage_of_gpu(scraped: &ScrapedMetrics, uuid: &str, work: MeasuredWork) -> GpuUsageSummary {
    let metrics = || all_scrapes(scraped).filter_map(|scrape| scrape.gpus.get(uuid));
    let values =
        |of: fn(&GpuMetrics) -> Option<f64>| metrics().filter_map(of).collect::<Vec<f64>>();
    let (counted, note) = match mean_watts(scraped, uuid) {
        Ok(watts) => (Some(watts), None),
        Err(reason) => (None, Some(reason)),
    };
    let joules = counted.map(|watts| watts * work.duration.as_secs_f64());
    let joules_per_answer =
        joules.filter(|_| work.answers > 0).map(|joules| joules / work.answers as f64);
    let memory = values(|gpu| gpu.used_bytes).into_iter().reduce(f64::max);
    GpuUsageSummary {
        uuid: uuid.to_owned(),
        device: metrics().find_map(|gpu| gpu.device.clone()),
        joules,
        mean_watts: counted.or_else(|| mean_of_readings(&values(|gpu| gpu.watts))),
        joules_per_answer,
        rows_per_answer: work.rows,
        joules_per_row: joules_per_answer
            .zip(work.rows.filter(|&rows| rows > 0))
            .map(|(joules, rows)| joules / rows as f64),
        mean_utilisation: mean_of_readings(&values(|gpu| gpu.utilisation)),
        highest_memory_bytes: memory.map(|bytes| bytes as u64),
        note,
    }
}

/// What a GPU drew on average between the first scrape and the last, or why that is unknown.
///
/// Scrapes take a moment, so that they are not exactly at the start and at the end; the mean power
/// is that of the measured time all the same.
fn mean_watts(scraped: &ScrapedMetrics, uuid: &str) -> Result<f64, String> {
    let no_counter = || "the server tells no energy of it".to_owned();
    let counter = |scrape: &MetricsScrape| scrape.gpus.get(uuid).and_then(|gpu| gpu.joules);
    let (first, last) = match (&scraped.first, &scraped.last) {
        (Ok(first), Ok(last)) => (first, last),
        (Err(reason), _) => return Err(format!("no reading at the start: {reason}")),
        (_, Err(reason)) => return Err(format!("no reading at the end: {reason}")),
    };
    let before = counter(first).ok_or_else(no_counter)?;
    let after = counter(last).ok_or_else(no_counter)?;
    let counters: Vec<f64> = all_scrapes(scraped).filter_map(counter).collect();
    if !counters.is_sorted() {
        return Err("its counter of energy went backwards".to_owned());
    }
    // A GPU always draws something: the server has not looked again yet.
    if after <= before {
        return Err("its counter of energy did not move, measure for longer".to_owned());
    }
    let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
    if seconds > 0.0 {
        Ok((after - before) / seconds)
    } else {
        Err("no time has passed".to_owned())
    }
}

/// The mean of readings that each tell of the time before them. The first tells of the time before
/// the measurement, so that it counts only where it is the only one.
fn mean_of_readings(values: &[f64]) -> Option<f64> {
    let counted = match values {
        [_, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    (!counted.is_empty()).then(|| counted.iter().sum::<f64>() / counted.len() as f64)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn scrape(start: Instant, second: u64, joules: Option<f64>) -> MetricsScrape {
        let gpu = GpuMetrics {
            device: None,
            joules,
            watts: Some(100.0 * (second + 1) as f64),
            utilisation: Some(0.1 * second as f64),
            used_bytes: Some(if second == 1 { 5e9 } else { 4e9 }),
        };
        let at = start + Duration::from_secs(second);
        MetricsScrape { at, gpus: [("GPU-1".to_owned(), gpu)].into() }
    }

    fn scraped(counters: [Option<f64>; 3]) -> ScrapedMetrics {
        let start = Instant::now();
        let [first, middle, last] = counters;
        ScrapedMetrics {
            url: "http://a/metrics".to_owned(),
            first: Ok(scrape(start, 0, first)),
            between: vec![scrape(start, 1, middle)],
            last: Ok(scrape(start, 2, last)),
        }
    }

    fn work(rows: Option<usize>) -> MeasuredWork {
        MeasuredWork { duration: Duration::from_secs(2), answers: 100, rows }
    }

    fn one(scraped: &ScrapedMetrics, work: MeasuredWork) -> GpuUsageSummary {
        let (mut gpus, note) = sum_up_gpus(scraped, work);
        assert_eq!((gpus.len(), note), (1, None));
        gpus.remove(0)
    }

    #[test]
    fn energy_is_shared_out_among_answers_and_rows() {
        let gpu = one(&scraped([Some(1e6), Some(1e6 + 300.0), Some(1e6 + 800.0)]), work(Some(4)));
        assert_eq!((gpu.joules, gpu.mean_watts), (Some(800.0), Some(400.0)));
        assert_eq!((gpu.joules_per_answer, gpu.joules_per_row), (Some(8.0), Some(2.0)));
        assert_eq!(gpu.highest_memory_bytes, Some(5_000_000_000));
        // The first tells of the time before.
        assert!((gpu.mean_utilisation.unwrap() - 0.15).abs() < 1e-9);
        assert_eq!(gpu.note, None);
        let gpu = one(&scraped([Some(0.0), None, Some(800.0)]), work(None));
        assert_eq!((gpu.joules_per_answer, gpu.joules_per_row), (Some(8.0), None));
    }

    #[test]
    fn a_last_scrape_that_is_late_does_not_add_to_the_energy() {
        let mut late = scraped([Some(0.0), Some(400.0), Some(800.0)]);
        if let Ok(last) = &mut late.last {
            last.at += Duration::from_secs(2);
        }
        assert_eq!(one(&late, work(None)).joules, Some(400.0));
    }

    #[test]
    fn energy_is_unknown_where_counters_make_no_sense() {
        let wrong = [
            ([Some(500.0), Some(600.0), Some(100.0)], "backwards"),
            // It began anew, and went past where it was.
            ([Some(500.0), Some(100.0), Some(900.0)], "backwards"),
            ([Some(500.0), Some(500.0), Some(500.0)], "did not move"),
            ([None, Some(1.0), Some(2.0)], "no energy"),
            ([Some(1.0), Some(2.0), None], "no energy"),
        ];
        for (counters, reason) in wrong {
            let gpu = one(&scraped(counters), work(Some(4)));
            let energies = [gpu.joules, gpu.joules_per_answer, gpu.joules_per_row];
            assert_eq!(energies, [None; 3], "{counters:?}");
            assert!(gpu.note.as_ref().unwrap().contains(reason), "{:?}", gpu.note);
            // What it draws is told on its own too.
            assert_eq!(gpu.mean_watts, Some(250.0));
        }
        let nobody = MeasuredWork { answers: 0, ..work(Some(4)) };
        let gpu = one(&scraped([Some(0.0), Some(1.0), Some(2.0)]), nobody);
        assert_eq!((gpu.joules, gpu.joules_per_answer), (Some(2.0), None));
    }

    #[test]
    fn a_page_that_is_gone_or_has_no_gpus_is_told() {
        let mut gone = scraped([Some(0.0), Some(1.0), Some(2.0)]);
        gone.last = Err("connect: refused".to_owned());
        let gpu = one(&gone, work(None));
        assert_eq!(gpu.note.as_deref(), Some("no reading at the end: connect: refused"));
        assert_eq!((gpu.joules, gpu.highest_memory_bytes), (None, Some(5_000_000_000)));
        (gone.first, gone.between) = (gone.last.clone(), Vec::new());
        let (gpus, note) = sum_up_gpus(&gone, work(None));
        assert_eq!((gpus.len(), note.as_deref()), (0, Some("unknown: connect: refused")));
        let mut without = scraped([None; 3]);
        without.between.clear();
        for scrape in [&mut without.first, &mut without.last].into_iter().flatten() {
            scrape.gpus.clear();
        }
        let (gpus, note) = sum_up_gpus(&without, work(None));
        assert!(gpus.is_empty() && note.unwrap().contains("http://a/metrics has no metrics"));
    }
}

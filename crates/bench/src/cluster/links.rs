//! What nodes find out of the links between them, beside how the links are.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tessera_command::HttpMethod;
use tessera_core::Result;
use tessera_lab::LinkShape;

use super::lab_cluster::{LabCluster, wait_until};
use super::{BenchCluster, Experiment};
use crate::background_clients::write_siblings;
use crate::finding::Finding;
use crate::stored_model::store_split;

pub(super) const LINKS: Experiment = Experiment {
    name: "links",
    about: "links of several rates and delays, and what nodes find out of them",
    make: measure_links,
};

/// Megabits per second, and milliseconds there and back.
const RATES: [u64; 4] = [2, 10, 15, 100];
const ROUND_TRIPS: [u64; 3] = [5, 50, 300];
/// What a network in a box adds, at most.
const LAB_MILLISECONDS: f64 = 1.0;
/// How long it is counted what measuring takes of the slowest link.
const COUNTED: Duration = Duration::from_secs(90);

fn measure_links(_: &BenchCluster) -> Result<Vec<Finding>> {
    let (mut rates, mut round_trips) = (Worst::default(), Worst::default());
    let mut share: f64 = 0.0;
    for rate in RATES {
        for round_trip in ROUND_TRIPS {
            let link = MeasuredLink::start(rate, round_trip)?;
            let (found_rate, found_round_trip) = link.estimate()?;
            let name = format!("{rate} Mbit/s, {round_trip} ms");
            rates.note(found_rate / rate as f64, format!("{name}: {found_rate:.2} Mbit/s"));
            let detail = format!("{name}: {found_round_trip:.1} ms");
            // The box itself takes up to a millisecond.
            let beyond = (found_round_trip - round_trip as f64).abs() - LAB_MILLISECONDS;
            round_trips.note(1.0 + beyond.max(0.0) / round_trip as f64, detail);
            if rate == RATES[0] && round_trip == ROUND_TRIPS[0] {
                share = link.probing_share(rate)?;
            }
        }
    }
    let kilobytes = format!("{} s of {} Mbit/s", COUNTED.as_secs(), RATES[0]);
    Ok(vec![
        rates.finding("rates, farthest from how they are"),
        round_trips.finding("round trips, farthest from how they are, beyond 1 ms"),
        Finding::at_most("measuring, of 1000 parts of the link", share * 1e3, 5.0, "‰")
            .with_detail(kilobytes),
    ])
}

/// The ratio that is farthest from one.
#[derive(Default)]
struct Worst {
    ratio: Option<f64>,
    detail: String,
}

impl Worst {
    fn note(&mut self, ratio: f64, detail: String) {
        if self.ratio.is_none_or(|worst| (ratio - 1.0).abs() > (worst - 1.0).abs()) {
            (self.ratio, self.detail) = (Some(ratio), detail);
        }
    }

    fn finding(self, what: &str) -> Finding {
        let percent = self.ratio.map_or(f64::NAN, |ratio| (ratio - 1.0).abs() * 100.0);
        Finding::at_most(what, percent, 10.0, "%").with_detail(self.detail)
    }
}

/// Two nodes with a link between them.
struct MeasuredLink {
    cluster: LabCluster,
    device: super::lab_cluster::LabNode,
    cloud: super::lab_cluster::LabNode,
}

impl MeasuredLink {
    fn start(rate: u64, round_trip: u64) -> Result<Self> {
        let mut cluster = LabCluster::start()?;
        let device = cluster.add_node("device", &["--gateway", "--engine", "rten"])?;
        let cloud = cluster.add_node("cloud", &["--engine", "rten", "--tier", "1"])?;
        let shape = LinkShape::default()
            .with_delay(Duration::from_millis(round_trip) / 2)
            .with_megabits(rate);
        cluster.lab.set_link(&device.host, &cloud.host, shape);
        let (files, _) = write_siblings("mobilenet-v2", 1, cluster.path())?;
        store_split(&files[0], "task0", 2, &cluster.repository())?;
        cluster.put_task("task0", &json!({ "model": "task0" }))?;
        Ok(Self { cluster, device, cloud })
    }

    fn link(&self) -> Result<Value> {
        let plan = self.cluster.ask(HttpMethod::GET, "/v1/plan", None)?;
        let links = plan["links"].as_array().cloned().unwrap_or_default();
        let found = links.into_iter().find(|link| link["from"] == "device");
        Ok(found.unwrap_or_default())
    }

    /// Megabits per second and milliseconds, a moment after both are known.
    fn estimate(&self) -> Result<(f64, f64)> {
        wait_until("a link is known", || Ok(self.link()?["megabits_per_second"].is_number()))?;
        std::thread::sleep(Duration::from_secs(3));
        let link = self.link()?;
        let figure = |name: &str| link[name].as_f64().unwrap_or(f64::NAN);
        Ok((figure("megabits_per_second"), figure("round_trip_ms")))
    }

    /// The share of the link that is taken while nobody asks anything.
    fn probing_share(&self, rate: u64) -> Result<f64> {
        let sent = || self.cluster.lab.traffic(&self.device.host, &self.cloud.host).bytes;
        let (before, start) = (sent(), Instant::now());
        std::thread::sleep(COUNTED);
        let bits = (sent() - before) as f64 * 8.0;
        Ok(bits / (start.elapsed().as_secs_f64() * rate as f64 * 1e6))
    }
}

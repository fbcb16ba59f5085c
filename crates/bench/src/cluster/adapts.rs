//! A task that moves while it is asked, as the link between device and cloud changes: the addnn
//! thesis' section 7.3.5, under load.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tessera_command::HttpMethod;
use tessera_core::Result;
use tessera_lab::{LinkShape, SlowGroup};

use super::lab_cluster::{LabCluster, LabNode, wait_until};
use super::{BenchCluster, Experiment};
use crate::background_clients::write_siblings;
use crate::finding::Finding;
use crate::stored_model::store_split;

pub(super) const ADAPTS: Experiment = Experiment {
    name: "adapts",
    about: "a link gets slow and fast again under load, in delay and in rate",
    make: change_link,
};

pub(super) const FLAPS: Experiment = Experiment {
    name: "flaps",
    about: "a link that gets slow and fast again every second for a minute",
    make: flap_link,
};

/// Cores of the device: a request takes longer there than at the cloud, and not by 300 ms.
const DEVICE_CORES: f64 = 0.5;
/// Blocks of the model.
const BLOCKS: usize = 8;
/// The link as it is at first: megabits per second, and milliseconds in each direction.
const RATE: u64 = 100;
const DELAY: Duration = Duration::from_millis(5);
/// What is added in each direction when it is slow, half of it each.
const MORE_DELAY: Duration = Duration::from_millis(150);
const SLOW_RATE: u64 = 2;
/// How long each state lasts.
const EPOCH: Duration = Duration::from_secs(20);
/// Clients that ask.
const CLIENTS: usize = 2;

/// A slow device with a gateway, a fast cloud, and a task that may be at either.
struct DeviceAndCloud {
    cluster: LabCluster,
    device: LabNode,
    cloud: LabNode,
    _slow: SlowGroup,
}

impl DeviceAndCloud {
    fn start() -> Result<Self> {
        let mut cluster = LabCluster::start()?;
        let slow = SlowGroup::new(DEVICE_CORES)?;
        let device = cluster.add_limited_node("device", &["--gateway", "--cores", "1"], &slow)?;
        let cloud = cluster.add_node("cloud", &["--tier", "1", "--cores", "1"])?;
        let made = Self { cluster, device, cloud, _slow: slow };
        made.set_link(normal_link());
        Ok(made)
    }

    /// The device is as far from the controller as from the cloud.
    fn set_link(&self, shape: LinkShape) {
        let LabCluster { lab, controller_host, .. } = &self.cluster;
        lab.set_link(&self.device.host, &self.cloud.host, shape);
        lab.set_link(&self.device.host, controller_host, shape);
    }

    fn plan(&self) -> Result<Value> {
        self.cluster.ask(HttpMethod::GET, "/v1/plan", None)
    }

    /// The nodes of the task's blocks, without repetition.
    fn places(&self) -> Result<Vec<String>> {
        let plan = self.plan()?;
        let nodes = plan["tasks"][0]["nodes"].as_array().cloned().unwrap_or_default();
        let mut nodes: Vec<String> =
            nodes.iter().filter_map(|node| Some(node.as_str()?.to_owned())).collect();
        nodes.dedup();
        Ok(nodes)
    }

    fn moves(&self) -> Result<Vec<Value>> {
        Ok(self.plan()?["moves"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until the device has what it would need, and the task is at the cloud.
    fn wait_until_settled(&self) -> Result<()> {
        wait_until("the task is at the cloud", || Ok(self.places()? == ["cloud"]))?;
        std::thread::sleep(EPOCH);
        Ok(())
    }
}

fn normal_link() -> LinkShape {
    LinkShape::default().with_delay(DELAY).with_megabits(RATE)
}

/// Starts everything, with clients that ask.
fn start_under_load() -> Result<(DeviceAndCloud, crate::background_clients::BackgroundClients)> {
    let site = DeviceAndCloud::start()?;
    let (files, requests) = write_siblings("resnet50", 1, site.cluster.path())?;
    store_split(&files[0], "task0", BLOCKS, &site.cluster.repository())?;
    site.cluster.put_task("task0", &json!({ "model": "task0" }))?;
    let requests = Arc::new(site.device.check_requests(requests)?);
    let clients = site.device.start_clients(CLIENTS, &requests)?;
    site.wait_until_settled()?;
    Ok((site, clients))
}

fn change_link(_: &BenchCluster) -> Result<Vec<Finding>> {
    let (site, clients) = start_under_load()?;
    let slow = normal_link().with_delay(DELAY + MORE_DELAY);
    let narrow = normal_link().with_megabits(SLOW_RATE);
    let mut findings = Vec::new();
    let epochs = [
        ("+300 ms", slow, "device"),
        ("300 ms less", normal_link(), "cloud"),
        ("2 Mbit/s", narrow, "device"),
        ("100 Mbit/s again", normal_link(), "cloud"),
    ];
    for (what, shape, expected) in epochs {
        let (before, at) = (site.moves()?.len(), unix_ms());
        site.set_link(shape);
        std::thread::sleep(EPOCH);
        let moves = site.moves()?;
        let new: Vec<&Value> = moves.iter().skip(before).collect();
        let ended = |found: &Value| {
            let decided = found["decided_ms"].as_f64()?;
            Some((decided - at, decided + found["took_ms"].as_f64()? - at))
        };
        let last = new.last().and_then(|found| ended(found));
        let (decided, there) = last.map_or((f64::NAN, f64::NAN), |(a, b)| (a / 1e3, b / 1e3));
        let places = site.places()?.join(", ");
        let detail = format!("{} moves, at {places}", new.len());
        findings.push(
            Finding::at_most(format!("{what}: decided after"), decided, 2.0, "s")
                .with_detail(detail),
        );
        findings.push(Finding::at_most(format!("{what}: there after"), there, 3.0, "s"));
        let is_right = usize::from(places == expected);
        findings.push(Finding::exactly(format!("{what}: at the {expected}"), is_right, 1));
    }
    let counts = clients.stop_and_count();
    let failed = counts.asked - counts.answered + counts.wrong;
    let detail = format!("of {}, slowest {:.0} ms", counts.asked, counts.slowest_ms);
    findings.push(
        Finding::exactly("failed requests", usize::try_from(failed).unwrap_or(usize::MAX), 0)
            .with_detail(detail),
    );
    Ok(findings)
}

fn flap_link(_: &BenchCluster) -> Result<Vec<Finding>> {
    let (site, clients) = start_under_load()?;
    let slow = normal_link().with_delay(DELAY + MORE_DELAY);
    let before = site.moves()?.len();
    for second in 0..60 {
        site.set_link(if second % 2 == 0 { slow } else { normal_link() });
        std::thread::sleep(Duration::from_secs(1));
    }
    let moves = site.moves()?.len() - before;
    let counts = clients.stop_and_count();
    let failed = counts.asked - counts.answered + counts.wrong;
    let detail = format!("of {}, slowest {:.0} ms", counts.asked, counts.slowest_ms);
    Ok(vec![
        Finding::at_most("moves in a minute", moves as f64, 6.0, ""),
        Finding::exactly("failed requests", usize::try_from(failed).unwrap_or(usize::MAX), 0)
            .with_detail(detail),
    ])
}

fn unix_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}

//! A model in four blocks on two hosts, beside the same on one.

use serde_json::json;
use tessera_core::Result;
use tessera_node::median_of_sorted;

use super::lab_cluster::LabCluster;
use super::{BenchCluster, Experiment};
use crate::background_clients::write_siblings;
use crate::finding::Finding;
use crate::stored_model::store_split;
use crate::test_client::{TestClient, TestInferRequest};

pub(super) const TWO_HOSTS: Experiment = Experiment {
    name: "two-hosts",
    about: "four blocks on two hosts in turn, without delay, over the same on one host",
    make: compare_hosts,
};

/// Requests of each, in turns.
const ROUNDS: usize = 60;

fn compare_hosts(_: &BenchCluster) -> Result<Vec<Finding>> {
    let mut cluster = LabCluster::start()?;
    let (edge, cloud) =
        (cluster.add_node("edge", &["--gateway"])?, cluster.add_node("cloud", &[])?);
    // What takes packets from host to host would take the cores that blocks are computed on.
    cluster.lab.lay_cable(&edge.host, &cloud.host)?;
    let (files, requests) = write_siblings("resnet50", 1, cluster.path())?;
    store_split(&files[0], "task0", 4, &cluster.repository())?;
    // Units of one host are those of the other's blocks, so that nothing is fused at either.
    let one = json!({ "model": "task0", "node": "edge" });
    let two = json!({ "model": "task0", "node": ["edge", "cloud", "edge", "cloud"] });
    let system = json!({ "tasks": { "one": one, "two": two }, "fusion": false });
    cluster.ask(tessera_command::HttpMethod::PUT, "/v1/system", Some(&system))?;
    let request = &requests[0];
    let renamed = |task: &str| TestInferRequest {
        head: String::from_utf8_lossy(&request.head)
            .replace("/task0/", &format!("/{task}/"))
            .into(),
        tensor: request.tensor.clone(),
    };
    let (one, two) = (renamed("one"), renamed("two"));
    let address = edge.process.address("http")?;
    let times = edge.host.run_inside(|| -> Result<[Vec<f64>; 2]> {
        let mut client = TestClient::connect(address)?;
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS + 5 {
            for (number, request) in [&one, &two].into_iter().enumerate() {
                let (took, answer) = request.send_to(&mut client)?;
                answer.require_ok("a request")?;
                if round >= 5 {
                    times[number].push(took.as_secs_f64() * 1e3);
                }
            }
        }
        Ok(times)
    })??;
    let [one, two] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        median_of_sorted(&times).unwrap_or(f64::NAN)
    });
    let detail = format!("{two:.1} ms over {one:.1} ms");
    Ok(vec![
        Finding::at_most("latency on two hosts over one", two / one, 1.1, "×").with_detail(detail),
    ])
}

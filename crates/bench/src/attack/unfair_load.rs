//! Very many clients of an expensive task, beside one of a cheap task.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tessera_core::Result;
use tessera_deploy::Isolation;
use tessera_zoo::TinyModel;

use super::Attack;
use super::small_request_watch::SmallRequestWatch;
use super::victim::Victim;
use crate::finding::Finding;
use crate::test_client::{TestClient, TestInferRequest};

pub(crate) const UNFAIR_LOAD: Attack = Attack {
    name: "unfair-load",
    about: "300 clients of an expensive task, and one of a cheap task",
    isolations: super::ON_BOTH,
    carry_out: load_unfairly,
};

const CLIENTS: usize = 300;

/// Elements of which all products are made: nine million of them.
const ELEMENTS: usize = 3_000;

const LOADED: Duration = Duration::from_secs(8);

/// How long the cheap task is watched before.
const CALM: Duration = Duration::from_secs(3);

/// How much longer a request of the cheap task may take: the clients of the other one have most of
/// the machine, and a run of it that has begun ends first.
const MOST_SLOWER: f64 = 20.0;

fn load_unfairly(isolation: Isolation) -> Result<Vec<Finding>> {
    let models = [TinyModel::OuterSum, TinyModel::Linear];
    let victim = Victim::start_victim(isolation, &models, &["--deadline", "2000"])?;
    let watch = SmallRequestWatch::start_watch(victim.address());
    std::thread::sleep(CALM);
    let calm = watch.stop_watch();
    let load = ExpensiveLoad::default();
    let clients: Vec<_> = (0..CLIENTS).map(|_| load.start_client(victim.address())).collect();
    let watch = SmallRequestWatch::start_watch(victim.address());
    std::thread::sleep(LOADED);
    let cheap = watch.stop_watch();
    load.over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().ok();
    }
    let ratio = cheap.median_time().as_secs_f64() / calm.median_time().as_secs_f64().max(1e-6);
    let mut findings = cheap.findings(2.0);
    let (answered, refused) = (&load.answered, &load.refused);
    findings[0].detail = format!(
        "{}; the expensive task: {} answered, {} not",
        findings[0].detail,
        answered.load(Ordering::Relaxed),
        refused.load(Ordering::Relaxed)
    );
    let detail = format!(
        "{:.1} ms, {:.1} ms before",
        cheap.median_time().as_secs_f64() * 1e3,
        calm.median_time().as_secs_f64() * 1e3
    );
    let what = "median small request over the calm one";
    findings.push(Finding::at_most(what, ratio, MOST_SLOWER, "×").with_detail(detail));
    Ok(findings)
}

/// Clients that ask for what is expensive, until it is over.
#[derive(Clone, Default)]
struct ExpensiveLoad {
    over: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

impl ExpensiveLoad {
    fn start_client(&self, address: SocketAddr) -> std::thread::JoinHandle<()> {
        let load = self.clone();
        std::thread::spawn(move || {
            let request = expensive_request();
            let mut client = None;
            while !load.over.load(Ordering::Relaxed) {
                client = load.ask_once(address, client, &request);
            }
        })
    }

    /// Asks once; the connection, where it can be used again.
    fn ask_once(
        &self,
        address: SocketAddr,
        client: Option<TestClient>,
        request: &TestInferRequest,
    ) -> Option<TestClient> {
        let mut client = client.or_else(|| TestClient::connect(address).ok())?;
        let answer = request.send_to(&mut client).ok();
        let is_answered = answer.as_ref().is_some_and(|(_, answer)| answer.status == 200);
        if is_answered {
            self.answered.fetch_add(1, Ordering::Relaxed);
        } else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(50));
        }
        answer.map(|_| client)
    }
}

fn expensive_request() -> TestInferRequest {
    let tensor: Vec<u8> = std::iter::repeat_n(1.0_f32.to_le_bytes(), ELEMENTS).flatten().collect();
    TestInferRequest::new(TinyModel::OuterSum.task_name(), "x", &[ELEMENTS], &tensor)
}

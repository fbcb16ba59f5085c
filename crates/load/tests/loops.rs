//! Both loops and a sweep, against a small server over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tessera_load::{
    Arrivals, LoadMode, LoadPhase, LoadReport, LoadTarget, LoadTestOptions, StopToken, SweepRates,
    Workload, WorkloadOptions, render_load_page, render_load_table, render_sweep_page,
    run_load_test, run_sweep,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How long the server takes for an answer.
const DELAY: Duration = Duration::from_millis(3);

/// Every tenth request is refused.
const REFUSED: usize = 10;

const MODEL: &str = r#"{"name":"m","versions":["1"],"platform":"test",
    "inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}],
    "outputs":[{"name":"y","datatype":"FP32","shape":[-1,2]}]}"#;

/// A server that keeps connections, and what it counts of them and of refusals.
#[derive(Default)]
struct Server {
    requests: AtomicUsize,
    refusals: AtomicUsize,
    refuse: bool,
}

async fn serve(refuse: bool) -> (LoadTarget, Arc<Server>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let server = Arc::new(Server { refuse, ..Server::default() });
    let serving = Arc::clone(&server);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = Arc::clone(&serving);
            tokio::spawn(async move { connection(stream, &server).await });
        }
    });
    (LoadTarget::new(format!("http://{address}"), "m"), server)
}

/// Answers the requests of a connection, one after the other.
async fn connection(mut stream: TcpStream, server: &Server) {
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        let head_end = loop {
            if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let head = String::from_utf8_lossy(&buffer[..head_end]).to_lowercase();
        let header = |name: &str| {
            let line = head.lines().find(|line| line.starts_with(&format!("{name}:")))?;
            line.split_once(':')?.1.trim().parse::<usize>().ok()
        };
        let length = header("content-length").unwrap_or(0);
        let json_length = header("inference-header-content-length");
        while buffer.len() < head_end + length {
            if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let body = buffer[head_end..head_end + length].to_vec();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        buffer.drain(..head_end + length);
        let answer = answer(&path, json_length, &body, server).await;
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

async fn answer(path: &str, json_length: Option<usize>, body: &[u8], server: &Server) -> Vec<u8> {
    match path {
        "/v2" => plain("200 OK", r#"{"name":"small","version":"1","extensions":[]}"#),
        "/v2/models/m" => plain("200 OK", MODEL),
        "/v2/models/m/infer" => {
            // A request that is not what the protocol asks for is told so, and fails the test.
            let json = json_length.and_then(|length| body.get(..length));
            let json = json.and_then(|json| serde_json::from_slice::<serde_json::Value>(json).ok());
            if json.is_none_or(|json| json["inputs"][0]["datatype"] != "FP32") {
                return plain("400 Bad Request", r#"{"error":"not a request"}"#);
            }
            let number = server.requests.fetch_add(1, Ordering::SeqCst);
            if server.refuse && number.is_multiple_of(REFUSED) {
                server.refusals.fetch_add(1, Ordering::SeqCst);
                let refusal = r#"{"error":"queue is full"}"#;
                return plain("503 Service Unavailable\r\nRetry-After: 1", refusal);
            }
            tokio::time::sleep(DELAY).await;
            let json = r#"{"model_name":"m","parameters":{"exit":"early"},"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}]}"#;
            let mut answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\
                 Inference-Header-Content-Length: {}\r\n\r\n{json}",
                json.len() + 8,
                json.len()
            )
            .into_bytes();
            answer.extend([0; 8]);
            answer
        }
        _ => plain("404 Not Found", r#"{"error":"no such thing"}"#),
    }
}

fn plain(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

async fn workload(target: &LoadTarget) -> Workload {
    let description = target.fetch_description().await.unwrap();
    Workload::new(&description, &WorkloadOptions::default()).unwrap()
}

fn closed(clients: usize, duration: Option<Duration>, requests: Option<u64>) -> LoadTestOptions {
    let warm_up = Duration::from_millis(50);
    LoadTestOptions {
        warm_up,
        ..LoadTestOptions::new(LoadMode::Closed { clients, duration, requests })
    }
}

fn open(rate: f64, duration: Duration) -> LoadTestOptions {
    let warm_up = Duration::from_millis(100);
    let mode = LoadMode::Open { rate, arrivals: Arrivals::Poisson, duration, seed: 1 };
    LoadTestOptions { warm_up, ..LoadTestOptions::new(mode) }
}

/// What holds for every report.
fn assert_sound(report: &LoadReport) {
    assert_eq!(report.outcomes.total(), report.requests, "{:?}", report.outcomes);
    let latency = report.latency.unwrap();
    assert_eq!(latency.count, report.outcomes.ok);
    // The server takes its time, so nobody sees less.
    assert!(latency.p50_ms >= 3.0, "{latency:?}");
    assert!(latency.p50_ms <= latency.p99_ms && latency.p99_ms <= latency.max_ms, "{latency:?}");
    assert_eq!(report.exits.get("early"), Some(&report.outcomes.ok));
    assert!(report.outcomes.connection == 0 && report.outcomes.invalid == 0);
    assert!(report.throughput_per_second > 0.0);
    assert!(report.bytes_sent > 0 && report.bytes_received > 0);
    assert!(!report.series.is_empty() && !report.histogram.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_describes_its_model() {
    let (target, _) = serve(false).await;
    let description = target.fetch_description().await.unwrap();
    assert_eq!(description.server.as_deref(), Some("small 1"));
    assert_eq!(description.inputs[0].tensor_type.to_string(), "f32[?,4]");
    assert_eq!(description.max_batch, None);
    let missing =
        LoadTarget::new(target.url, "none").fetch_description().await.unwrap_err().to_string();
    assert!(missing.contains("\"none\"") && missing.contains("no such thing"), "{missing}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_closed_loop_counts_answers_and_refusals() {
    let (target, server) = serve(true).await;
    let workload = workload(&target).await;
    let options = closed(4, Some(Duration::from_millis(600)), None);
    let mut phases = Vec::new();
    let report = run_load_test(&target, &workload, &options, &StopToken::new(), |progress| {
        phases.push(progress.phase);
    })
    .await
    .unwrap();
    assert_sound(&report);
    assert_eq!((report.mode, report.clients), ("closed", Some(4)));
    assert!((report.duration_s - 0.6).abs() < 1e-6);
    assert!(report.latency_corrected.unwrap().count >= report.outcomes.ok);
    assert!(report.outcomes.status.get(&503).is_some_and(|&count| count > 0));
    assert!(server.refusals.load(Ordering::SeqCst) > 0);
    assert_eq!(report.messages.get("HTTP 503").map(String::as_str), Some("queue is full"));
    // Connections are kept, refusals or not.
    assert_eq!(report.connections, 4);
    assert!(phases.len() >= 2 && phases.contains(&LoadPhase::Measuring), "{phases:?}");
    assert!(
        render_load_table(&report).contains("HTTP 503")
            && render_load_page(&report).contains("<svg")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_closed_loop_sends_as_many_requests_as_asked() {
    let (target, _) = serve(false).await;
    let workload = workload(&target).await;
    let options = closed(3, None, Some(100));
    let report =
        run_load_test(&target, &workload, &options, &StopToken::new(), |_| {}).await.unwrap();
    assert_sound(&report);
    assert_eq!((report.requests, report.outcomes.ok), (100, 100));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_open_loop_offers_its_rate_whatever_comes_back() {
    let (target, _) = serve(true).await;
    let workload = workload(&target).await;
    let mut options = open(200.0, Duration::from_millis(800));
    options.deadline = Some(Duration::from_secs(1));
    let report =
        run_load_test(&target, &workload, &options, &StopToken::new(), |_| {}).await.unwrap();
    assert_sound(&report);
    assert_eq!((report.mode, report.rate_per_second), ("open", Some(200.0)));
    // The schedule is by its seed, so this is not by chance.
    assert!((120..=200).contains(&report.requests), "{}", report.requests);
    assert!(report.outcomes.status.contains_key(&503));
    assert!(report.goodput_per_second.unwrap() <= report.throughput_per_second);
    assert!(report.latency_corrected.is_none() && report.generator_lag_p99_ms.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_a_connection_is_part_of_the_latency() {
    let (target, _) = serve(false).await;
    let workload = workload(&target).await;
    // One connection carries some 250 a second at most: at 600, most of the time is waiting.
    let mut options = open(600.0, Duration::from_millis(400));
    options.max_connections = 1;
    let report =
        run_load_test(&target, &workload, &options, &StopToken::new(), |_| {}).await.unwrap();
    assert_sound(&report);
    assert_eq!(report.connections, 1);
    assert!(report.throughput_per_second < 0.8 * report.offered_per_second.unwrap());
    assert!(report.latency.unwrap().p50_ms > 30.0, "{:?}", report.latency);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_the_run_and_reports_what_was_measured() {
    let (target, _) = serve(false).await;
    let workload = workload(&target).await;
    let minute = Duration::from_secs(60);
    for options in [closed(2, Some(minute), None), open(100.0, minute)] {
        let stop = StopToken::new();
        let thrown = stop.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(400)).await;
            thrown.request_stop();
        });
        let began = Instant::now();
        let report = run_load_test(&target, &workload, &options, &stop, |_| {}).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(10));
        assert!(report.stopped_early && report.duration_s < 10.0, "{}", report.duration_s);
        assert_sound(&report);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_is_what_the_report_says() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = LoadTarget::new(format!("http://{}", listener.local_addr().unwrap()), "m");
    drop(listener);
    assert!(gone.fetch_description().await.is_err());
    let (target, _) = serve(false).await;
    let workload = workload(&target).await;
    for options in [closed(1, None, Some(5)), open(50.0, Duration::from_millis(200))] {
        let report =
            run_load_test(&gone, &workload, &options, &StopToken::new(), |_| {}).await.unwrap();
        assert!(report.requests > 0);
        assert_eq!(report.outcomes.connection, report.requests);
        assert_eq!(report.latency, None);
        assert!(report.messages.contains_key("connection"));
        assert!(render_load_page(&report).contains("nothing to show"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_tries_every_rate_of_its_list() {
    let (target, _) = serve(false).await;
    let workload = workload(&target).await;
    // Two connections carry some 600 a second at most.
    let mut options = open(1.0, Duration::from_millis(300));
    options.max_connections = 2;
    let rates = SweepRates::List(vec![50.0, 1500.0]);
    let report =
        run_sweep(&target, &workload, &options, &rates, &StopToken::new(), |_| {}).await.unwrap();
    assert_eq!(report.steps.len(), 2);
    assert!(!report.steps[1].sustained);
    assert!(render_sweep_page(&report).contains("Offered and achieved"));
}

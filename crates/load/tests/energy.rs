//! What GPUs draw, read from the metrics page of a small server over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tessera_load::{
    Arrivals, GpuUsageSummary, LoadMode, LoadReport, LoadTarget, LoadTestOptions, MetricsPage,
    StopToken, SweepRates, Workload, WorkloadOptions, render_load_page, render_load_table,
    render_sweep_table, run_load_test, run_sweep,
};

/// What the GPU of the server draws.
const WATTS: f64 = 200.0;

const MODEL: &str = r#"{"name":"m","versions":["1"],"platform":"test",
    "inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}],
    "outputs":[{"name":"y","datatype":"FP32","shape":[-1,2]}]}"#;

const ANSWER: &str =
    r#"{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[0,0]}]}"#;

/// How the metrics page is: the status, and the text by its number and the seconds since the start.
type Page = fn(usize, f64) -> (u16, String);

struct Server {
    began: Instant,
    pages: AtomicUsize,
    page: Page,
}

/// Serves a model and a metrics page, with a thread for each connection.
fn serve(page: Page) -> (LoadTarget, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = Arc::new(Server { began: Instant::now(), pages: AtomicUsize::new(0), page });
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let server = Arc::clone(&server);
            std::thread::spawn(move || connection(&stream.unwrap(), &server));
        }
    });
    (LoadTarget::new(url.clone(), "m"), format!("{url}/metrics"))
}

/// Answers the requests of a connection, one after the other, until it is closed.
fn connection(stream: &TcpStream, server: &Server) {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.map_or(0, |text| text.trim().parse::<usize>().unwrap());
        reader.read_exact(&mut vec![0; length]).unwrap();
        let (status, body) = match head.split(' ').nth(1).unwrap() {
            "/metrics" => {
                let number = server.pages.fetch_add(1, Ordering::SeqCst);
                (server.page)(number, server.began.elapsed().as_secs_f64())
            }
            "/v2" => (200, r#"{"name":"small","version":"1"}"#.to_owned()),
            "/v2/models/m" => (200, MODEL.to_owned()),
            "/v2/models/m/infer" => {
                std::thread::sleep(Duration::from_millis(2));
                (200, ANSWER.to_owned())
            }
            _ => (404, r#"{"error":"no such thing"}"#.to_owned()),
        };
        let answer =
            format!("HTTP/1.1 {status} Told\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if (&mut &*stream).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// A page as Triton writes it.
fn page(joules: f64) -> String {
    format!(
        "# HELP nv_energy_consumption GPU energy consumption\n\
         # TYPE nv_energy_consumption counter\n\
         nv_energy_consumption{{gpu_uuid=\"GPU-1\"}} {joules:.6}\n\
         nv_gpu_power_usage{{gpu_uuid=\"GPU-1\"}} 210.5\n\
         nv_gpu_utilization{{gpu_uuid=\"GPU-1\"}} 0.75\n\
         nv_gpu_memory_used_bytes{{gpu_uuid=\"GPU-1\"}} 2.5e9\n\
         nv_inference_count{{model=\"m\",version=\"1\"}} 7\n"
    )
}

fn steady(_: usize, seconds: f64) -> (u16, String) {
    (200, page(5e6 + WATTS * seconds))
}

async fn workload(target: &LoadTarget, batch: Option<usize>) -> Workload {
    let description = target.fetch_description().await.unwrap();
    let options = WorkloadOptions { batch, ..WorkloadOptions::default() };
    Workload::new(&description, &options).unwrap()
}

/// Two clients for a moment, with the metrics page at hand.
async fn measure(page: Page, batch: Option<usize>) -> LoadReport {
    let (target, url) = serve(page);
    let workload = workload(&target, batch).await;
    let duration = Some(Duration::from_millis(1300));
    let mut options =
        LoadTestOptions::new(LoadMode::Closed { clients: 2, duration, requests: None });
    options.warm_up = Duration::from_millis(100);
    options.metrics = Some(MetricsPage::open(&url).await.unwrap());
    let report =
        run_load_test(&target, &workload, &options, &StopToken::new(), |_| {}).await.unwrap();
    // The page changes nothing about the run.
    assert!(report.outcomes.ok > 0 && report.outcomes.errors() == 0, "{:?}", report.outcomes);
    report
}

/// Equal, but for what reading the page takes.
fn assert_near(value: Option<f64>, expected: f64) {
    let value = value.unwrap();
    assert!((value - expected).abs() < 0.1 * expected, "{value}, expected {expected}");
}

fn assert_unknown(gpu: &GpuUsageSummary, reason: &str) {
    let energies = [gpu.joules, gpu.joules_per_answer, gpu.joules_per_row];
    assert_eq!(energies, [None; 3], "{gpu:?}");
    assert!(gpu.note.as_ref().unwrap().contains(reason), "{gpu:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn energy_is_told_per_answer_and_per_row() {
    let report = measure(steady, Some(3)).await;
    assert_eq!((report.gpus.len(), &report.gpu_note), (1, &None));
    let gpu = &report.gpus[0];
    assert_eq!((gpu.uuid.as_str(), &gpu.note), ("GPU-1", &None));
    assert_near(gpu.mean_watts, WATTS);
    assert_near(gpu.joules, WATTS * report.duration_s);
    let per_answer = WATTS / report.throughput_per_second;
    assert_near(gpu.joules_per_answer, per_answer);
    assert_eq!(gpu.rows_per_answer, Some(3));
    assert_near(gpu.joules_per_row, per_answer / 3.0);
    assert_eq!(gpu.mean_utilisation, Some(0.75));
    assert_eq!(gpu.highest_memory_bytes, Some(2_500_000_000));
    assert!(
        render_load_table(&report).contains("energy/answer")
            && render_load_page(&report).contains("GPU-1")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ends_by_its_requests_has_its_energy_too() {
    let (target, url) = serve(steady);
    let workload = workload(&target, None).await;
    let mut options =
        LoadTestOptions::new(LoadMode::Closed { clients: 1, duration: None, requests: Some(200) });
    options.warm_up = Duration::ZERO;
    options.metrics = Some(MetricsPage::open(&url).await.unwrap());
    let report =
        run_load_test(&target, &workload, &options, &StopToken::new(), |_| {}).await.unwrap();
    assert_eq!(report.outcomes.ok, 200);
    let gpu = &report.gpus[0];
    assert_near(gpu.joules_per_answer, WATTS * report.duration_s / 200.0);
    assert_eq!((gpu.rows_per_answer, gpu.joules_per_row), (None, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rate_of_a_sweep_has_its_energy() {
    let (target, url) = serve(steady);
    let workload = workload(&target, None).await;
    let (arrivals, duration) = (Arrivals::Constant, Duration::from_millis(400));
    let mut options =
        LoadTestOptions::new(LoadMode::Open { rate: 1.0, arrivals, duration, seed: 0 });
    options.warm_up = Duration::from_millis(50);
    options.metrics = Some(MetricsPage::open(&url).await.unwrap());
    let rates = SweepRates::List(vec![50.0, 100.0]);
    let report =
        run_sweep(&target, &workload, &options, &rates, &StopToken::new(), |_| {}).await.unwrap();
    for step in &report.steps {
        assert_near(step.report.gpus[0].mean_watts, WATTS);
    }
    assert!(
        render_sweep_table(&report).contains("energy/answer"),
        "{}",
        render_sweep_table(&report)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_makes_no_sense_is_unknown() {
    let backwards = measure(|number, _| (200, page(1e6 - number as f64)), Some(3)).await;
    assert_unknown(&backwards.gpus[0], "backwards");
    assert!(render_load_table(&backwards).contains("unknown"), "{}", render_load_table(&backwards));
    let still = measure(|_, _| (200, page(1e6)), None).await;
    assert_unknown(&still.gpus[0], "did not move");
    // The mean of what the page says instead.
    assert_eq!(still.gpus[0].mean_watts, Some(210.5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_goes_away_does_not_spoil_the_run() {
    // The first is read before the run, the second at its start.
    let goes =
        |number, seconds| if number < 2 { steady(number, seconds) } else { (503, page(0.0)) };
    let report = measure(goes, None).await;
    assert_unknown(&report.gpus[0], "no reading at the end");
    assert_eq!(report.gpus[0].highest_memory_bytes, Some(2_500_000_000));
    let gone =
        |number, seconds| if number < 1 { steady(number, seconds) } else { (503, page(0.0)) };
    let report = measure(gone, None).await;
    assert!(report.gpus.is_empty());
    assert!(report.gpu_note.unwrap().contains("HTTP 503"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_without_gpus_is_told() {
    let report =
        measure(|_, _| (200, "nv_inference_count{model=\"m\"} 7\n".to_owned()), None).await;
    assert!(report.gpus.is_empty());
    let note = report.gpu_note.clone().unwrap();
    assert!(note.contains("/metrics has no metrics of GPUs"), "{note}");
    assert!(render_load_table(&report).contains(&note));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_is_not_there_is_an_error_before_the_run() {
    let (target, url) = serve(|_, _| (404, String::new()));
    let missing = MetricsPage::open(&url).await.unwrap_err().to_string();
    assert!(missing.contains(&url) && missing.contains("404"), "{missing}");
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = MetricsPage::open(&format!("http://{gone}")).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("{gone}/metrics")), "{refused}");
    assert!(MetricsPage::open("localhost").await.is_err());
    // Without one, nothing is said of GPUs.
    let workload = workload(&target, None).await;
    let mode = LoadMode::Closed { clients: 1, duration: None, requests: Some(2) };
    let mut options = LoadTestOptions::new(mode);
    options.warm_up = Duration::ZERO;
    let report =
        run_load_test(&target, &workload, &options, &StopToken::new(), |_| {}).await.unwrap();
    assert!(report.gpus.is_empty() && report.gpu_note.is_none());
}

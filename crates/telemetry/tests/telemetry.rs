//! What an operator sees of requests and processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tessera_core::Error;
use tessera_deploy::HopTiming;
use tessera_telemetry::{
    EndedRequest, GpuProcessSample, GpuSample, InstanceGpuSample, InstanceSample,
    InstanceWeightSample, RequestObserver, RequestOutcome, SystemSample, TakeSample, TaskSample,
    Telemetry, TelemetryOptions, TraceOptions, WeightMemorySample,
};
use tessera_tensormq::{Deadline, RequestId, TraceContext};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tower::ServiceExt;

/// A name that needs escaping, and one that looks like the format itself.
const ODD: &str = "a\"b\\c\nd{e=\"f\"} 7";

fn hop_timing(instance: &str, started: u64, batch: u64) -> HopTiming {
    HopTiming {
        instance: instance.to_owned(),
        started,
        waited: 30_000,
        loading: 4_000,
        computed: 2_000_000,
        overhead: 10_000,
        batch,
        rows: 1,
    }
}

fn ended<'a>(
    task: &'a str,
    hop_timings: &'a [HopTiming],
    outcome: RequestOutcome<'a>,
) -> EndedRequest<'a> {
    let now = Deadline::now().nanoseconds();
    EndedRequest {
        task,
        version: "1",
        request: RequestId(5 << 64 | 1),
        id: "mine",
        rows: 1,
        accepted: now - 5_000_000,
        ended: now,
        hop_timings,
        exits: &[],
        outcome,
        retries: 0,
        trace: None,
    }
}

fn sample() -> SystemSample {
    let task = |name: &str| TaskSample {
        name: name.to_owned(),
        version: "1".to_owned(),
        ready: true,
        in_flight: 3,
    };
    SystemSample {
        tasks: vec![task("ants"), task(ODD)],
        instances: vec![InstanceSample {
            unit: "ab12".to_owned(),
            instance: "ab12.0.2".to_owned(),
            isolation: "process".to_owned(),
            pid: None,
            up: true,
            in_flight: 2,
            restarts: 1,
            weights: Some(InstanceWeightSample {
                place: "memory",
                uses: 70,
                loads: 6,
                evictions: 5,
                loaded_bytes: 24_000,
                load_seconds: 0.25,
            }),
            gpu: Some(InstanceGpuSample {
                device: "cuda:0".to_owned(),
                seconds: 1.5,
                runs: 300,
                replayed_runs: 250,
                weight_bytes: 4096,
                pool_bytes: 8192,
                copies: Some([7, 8, 9]),
            }),
        }],
        waiting: 4,
        copied_bytes: 1024,
        weight_memory: vec![WeightMemorySample {
            device: "cpu".to_owned(),
            budget_bytes: 9000,
            used_bytes: 8000,
        }],
        gpus: vec![GpuSample {
            device: "cuda:0".to_owned(),
            uuid: "GPU-1".to_owned(),
            watts: Some(250.5),
            joules: Some(1e6),
            ..GpuSample::default()
        }],
        units: Vec::new(),
    }
}

fn take_sample() -> TakeSample {
    Arc::new(sample)
}

async fn get(telemetry: &Arc<Telemetry>, path: &str) -> String {
    let request = Request::builder().uri(path).body(Body::empty()).unwrap();
    let response = telemetry.metrics_router(take_sample()).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let bytes = to_bytes(response.into_body(), 1 << 24).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

type Labels = BTreeMap<String, String>;

/// The text format as a scraper reads it: series by name and labels, and the type of each metric.
#[derive(Default)]
struct Scraped {
    types: BTreeMap<String, String>,
    series: BTreeMap<(String, Labels), f64>,
}

impl Scraped {
    /// Panics where the text breaks the format.
    fn read(text: &str) -> Self {
        let mut scraped = Self::default();
        let mut helped = BTreeSet::new();
        let mut family = String::new();
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(helped.contains(name), "{line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                let again = scraped.types.insert(name.to_owned(), kind.to_owned());
                assert_eq!(again, None, "{line}");
                name.clone_into(&mut family);
            } else {
                let (name, labels, value) = series(line);
                let suffix = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{line}"));
                let is_histogram = scraped.types[&family] == "histogram";
                if is_histogram {
                    assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}");
                } else {
                    assert_eq!(suffix, "", "{line}");
                }
                assert_eq!(labels.contains_key("le"), suffix == "_bucket", "{line}");
                assert!(scraped.series.insert((name, labels), value).is_none(), "{line}");
            }
        }
        scraped
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let of: Labels =
            labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let found = self.series.get(&(name.to_owned(), of));
        *found.unwrap_or_else(|| panic!("no {name} with {labels:?}"))
    }

    /// Buckets by the rest of their labels.
    fn buckets(&self, name: &str) -> BTreeMap<Labels, Vec<(f64, f64)>> {
        let mut buckets: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        for ((of, labels), &count) in &self.series {
            if *of == format!("{name}_bucket") {
                let mut labels = labels.clone();
                let bound = match labels.remove("le").unwrap().as_str() {
                    "+Inf" => f64::INFINITY,
                    bound => bound.parse().unwrap(),
                };
                buckets.entry(labels).or_default().push((bound, count));
            }
        }
        for buckets in buckets.values_mut() {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        buckets
    }
}

/// One line: `name{label="value",…} number`.
fn series(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap();
    let (name, rest) = line.split_at(end);
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    assert!(!name.is_empty() && name.chars().all(letter), "{line}");
    assert!(!name.starts_with(|c: char| c.is_ascii_digit()), "{line}");
    let mut labels = Labels::new();
    let mut characters = rest.chars();
    if rest.starts_with('{') {
        characters.next();
        loop {
            let label: String = characters.by_ref().take_while(|&c| c != '=').collect();
            assert!(label.chars().all(letter), "{line}");
            assert_eq!(characters.next(), Some('"'), "{line}");
            let mut value = String::new();
            loop {
                match characters.next().unwrap() {
                    '"' => break,
                    '\\' => value.push(match characters.next().unwrap() {
                        'n' => '\n',
                        other => {
                            assert!(other == '"' || other == '\\', "{line}");
                            other
                        }
                    }),
                    other => value.push(other),
                }
            }
            assert_eq!(labels.insert(label, value), None, "{line}");
            match characters.next() {
                Some(',') => {}
                Some('}') => break,
                other => panic!("{other:?} in {line}"),
            }
        }
    }
    let value = characters.as_str().strip_prefix(' ').unwrap();
    (name.to_owned(), labels, value.parse().unwrap())
}

#[tokio::test]
async fn metrics_are_well_formed_and_say_what_happened() {
    let telemetry = Telemetry::new(TelemetryOptions::default()).unwrap();
    let now = Deadline::now().nanoseconds();
    let hop_timings = [hop_timing("ab12.0.2", now, 4), hop_timing("cd34.1.1", now, 1)];
    for _ in 0..4 {
        telemetry.request_ended(&ended("ants", &hop_timings, RequestOutcome::Answered));
    }
    let exits = [Some("early".to_owned()), None, Some("early".to_owned())];
    // An exit that answers because nothing else did is not one that was taken.
    for outcome in [RequestOutcome::Answered, RequestOutcome::Degraded("late")] {
        telemetry.request_ended(&EndedRequest {
            rows: 3,
            exits: &exits,
            retries: 2,
            ..ended(ODD, &[], outcome)
        });
    }
    let (full, engine) = (Error::full("no room"), Error::engine("broken"));
    telemetry.request_ended(&ended("ants", &[], RequestOutcome::Refused(&full)));
    telemetry.request_ended(&ended("ants", &[], RequestOutcome::Failed(&engine)));
    telemetry.request_ended(&ended("ants", &[], RequestOutcome::Failed(&full)));
    telemetry.request_ended(&ended("ants", &[], RequestOutcome::Cancelled));

    let scraped = Scraped::read(&get(&telemetry, "/metrics").await);
    let ants = [("model", "ants"), ("version", "1")];
    assert_eq!(scraped.value("nv_inference_request_success", &ants), 4.0);
    assert_eq!(scraped.value("nv_inference_count", &ants), 4.0);
    assert_eq!(scraped.value("nv_inference_exec_count", &ants), 1.0);
    assert_eq!(scraped.value("nv_inference_request_duration_us", &ants), 20_000.0);
    assert_eq!(scraped.value("nv_inference_compute_infer_duration_us", &ants), 16_000.0);
    assert_eq!(scraped.value("nv_inference_compute_output_duration_us", &ants), 80.0);
    assert_eq!(scraped.value("nv_inference_compute_input_duration_us", &ants), 0.0);
    assert_eq!(scraped.value("nv_inference_queue_duration_us", &ants), 3_920.0);
    assert_eq!(scraped.value("nv_inference_pending_request_count", &ants), 3.0);
    for reason in ["REJECTED", "CANCELED", "BACKEND", "OTHER"] {
        let labels = [("model", "ants"), ("version", "1"), ("reason", reason)];
        assert_eq!(scraped.value("nv_inference_request_failure", &labels), 1.0, "{reason}");
    }
    assert_eq!(scraped.value("nv_inference_count", &[("model", ODD), ("version", "1")]), 6.0);
    let exit = [("task", ODD), ("exit", "early")];
    assert_eq!(scraped.value("tessera_exits_taken_total", &exit), 2.0);
    assert_eq!(scraped.value("tessera_degraded_total", &[("task", ODD)]), 1.0);
    assert_eq!(scraped.value("tessera_requests_retried_total", &[("task", ODD)]), 2.0);
    assert_eq!(scraped.value("tessera_queue_length", &[]), 4.0);
    assert_eq!(scraped.value("tessera_copied_bytes_total", &[]), 1024.0);
    let gpu = [("gpu_uuid", "GPU-1"), ("device", "cuda:0")];
    assert_eq!(scraped.value("nv_gpu_power_usage", &gpu), 250.5);
    assert_eq!(scraped.value("nv_energy_consumption", &gpu), 1e6);
    assert_eq!(scraped.value("tessera_unit_restarts_total", &[("unit", "ab12")]), 1.0);
    let instance = [("unit", "ab12"), ("instance", "ab12.0.2")];
    assert_eq!(scraped.value("tessera_unit_in_flight", &instance), 2.0);
    let isolated = [instance[0], instance[1], ("isolation", "process")];
    assert_eq!(scraped.value("tessera_unit_up", &isolated), 1.0);
    // Four requests told of the same run.
    let unit = [("unit", "ab12")];
    assert_eq!(scraped.value("tessera_unit_batch_rows_count", &unit), 1.0);
    assert_eq!(scraped.value("tessera_unit_batch_rows_sum", &unit), 4.0);
    assert_eq!(scraped.value("tessera_unit_computing_seconds_count", &unit), 4.0);

    let histograms: Vec<&String> = scraped
        .types
        .iter()
        .filter(|(_, kind)| *kind == "histogram")
        .map(|(name, _)| name)
        .collect();
    assert_eq!(histograms.len(), 5);
    for name in histograms {
        let all = scraped.buckets(name);
        assert!(!all.is_empty(), "{name}");
        for (labels, buckets) in all {
            assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name} {buckets:?}");
            let count = scraped.series[&(format!("{name}_count"), labels)];
            assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, count), "{name}");
        }
    }
}

/// The processes of a GPU as the metrics tell them: by number, with name and bytes.
async fn gpu_processes(processes: &[(u32, Option<u64>)]) -> BTreeMap<String, (String, f64)> {
    let process = |&(pid, bytes)| GpuProcessSample { pid, bytes };
    let processes: Vec<GpuProcessSample> = processes.iter().map(process).collect();
    let take: TakeSample = Arc::new(move || {
        let mut sample = sample();
        sample.gpus[0].processes = processes.clone();
        sample.instances[0].pid = Some(4_000_001);
        sample
    });
    let telemetry = Telemetry::new(TelemetryOptions::default()).unwrap();
    let request = Request::builder().uri("/metrics").body(Body::empty()).unwrap();
    let response = telemetry.metrics_router(take).oneshot(request).await.unwrap();
    let bytes = to_bytes(response.into_body(), 1 << 24).await.unwrap();
    let scraped = Scraped::read(std::str::from_utf8(&bytes).unwrap());
    let name = "tessera_gpu_process_memory_bytes";
    let series: Vec<_> = scraped.series.iter().filter(|((of, _), _)| of == name).collect();
    // Without a process there is not even a head.
    assert_eq!(scraped.types.contains_key(name), !series.is_empty());
    let process = |((_, labels), &bytes): (&(String, Labels), &f64)| {
        assert_eq!((labels.len(), labels["device"].as_str()), (3, "cuda:0"));
        (labels["pid"].clone(), (labels["process"].clone(), bytes))
    };
    series.into_iter().map(process).collect()
}

#[tokio::test]
async fn memory_of_gpus_is_told_of_our_own_processes_only() {
    let own = std::process::id();
    let server = (own.to_string(), ("server".to_owned(), 1000.0));
    let unit = ("4000001".to_owned(), ("unit ab12".to_owned(), 2000.0));
    // One is somebody else's, one is listed for two parts of the GPU.
    let listed =
        [(own, Some(1000)), (4_000_002, Some(7)), (4_000_001, Some(500)), (4_000_001, Some(1500))];
    assert_eq!(gpu_processes(&listed).await, [server.clone(), unit].into());
    // What is not known is not told, and no zero stands for it.
    assert_eq!(gpu_processes(&[(own, Some(1000)), (4_000_001, None)]).await, [server].into());
    assert_eq!(gpu_processes(&[(4_000_002, Some(7))]).await, BTreeMap::new());
    assert_eq!(gpu_processes(&[]).await, BTreeMap::new());
}

#[tokio::test]
async fn events_tell_of_requests_and_of_what_others_tell() {
    let telemetry = Telemetry::new(TelemetryOptions::default()).unwrap();
    let hop_timings = [hop_timing("ab12.0.2", 0, 4)];
    // Nobody listens yet.
    telemetry.request_ended(&ended("ants", &hop_timings, RequestOutcome::Answered));
    let mut events = telemetry.subscribe_events();
    telemetry.request_ended(&ended("ants", &hop_timings, RequestOutcome::Answered));
    let error = Error::engine("broken");
    telemetry.request_ended(&ended("ants", &[], RequestOutcome::Failed(&error)));
    telemetry.publish_event(json!({"kind": "instance", "state": "up"}));

    let mut next = || -> Value { serde_json::from_str(&events.try_recv().unwrap()).unwrap() };
    let event = next();
    for (field, expected) in [
        ("kind", json!("request")),
        ("task", json!("ants")),
        ("version", json!("1")),
        ("request", json!("00000000000000050000000000000001")),
        ("id", json!("mine")),
        ("outcome", json!("answered")),
        ("rows", json!(1)),
        ("ms", json!(5.0)),
        ("waited_ms", json!(2.99)),
        ("loading_ms", json!(0.004)),
        ("computed_ms", json!(2.0)),
        ("overhead_ms", json!(0.01)),
    ] {
        assert_eq!(event[field], expected, "{field}");
    }
    let hop = json!({
        "unit": "ab12", "instance": "ab12.0.2", "batch": 4,
        "waited_us": 30.0, "loading_us": 4.0, "computed_us": 2000.0, "overhead_us": 10.0,
    });
    assert_eq!(event["hops"], json!([hop]));
    // Later than 2020.
    assert!(event["at"].as_u64().unwrap() > 1_577_836_800_000, "{event}");
    let event = next();
    assert_eq!((&event["outcome"], &event["reason"]), (&json!("failed"), &json!("broken")));
    let event = next();
    assert_eq!((&event["kind"], &event["state"]), (&json!("instance"), &json!("up")));
    assert!(event["at"].is_u64(), "{event}");
    assert!(events.try_recv().is_err());
}

/// Takes one request of HTTP and answers it with `status`: its head and its body.
async fn answer(listener: &TcpListener, status: &str) -> (String, Value) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.unwrap().parse::<usize>().unwrap() {
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
                stream.write_all(answer.as_bytes()).await.unwrap();
                return (head.to_owned(), serde_json::from_str(body).unwrap());
            }
        }
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0);
    }
}

#[tokio::test]
async fn a_collector_gets_a_span_per_request_and_per_hop() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let traces = TraceOptions {
        endpoint,
        headers: "authorization=Bearer%20hush".to_owned(),
        sampling_ratio: 1.0,
        service: "ants' hill".to_owned(),
    };
    let telemetry = Telemetry::new(TelemetryOptions { traces: Some(traces) }).unwrap();
    let hop_timings = [hop_timing("ab12.0.2", 70_000, 4), hop_timing("cd34.0.1", 2_080_000, 1)];
    let parent = TraceContext { trace: [0xab; 16], span: [0xcd; 8], flags: 1 };
    telemetry.request_ended(&EndedRequest {
        trace: Some(parent),
        ..ended("ants", &hop_timings, RequestOutcome::Answered)
    });
    // Its trace says that it is not to be told of.
    let unsampled = TraceContext { flags: 0, ..parent };
    telemetry.request_ended(&EndedRequest {
        trace: Some(unsampled),
        ..ended("bees", &[], RequestOutcome::Answered)
    });
    let error = Error::engine("broken");
    telemetry.request_ended(&ended("wasps", &[], RequestOutcome::Failed(&error)));

    let (head, refused) = answer(&listener, "503 Service Unavailable").await;
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nauthorization: Bearer hush\r\n"), "{head}");
    let (_, body) = answer(&listener, "200 OK").await;
    assert_eq!(refused, body);

    let resource = &body["resourceSpans"][0];
    let name = &resource["resource"]["attributes"][0];
    assert_eq!(name["value"]["stringValue"], "ants' hill");
    let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
    assert_eq!(spans.len(), 4);
    let [request, first, second, failed] = [&spans[0], &spans[1], &spans[2], &spans[3]];
    assert_eq!((&request["name"], &request["kind"]), (&json!("ants"), &json!(2)));
    assert_eq!(request["traceId"], "ab".repeat(16));
    assert_eq!(request["parentSpanId"], "cd".repeat(8));
    for (hop, name) in [(first, "unit ab12"), (second, "unit cd34")] {
        assert_eq!(hop["name"], name);
        assert_eq!(hop["traceId"], request["traceId"]);
        assert_eq!(hop["parentSpanId"], request["spanId"]);
        assert_eq!(
            nanoseconds(hop, "endTimeUnixNano") - nanoseconds(hop, "startTimeUnixNano"),
            2_010_000
        );
    }
    assert_ne!(first["spanId"], second["spanId"]);
    let request_start = nanoseconds(request, "startTimeUnixNano");
    assert_eq!(nanoseconds(first, "startTimeUnixNano") - request_start, 70_000);
    assert_eq!(nanoseconds(second, "startTimeUnixNano"), nanoseconds(first, "endTimeUnixNano"));
    let attributes = first["attributes"].as_array().unwrap();
    let waited = json!({"key": "tessera.waited_us", "value": {"intValue": "30"}});
    assert!(attributes.contains(&waited), "{attributes:?}");
    assert_eq!(failed["name"], "wasps");
    assert_eq!(failed["status"], json!({"code": 2, "message": "broken"}));
    assert_eq!(failed["parentSpanId"], Value::Null);
    assert_ne!(failed["traceId"], request["traceId"]);
    let scraped = Scraped::read(&get(&telemetry, "/metrics").await);
    assert_eq!(scraped.value("tessera_spans_lost_total", &[]), 0.0);
}

fn nanoseconds(span: &Value, field: &str) -> u64 {
    span[field].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn everything_that_is_wrong_with_traces_is_said_at_once() {
    let traces = TraceOptions {
        endpoint: "ftp://x".to_owned(),
        headers: "none at all".to_owned(),
        sampling_ratio: 1.5,
        service: String::new(),
    };
    let Err(error) = Telemetry::new(TelemetryOptions { traces: Some(traces) }) else {
        panic!("wrong traces are taken");
    };
    let error = error.to_string();
    for part in ["ftp://x", "none at all", "1.5", "no name"] {
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn usage_of_our_own_process_grows_as_it_computes() {
    let telemetry = Telemetry::new(TelemetryOptions::default()).unwrap();
    let mut events = telemetry.subscribe_events();
    let watching = tokio::spawn(Arc::clone(&telemetry).watch_samples(take_sample()));
    let burning = std::thread::spawn(|| {
        let until = Instant::now() + Duration::from_millis(1300);
        let mut number = 1_u64;
        while Instant::now() < until {
            number = std::hint::black_box(number.wrapping_mul(3));
        }
    });
    let mut used = Vec::new();
    for _ in 0..2 {
        let event = tokio::time::timeout(Duration::from_secs(10), events.recv()).await;
        let event: Value = serde_json::from_str(&event.unwrap().unwrap()).unwrap();
        assert_eq!(event["kind"], "usage");
        let server = &event["instances"][0];
        assert_eq!(server["unit"], "server");
        assert!(server["resident"].as_u64().unwrap() > 0);
        used.push(server["cpu_seconds"].as_f64().unwrap());
    }
    assert!(used[1] > used[0], "{used:?}");
    let usage: Value = serde_json::from_str(&get(&telemetry, "/usage").await).unwrap();
    assert_eq!(usage["hertz"], 10);
    let server = &usage["instances"][0];
    assert_eq!(server["pid"], std::process::id());
    let cpu: Vec<f64> =
        server["cpu"].as_array().unwrap().iter().map(|cpu| cpu.as_f64().unwrap()).collect();
    assert!(cpu.iter().sum::<f64>() > 0.0, "{cpu:?}");
    for column in ["at", "resident", "shared"] {
        assert_eq!(server[column].as_array().unwrap().len(), cpu.len(), "{column}");
    }
    let pid = std::process::id().to_string();
    let labels = [("unit", "server"), ("instance", "server"), ("pid", pid.as_str())];
    let scraped = Scraped::read(&get(&telemetry, "/metrics").await);
    assert!(scraped.value("tessera_process_cpu_seconds_total", &labels) > 0.0);
    assert!(scraped.value("tessera_process_resident_private_bytes", &labels) > 0.0);
    watching.abort();
    burning.join().unwrap();
}

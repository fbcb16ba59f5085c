//! The page with made-up figures.

use tessera_node::LatencySummary;

use super::super::{
    PROCESSES, THREADS, WHOLE_MODEL, ZMQ, arrivals, clients, energy, gpu_meter, latency, memory,
    scenarios, throughput,
};
use super::*;

#[test]
fn a_model_with_a_wild_name_is_a_page_and_one_without_figures_is_too() {
    let report = GpuBenchReport {
        model: "<script>.onnx".to_owned(),
        clients: Some(Vec::new()),
        arrivals: Some(Vec::new()),
        memory: Some(Vec::new()),
        ..nothing()
    };
    let html = render_gpu_page(&report);
    assert!(!html.contains("<script>") && !html.contains("<b>"), "{html}");
    assert_eq!(html.matches("<section>").count(), 3);
    assert_eq!(html.matches("</section>").count(), 3);
    for part in ["src=", "href=", "@import"] {
        assert!(!html.contains(part), "{part} would need another file");
    }
}

fn nothing() -> GpuBenchReport {
    GpuBenchReport {
        machine: machine::BenchMachine {
            device: "cuda:0".to_owned(),
            gpu: Some("<b>H & co</b>".to_owned()),
            gpu_memory_bytes: None,
            driver: None,
            cuda: None,
            cores: 2,
            engine: "none".to_owned(),
            mps: false,
        },
        model: "resnet50".to_owned(),
        blocks: 4,
        latency: None,
        energy: None,
        clients: None,
        arrivals: None,
        throughput: None,
        memory: None,
        scenarios: None,
    }
}

fn time(median_ms: f64) -> LatencySummary {
    LatencySummary { count: 3, median_ms, min_ms: median_ms * 0.9, p99_ms: median_ms * 1.1 }
}

fn batch(rows: usize) -> latency::LatencyBatch {
    let whole = 2.0 + rows as f64 * 0.4;
    let block = |zmq: bool, number: usize| latency::BlockTime {
        waited_us: if zmq { 400.0 } else { 40.0 },
        launch_us: 300.0,
        overhead_us: 20.0,
        gpu_us: 500.0 + number as f64,
        replayed: 1.0,
        to_device: f64::from(zmq || number == 0),
        to_host: f64::from(zmq || number == 3),
        on_device: 1.0,
    };
    let arm = |name: &str, times: f64| latency::PipelineTime {
        name: name.to_owned(),
        time: time(whole * times),
        ratio: times,
        over_served: Some(times),
        over_cuda_graph: Some(times),
        overhead_us: whole * (times - 1.0) * 1e3,
        overhead_per_block_us: whole * (times - 1.0) * 250.0,
        hop_beyond_served_us: Some(20.0),
        overhead_per_hop_us: whole * (times - 1.0) * 333.0,
        blocks: (0..4).map(|number| block(name == ZMQ, number)).collect(),
        equal: true,
    };
    latency::LatencyBatch {
        rows,
        whole: latency::WholeModelTime { time: time(whole) },
        cuda_graph: Some(latency::CudaGraphTime {
            time: time(whole * 0.9),
            ratio: 0.9,
            replayed: 1.0,
            equal: true,
        }),
        pipelines: vec![arm(THREADS, 1.01), arm(PROCESSES, 1.2), arm(ZMQ, 2.5)],
        zmq_overhead_over_tensormq: Some(7.5),
    }
}

fn drawn_by(rows: usize) -> energy::EnergyBatch {
    let arm = |(name, times): (&str, f64)| energy::ArmEnergy {
        name: name.to_owned(),
        requests: 100,
        rows_per_second: 400.0,
        joules_per_row: Some(0.7 * times / rows as f64),
        watts: Some(280.0),
    };
    let arms = [(WHOLE_MODEL, 1.0), (THREADS, 1.0), (PROCESSES, 1.1), (ZMQ, 2.7)];
    energy::EnergyBatch { rows, arms: arms.into_iter().map(arm).collect() }
}

fn clients_of(name: &str) -> clients::ClientSweep {
    let step = |clients: usize| clients::ClientStep {
        clients,
        mean_ms: 3.0 + clients as f64,
        median_ms: 3.0 + clients as f64,
        answers_per_second: clients as f64 * 250.0,
    };
    clients::ClientSweep { name: name.to_owned(), steps: (1..=10).map(step).collect() }
}

fn arrivals_of(name: &str, capacity: f64) -> arrivals::ArrivalSweep {
    let step = |part: f64| arrivals::ArrivalStep {
        part_of_capacity: part,
        offered_per_second: part * capacity,
        answers_per_second: part.min(1.0) * capacity,
        refused_per_second: (part - 1.0).max(0.0) * capacity,
        late_per_second: 0.0,
        median_ms: Some(4.0),
        used: Some(gpu_meter::VideoMemoryUsage { mean_bytes: 3e9 + part * 1e8, most_bytes: 3.2e9 }),
    };
    arrivals::ArrivalSweep {
        name: name.to_owned(),
        capacity_per_second: capacity,
        deadline_ms: 500.0,
        used_before_bytes: Some(1_000_000_000),
        steps: [0.2, 0.6, 1.0, 2.0].map(step).into(),
        saturation_per_second: capacity,
    }
}

fn memory_of(name: &str, processes: usize) -> memory::PipelineMemory {
    let block = |number: u64| memory::BlockMemory {
        weight_bytes: Some(number * 20_000_000),
        pool_bytes: Some(if processes > 1 { 13_000_000 } else { 0 }),
    };
    memory::PipelineMemory {
        name: name.to_owned(),
        processes,
        used_bytes: Some(600_000_000 * processes as u64),
        blocks: (1..=4).map(block).collect(),
        rest_bytes: Some(500_000_000 * processes as i64),
        rest_per_process_bytes: Some(5e8),
    }
}

fn scenario(number: usize) -> scenarios::MemoryScenario {
    scenarios::MemoryScenario {
        number,
        class_a: 10,
        class_b: 6,
        class_c: 4,
        units: 22,
        weight_bytes: 1_500_000_000,
        modular_bytes: Some(2_500_000_000),
        saving_percent: Some(80.0 - number as f64),
        thesis_saving_percent: -19.23,
    }
}

#[test]
fn a_page_of_all_experiments_has_a_section_for_each_and_no_figure_that_is_none() {
    let report = GpuBenchReport {
        latency: Some(latency::GpuLatencyReport { batches: [1, 8, 32].map(batch).into() }),
        energy: Some(energy::EnergyReport {
            idle_watts: Some(110.0),
            batches: [1, 8, 32].map(drawn_by).into(),
        }),
        clients: Some([THREADS, PROCESSES, ZMQ].map(clients_of).into()),
        arrivals: Some(vec![arrivals_of(PROCESSES, 2400.0), arrivals_of(ZMQ, 900.0)]),
        throughput: Some(throughput::GpuThroughput {
            whole: vec![throughput::WholeRate { rows: 32, rows_per_second: 2300.0 }],
            best_whole_rows_per_second: 2300.0,
            pipelines: vec![throughput::PipelineRate {
                name: THREADS.to_owned(),
                clients: 64,
                rows_per_second: 2200.0,
                over_best_whole: 0.957,
            }],
        }),
        memory: Some(vec![memory_of(PROCESSES, 4), memory_of(THREADS, 1)]),
        scenarios: Some(scenarios::MemoryScenarios {
            tasks: 20,
            traditional_bytes: Some(12_000_000_000),
            scenarios: (1..=8).map(scenario).collect(),
        }),
        ..nothing()
    };
    let html = render_gpu_page(&report);
    assert_eq!(html.matches("<section>").count(), 9);
    assert_eq!(html.matches("<svg").count(), 11);
    assert!(!html.contains("NaN") && !html.contains(">inf"), "a figure that is none");
    assert!(html.contains("TensorMQ copies nothing between host and GPU"));
    assert!(html.contains("7.5 times that of TensorMQ"));
}

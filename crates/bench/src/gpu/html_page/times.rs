//! Sections on what one client sees: latency, what blocks do, copies, and energy.

use tessera_report::picture::bars::BarChart;
use tessera_report::picture::lines::{LineChart, LineSeries};
use tessera_report::picture::{AxisKind, ChartAxis};
use tessera_report::{PageSection, Table, format_milliseconds};

use super::super::energy::{self, EnergyReport};
use super::super::latency::{self, BlockTime, GpuLatencyReport, LatencyBatch, PipelineTime};
use super::super::{PROCESSES, SERVED, THREADS, WHOLE_CUDA_GRAPH, WHOLE_MODEL, ZMQ, or_dash};
use super::draw_if_any;

fn find_arm<'a>(batch: &'a LatencyBatch, name: &str) -> Option<&'a PipelineTime> {
    batch.pipelines.iter().find(|arm| arm.name == name)
}

fn rows_label(count: usize) -> String {
    format!("{count} row{}", if count == 1 { "" } else { "s" })
}

/// Figures 4.3, 4.7 and 4.8.
pub(crate) fn latency_section(latency: &GpuLatencyReport) -> PageSection {
    let mut words = Vec::new();
    if let Some(first) = latency.batches.first() {
        let times = |name| match find_arm(first, name) {
            Some(arm) => format!("{:.3}", arm.ratio),
            None => "–".to_owned(),
        };
        words.push(format!(
            "Requests of {}, one after the other: the whole model took {}; in blocks it took {} times as \
             long on threads, {} times in processes with TensorMQ, and {} times with whole tensors through \
             ZeroMQ (medians of neighbouring rounds). As one block in a process of its own, which is asked in the same \
             way as the others, it took {} times as long.",
            rows_label(first.rows),
            format_milliseconds(first.whole.time.median_ms),
            times(THREADS),
            times(PROCESSES),
            times(ZMQ),
            times(SERVED),
        ));
        let over = match first.zmq_overhead_over_tensormq {
            Some(times) => format!("{times:.1} times that of TensorMQ"),
            None => "no multiple of TensorMQ's, which has no overhead here".to_owned(),
        };
        words.push(format!(
            "The overhead of ZeroMQ beyond the whole model is {over}. The thesis (figures 4.3, 4.5, 4.7 and 4.8) has \
             16.3 ms for TensorMQ, 44.9 ms for ZeroMQ and 11.7 ms for the whole model: 1.39 and 3.84 times; and \
             overheads of 2.55 ms and 21.18 ms: 8.3 times."
        ));
    }
    let series =
        [WHOLE_MODEL, WHOLE_CUDA_GRAPH, SERVED, THREADS, PROCESSES, ZMQ].map(|name| LineSeries {
            name: name.to_owned(),
            points: latency
                .batches
                .iter()
                .map(|batch| {
                    let time = match name {
                        WHOLE_MODEL => Some(batch.whole.time.median_ms),
                        WHOLE_CUDA_GRAPH => {
                            batch.cuda_graph.as_ref().map(|whole| whole.time.median_ms)
                        }
                        name => find_arm(batch, name).map(|arm| arm.time.median_ms),
                    };
                    (batch.rows as f64, time.unwrap_or(f64::NAN))
                })
                .collect(),
        });
    let picture = LineChart {
        title: "Latency of one client".to_owned(),
        x: ChartAxis::new(AxisKind::Linear, "rows of a request"),
        y: ChartAxis::new(AxisKind::Logarithmic, "median latency (ms)"),
        series: series.into(),
        mark: None,
    };
    let [times, _] = latency::latency_tables(latency);
    let title = "Latency of one client";
    PageSection { title, words, pictures: vec![picture.to_inline_svg()], tables: vec![times] }
}

/// Figure 4.4.
pub(crate) fn blocks_section(latency: &GpuLatencyReport) -> PageSection {
    let words = vec![
        "What a request takes in each block: work is that of the GPU itself (on a CPU, of the engine); the rest is \
         waiting for a thread of its unit, and handing over. Launching the GPU's work is in neither, as it goes on \
         while the GPU works. In figure 4.4 of the thesis inference takes the same with both transports, and the \
         overhead makes the difference."
            .to_owned(),
    ];
    let mut pictures = Vec::new();
    if let Some(batch) = latency.batches.first() {
        let on_gpu = batch.pipelines.iter().flat_map(|arm| &arm.blocks).any(|b| b.gpu_us > 0.0);
        let work = |block: &BlockTime| if on_gpu { block.gpu_us } else { block.launch_us };
        let rest = |block: &BlockTime| block.waited_us + block.overhead_us;
        let mut series = Vec::new();
        for name in [PROCESSES, ZMQ] {
            let Some(arm) = find_arm(batch, name) else { continue };
            series.push((format!("{name}: work"), arm.blocks.iter().map(work).collect()));
            series
                .push((format!("{name}: waiting and rest"), arm.blocks.iter().map(rest).collect()));
        }
        let count = batch.pipelines.iter().map(|arm| arm.blocks.len()).max().unwrap_or(0);
        let picture = BarChart {
            title: format!("Time per block, {}", rows_label(batch.rows)),
            y_label: "time (µs)".to_owned(),
            groups: (0..count).map(|number| format!("block {number}")).collect(),
            series,
        };
        pictures.push(picture.to_inline_svg());
    }
    let [_, table] = latency::latency_tables(latency);
    PageSection { title: "Time of each block", words, pictures, tables: vec![table] }
}

/// Figure 4.9.
pub(crate) fn copies_section(latency: &GpuLatencyReport) -> PageSection {
    let mut table =
        Table::new(&[">rows", "how", ">block", ">to the GPU", ">to the host", ">on the GPU"]);
    let (mut between, mut all) = (0.0, 0.0);
    for batch in &latency.batches {
        for arm in &batch.pipelines {
            let last = arm.blocks.len().saturating_sub(1);
            for (number, block) in arm.blocks.iter().enumerate() {
                if arm.name == PROCESSES || arm.name == THREADS {
                    between += if number > 0 { block.to_device } else { 0.0 };
                    between += if number < last { block.to_host } else { 0.0 };
                }
                let name = number.to_string();
                let copies = [block.to_device, block.to_host, block.on_device];
                all += copies.iter().sum::<f64>();
                table.add_row(
                    [batch.rows.to_string(), arm.name.clone(), name]
                        .into_iter()
                        .chain(copies.map(|count| format!("{count:.1}"))),
                );
            }
        }
    }
    let seen = match between {
        _ if all == 0.0 => "Nothing was copied: there is no GPU.".to_owned(),
        0.0 => "Between the first block and the last, TensorMQ copies nothing between host and GPU: only the \
                 first copies to the GPU, and only the last from it."
            .to_owned(),
        count => format!(
            "Between the first block and the last, there were {count:.1} copies between host and GPU with \
             TensorMQ, added up over all batches."
        ),
    };
    let words = vec![
        seen,
        "Copies per request, counted in the process that runs each block. The thesis (figure 4.9) sees about 9 MB over PCIe for \
         two requests with ZeroMQ, and none with TensorMQ."
            .to_owned(),
    ];
    let title = "Copies between host and device";
    PageSection { title, words, pictures: Vec::new(), tables: vec![table] }
}

/// Figure 4.10.
pub(crate) fn energy_section(energy: &EnergyReport) -> PageSection {
    let first = energy.batches.first();
    let joules = |name: &str| {
        let arm = first.and_then(|batch| batch.arms.iter().find(|arm| arm.name == name));
        arm.and_then(|arm| arm.joules_per_row)
    };
    let millijoules = |name| or_dash(joules(name), |joules| format!("{:.0} mJ", joules * 1e3));
    let words = match joules(WHOLE_MODEL) {
        Some(_) => format!(
            "With {} a request, a row takes {} in the whole model, {} in blocks on threads, {} in processes \
             with TensorMQ and {} with ZeroMQ.",
            rows_label(first.map_or(0, |batch| batch.rows)),
            millijoules(WHOLE_MODEL),
            millijoules(THREADS),
            millijoules(PROCESSES),
            millijoules(ZMQ),
        ),
        None => "There are no figures: NVML tells the energy of GPUs only.".to_owned(),
    };
    let idle = or_dash(energy.idle_watts, |watts| format!("{watts:.0} W"));
    let thesis = format!(
        "The GPU draws {idle} while nobody asks, which is part of all figures. The thesis (figure 4.10) has 710 mJ \
         with TensorMQ and 1,920 mJ with ZeroMQ for one row, and less per row in larger batches."
    );
    let series = [WHOLE_MODEL, THREADS, PROCESSES, ZMQ].map(|name| {
        let of = |batch: &energy::EnergyBatch| {
            let arm = batch.arms.iter().find(|arm| arm.name == name);
            arm.and_then(|arm| arm.joules_per_row).map_or(f64::NAN, |joules| joules * 1e3)
        };
        (name.to_owned(), energy.batches.iter().map(of).collect())
    });
    let picture = BarChart {
        title: "Energy per row".to_owned(),
        y_label: "energy (mJ)".to_owned(),
        groups: energy.batches.iter().map(|batch| rows_label(batch.rows)).collect(),
        series: series.into(),
    };
    PageSection {
        title: "Energy",
        words: vec![words, thesis],
        pictures: draw_if_any(&picture).into_iter().collect(),
        tables: vec![energy::energy_table(energy)],
    }
}

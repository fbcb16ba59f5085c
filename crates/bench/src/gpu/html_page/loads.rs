//! Sections on many requests at the same time: clients, random arrivals and the throughput.

use tessera_report::picture::bars::BarChart;
use tessera_report::picture::lines::{LineChart, LineSeries};
use tessera_report::picture::{AxisKind, ChartAxis};
use tessera_report::{PageSection, format_milliseconds};

use super::super::arrivals::{self, ArrivalStep, ArrivalSweep};
use super::super::clients::{self, ClientSweep};
use super::super::throughput::{self, GpuThroughput};
use super::super::{PROCESSES, ZMQ};

/// Figure 4.11.
pub(crate) fn clients_section(all: &[ClientSweep]) -> PageSection {
    let mut words = Vec::new();
    for ClientSweep { name, steps } in all {
        if let (Some(first), Some(last)) = (steps.first(), steps.last()) {
            words.push(format!(
                "{name}: {} with {} client, {} with {} (medians), and {:.0} answers per second then.",
                format_milliseconds(first.median_ms),
                first.clients,
                format_milliseconds(last.median_ms),
                last.clients,
                last.answers_per_second
            ));
        }
    }
    words.push(
        "In the thesis (figure 4.11) the latency stays at about 18 ms with TensorMQ up to four clients and rises with \
         each one from five on; that of ZeroMQ is above it throughout. There are no batches in it."
            .to_owned(),
    );
    let picture = |title: &str, y_label: &str, value: fn(&clients::ClientStep) -> f64| {
        let series = all.iter().map(|arm| LineSeries {
            name: arm.name.clone(),
            points: arm.steps.iter().map(|step| (step.clients as f64, value(step))).collect(),
        });
        let picture = LineChart {
            title: title.to_owned(),
            x: ChartAxis::new(AxisKind::Linear, "clients"),
            y: ChartAxis::new(AxisKind::FromZero, y_label),
            series: series.collect(),
            mark: None,
        };
        picture.to_inline_svg()
    };
    PageSection {
        title: "Clients that wait for their answers",
        words,
        pictures: vec![
            picture("Mean latency", "latency (ms)", |step| step.mean_ms),
            picture("Answers", "per second", |step| step.answers_per_second),
        ],
        tables: vec![clients::clients_table(all)],
    }
}

/// Figures 4.12 and 4.13.
pub(crate) fn arrivals_section(all: &[ArrivalSweep]) -> PageSection {
    let saturation = |name: &str| {
        let arm = all.iter().find(|arm| arm.name == name);
        arm.map(|arm| arm.saturation_per_second)
    };
    let mut words: Vec<String> = all
        .iter()
        .map(|arm| {
            format!(
                "{}: at most {:.0} answers per second; requests may take {:.0} ms.",
                arm.name, arm.saturation_per_second, arm.deadline_ms
            )
        })
        .collect();
    if let (Some(tensormq), Some(zmq)) = (saturation(PROCESSES), saturation(ZMQ)) {
        words.push(format!(
            "TensorMQ saturates at {:.2} times the rate of ZeroMQ. In the thesis (figure 4.12) it is 217 tensors per second to \
             160: 1.36 times; beyond that, ZeroMQ falls to 97 to 125.",
            tensormq / zmq
        ));
    }
    words.push(
        "What can't be answered in time is refused instead of kept. In the thesis (figure 4.13) video memory grows beyond \
         saturation with TensorMQ, as tensors wait on the GPU."
            .to_owned(),
    );
    let picture =
        |title: &str, y_label: &str, value: &dyn Fn(&ArrivalSweep, &ArrivalStep) -> f64| {
            let series = all.iter().map(|arm| LineSeries {
                name: arm.name.clone(),
                points: arm
                    .steps
                    .iter()
                    .map(|step| (step.part_of_capacity * arm.capacity_per_second, value(arm, step)))
                    .collect(),
            });
            let picture = LineChart {
                title: title.to_owned(),
                x: ChartAxis::new(AxisKind::Linear, "requests per second"),
                y: ChartAxis::new(AxisKind::FromZero, y_label),
                series: series.collect(),
                mark: None,
            };
            picture.to_inline_svg()
        };
    let memory = |arm: &ArrivalSweep, step: &ArrivalStep| match (step.used, arm.used_before_bytes) {
        (Some(used), Some(before)) => (used.mean_bytes - before as f64) / 1e6,
        _ => f64::NAN,
    };
    let mut pictures =
        vec![picture("Answers by rate", "answers per second", &|_, step| step.answers_per_second)];
    if all.iter().any(|arm| arm.steps.iter().any(|step| memory(arm, step).is_finite())) {
        let title = "Video memory by rate, beyond what was in use before";
        pictures.push(picture(title, "mean (MB)", &memory));
    }
    PageSection {
        title: "Requests that come at random",
        words,
        pictures,
        tables: vec![arrivals::arrivals_table(all)],
    }
}

/// Rows per second at most.
pub(crate) fn throughput_section(throughput: &GpuThroughput) -> PageSection {
    let best = throughput.best_whole_rows_per_second;
    let mut words = vec![format!(
        "The whole model in one session does {best:.0} rows per second in its best batch, run after run. Units get requests \
         of one row each, and put them together themselves."
    )];
    for rate in &throughput.pipelines {
        words.push(format!(
            "{}: {:.0} rows per second with {} clients, {:.3} times the whole model.",
            rate.name, rate.rows_per_second, rate.clients, rate.over_best_whole
        ));
    }
    let whole =
        throughput.whole.iter().map(|rate| (format!("whole, {}", rate.rows), rate.rows_per_second));
    let pipelines =
        throughput.pipelines.iter().map(|rate| (rate.name.clone(), rate.rows_per_second));
    let (groups, rates) = whole.chain(pipelines).unzip();
    let picture = BarChart {
        title: "Throughput".to_owned(),
        y_label: "rows per second".to_owned(),
        groups,
        series: vec![("rows per second".to_owned(), rates)],
    };
    PageSection {
        title: "Throughput",
        words,
        pictures: vec![picture.to_inline_svg()],
        tables: vec![throughput::throughput_table(throughput)],
    }
}

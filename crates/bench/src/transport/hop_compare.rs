//! `tessera bench hop --compare`: every transport at three sizes, beside Python that pickles.

use std::process::{Command, Stdio};
use std::time::Duration;
use tessera_report::{Table, output};

use serde::{Deserialize, Serialize};
use tessera_core::Result;
use tessera_tensormq::{EndpointOptions, Transport};

use super::hop::{BenchHop, HopMeasurement, HopReport, measure_hop};
use super::peer::median_and_p99;
use super::stream::{self, StreamWay, compare_streams, ways_between_hosts};

/// 4 KB; between blocks of a ResNet-50, at batch 1 and 4.
const SIZES: [usize; 3] = [4096, 3_211_264, 12_845_056];
/// Each is measured this often, in turns; the median counts.
const ROUNDS: usize = 5;
/// Long enough that the receiver sleeps.
const GAP: Duration = Duration::from_micros(200);
/// The program of the baseline.
const PICKLED_PROGRAM: &str = include_str!("pickled_zmq.py");

#[derive(Serialize)]
struct HopComparison {
    hops: Vec<HopReport>,
    /// Streams of the middle size over tcp and zmq-tcp, beside a plain socket.
    streams: Vec<stream::StreamReport>,
    /// What was compared with, or why not.
    python: String,
    /// shm, largest over smallest.
    shm_largest_over_smallest: f64,
    /// Pickled over ipc over shm, at the middle size.
    pickled_over_shm: Option<f64>,
    /// Pickled over tcp over zmq-tcp, at the middle size.
    pickled_over_zmq_tcp: Option<f64>,
}

#[derive(Deserialize)]
struct PickledResult {
    pyzmq: String,
    libzmq: String,
    tensor: String,
    us: Vec<f64>,
}

pub(crate) fn bench_hop_comparison(arguments: &BenchHop) -> Result<()> {
    let (samples, python) = measure_all(arguments)?;
    let ways: Vec<StreamWay> =
        ways_between_hosts().into_iter().filter(|way| !way.encrypted).collect();
    let streams = compare_streams(&ways, SIZES[1], arguments.lanes)?.streams;
    let ratio = |above, below| paired_ratio(&samples, above, below);
    let report = HopComparison {
        shm_largest_over_smallest: ratio(("shm", SIZES[2]), ("shm", SIZES[0])).unwrap_or(f64::NAN),
        pickled_over_shm: ratio(("pickled, ipc", SIZES[1]), ("shm", SIZES[1])),
        pickled_over_zmq_tcp: ratio(("pickled, tcp", SIZES[1]), ("zmq-tcp", SIZES[1])),
        hops: samples.iter().filter_map(|rounds| median_of(rounds)).collect(),
        streams,
        python,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    let mut table = Table::new(&["one way, µs", ">4 KB", ">3.2 MB", ">12.8 MB"]);
    let mut names: Vec<&str> = Vec::new();
    for row in &report.hops {
        if !names.contains(&row.transport.as_str()) {
            names.push(&row.transport);
        }
    }
    for name in names {
        let cell = |bytes: usize| {
            let row = report.hops.iter().find(|row| row.transport == name && row.bytes == bytes);
            row.map_or("–".to_owned(), |row| format!("{:.1} ({:.0})", row.median_us, row.p99_us))
        };
        table.add_row([name.to_owned(), cell(SIZES[0]), cell(SIZES[1]), cell(SIZES[2])]);
    }
    table.print_table()?;
    output::print_line(
        "median, in brackets what 99 of 100 are below; in turns, each as soon as the last",
    )?;
    output::print_line(&format!(
        "is answered; \"asleep\": after {} µs of silence",
        GAP.as_micros()
    ))?;
    output::print_line(&format!("compared with {}", report.python))?;
    let times = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1}"));
    output::print_line(&format!(
        "shm, 12.8 MB over 4 KB: {:.2}; pickled over shm at 3.2 MB: {}; pickled over zmq-tcp: {}",
        report.shm_largest_over_smallest,
        times(report.pickled_over_shm),
        times(report.pickled_over_zmq_tcp)
    ))?;
    for stream in &report.streams {
        output::print_line(&format!(
            "stream of 3.2 MB over {}: {:.0} MB/s, {:.2} of the {:.0} MB/s of a plain socket",
            stream.transport, stream.mb_per_s, stream.ratio, stream.plain_socket_mb_per_s
        ))?;
    }
    Ok(())
}

/// All of them in turns, so that what else the machine does hits all alike.
fn measure_all(arguments: &BenchHop) -> Result<(Vec<Vec<HopReport>>, String)> {
    let spin = EndpointOptions::default().spin_time;
    let mut samples: Vec<Vec<HopReport>> = Vec::new();
    let mut python = Err("none of the comparisons ran".to_owned());
    let bar = output::progress_bar((ROUNDS * SIZES.len() * 8) as u64, "measuring");
    for _ in 0..ROUNDS {
        let mut place = 0;
        let mut keep = |hop: HopReport| {
            if samples.len() <= place {
                samples.push(Vec::new());
            }
            samples[place].push(hop);
            place += 1;
            bar.inc(1);
        };
        // The sizes of a transport one right after the other: that is what is compared most
        // closely.
        for (transport, gap) in [
            (Transport::THREAD, Duration::ZERO),
            (Transport::SHM, Duration::ZERO),
            (Transport::SHM, GAP),
            (Transport::TCP, Duration::ZERO),
            (Transport::ZMQ_IPC, Duration::ZERO),
            (Transport::ZMQ_TCP, Duration::ZERO),
        ] {
            if transport.check_built_in().is_err() {
                continue;
            }
            for bytes in SIZES {
                let whole =
                    matches!(transport, Transport::TCP | Transport::ZMQ_IPC | Transport::ZMQ_TCP);
                let count = match () {
                    () if whole && bytes > 100_000 => 200,
                    () if whole || gap > Duration::ZERO => 2000,
                    () => 50_000,
                };
                let mut hop = measure_hop(HopMeasurement { transport, bytes, count, gap, spin })?;
                if gap > Duration::ZERO {
                    hop.transport.push_str(", asleep");
                }
                keep(hop);
            }
        }
        for transport in ["ipc", "tcp"] {
            for bytes in SIZES {
                let count = if bytes > 100_000 { 60 } else { 1000 };
                match measure_pickled(&arguments.python, transport, bytes, count) {
                    Ok((hop, name)) => {
                        python = Ok(name);
                        keep(hop);
                    }
                    Err(reason) => python = Err(reason),
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok((samples, python.unwrap_or_else(|reason| format!("nothing in Python: {reason}"))))
}

/// The rounds of one measurement as one: the medians of their medians and of their 99th parts.
fn median_of(rounds: &[HopReport]) -> Option<HopReport> {
    let middle = |of: fn(&HopReport) -> f64| {
        median_and_p99(&mut rounds.iter().map(of).collect::<Vec<_>>()).0
    };
    let (median_us, p99_us) = (middle(|hop| hop.median_us), middle(|hop| hop.p99_us));
    Some(HopReport { median_us, p99_us, ..rounds.last()?.clone() })
}

/// One measurement over another: in each round, and of these the median.
fn paired_ratio(
    samples: &[Vec<HopReport>],
    above: (&str, usize),
    below: (&str, usize),
) -> Option<f64> {
    let rounds = |(name, bytes): (&str, usize)| {
        let is = |hop: &HopReport| hop.transport == name && hop.bytes == bytes;
        samples.iter().find(|rounds| rounds.first().is_some_and(is))
    };
    let ratios = rounds(above)?.iter().zip(rounds(below)?).map(|(a, b)| a.median_us / b.median_us);
    Some(median_and_p99(&mut ratios.collect::<Vec<_>>()).0)
}

/// The same with Python's pickle; the reason where it can't be measured.
fn measure_pickled(
    python: &str,
    transport: &str,
    bytes: usize,
    count: usize,
) -> Result<(HopReport, String), String> {
    let output = Command::new(python)
        .args(["-c", PICKLED_PROGRAM, transport, &bytes.to_string(), &count.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{python}: {error}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let last = words.lines().last().unwrap_or("it failed").to_owned();
        return Err(format!("{python}: {last}"));
    }
    let mut pickled: PickledResult =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{python}: {error}"))?;
    let (median_us, p99_us) = median_and_p99(&mut pickled.us);
    let name = format!(
        "pyzmq {} (libzmq {}), {}, pickle protocol 5",
        pickled.pyzmq, pickled.libzmq, pickled.tensor
    );
    let transport = format!("pickled, {transport}");
    let count = pickled.us.len();
    Ok((HopReport { transport, bytes, count, gap_us: 0.0, spin_us: 0.0, median_us, p99_us }, name))
}

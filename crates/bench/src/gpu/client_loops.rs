//! Many requests at the same time: clients that wait for their answers, and requests that come at
//! random.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tessera_core::{Error, ErrorKind, Random, Result, Tensor};
use tokio::task::JoinHandle;

use super::GpuBenchSetup;
use super::pipeline::BenchPipeline;

/// Different inputs that clients take turns with.
const INPUTS: usize = 8;
/// What part of the time goes before the measurement: the pipeline fills first.
const WARM_UP: f64 = 0.2;

/// What clients that wait for their answers saw.
pub(crate) struct ClosedLoopResult {
    pub(crate) times: Vec<Duration>,
    pub(crate) per_second: f64,
}

impl ClosedLoopResult {
    pub(crate) fn mean_ms(&self) -> f64 {
        let sum: f64 = self.times.iter().map(|time| time.as_secs_f64() * 1e3).sum();
        sum / self.times.len() as f64
    }

    pub(crate) fn median_ms(&self) -> f64 {
        super::latency::median_of_values(self.times.iter().map(|time| time.as_secs_f64() * 1e3))
    }
}

/// What became of requests that came at random.
#[derive(Default)]
pub(crate) struct OpenLoopResult {
    /// Those that came in the measured time.
    pub(crate) came: usize,
    /// Answers that there were in the measured time.
    pub(crate) answered: usize,
    /// Of those that came in the measured time.
    pub(crate) refused: usize,
    pub(crate) late: usize,
    /// How long those that were answered took, from when they were due.
    pub(crate) times: Vec<Duration>,
}

/// Inputs of one row, in memory that the pipeline's units can read.
pub(crate) fn one_row_inputs(
    setup: &GpuBenchSetup,
    pipeline: &BenchPipeline,
) -> Result<Vec<Tensor>> {
    let given = setup.random_input(1)?;
    (0..INPUTS).map(|_| pipeline.copy_input(&given)).collect()
}

/// So many clients for so long, each with one request of one row at a time.
pub(crate) fn run_closed_loop(
    pipeline: &BenchPipeline,
    inputs: &[Tensor],
    clients: usize,
    seconds: f64,
) -> Result<ClosedLoopResult> {
    let clients = clients.max(1);
    let from = Instant::now() + Duration::from_secs_f64(seconds * WARM_UP);
    let to = from + Duration::from_secs_f64(seconds);
    let counted = Arc::new(AtomicUsize::new(0));
    let asked = pipeline.block_on(async {
        let start = |client: usize| -> JoinHandle<Result<Vec<(Instant, Duration)>>> {
            let (pipeline_client, counted) = (pipeline.new_client(), Arc::clone(&counted));
            let input = inputs[client % inputs.len()].clone();
            tokio::spawn(async move {
                let mut seen = Vec::new();
                // Where it is slow, until there is an answer for each of them.
                while Instant::now() < to || counted.load(Ordering::Relaxed) < clients {
                    let start = Instant::now();
                    pipeline_client.infer_within(&input, None).await?;
                    let end = Instant::now();
                    if end >= from {
                        counted.fetch_add(1, Ordering::Relaxed);
                        seen.push((end, end - start));
                    }
                }
                Ok(seen)
            })
        };
        join_all((0..clients).map(start).collect()).await
    });
    // What happened to each is not looked at.
    pipeline.take_hop_timings();
    let mut seen: Vec<(Instant, Duration)> = asked?.into_iter().flatten().collect();
    seen.sort();
    let in_time = seen.partition_point(|&(end, _)| end <= to);
    let (count, end) = if in_time >= clients {
        (in_time, to)
    } else {
        let count = clients.min(seen.len());
        (count, seen[..count].last().map_or(to, |&(end, _)| end))
    };
    let times: Vec<Duration> = seen[..count].iter().map(|&(_, took)| took).collect();
    Ok(ClosedLoopResult { times, per_second: count as f64 / (end - from).as_secs_f64() })
}

enum OpenLoopOutcome {
    Answered,
    Refused,
    Late,
}

/// Requests of one row that come at random, at this rate, and must be answered within the deadline.
///
/// Timers have a step of a millisecond: what is due within one comes at once.
pub(crate) fn run_open_loop(
    pipeline: &BenchPipeline,
    inputs: &[Tensor],
    rate: f64,
    seconds: f64,
    deadline: Duration,
    seed: u64,
) -> Result<OpenLoopResult> {
    let start = Instant::now();
    let from = start + Duration::from_secs_f64(seconds * WARM_UP);
    let to = from + Duration::from_secs_f64(seconds);
    let asked = pipeline.block_on(async {
        let mut random = Random::new(seed);
        let mut after = 0.0;
        let mut under_way: Vec<JoinHandle<Result<(Instant, Instant, OpenLoopOutcome)>>> =
            Vec::new();
        loop {
            after -= random.next_fraction().ln() / rate;
            let due = match Duration::try_from_secs_f64(after) {
                Ok(after) if start + after < to => start + after,
                _ => break,
            };
            tokio::time::sleep_until(due.into()).await;
            let input = inputs[under_way.len() % inputs.len()].clone();
            let pipeline_client = pipeline.new_client();
            under_way.push(tokio::spawn(async move {
                let answer = pipeline_client.infer_within(&input, Some(deadline)).await;
                let outcome = match answer.map_err(|error| (error.kind(), error)) {
                    Ok(_) => OpenLoopOutcome::Answered,
                    Err((ErrorKind::Full, _)) => OpenLoopOutcome::Refused,
                    Err((ErrorKind::TimedOut, _)) => OpenLoopOutcome::Late,
                    Err((_, error)) => return Err(error),
                };
                Ok((due, Instant::now(), outcome))
            }));
            // Where many are due at once, those under way have their turn, too.
            tokio::task::yield_now().await;
        }
        join_all(under_way).await
    });
    pipeline.take_hop_timings();
    let mut offered = OpenLoopResult::default();
    for (due, end, outcome) in asked? {
        offered.came += usize::from(due >= from);
        match outcome {
            OpenLoopOutcome::Answered if (from..=to).contains(&end) => {
                offered.answered += 1;
                offered.times.push(end - due);
            }
            OpenLoopOutcome::Answered => {}
            OpenLoopOutcome::Refused => offered.refused += usize::from(due >= from),
            OpenLoopOutcome::Late => offered.late += usize::from(due >= from),
        }
    }
    Ok(offered)
}

/// Waits for all; the first error ends it.
async fn join_all<T>(tasks: Vec<JoinHandle<Result<T>>>) -> Result<Vec<T>> {
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        let result = task.await.map_err(|error| Error::lost(format!("a client: {error}")))?;
        results.push(result?);
    }
    Ok(results)
}

//! A request from the moment it was accepted to its answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, Tensor, TensorMut, concatenate_rows};
use tessera_deploy::{HopTiming, TaskRoute};
use tessera_graph::check_inputs;
use tessera_tensormq::{Deadline, RequestId, TraceContext};
use tokio::sync::oneshot;

use crate::inference::{InferenceResponse, Refusal};
use crate::routing_table::TaskEntry;

/// What a client gets.
pub(crate) type InferenceResult = Result<InferenceResponse, Refusal>;

/// A request that is not answered yet.
pub(crate) struct PendingRequest {
    pub(crate) number: RequestId,
    pub(crate) id: String,
    pub(crate) entry: Arc<TaskEntry>,
    pub(crate) rows: usize,
    /// Bytes of its inputs.
    pub(crate) bytes: usize,
    /// What it was expected to cost, in seconds of computing.
    pub(crate) cost: f64,
    pub(crate) accepted: u64,
    /// When it is its turn, by the same clock.
    pub(crate) turn: u64,
    /// The generation of the table that it was accepted under.
    pub(crate) generation: u64,
    pub(crate) deadline: Deadline,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) result_sender: Option<oneshot::Sender<InferenceResult>>,
    /// One, or one per row where rows may leave at exits.
    pub(crate) parts: Vec<RequestPart>,
    pub(crate) hop_timings: Vec<HopTiming>,
    pub(crate) retries: u32,
    /// Why it is to end at the last exit that is in reach, where it is.
    pub(crate) ends_early: Option<String>,
    /// Whether it counts among those that end at an exit.
    pub(crate) is_exit_load: bool,
}

/// A part of a request, which travels on its own.
pub(crate) struct RequestPart {
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) tries: u32,
    pub(crate) result: Option<PartResult>,
    /// The scores of the last exit that was not certain enough.
    pub(crate) standby: Option<(usize, Tensor)>,
    /// Whether it has come to its end without a result.
    pub(crate) has_failed: bool,
}

/// What came of a part.
pub(crate) struct PartResult {
    pub(crate) outputs: Vec<Tensor>,
    pub(crate) exit: Option<usize>,
}

impl PendingRequest {
    #[expect(clippy::too_many_arguments, reason = "these are the fields of a request")]
    pub(crate) fn new(
        number: RequestId,
        id: String,
        entry: Arc<TaskEntry>,
        inputs: Vec<Tensor>,
        rows: usize,
        accepted: u64,
        deadline: Deadline,
        trace: Option<TraceContext>,
        result_sender: oneshot::Sender<InferenceResult>,
    ) -> Result<Self> {
        let bytes = inputs.iter().map(Tensor::byte_len).sum();
        let splits = !entry.route.exits.is_empty() && entry.route.max_rows > 0 && rows > 1;
        let part = |inputs| RequestPart {
            inputs,
            tries: 0,
            result: None,
            standby: None,
            has_failed: false,
        };
        let parts = if splits {
            (0..rows)
                .map(|row| {
                    Ok(part(inputs.iter().map(|i| i.slice_rows(row, 1)).collect::<Result<_>>()?))
                })
                .collect::<Result<_>>()?
        } else {
            vec![part(inputs)]
        };
        Ok(Self {
            number,
            id,
            entry,
            rows,
            bytes,
            cost: 0.0,
            turn: accepted,
            accepted,
            generation: 0,
            deadline,
            trace,
            result_sender: Some(result_sender),
            parts,
            hop_timings: Vec::new(),
            retries: 0,
            ends_early: None,
            is_exit_load: false,
        })
    }

    /// Learns how long it was on its way, where it came to the end of its route: by the reply it was
    /// accepted so much later than it was.
    pub(crate) fn note_way(&self, accepted: u64) {
        let way = accepted.saturating_sub(self.accepted);
        if way > 0 && self.retries == 0 {
            self.entry.least_way.note_way(Duration::from_nanos(way), Instant::now());
        }
    }

    /// What it took to compute, where every part was computed.
    pub(crate) fn computed_seconds(&self) -> Option<f64> {
        self.parts.iter().all(|part| part.result.is_some()).then(|| {
            let nanoseconds: u64 = self
                .hop_timings
                .iter()
                // A batch is computed once for all its rows.
                .map(|hop| hop.computed / hop.batch.max(1) * hop.rows)
                .sum();
            nanoseconds as f64 / 1e9
        })
    }

    /// Whether every part has come to its end.
    pub(crate) fn is_over(&self) -> bool {
        self.parts.iter().all(|part| part.result.is_some() || part.has_failed)
    }

    /// The answer, where every part has one.
    pub(crate) fn complete_result(&self) -> Option<InferenceResult> {
        self.parts.iter().all(|part| part.result.is_some()).then(|| self.assemble_response(None))
    }

    /// The answer with the scores of exits that were not certain enough, where every part has
    /// something.
    pub(crate) fn degraded_result(&self, reason: &str) -> Option<InferenceResult> {
        let all = self.parts.iter().all(|part| part.result.is_some() || part.standby.is_some());
        (all && self.entry.route.degrade).then(|| self.assemble_response(Some(reason)))
    }

    fn assemble_response(&self, reason: Option<&str>) -> InferenceResult {
        let route = &self.entry.route;
        let mut columns: Vec<Vec<Tensor>> = vec![Vec::new(); route.outputs.len()];
        let mut exits = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let (outputs, exit) = match (&part.result, &part.standby) {
                (Some(result), _) => (result.outputs.clone(), result.exit),
                (None, Some((exit, scores))) => (vec![scores.clone()], Some(*exit)),
                (None, None) => return Err(Error::lost("a part of the answer is missing").into()),
            };
            // An exit has one output, which stands for one of the task's.
            let places: Vec<usize> = match exit.and_then(|exit| route.exits.get(exit)) {
                Some(exit) => vec![exit.output],
                None => (0..route.outputs.len()).collect(),
            };
            if outputs.len() != places.len() {
                return Err(Error::engine(format!(
                    "{} outputs came back, expected {}",
                    outputs.len(),
                    places.len()
                ))
                .into());
            }
            for (place, output) in places.into_iter().zip(outputs) {
                columns[place].push(output);
            }
            exits.push(exit.and_then(|exit| Some(route.exits.get(exit)?.name.clone())));
        }
        let outputs = route
            .outputs
            .iter()
            .zip(columns)
            .filter(|(_, column)| !column.is_empty())
            .map(|(port, column)| Ok((port.name.clone(), stack_rows(column)?)))
            .collect::<Result<Vec<_>>>()?;
        if exits.iter().all(Option::is_none) {
            exits.clear();
        } else if exits.len() == 1 {
            exits = vec![exits[0].clone(); self.rows];
        }
        Ok(InferenceResponse { outputs, exits, degraded: reason.map(str::to_owned) })
    }
}

/// The inputs of a request in the order of its route, checked, and how many rows they have.
pub(crate) fn check_request_inputs(
    entry: &TaskEntry,
    inputs: &[(String, Tensor)],
) -> Result<(Vec<Tensor>, usize)> {
    let route = &entry.route;
    let inputs = order_inputs(entry, inputs)?;
    check_inputs(&route.inputs, &inputs, route.relies_on_dim_names)?;
    let rows = count_rows(route, &inputs)?;
    Ok((inputs, rows))
}

/// Inputs in the order of the route; what stands for those that are left out.
fn order_inputs(entry: &TaskEntry, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
    let route = &entry.route;
    let names = || {
        let names: Vec<&str> = route.inputs.iter().map(|port| port.name.as_str()).collect();
        names.join(", ")
    };
    let mut found: Vec<Option<Tensor>> = vec![None; route.inputs.len()];
    for (name, tensor) in inputs {
        let Some(index) = route.inputs.iter().position(|port| port.name == *name) else {
            return Err(Error::invalid(format!("unknown input \"{name}\", expected {}", names())));
        };
        if found[index].replace(tensor.clone()).is_some() {
            return Err(Error::invalid(format!("input \"{name}\" is there twice")));
        }
    }
    for (found, default) in found.iter_mut().zip(&entry.default_inputs) {
        if found.is_none() {
            found.clone_from(default);
        }
    }
    let missing = found.iter().position(Option::is_none);
    match missing {
        Some(index) => {
            let port = &route.inputs[index];
            Err(Error::invalid(format!(
                "input \"{}\" is missing, expected {}",
                port.name, port.tensor_type
            )))
        }
        None => Ok(found.into_iter().flatten().collect()),
    }
}

/// The rows of a request.
fn count_rows(route: &TaskRoute, inputs: &[Tensor]) -> Result<usize> {
    if route.max_rows == 0 {
        return Ok(1);
    }
    let rows_of = |input: &Tensor| input.shape().first().copied().unwrap_or(1);
    let rows = inputs.first().map_or(1, rows_of);
    if let Some(other) = inputs.iter().position(|input| rows_of(input) != rows) {
        let name = |index: usize| route.inputs.get(index).map_or("", |port| port.name.as_str());
        return Err(Error::invalid(format!(
            "input \"{}\" has {} rows, and input \"{}\" has {rows}",
            name(other),
            rows_of(&inputs[other]),
            name(0)
        )));
    }
    if rows > route.max_rows {
        return Err(Error::invalid(format!(
            "a batch of {rows} rows, expected at most {}",
            route.max_rows
        )));
    }
    Ok(rows)
}

/// Rows one after the other.
fn stack_rows(mut parts: Vec<Tensor>) -> Result<Tensor> {
    if parts.len() == 1
        && let Some(only) = parts.pop()
    {
        return only.wait_fence_on_host();
    }
    let parts: Vec<&Tensor> = parts.iter().collect();
    // Whatever does not fit is no fault of the client.
    concatenate_rows(&parts, TensorMut::new_zeroed)
        .map_err(|error| Error::engine(format!("the rows of an output: {error}")))
}

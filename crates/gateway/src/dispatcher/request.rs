//! A request from the moment it was accepted to its answer.

use std::collections::HashMap;
use std::sync::Arc;

use tessera_core::{Error, Result, Tensor, TensorMut};
use tessera_plan::Record;
use tessera_tensormq::{Deadline, RequestId, TraceContext};
use tokio::sync::oneshot;

use super::table::TaskEntry;
use crate::service::{Answer, Refusal};

/// What a client gets.
pub(super) type Reply = Result<Answer, Refusal>;

/// A request that is not answered yet.
pub(super) struct Pending {
    pub(super) number: RequestId,
    pub(super) id: String,
    pub(super) entry: Arc<TaskEntry>,
    pub(super) rows: usize,
    /// Bytes of its inputs.
    pub(super) bytes: usize,
    /// What it was expected to cost, in seconds of computing.
    pub(super) cost: f64,
    pub(super) accepted: u64,
    pub(super) deadline: Deadline,
    pub(super) trace: Option<TraceContext>,
    pub(super) answer: Option<oneshot::Sender<Reply>>,
    /// One, or one per row where rows may leave at exits.
    pub(super) parts: Vec<Part>,
    pub(super) records: Vec<Record>,
    pub(super) retries: u32,
}

/// A part of a request, which travels on its own.
pub(super) struct Part {
    pub(super) inputs: Vec<Tensor>,
    pub(super) tries: u32,
    pub(super) result: Option<PartResult>,
    /// The scores of the last exit that was not certain enough.
    pub(super) standby: Option<(usize, Tensor)>,
    /// Whether it has come to its end without a result.
    pub(super) has_failed: bool,
}

/// What came of a part.
pub(super) struct PartResult {
    pub(super) outputs: Vec<Tensor>,
    pub(super) exit: Option<usize>,
}

impl Pending {
    #[expect(clippy::too_many_arguments, reason = "these are the fields of a request")]
    pub(super) fn new(
        number: RequestId,
        id: String,
        entry: Arc<TaskEntry>,
        inputs: Vec<Tensor>,
        rows: usize,
        accepted: u64,
        deadline: Deadline,
        trace: Option<TraceContext>,
        answer: oneshot::Sender<Reply>,
    ) -> Result<Self> {
        let bytes = inputs.iter().map(Tensor::byte_len).sum();
        let splits = !entry.route.exits.is_empty() && entry.route.max_rows > 0 && rows > 1;
        let part =
            |inputs| Part { inputs, tries: 0, result: None, standby: None, has_failed: false };
        let parts = if splits {
            (0..rows)
                .map(|row| Ok(part(inputs.iter().map(|i| i.rows(row, 1)).collect::<Result<_>>()?)))
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
            accepted,
            deadline,
            trace,
            answer: Some(answer),
            parts,
            records: Vec::new(),
            retries: 0,
        })
    }

    /// Whether every part has come to its end.
    pub(super) fn is_over(&self) -> bool {
        self.parts.iter().all(|part| part.result.is_some() || part.has_failed)
    }

    /// The answer, where every part has one.
    pub(super) fn answered(&self) -> Option<Reply> {
        self.parts.iter().all(|part| part.result.is_some()).then(|| self.assemble(None))
    }

    /// The answer with the scores of exits that were not certain enough, where every part has something.
    pub(super) fn degraded(&self, why: &str) -> Option<Reply> {
        let all = self.parts.iter().all(|part| part.result.is_some() || part.standby.is_some());
        (all && self.entry.route.degrade).then(|| self.assemble(Some(why)))
    }

    fn assemble(&self, why: Option<&str>) -> Reply {
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
            .map(|(port, column)| Ok((port.name.clone(), stacked(column)?)))
            .collect::<Result<Vec<_>>>()?;
        if exits.iter().all(Option::is_none) {
            exits.clear();
        } else if exits.len() == 1 {
            exits = vec![exits[0].clone(); self.rows];
        }
        Ok(Answer { outputs, exits, degraded: why.map(str::to_owned) })
    }
}

/// Rows one after the other.
fn stacked(mut parts: Vec<Tensor>) -> Result<Tensor> {
    if parts.len() == 1
        && let Some(only) = parts.pop()
    {
        return only.settled();
    }
    let first = parts.first().ok_or_else(|| Error::engine("an output without parts"))?;
    let mut shape = first.shape().to_vec();
    let rows = |part: &Tensor| part.shape().first().copied().unwrap_or(1);
    if shape.is_empty() || parts.iter().any(|part| part.shape().get(1..) != shape.get(1..)) {
        return Err(Error::engine("parts of an output that don't fit each other"));
    }
    shape[0] = parts.iter().map(rows).sum();
    let mut whole = TensorMut::zeroed(first.dtype(), &shape)?;
    let unreadable = || Error::unsupported("an output that the CPU can't read");
    let mut target = whole.bytes_mut().ok_or_else(unreadable)?;
    for part in &parts {
        let bytes = part.bytes().ok_or_else(unreadable)?;
        let (here, rest) = target.split_at_mut(bytes.len().min(target.len()));
        if here.len() != bytes.len() {
            return Err(Error::engine("an output with more bytes than its shape says"));
        }
        here.copy_from_slice(bytes);
        target = rest;
    }
    Ok(whole.freeze())
}

/// A part on its way: the instances that it passes.
pub(super) struct Flight {
    pub(super) part: usize,
    pub(super) instances: Vec<String>,
    pub(super) task: String,
    /// Why it ends before the route does.
    pub(super) cut_short: Option<String>,
}

/// Flights by request and number.
pub(super) type Flights = HashMap<(RequestId, u32), Flight>;

//! A request from its first check to its one answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_core::{Error, Result};
use tessera_telemetry::RequestOutcome;
use tessera_tensormq::{Deadline, RequestId};
use tokio::sync::oneshot;

use super::cancellation::CancelOnDrop;
use super::{Dispatcher, DispatcherInner};
use crate::inference::{InferenceRequest, InferenceResponse, Refusal};
use crate::pending_request::{InferenceResult, PendingRequest, check_request_inputs};
use crate::routing_table::TaskEntry;

impl Dispatcher {
    /// Answers a request. Dropped before it is done, the request is cancelled.
    pub async fn infer(&self, request: InferenceRequest) -> Result<InferenceResponse, Refusal> {
        let task = request.task.clone();
        let accepted = self.0.accept_request(request)?;
        let AcceptedRequest { number, mut answer, deadline, degrades_at } = accepted;
        let guard = CancelOnDrop::new(&self.0, number);
        if let Some(at) = degrades_at {
            let early = tokio::time::timeout(at.remaining(), &mut answer).await;
            if let Ok(result) = early {
                return finish_inference(result, guard);
            }
            self.0.degrade_request(number, "the deadline was near");
        }
        match tokio::time::timeout(deadline.remaining(), answer).await {
            Ok(result) => finish_inference(result, guard),
            Err(_) => {
                let error = Error::timed_out(format!(
                    "task \"{task}\": the deadline passed before there was an answer"
                ));
                self.0.expire_request(number, &error);
                guard.disarm_guard();
                Err(error.into())
            }
        }
    }
}

fn finish_inference(
    result: Result<InferenceResult, oneshot::error::RecvError>,
    guard: CancelOnDrop<'_>,
) -> Result<InferenceResponse, Refusal> {
    // It has ended: there is nothing to cancel.
    guard.disarm_guard();
    result.unwrap_or_else(|_| Err(Error::lost("the dispatcher is gone").into()))
}

/// A request that was accepted.
struct AcceptedRequest {
    number: RequestId,
    /// Its answer to come.
    answer: oneshot::Receiver<InferenceResult>,
    deadline: Deadline,
    /// When a degraded answer is better than none.
    degrades_at: Option<Deadline>,
}

impl DispatcherInner {
    fn accept_request(&self, request: InferenceRequest) -> Result<AcceptedRequest, Refusal> {
        if self.is_closing.load(Ordering::Acquire) {
            return Err(Error::lost("the server is about to stop").into());
        }
        // What it is checked against may change before it is taken in; changes are rare.
        loop {
            let entry = self.lock_state().find_task(&request.task, &request.version)?;
            if let Some(accepted) = self.accept_for(&request, entry)? {
                return Ok(accepted);
            }
        }
    }

    /// Takes a request in that passes this route; `None` where it is served in another way by now.
    fn accept_for(
        &self,
        request: &InferenceRequest,
        entry: Arc<TaskEntry>,
    ) -> Result<Option<AcceptedRequest>, Refusal> {
        let within = |error: Error| error.with_context(format!("task \"{}\"", request.task));
        let (inputs, rows) = check_request_inputs(&entry, &request.inputs).map_err(within)?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let number = RequestId(u128::from(self.run_id) << 64 | u128::from(number));
        let now = Deadline::now();
        let allowed = request.timeout.unwrap_or(entry.route.deadline);
        let deadline = Deadline::after(allowed);
        let (sender, answer) = oneshot::channel();
        let mut pending = PendingRequest::new(
            number,
            request.id.clone(),
            Arc::clone(&entry),
            inputs,
            rows,
            now.nanoseconds(),
            deadline,
            request.trace,
            sender,
        )?;
        let mut state = self.lock_state();
        if !state.is_current(&entry) {
            return Ok(None);
        }
        if let Some(reason) = state.unavailable_reason(&entry) {
            let error = within(Error::lost(reason));
            self.observe_ended(&pending, RequestOutcome::Failed(&error), &[]);
            return Err(error.into());
        }
        if let Err(refusal) = state.admit_request(&mut pending, allowed) {
            let refusal = Refusal { error: within(refusal.error), ..refusal };
            self.observe_ended(&pending, RequestOutcome::Refused(&refusal.error), &[]);
            return Err(refusal);
        }
        state.insert_request(pending);
        self.send_queued(state);
        let degrades_at = entry.may_degrade().then(|| {
            // Early enough to be there in time.
            let early = (allowed / 20).min(Duration::from_millis(20));
            Deadline::after(allowed.saturating_sub(early))
        });
        Ok(Some(AcceptedRequest { number, answer, deadline, degrades_at }))
    }

    /// Answers from an exit that was not certain enough, where there is one for every row.
    fn degrade_request(&self, number: RequestId, reason: &str) {
        let mut state = self.lock_state();
        if let Some(result) = state.late_result(number, reason) {
            self.deliver_results(&mut state, vec![(number, result)]);
            self.send_queued(state);
        }
    }

    /// A request whose deadline has passed.
    fn expire_request(&self, number: RequestId, error: &Error) {
        let mut state = self.lock_state();
        if let Some(pending) = state.remove_request(number) {
            self.observe_ended(&pending, RequestOutcome::Failed(error), &[]);
        }
        self.send_queued(state);
        self.request_ended.notify_waiters();
    }
}

//! What comes of parts that were sent: a reply, scores that may do, another try, or an error.

use std::time::{Duration, Instant};

use tessera_core::{Error, Tensor};
use tessera_deploy::{ReplyOutcome, SourceRoute, UnitId};
use tessera_tensormq::RequestId;

use super::{DispatcherState, InferenceResults};
use crate::pending_request::{InferenceResult, PartResult};

/// How often a part of a request is sent again that may have ended an instance.
const MOST_RETRIES: u32 = 1;

/// Why a part is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryCause {
    /// An instance is gone that had it, and may be gone because of it.
    InstanceLost,
    /// An instance could not be reached, and never had it.
    Unreachable,
}

impl DispatcherState {
    /// A flight that no reply will come of: its part is sent again, once.
    pub(crate) fn retry_part(
        &mut self,
        request: RequestId,
        flight: u32,
        cause: RetryCause,
        reason: &str,
    ) -> InferenceResults {
        let Some(flight) = self.end_flight(request, flight) else {
            return Vec::new();
        };
        let Some(pending) = self.requests.get_mut(&request) else {
            return Vec::new();
        };
        let Some(part) = pending.parts.get_mut(flight.part).filter(|part| part.result.is_none())
        else {
            return Vec::new();
        };
        let is_enough = cause == RetryCause::InstanceLost && part.tries >= MOST_RETRIES;
        if is_enough || pending.deadline.has_passed() {
            let error = Error::lost(format!("an instance was lost: {reason}"));
            return self.fail_part(request, flight.part, error);
        }
        part.tries += u32::from(cause == RetryCause::InstanceLost);
        pending.retries += 1;
        let (task, part) = (flight.task, flight.part);
        self.waiting.push_again(task, request, part);
        Vec::new()
    }

    /// An instance can't be reached: nothing goes to it until somebody finds that it can be again.
    /// Tells whether it was known.
    pub(crate) fn note_unreachable(&mut self, instance: &str) -> bool {
        let Some(unit) = self.instances.unit_of(instance) else { return false };
        self.instances.set_out_of_reach(&unit, instance);
        self.unreachable.push((unit, instance.to_owned()));
        true
    }

    /// The instances that could not be reached since this was asked last.
    pub(crate) fn take_unreachable(&mut self) -> Vec<(UnitId, String)> {
        std::mem::take(&mut self.unreachable)
    }

    /// A flight that did not begin, as its inputs can't be brought to where they are read.
    pub(crate) fn fail_unsent(
        &mut self,
        request: RequestId,
        flight: u32,
        error: Error,
    ) -> InferenceResults {
        match self.end_flight(request, flight) {
            Some(flight) => self.fail_part(request, flight.part, error),
            None => Vec::new(),
        }
    }

    /// The result of a request that went wrong: a degraded answer where there is one.
    pub(super) fn fail_request(&self, number: RequestId, error: Error) -> InferenceResults {
        let Some(pending) = self.requests.get(&number) else {
            return Vec::new();
        };
        let result = pending.degraded_result(&error.to_string()).unwrap_or_else(|| {
            let task = &pending.entry.route.task;
            Err(error.with_context(format!("task \"{task}\"")).into())
        });
        vec![(number, result)]
    }

    /// The degraded answer of a request whose deadline is near, where there is one.
    pub(crate) fn late_result(
        &mut self,
        number: RequestId,
        reason: &str,
    ) -> Option<InferenceResult> {
        let pending = self.requests.get(&number)?;
        let result = pending.degraded_result(reason)?;
        if !pending.is_exit_load || self.in_flight.goes_to_end(number) {
            let standbys = pending.parts.iter().filter_map(|part| part.standby.as_ref());
            let steps = standbys.filter_map(|(exit, _)| pending.entry.exit_step(*exit));
            if let Some(step) = steps.min() {
                self.rest_watch.note_late(&pending.entry.route.task, step, Instant::now());
            }
        }
        Some(result)
    }

    /// Ends the flights that no reply will come of any more, so that others get their places.
    /// Returns whether there were any.
    pub(crate) fn end_overdue_flights(&mut self, grace: Duration) -> bool {
        let overdue = self.in_flight.overdue_flights(grace);
        for (request, flight) in &overdue {
            self.end_flight(*request, *flight);
        }
        !overdue.is_empty()
    }

    /// A reply came, by which the request was accepted at a time that leaves out its ways between
    /// hosts.
    pub(crate) fn apply_reply(
        &mut self,
        request: RequestId,
        outcome: ReplyOutcome,
        route: &SourceRoute,
        tensors: Vec<Tensor>,
        accepted: u64,
    ) -> InferenceResults {
        if let ReplyOutcome::Standby(exit) = outcome {
            return self.keep_standby(request, route.part(), exit, tensors);
        }
        if let ReplyOutcome::Lost(instance) = &outcome {
            let reason = format!("instance {instance} is gone");
            // Several that go there together find it out one after the other.
            let never_came = route.current_hop().is_some_and(|next| next.instance() == instance);
            let was_known = self.note_unreachable(instance);
            let cause = if never_came || was_known {
                RetryCause::Unreachable
            } else {
                RetryCause::InstanceLost
            };
            return self.retry_part(request, route.part(), cause, &reason);
        }
        // The reply of a flight that was taken for lost may come after all, and is as good as its
        // successor; but which part it was is not known any more.
        let Some(flight) = self.end_flight(request, route.part()) else {
            return Vec::new();
        };
        let timings = route.hop_timings();
        self.note_unit_waits(&timings);
        let Some(pending) = self.requests.get_mut(&request) else {
            return Vec::new();
        };
        pending.hop_timings.extend(timings);
        if outcome == ReplyOutcome::Done && flight.cut_short.is_none() {
            pending.note_way(accepted);
        }
        let Some(part) = pending.parts.get_mut(flight.part).filter(|part| part.result.is_none())
        else {
            return Vec::new();
        };
        if let (ReplyOutcome::Done, Some(reason)) = (&outcome, flight.cut_short) {
            return self.fail_part(request, flight.part, Error::lost(reason));
        }
        if outcome == ReplyOutcome::Done {
            self.rest_watch.forget_task(&flight.task);
        }
        match outcome {
            ReplyOutcome::Done => part.result = Some(PartResult { outputs: tensors, exit: None }),
            ReplyOutcome::Exit(exit) => {
                part.result = Some(PartResult { outputs: tensors, exit: Some(exit) });
            }
            ReplyOutcome::Late => {
                let error = Error::timed_out("the deadline passed on the way");
                return self.fail_part(request, flight.part, error);
            }
            ReplyOutcome::Failed(reason) => {
                return self.fail_part(request, flight.part, Error::engine(reason));
            }
            ReplyOutcome::Refused(reason) => {
                return self.fail_part(request, flight.part, Error::invalid(reason));
            }
            ReplyOutcome::Standby(_) | ReplyOutcome::Lost(_) => {}
        }
        if let Some(result) = pending.complete_result() {
            return vec![(request, result)];
        }
        // The last of several, of which another failed.
        if pending.is_over() {
            self.fail_request(request, Error::lost("a part of the request failed"))
        } else {
            Vec::new()
        }
    }

    /// A part that comes to no result. Where another part may still bring what a degraded answer
    /// needs, the request waits for it.
    fn fail_part(&mut self, number: RequestId, part: usize, error: Error) -> InferenceResults {
        let Some(pending) = self.requests.get_mut(&number) else {
            return Vec::new();
        };
        if let Some(part) = pending.parts.get_mut(part) {
            part.has_failed = true;
        }
        if pending.entry.route.degrade && !pending.is_over() {
            Vec::new()
        } else {
            self.fail_request(number, error)
        }
    }

    /// Keeps the scores of an exit, should nothing better come.
    fn keep_standby(
        &mut self,
        request: RequestId,
        flight: u32,
        exit: usize,
        tensors: Vec<Tensor>,
    ) -> InferenceResults {
        let Some(part) = self.in_flight.part_number(request, flight) else {
            return Vec::new();
        };
        let Some(pending) = self.requests.get_mut(&request) else {
            return Vec::new();
        };
        if let (Some(part), Some(scores)) =
            (pending.parts.get_mut(part), tensors.into_iter().next())
        {
            part.standby = Some((exit, scores));
        }
        // It is past all that the exit needed.
        if let Some(step) = pending.entry.exit_step(exit) {
            let passed = self.in_flight.leave_instances(request, flight, step + 1);
            self.instances.release_places(&passed);
        }
        Vec::new()
    }
}

//! Where the parts of requests are: those that wait to be sent, and those in flight.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use tessera_tensormq::{Deadline, RequestId};

/// Parts that wait to be sent, per task, each the number of a request and of a part of it.
#[derive(Default)]
pub(crate) struct WaitingParts {
    queues: BTreeMap<String, VecDeque<(RequestId, usize)>>,
}

impl WaitingParts {
    /// The first `count` parts of a request, behind what waits already.
    pub(crate) fn push_request(&mut self, task: &str, request: RequestId, count: usize) {
        let queue = self.queues.entry(task.to_owned()).or_default();
        queue.extend((0..count).map(|part| (request, part)));
    }

    /// A part that is sent again, before what waits already.
    pub(crate) fn push_again(&mut self, task: String, request: RequestId, part: usize) {
        self.queues.entry(task).or_default().push_front((request, part));
    }

    /// Drops what nobody waits for any more from where it would be next.
    pub(crate) fn drop_finished(&mut self, is_finished: impl Fn(RequestId, usize) -> bool) {
        for queue in self.queues.values_mut() {
            while queue.front().is_some_and(|&(request, part)| is_finished(request, part)) {
                queue.pop_front();
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
    }

    /// The next part of each task.
    pub(crate) fn next_parts(&self) -> impl Iterator<Item = (&str, RequestId, usize)> {
        self.queues.iter().filter_map(|(task, queue)| {
            let &(request, part) = queue.front()?;
            Some((task.as_str(), request, part))
        })
    }

    /// Takes the next part of a task out.
    pub(crate) fn take_next(&mut self, task: &str) {
        if let Some(queue) = self.queues.get_mut(task) {
            queue.pop_front();
        }
    }

    /// How many parts wait.
    pub(crate) fn count_parts(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }
}

/// A part on its way: the instances that it passes.
pub(crate) struct PartInFlight {
    pub(crate) part: usize,
    pub(crate) instances: Vec<String>,
    pub(crate) task: String,
    /// Why it ends before the route does.
    pub(crate) cut_short: Option<String>,
    pub(crate) deadline: Deadline,
}

impl PartInFlight {
    fn passes_instance(&self, instance: &str) -> bool {
        self.instances.iter().any(|passed| passed == instance)
    }
}

/// Parts on their way, by request and number of the flight: a part that is sent again has another.
#[derive(Default)]
pub(crate) struct PartsInFlight {
    parts: HashMap<(RequestId, u32), PartInFlight>,
    next_flight: u32,
}

impl PartsInFlight {
    /// The number that the next flight will have.
    pub(crate) fn next_flight(&self) -> u32 {
        self.next_flight
    }

    /// A part has left, under the number that was next.
    pub(crate) fn add_part(&mut self, request: RequestId, part: PartInFlight) {
        self.parts.insert((request, self.next_flight), part);
        self.next_flight = self.next_flight.wrapping_add(1);
    }

    /// A part whose flight has ended; `None` where it had ended before.
    pub(crate) fn remove_part(&mut self, request: RequestId, flight: u32) -> Option<PartInFlight> {
        self.parts.remove(&(request, flight))
    }

    /// Which part of its request a flight carries.
    pub(crate) fn part_number(&self, request: RequestId, flight: u32) -> Option<usize> {
        self.parts.get(&(request, flight)).map(|flight| flight.part)
    }

    /// A flight has got past its first instances, and is not on its way to them any more; returns
    /// those.
    pub(crate) fn leave_instances(
        &mut self,
        request: RequestId,
        flight: u32,
        passed: usize,
    ) -> Vec<String> {
        let Some(flight) = self.parts.get_mut(&(request, flight)) else { return Vec::new() };
        let passed = passed.min(flight.instances.len());
        let (mut left, still) = (flight.instances.clone(), flight.instances.split_off(passed));
        left.truncate(passed);
        // One that is passed again later is still on the way.
        left.retain(|instance| !still.contains(instance));
        flight.instances = still;
        left
    }

    /// Flights whose deadline passed a while ago: no reply comes of those, as whatever gets such a
    /// request drops it.
    pub(crate) fn overdue_flights(&self, grace: Duration) -> Vec<(RequestId, u32)> {
        let is_overdue = |flight: &PartInFlight| flight.deadline.later_by(grace).has_passed();
        let overdue = self.parts.iter().filter(|(_, flight)| is_overdue(flight));
        overdue.map(|(key, _)| *key).collect()
    }

    /// Whether a part of a request is on its way to the end of its route.
    pub(crate) fn goes_to_end(&self, request: RequestId) -> bool {
        let flights = self.parts.iter().filter(|((number, _), _)| *number == request);
        flights.into_iter().any(|(_, flight)| flight.cut_short.is_none())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether a part of a request is on its way.
    pub(crate) fn has_request(&self, request: RequestId) -> bool {
        self.parts.keys().any(|(number, _)| *number == request)
    }

    /// Whether anything is on its way to or through an instance.
    pub(crate) fn is_instance_passed(&self, instance: &str) -> bool {
        self.parts.values().any(|flight| flight.passes_instance(instance))
    }

    /// The flights to or through an instance.
    pub(crate) fn flights_through(&self, instance: &str) -> Vec<(RequestId, u32)> {
        let passing = self.parts.iter().filter(|(_, flight)| flight.passes_instance(instance));
        passing.map(|(key, _)| *key).collect()
    }
}

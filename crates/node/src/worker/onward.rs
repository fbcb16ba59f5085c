//! A request that was run is sent to its next block, or home.

use std::time::Duration;

use tessera_core::{Device, Error, ErrorKind, Location, Result, Tensor};
use tessera_plan::{Leg, Log, Outcome, Record};
use tessera_tensormq::{Deadline, Message, Wait};

use super::Shared;
use super::answered::are_arriving;
use super::door::Item;
use super::exit;
use crate::reach::on_host;

/// A request on its way to its next block.
pub(super) struct Packed {
    pub(super) instance: String,
    pub(super) message: Message,
    /// What it came with, held until it is on its way: a request is never nowhere.
    before: Message,
    log: Log,
}

impl Shared {
    /// Sends a request to its next leg, or home.
    pub(super) fn onward(&self, item: Item, outputs: Vec<Tensor>, time: Time) {
        let Some(mut packed) = self.pack(item, outputs, time) else { return };
        let instance = &packed.instance;
        let tensors = packed.message.take_tensors();
        let tensors = match self.stays(instance, &tensors) {
            true => Ok(tensors),
            false => match self.across(instance, &tensors) {
                Some(there) => Ok(there),
                None => on_host(tensors),
            },
        };
        let until = until(&packed.message);
        let sent = tensors.and_then(|tensors| {
            let message = packed.message.with_tensors(tensors);
            Ok(self.parts.peers.send(instance, message, until)?)
        });
        if let Err(error) = sent {
            let outcome = match error.kind() {
                ErrorKind::TimedOut => Outcome::Late,
                ErrorKind::Lost => Outcome::Lost(packed.instance),
                _ => Outcome::Failed(error.to_string()),
            };
            self.home(&packed.before, &packed.log, &outcome, Vec::new());
        }
    }

    /// The message to a request's next leg; one that has none, or that can't go on, goes home.
    pub(super) fn pack(&self, item: Item, outputs: Vec<Tensor>, time: Time) -> Option<Packed> {
        // What it came with is let go of when whoever waits for an answer has it: on a GPU that takes a while.
        let Item { mut message, leg, mut log, inputs: _inputs, entropy, .. } = item;
        let mut tensors = message.take_tensors();
        if let Some(exit) = &leg.exit {
            let leaves = match exit::leaves(exit, entropy) {
                Ok(leaves) => leaves,
                Err(error) => {
                    self.home(&message, &log, &Outcome::Failed(error), Vec::new());
                    return None;
                }
            };
            if leaves {
                self.record(&mut log, time);
                self.home(&message, &log, &Outcome::Exit(exit.number), outputs);
                return None;
            }
            if exit.standby {
                self.home(&message, &log, &Outcome::Standby(exit.number), outputs);
            }
        } else {
            tensors.extend(outputs);
        }
        let kept: Option<Vec<Tensor>> =
            leg.keep.iter().map(|&index| tensors.get(index).cloned()).collect();
        let Some(kept) = kept else {
            let outcome = Outcome::Failed("a block gave fewer outputs than its path".to_owned());
            self.home(&message, &log, &outcome, Vec::new());
            return None;
        };
        self.record(&mut log, time);
        let steps = message.path().count();
        if steps <= 2 {
            self.home(&message, &log, &Outcome::Done, kept);
            return None;
        }
        let text = log.encode();
        let path: Vec<&str> =
            message.path().skip(1).take(steps - 2).chain([text.as_str()]).collect();
        let next = path.first().and_then(|step| Leg::parse(step).ok());
        let Some((next, onward)) = next.zip(like(&message, &path).ok()) else {
            let outcome = Outcome::Failed("the path of a message can't be read".to_owned());
            self.home(&message, &log, &outcome, Vec::new());
            return None;
        };
        let onward = onward.with_tensors(kept);
        Some(Packed { instance: next.instance, message: onward, before: message, log })
    }

    /// Whether tensors stay on their GPU on the way to an instance that runs on one: within the process, and to another one
    /// that can open the memory that they are in and reads them there.
    pub(super) fn stays(&self, instance: &str, tensors: &[Tensor]) -> bool {
        let peers = &self.parts.peers;
        let device = peers.device_of(instance);
        let reaches = |tensor: &Tensor| match tensor.location() {
            Location::Cuda(number) => {
                let pooled = tensor.region().is_some_and(|(region, _)| region.pooled().is_some());
                pooled && device == Some(Device::Cuda(number))
            }
            _ => true,
        };
        peers.is_here_on_gpu(instance) || tensors.iter().all(reaches)
    }

    /// Tensors of this GPU on the one that an instance in another process runs on; `None` where they go through the host.
    fn across(&self, instance: &str, tensors: &[Tensor]) -> Option<Vec<Tensor>> {
        let Some(Device::Cuda(there)) = self.parts.peers.device_of(instance) else { return None };
        let bring = |tensor: &Tensor| match tensor.location() {
            Location::Host => Some(tensor.clone()),
            Location::Cuda(here) if here == there => Some(tensor.clone())
                .filter(|t| t.region().is_some_and(|(region, _)| region.pooled().is_some())),
            _ => self.parts.memory.on_another(tensor, there),
        };
        tensors.iter().map(bring).collect()
    }

    /// Writes down what happened here.
    pub(super) fn record(&self, log: &mut Log, time: Time) {
        let now = Deadline::now().nanoseconds();
        let here = now.saturating_sub(time.started);
        log.records.push(Record {
            instance: self.parts.name.clone(),
            started: time.started,
            waited: time.started.saturating_sub(log.sent),
            computed: time.computed,
            overhead: here.saturating_sub(time.apart),
            batch: time.batch as u64,
            rows: time.rows as u64,
        });
        log.sent = now;
    }

    pub(super) fn fail(&self, batch: Vec<Item>, error: &Error) {
        for item in batch {
            let outcome = match (error.kind(), item.log.records.last()) {
                (ErrorKind::TimedOut, _) => Outcome::Late,
                // Whoever was to write its inputs is gone: it is sent again.
                (ErrorKind::Lost, Some(before)) => Outcome::Lost(before.instance.clone()),
                _ => Outcome::Failed(error.to_string()),
            };
            self.home(&item.message, &item.log, &outcome, Vec::new());
        }
    }

    /// Tells whoever waits for the answer.
    pub(super) fn home(
        &self,
        message: &Message,
        log: &Log,
        outcome: &Outcome,
        tensors: Vec<Tensor>,
    ) {
        let is_ahead = are_arriving(&tensors);
        let there = match is_ahead {
            true => Ok(tensors),
            false => self.parts.memory.on_host(tensors),
        };
        let (outcome, tensors) = match there {
            Ok(tensors) => (outcome.clone(), tensors),
            Err(error) => (Outcome::Failed(error.to_string()), Vec::new()),
        };
        let sent = like(message, &[&outcome.encode(), &log.encode()])
            .map(|answer| match is_ahead {
                true => answer.with_tensors(tensors).ahead(),
                false => answer.with_tensors(tensors),
            })
            .and_then(|answer| Ok(self.parts.peers.send(&log.home, answer, until(message))?));
        if let Err(error) = sent {
            // Whoever waited is gone, or has given up.
            let (block, request) = (&self.parts.name, message.request());
            tracing::debug!(task = message.task(), %block, %request, %error, "no answer sent");
        }
    }
}

/// When a batch began to run, how long it was computed, how many rows it had, and the request of them.
#[derive(Clone, Copy)]
pub(super) struct Time {
    pub(super) started: u64,
    pub(super) computed: u64,
    /// What of the time that passed here was not the worker's own: the engine's, and waiting for a GPU.
    pub(super) apart: u64,
    pub(super) batch: usize,
    pub(super) rows: usize,
}

/// A message of the same request with another path.
pub(super) fn like(message: &Message, path: &[&str]) -> Result<Message> {
    let mut like =
        Message::new(message.request(), message.task(), path)?.with_trace(message.trace());
    if let Some(deadline) = message.deadline() {
        like = like.with_deadline(deadline);
    }
    Ok(like)
}

/// Until when it makes sense to try to send: a little past the deadline, so that this can be told.
fn until(message: &Message) -> Wait {
    const GRACE: Duration = Duration::from_secs(1);
    let left = message.deadline().map_or(Duration::from_secs(30), Deadline::remaining);
    Wait::at_most(left + GRACE)
}

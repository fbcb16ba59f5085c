//! A batch is run, and its requests go on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_core::{Device, Error, ErrorKind, Result, Tensor};
use tessera_tensormq::{Deadline, Wait};

use super::Shared;
use super::ahead::Ahead;
use super::answered::Answered;
use super::door::Item;
use super::exit::{Entropy, entropies};
use super::onward::Time;
use crate::batch;
use crate::cores::Share;
use crate::unit::Turn;

impl Shared {
    /// Runs a batch and sends each request on.
    pub(super) fn process(&self, batch: Vec<Item>, mut share: Share, started: u64) {
        let deadline = batch.iter().filter_map(|item| item.message.deadline()).max();
        let wait = deadline.map_or(Wait::at_most(Duration::from_secs(10)), Wait::Until);
        let rows: Vec<usize> = batch.iter().map(|item| item.rows.unwrap_or(1)).collect();
        let total: usize = rows.iter().sum();
        let is_here = self.parts.unit.device() == Device::Cpu;
        let mut time = Time { started, computed: 0, apart: 0, batch: total, rows: 0 };
        if !is_here {
            time.computed = self.parts.unit.gpu_time_of(total);
        }
        let mut ahead = Ahead::new(self, &batch, &rows, time);
        let mut answered = None;
        let run = || -> Result<Vec<(Vec<Tensor>, Option<Entropy>)>> {
            let begun = Deadline::now().nanoseconds();
            let turn = Turn {
                requests: batch.iter().map(|item| &item.inputs[..]).collect(),
                inputs: &mut || self.join(&batch, wait),
                ahead: ahead.as_mut().map(|ahead| ahead as _),
            };
            let outputs =
                self.parts.unit.run_turn(share.cores(), turn, &*self.parts.memory, wait)?;
            if is_here {
                time.computed = Deadline::now().nanoseconds().saturating_sub(begun);
            }
            share.finish();
            let goes_home = |item: &Item| item.leg.exit.is_none() && Self::next_of(item).is_none();
            // Those that go home are brought to the host in one copy.
            let outputs = match !is_here && batch.iter().all(goes_home) {
                true => match self.on_host_later(&outputs) {
                    Some(arriving) => {
                        answered = Some(Answered::new(&batch, &arriving));
                        arriving
                    }
                    None => self.parts.memory.on_host(outputs)?,
                },
                false => outputs,
            };
            let entropies = entropies(&batch, &outputs, &rows);
            time.apart = Deadline::now().nanoseconds().saturating_sub(begun);
            Ok(batch::split(&outputs, &rows)?.into_iter().zip(entropies).collect())
        };
        let outputs = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
            .unwrap_or_else(|_| Err(Error::engine("the block panicked")));
        let is_sent = ahead.map(Ahead::finish).filter(|sent| sent.any());
        match (outputs, is_sent) {
            (Ok(outputs), is_sent) => {
                // Before it is sent on: whoever has the answer may ask for the count.
                self.done.fetch_add(batch.len() as u64, Ordering::Relaxed);
                let items = batch.into_iter().zip(outputs).zip(rows).enumerate();
                let rest = items.filter_map(|(index, ((item, (outputs, entropy)), rows))| {
                    let item = Item { entropy, ..item };
                    let is_sent = is_sent.as_ref().is_some_and(|sent| sent.has(index));
                    (!is_sent).then_some((item, outputs, Time { rows, ..time }))
                });
                self.go_on(rest.collect());
                // Not before it is sent on: whoever computes next would take the core that this needs,
                // and the request would wait for milliseconds.
                drop(share);
                if let Some(answered) = answered {
                    answered.see_to(self);
                }
            }
            (Err(error), Some(sent)) => {
                tracing::warn!(block = %self.parts.name, %error, "a run failed that others wait for");
                // From now on nothing is sent before it is there: whatever is wrong is then told as it is.
                self.is_ahead.store(false, Ordering::Relaxed);
                drop(share);
                let rest = sent.give_up(self, batch);
                rest.into_iter().for_each(|item| self.fail(vec![item], &error));
            }
            // One request may have spoilt it for the others.
            (Err(error), None) if batch.len() > 1 && error.kind() != ErrorKind::TimedOut => {
                drop(share);
                for item in batch {
                    match self.share(item.log.accepted) {
                        Ok(share) => self.process(vec![item], share, started),
                        Err(error) => self.fail(vec![item], &error),
                    }
                }
            }
            (Err(error), None) => self.fail(batch, &error),
        }
    }

    /// Outputs on the host, where those who get the answers wait for the GPU to write them; `None` where they can't.
    fn on_host_later(&self, outputs: &[Tensor]) -> Option<Vec<Tensor>> {
        let may = self.answers_ahead.load(Ordering::Relaxed);
        may.then(|| self.parts.memory.on_host_later(outputs)).flatten()
    }

    /// The inputs of a batch, for work that is given to the device from now on.
    fn join(&self, batch: &[Item], wait: Wait) -> Result<Vec<Tensor>> {
        let Some(first) = batch.first() else {
            return Ok(Vec::new());
        };
        (0..first.inputs.len())
            .map(|input| {
                let parts = batch.iter().map(|item| &item.inputs[input]);
                let held = match self.parts.unit.device() {
                    Device::Cpu => parts.cloned().collect(),
                    device => batch::held(device, parts)?,
                };
                let device = self.parts.unit.device();
                batch::join(device, &held.iter().collect::<Vec<_>>(), &*self.parts.memory, wait)
            })
            .collect()
    }
}

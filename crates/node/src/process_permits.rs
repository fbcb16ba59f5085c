//! The permits of a unit's process, seen from its node: asked for, granted, and taken back, by the
//! process or from it where it does nothing with them.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_core::lock;

use crate::permits::MachineCorePermits;

/// How long a process may keep the cores of a run that is over. What is left of it then, handing
/// tensors on, takes microseconds: one that needs longer was stopped.
const HAND_ON_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a process may keep the cores of a run without a sign of life. Whoever is wrong about
/// this shares a core for a moment.
const RUN_SILENCE_TIMEOUT: Duration = Duration::from_millis(600);

/// The permits that a process has asked for.
pub(crate) struct ProcessPermits {
    cores: MachineCorePermits,
    state: Mutex<TicketState>,
}

#[derive(Default)]
struct TicketState {
    has_ended: bool,
    tickets: HashMap<u64, PermitTicket>,
}

enum PermitTicket {
    Asked,
    Waiting((u64, u64)),
    Running(NonZeroUsize),
    Finished(NonZeroUsize, Instant),
}

impl ProcessPermits {
    pub(crate) fn new(cores: MachineCorePermits) -> Self {
        Self { cores, state: Mutex::default() }
    }

    /// Asks for a permit. `grant` is called when there is one, unless the process has ended.
    pub(crate) fn request_permit(
        self: &Arc<Self>,
        ticket: u64,
        since: u64,
        grant: impl FnOnce(NonZeroUsize) + Send + 'static,
    ) {
        lock(&self.state).tickets.insert(ticket, PermitTicket::Asked);
        let permits = Arc::clone(self);
        let place = self.cores.request_permit(
            since,
            Box::new(move |cores| {
                let mut state = lock(&permits.state);
                if state.has_ended {
                    drop(state);
                    permits.reclaim_ticket(PermitTicket::Running(cores));
                    return;
                }
                state.tickets.insert(ticket, PermitTicket::Running(cores));
                drop(state);
                grant(cores);
            }),
        );
        let mut state = lock(&self.state);
        if let Some(asked @ PermitTicket::Asked) = state.tickets.get_mut(&ticket) {
            *asked = PermitTicket::Waiting(place);
        }
    }

    /// The run is over that this permit was for.
    pub(crate) fn finish_run(&self, ticket: u64) {
        let mut state = lock(&self.state);
        if let Some(running) = state.tickets.get_mut(&ticket)
            && let PermitTicket::Running(cores) = *running
        {
            *running = PermitTicket::Finished(cores, Instant::now());
            drop(state);
            self.cores.finish_run();
        }
    }

    /// The process gives this permit back.
    pub(crate) fn give_back(&self, ticket: u64) {
        let ticket = lock(&self.state).tickets.remove(&ticket);
        if let Some(ticket) = ticket {
            self.reclaim_ticket(ticket);
        }
    }

    /// Takes cores back that the process does nothing with, where it was silent for so long.
    /// Returns how many.
    pub(crate) fn reclaim_unused(&self, silence: Duration, now: Instant) -> usize {
        let is_unused = |ticket: &PermitTicket| match ticket {
            PermitTicket::Finished(_, since) => {
                now.saturating_duration_since(*since) > HAND_ON_TIMEOUT
            }
            PermitTicket::Running(_) => silence > RUN_SILENCE_TIMEOUT,
            PermitTicket::Asked | PermitTicket::Waiting(_) => false,
        };
        let mut state = lock(&self.state);
        let unused: Vec<PermitTicket> =
            state.tickets.extract_if(|_, ticket| is_unused(ticket)).map(|(_, it)| it).collect();
        drop(state);
        let cores = |ticket: &PermitTicket| match ticket {
            PermitTicket::Running(cores) | PermitTicket::Finished(cores, _) => cores.get(),
            PermitTicket::Asked | PermitTicket::Waiting(_) => 0,
        };
        let reclaimed = unused.iter().map(cores).sum();
        unused.into_iter().for_each(|ticket| self.reclaim_ticket(ticket));
        reclaimed
    }

    /// Takes everything back: the process has ended.
    pub(crate) fn reclaim_all(&self) {
        let tickets = {
            let mut state = lock(&self.state);
            state.has_ended = true;
            std::mem::take(&mut state.tickets)
        };
        tickets.into_values().for_each(|ticket| self.reclaim_ticket(ticket));
    }

    /// Whether it waits for cores that others have.
    pub(crate) fn waits_for_cores(&self) -> bool {
        let state = lock(&self.state);
        let mut tickets = state.tickets.values();
        tickets.any(|ticket| matches!(ticket, PermitTicket::Asked | PermitTicket::Waiting(_)))
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }

    fn reclaim_ticket(&self, ticket: PermitTicket) {
        match ticket {
            PermitTicket::Running(cores) => {
                self.cores.finish_run();
                self.cores.release_cores(cores);
            }
            PermitTicket::Finished(cores, _) => self.cores.release_cores(cores),
            // One that is granted at this moment is taken back then.
            PermitTicket::Waiting(place) => drop(self.cores.withdraw_request(place)),
            PermitTicket::Asked => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A machine with two cores, both of them given to a process, and who else waits for one.
    fn machine_in_use() -> (MachineCorePermits, Arc<ProcessPermits>, mpsc::Receiver<usize>) {
        let machine = MachineCorePermits::new(NonZeroUsize::new(2).unwrap());
        let process = Arc::new(ProcessPermits::new(machine.clone()));
        let (granted, grant) = mpsc::channel();
        process.request_permit(1, 0, move |cores| granted.send(cores.get()).unwrap());
        assert_eq!(grant.recv(), Ok(2));
        let (granted, grant) = mpsc::channel();
        machine.request_permit(0, Box::new(move |cores| granted.send(cores.get()).unwrap()));
        (machine, process, grant)
    }

    /// What a machine gives to who comes last, when everything was given back.
    fn assert_all_free(machine: &MachineCorePermits) {
        std::thread::sleep(Duration::from_millis(110));
        let (granted, grant) = mpsc::channel();
        machine.request_permit(0, Box::new(move |cores| granted.send(cores.get()).unwrap()));
        assert_eq!(grant.try_recv(), Ok(2));
    }

    #[test]
    fn cores_of_a_run_that_is_over_come_back_where_the_process_was_stopped() {
        let (machine, process, other) = machine_in_use();
        process.finish_run(1);
        assert_eq!(process.reclaim_unused(Duration::ZERO, Instant::now()), 0);
        assert!(other.try_recv().is_err());
        let later = Instant::now() + HAND_ON_TIMEOUT * 2;
        assert_eq!(process.reclaim_unused(Duration::ZERO, later), 2);
        let cores = other.try_recv().unwrap();
        // It goes on after all, and gives back what it no longer has.
        process.give_back(1);
        machine.finish_run();
        machine.release_cores(NonZeroUsize::new(cores).unwrap());
        assert_all_free(&machine);
    }

    #[test]
    fn cores_of_a_run_come_back_where_its_process_is_silent() {
        let (machine, process, other) = machine_in_use();
        let now = Instant::now();
        assert_eq!(process.reclaim_unused(RUN_SILENCE_TIMEOUT, now), 0);
        assert_eq!(process.reclaim_unused(RUN_SILENCE_TIMEOUT * 2, now), 2);
        let cores = other.try_recv().unwrap();
        process.finish_run(1);
        process.give_back(1);
        process.reclaim_all();
        machine.finish_run();
        machine.release_cores(NonZeroUsize::new(cores).unwrap());
        assert_all_free(&machine);
    }
}

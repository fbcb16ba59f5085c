//! Who may compute when, and on how many cores.
//!
//! Every run waits for a permit for cores, so that they are all used and none is used twice. A run
//! that is alone gets all of them: that is quickest. Where several want to run they get fewer each,
//! as a run on one thread wastes nothing on dividing its work: on two cores ResNet-50 takes 73 ms
//! on one thread and 42 ms on two, so two requests at a time are 1.15 times the throughput of one
//! after the other. Older requests come first, which keeps units at the end of a path ahead of
//! those at its start.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, lock};

use crate::residency::WeightLease;

/// For how long a peak of demand is expected to come back.
///
/// Between two units a request wants no core for some microseconds. Whoever asked in that moment
/// would find itself alone, and take all cores from the others.
const DEMAND_WINDOW: Duration = Duration::from_millis(50);

/// Gives out cores.
pub trait CorePermits: Send + Sync {
    /// Waits for a permit. `since` is when the oldest request was accepted, by the host's clock.
    fn acquire_permit(&self, since: u64) -> Result<CorePermit>;

    /// The sizes that permits have, smallest first.
    fn permit_sizes(&self) -> Vec<NonZeroUsize>;
}

/// The right to run on so many cores, given back when dropped.
pub struct CorePermit {
    cores: NonZeroUsize,
    giving_back: Arc<Mutex<GivingBack>>,
    /// What keeps the weights of the run where they are.
    weights: Option<WeightLease>,
}

/// How a permit is given back; each part once.
#[derive(Default)]
struct GivingBack {
    on_finished: Option<Box<dyn FnOnce() + Send>>,
    on_release: Option<Box<dyn FnOnce() + Send>>,
}

/// Takes a permit back that its owner does not give back.
pub(crate) struct PermitRevoker(Arc<Mutex<GivingBack>>);

impl PermitRevoker {
    /// Takes it back, unless it was given back.
    pub(crate) fn revoke(&self) {
        give_back(&self.0);
    }
}

fn give_back(giving_back: &Mutex<GivingBack>) {
    let GivingBack { on_finished, on_release } = std::mem::take(&mut *lock(giving_back));
    on_finished.into_iter().chain(on_release).for_each(|call| call());
}

impl CorePermit {
    /// For a run that needs a core for no longer than it takes to begin it.
    pub(crate) fn not_needed() -> Self {
        Self { cores: NonZeroUsize::MIN, giving_back: Arc::default(), weights: None }
    }

    /// The same, with weights that stay where they are for as long as it is held.
    pub(crate) fn with_weights(mut self, weights: WeightLease) -> Self {
        self.weights = Some(weights);
        self
    }

    /// How long the weights of the run had to be waited for.
    pub(crate) fn waited_for_weights(&self) -> Duration {
        self.weights.as_ref().map_or(Duration::ZERO, |weights| weights.waited)
    }

    pub(crate) fn new(
        cores: NonZeroUsize,
        on_finished: impl FnOnce() + Send + 'static,
        on_release: impl FnOnce() + Send + 'static,
    ) -> Self {
        let giving_back = GivingBack {
            on_finished: Some(Box::new(on_finished)),
            on_release: Some(Box::new(on_release)),
        };
        Self { cores, giving_back: Arc::new(Mutex::new(giving_back)), weights: None }
    }

    /// What takes it back where its owner never does.
    pub(crate) fn revoker(&self) -> PermitRevoker {
        PermitRevoker(Arc::clone(&self.giving_back))
    }

    /// The run is over. Its cores are kept until the permit is dropped, but nobody who wants to run
    /// counts it any more: the next unit of the same request must not take it for somebody else's.
    pub fn finish_run(&mut self) {
        let on_finished = lock(&self.giving_back).on_finished.take();
        if let Some(on_finished) = on_finished {
            on_finished();
        }
    }

    /// How many cores it is.
    pub fn cores(&self) -> NonZeroUsize {
        self.cores
    }
}

impl Drop for CorePermit {
    fn drop(&mut self) {
        give_back(&self.giving_back);
    }
}

/// Called with a permit's size once there is one.
pub(crate) type PermitCallback = Box<dyn FnOnce(NonZeroUsize) + Send>;

/// The cores of this machine.
#[derive(Clone)]
pub struct MachineCorePermits(Arc<Mutex<CorePermitState>>);

struct CorePermitState {
    all: usize,
    free: usize,
    running: usize,
    next_ticket: u64,
    /// Who waits, the oldest request first.
    waiting: BTreeMap<(u64, u64), PermitCallback>,
    /// The most that wanted to run at once, in the last period and in this one.
    peak_demand: (usize, usize),
    period_start: Instant,
}

impl MachineCorePermits {
    /// So many cores to give out.
    pub fn new(all: NonZeroUsize) -> Self {
        Self(Arc::new(Mutex::new(CorePermitState {
            all: all.get(),
            free: all.get(),
            running: 0,
            next_ticket: 0,
            waiting: BTreeMap::new(),
            peak_demand: (0, 0),
            period_start: Instant::now(),
        })))
    }

    /// Asks for a permit without waiting; `granted` is called when there is one. The number
    /// withdraws it.
    pub(crate) fn request_permit(&self, since: u64, granted: PermitCallback) -> (u64, u64) {
        let mut state = self.lock_state();
        state.next_ticket += 1;
        let place = (since, state.next_ticket);
        state.waiting.insert(place, granted);
        Self::grant_permits(state);
        place
    }

    /// Withdraws what was asked for; `false` where it was granted already.
    pub(crate) fn withdraw_request(&self, place: (u64, u64)) -> bool {
        self.lock_state().waiting.remove(&place).is_some()
    }

    /// A run is over whose cores are not given back yet.
    pub(crate) fn finish_run(&self) {
        self.lock_state().running -= 1;
    }

    /// Gives the cores of a permit back, whose run is over.
    pub(crate) fn release_cores(&self, cores: NonZeroUsize) {
        let mut state = self.lock_state();
        state.free += cores.get();
        Self::grant_permits(state);
    }

    fn grant_permits(mut state: MutexGuard<'_, CorePermitState>) {
        let mut granted = Vec::new();
        while let Some((cores, who)) = state.next_permit() {
            granted.push((cores, who));
        }
        // Not under the lock: whoever is told may ask again.
        drop(state);
        for (cores, who) in granted {
            who(cores);
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, CorePermitState> {
        lock(&self.0)
    }
}

impl CorePermitState {
    /// The next permit, where there is a core and somebody who wants it.
    fn next_permit(&mut self) -> Option<(NonZeroUsize, PermitCallback)> {
        let demand = self.running + self.waiting.len();
        let now = Instant::now();
        let past = now.duration_since(self.period_start);
        if past >= DEMAND_WINDOW {
            self.peak_demand = (if past < 2 * DEMAND_WINDOW { self.peak_demand.1 } else { 0 }, 0);
            self.period_start = now;
        }
        self.peak_demand.1 = self.peak_demand.1.max(demand);
        let demand = self.peak_demand.0.max(self.peak_demand.1).max(1);
        let fair = NonZeroUsize::new((self.all / demand).clamp(1, self.free.max(1)))?;
        if self.free == 0 {
            return None;
        }
        let (_, who) = self.waiting.pop_first()?;
        let cores = permit_size_within(self.all, fair);
        self.free -= cores.get();
        self.running += 1;
        Some((cores, who))
    }
}

/// The largest size of a permit that is at most `most`: all cores, or a power of two.
fn permit_size_within(all: usize, most: NonZeroUsize) -> NonZeroUsize {
    if most.get() >= all {
        most
    } else {
        NonZeroUsize::MIN.saturating_mul(power_of_two_within(most))
    }
}

fn power_of_two_within(most: NonZeroUsize) -> NonZeroUsize {
    NonZeroUsize::new(1 << most.ilog2()).unwrap_or(NonZeroUsize::MIN)
}

/// The sizes that permits for so many cores have, smallest first.
pub(crate) fn sizes_of_permits(all: NonZeroUsize) -> Vec<NonZeroUsize> {
    let mut sizes: Vec<NonZeroUsize> = (1..=all.get())
        .filter_map(NonZeroUsize::new)
        .map(|n| permit_size_within(all.get(), n))
        .collect();
    sizes.dedup();
    sizes
}

impl CorePermits for MachineCorePermits {
    fn acquire_permit(&self, since: u64) -> Result<CorePermit> {
        let (granted, grant) = mpsc::sync_channel(1);
        self.request_permit(
            since,
            Box::new(move |cores| {
                // Whoever asked waits for it.
                granted.send(cores).ok();
            }),
        );
        let cores = grant.recv().map_err(|_| Error::lost("nobody gives out cores any more"))?;
        let (finishing, giving) = (self.clone(), self.clone());
        Ok(CorePermit::new(
            cores,
            move || finishing.finish_run(),
            move || giving.release_cores(cores),
        ))
    }

    fn permit_sizes(&self) -> Vec<NonZeroUsize> {
        let all = self.lock_state().all;
        NonZeroUsize::new(all).map(sizes_of_permits).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cores: usize) -> MachineCorePermits {
        MachineCorePermits::new(NonZeroUsize::new(cores).unwrap())
    }

    #[test]
    fn who_is_alone_gets_all_cores() {
        let machine = machine(4);
        for _ in 0..3 {
            assert_eq!(machine.acquire_permit(0).unwrap().cores().get(), 4);
        }
    }

    #[test]
    fn a_crowd_shares_and_is_remembered() {
        let machine = machine(4);
        let first = machine.acquire_permit(0).unwrap();
        let (sent, granted) = mpsc::channel();
        for since in [3, 1, 2] {
            let sent = sent.clone();
            machine.request_permit(
                since,
                Box::new(move |cores| sent.send((since, cores.get())).unwrap()),
            );
        }
        assert!(granted.try_recv().is_err(), "no core is free");
        drop(first);
        let got: Vec<_> = granted.try_iter().collect();
        assert_eq!(got, [(1, 1), (2, 1), (3, 1)], "the oldest first, one core each");
        for _ in 0..3 {
            machine.finish_run();
            machine.release_cores(NonZeroUsize::MIN);
        }
        assert_eq!(
            machine.acquire_permit(0).unwrap().cores().get(),
            1,
            "the others may be back soon"
        );
        std::thread::sleep(DEMAND_WINDOW * 2);
        assert_eq!(machine.acquire_permit(0).unwrap().cores().get(), 4);
    }

    #[test]
    fn a_run_that_is_over_counts_no_more_though_it_has_its_cores() {
        let machine = machine(2);
        let mut first = machine.acquire_permit(0).unwrap();
        first.finish_run();
        let (sent, granted) = mpsc::channel();
        machine.request_permit(0, Box::new(move |cores| sent.send(cores.get()).unwrap()));
        assert!(granted.try_recv().is_err());
        drop(first);
        assert_eq!(granted.try_recv(), Ok(2), "it is alone");
    }

    #[test]
    fn what_is_withdrawn_is_not_granted() {
        let machine = machine(1);
        let permit = machine.acquire_permit(0).unwrap();
        let place = machine.request_permit(1, Box::new(|_| panic!("withdrawn")));
        assert!(machine.withdraw_request(place));
        assert!(!machine.withdraw_request(place));
        drop(permit);
        assert_eq!(machine.acquire_permit(2).unwrap().cores().get(), 1);
    }

    #[test]
    fn sizes_are_powers_of_two_and_the_whole() {
        let of = |all| {
            sizes_of_permits(NonZeroUsize::new(all).unwrap())
                .iter()
                .map(|n| n.get())
                .collect::<Vec<_>>()
        };
        assert_eq!(of(1), [1]);
        assert_eq!(of(2), [1, 2]);
        assert_eq!(of(6), [1, 2, 4, 6]);
        assert_eq!(of(16), [1, 2, 4, 8, 16]);
    }
}

//! Who may compute when, and on how many cores.
//!
//! Every run waits for a share of the cores, so that they are all used and none is used twice. A run
//! that is alone gets all of them: that is quickest. Where several want to run they get fewer each, as
//! a run on one thread wastes nothing on dividing its work: on two cores ResNet-50 takes 73 ms on one
//! thread and 42 ms on two, so two requests at a time are 1.15 times the throughput of one after the
//! other. Older requests come first, which keeps blocks at the end of a path ahead of those at its start.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tessera_core::{Device, Error, Result};

/// For how long a crowd is expected to come back.
///
/// Between two blocks a request wants no core for some microseconds. Whoever asked in that moment
/// would find itself alone, and take all cores from the others.
const REMEMBERED: Duration = Duration::from_millis(50);

/// Gives out cores.
pub trait Cores: Send + Sync {
    /// Waits for a share. `since` is when the oldest request was accepted, by the host's clock.
    fn take(&self, since: u64) -> Result<Share>;

    /// The sizes that shares have, smallest first.
    fn sizes(&self) -> Vec<NonZeroUsize>;
}

/// A share of the cores, given back when dropped.
pub struct Share {
    cores: NonZeroUsize,
    finished: Option<Box<dyn FnOnce() + Send>>,
    give_back: Option<Box<dyn FnOnce() + Send>>,
}

impl Share {
    /// No share: for a run on a GPU, which needs a core for no longer than it takes to tell it.
    pub(crate) fn none() -> Self {
        Self { cores: NonZeroUsize::MIN, finished: None, give_back: None }
    }

    pub(crate) fn new(
        cores: NonZeroUsize,
        finished: impl FnOnce() + Send + 'static,
        give_back: impl FnOnce() + Send + 'static,
    ) -> Self {
        Self { cores, finished: Some(Box::new(finished)), give_back: Some(Box::new(give_back)) }
    }

    /// The run is over. Its cores are kept until the share is dropped, but nobody who wants to run counts
    /// it any more: the next block of the same request must not take it for somebody else's.
    pub fn finish(&mut self) {
        if let Some(finished) = self.finished.take() {
            finished();
        }
    }

    /// How many cores it is.
    pub fn cores(&self) -> NonZeroUsize {
        self.cores
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.finish();
        if let Some(give_back) = self.give_back.take() {
            give_back();
        }
    }
}

/// Called with a share's size once there is one.
pub(crate) type Granted = Box<dyn FnOnce(NonZeroUsize) + Send>;

/// The cores of this machine.
#[derive(Clone)]
pub struct MachineCores(Arc<Mutex<State>>);

struct State {
    all: usize,
    free: usize,
    running: usize,
    next_ticket: u64,
    /// Who waits, the oldest request first.
    waiting: BTreeMap<(u64, u64), Granted>,
    /// The most that wanted to run at once, in the last period and in this one.
    crowd: (usize, usize),
    period: Instant,
}

impl MachineCores {
    /// So many cores to give out.
    pub fn new(all: NonZeroUsize) -> Self {
        Self(Arc::new(Mutex::new(State {
            all: all.get(),
            free: all.get(),
            running: 0,
            next_ticket: 0,
            waiting: BTreeMap::new(),
            crowd: (0, 0),
            period: Instant::now(),
        })))
    }

    /// Asks for a share without waiting; `granted` is called when there is one. The number withdraws it.
    pub(crate) fn ask(&self, since: u64, granted: Granted) -> (u64, u64) {
        let mut state = self.lock();
        state.next_ticket += 1;
        let place = (since, state.next_ticket);
        state.waiting.insert(place, granted);
        Self::grant(state);
        place
    }

    /// Withdraws what was asked for; `false` where it was granted already.
    pub(crate) fn withdraw(&self, place: (u64, u64)) -> bool {
        self.lock().waiting.remove(&place).is_some()
    }

    /// A run is over whose cores are not given back yet.
    pub(crate) fn finish(&self) {
        self.lock().running -= 1;
    }

    /// Gives a share of this size back, whose run is over.
    pub(crate) fn give_back(&self, cores: NonZeroUsize) {
        let mut state = self.lock();
        state.free += cores.get();
        Self::grant(state);
    }

    fn grant(mut state: MutexGuard<'_, State>) {
        let mut granted = Vec::new();
        while let Some((cores, who)) = state.next() {
            granted.push((cores, who));
        }
        // Not under the lock: whoever is told may ask again.
        drop(state);
        for (cores, who) in granted {
            who(cores);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// The next share, where there is a core and somebody who wants it.
    fn next(&mut self) -> Option<(NonZeroUsize, Granted)> {
        let crowd = self.running + self.waiting.len();
        let now = Instant::now();
        let past = now.duration_since(self.period);
        if past >= REMEMBERED {
            self.crowd = (if past < 2 * REMEMBERED { self.crowd.1 } else { 0 }, 0);
            self.period = now;
        }
        self.crowd.1 = self.crowd.1.max(crowd);
        let crowd = self.crowd.0.max(self.crowd.1).max(1);
        let fair = NonZeroUsize::new((self.all / crowd).clamp(1, self.free.max(1)))?;
        if self.free == 0 {
            return None;
        }
        let (_, who) = self.waiting.pop_first()?;
        let cores = size_within(self.all, fair);
        self.free -= cores.get();
        self.running += 1;
        Some((cores, who))
    }
}

/// The largest size of a share that is at most `most`: all cores, or a power of two.
fn size_within(all: usize, most: NonZeroUsize) -> NonZeroUsize {
    if most.get() >= all { most } else { NonZeroUsize::MIN.saturating_mul(power_within(most)) }
}

fn power_within(most: NonZeroUsize) -> NonZeroUsize {
    NonZeroUsize::new(1 << most.ilog2()).unwrap_or(NonZeroUsize::MIN)
}

/// How many requests a block computes at the same time: as many as there are cores, or few enough that
/// each of them gets several.
pub(crate) fn at_once(cores: NonZeroUsize, device: Device) -> NonZeroUsize {
    let most = match device {
        Device::Cpu => 4,
        // One that waits for results, and one that tells the GPU what to do next.
        Device::Cuda(_) => 2,
    };
    NonZeroUsize::new(most).map_or(cores, |most| cores.min(most))
}

/// The sizes that shares of so many cores have, smallest first.
pub(crate) fn sizes(all: NonZeroUsize) -> Vec<NonZeroUsize> {
    let mut sizes: Vec<NonZeroUsize> =
        (1..=all.get()).filter_map(NonZeroUsize::new).map(|n| size_within(all.get(), n)).collect();
    sizes.dedup();
    sizes
}

impl Cores for MachineCores {
    fn take(&self, since: u64) -> Result<Share> {
        let (granted, grant) = mpsc::sync_channel(1);
        self.ask(
            since,
            Box::new(move |cores| {
                // Whoever asked waits for it.
                granted.send(cores).ok();
            }),
        );
        let cores = grant.recv().map_err(|_| Error::lost("nobody gives out cores any more"))?;
        let (finishing, giving) = (self.clone(), self.clone());
        Ok(Share::new(cores, move || finishing.finish(), move || giving.give_back(cores)))
    }

    fn sizes(&self) -> Vec<NonZeroUsize> {
        let all = self.lock().all;
        NonZeroUsize::new(all).map(sizes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cores: usize) -> MachineCores {
        MachineCores::new(NonZeroUsize::new(cores).unwrap())
    }

    #[test]
    fn who_is_alone_gets_all_cores() {
        let machine = machine(4);
        for _ in 0..3 {
            assert_eq!(machine.take(0).unwrap().cores().get(), 4);
        }
    }

    #[test]
    fn a_crowd_shares_and_is_remembered() {
        let machine = machine(4);
        let first = machine.take(0).unwrap();
        let (sent, granted) = mpsc::channel();
        for since in [3, 1, 2] {
            let sent = sent.clone();
            machine.ask(since, Box::new(move |cores| sent.send((since, cores.get())).unwrap()));
        }
        assert!(granted.try_recv().is_err(), "no core is free");
        drop(first);
        let got: Vec<_> = granted.try_iter().collect();
        assert_eq!(got, [(1, 1), (2, 1), (3, 1)], "the oldest first, one core each");
        for _ in 0..3 {
            machine.finish();
            machine.give_back(NonZeroUsize::MIN);
        }
        assert_eq!(machine.take(0).unwrap().cores().get(), 1, "the others may be back soon");
        std::thread::sleep(REMEMBERED * 2);
        assert_eq!(machine.take(0).unwrap().cores().get(), 4);
    }

    #[test]
    fn a_run_that_is_over_counts_no_more_though_it_has_its_cores() {
        let machine = machine(2);
        let mut first = machine.take(0).unwrap();
        first.finish();
        let (sent, granted) = mpsc::channel();
        machine.ask(0, Box::new(move |cores| sent.send(cores.get()).unwrap()));
        assert!(granted.try_recv().is_err());
        drop(first);
        assert_eq!(granted.try_recv(), Ok(2), "it is alone");
    }

    #[test]
    fn what_is_withdrawn_is_not_granted() {
        let machine = machine(1);
        let held = machine.take(0).unwrap();
        let place = machine.ask(1, Box::new(|_| panic!("withdrawn")));
        assert!(machine.withdraw(place));
        assert!(!machine.withdraw(place));
        drop(held);
        assert_eq!(machine.take(2).unwrap().cores().get(), 1);
    }

    #[test]
    fn sizes_are_powers_of_two_and_the_whole() {
        let of = |all| {
            sizes(NonZeroUsize::new(all).unwrap()).iter().map(|n| n.get()).collect::<Vec<_>>()
        };
        assert_eq!(of(1), [1]);
        assert_eq!(of(2), [1, 2]);
        assert_eq!(of(6), [1, 2, 4, 6]);
        assert_eq!(of(16), [1, 2, 4, 8, 16]);
    }
}

//! The weights of one instance, as its runs see them: there for as long as somebody has a lease.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, lock};
use tessera_tensormq::Deadline;

use super::manager::{WeightRoom, WeightRooms};
use super::{WeightPart, WeightPlace, no_room_before_others};

/// What has weights in memory, or not.
pub(crate) trait WeightHolder: Send + Sync {
    /// Brings them to memory.
    fn load_weights(&self) -> Result<()>;

    /// What they take, where that is known better once they are loaded.
    fn loaded_parts(&self) -> Option<Vec<WeightPart>> {
        None
    }

    /// Lets go of them; no run uses them.
    fn unload_weights(&self);

    /// A run that used them is over, or was launched.
    fn note_used(&self) {}
}

/// The weights of an instance, which come when a run needs them and leave when others need the
/// room.
pub(crate) struct UnitWeights<H: WeightHolder> {
    holder: H,
    /// Where it has to ask for room; `None` where there is enough for everyone.
    room: Option<Box<dyn WeightRoom>>,
    state: Mutex<LeaseState>,
    changed: Condvar,
}

struct LeaseState {
    place: WeightPlace,
    leases: usize,
    /// They are to leave when no lease is left.
    is_leaving: bool,
}

impl<H: WeightHolder + 'static> UnitWeights<H> {
    /// The weights that `holder` loads, and with whom room is to be had for them.
    pub(crate) fn new(
        holder: H,
        rooms: Option<&dyn WeightRooms>,
        parts: Vec<WeightPart>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own: &std::sync::Weak<Self>| {
            let own = own.clone();
            let leave = move || {
                if let Some(weights) = own.upgrade() {
                    weights.begin_to_leave();
                }
            };
            let room = rooms.map(|rooms| rooms.open_room(parts, Arc::new(leave)));
            let state = LeaseState { place: WeightPlace::Disk, leases: 0, is_leaving: false };
            Self { holder, room, state: Mutex::new(state), changed: Condvar::new() }
        })
    }

    /// The same, loaded once, so that what is wrong with them is known. Where they come and go
    /// they may leave again at once.
    pub(crate) fn load_first(
        holder: H,
        rooms: Option<&dyn WeightRooms>,
        parts: Vec<WeightPart>,
    ) -> Result<Arc<Self>> {
        let weights = Self::new(holder, rooms, parts);
        if rooms.is_some() {
            drop(weights.take_lease(None)?);
        } else {
            weights.holder.load_weights()?;
        }
        Ok(weights)
    }

    /// Whether they come and go.
    pub(crate) fn may_leave(&self) -> bool {
        self.room.is_some()
    }

    pub(crate) fn holder(&self) -> &H {
        &self.holder
    }

    /// Has the weights be in memory for as long as the lease is held. Waits for room and for a load
    /// until the deadline.
    pub(crate) fn take_lease(self: &Arc<Self>, deadline: Option<Deadline>) -> Result<WeightLease> {
        if let Some(room) = &self.room {
            room.note_use();
        }
        self.take_uncounted_lease(deadline)
    }

    fn take_uncounted_lease(self: &Arc<Self>, deadline: Option<Deadline>) -> Result<WeightLease> {
        let Some(room) = &self.room else {
            return Ok(WeightLease { _weights: None, waited: Duration::ZERO });
        };
        let mut state = lock(&self.state);
        let start = Instant::now();
        loop {
            match state.place {
                WeightPlace::Memory if !state.is_leaving => {
                    state.leases += 1;
                    break;
                }
                WeightPlace::Disk => {
                    state.place = WeightPlace::Loading;
                    drop(state);
                    let loaded = self.load_into_room(&**room, deadline);
                    state = lock(&self.state);
                    let place =
                        if loaded.is_ok() { WeightPlace::Memory } else { WeightPlace::Disk };
                    state.place = place;
                    state.leases = usize::from(loaded.is_ok());
                    self.changed.notify_all();
                    loaded?;
                    break;
                }
                _ => {
                    let left = deadline.map_or(Duration::from_secs(60), Deadline::remaining);
                    if left.is_zero() {
                        return Err(Error::timed_out("its weights were not there in time"));
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
        drop(state);
        let held: Arc<dyn HeldWeights> = Arc::<Self>::clone(self);
        Ok(WeightLease { _weights: Some(LeasedWeights(held)), waited: start.elapsed() })
    }

    /// Has the weights come while something else goes on that is to be followed by a run of them,
    /// where they are not there and nobody has to leave for them: who does might be needed first.
    pub(crate) fn prefetch(self: &Arc<Self>, deadline: Option<Deadline>) {
        let Some(room) = &self.room else { return };
        if lock(&self.state).place != WeightPlace::Disk || !room.has_free_room() {
            return;
        }
        let own = Arc::clone(self);
        let load = move || {
            if let Err(error) = own.take_uncounted_lease(deadline) {
                // The run that needs them asks again, and is told.
                tracing::debug!(%error, "weights were not brought ahead");
            }
        };
        let spawned = std::thread::Builder::new().name("prefetch".to_owned()).spawn(load);
        if let Err(error) = spawned {
            tracing::debug!(%error, "weights are not brought ahead");
        }
    }

    fn load_into_room(&self, room: &dyn WeightRoom, deadline: Option<Deadline>) -> Result<()> {
        if let Some(deadline) = deadline {
            // Whoever has to wait for longer than that is told at once.
            let others = room.time_of_others_before(deadline);
            if others > deadline.remaining() {
                return Err(no_room_before_others(others));
            }
        }
        room.wait_for_room(deadline)?;
        let start = Instant::now();
        match self.holder.load_weights() {
            Ok(()) => {
                room.note_loaded(start.elapsed(), self.holder.loaded_parts());
                Ok(())
            }
            Err(error) => {
                self.holder.unload_weights();
                room.note_left();
                Err(error)
            }
        }
    }

    /// Others need the room: they leave at once, or with the last lease.
    pub(crate) fn begin_to_leave(&self) {
        let mut state = lock(&self.state);
        match state.place {
            WeightPlace::Memory if state.leases == 0 => self.unload(state),
            WeightPlace::Memory | WeightPlace::Loading => state.is_leaving = true,
            _ => {}
        }
    }

    fn unload(&self, mut state: std::sync::MutexGuard<'_, LeaseState>) {
        // Whoever comes now waits until they are gone, and asks for room.
        state.place = WeightPlace::Leaving;
        drop(state);
        self.holder.unload_weights();
        if let Some(room) = &self.room {
            room.note_left();
        }
        let mut state = lock(&self.state);
        (state.place, state.is_leaving) = (WeightPlace::Disk, false);
        drop(state);
        self.changed.notify_all();
    }
}

/// Weights that somebody has a lease of.
trait HeldWeights: Send + Sync {
    fn end_lease(&self);
}

impl<H: WeightHolder + 'static> HeldWeights for UnitWeights<H> {
    fn end_lease(&self) {
        self.holder.note_used();
        let mut state = lock(&self.state);
        state.leases = state.leases.saturating_sub(1);
        if state.leases == 0 && state.is_leaving {
            self.unload(state);
        }
    }
}

/// Has weights be in memory for as long as it is held.
pub(crate) struct WeightLease {
    _weights: Option<LeasedWeights>,
    /// How long they had to be waited for.
    pub(crate) waited: Duration,
}

struct LeasedWeights(Arc<dyn HeldWeights>);

impl Drop for LeasedWeights {
    fn drop(&mut self) {
        self.0.end_lease();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tessera_core::ContentHash;
    use tessera_deploy::ResidencyChoice;
    use tessera_engine::WeightLoading;
    use tessera_plan::residency::eviction::EvictionPolicy;

    use super::*;
    use crate::residency::{InstanceWeightRooms, WeightManager};

    /// Weights that are loaded in no time, and count how often.
    #[derive(Default)]
    struct CountedLoads(AtomicUsize);

    impl CountedLoads {
        fn count(&self) -> usize {
            self.0.load(Ordering::Acquire)
        }
    }

    impl WeightHolder for CountedLoads {
        fn load_weights(&self) -> Result<()> {
            self.0.fetch_add(1, Ordering::AcqRel);
            Ok(())
        }

        fn unload_weights(&self) {}
    }

    fn weights_in(manager: &Arc<WeightManager>, name: &str) -> Arc<UnitWeights<CountedLoads>> {
        let rooms = InstanceWeightRooms {
            manager: Arc::clone(manager),
            instance: name.to_owned(),
            choice: ResidencyChoice::Auto,
        };
        let parts = vec![WeightPart { hash: ContentHash::of_content(name.as_bytes()), bytes: 60 }];
        UnitWeights::new(CountedLoads::default(), Some(&rooms), parts)
    }

    #[test]
    fn what_is_brought_ahead_is_there_when_it_is_asked_for_and_counts_as_no_use() {
        let policy = EvictionPolicy::LeastRecentlyUsed;
        let manager = Arc::new(WeightManager::new(130, policy, WeightLoading::Once, true));
        let [first, second, third] =
            ["first", "second", "third"].map(|name| weights_in(&manager, name));
        drop(first.take_lease(None).unwrap());
        second.prefetch(None);
        let until = Instant::now() + Duration::from_secs(10);
        while lock(&second.state).place != WeightPlace::Memory && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(second.holder().count(), 1);
        // It is there, and nothing is to be done; and for another somebody would have to leave.
        second.prefetch(None);
        third.prefetch(None);
        assert_eq!(third.holder().count(), 0);
        drop(second.take_lease(None).unwrap());
        assert_eq!(second.holder().count(), 1);
        let uses = manager.current_use().instances;
        let uses = uses.iter().map(|status| (status.instance.as_str(), status.uses, status.loads));
        assert_eq!(uses.collect::<Vec<_>>(), [("first", 1, 1), ("second", 1, 1), ("third", 0, 0)]);
    }
}

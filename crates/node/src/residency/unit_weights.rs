//! The weights of one instance, as its runs see them: there for as long as somebody has a lease.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, lock};
use tessera_tensormq::Deadline;

use super::manager::{WeightRoom, WeightRooms};
use super::{WeightPart, WeightPlace};

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

    pub(crate) fn holder(&self) -> &H {
        &self.holder
    }

    /// Has the weights be in memory for as long as the lease is held. Waits for room and for a load
    /// until the deadline.
    pub(crate) fn take_lease(self: &Arc<Self>, deadline: Option<Deadline>) -> Result<WeightLease> {
        let Some(room) = &self.room else {
            return Ok(WeightLease { _weights: None, waited: Duration::ZERO });
        };
        room.note_use();
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

    fn load_into_room(&self, room: &dyn WeightRoom, deadline: Option<Deadline>) -> Result<()> {
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

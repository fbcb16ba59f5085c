//! The books of a node's memory for weights, and how instances on threads of this process use them.

use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use tessera_core::{Result, lock};
use tessera_deploy::ResidencyChoice;
use tessera_engine::WeightLoading;
use tessera_plan::residency::eviction::EvictionPolicy;
use tessera_tensormq::Deadline;

use super::ledger::{Decision, LeaveCall, NewHolder, ResidencyLedger, RoomCall};
use super::status::WeightUse;
use super::{WeightPart, no_room_in_time, queue_order, receive_by};

/// Where instances get room for weights.
pub(crate) trait WeightRooms: Send + Sync {
    /// Room for weights that are on disk. `leave` has them leave it; it must not wait for long.
    fn open_room(&self, parts: Vec<WeightPart>, leave: LeaveCall) -> Box<dyn WeightRoom>;

    /// How weights come there.
    fn loading(&self) -> WeightLoading;

    /// Bytes that all of them may take.
    fn budget(&self) -> u64;

    /// Whether memory of the host keeps their files, also before they leave for the first time.
    fn keeps_files(&self) -> bool;
}

/// Room for the weights of one instance, given back when dropped.
pub(crate) trait WeightRoom: Send + Sync {
    /// They are used, or are to be.
    fn note_use(&self);

    /// Whether there is room that nobody has to leave for.
    fn has_free_room(&self) -> bool {
        false
    }

    /// How long others take, as far as that is known, who come before.
    fn time_of_others_before(&self, _: Deadline) -> Duration {
        Duration::ZERO
    }

    /// Waits until there is room to load them.
    fn wait_for_room(&self, deadline: Option<Deadline>) -> Result<()>;

    /// They were loaded, it took so long, and they take that much where it is known.
    fn note_loaded(&self, took: Duration, parts: Option<Vec<WeightPart>>);

    /// They are gone.
    fn note_left(&self);
}

/// Gives out the memory that weights may take.
pub(crate) struct WeightManager {
    ledger: Mutex<ResidencyLedger>,
    made: Instant,
    /// How weights come.
    loading: WeightLoading,
    /// Whether it is likely that they leave and come back.
    keeps_files: bool,
}

impl WeightManager {
    /// So many bytes to give out.
    pub(crate) fn new(
        budget: u64,
        policy: EvictionPolicy,
        loading: WeightLoading,
        keeps_files: bool,
    ) -> Self {
        let ledger = Mutex::new(ResidencyLedger::new(budget, policy));
        Self { ledger, made: Instant::now(), loading, keeps_files }
    }

    /// What there is, and who has it.
    pub(crate) fn current_use(&self) -> WeightUse {
        let ledger = lock(&self.ledger);
        WeightUse { budget: ledger.budget(), used: ledger.used(), instances: ledger.statuses() }
    }

    /// Where the weights of an instance are to be from now on.
    pub(crate) fn set_choice(&self, instance: &str, choice: ResidencyChoice) {
        self.change(|ledger| ledger.set_choice(instance, choice));
    }

    /// Has weights leave that were not used for a while, where that is wanted.
    pub(crate) fn release_unused(&self) {
        self.change(ResidencyLedger::release_unused);
    }

    /// Changes the books, and carries out what follows.
    fn change(&self, change: impl FnOnce(&mut ResidencyLedger) -> Vec<Decision>) {
        let decisions = change(&mut self.lock_ledger());
        for decision in decisions {
            match decision {
                Decision::GiveRoom(give) => give(),
                Decision::Leave(leave) => leave(),
            }
        }
    }

    fn lock_ledger(&self) -> MutexGuard<'_, ResidencyLedger> {
        let mut ledger = lock(&self.ledger);
        ledger.set_time(self.made.elapsed());
        ledger
    }
}

/// Room for one instance's weights, by its number in the books.
pub(crate) struct ManagedRoom {
    manager: Arc<WeightManager>,
    number: usize,
}

impl ManagedRoom {
    /// Enters an instance.
    pub(crate) fn open(
        manager: &Arc<WeightManager>,
        instance: &str,
        choice: ResidencyChoice,
        parts: Vec<WeightPart>,
        leave: LeaveCall,
    ) -> Self {
        let new = NewHolder { name: instance.to_owned(), parts, choice, leave };
        let number = lock(&manager.ledger).add_holder(new);
        Self { manager: Arc::clone(manager), number }
    }

    /// Asks for room without waiting.
    pub(crate) fn wish_room(&self, deadline: u64, give: RoomCall) {
        self.manager.change(|ledger| ledger.wish_room(self.number, deadline, give));
    }

    /// Wants none any more; what it got by now it gives back.
    pub(crate) fn cancel_wish(&self) {
        self.manager.change(|ledger| ledger.cancel_wish(self.number));
    }
}

impl WeightRoom for ManagedRoom {
    fn note_use(&self) {
        self.manager.lock_ledger().note_use(self.number);
    }

    fn has_free_room(&self) -> bool {
        lock(&self.manager.ledger).has_free_room(self.number)
    }

    fn time_of_others_before(&self, deadline: Deadline) -> Duration {
        self.manager.lock_ledger().time_of_others_before(queue_order(Some(deadline)))
    }

    fn wait_for_room(&self, deadline: Option<Deadline>) -> Result<()> {
        let (given, is_given) = mpsc::sync_channel(1);
        let give = move || {
            // Whoever asked waits for it, or gives it back.
            given.send(()).ok();
        };
        self.wish_room(queue_order(deadline), Box::new(give));
        receive_by(&is_given, deadline).ok_or_else(|| {
            self.cancel_wish();
            no_room_in_time()
        })
    }

    fn note_loaded(&self, took: Duration, parts: Option<Vec<WeightPart>>) {
        self.manager.change(|ledger| ledger.note_loaded(self.number, took, parts));
    }

    fn note_left(&self) {
        self.manager.change(|ledger| ledger.note_left(self.number));
    }
}

impl Drop for ManagedRoom {
    fn drop(&mut self) {
        self.manager.change(|ledger| ledger.remove_holder(self.number));
    }
}

/// Rooms for an instance on threads of this process.
pub(crate) struct InstanceWeightRooms {
    pub(crate) manager: Arc<WeightManager>,
    pub(crate) instance: String,
    pub(crate) choice: ResidencyChoice,
}

impl WeightRooms for InstanceWeightRooms {
    fn open_room(&self, parts: Vec<WeightPart>, leave: LeaveCall) -> Box<dyn WeightRoom> {
        let Self { manager, instance, choice } = self;
        Box::new(ManagedRoom::open(manager, instance, *choice, parts, leave))
    }

    fn loading(&self) -> WeightLoading {
        self.manager.loading
    }

    fn budget(&self) -> u64 {
        lock(&self.manager.ledger).budget()
    }

    fn keeps_files(&self) -> bool {
        self.manager.keeps_files
    }
}

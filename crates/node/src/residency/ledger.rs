//! Whose weights are in memory, who waits for room, and who has to leave: decisions alone, made
//! without waiting.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tessera_core::ContentHash;
use tessera_deploy::ResidencyChoice;
use tessera_plan::residency::eviction::{EvictionPolicy, RequestRates, ResidentInstance};

use super::status::WeightStatus;
use super::{WeightPart, WeightPlace};

/// How long weights stay that are wanted on demand, and not used.
const ON_DEMAND_STAY: Duration = Duration::from_secs(5);
/// Weights are idle that were not used for so many times as long as they take to come.
const IDLE_AFTER_RELOADS: u32 = 4;
/// After so long weights that are to leave are not waited for: a run that uses them may never end.
const LEAVING_PATIENCE: Duration = Duration::from_secs(10);
/// After so long others load beside one that does: it may hang.
const LOADING_PATIENCE: Duration = Duration::from_secs(60);

/// Has an instance let go of its weights as soon as no run uses them.
pub(super) type LeaveCall = Arc<dyn Fn() + Send + Sync>;
/// Called when there is room.
pub(super) type RoomCall = Box<dyn FnOnce() + Send>;

/// What is to be done once the ledger is free for others.
pub(super) enum Decision {
    /// This instance may load.
    GiveRoom(RoomCall),
    /// This one has to leave.
    Leave(LeaveCall),
}

/// An instance that is entered.
pub(super) struct NewHolder {
    pub(super) name: String,
    pub(super) parts: Vec<WeightPart>,
    pub(super) choice: ResidencyChoice,
    pub(super) leave: LeaveCall,
}

struct Holder {
    parts: Vec<WeightPart>,
    leave: LeaveCall,
    status: WeightStatus,
    place_since: Duration,
    last_used: Duration,
    reload: Duration,
}

impl Holder {
    /// How long they take to come. What came once only took what else is done at first, too: it is
    /// taken to come as quickly as others.
    fn reload_time(&self, bytes_per_second: Option<f64>) -> Duration {
        let rate = bytes_per_second.filter(|_| self.status.loads <= 1);
        let guessed = rate.map(|rate| self.status.bytes as f64 / rate);
        guessed.and_then(|time| Duration::try_from_secs_f64(time).ok()).unwrap_or(self.reload)
    }
}

/// Room that somebody waits for; whose deadline is first comes first.
type QueuePlace = (u64, u64);

/// The books of one memory.
pub(super) struct ResidencyLedger {
    /// The time, as [`ResidencyLedger::set_time`] was told.
    now: Duration,
    budget: u64,
    policy: EvictionPolicy,
    /// By number; the places of those that are gone are used again.
    holders: Vec<Option<Holder>>,
    rates: RequestRates,
    /// What is in memory, or will be in a moment, and how many hold it.
    parts: HashMap<ContentHash, (u64, usize)>,
    used: u64,
    waiting: BTreeMap<QueuePlace, (usize, RoomCall)>,
    next_ticket: u64,
}

impl ResidencyLedger {
    pub(super) fn new(budget: u64, policy: EvictionPolicy) -> Self {
        Self {
            now: Duration::ZERO,
            budget,
            policy,
            holders: Vec::new(),
            rates: RequestRates::new(0),
            parts: HashMap::new(),
            used: 0,
            waiting: BTreeMap::new(),
            next_ticket: 0,
        }
    }

    /// It is so long after it was made.
    pub(super) fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes that are in memory, or will be in a moment.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Enters an instance whose weights are on disk; returns its number.
    pub(super) fn add_holder(&mut self, new: NewHolder) -> usize {
        let NewHolder { name, parts, choice, leave } = new;
        let status = WeightStatus {
            instance: name,
            choice,
            bytes: parts.iter().map(|part| part.bytes).sum(),
            ..WeightStatus::default()
        };
        let holder = Holder {
            parts,
            leave,
            status,
            place_since: Duration::ZERO,
            last_used: Duration::ZERO,
            reload: Duration::ZERO,
        };
        let free = self.holders.iter().position(Option::is_none);
        let number = free.unwrap_or(self.holders.len());
        if free.is_none() {
            self.holders.push(None);
        }
        self.rates.forget_instance(number);
        self.holders[number] = Some(holder);
        number
    }

    /// Takes an instance out, wherever its weights are.
    pub(super) fn remove_holder(&mut self, number: usize) -> Vec<Decision> {
        self.withdraw_wish(number);
        self.give_parts_back(number);
        if let Some(place) = self.holders.get_mut(number) {
            *place = None;
        }
        self.decide()
    }

    /// Where an instance wants its weights to be from now on.
    pub(super) fn set_choice(&mut self, name: &str, choice: ResidencyChoice) -> Vec<Decision> {
        let all = self.holders.iter_mut().flatten();
        for holder in all.filter(|holder| holder.status.instance == name) {
            holder.status.choice = choice;
        }
        self.decide()
    }

    /// An instance uses its weights, or wants to.
    pub(super) fn note_use(&mut self, number: usize) {
        self.rates.count_request(number);
        let now = self.now;
        if let Some(holder) = self.holder_mut(number) {
            holder.last_used = now;
            holder.status.uses += 1;
        }
    }

    /// Whether there is room for an instance's weights that nobody has to leave for, nor waits for.
    pub(super) fn has_free_room(&self, number: usize) -> bool {
        self.waiting.is_empty() && self.used + self.missing_bytes(number) <= self.budget
    }

    /// How long those take, as far as that is known, who would come before one that wants room by a
    /// deadline from now on: who loads, and who waits with an earlier one.
    pub(super) fn time_of_others_before(&self, deadline: u64) -> Duration {
        let rate = self.bytes_per_second();
        let loading = self.holders.iter().flatten().filter_map(|holder| {
            let since = self.now.saturating_sub(holder.place_since);
            let is_loading = holder.status.place == WeightPlace::Loading;
            is_loading.then(|| holder.reload_time(rate).saturating_sub(since))
        });
        let before = self.waiting.iter().take_while(|((due, _), _)| *due <= deadline);
        let waiting = before.filter_map(|(_, (number, _))| self.holders.get(*number)?.as_ref());
        loading.chain(waiting.map(|holder| holder.reload_time(rate))).sum()
    }

    /// An instance whose weights are on disk wants room for them by a deadline.
    pub(super) fn wish_room(
        &mut self,
        number: usize,
        deadline: u64,
        give: RoomCall,
    ) -> Vec<Decision> {
        let Some(holder) = self.holder_mut(number) else { return Vec::new() };
        holder.status.place = WeightPlace::Waiting;
        self.next_ticket += 1;
        self.waiting.insert((deadline, self.next_ticket), (number, give));
        self.decide()
    }

    /// An instance wants no room any more; what it got by now it gives back.
    pub(super) fn cancel_wish(&mut self, number: usize) -> Vec<Decision> {
        self.withdraw_wish(number);
        self.note_left(number)
    }

    fn withdraw_wish(&mut self, number: usize) {
        self.waiting.retain(|_, (who, _)| *who != number);
    }

    /// An instance that got room has loaded its weights, which take that much where it is known.
    pub(super) fn note_loaded(
        &mut self,
        number: usize,
        took: Duration,
        parts: Option<Vec<WeightPart>>,
    ) -> Vec<Decision> {
        let now = self.now;
        if let Some(parts) = parts {
            self.replace_parts(number, parts);
        }
        if let Some(holder) = self.holder_mut(number)
            && holder.status.place == WeightPlace::Loading
        {
            (holder.status.place, holder.place_since) = (WeightPlace::Memory, now);
            holder.last_used = now;
            holder.reload = took;
            holder.status.loads += 1;
            holder.status.load_time += took;
            holder.status.loaded_bytes += holder.status.bytes;
        }
        self.decide()
    }

    fn replace_parts(&mut self, number: usize, parts: Vec<WeightPart>) {
        let is_known =
            |holder: &Holder| holder.status.place != WeightPlace::Loading || holder.parts == parts;
        if self.holders.get(number).and_then(Option::as_ref).is_none_or(is_known) {
            return;
        }
        self.give_parts_back(number);
        if let Some(holder) = self.holder_mut(number) {
            holder.status.bytes = parts.iter().map(|part| part.bytes).sum();
            holder.parts = parts;
        }
        self.take_parts(number);
    }

    /// An instance has let go of its weights, or could not load them.
    pub(super) fn note_left(&mut self, number: usize) -> Vec<Decision> {
        self.give_parts_back(number);
        if let Some(holder) = self.holder_mut(number) {
            if holder.status.place == WeightPlace::Leaving {
                holder.status.evictions += 1;
            }
            holder.status.place = WeightPlace::Disk;
        }
        self.decide()
    }

    /// Has those leave that are wanted on demand, and were not used for a while; to be called now
    /// and then.
    pub(super) fn release_unused(&mut self) -> Vec<Decision> {
        let unused = (0..self.holders.len()).filter(|&number| {
            self.holders[number].as_ref().is_some_and(|holder| {
                holder.status.choice == ResidencyChoice::OnDemand
                    && holder.status.place == WeightPlace::Memory
                    && self.now.saturating_sub(holder.last_used) >= ON_DEMAND_STAY
            })
        });
        let unused: Vec<usize> = unused.collect();
        let mut decisions = self.have_leave(&unused);
        decisions.extend(self.decide());
        decisions
    }

    fn have_leave(&mut self, numbers: &[usize]) -> Vec<Decision> {
        let now = self.now;
        let mut decisions = Vec::with_capacity(numbers.len());
        for &number in numbers {
            if let Some(holder) = self.holder_mut(number) {
                (holder.status.place, holder.place_since) = (WeightPlace::Leaving, now);
                decisions.push(Decision::Leave(Arc::clone(&holder.leave)));
            }
        }
        decisions
    }

    /// What is known of everyone.
    pub(super) fn statuses(&self) -> Vec<WeightStatus> {
        let all = self.holders.iter().flatten();
        all.map(|holder| holder.status.clone()).collect()
    }

    /// Gives room to those whose turn it is, one load at a time, and has others leave for them.
    fn decide(&mut self) -> Vec<Decision> {
        let mut decisions = Vec::new();
        while !self.is_somebody_loading()
            && let Some((&first, &(number, _))) = self.waiting.first_key_value()
        {
            let excess = (self.used + self.missing_bytes(number)).saturating_sub(self.budget);
            if excess > 0 {
                let leaving = self.bytes_of_leaving();
                if leaving >= excess {
                    break;
                }
                let victims = self.choose_victims(excess - leaving, None);
                decisions.extend(self.have_leave(&victims));
                if !victims.is_empty() || leaving > 0 {
                    break;
                }
                // All others have left that may: what is larger than the budget has it alone.
            }
            let Some((number, give)) = self.waiting.remove(&first) else { break };
            self.take_parts(number);
            let now = self.now;
            if let Some(holder) = self.holder_mut(number) {
                (holder.status.place, holder.place_since) = (WeightPlace::Loading, now);
            }
            decisions.push(Decision::GiveRoom(give));
        }
        if self.waiting.is_empty() && !self.is_somebody_loading() {
            // What was loaded may take more than was thought. It stays: somebody wants it.
            let excess = self.used.saturating_sub(self.budget + self.bytes_of_leaving());
            if excess > 0 {
                let victims = self.choose_victims(excess, self.newest_in_memory());
                decisions.extend(self.have_leave(&victims));
            }
        }
        decisions
    }

    /// Whose weights came last.
    fn newest_in_memory(&self) -> Option<usize> {
        let all = self.holders.iter().enumerate();
        let in_memory = all.filter_map(|(number, holder)| {
            let holder =
                holder.as_ref().filter(|holder| holder.status.place == WeightPlace::Memory)?;
            Some((holder.place_since, number))
        });
        in_memory.max().map(|(_, number)| number)
    }

    /// Who leaves, so that so many bytes become free, or as many as can; not who is spared.
    fn choose_victims(&self, bytes: u64, spared: Option<usize>) -> Vec<usize> {
        let in_memory = |choice: Option<ResidencyChoice>| {
            let all = self.holders.iter().enumerate();
            let mine = all.filter_map(|(number, holder)| Some((number, holder.as_ref()?)));
            let may_leave = mine.filter(move |(_, holder)| {
                let is_wanted = choice.is_none_or(|choice| holder.status.choice == choice);
                holder.status.place == WeightPlace::Memory
                    && holder.status.choice != ResidencyChoice::Pinned
                    && is_wanted
            });
            let numbers = may_leave.map(|(number, _)| number);
            numbers.filter(|&number| Some(number) != spared).collect::<Vec<usize>>()
        };
        let on_demand = in_memory(Some(ResidencyChoice::OnDemand));
        let everyone = in_memory(None);
        let rate = self.bytes_per_second();
        let is_idle = |number: &usize| self.is_idle(*number, rate);
        let idle = everyone.iter().copied().filter(is_idle).collect();
        // Where all are asked for all the time, whoever has just come answers those who wait first.
        let in_order = [
            (on_demand, self.policy),
            (idle, self.policy),
            (everyone.clone(), EvictionPolicy::LeastRecentlyUsed),
        ];
        for (candidates, policy) in in_order {
            let resident: Vec<ResidentInstance> =
                candidates.iter().filter_map(|&one| self.resident_instance(one, rate)).collect();
            if let Some(chosen) = policy.choose_victims(&resident, bytes as f64) {
                return chosen.into_iter().map(|one| candidates[one]).collect();
            }
        }
        // What they share is free when the last of them has left.
        everyone
    }

    /// Whether nobody has used an instance for longer than it takes to come back.
    fn is_idle(&self, number: usize, bytes_per_second: Option<f64>) -> bool {
        let holder = self.holders.get(number).and_then(Option::as_ref);
        holder.is_some_and(|holder| {
            let reload = holder.reload_time(bytes_per_second);
            self.now.saturating_sub(holder.last_used) >= IDLE_AFTER_RELOADS * reload
        })
    }

    /// How quickly weights come that have come before.
    fn bytes_per_second(&self) -> Option<f64> {
        let known = self.holders.iter().flatten().filter(|holder| holder.status.loads > 1);
        let (bytes, seconds) = known.fold((0.0, 0.0), |(bytes, seconds), holder| {
            (bytes + holder.status.bytes as f64, seconds + holder.reload.as_secs_f64())
        });
        (seconds > 0.0).then_some(bytes / seconds)
    }

    fn resident_instance(
        &self,
        number: usize,
        bytes_per_second: Option<f64>,
    ) -> Option<ResidentInstance> {
        let holder = self.holders.get(number)?.as_ref()?;
        Some(ResidentInstance {
            bytes: self.own_bytes(holder) as f64,
            reload_ms: holder.reload_time(bytes_per_second).as_secs_f64() * 1e3,
            rate: self.rates.rate_of(number),
            last_used_ms: holder.last_used.as_secs_f64() * 1e3,
            pinned: false,
        })
    }

    /// Bytes that are free when this one has left: those that nobody else holds.
    fn own_bytes(&self, holder: &Holder) -> u64 {
        let own = holder.parts.iter().filter_map(|part| self.parts.get(&part.hash));
        own.filter(|(_, holders)| *holders == 1).map(|(bytes, _)| bytes).sum()
    }

    fn bytes_of_leaving(&self) -> u64 {
        let leaving = self.holders.iter().flatten();
        let leaving = leaving.filter(|holder| {
            let since = self.now.saturating_sub(holder.place_since);
            holder.status.place == WeightPlace::Leaving && since < LEAVING_PATIENCE
        });
        // What several of them share counts once all of them leave.
        let mut leaves: HashMap<ContentHash, usize> = HashMap::new();
        for part in leaving.flat_map(|holder| &holder.parts) {
            *leaves.entry(part.hash).or_default() += 1;
        }
        let freed = leaves.iter().filter_map(|(hash, leaving)| {
            let (bytes, holders) = self.parts.get(hash)?;
            (holders <= leaving).then_some(*bytes)
        });
        freed.sum()
    }

    /// Bytes of an instance's weights that nobody has in memory.
    fn missing_bytes(&self, number: usize) -> u64 {
        let parts = self.holders.get(number).and_then(Option::as_ref).map(|holder| &holder.parts);
        let missing = parts.into_iter().flatten();
        missing.filter(|part| !self.parts.contains_key(&part.hash)).map(|part| part.bytes).sum()
    }

    fn take_parts(&mut self, number: usize) {
        let Some(Some(holder)) = self.holders.get(number) else { return };
        for part in &holder.parts {
            let (_, holders) = self.parts.entry(part.hash).or_insert_with(|| {
                self.used += part.bytes;
                (part.bytes, 0)
            });
            *holders += 1;
        }
    }

    /// Takes what an instance has, or is about to have, off the books.
    fn give_parts_back(&mut self, number: usize) {
        let Some(Some(holder)) = self.holders.get(number) else { return };
        if !holder.status.place.takes_memory() {
            return;
        }
        for part in &holder.parts {
            let Some((bytes, holders)) = self.parts.get_mut(&part.hash) else { continue };
            *holders -= 1;
            if *holders == 0 {
                self.used -= *bytes;
                self.parts.remove(&part.hash);
            }
        }
    }

    /// Whether somebody loads whose load is still worth waiting for.
    fn is_somebody_loading(&self) -> bool {
        self.holders.iter().flatten().any(|holder| {
            let since = self.now.saturating_sub(holder.place_since);
            holder.status.place == WeightPlace::Loading && since < LOADING_PATIENCE
        })
    }

    fn holder_mut(&mut self, number: usize) -> Option<&mut Holder> {
        self.holders.get_mut(number)?.as_mut()
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;

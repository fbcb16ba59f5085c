//! Who comes, who waits and who leaves, by the books alone.

use std::sync::Mutex;

use tessera_core::lock;

use super::*;

/// What was decided, in order.
#[derive(Clone, Default)]
struct DecisionLog(Arc<Mutex<Vec<String>>>);

impl DecisionLog {
    fn note(&self, what: String) {
        lock(&self.0).push(what);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.0))
    }
}

struct Books {
    ledger: ResidencyLedger,
    log: DecisionLog,
}

impl Books {
    fn new(budget: u64, policy: EvictionPolicy) -> Self {
        Self { ledger: ResidencyLedger::new(budget, policy), log: DecisionLog::default() }
    }

    /// Enters an instance with parts of these sizes; parts of the same letter are the same.
    fn add(&mut self, name: &str, parts: &[(&str, u64)], choice: ResidencyChoice) -> usize {
        let part = |(name, bytes): &(&str, u64)| WeightPart {
            hash: ContentHash::of_content(name.as_bytes()),
            bytes: *bytes,
        };
        let (log, leaves) = (self.log.clone(), format!("{name} leaves"));
        self.ledger.add_holder(NewHolder {
            name: name.to_owned(),
            parts: parts.iter().map(part).collect(),
            choice,
            leave: Arc::new(move || log.note(leaves.clone())),
        })
    }

    fn auto(&mut self, name: &str, bytes: u64) -> usize {
        self.add(name, &[(name, bytes)], ResidencyChoice::Auto)
    }

    fn at(&mut self, seconds: u64) -> &mut Self {
        self.ledger.set_time(Duration::from_secs(seconds));
        self
    }

    fn carry_out(&self, decisions: Vec<Decision>) {
        for decision in decisions {
            match decision {
                Decision::GiveRoom(give) => give(),
                Decision::Leave(leave) => leave(),
            }
        }
    }

    fn wish(&mut self, number: usize, deadline: u64) -> Vec<String> {
        let name = self.ledger.holder_mut(number).unwrap().status.instance.clone();
        let log = self.log.clone();
        let give = Box::new(move || log.note(format!("{name} loads")));
        self.ledger.note_use(number);
        let decisions = self.ledger.wish_room(number, deadline, give);
        self.carry_out(decisions);
        self.log.take()
    }

    fn loaded(&mut self, number: usize, milliseconds: u64) -> Vec<String> {
        let took = Duration::from_millis(milliseconds);
        let decisions = self.ledger.note_loaded(number, took, None);
        self.carry_out(decisions);
        self.log.take()
    }

    fn left(&mut self, number: usize) -> Vec<String> {
        let decisions = self.ledger.note_left(number);
        self.carry_out(decisions);
        self.log.take()
    }

    fn bring(&mut self, number: usize) {
        assert_eq!(self.wish(number, 0).len(), 1);
        self.loaded(number, 10);
    }

    fn tick(&mut self) -> Vec<String> {
        let decisions = self.ledger.release_unused();
        self.carry_out(decisions);
        self.log.take()
    }
}

const LRU: EvictionPolicy = EvictionPolicy::LeastRecentlyUsed;

#[test]
fn who_was_used_least_recently_leaves_and_then_the_next_one_loads() {
    let mut books = Books::new(100, LRU);
    let [ants, bees, cats] = ["ants", "bees", "cats"].map(|name| books.auto(name, 40));
    books.at(1).bring(ants);
    books.at(2).bring(bees);
    books.at(3).ledger.note_use(ants);
    assert_eq!(books.ledger.used(), 80);
    assert_eq!(books.at(4).wish(cats, 0), ["bees leaves"]);
    // Its runs are not over yet.
    assert_eq!(books.tick(), [""; 0]);
    assert_eq!(books.left(bees), ["cats loads"]);
    assert_eq!(books.loaded(cats, 5), [""; 0]);
    let statuses = books.ledger.statuses();
    let of = |name: &str| statuses.iter().find(|status| status.instance == name).unwrap();
    assert_eq!((of("bees").place, of("bees").evictions), (WeightPlace::Disk, 1));
    assert_eq!((of("cats").place, of("cats").loads), (WeightPlace::Memory, 1));
    assert_eq!(books.ledger.used(), 80);
}

#[test]
fn what_is_dear_to_load_and_often_used_stays() {
    let mut books = Books::new(100, EvictionPolicy::ReloadCost);
    let [ants, bees, cats] = ["ants", "bees", "cats"].map(|name| books.auto(name, 40));
    books.at(1).wish(ants, 0);
    books.loaded(ants, 900);
    books.at(2).wish(bees, 0);
    books.loaded(bees, 10);
    // Used least recently, but ninety times as dear.
    assert_eq!(books.at(3).wish(cats, 0), ["bees leaves"]);
}

#[test]
fn one_loads_at_a_time_whose_deadline_is_first() {
    let mut books = Books::new(100, LRU);
    let [ants, bees, cats, dogs] =
        ["ants", "bees", "cats", "dogs"].map(|name| books.auto(name, 10));
    assert_eq!(books.wish(ants, 50), ["ants loads"]);
    assert_eq!(books.wish(bees, 90), [""; 0]);
    assert_eq!(books.wish(cats, 70), [""; 0]);
    assert_eq!(books.wish(dogs, 80), [""; 0]);
    assert_eq!(books.loaded(ants, 1), ["cats loads"]);
    // It could not be loaded, which holds nobody up.
    assert_eq!(books.left(cats), ["dogs loads"]);
    // Nobody waits for it any more.
    let decisions = books.ledger.cancel_wish(bees);
    books.carry_out(decisions);
    assert_eq!(books.loaded(dogs, 1), [""; 0]);
    assert_eq!(books.ledger.used(), 20);
    // One that is removed while it loads.
    assert_eq!(books.wish(bees, 1), ["bees loads"]);
    assert_eq!(books.wish(cats, 1), [""; 0]);
    let decisions = books.ledger.remove_holder(bees);
    books.carry_out(decisions);
    assert_eq!(books.log.take(), ["cats loads"]);
}

#[test]
fn what_is_shared_is_there_once_and_stays_for_as_long_as_somebody_has_it() {
    let mut books = Books::new(100, LRU);
    let trunk = ("trunk", 50);
    let ants = books.add("ants", &[trunk, ("head of ants", 10)], ResidencyChoice::Auto);
    let bees = books.add("bees", &[trunk, ("head of bees", 10)], ResidencyChoice::Auto);
    let cats = books.auto("cats", 90);
    books.at(1).bring(ants);
    books.at(2).bring(bees);
    assert_eq!(books.ledger.used(), 70);
    // The trunk goes with the last of them.
    assert_eq!(books.at(3).wish(cats, 0), ["ants leaves", "bees leaves"]);
    assert_eq!(books.left(ants), [""; 0]);
    assert_eq!(books.ledger.used(), 60);
    assert_eq!(books.left(bees), ["cats loads"]);
    assert_eq!(books.ledger.used(), 90);
}

#[test]
fn pinned_ones_stay_those_on_demand_leave_first_and_what_is_too_large_comes_alone() {
    let mut books = Books::new(100, LRU);
    let ants = books.add("ants", &[("ants", 30)], ResidencyChoice::Pinned);
    let bees = books.add("bees", &[("bees", 30)], ResidencyChoice::OnDemand);
    let cats = books.auto("cats", 30);
    let dogs = books.auto("dogs", 30);
    let elephants = books.auto("elephants", 300);
    books.at(1).bring(ants);
    books.at(2).bring(cats);
    books.at(3).bring(bees);
    assert_eq!(books.wish(dogs, 0), ["bees leaves"]);
    assert_eq!(books.left(bees), ["dogs loads"]);
    books.loaded(dogs, 1);
    // Larger than all there is.
    assert_eq!(books.at(4).wish(elephants, 0), ["cats leaves", "dogs leaves"]);
    assert_eq!(books.left(cats), [""; 0]);
    assert_eq!(books.left(dogs), ["elephants loads"]);
    books.loaded(elephants, 1);
    assert_eq!(books.ledger.used(), 330);
    // Where others have left, one that is wanted on demand leaves after a while by itself.
    assert_eq!(books.at(5).wish(bees, 0), ["elephants leaves"]);
    assert_eq!(books.left(elephants), ["bees loads"]);
    books.loaded(bees, 1);
    assert_eq!(books.at(6).tick(), [""; 0]);
    assert_eq!(books.at(20).tick(), ["bees leaves"]);
}

#[test]
fn whoever_does_not_leave_is_not_waited_for_without_end() {
    let mut books = Books::new(50, LRU);
    let [ants, bees] = ["ants", "bees"].map(|name| books.auto(name, 40));
    books.at(1).bring(ants);
    assert_eq!(books.at(2).wish(bees, 0), ["ants leaves"]);
    assert_eq!(books.at(5).tick(), [""; 0]);
    // A run that does not end has them; there is more in memory than there should be.
    assert_eq!(books.at(13).tick(), ["bees loads"]);
    books.loaded(bees, 1);
    assert_eq!(books.ledger.used(), 80);
    assert_eq!(books.left(ants), [""; 0]);
    assert_eq!(books.ledger.used(), 40);
}

#[test]
fn what_takes_more_than_was_thought_has_others_leave_and_stays() {
    let mut books = Books::new(100, LRU);
    let [ants, bees] = ["ants", "bees"].map(|name| books.auto(name, 40));
    books.at(1).bring(ants);
    assert_eq!(books.at(2).wish(bees, 0), ["bees loads"]);
    let part = WeightPart { hash: ContentHash::of_content(b"bees"), bytes: 70 };
    let decisions = books.ledger.note_loaded(bees, Duration::ZERO, Some(vec![part]));
    books.carry_out(decisions);
    assert_eq!(books.log.take(), ["ants leaves"]);
    assert_eq!(books.left(ants), [""; 0]);
    assert_eq!(books.ledger.used(), 70);
    // And where it is alone, and too large.
    let part = WeightPart { hash: ContentHash::of_content(b"bees"), bytes: 170 };
    assert_eq!(books.at(3).wish(ants, 0), ["bees leaves"]);
    assert_eq!(books.left(bees), ["ants loads"]);
    books.loaded(ants, 1);
    assert_eq!(books.at(4).wish(bees, 0), ["ants leaves"]);
    assert_eq!(books.left(ants), ["bees loads"]);
    let decisions = books.ledger.note_loaded(bees, Duration::ZERO, Some(vec![part]));
    books.carry_out(decisions);
    assert_eq!(books.log.take(), [""; 0]);
    assert_eq!(books.ledger.used(), 170);
}

#[test]
fn what_has_come_once_is_taken_to_come_back_as_quickly_as_others() {
    let mut books = Books::new(100, EvictionPolicy::ReloadCost);
    let [ants, bees, cats] = ["ants", "bees", "cats"].map(|name| books.auto(name, 40));
    // Sessions are made with the first load.
    books.at(0).wish(ants, 0);
    books.loaded(ants, 2000);
    books.at(10).wish(bees, 0);
    books.loaded(bees, 2000);
    assert_eq!(books.at(20).wish(cats, 0), ["ants leaves"]);
    books.left(ants);
    books.loaded(cats, 2000);
    for round in 3..6 {
        assert_eq!(books.at(10 * round).wish(ants, 0).len(), 1);
        let gone =
            books.ledger.statuses().into_iter().find(|one| one.place == WeightPlace::Leaving);
        let gone = if gone.unwrap().instance == "bees" { bees } else { cats };
        books.left(gone);
        books.loaded(ants, 10);
        let (other, wanted) = if gone == bees { (cats, bees) } else { (bees, cats) };
        books.ledger.note_use(other);
        // Those that came once do not stay because that took long.
        assert_eq!(books.at(10 * round + 5).wish(wanted, 0), ["ants leaves"], "{round}");
        books.left(ants);
        books.loaded(wanted, 10);
    }
}

#[test]
fn where_all_are_asked_for_who_came_last_stays() {
    let mut books = Books::new(80, EvictionPolicy::ReloadCost);
    let [ants, bees, cats] = ["ants", "bees", "cats"].map(|name| books.auto(name, 40));
    let milliseconds = |books: &mut Books, now| books.ledger.set_time(Duration::from_millis(now));
    milliseconds(&mut books, 0);
    books.bring(ants);
    // Often asked for, and so the last to leave where there is time to choose.
    (0..10).for_each(|_| books.ledger.note_use(ants));
    milliseconds(&mut books, 30);
    books.bring(bees);
    // Both were used within the time of four loads: it is the turn of whoever came first.
    milliseconds(&mut books, 35);
    assert_eq!(books.wish(cats, 0), ["ants leaves"]);
    books.left(ants);
    books.loaded(cats, 10);
    milliseconds(&mut books, 2000);
    (0..10).for_each(|_| books.ledger.note_use(cats));
    milliseconds(&mut books, 4000);
    assert_eq!(books.wish(ants, 0), ["bees leaves"]);
}

#[test]
fn it_is_known_how_long_others_load_who_come_first() {
    let mut books = Books::new(1000, LRU);
    let [ants, bees, cats] = ["ants", "bees", "cats"].map(|name| books.auto(name, 40));
    let before = |books: &Books, deadline| books.ledger.time_of_others_before(deadline).as_millis();
    for number in [ants, bees, cats] {
        for _ in 0..2 {
            books.wish(number, 0);
            books.loaded(number, 10);
            books.left(number);
        }
    }
    assert_eq!(before(&books, 50), 0);
    assert_eq!(books.at(1).wish(ants, 60), ["ants loads"]);
    assert_eq!(books.wish(bees, 60), [""; 0]);
    assert_eq!(books.wish(cats, 80), [""; 0]);
    // Whose deadline is before theirs waits for who loads, and nobody else.
    assert_eq!(before(&books, 50), 10);
    assert_eq!(before(&books, 70), 20);
    assert_eq!(before(&books, 80), 30);
    books.ledger.set_time(Duration::from_millis(1008));
    assert_eq!(before(&books, 50), 2);
}

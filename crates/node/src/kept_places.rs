//! Where instances were to others: one that takes the place of another is found under its name and
//! at its port, where nobody is there to tell that it has others.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use tessera_core::lock;
use tessera_deploy::UnitId;

/// Where an instance is to others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstancePlace {
    /// Its unit.
    pub unit: UnitId,
    /// Which of the unit's instances it is.
    pub replica: usize,
    /// What else its name is made of.
    pub number: u64,
    /// Its port to other hosts.
    pub port: u16,
}

/// Places whose next instance is to be found where the last one was.
#[derive(Default)]
pub(crate) struct KeptPlaces {
    places: Mutex<BTreeMap<(UnitId, usize), InstancePlace>>,
    /// Whether those are kept that become free.
    keeps_free: AtomicBool,
}

impl KeptPlaces {
    pub(crate) fn add_places(&self, places: Vec<InstancePlace>) {
        let named = places.into_iter().map(|place| ((place.unit.clone(), place.replica), place));
        lock(&self.places).extend(named);
    }

    pub(crate) fn set_keeps_free(&self, keeps: bool) {
        self.keeps_free.store(keeps, Ordering::Release);
    }

    /// The place of an instance that has ended and is started again.
    pub(crate) fn note_free(&self, place: InstancePlace) {
        if self.keeps_free.load(Ordering::Acquire) {
            self.add_places(vec![place]);
        }
    }

    /// The place that the next instance is to take.
    pub(crate) fn take_place(&self, key: &(UnitId, usize)) -> Option<InstancePlace> {
        lock(&self.places).remove(key)
    }
}

//! A table of what is in use: an entry is there for as long as somebody holds it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, Weak};

use tessera_core::{Result, lock};

/// What is in use, by key.
pub(crate) struct LiveTable<K, V>(Mutex<Entries<K, V>>);

struct Entries<K, V> {
    by_key: HashMap<K, Weak<V>>,
    /// At so many entries, those that nobody holds are taken out.
    swept_at: usize,
}

impl<K, V> Default for LiveTable<K, V> {
    fn default() -> Self {
        Self(Mutex::new(Entries { by_key: HashMap::new(), swept_at: FIRST_SWEEP }))
    }
}

/// Entries before those that nobody holds are taken out for the first time.
const FIRST_SWEEP: usize = 16;

impl<K: Eq + Hash, V> LiveTable<K, V> {
    /// The entry that is still in use and of use, or a new one.
    pub(crate) fn get_or_make(
        &self,
        key: K,
        is_usable: impl Fn(&V) -> bool,
        make: impl FnOnce() -> Result<V>,
    ) -> Result<Arc<V>> {
        let find = |table: &Entries<K, V>| {
            table.by_key.get(&key).and_then(Weak::upgrade).filter(|known| is_usable(known))
        };
        if let Some(known) = find(&lock(&self.0)) {
            return Ok(known);
        }
        let made = Arc::new(make()?);
        let mut table = lock(&self.0);
        if table.by_key.len() >= table.swept_at {
            table.by_key.retain(|_, entry| entry.strong_count() > 0);
            // Twice as many as are in use: what is looked through is paid for by what came.
            table.swept_at = FIRST_SWEEP.max(table.by_key.len() * 2);
        }
        // Somebody may have been quicker; whoever came first is shared.
        if let Some(known) = find(&table) {
            return Ok(known);
        }
        table.by_key.insert(key, Arc::downgrade(&made));
        Ok(made)
    }

    /// Everything that is in use.
    pub(crate) fn live_values(&self) -> Vec<Arc<V>> {
        lock(&self.0).by_key.values().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_shared_while_somebody_has_it_and_made_anew_afterwards() {
        let table = LiveTable::<u32, String>::default();
        let get = |name: &str| table.get_or_make(1, |_| true, || Ok(name.to_owned())).unwrap();
        let (first, second) = (get("first"), get("second"));
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(table.live_values().len(), 1);
        drop((first, second));
        assert!(table.live_values().is_empty());
        let third = get("third");
        assert_eq!(*third, "third");
        let fourth = table.get_or_make(1, |known| known != "third", || Ok("fourth".to_owned()));
        assert_eq!(*fourth.unwrap(), "fourth");
    }
}

//! What is known of those who have content: how quick they are, what they had wrong, and who was out
//! of reach.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, lock};

use crate::content_transfer::ContentName;
use crate::source_meter::SourceMeters;

/// How long a source comes last that was out of reach.
const AWAY_TIME: Duration = Duration::from_secs(10);

/// What is known of sources, and whether they are asked still.
#[derive(Default)]
pub(crate) struct SourceStandings {
    pub(crate) meters: SourceMeters,
    /// Content of which a source had something wrong: it is asked for that when nobody else has it.
    refused: Mutex<HashSet<(String, ContentName)>>,
    /// Until when sources come last that were out of reach.
    away: Mutex<HashMap<String, Instant>>,
    is_cancelled: AtomicBool,
}

impl SourceStandings {
    /// Nobody is asked any more.
    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
    }

    pub(crate) fn check_cancelled(&self) -> Result<()> {
        if self.is_cancelled.load(Ordering::Acquire) {
            return Err(Error::lost("it was interrupted"));
        }
        Ok(())
    }

    /// A source had something wrong of some content.
    pub(crate) fn refuse_source(&self, source: &str, name: ContentName) {
        lock(&self.refused).insert((source.to_owned(), name));
    }

    pub(crate) fn is_refused(&self, source: &str, name: ContentName) -> bool {
        lock(&self.refused).contains(&(source.to_owned(), name))
    }

    /// A source was out of reach: others are asked before it for a while.
    pub(crate) fn note_away(&self, source: &str) {
        let mut away = lock(&self.away);
        away.retain(|_, until| Instant::now() < *until);
        away.insert(source.to_owned(), Instant::now() + AWAY_TIME);
    }

    pub(crate) fn is_away(&self, source: &str) -> bool {
        lock(&self.away).get(source).is_some_and(|until| Instant::now() < *until)
    }
}

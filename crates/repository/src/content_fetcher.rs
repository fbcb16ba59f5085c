//! Fetches content that a repository lacks: each of it once, and a few at the same time.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, lock};

use crate::content_fetch::ContentFetch;
use crate::content_source::ContentSources;
use crate::content_transfer::ContentName;
use crate::source_meter::SourceMeters;
use crate::store::Repository;

/// How much content is fetched at the same time: small content is mostly waited for.
const MOST_AT_ONCE: usize = 4;
/// How long a source comes last that was out of reach.
const AWAY_TIME: Duration = Duration::from_secs(10);

/// Fetches content for one repository.
#[derive(Default)]
pub struct ContentFetcher {
    /// What is being fetched.
    running: Mutex<HashSet<ContentName>>,
    ended: Condvar,
    pub(crate) meters: SourceMeters,
    /// Content of which a source had something wrong: it is asked for that when nobody else has it.
    refused: Mutex<HashSet<(String, ContentName)>>,
    /// Until when sources come last that were out of reach.
    away: Mutex<HashMap<String, Instant>>,
    is_cancelled: AtomicBool,
}

/// The right to fetch some content, until this is dropped.
struct FetchTurn<'a> {
    fetcher: &'a ContentFetcher,
    name: ContentName,
}

impl ContentFetcher {
    /// Fetches content unless it is there; what is fetched already is waited for. May take its
    /// time.
    pub fn fetch(
        &self,
        repository: &Repository,
        name: ContentName,
        sources: &dyn ContentSources,
    ) -> Result<()> {
        if repository.has_content(name) {
            return Ok(());
        }
        let _turn = self.wait_for_turn(name);
        // Whoever was waited for may have fetched it.
        if repository.has_content(name) {
            return Ok(());
        }
        ContentFetch::begin(self, repository, name, sources)?.run()
    }

    /// Fetches all of this, some of it at the same time; the first error ends it.
    pub fn fetch_all(
        &self,
        repository: &Repository,
        names: &[ContentName],
        sources: &dyn ContentSources,
        progress: &(dyn Fn(ContentName) + Sync),
    ) -> Result<()> {
        let waiting = Mutex::new(names.iter().copied());
        let failed = Mutex::new(None);
        let work = || {
            while lock(&failed).is_none() {
                let Some(name) = lock(&waiting).next() else { return };
                match self.fetch(repository, name, sources) {
                    Ok(()) => progress(name),
                    Err(error) => drop(lock(&failed).get_or_insert(error)),
                }
            }
        };
        std::thread::scope(|scope| {
            let others = names.len().min(MOST_AT_ONCE).saturating_sub(1);
            for _ in 0..others {
                // With fewer threads it takes longer, and nothing else.
                let builder = std::thread::Builder::new().name("fetch".to_owned());
                builder.spawn_scoped(scope, work).ok();
            }
            work();
        });
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), Err)
    }

    /// Ends what is being fetched; it can be gone on with.
    pub fn cancel(&self) {
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

    fn wait_for_turn(&self, name: ContentName) -> FetchTurn<'_> {
        let mut running = lock(&self.running);
        while running.contains(&name) || running.len() >= MOST_AT_ONCE {
            running = self.ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        running.insert(name);
        FetchTurn { fetcher: self, name }
    }
}

impl Drop for FetchTurn<'_> {
    fn drop(&mut self) {
        lock(&self.fetcher.running).remove(&self.name);
        self.fetcher.ended.notify_all();
    }
}

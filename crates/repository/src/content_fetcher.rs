//! Fetches content that a repository lacks: each of it once, and a few at the same time.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};

use tessera_core::{Result, lock};

use crate::content_fetch::ContentFetch;
use crate::content_source::ContentSources;
use crate::content_transfer::ContentName;
use crate::source_standings::SourceStandings;
use crate::store::Repository;

/// How much content is fetched at the same time: small content is mostly waited for.
const MOST_AT_ONCE: usize = 4;

/// Fetches content for one repository.
#[derive(Default)]
pub struct ContentFetcher {
    /// What is being fetched.
    running: Mutex<HashSet<ContentName>>,
    ended: Condvar,
    standings: SourceStandings,
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
        ContentFetch::begin(&self.standings, repository, name, sources)?.run()
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
        self.standings.cancel();
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

//! One content fetched: from the nearest source that has it, range by range, each checked as soon
//! as it is there.
//!
//! What is wrong costs one range: it is cut off again, and comes from the next source. Whether the
//! bytes are wrong or what they are checked with may be open where two sources are involved. Then
//! whoever gave the latter has to prove it with the last range (see [`ContentTree`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tessera_core::{ContentTree, Error, ErrorKind, RANGE_BYTES, Result};

use crate::content_import::{ContentImport, range_start};
use crate::content_source::{ContentSource, ContentSources, OpenedContent};
use crate::content_transfer::ContentName;
use crate::source_meter::ENOUGH_BYTES;
use crate::source_standings::SourceStandings;
use crate::store::Repository;

/// How long a source is used before it is left for one that should be faster, and by how much.
const LEAST_TRY: Duration = Duration::from_secs(1);
const FAR_SLOWER: f64 = 3.0;
/// How often that is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

type Source = Arc<dyn ContentSource>;

/// Content that is being fetched.
pub(crate) struct ContentFetch<'a> {
    standings: &'a SourceStandings,
    repository: &'a Repository,
    name: ContentName,
    sources: &'a dyn ContentSources,
    import: ContentImport,
    /// Who gave the tree of the import, and whether it is known to be right.
    giver: Option<(Source, bool)>,
    /// Those that are not asked again, and why.
    failed: Vec<(String, Error)>,
    /// Those that were left for another.
    left: Vec<String>,
}

/// How it went with one source.
enum FetchStep {
    Complete,
    /// What was there before was wrong: from where it is right on, once more.
    Again,
    TooSlow,
}

impl<'a> ContentFetch<'a> {
    /// Goes on where somebody stopped.
    pub(crate) fn begin(
        standings: &'a SourceStandings,
        repository: &'a Repository,
        name: ContentName,
        sources: &'a dyn ContentSources,
    ) -> Result<Self> {
        let import = repository.begin_import(name)?;
        let (failed, left) = (Vec::new(), Vec::new());
        Ok(Self { standings, repository, name, sources, import, giver: None, failed, left })
    }

    /// Fetches all of it.
    pub(crate) fn run(mut self) -> Result<()> {
        let (start, begun) = (Instant::now(), self.import.len());
        loop {
            self.standings.check_cancelled()?;
            let Some(source) = self.ordered_sources().into_iter().next() else {
                return Err(self.failure());
            };
            let from = source.source_name();
            match self.fetch_from(&source) {
                Ok(FetchStep::Complete) => {
                    let (name, took) = (self.name, start.elapsed());
                    tracing::debug!(content = %name, from, begun, ?took, "fetched");
                    return self.import.finish(self.repository);
                }
                Ok(FetchStep::Again) => {}
                Ok(FetchStep::TooSlow) => {
                    tracing::debug!(content = %self.name, from, "left for a faster source");
                    self.left.push(from.to_owned());
                }
                Err(error) => self.give_up(&source, error),
            }
        }
    }

    /// Does not ask a source again; one that had something wrong comes last from now on.
    fn give_up(&mut self, source: &Source, error: Error) {
        let from = source.source_name();
        if error.kind() == ErrorKind::Corrupt {
            tracing::warn!(content = %self.name, from, %error, "refused");
            self.standings.refuse_source(from, self.name);
        } else {
            if matches!(error.kind(), ErrorKind::Lost | ErrorKind::TimedOut) {
                self.standings.note_away(from);
            }
            tracing::debug!(content = %self.name, from, %error, "not fetched from there");
        }
        self.failed.push((from.to_owned(), error));
    }

    fn failure(&self) -> Error {
        let name = self.name;
        let Some((_, last)) = self.failed.last() else {
            return Error::lost(format!("{name}: nobody is there to fetch it from"));
        };
        let reasons: Vec<String> =
            self.failed.iter().map(|(from, error)| format!("{from}: {error}")).collect();
        Error::new(last.kind(), format!("{name} can't be fetched: {}", reasons.join("; ")))
    }

    /// Those that are asked, the nearest first.
    fn ordered_sources(&self) -> Vec<Source> {
        let bytes = self.missing_bytes();
        let found = self.sources.sources_of(self.name);
        let is_open =
            |source: &Source| self.failed.iter().all(|(failed, _)| *failed != source.source_name());
        let mut found: Vec<_> = found
            .into_iter()
            .filter(is_open)
            .map(|source| {
                let name = source.source_name();
                let is_last = self.standings.is_refused(name, self.name);
                let is_late = self.standings.is_away(name) || self.was_left(&source);
                let time = self.standings.meters.order_of(&*source, bytes);
                (is_last, is_late, time, source)
            })
            .collect();
        found.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
        found.into_iter().map(|(.., source)| source).collect()
    }

    fn was_left(&self, source: &Source) -> bool {
        self.left.iter().any(|left| left == source.source_name())
    }

    /// What is to come, or a range where that is not known yet.
    fn missing_bytes(&self) -> u64 {
        let tree = self.import.tree();
        tree.map_or(RANGE_BYTES, |tree| tree.total().saturating_sub(self.import.len()))
    }

    fn fetch_from(&mut self, source: &Source) -> Result<FetchStep> {
        let (begun, asked) = (self.import.len(), Instant::now());
        let OpenedContent { total, mut pieces } = source.open_content(self.name, begun)?;
        let (meters, from) = (&self.standings.meters, source.source_name());
        meters.note_answer(from, asked.elapsed());
        let is_much = total.saturating_sub(begun) >= ENOUGH_BYTES;
        let metered = is_much.then(|| meters.begin_fetch(from));
        if !self.agree_on_tree(source, total)? || self.import.len() != begun {
            return Ok(FetchStep::Again);
        }
        let (mut looked, start) = (Instant::now(), Instant::now());
        while !self.import.is_complete() {
            self.standings.check_cancelled()?;
            let Some(piece) = pieces.next_piece()? else {
                return Err(Error::lost(format!("{}: it was cut off", self.name)));
            };
            metered.iter().for_each(|metered| metered.note_bytes(piece.len()));
            let start_of_range = range_start(self.import.len());
            match self.import.append(&piece) {
                Ok(()) => {}
                Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
                // A part of it was there before.
                Err(_) if start_of_range < begun && self.import.len() == start_of_range => {
                    return Ok(FetchStep::Again);
                }
                Err(error) => return self.blame(source, error),
            }
            if looked.elapsed() >= LOOK_INTERVAL {
                looked = Instant::now();
                if start.elapsed() >= LEAST_TRY && self.is_far_slower(source) {
                    return Ok(FetchStep::TooSlow);
                }
            }
        }
        Ok(FetchStep::Complete)
    }

    /// What a source has does not fit the tree: an error where that is the source's fault.
    fn blame(&mut self, source: &Source, error: Error) -> Result<FetchStep> {
        let is_own = self.giver.as_ref().is_none_or(|(giver, is_proven)| {
            !is_proven && giver.source_name() == source.source_name()
        });
        if is_own {
            self.drop_tree();
            return Err(error);
        }
        if self.prove_tree() { Err(error) } else { Ok(FetchStep::Again) }
    }

    /// Whether another that was not left yet should be faster by far with what is missing.
    fn is_far_slower(&self, source: &Source) -> bool {
        if self.was_left(source) {
            return false;
        }
        let (bytes, meters) = (self.missing_bytes(), &self.standings.meters);
        let own = meters.expected_time(&**source, bytes).as_secs_f64();
        self.ordered_sources().iter().any(|other| {
            other.source_name() != source.source_name()
                && !self.was_left(other)
                && !self.standings.is_refused(other.source_name(), self.name)
                && !self.standings.is_away(other.source_name())
                && meters.expected_time(&**other, bytes).as_secs_f64() * FAR_SLOWER < own
        })
    }

    /// Finds out what it is checked with, and checks what is there; an error where the source says
    /// something wrong, and `false` where something else was wrong, which is mended.
    fn agree_on_tree(&mut self, source: &Source, total: u64) -> Result<bool> {
        if self.import.tree().is_none() {
            let (tree, giver) = if total <= RANGE_BYTES {
                (ContentTree::of_one_range(self.name.hash, total), Arc::clone(source))
            } else {
                self.find_tree(source)?
            };
            let is_small = tree.total() <= RANGE_BYTES;
            let right = self.import.check_with(tree.clone())?;
            self.giver = Some((giver, false));
            if right < self.import.len() {
                if is_small {
                    // It is soon fetched again, and then the source has no excuse.
                    self.import.truncate(0)?;
                } else if self.prove(&tree) {
                    self.import.truncate(right)?;
                }
                self.drop_tree();
                return Ok(false);
            }
        }
        let known = self.import.tree().map_or(total, ContentTree::total);
        if known == total {
            return Ok(true);
        }
        let error = format!("{}: it has {total} bytes, expected {known}", self.name);
        self.blame(source, Error::corrupt(error)).map(|_| false)
    }

    /// The tree of somebody, from the source itself where it has one.
    fn find_tree(&mut self, source: &Source) -> Result<(ContentTree, Source)> {
        let mut others = self.ordered_sources();
        others.retain(|other| other.source_name() != source.source_name());
        let mut failed = None;
        for giver in std::iter::once(Arc::clone(source)).chain(others) {
            match giver.read_tree(self.name) {
                Ok(tree) => return Ok((tree, giver)),
                Err(error) => {
                    let from = giver.source_name();
                    tracing::debug!(content = %self.name, from, %error, "no ranges from there");
                    failed.get_or_insert(error);
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::lost(format!("{}: no ranges", self.name))))
    }

    fn drop_tree(&mut self) {
        self.import.forget_tree();
        self.giver = None;
    }

    /// Whether the tree is right; one that is not is dropped.
    fn prove_tree(&mut self) -> bool {
        let Some(tree) = self.import.tree().cloned() else { return false };
        let is_right = self.prove(&tree);
        match &mut self.giver {
            Some((_, is_proven)) if is_right => *is_proven = true,
            _ => self.drop_tree(),
        }
        is_right
    }

    /// Has whoever gave a tree prove it with the last range; gives up whoever can't.
    fn prove(&mut self, tree: &ContentTree) -> bool {
        let giver = match &self.giver {
            Some((_, true)) => return true,
            Some((giver, false)) => Arc::clone(giver),
            None => return false,
        };
        let last = tree.range_count() - 1;
        let range = tree.range(last);
        let read = read_range(&*giver, self.name, range.start, range.end - range.start);
        let proved = read.and_then(|bytes| {
            if tree.fits_range(last, &bytes) {
                return Ok(());
            }
            Err(Error::corrupt(format!("{}: its ranges were altered", self.name)))
        });
        if let Err(error) = proved {
            self.give_up(&giver, error);
            return false;
        }
        true
    }
}

/// So many bytes of some content, as far as they are there.
fn read_range(
    source: &dyn ContentSource,
    name: ContentName,
    offset: u64,
    length: u64,
) -> Result<Vec<u8>> {
    let mut opened = source.open_content(name, offset)?;
    let mut bytes = Vec::with_capacity(length.min(RANGE_BYTES) as usize);
    while (bytes.len() as u64) < length {
        let Some(piece) = opened.pieces.next_piece()? else { break };
        let left = length - bytes.len() as u64;
        bytes.extend_from_slice(&piece[..piece.len().min(left as usize)]);
    }
    Ok(bytes)
}

//! Where content can be fetched from: a peer, the controller, an object store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tessera_core::{ContentTree, Result};

use crate::content_transfer::ContentName;

/// Somebody who may have content.
///
/// It is asked by threads that may wait. Nothing that it says is believed before it was checked.
pub trait ContentSource: Send + Sync {
    /// What messages call it; no two sources are called the same.
    fn source_name(&self) -> &str;

    /// Whether all nodes of a cluster use it, so that others are spared it where they can be.
    fn is_shared(&self) -> bool;

    /// How fast it should be, where something is known of the way to it.
    fn expected_speed(&self) -> Option<SourceSpeed>;

    /// What the ranges of some content are checked with.
    fn read_tree(&self, name: ContentName) -> Result<ContentTree>;

    /// Some content from an offset on.
    fn open_content(&self, name: ContentName, offset: u64) -> Result<OpenedContent>;
}

/// How long something takes from a source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SourceSpeed {
    /// From a question to the first byte of the answer.
    pub round_trip: Duration,
    /// What comes from then on; `None` where that is not known.
    pub bytes_per_second: Option<f64>,
}

/// Content that is being sent.
pub struct OpenedContent {
    /// The length of all of it.
    pub total: u64,
    /// What is there from the offset on.
    pub pieces: Box<dyn ContentPieces>,
}

/// Content in pieces of any length, as they come.
pub trait ContentPieces: Send {
    /// The next piece; `None` at the end.
    fn next_piece(&mut self) -> Result<Option<Bytes>>;
}

/// Who may have content: others from time to time.
pub trait ContentSources: Sync {
    /// All that may have this now.
    fn sources_of(&self, name: ContentName) -> Vec<Arc<dyn ContentSource>>;
}

impl<F: Fn(ContentName) -> Vec<Arc<dyn ContentSource>> + Sync> ContentSources for F {
    fn sources_of(&self, name: ContentName) -> Vec<Arc<dyn ContentSource>> {
        self(name)
    }
}

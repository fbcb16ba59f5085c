//! What a store has to be able to do: bytes under names that look like paths.

use bytes::Bytes;
use tessera_core::{Error, Result};
use tessera_repository::{ContentPieces, OpenedContent};

/// Bytes under names. Its functions are called by threads that may wait.
pub(crate) trait BlobStore: Send + Sync {
    /// Puts something where nothing is, whole or not at all; `false` where something is.
    fn put_new(&self, path: &str, bytes: Bytes) -> Result<bool>;

    /// Puts something in place of what was.
    fn replace(&self, path: &str, bytes: Bytes) -> Result<()>;

    /// The length of what is there; `None` where nothing is.
    fn length_of(&self, path: &str) -> Result<Option<u64>>;

    /// What is there from an offset on; an error where nothing is.
    fn open(&self, path: &str, offset: u64) -> Result<OpenedContent>;

    /// The last parts of the names in a folder, in order.
    fn list_names(&self, folder: &str) -> Result<Vec<String>>;
}

/// All of what is there, which is no longer than this; `None` where nothing is.
pub(crate) fn read_whole(store: &dyn BlobStore, path: &str, most: u64) -> Result<Option<Vec<u8>>> {
    let Some(length) = store.length_of(path)? else { return Ok(None) };
    if length > most {
        return Err(Error::corrupt(format!("{path}: {length} bytes, expected {most} at most")));
    }
    let mut opened = store.open(path, 0)?;
    let mut bytes = Vec::with_capacity(length as usize);
    while let Some(piece) = opened.pieces.next_piece()? {
        bytes.extend_from_slice(&piece);
        if bytes.len() as u64 > length {
            return Err(Error::corrupt(format!("{path}: more than its {length} bytes")));
        }
    }
    Ok(Some(bytes))
}

/// Content without bytes, or none that were asked for.
pub(crate) struct NoPieces;

impl ContentPieces for NoPieces {
    fn next_piece(&mut self) -> Result<Option<Bytes>> {
        Ok(None)
    }
}

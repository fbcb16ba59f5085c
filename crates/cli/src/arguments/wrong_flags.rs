//! What is wrong with flags, all of it at once.

use tessera_core::Result;

/// What a flag says; notes what is wrong with it.
pub(crate) fn note_wrong<T>(parsed: Result<T>, wrong: &mut Vec<String>) -> Option<T> {
    parsed.map_err(|error| wrong.push(error.to_string())).ok()
}

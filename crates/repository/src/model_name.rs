//! The names of models.

use std::path::Path;

use tessera_core::{is_plain_name, is_unshown};

use crate::store::LONGEST_FILE_NAME;

/// The name to keep a model under: the file's, without its ending.
pub fn model_name_of(path: &Path) -> String {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    model_name_from(&stem)
}

/// The name of a file or a folder as that of a model: what a terminal would not show is
/// percent-encoded, and what is too long is cut.
pub(crate) fn model_name_from(text: &str) -> String {
    let mut name = String::new();
    for (count, c) in text.trim_start_matches('.').chars().enumerate() {
        let mut bytes = [0; 4];
        let encoded = c.encode_utf8(&mut bytes);
        let before = name.len();
        if is_unshown(c) || c == '/' {
            name.extend(encoded.bytes().map(|byte| format!("%{byte:02X}")));
        } else {
            name.push(c);
        }
        if count >= 128 || name.len() > LONGEST_FILE_NAME || !is_plain_name(&name) {
            name.truncate(before);
            break;
        }
    }
    if name.is_empty() { "model".to_owned() } else { name }
}

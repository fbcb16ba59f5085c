//! What people may call things, and text that a terminal shows as it is.

use std::borrow::Cow;

/// Most characters of a name.
const LONGEST_NAME: usize = 128;

/// Whether a model, a task or a step may be called so.
///
/// Any characters but those that lead elsewhere in a path or that are not shown: a name is part of
/// URLs (percent-encoded there) and of files, and is shown on terminals.
pub fn is_plain_name(name: &str) -> bool {
    // Not counted to the end: a name may be a client's, of any length.
    name.chars().nth(LONGEST_NAME).is_none()
        && !name.is_empty()
        && !name.starts_with('.')
        && !name.contains(|c: char| c == '/' || is_unshown(c))
}

/// Whether a terminal would do something with a character instead of showing it: control
/// characters, and those that end a line or turn the direction of writing.
pub fn is_unshown(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The same text with characters that a terminal would not show as `\u{…}`; lines and tabs stay.
pub fn escape_unshown(text: &str) -> Cow<'_, str> {
    let is_wrong = |c: char| is_unshown(c) && c != '\n' && c != '\t';
    if !text.contains(is_wrong) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_wrong(c) {
            escaped.extend(c.escape_unicode());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_any_characters_that_are_shown() {
        for name in
            ["a", "模型", "50%", "my model (v2)", "größe", "a.b", "-", "\"", &"ü".repeat(128)]
        {
            assert!(is_plain_name(name), "{name:?}");
        }
        for name in ["", ".a", "a/b", "a\nb", "\u{1b}[31m", "\u{202e}b", &"ü".repeat(129)] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(escape_unshown("a\nb\t模"), "a\nb\t模");
        assert_eq!(escape_unshown("\u{1b}[2Ja\r"), "\\u{1b}[2Ja\\u{d}");
        assert_eq!(escape_unshown("\u{202e}"), "\\u{202e}");
    }
}

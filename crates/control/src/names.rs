//! Names of tasks, blocks and steps, and how messages show them.

use tessera_core::{Error, Result, escape_unshown, is_plain_name};

/// A name as a regular expression: [`tessera_core::is_plain_name`].
macro_rules! name_pattern {
    () => {
        "[^./\\u0000-\\u001f\\u007f-\\u009f\\u2028-\\u202e\\u2066-\\u2069]\
         [^/\\u0000-\\u001f\\u007f-\\u009f\\u2028-\\u202e\\u2066-\\u2069]{0,127}"
    };
}

/// What a task may be called, as a regular expression.
pub(crate) const TASK_PATTERN: &str = concat!("^", name_pattern!(), "$");

/// What a path may name: a model, `MODEL/NUMBER`, or the hash of a block.
pub(crate) const BLOCK_PATTERN: &str = concat!("^", name_pattern!(), "(/[0-9]{1,9})?$");

/// What an input of a step may name: `STEP`, `STEP.N` or `$N`.
pub(crate) const STEP_INPUT_PATTERN: &str =
    concat!("^(\\$[0-9]{1,4}|", name_pattern!(), "(/[0-9]{1,9})?(\\.[0-9]{1,4})?)$");

/// What a node is called, as a regular expression.
pub(crate) const NODE_PATTERN: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";

/// What a token is listed under, as a regular expression.
pub(crate) const TOKEN_PATTERN: &str = "^[0-9a-f]{8}$";

/// What a unit may be called, or the beginning of its name or of a hash.
pub(crate) const UNIT_PATTERN: &str = "^[a-zA-Z0-9][a-zA-Z0-9_.@:+-]{0,127}$";

/// Refuses what can't be the name of a task.
pub fn check_task_name(name: &str) -> Result<()> {
    check_name(name, "task")
}

/// The same of a model that is brought.
pub(crate) fn check_model_name(name: &str) -> Result<()> {
    check_name(name, "model")
}

fn check_name(name: &str, what: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "\"{}\" is no name for a {what}, expected {EXPECTED_NAME}",
        shorten_name(name)
    )))
}

/// What a name must be, for messages.
pub(crate) const EXPECTED_NAME: &str =
    "1 to 128 characters without / and control characters, of which a dot is not the first";

pub(crate) fn is_name(name: &str) -> bool {
    is_plain_name(name)
}

pub(crate) fn is_block_name(name: &str) -> bool {
    match name.split_once('/') {
        None => is_name(name),
        Some((model, number)) => is_name(model) && is_number(number, 9),
    }
}

pub(crate) fn is_unit_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.@:+".contains(c))
}

/// Whether `text` is a number of up to so many digits.
pub(crate) fn is_number(text: &str, digits: usize) -> bool {
    (1..=digits).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A name as messages show it: cut where it is too long to be one, and with what a terminal would
/// not show escaped.
pub(crate) fn shorten_name(name: &str) -> String {
    const MOST: usize = 150;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", escape_unshown(&name[..end])),
        None => escape_unshown(name).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[test]
    fn patterns_say_what_the_checks_do() {
        let long = "a".repeat(128);
        let longer = "a".repeat(129);
        let wide = "模".repeat(128);
        let names = [
            "a",
            "task1",
            "a.b",
            ".a",
            "",
            "a b",
            "-",
            "_x",
            "ü",
            "a/1",
            "a/",
            "a/x",
            "/1",
            "a/1/2",
            "a/1234567890",
            "a:b",
            "@",
            "+1",
            "$0",
            "a\n",
            "模型",
            "50%",
            "\u{1b}[1m",
            "\u{9b}",
            "\u{2029}",
            "\u{202e}a",
            "a\u{2069}",
            "ab12",
            &long,
            &longer,
            &wide,
        ];
        let (task, block) = (Regex::new(TASK_PATTERN).unwrap(), Regex::new(BLOCK_PATTERN).unwrap());
        let unit = Regex::new(UNIT_PATTERN).unwrap();
        for name in names {
            assert_eq!(task.is_match(name), is_name(name), "{name:?}");
            assert_eq!(block.is_match(name), is_block_name(name), "{name:?}");
            assert_eq!(unit.is_match(name), is_unit_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_cut_in_messages() {
        assert_eq!(shorten_name("short"), "short");
        assert_eq!(shorten_name("\u{1b}[1m"), "\\u{1b}[1m");
        assert_eq!(shorten_name(&"ü".repeat(1000)).chars().count(), 151);
    }
}

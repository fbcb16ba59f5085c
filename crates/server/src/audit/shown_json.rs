//! A document in a line: shortened, and without what may be a secret.

use serde_json::{Map, Value};

/// The longest that a document is shown.
const MOST_CHARACTERS: usize = 400;
/// The longest that a text in it is shown.
const MOST_TEXT: usize = 64;
/// The most entries of an array or an object that are shown.
const MOST_ENTRIES: usize = 16;
/// How deep a document is shown.
const MOST_DEPTH: usize = 5;

/// Parts of names of what nobody is to read.
const SECRET_NAMES: [&str; 6] =
    ["secret", "token", "password", "credential", "authorization", "private_key"];

/// A document in a line.
pub(super) fn show_json(value: &Value) -> String {
    let text = shorten_value(value, 0).to_string();
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn shorten_value(value: &Value, depth: usize) -> Value {
    match value {
        Value::String(text) => shorten_text(text),
        Value::Array(_) | Value::Object(_) if depth >= MOST_DEPTH => "…".into(),
        Value::Array(values) => {
            let mut shown: Vec<Value> = values
                .iter()
                .take(MOST_ENTRIES)
                .map(|value| shorten_value(value, depth + 1))
                .collect();
            if values.len() > MOST_ENTRIES {
                shown.push(format!("… {} in all", values.len()).into());
            }
            shown.into()
        }
        Value::Object(fields) => shorten_object(fields, depth).into(),
        other => other.clone(),
    }
}

fn shorten_object(fields: &Map<String, Value>, depth: usize) -> Map<String, Value> {
    let mut shown = Map::new();
    for (name, value) in fields.iter().take(MOST_ENTRIES) {
        let value = match value {
            _ if is_secret(name) => "(not shown)".into(),
            // A file of a model, or its configuration, is a document of its own.
            Value::String(text) if name == "config" || name.starts_with("file:") => {
                text_length(text)
            }
            value => shorten_value(value, depth + 1),
        };
        let name: String = name.chars().take(MOST_TEXT).collect();
        shown.insert(name, value);
    }
    if fields.len() > MOST_ENTRIES {
        shown.insert("…".to_owned(), format!("{} in all", fields.len()).into());
    }
    shown
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

fn shorten_text(text: &str) -> Value {
    if text.chars().nth(MOST_TEXT).is_some() { text_length(text) } else { text.into() }
}

fn text_length(text: &str) -> Value {
    format!("({} bytes)", text.len()).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_may_be_a_secret_is_not_shown() {
        let shown = show_json(&json!({
            "model": "dogs",
            "api_token": "abc",
            "parameters": { "Password": "hunter2", "config": "{\"key\": 1}", "file:1/m": "AAAA" },
        }));
        assert!(shown.contains("\"model\":\"dogs\""), "{shown}");
        for hidden in ["abc", "hunter2", "key", "AAAA"] {
            assert!(!shown.contains(hidden), "{shown}");
        }
    }

    #[test]
    fn a_document_of_any_size_is_a_short_line() {
        let many: Vec<Value> = (0..1000).map(|number| json!({ "n": number })).collect();
        let mut deep = json!(1);
        for _ in 0..50 {
            deep = json!([deep]);
        }
        for document in [json!(many), deep, json!("x".repeat(100_000)), json!({"é\n": many})] {
            let shown = show_json(&document);
            assert!(shown.chars().count() <= MOST_CHARACTERS + 1, "{shown}");
            assert!(!shown.contains('\n'), "{shown}");
        }
    }
}

//! What an answer says, beyond its tensors.

use serde::Deserialize;
use serde_json::Value;

/// The header that tells where the JSON ends and binary tensors begin, in requests and answers.
pub(crate) const HEADER_LENGTH: &str = "inference-header-content-length";

/// What an answer says of how it came about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseRemarks {
    /// The exits that were taken, one per row where the server tells them apart.
    pub(crate) exits: Vec<String>,
    /// Why the answer is less than a full one.
    pub(crate) degraded: Option<String>,
}

#[derive(Deserialize)]
struct InferenceResponseDocument {
    parameters: Option<InferenceResponseParameters>,
}

#[derive(Deserialize)]
struct InferenceResponseParameters {
    exit: Option<Value>,
    degraded: Option<Value>,
}

/// Reads the JSON of an answer; `None` where it is none.
pub(crate) fn read_remarks(json: &[u8]) -> Option<ResponseRemarks> {
    let document: InferenceResponseDocument = serde_json::from_slice(json).ok()?;
    let Some(parameters) = document.parameters else { return Some(ResponseRemarks::default()) };
    let exits = match parameters.exit {
        Some(Value::Array(values)) => values.into_iter().filter_map(parameter_text).collect(),
        Some(value) => parameter_text(value).into_iter().collect(),
        None => Vec::new(),
    };
    Some(ResponseRemarks { exits, degraded: parameters.degraded.and_then(parameter_text) })
}

/// A parameter as text; `None` where it says that there is nothing to say.
fn parameter_text(value: Value) -> Option<String> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::String(text) => Some(text).filter(|text| !text.is_empty()),
        other => Some(other.to_string()),
    }
}

/// The message of an answer that is an error, cut to a line's length.
pub(crate) fn error_message(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct ErrorDocument {
        error: String,
    }
    let message = match serde_json::from_slice::<ErrorDocument>(body) {
        Ok(refusal) => refusal.error,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().take(200).collect();
    Some(line).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_and_degradation_are_read_from_the_parameters() {
        let read = |json: &str| read_remarks(json.as_bytes()).unwrap();
        let plain = read(r#"{"model_name":"m","outputs":[{"name":"y","shape":[1]}]}"#);
        assert_eq!(plain, ResponseRemarks::default());
        let one = read(r#"{"outputs":[],"parameters":{"exit":"exit_15","degraded":"late"}}"#);
        assert_eq!(one.exits, ["exit_15"]);
        assert_eq!(one.degraded.as_deref(), Some("late"));
        let rows = read(r#"{"parameters":{"exit":["a",null,"a"],"degraded":false,"other":[1]}}"#);
        assert_eq!(rows.exits, ["a", "a"]);
        assert_eq!(rows.degraded, None);
        assert_eq!(read(r#"{"parameters":{"exit":2}}"#).exits, ["2"]);
        assert_eq!(read(r#"{"parameters":null}"#), ResponseRemarks::default());
    }

    #[test]
    fn what_is_no_json_object_is_no_answer() {
        for text in ["", "{\"outputs\":", "hello", "3"] {
            assert_eq!(read_remarks(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn an_error_is_one_line_whatever_the_server_sent() {
        assert_eq!(error_message(br#"{"error":"queue\nfull"}"#).as_deref(), Some("queue full"));
        assert_eq!(error_message(b"<html>\n502</html>").as_deref(), Some("<html> 502</html>"));
        assert_eq!(error_message(b""), None);
        assert_eq!(error_message(&[b'x'; 999]).map(|text| text.len()), Some(200));
    }
}

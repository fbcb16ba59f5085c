//! Protobuf's text format, in which `config.pbtxt` is written, as JSON.

use serde_json::{Map, Value};
use tessera_core::{Error, Result};

/// Messages inside messages that are read; a configuration has four.
const DEEPEST: usize = 32;

/// The fields of a message. A field that is there several times is an array, and so is a list.
pub(super) fn parse_text_format(text: &str) -> Result<Value> {
    let mut reader = TextReader { rest: text, line: 1 };
    let message = reader.read_message(None, 0)?;
    Ok(Value::Object(message))
}

struct TextReader<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> TextReader<'a> {
    /// The fields up to `end`, or to the end of the text.
    fn read_message(&mut self, end: Option<char>, depth: usize) -> Result<Map<String, Value>> {
        if depth > DEEPEST {
            return Err(self.wrong("messages inside messages, more than there can be"));
        }
        let mut fields = Map::new();
        loop {
            self.skip_space();
            match (self.rest.chars().next(), end) {
                (None, None) => return Ok(fields),
                (None, Some(end)) => return Err(self.wrong(&format!("no '{end}' at the end"))),
                (Some(c), Some(end)) if c == end => {
                    self.advance(1);
                    return Ok(fields);
                }
                _ => {}
            }
            let name = self.read_word()?.to_owned();
            self.skip_space();
            let has_colon = self.take_char(':');
            let value = self.read_value(has_colon, depth)?;
            add_field(&mut fields, name, value);
            self.skip_space();
            // Fields may be set apart, and need not be.
            let _set_apart = self.take_char(',') || self.take_char(';');
        }
    }

    fn read_value(&mut self, has_colon: bool, depth: usize) -> Result<Value> {
        self.skip_space();
        match self.rest.chars().next() {
            Some('{') => {
                self.advance(1);
                Ok(Value::Object(self.read_message(Some('}'), depth + 1)?))
            }
            Some('<') => {
                self.advance(1);
                Ok(Value::Object(self.read_message(Some('>'), depth + 1)?))
            }
            Some('[') if depth < DEEPEST => {
                self.advance(1);
                self.read_list(depth + 1)
            }
            Some('"' | '\'') if has_colon => self.read_strings(),
            Some(_) if has_colon => Ok(read_scalar(self.read_word()?)),
            _ => Err(self.wrong("a field without a value, expected ':' or '{'")),
        }
    }

    fn read_list(&mut self, depth: usize) -> Result<Value> {
        let mut values = Vec::new();
        loop {
            self.skip_space();
            if self.take_char(']') {
                return Ok(Value::Array(values));
            }
            values.push(self.read_value(true, depth)?);
            self.skip_space();
            if !self.take_char(',') && !self.rest.starts_with(']') {
                return Err(self.wrong("a list that goes on without ','"));
            }
        }
    }

    /// A string; several after each other are one.
    fn read_strings(&mut self) -> Result<Value> {
        let mut text = String::new();
        while let Some(quote @ ('"' | '\'')) = self.rest.chars().next() {
            self.advance(1);
            loop {
                let Some(c) = self.rest.chars().next().filter(|c| *c != '\n') else {
                    return Err(self.wrong("a string without an end"));
                };
                self.advance(c.len_utf8());
                match c {
                    c if c == quote => break,
                    '\\' => {
                        let escaped = self.rest.chars().next().unwrap_or('\\');
                        self.advance(escaped.len_utf8().min(self.rest.len()));
                        text.push(match escaped {
                            'n' => '\n',
                            't' => '\t',
                            'r' => '\r',
                            other => other,
                        });
                    }
                    c => text.push(c),
                }
            }
            self.skip_space();
        }
        Ok(Value::String(text))
    }

    /// A name, a number or a word.
    fn read_word(&mut self) -> Result<&'a str> {
        let fits = |c: char| c.is_alphanumeric() || "_-+.".contains(c);
        let end = self.rest.find(|c| !fits(c)).unwrap_or(self.rest.len());
        if end == 0 {
            let found = self.rest.chars().next().unwrap_or(' ');
            return Err(self.wrong(&format!("'{}', expected a name", found.escape_debug())));
        }
        let word = &self.rest[..end];
        self.advance(end);
        Ok(word)
    }

    fn take_char(&mut self, c: char) -> bool {
        let is_there = self.rest.starts_with(c);
        if is_there {
            self.advance(c.len_utf8());
        }
        is_there
    }

    /// Goes on behind spaces and comments.
    fn skip_space(&mut self) {
        loop {
            let space = self.rest.len() - self.rest.trim_start().len();
            self.advance(space);
            if !self.rest.starts_with('#') {
                return;
            }
            self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    fn advance(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at(bytes);
        self.line += passed.matches('\n').count();
        self.rest = rest;
    }

    fn wrong(&self, what: &str) -> Error {
        Error::invalid(format!("line {}: {what}", self.line))
    }
}

/// A number or a switch as such, and any other word as text.
fn read_scalar(word: &str) -> Value {
    match word {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => match (word.parse::<i64>(), word.parse::<f64>()) {
            (Ok(integer), _) => integer.into(),
            (_, Ok(number)) if number.is_finite() => number.into(),
            _ => Value::String(word.to_owned()),
        },
    }
}

fn add_field(fields: &mut Map<String, Value>, name: String, value: Value) {
    let Some(known) = fields.get_mut(&name) else {
        fields.insert(name, value);
        return;
    };
    let mut all = match known.take() {
        Value::Array(values) => values,
        one => vec![one],
    };
    match value {
        Value::Array(values) => all.extend(values),
        one => all.push(one),
    }
    *known = Value::Array(all);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_lists_and_messages_become_json() {
        let text = r#"
            # A model.
            name: "dense" 'net'
            max_batch_size: 8
            input [ { name: "data_0", data_type: TYPE_FP32 dims: [ 3, 224 ] } ]
            input < name: "mask"; dims: 1; dims: -1 >
            dynamic_batching { }
            parameters { key: "a\"b" value { string_value: "1" } }
        "#;
        let expected = json!({
            "name": "densenet",
            "max_batch_size": 8,
            "input": [
                {"name": "data_0", "data_type": "TYPE_FP32", "dims": [3, 224]},
                {"name": "mask", "dims": [1, -1]},
            ],
            "dynamic_batching": {},
            "parameters": {"key": "a\"b", "value": {"string_value": "1"}},
        });
        assert_eq!(parse_text_format(text).unwrap(), expected);
        assert_eq!(parse_text_format("").unwrap(), json!({}));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let deep = "a { ".repeat(100_000);
        let nested = format!("a: {}", "[".repeat(100_000));
        for (text, expected) in [
            ("name: \"a\n\"", "line 1: a string without an end"),
            ("a: 1\nb {", "line 2: no '}' at the end"),
            ("a: 1\n\n}", "line 3: '}', expected a name"),
            ("a 1", "line 1: a field without a value"),
            ("a: [1 2]", "line 1: a list that goes on"),
            ("a: \"x\\", "line 1: a string without an end"),
            (deep.as_str(), "more than there can be"),
            (nested.as_str(), "expected a name"),
        ] {
            let error = parse_text_format(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

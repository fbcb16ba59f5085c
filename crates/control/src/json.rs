//! Reads JSON as people write it: a field that is given twice is refused instead of forgotten.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use tessera_core::{Error, Result};

/// Reads a JSON document; what is none is refused with the position.
pub fn read_json(bytes: &[u8]) -> Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let read = UniqueFields::deserialize(&mut deserializer);
    let read = read.and_then(|UniqueFields(value)| deserializer.end().map(|()| value));
    read.map_err(|error| Error::invalid(format!("this is no JSON document: {error}")))
}

/// A value in which no field is given twice.
struct UniqueFields(Value);

impl<'de> Deserialize<'de> for UniqueFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue).map(Self)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(UniqueFields(value)) = array.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some((key, UniqueFields(value))) = object.next_entry::<String, UniqueFields>()? {
            if values.contains_key(&key) {
                return Err(A::Error::custom(format!("field \"{key}\" is given twice")));
            }
            values.insert(key, value);
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_read_is_what_serde_reads() {
        for text in ["null", "[1, -2, 2.5, \"a\", true]", "{\"a\": {\"b\": []}}", " 1e3 "] {
            let expected: Value = serde_json::from_str(text).unwrap();
            assert_eq!(read_json(text.as_bytes()).unwrap(), expected, "{text}");
        }
        assert_eq!(read_json(b"{\"a\": 1}").unwrap(), json!({"a": 1}));
    }

    #[test]
    fn what_is_no_json_is_refused_with_the_position() {
        for (text, position) in [
            ("", "line 1 column 0"),
            ("{\"a\": 1,}", "line 1 column 9"),
            ("1 2", "line 1 column 3"),
            ("{\n\"a\" 1}", "line 2 column 5"),
        ] {
            let message = read_json(text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains(position), "{text}: {message}");
        }
        assert!(read_json(&"[".repeat(100_000).into_bytes()).is_err());
        assert!(read_json(b"\"\xff\"").is_err());
    }

    #[test]
    fn a_field_that_is_given_twice_is_refused() {
        let text = b"{\"tasks\": {\"a\": [], \"b\": [], \"a\": []}}";
        let message = read_json(text).unwrap_err().to_string();
        assert!(message.contains("field \"a\" is given twice"), "{message}");
        assert!(message.contains("line 1"), "{message}");
    }
}

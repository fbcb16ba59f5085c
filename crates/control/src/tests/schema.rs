//! Holds values against the schemas of the OpenAPI document.

use regex::Regex;
use serde_json::Value;

/// Whether `value` is as `schema` says; a keyword that this does not know fails the test.
pub(super) fn check(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let keywords = schema.as_object().unwrap();
    for (keyword, wanted) in keywords {
        let at_least = |count: usize| count as u64 >= wanted.as_u64().unwrap();
        let fits = match keyword.as_str() {
            "$ref" => {
                check(document, follow(document, wanted), value)?;
                true
            }
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|one| is_type(one, value)),
                one => is_type(one, value),
            },
            "enum" => wanted.as_array().unwrap().contains(value),
            "pattern" => {
                let pattern = Regex::new(wanted.as_str().unwrap()).unwrap();
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "minimum" => value.as_f64().is_none_or(|number| number >= wanted.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= wanted.as_f64().unwrap()),
            "maxItems" => {
                value.as_array().is_none_or(|items| items.len() as u64 <= wanted.as_u64().unwrap())
            }
            "dependentRequired" => value.as_object().is_none_or(|fields| {
                let mut wanted = wanted.as_object().unwrap().iter();
                wanted.all(|(name, needed)| {
                    let mut needed = needed.as_array().unwrap().iter();
                    !fields.contains_key(name)
                        || needed.all(|other| fields.contains_key(other.as_str().unwrap()))
                })
            }),
            "minLength" => value.as_str().is_none_or(|text| at_least(text.chars().count())),
            "minItems" => value.as_array().is_none_or(|items| at_least(items.len())),
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    check(document, wanted, item)?;
                }
                true
            }
            "uniqueItems" => value.as_array().is_none_or(|items| {
                items.iter().enumerate().all(|(number, item)| !items[..number].contains(item))
            }),
            "properties" => {
                for (name, schema) in wanted.as_object().unwrap() {
                    if let Some(field) = value.get(name) {
                        check(document, schema, field)?;
                    }
                }
                true
            }
            "required" => value.as_object().is_none_or(|fields| {
                let mut names = wanted.as_array().unwrap().iter();
                names.all(|name| fields.contains_key(name.as_str().unwrap()))
            }),
            "additionalProperties" => {
                let known = keywords.get("properties").and_then(Value::as_object);
                for (name, field) in value.as_object().into_iter().flatten() {
                    if known.is_some_and(|known| known.contains_key(name)) {
                        continue;
                    }
                    if *wanted == Value::Bool(false) {
                        return Err(format!("there is no field \"{name}\""));
                    }
                    check(document, wanted, field)?;
                }
                true
            }
            "propertyNames" => {
                for name in value.as_object().into_iter().flat_map(|fields| fields.keys()) {
                    check(document, wanted, &Value::String(name.clone()))?;
                }
                true
            }
            "anyOf" => {
                let mut schemas = wanted.as_array().unwrap().iter();
                schemas.any(|one| check(document, one, value).is_ok())
            }
            "description" | "default" => true,
            other => panic!("this does not know the keyword {other}"),
        };
        if !fits {
            return Err(format!("{value} breaks {keyword}: {wanted}"));
        }
    }
    Ok(())
}

/// What a reference stands for.
pub(super) fn follow<'a>(document: &'a Value, reference: &Value) -> &'a Value {
    let pointer = reference.as_str().unwrap().trim_start_matches('#');
    document.pointer(pointer).unwrap_or_else(|| panic!("nothing is at {reference}"))
}

/// Whether `value` is as the schema of this name says.
pub(super) fn conforms(name: &str, value: &Value) -> Result<(), String> {
    let document = crate::openapi_document();
    check(&document, &document["components"]["schemas"][name], value)
}

fn is_type(wanted: &Value, value: &Value) -> bool {
    match wanted.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("this does not know the type {other}"),
    }
}

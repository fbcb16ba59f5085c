//! What schemas are made of.

use serde_json::{Map, Value, json};

use super::component_reference;

/// Schemas by name.
pub(super) type Schemas = Vec<(String, Value)>;

pub(super) fn named_schemas<const N: usize>(schemas: [(&str, Value); N]) -> Schemas {
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

pub(super) fn schema_reference(name: &str) -> Value {
    component_reference("schemas", name)
}

/// An object with these fields and no others, of which the first so many must be there.
pub(super) fn object_schema<const N: usize>(required: usize, fields: [(&str, Value); N]) -> Value {
    let must: Vec<&str> = fields.iter().take(required).map(|(name, _)| *name).collect();
    let fields = fields.into_iter().map(|(name, schema)| (name.to_owned(), schema));
    json!({
        "type": "object",
        "properties": fields.collect::<Map<String, Value>>(),
        "required": must,
        "additionalProperties": false
    })
}

pub(super) fn array_schema(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

pub(super) fn string_schema() -> Value {
    json!({"type": "string"})
}

pub(super) fn pattern_schema(pattern: &str) -> Value {
    json!({"type": "string", "pattern": pattern})
}

pub(super) fn count_schema() -> Value {
    json!({"type": "integer", "minimum": 0})
}

pub(super) fn with_description(mut schema: Value, description: &str) -> Value {
    schema["description"] = description.into();
    schema
}

pub(super) fn one_of(values: &[&str]) -> Value {
    json!({"type": "string", "enum": values})
}

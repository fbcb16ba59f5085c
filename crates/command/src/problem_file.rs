//! Files of problems and plans, in YAML or JSON. What is wrong with one is said in a line that
//! names the file and the field.

use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;
use tessera_core::{Error, Result};

/// Reads YAML or JSON from a file, or from standard input where that is `-`.
pub fn read_problem<T: DeserializeOwned>(path: &Path) -> Result<T> {
    parse_text(path, &read_text(path)?)
}

/// What is in a file, which is not empty.
pub fn read_text(path: &Path) -> Result<String> {
    let name = display_name(path);
    let mut text = String::new();
    let read = if path.to_str() == Some("-") {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(path).map(|read| text = read)
    };
    read.map_err(|error| Error::from_io(&name, &error))?;
    if text.trim().is_empty() {
        return Err(Error::invalid(format!("{name}: empty")));
    }
    Ok(text)
}

/// What a file's text says.
pub fn parse_text<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_json = match extension {
        Some("json") => true,
        Some("yaml" | "yml") => false,
        _ => text.trim_start().starts_with('{'),
    };
    let value = if is_json { parse_json(text) } else { parse_yaml(text) };
    value.map_err(|error| error.with_context(display_name(path)))
}

/// How a file is called in messages.
pub fn display_name(path: &Path) -> String {
    if path.to_str() == Some("-") {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    }
}

/// Writes what the user wants to have in a file.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Error::from_io(path.display(), &error))
}

fn parse_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| explain_field(&error.path().to_string(), &error.inner().to_string()))?;
    reader.end().map_err(|error| explain_field(".", &error.to_string()))?;
    Ok(value)
}

fn parse_yaml<T: DeserializeOwned>(text: &str) -> Result<T> {
    let reader = yaml_serde::Deserializer::from_str(text);
    serde_path_to_error::deserialize(reader)
        .map_err(|error| explain_field(&error.path().to_string(), &error.inner().to_string()))
}

/// One line: the field, and what is wrong with it.
fn explain_field(field: &str, problem: &str) -> Error {
    let problem: Vec<&str> = problem.split_whitespace().collect();
    let problem = problem.join(" ");
    Error::invalid(match field {
        "." | "" | "?" => problem,
        field => format!("{field}: {problem}"),
    })
}

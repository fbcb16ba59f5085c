//! Files of problems and plans, in YAML or JSON. What is wrong with one is said in a line that names the
//! file and the field.

use std::cell::RefCell;
use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;
use tessera_core::{Error, Result};

/// Reads YAML or JSON from a file, or from standard input where that is `-`.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    parse(path, &text(path)?)
}

/// What is in a file, which is not empty.
pub(crate) fn text(path: &Path) -> Result<String> {
    let name = name(path);
    let mut text = String::new();
    let read = match path.to_str() == Some("-") {
        true => std::io::stdin().read_to_string(&mut text).map(drop),
        false => std::fs::read_to_string(path).map(|read| text = read),
    };
    read.map_err(|error| Error::io(&name, &error))?;
    if text.trim().is_empty() {
        return Err(Error::invalid(format!("{name}: empty")));
    }
    Ok(text)
}

/// What a file's text says.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_json = match extension {
        Some("json") => true,
        Some("yaml" | "yml") => false,
        _ => text.trim_start().starts_with('{'),
    };
    let value = if is_json { json(text) } else { yaml(text) };
    value.map_err(|error| error.within(name(path)))
}

/// How a file is called in messages.
pub(crate) fn name(path: &Path) -> String {
    match path.to_str() == Some("-") {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}

/// Writes what the user wants to have in a file.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Error::io(path.display(), &error))
}

fn json<T: DeserializeOwned>(text: &str) -> Result<T> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| explain(&error.path().to_string(), &error.inner().to_string()))?;
    reader.end().map_err(|error| explain(".", &error.to_string()))?;
    Ok(value)
}

fn yaml<T: DeserializeOwned>(text: &str) -> Result<T> {
    let at = RefCell::new(".".to_owned());
    let options = serde_saphyr::options! { with_snippet: false };
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |reader| {
        serde_path_to_error::deserialize(reader).map_err(|error| {
            *at.borrow_mut() = error.path().to_string();
            error.into_inner()
        })
    });
    read.map_err(|error| explain(&at.borrow(), &error.to_string()))
}

/// One line: the field, and what is wrong with it.
fn explain(field: &str, problem: &str) -> Error {
    let problem: Vec<&str> = problem.split_whitespace().collect();
    let problem = problem.join(" ");
    Error::invalid(match field {
        "." | "" | "?" => problem,
        field => format!("{field}: {problem}"),
    })
}

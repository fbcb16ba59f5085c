//! Several model files: their names, and which shapes are whose.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tessera_core::{Error, Result};
use tessera_graph::Graph;

use crate::model_name::{model_name_from, model_name_of};
use crate::store::check_model_name;

/// A model file, and the name to keep it under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// The name.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

/// Names the files of `given`, each `FILE` or `NAME=FILE`.
///
/// A file that is not named has its own name without the ending; where several are called alike, as
/// `bert/model.onnx` and `vit/model.onnx`, those have the names of their folders.
pub fn name_files(given: &[PathBuf]) -> Result<Vec<NamedFile>> {
    let parsed: Vec<(Option<String>, PathBuf)> =
        given.iter().map(|path| parse_named(path)).collect();
    let stems: Vec<String> = parsed.iter().map(|(_, path)| model_name_of(path)).collect();
    let is_alike = |index: usize| {
        let others = parsed.iter().zip(&stems).enumerate();
        others
            .filter(|(_, ((named, _), _))| named.is_none())
            .any(|(other, (_, stem))| other != index && *stem == stems[index])
    };
    let mut files: Vec<NamedFile> = Vec::with_capacity(parsed.len());
    for (index, (named, path)) in parsed.iter().enumerate() {
        let name = match named {
            Some(name) => name.clone(),
            None if is_alike(index) => folder_name(path).unwrap_or_else(|| stems[index].clone()),
            None => stems[index].clone(),
        };
        check_model_name(&name)?;
        if let Some(other) = files.iter().find(|file| file.name == name) {
            return Err(Error::usage(format!(
                "{} and {} would both be called \"{name}\", expected NAME=FILE for one of them",
                other.path.display(),
                path.display()
            )));
        }
        files.push(NamedFile { name, path: path.clone() });
    }
    Ok(files)
}

/// `NAME=FILE`, unless there is a file of that name.
fn parse_named(path: &Path) -> (Option<String>, PathBuf) {
    let split = path.to_str().and_then(|text| text.split_once('='));
    match split {
        Some((name, file)) if !name.contains('/') && !path.exists() => {
            (Some(name.to_owned()), file.into())
        }
        _ => (None, path.to_path_buf()),
    }
}

/// The folder that a file is in, as a name.
fn folder_name(path: &Path) -> Option<String> {
    let folder = std::path::absolute(path).ok()?;
    Some(model_name_from(&folder.parent()?.file_name()?.to_string_lossy()))
}

/// Shapes of inputs for several models: `INPUT` for all that have such an input, `NAME:INPUT` for
/// one model.
#[derive(Clone, Debug, Default)]
pub struct ModelShapes {
    shapes: BTreeMap<String, Vec<usize>>,
}

impl ModelShapes {
    /// The shapes as the user wrote them.
    pub fn new(shapes: BTreeMap<String, Vec<usize>>) -> Self {
        Self { shapes }
    }

    /// Those of one model; notes which were used.
    pub fn of_model(
        &self,
        name: &str,
        graph: &Graph,
        used: &mut BTreeSet<String>,
    ) -> BTreeMap<String, Vec<usize>> {
        let mut found = BTreeMap::new();
        for &id in graph.inputs() {
            let input = graph.value_name(id);
            for key in [input.to_owned(), format!("{name}:{input}")] {
                if let Some(shape) = self.shapes.get(&key) {
                    found.insert(input.to_owned(), shape.clone());
                    used.insert(key);
                }
            }
        }
        found
    }

    /// Fails where a shape is no model's.
    pub fn check_all_used(&self, used: &BTreeSet<String>) -> Result<()> {
        match self.shapes.keys().find(|key| !used.contains(*key)) {
            None => Ok(()),
            Some(key) => Err(Error::usage(format!(
                "--shape {key}=…: no model has such an input, expected INPUT or NAME:INPUT"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(given: &[&str]) -> Result<Vec<String>> {
        let given: Vec<PathBuf> = given.iter().map(PathBuf::from).collect();
        Ok(name_files(&given)?.into_iter().map(|file| file.name).collect())
    }

    #[test]
    fn files_that_are_called_alike_have_the_names_of_their_folders() {
        assert_eq!(names(&["a/resnet.onnx", "b/vit.onnx"]).unwrap(), ["resnet", "vit"]);
        assert_eq!(names(&["bert/model.onnx", "vit/model.onnx"]).unwrap(), ["bert", "vit"]);
        assert_eq!(
            names(&["bert/model.onnx", "vit/model.onnx", "x.onnx"]).unwrap(),
            ["bert", "vit", "x"]
        );
    }

    #[test]
    fn a_name_can_be_given() {
        assert_eq!(names(&["first=a/model.onnx", "b/model.onnx"]).unwrap(), ["first", "model"]);
        let message = names(&["a/m/x.onnx", "b/m/x.onnx"]).unwrap_err().to_string();
        assert!(message.contains("\"m\", expected NAME=FILE"), "{message}");
        assert_eq!(names(&["a b=x.onnx"]).unwrap(), ["a b"]);
        let message = names(&["\u{1b}b=x.onnx"]).unwrap_err().to_string();
        assert!(message.contains("\\u{1b}b"), "{message}");
    }
}

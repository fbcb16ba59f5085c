//! What is known of a model beside what it computes: labels of classes, and formats of images.
//!
//! It comes from what lies beside the model's file, and is kept in the repository under the model's
//! name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use crate::model_config::ModelConfigFile;

/// What clients may want to know of a model beside its inputs and outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelDescription {
    /// How images are laid out (`FORMAT_NCHW`, `FORMAT_NHWC`), by input.
    #[serde(default)]
    pub formats: BTreeMap<String, String>,
    /// What classes are called, by output.
    #[serde(default)]
    pub labels: BTreeMap<String, ClassLabels>,
}

/// What the classes of an output are called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassLabels {
    /// The file that they come from.
    pub file: String,
    /// The labels, in the order of classes.
    pub labels: Vec<String>,
}

impl ModelDescription {
    /// What lies beside a model's file: `config.pbtxt` in Triton's layout, `MODEL.config.pbtxt`, or
    /// `MODEL.labels.txt` with the labels of its first output.
    pub fn beside_model(model: &Path, first_output: Option<&str>) -> Result<Self> {
        let mut description = Self::default();
        if let Some((config, folder)) = read_config(model)? {
            description = Self::from_config(&config, |file| read_label_file(&folder.join(file)))?;
        }
        let own = model.with_extension("labels.txt");
        if let (Some(output), true) = (first_output, own.is_file()) {
            let file = own.file_name().map(|name| name.to_string_lossy().into_owned());
            let labels = split_labels(&read_label_file(&own)?);
            let labels = ClassLabels { file: file.unwrap_or_default(), labels };
            description.labels.entry(output.to_owned()).or_insert(labels);
        }
        Ok(description)
    }

    /// As it is kept.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(|error| Error::invalid(error.to_string()))
    }

    /// From what was kept.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        serde_json::from_slice(text).map_err(|error| Error::corrupt(error.to_string()))
    }

    /// What a configuration says; `read_file` reads the files of labels that it names.
    pub fn from_config(
        config: &ModelConfigFile,
        read_file: impl Fn(&str) -> Result<String>,
    ) -> Result<Self> {
        let mut description = Self::default();
        for input in &config.inputs {
            match input.format.as_str() {
                "" | "FORMAT_NONE" => {}
                format @ ("FORMAT_NCHW" | "FORMAT_NHWC") => {
                    description.formats.insert(input.name.clone(), format.to_owned());
                }
                other => {
                    return Err(Error::invalid(format!(
                        "input \"{}\" has the format \"{other}\", expected FORMAT_NONE, \
                         FORMAT_NCHW or FORMAT_NHWC",
                        input.name
                    )));
                }
            }
        }
        for output in config.outputs.iter().filter(|output| !output.label_file.is_empty()) {
            let file = output.label_file.clone();
            let labels = split_labels(&read_file(&file)?);
            description.labels.insert(output.name.clone(), ClassLabels { file, labels });
        }
        Ok(description)
    }
}

/// The configuration of a model, and the folder that it is in.
fn read_config(model: &Path) -> Result<Option<(ModelConfigFile, PathBuf)>> {
    let folder = model.parent().unwrap_or(Path::new(""));
    let own = model.with_extension("config.pbtxt");
    let is_version = folder
        .file_name()
        .is_some_and(|name| name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()));
    let is_own = own.is_file();
    let path = if is_own {
        own
    } else if is_version {
        // Triton has a model's versions in folders beside its configuration.
        folder.parent().unwrap_or(folder).join("config.pbtxt")
    } else {
        folder.join("config.pbtxt")
    };
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::from_io(path.display(), &error)),
    };
    let config = ModelConfigFile::parse_text(&text)
        .map_err(|error| error.with_context(path.display().to_string()))?;
    // A folder may hold models that the configuration is not about.
    let named = if config.model_file.is_empty() { "model.onnx" } else { &config.model_file };
    let is_about = model.file_name() == Some(named.as_ref());
    let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
    Ok((is_own || is_about).then_some((config, folder)))
}

fn read_label_file(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| Error::from_io(path.display(), &error))
}

/// A label per line.
fn split_labels(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, file: &str, text: &str) -> PathBuf {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_configuration_in_tritons_layout_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let model = write(folder.path(), "densenet/1/model.onnx", "");
        let text = "input { name: \"x\" format: FORMAT_NCHW }
                    output { name: \"y\" label_filename: \"labels.txt\" }";
        write(folder.path(), "densenet/config.pbtxt", text);
        let missing = ModelDescription::beside_model(&model, None).unwrap_err().to_string();
        assert!(missing.contains("labels.txt"), "{missing}");
        write(folder.path(), "densenet/labels.txt", "cat\r\ndog\n");
        let found = ModelDescription::beside_model(&model, Some("y")).unwrap();
        assert_eq!(found.formats["x"], "FORMAT_NCHW");
        let labels =
            ClassLabels { file: "labels.txt".into(), labels: vec!["cat".into(), "dog".into()] };
        assert_eq!(found.labels["y"], labels);
        let other = write(folder.path(), "densenet/1/other.onnx", "");
        let found = ModelDescription::beside_model(&other, Some("y")).unwrap();
        assert_eq!(found, ModelDescription::default());
    }

    #[test]
    fn a_model_may_have_files_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let model = write(folder.path(), "cats.onnx", "");
        write(folder.path(), "cats.config.pbtxt", "input { name: \"x\" format: FORMAT_NHWC }");
        write(folder.path(), "cats.labels.txt", "cat\n");
        let found = ModelDescription::beside_model(&model, Some("scores")).unwrap();
        assert_eq!(found.formats["x"], "FORMAT_NHWC");
        assert_eq!(found.labels["scores"].labels, ["cat"]);
        write(folder.path(), "cats.config.pbtxt", "input { name: \"x\" format: UPSIDE_DOWN }");
        let error = ModelDescription::beside_model(&model, None).unwrap_err().to_string();
        assert!(error.contains("UPSIDE_DOWN"), "{error}");
    }
}

//! Triton's configuration of a model: `config.pbtxt` beside it, or the JSON that a client loads it
//! with. Read as far as something here follows from it.

mod text_format;

use serde_json::Value;
use tessera_core::{Error, Result};

use text_format::parse_text_format;

/// What a configuration says of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelConfigFile {
    /// The model's name; empty where it does not say.
    pub name: String,
    /// What runs it, as `onnxruntime_onnx`; empty where it does not say.
    pub platform: String,
    /// The same by another name, as `onnxruntime`.
    pub backend: String,
    /// Its file; empty for `model.onnx`.
    pub model_file: String,
    /// Most rows of a request; 0 where there is no dimension of the batch.
    pub max_batch_size: Option<u64>,
    /// The inputs that it names.
    pub inputs: Vec<ConfiguredTensor>,
    /// The outputs that it names.
    pub outputs: Vec<ConfiguredTensor>,
    /// Whether requests are put together.
    pub batching: Option<ConfiguredBatching>,
    /// What runs how often.
    pub instances: Option<ConfiguredInstances>,
}

/// An input or an output in a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfiguredTensor {
    /// Its name.
    pub name: String,
    /// Its element type, as `TYPE_FP32`; empty where it does not say.
    pub data_type: String,
    /// Its dimensions without that of the batch, -1 for one that is open.
    pub dims: Vec<i64>,
    /// How an image is laid out, as `FORMAT_NCHW`; empty where it does not say.
    pub format: String,
    /// The file with the labels of classes; empty where there is none.
    pub label_file: String,
}

/// How requests are put together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfiguredBatching {
    /// The batches that are waited for.
    pub preferred_rows: Vec<u64>,
    /// For how long, in microseconds.
    pub max_delay_us: u64,
}

/// How many instances there are, and of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredInstances {
    /// How many.
    pub count: u64,
    /// As `KIND_CPU`; empty where it does not say.
    pub kind: String,
    /// The GPU, where it names one.
    pub gpu: Option<u32>,
}

impl ModelConfigFile {
    /// Reads a configuration as `config.pbtxt` has it.
    pub fn parse_text(text: &str) -> Result<Self> {
        Self::from_value(&parse_text_format(text)?)
    }

    /// Reads a configuration as JSON.
    pub fn parse_json(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("the configuration is no JSON: {error}")))?;
        if !value.is_object() {
            return Err(Error::invalid("the configuration is no JSON object"));
        }
        Self::from_value(&value)
    }

    fn from_value(value: &Value) -> Result<Self> {
        let message = ConfigMessage(value);
        let batching = message.items("dynamic_batching").first().map(|&batching| {
            let batching = ConfigMessage(batching);
            Ok::<_, Error>(ConfiguredBatching {
                preferred_rows: batching.read_sizes("preferred_batch_size")?,
                max_delay_us: batching.read_size("max_queue_delay_microseconds")?.unwrap_or(0),
            })
        });
        let instances = message.items("instance_group").first().map(|&group| {
            let group = ConfigMessage(group);
            let gpu = group.read_sizes("gpus")?.first().copied();
            Ok::<_, Error>(ConfiguredInstances {
                count: group.read_size("count")?.unwrap_or(1),
                kind: group.read_text("kind")?,
                gpu: gpu.and_then(|gpu| u32::try_from(gpu).ok()),
            })
        });
        Ok(Self {
            name: message.read_text("name")?,
            platform: message.read_text("platform")?,
            backend: message.read_text("backend")?,
            model_file: message.read_text("default_model_filename")?,
            max_batch_size: message.read_size("max_batch_size")?,
            inputs: message.read_tensors("input")?,
            outputs: message.read_tensors("output")?,
            batching: batching.transpose()?,
            instances: instances.transpose()?,
        })
    }
}

/// A message of a configuration, of either form.
struct ConfigMessage<'a>(&'a Value);

impl<'a> ConfigMessage<'a> {
    /// The values of a field, which may be one or several.
    fn items(&self, name: &str) -> Vec<&'a Value> {
        // JSON may have the fields in camel case.
        let found = self.0.get(name).or_else(|| self.0.get(camel_case(name)));
        match found {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(values)) => values.iter().collect(),
            Some(one) => vec![one],
        }
    }

    fn read_text(&self, name: &str) -> Result<String> {
        match self.items(name).last() {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => Err(wrong_field(name, other, "a string")),
        }
    }

    fn read_integers(&self, name: &str) -> Result<Vec<i64>> {
        let integer = |value: &&Value| {
            // JSON may have integers of 64 bits as strings.
            let read = value.as_i64().or_else(|| value.as_str()?.parse().ok());
            read.ok_or_else(|| wrong_field(name, value, "an integer"))
        };
        self.items(name).iter().map(integer).collect()
    }

    fn read_sizes(&self, name: &str) -> Result<Vec<u64>> {
        let size = |integer: i64| {
            u64::try_from(integer)
                .map_err(|_| wrong_field(name, &integer.into(), "an integer of 0 or more"))
        };
        self.read_integers(name)?.into_iter().map(size).collect()
    }

    fn read_size(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.read_sizes(name)?.last().copied())
    }

    fn read_tensors(&self, name: &str) -> Result<Vec<ConfiguredTensor>> {
        let tensor = |value: &&Value| {
            let message = ConfigMessage(value);
            let name = message.read_text("name")?;
            if name.is_empty() {
                return Err(Error::invalid("the configuration has a tensor without a name"));
            }
            Ok(ConfiguredTensor {
                name,
                data_type: message.read_text("data_type")?,
                dims: message.read_integers("dims")?,
                format: message.read_text("format")?,
                label_file: message.read_text("label_filename")?,
            })
        };
        self.items(name).iter().map(tensor).collect()
    }
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}

fn wrong_field(name: &str, value: &Value, expected: &str) -> Error {
    Error::invalid(format!("the configuration's {name} is {value}, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_say_the_same() {
        let text = r#"
            platform: "onnxruntime_onnx"
            max_batch_size: 4
            input { name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [3, -1] }
            output { name: "y" dims: 10 label_filename: "labels.txt" }
            dynamic_batching { preferred_batch_size: [2, 4] max_queue_delay_microseconds: 500 }
            instance_group { count: 2 kind: KIND_GPU gpus: [1] }
        "#;
        let json = r#"{
            "platform": "onnxruntime_onnx", "maxBatchSize": 4,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "format": "FORMAT_NCHW",
                       "dims": ["3", "-1"]}],
            "output": [{"name": "y", "dims": [10], "labelFilename": "labels.txt"}],
            "dynamic_batching": {"preferred_batch_size": [2, 4],
                                 "max_queue_delay_microseconds": "500"},
            "instance_group": [{"count": 2, "kind": "KIND_GPU", "gpus": [1]}]
        }"#;
        let config = ModelConfigFile::parse_text(text).unwrap();
        assert_eq!(config, ModelConfigFile::parse_json(json).unwrap());
        assert_eq!(config.inputs[0].dims, [3, -1]);
        assert_eq!(config.outputs[0].label_file, "labels.txt");
        assert_eq!(config.batching.unwrap().max_delay_us, 500);
        assert_eq!(config.instances.unwrap().gpu, Some(1));
    }

    #[test]
    fn a_field_that_is_wrong_is_named() {
        for (json, expected) in [
            ("[]", "no JSON object"),
            ("{", "no JSON"),
            (r#"{"max_batch_size": -1}"#, "max_batch_size is -1, expected an integer of 0"),
            (r#"{"name": 3}"#, "name is 3, expected a string"),
            (r#"{"input": [{"dims": [1]}]}"#, "a tensor without a name"),
            (r#"{"input": [{"name": "x", "dims": ["a"]}]}"#, "dims is \"a\", expected an integer"),
        ] {
            let error = ModelConfigFile::parse_json(json).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

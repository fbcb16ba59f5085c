//! What a server says of itself and of a model.

use serde::{Deserialize, Serialize};
use tessera_core::{Dim, Error, Result, TensorType};

use crate::datatype;

/// A named tensor that goes into a model or comes out of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelPort {
    /// Its name in requests.
    pub name: String,
    /// Its type; a dimension that the server leaves open (-1) is unknown.
    #[serde(rename = "type")]
    pub tensor_type: TensorType,
    /// Whether requests may leave it out, where the model's configuration says so.
    pub optional: bool,
}

/// What a server says of itself and of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelDescription {
    /// The server's name and version, where it tells.
    pub server: Option<String>,
    /// Whether it lists the extension for tensors in binary; not every server that has it does.
    pub binary: bool,
    /// What the model takes.
    pub inputs: Vec<ModelPort>,
    /// What it gives.
    pub outputs: Vec<ModelPort>,
    /// The largest batch, where the model's configuration has one.
    pub max_batch: Option<usize>,
}

#[derive(Default, Deserialize)]
struct ServerDocument {
    name: Option<String>,
    version: Option<String>,
    #[serde(default)]
    extensions: Vec<String>,
}

#[derive(Deserialize)]
struct ModelDocument {
    inputs: Vec<PortDocument>,
    #[serde(default)]
    outputs: Vec<PortDocument>,
}

#[derive(Deserialize)]
struct PortDocument {
    name: String,
    datatype: String,
    shape: Option<Vec<i64>>,
}

#[derive(Default, Deserialize)]
struct ConfigDocument {
    max_batch_size: Option<i64>,
    #[serde(default)]
    input: Vec<ConfigInput>,
}

#[derive(Deserialize)]
struct ConfigInput {
    name: String,
    #[serde(default)]
    optional: bool,
}

impl ModelDescription {
    /// Reads the answers to `GET /v2`, `/v2/models/M` and `/v2/models/M/config`; only the second
    /// is needed.
    pub(crate) fn from_documents(
        server: Option<&[u8]>,
        model: &[u8],
        config: Option<&[u8]>,
    ) -> Result<Self> {
        let model: ModelDocument = serde_json::from_slice(model)
            .map_err(|error| Error::invalid(format!("metadata of the model: {error}")))?;
        // Optional documents of an unknown form are as good as absent.
        let server: ServerDocument =
            server.and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
        let config: ConfigDocument =
            config.and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
        let mut inputs = read_ports(model.inputs)?;
        for port in &mut inputs {
            port.optional =
                config.input.iter().any(|known| known.optional && known.name == port.name);
        }
        let named = [server.name, server.version];
        let named: Vec<String> = named.into_iter().flatten().collect();
        Ok(Self {
            server: Some(named.join(" ")).filter(|text| !text.is_empty()),
            binary: server.extensions.iter().any(|name| name == "binary_tensor_data"),
            inputs,
            outputs: read_ports(model.outputs)?,
            max_batch: config
                .max_batch_size
                .and_then(|size| usize::try_from(size).ok())
                .filter(|&size| size > 0),
        })
    }
}

fn read_ports(documents: Vec<PortDocument>) -> Result<Vec<ModelPort>> {
    documents
        .into_iter()
        .map(|document| {
            let dtype = datatype::parse_datatype(&document.datatype)
                .map_err(|error| error.with_context(format!("tensor \"{}\"", document.name)))?;
            let dim = |size: i64| usize::try_from(size).map_or(Dim::Unknown, Dim::Fixed);
            let dims = document.shape.map(|shape| shape.into_iter().map(dim).collect());
            let tensor_type = TensorType { dtype, dims };
            Ok(ModelPort { name: document.name, tensor_type, optional: false })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::*;

    #[test]
    fn tritons_documents_are_read() {
        let description = ModelDescription::from_documents(
            Some(br#"{"name":"triton","version":"2.50","extensions":["binary_tensor_data"]}"#),
            br#"{"name":"m","versions":["1"],"platform":"onnxruntime_onnx","inputs":[
                {"name":"x","datatype":"FP32","shape":[-1,3,224,224]}],
                "outputs":[{"name":"y","datatype":"BYTES","shape":[-1]}]}"#,
            Some(br#"{"name":"m","max_batch_size":8}"#),
        )
        .unwrap();
        assert_eq!(description.server.as_deref(), Some("triton 2.50"));
        assert!(description.binary);
        assert_eq!(description.max_batch, Some(8));
        assert_eq!(
            description.inputs[0].tensor_type.dims.as_deref(),
            Some(&[Dim::Unknown, Dim::Fixed(3), Dim::Fixed(224), Dim::Fixed(224)][..])
        );
        assert_eq!(description.outputs[0].tensor_type.dtype, DType::String);
    }

    #[test]
    fn only_the_model_must_be_described_and_must_make_sense() {
        let model = br#"{"inputs":[{"name":"x","datatype":"INT64","shape":[4]}]}"#;
        let description = ModelDescription::from_documents(None, model, Some(b"not JSON")).unwrap();
        assert_eq!((description.server, description.max_batch), (None, None));
        assert!(ModelDescription::from_documents(None, b"[]", None).is_err());
        let unknown = br#"{"inputs":[{"name":"x","datatype":"FP7","shape":[4]}]}"#;
        let error = ModelDescription::from_documents(None, unknown, None).unwrap_err().to_string();
        assert!(error.contains("\"x\"") && error.contains("FP7"), "{error}");
    }
}

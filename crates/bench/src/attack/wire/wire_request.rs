//! Requests for inference as both protocols have them.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use serde_json::json;
use tessera_core::{Error, Result};
use tessera_gateway::inference::ModelInferRequest;
use tessera_gateway::inference::model_infer_request::InferInputTensor;
use tessera_zoo::{LINEAR_WIDTH, TinyModel};

use super::WireKind;
use super::wire_body::WireBody;

/// What a frame of gRPC has before its message.
const FRAME_HEAD: usize = 5;

/// A request for inference.
#[derive(Clone, Debug)]
pub(super) struct WireRequest {
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: WireBody,
}

impl WireRequest {
    /// A row of zeros for the linear model.
    pub(super) fn small(kind: WireKind) -> Self {
        Self::of_zeros(kind, TinyModel::Linear, LINEAR_WIDTH)
    }

    /// A row of zeros.
    pub(super) fn of_zeros(kind: WireKind, task: TinyModel, columns: usize) -> Self {
        let (headers, bytes) = request_bytes(kind, task, columns, columns * 4);
        Self { path: infer_path(kind, task), headers, body: WireBody::whole(bytes) }
    }

    /// The same, of which two bytes of the tensor come.
    pub(super) fn stalled(kind: WireKind, task: TinyModel, columns: usize) -> Self {
        let (headers, bytes) = request_bytes(kind, task, columns, 2);
        Self { path: infer_path(kind, task), headers, body: WireBody::stalled(bytes) }
    }

    /// JSON over HTTP.
    pub(super) fn of_json(task: TinyModel, json: Bytes) -> Self {
        let length = json.len().to_string();
        Self {
            path: infer_path(WireKind::Tls, task),
            headers: vec![("content-length", length), ("content-type", "application/json".into())],
            body: WireBody::whole(json),
        }
    }

    /// A small body that unpacks to so many megabytes.
    pub(super) fn bomb(kind: WireKind, megabytes: usize) -> Result<Self> {
        let task = TinyModel::Linear;
        let columns = megabytes * 250_000;
        let (mut headers, bytes) = request_bytes(kind, task, columns, 0);
        // What comes before the tensor, without the head of its frame.
        let before = &bytes[if kind == WireKind::Grpc { FRAME_HEAD } else { 0 }..];
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        let fail = |error: std::io::Error| Error::from_io("a packed body", &error);
        packed.write_all(before).map_err(fail)?;
        let zeros = vec![0; 1_000_000];
        for _ in 0..megabytes {
            packed.write_all(&zeros).map_err(fail)?;
        }
        let packed = packed.finish().map_err(fail)?;
        headers.retain(|(name, _)| *name != "content-length");
        let body = match kind {
            WireKind::Grpc => {
                headers.push(("grpc-encoding", "gzip".to_owned()));
                [frame_head(1, packed.len())?.as_slice(), &packed].concat()
            }
            WireKind::Tls => {
                headers.push(("content-encoding", "gzip".to_owned()));
                headers.push(("content-length", packed.len().to_string()));
                packed
            }
        };
        Ok(Self { path: infer_path(kind, task), headers, body: WireBody::whole(body) })
    }
}

fn infer_path(kind: WireKind, task: TinyModel) -> String {
    match kind {
        WireKind::Grpc => "/inference.GRPCInferenceService/ModelInfer".to_owned(),
        WireKind::Tls => format!("/v2/models/{}/infer", task.task_name()),
    }
}

/// A request for a row, with so many bytes of its tensor.
fn request_bytes(
    kind: WireKind,
    task: TinyModel,
    columns: usize,
    sent: usize,
) -> (Vec<(&'static str, String)>, Vec<u8>) {
    let tensor = columns * 4;
    match kind {
        WireKind::Grpc => {
            let message = ModelInferRequest {
                model_name: task.task_name().to_owned(),
                inputs: vec![InferInputTensor {
                    name: "x".to_owned(),
                    datatype: "FP32".to_owned(),
                    shape: vec![1, i64::try_from(columns).unwrap_or(i64::MAX)],
                    ..InferInputTensor::default()
                }],
                ..ModelInferRequest::default()
            };
            let mut fields = message.encode_to_vec();
            // The field `raw_input_contents`, whose content follows.
            prost::encoding::encode_key(7, prost::encoding::WireType::LengthDelimited, &mut fields);
            prost::encoding::encode_varint(tensor as u64, &mut fields);
            let head = frame_head(0, fields.len() + tensor).unwrap_or_default();
            let mut bytes = [head.as_slice(), &fields].concat();
            bytes.resize(bytes.len() + sent, 0);
            let headers = [("content-type", "application/grpc"), ("te", "trailers")];
            (headers.map(|(name, value)| (name, value.to_owned())).into(), bytes)
        }
        WireKind::Tls => {
            let json = json!({ "inputs": [{
                "name": "x", "shape": [1, columns], "datatype": "FP32",
                "parameters": { "binary_data_size": tensor },
            }] })
            .to_string();
            let headers = vec![
                ("inference-header-content-length", json.len().to_string()),
                ("content-length", (json.len() + tensor).to_string()),
            ];
            let mut bytes = json.into_bytes();
            bytes.resize(bytes.len() + sent, 0);
            (headers, bytes)
        }
    }
}

/// A flag, and a length.
fn frame_head(flag: u8, length: usize) -> Result<[u8; FRAME_HEAD]> {
    let length = u32::try_from(length).map_err(|_| Error::invalid("the message is too long"))?;
    let [a, b, c, d] = length.to_be_bytes();
    Ok([flag, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_that_clients_of_grpc_would_send() {
        let (_, bytes) = request_bytes(WireKind::Grpc, TinyModel::Absolute, 3, 12);
        assert_eq!(bytes[..FRAME_HEAD], frame_head(0, bytes.len() - FRAME_HEAD).unwrap());
        let message = ModelInferRequest::decode(&bytes[FRAME_HEAD..]).unwrap();
        assert_eq!(message.model_name, "absolute");
        assert_eq!(message.inputs[0].shape, [1, 3]);
        assert_eq!(message.raw_input_contents, [vec![0; 12]]);
    }
}

//! Regions of memory of GPUs: registered, forgotten and listed.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tessera_core::{Error, Result};
use tessera_http::json_response;

use crate::http::FrontEndState;
use crate::http::failure::HttpResult;
use crate::http::models::read_body;
use crate::http::path_target::PathTarget;
use crate::regions::CudaRegistration;

/// What a client says of a region.
#[derive(Debug, Default, Deserialize)]
struct RegisterCudaBody {
    raw_handle: Option<RawHandleBody>,
    device_id: Option<i64>,
    byte_size: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
struct RawHandleBody {
    b64: Option<String>,
}

impl RegisterCudaBody {
    fn into_registration(self, name: &str) -> Result<CudaRegistration> {
        let missing =
            |what: &str| Error::invalid(format!("shared memory region '{name}' has no {what}"));
        let handle = self.raw_handle.ok_or_else(|| missing("raw_handle"))?;
        let handle = handle.b64.ok_or_else(|| missing("b64 in its raw_handle"))?;
        let device_id = self.device_id.ok_or_else(|| missing("device_id"))?;
        let byte_size = self.byte_size.ok_or_else(|| missing("byte_size"))?;
        // Some encoders put it on several lines.
        let letters: Vec<u8> = handle.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let handle = STANDARD.decode(letters).map_err(|error| {
            Error::invalid(format!("shared memory region '{name}': raw_handle: base64: {error}"))
        })?;
        Ok(CudaRegistration { name: name.to_owned(), handle, device_id, byte_size })
    }
}

pub(super) async fn cuda_region_status(
    State(front): FrontEndState,
    target: PathTarget,
) -> HttpResult<Response> {
    let regions = front.options.shared_memory.cuda_status(&target.name)?;
    Ok(json_response(StatusCode::OK, &regions))
}

pub(super) async fn register_cuda_region(
    State(front): FrontEndState,
    target: PathTarget,
    request: Request,
) -> HttpResult<Response> {
    let body: RegisterCudaBody = read_body(&front, request).await?;
    front
        .options
        .shared_memory
        .register_cuda_blocking(body.into_registration(&target.name)?)
        .await?;
    Ok(Response::new(Body::empty()))
}

pub(super) async fn unregister_cuda_region(
    State(front): FrontEndState,
    target: PathTarget,
) -> HttpResult<Response> {
    front.options.shared_memory.unregister_cuda_blocking(target.name).await?;
    Ok(Response::new(Body::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<CudaRegistration> {
        serde_json::from_str::<RegisterCudaBody>(json).unwrap().into_registration("r")
    }

    #[test]
    fn a_handle_may_be_on_several_lines() {
        let bytes: Vec<u8> = (0..64).collect();
        let text = STANDARD.encode(&bytes);
        let (first, second) = text.split_at(72);
        for text in [text.clone(), format!("{first}\\n{second}\\n")] {
            let json = format!(
                r#"{{"raw_handle": {{"b64": "{text}"}}, "device_id": 1, "byte_size": 24}}"#
            );
            let registration = read(&json).unwrap();
            assert_eq!(registration.handle, bytes);
            assert_eq!((registration.device_id, registration.byte_size), (1, 24));
        }
    }

    #[test]
    fn each_part_that_is_missing_or_wrong_is_named() {
        for (json, expected) in [
            ("{}", "has no raw_handle"),
            (r#"{"raw_handle": {}}"#, "has no b64 in its raw_handle"),
            (r#"{"raw_handle": {"b64": ""}}"#, "has no device_id"),
            (r#"{"raw_handle": {"b64": ""}, "device_id": 0}"#, "has no byte_size"),
            (
                r#"{"raw_handle": {"b64": "a*b="}, "device_id": 0, "byte_size": 1}"#,
                "raw_handle: base64: ",
            ),
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.starts_with("shared memory region 'r'"), "{error}");
            assert!(error.contains(expected), "{json}: {error}");
        }
    }
}

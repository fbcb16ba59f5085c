//! Models, which come as files.

use axum::body::{Body, BodyDataStream};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use futures_util::TryStreamExt;
use serde::Serialize;
use tessera_core::Error;

use super::body::ok_response;
use super::failure::{ApiFailure, ApiResult};
use super::path_names::PathNames;
use crate::manager::Manager;
use crate::model_store::ModelStatus;
use crate::model_upload::{ModelUpload, UploadKind};
use crate::names::shorten_name;

#[derive(Serialize)]
struct ModelList {
    models: Vec<ModelStatus>,
}

pub(super) async fn list_models(State(manager): State<Manager>) -> ApiResult<Response> {
    Ok(ok_response(&ModelList { models: manager.list_models().await? }))
}

pub(super) async fn get_model(
    State(manager): State<Manager>,
    path_names: PathNames,
) -> ApiResult<Response> {
    Ok(ok_response(&manager.find_model(&path_names.model).await?))
}

pub(super) async fn delete_model(
    State(manager): State<Manager>,
    path_names: PathNames,
) -> ApiResult<Response> {
    let removed = manager.find_model(&path_names.model).await?;
    manager.remove_model(&path_names.model).await?;
    Ok(ok_response(&removed))
}

pub(super) async fn put_model(
    State(manager): State<Manager>,
    path_names: PathNames,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let is_kept = !is_dry_run(&uri)?;
    let kind = upload_kind(&headers)?;
    let upload = manager.begin_upload(&path_names.model, kind).await?;
    let upload = receive_body(upload, body.into_data_stream()).await?;
    Ok(ok_response(&manager.put_model(upload, is_kept).await?))
}

/// Writes what comes to a file, as it comes.
async fn receive_body(mut upload: ModelUpload, mut body: BodyDataStream) -> ApiResult<ModelUpload> {
    loop {
        let piece = body.try_next().await.map_err(|error| {
            let message = format!("the model could not be read: {error}");
            ApiFailure::new(StatusCode::BAD_REQUEST, message)
        })?;
        let Some(piece) = piece else { return Ok(upload) };
        let write = move || upload.write(&piece).map(|()| upload);
        let written = tokio::task::spawn_blocking(write).await;
        upload = written.map_err(|error| Error::engine(error.to_string()))??;
    }
}

/// What the body is: content types that no form of a web page has.
fn upload_kind(headers: &HeaderMap) -> ApiResult<UploadKind> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|text| text.to_str().ok());
    let media_type = media_type.and_then(|text| text.split(';').next()).unwrap_or("nothing").trim();
    match media_type.to_ascii_lowercase().as_str() {
        "application/octet-stream" => Ok(UploadKind::Onnx),
        "application/x-tar" => Ok(UploadKind::Tar),
        _ => {
            let message = format!(
                "content-type: {}, expected application/octet-stream for an ONNX file, or \
                 application/x-tar for one with the files that belong to it",
                shorten_name(media_type)
            );
            Err(ApiFailure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
    }
}

/// Whether only that is asked for what would come of a change.
fn is_dry_run(uri: &Uri) -> ApiResult<bool> {
    match uri.query().unwrap_or_default() {
        "" | "dry_run=false" => Ok(false),
        "dry_run=true" => Ok(true),
        other => {
            let message = format!("?{}, expected ?dry_run=true or nothing", shorten_name(other));
            Err(ApiFailure::new(StatusCode::BAD_REQUEST, message))
        }
    }
}

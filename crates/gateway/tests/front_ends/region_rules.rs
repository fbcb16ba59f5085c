//! Which regions of shared memory clients may register, and how many.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::json;
use tessera_gateway::{FrontEndOptions, RegionRules, SharedRegions};

use crate::fake::Server;
use crate::shared_memory::SharedFile;

fn server_with(rules: RegionRules) -> Server {
    let shared_memory = Arc::new(SharedRegions::new(rules));
    Server::with(FrontEndOptions { shared_memory, ..FrontEndOptions::default() })
}

async fn register(server: &Server, name: &str, key: &str) -> (StatusCode, String) {
    let path = format!("/v2/systemsharedmemory/region/{name}/register");
    let body = json!({ "key": key, "offset": 0, "byte_size": 8 }).to_string();
    let reply = server.post(&path, body).await;
    let error = if reply.status == StatusCode::OK { String::new() } else { reply.error() };
    (reply.status, error)
}

#[tokio::test]
async fn keys_must_begin_as_the_server_says() {
    let (own, other) = (SharedFile::new("own", &[0; 8]), SharedFile::new("other", &[0; 8]));
    let prefix = own.key.trim_start_matches('/').to_owned();
    let server = server_with(RegionRules::KeysWith(prefix.clone()));
    assert_eq!(register(&server, "own", &own.key).await.0, StatusCode::OK);
    for key in [
        other.key.clone(),
        format!("/../dev/shm{}", own.key),
        format!("{}/..{}", own.key, other.key),
        format!("/{prefix}/../{}", other.key.trim_start_matches('/')),
        String::new(),
        "/".to_owned(),
    ] {
        let (status, _) = register(&server, "r", &key).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{key}");
    }
    let (_, error) = register(&server, "r", &other.key).await;
    assert!(error.contains(&format!("begin with \"{prefix}\" here (--shared-memory)")), "{error}");
}

#[tokio::test]
async fn a_server_may_use_none_at_all() {
    let file = SharedFile::new("none", &[0; 8]);
    let server = server_with(RegionRules::Nothing);
    let (status, error) = register(&server, "r", &file.key).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(error, "this server uses no shared memory (--shared-memory)");
    // Nothing is told of what is there, either.
    let (_, missing) = register(&server, "r", "/tessera-nobody").await;
    assert_eq!(missing, error);
}

#[tokio::test]
async fn there_are_256_regions_at_most_and_one_that_goes_makes_room() {
    let file = SharedFile::new("many", &[0; 8]);
    let server = server_with(RegionRules::default());
    for number in 0..256 {
        assert_eq!(register(&server, &format!("r{number}"), &file.key).await.0, StatusCode::OK);
    }
    let (status, error) = register(&server, "one-more", &file.key).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(error.contains("256 regions"), "{error}");
    server.post("/v2/systemsharedmemory/region/r7/unregister", "").await;
    assert_eq!(register(&server, "one-more", &file.key).await.0, StatusCode::OK);
    assert_eq!(register(&server, "two-more", &file.key).await.0, StatusCode::SERVICE_UNAVAILABLE);
}

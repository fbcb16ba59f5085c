//! That the OpenAPI document is the one that is checked in, and says what the routes do.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::Value;
use tower::ServiceExt;

use super::fakes::Setup;

const CHECKED_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

#[test]
fn the_document_that_is_checked_in_is_this_one() {
    let document = crate::openapi_document();
    if std::env::var_os("TESSERA_UPDATE").is_some_and(|update| update == "1") {
        let text = serde_json::to_string_pretty(&document).unwrap();
        std::fs::write(CHECKED_IN, text + "\n").unwrap();
    }
    let text = std::fs::read_to_string(CHECKED_IN).unwrap_or_default();
    let checked_in: Value = serde_json::from_str(&text).unwrap_or_default();
    assert!(
        checked_in == document,
        "docs/openapi.json is not what the code says: run the tests of tessera-control with \
         TESSERA_UPDATE=1 and look at what changed"
    );
}

#[tokio::test]
async fn what_is_documented_is_routed_and_the_other_way_round() {
    let document = crate::openapi_document();
    let documented = document["paths"].as_object().unwrap();
    let of_cluster =
        crate::api::cluster_routes::cluster_route_table().into_iter().map(|(path, _)| path);
    let routed: BTreeSet<&str> =
        crate::api::route_table().into_iter().map(|(path, _)| path).chain(of_cluster).collect();
    let routed: BTreeSet<&str> = routed.into_iter().chain([crate::api::DOCUMENT_PATH]).collect();
    assert_eq!(documented.keys().map(String::as_str).collect::<BTreeSet<_>>(), routed);
    let router = Setup::new().controller_router();
    for (template, operations) in documented {
        let path = template.replace(['{', '}'], "");
        for method in METHODS {
            let request = Request::builder().method(method.to_uppercase().as_str()).uri(&path);
            let request = request.body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            let is_routed = response.status() != StatusCode::METHOD_NOT_ALLOWED;
            let is_documented = operations.get(method).is_some();
            assert_eq!(is_routed, is_documented, "{method} {template}");
            assert!(is_routed || response.headers().contains_key("allow"), "{method} {template}");
        }
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_operation_has_its_own_id() {
    fn visit<'a>(value: &'a Value, references: &mut Vec<&'a str>, ids: &mut Vec<&'a str>) {
        if let Value::Object(fields) = value {
            references.extend(fields.get("$ref").and_then(Value::as_str));
            ids.extend(fields.get("operationId").and_then(Value::as_str));
            fields.values().for_each(|value| visit(value, references, ids));
        }
        value.as_array().into_iter().flatten().for_each(|value| visit(value, references, ids));
    }
    let document = crate::openapi_document();
    let (mut references, mut ids) = (Vec::new(), Vec::new());
    visit(&document, &mut references, &mut ids);
    for reference in references {
        let pointer = reference.trim_start_matches('#');
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    assert_eq!(ids.len(), 34);
}

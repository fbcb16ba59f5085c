//! Web pages that a browser shows can't ask a server, unless it is allowed that they may.

use serde_json::json;

use crate::http::call_with_headers;
use crate::models::{layers, row};
use crate::server::{Input, Place};

#[test]
fn a_page_of_another_site_changes_nothing_and_learns_nothing() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let server = place.serve(&[&chain, "--allow-origin", "https://page.example"]);
    let port = |name: &str| server.announced[name].as_str().unwrap().to_owned();
    let (http, grpc, metrics, control) =
        (port("http"), port("grpc"), port("metrics"), port("control"));
    let own = format!("Host: {control}");
    let empty = json!({ "tasks": {} }).to_string();
    let (evil, named) = ("Origin: https://evil.example", "Origin: https://page.example");
    // What a page can have a browser send, without asking first.
    for headers in [
        &[&own, evil, "Content-Type: text/plain"][..],
        &[&own, evil, "Content-Type: application/json"],
        &[&own, "Origin: null", "Content-Type: application/json"],
        &[&own, "Sec-Fetch-Site: cross-site", "Content-Type: application/json"],
        // The page's own name has the server's address by now.
        &["Host: evil.example", "Content-Type: application/json"],
        &["Host: evil.example:8003", "Origin: http://evil.example:8003"],
    ] {
        for method in ["PUT", "POST"] {
            let answer = call_with_headers(&control, method, "/v1/system", headers, &empty);
            assert!(answer.refusal(403).contains("--allow-"), "{answer:?}");
        }
        let unload = "/v2/repository/models/chain/unload";
        call_with_headers(&http, "POST", unload, headers, "{}").refusal(403);
        call_with_headers(&grpc, "POST", "/inference.GRPCInferenceService/X", headers, "")
            .refusal(403);
        for (address, path) in
            [(&metrics, "/metrics"), (&control, "/v1/events"), (&http, "/v2/models/chain")]
        {
            call_with_headers(address, "GET", path, headers, "").refusal(403);
        }
    }
    // Whoever says nothing of a page has to say that it is JSON.
    let plain = [own.as_str(), "Content-Type: text/plain"];
    call_with_headers(&control, "POST", "/v1/system", &plain, &empty).refusal(415);
    server.infer("chain", &[Input::row(&row(1))]).ok();

    // A page that may ask gets the headers for it, first and with the answer.
    let asked = [own.as_str(), named, "Access-Control-Request-Method: POST"];
    let answer = call_with_headers(&http, "OPTIONS", "/v2/models/chain/infer", &asked, "");
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://page.example"));
    assert!(answer.header("access-control-allow-headers").unwrap().contains("content-type"));
    let answer = call_with_headers(&http, "GET", "/v2/models/chain", &[&own, named], "");
    assert_eq!(answer.ok()["name"], "chain");
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://page.example"));
    let answer = call_with_headers(
        &control,
        "PUT",
        "/v1/tasks/more",
        &[&own, named, "Content-Type: application/json"],
        &json!({ "model": "chain" }).to_string(),
    );
    answer.ok();
    // And one that may not, and the server's own, are not.
    let refused = [own.as_str(), evil, "Access-Control-Request-Method: POST"];
    let answer = call_with_headers(&http, "OPTIONS", "/v2/models/chain/infer", &refused, "");
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, None));
    let same = format!("Origin: http://{control}");
    let answer = call_with_headers(&control, "GET", "/v1/tasks", &[&own, &same], "");
    assert_eq!(answer.header("access-control-allow-origin"), None);
    answer.ok();
    server.stop();

    let server = place.serve(&[&chain, "--allow-host", "models.example.org"]);
    let http = server.announced["http"].as_str().unwrap();
    let host = ["Host: models.example.org:8000"];
    call_with_headers(http, "GET", "/v2/models/chain", &host, "").ok();
    server.stop();
    let ran = place.serve_in_vain(&[&chain, "--allow-origin", "page.example"]);
    assert!(ran.err.contains("--allow-origin \"page.example\", expected"), "{}", ran.err);
}

//! The audit trail: every change that was asked for, by whom, with what, and how it was answered.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tessera_server::AccessConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::asking::{Question, ask, ask_plainly};
use crate::certificates::{Certificates, with_server};

/// The lines of a file of the trail.
pub(crate) fn read_trail(repository: &Path, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(repository.join("serve").join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_line_says_who_changed_what_and_with_which_content() {
    let (certificates, repository) = (Certificates::new(), tempfile::tempdir().unwrap());
    let known = certificates.connector(Some("client"));
    let system = r#"{"tasks": {"cats": ["nothing"], "dogs": {"model": "nothing"}}}"#;
    let load = r#"{"parameters": {"config": "{\"secret\": \"hunter2\"}"}}"#;
    with_server(repository.path(), certificates.access(None, true), async |at| {
        for (address, line, body, expected) in [
            (at.control, "PUT /v1/system", system, 404),
            (at.control, "DELETE /v1/tasks/50%25", "", 404),
            (at.http, "POST /v2/repository/models/cats/load", load, 404),
        ] {
            let question = Question::new(line).with_body(body);
            assert_eq!(ask(address, &known, &question).await, Some(expected), "{line}");
        }
    });
    let lines = read_trail(repository.path(), "audit.jsonl");
    assert_eq!(lines.len(), 3);
    for line in &lines {
        assert_eq!((&line["who"], &line["by"]), (&"client".into(), &"certificate".into()));
        assert!(line["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
    assert_eq!(lines[0]["names"], serde_json::json!(["cats", "dogs"]));
    assert_eq!(lines[0]["body"]["bytes"], system.len());
    let digest = tessera_core::ContentHash::of_content(system.as_bytes()).to_string();
    assert_eq!(lines[0]["body"]["blake3"], digest);
    assert_eq!(lines[0]["body"]["whole"], true);
    assert!(lines[0]["summary"].as_str().unwrap().contains("\"dogs\""), "{}", lines[0]);
    assert_eq!((&lines[1]["names"][0], &lines[1]["body"]), (&"50%".into(), &Value::Null));
    assert_eq!(lines[2]["names"][0], "cats");
    assert!(!lines[2].to_string().contains("hunter2"), "{}", lines[2]);
}

#[test]
fn refusals_leave_lines_in_a_file_of_their_own() {
    let (certificates, repository) = (Certificates::new(), tempfile::tempdir().unwrap());
    let tokens = certificates.write("tokens", "ops change 0123456789abcdef-ops\n");
    let access = AccessConfig { token_file: Some(tokens), ..AccessConfig::default() };
    with_server(repository.path(), access, async |at| {
        let foreign = ["Host: localhost", "Origin: https://evil.example"];
        for (address, line, headers, expected) in [
            (at.control, "PUT /v1/system", &foreign[..], 403),
            (at.control, "PUT /v1/system", &["Host: evil.example"], 403),
            (at.http, "POST /v2/repository/models/cats/unload", &foreign[..1], 401),
            // No changes, and no lines.
            (at.metrics, "GET /metrics", &foreign[..1], 401),
            (at.http, "GET /v2", &foreign, 403),
            (at.control, "OPTIONS /v1/system", &foreign, 403),
        ] {
            let question = Question::new(line).with_headers(headers);
            assert_eq!(ask_plainly(address, &question).await.0, expected, "{line}");
        }
    });
    let lines = read_trail(repository.path(), "refused.jsonl");
    let mut seen: Vec<String> =
        lines.iter().map(|line| format!("{} {}", line["status"], line["path"])).collect();
    seen.sort();
    let path = "/v2/repository/models/cats/unload";
    assert_eq!(
        seen,
        ["401 \"PATH\"", "403 \"/v1/system\"", "403 \"/v1/system\""]
            .map(|line| line.replace("PATH", path))
    );
    assert_eq!(read_trail(repository.path(), "audit.jsonl").len(), 0);
}

#[test]
fn a_change_whose_client_leaves_is_written_down_all_the_same() {
    let repository = tempfile::tempdir().unwrap();
    with_server(repository.path(), AccessConfig::default(), async |at| {
        let mut stream = TcpStream::connect(at.control).await.unwrap();
        let head = "PUT /v1/tasks/cats HTTP/1.1\r\nHost: localhost\r\n\
                    Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"model\": ";
        stream.write_all(head.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(stream);
        tokio::time::sleep(Duration::from_millis(500)).await;
    });
    let lines = read_trail(repository.path(), "audit.jsonl");
    assert_eq!(lines.len(), 1);
    assert_eq!((&lines[0]["names"][0], &lines[0]["body"]["bytes"]), (&"cats".into(), &10.into()));
    assert_eq!(lines[0]["body"]["whole"], false);
}

#[test]
fn servers_that_share_a_repository_share_the_trail() {
    let repository = tempfile::tempdir().unwrap();
    with_server(repository.path(), AccessConfig::default(), async |first| {
        let question = Question::new("DELETE /v1/tasks/a");
        let other = repository.path().to_path_buf();
        let asked = tokio::task::spawn_blocking(move || {
            with_server(&other, AccessConfig::default(), async |second| {
                let question = Question::new("DELETE /v1/tasks/b");
                assert_eq!(ask_plainly(second.control, &question).await.0, 404);
            });
        });
        assert_eq!(ask_plainly(first.control, &question).await.0, 404);
        asked.await.unwrap();
    });
    let lines = read_trail(repository.path(), "audit.jsonl");
    let mut names: Vec<_> = lines.iter().map(|line| line["names"][0].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
}

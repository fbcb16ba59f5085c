//! What a page may have a browser send: no change, through whichever port.

use tessera_server::AccessConfig;

use crate::asking::{Question, ask_plainly};
use crate::certificates::with_server;

const FORMS: [&str; 3] =
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"];
const BROWSER: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101";
/// Triton's client in C++ says so, and sends what libcurl does by itself.
const LIBCURL: &str = "User-Agent: libcurl-agent/1.0";

#[test]
fn a_change_with_the_content_type_of_a_form_is_refused_on_every_port() {
    let repository = tempfile::tempdir().unwrap();
    with_server(repository.path(), AccessConfig::default(), async |at| {
        for (address, line) in [
            (at.http, "POST /v2/repository/models/cats/load"),
            (at.http, "POST /v2/repository/models/cats/unload"),
            (at.http, "POST /v2/logging"),
            (at.http, "POST /v2/trace/setting"),
            (at.http, "POST /v2/systemsharedmemory/region/r/register"),
            (at.http, "POST /v2/systemsharedmemory/unregister"),
            (at.control, "PUT /v1/system"),
            (at.control, "POST /v1/system"),
            (at.control, "PUT /v1/tasks/cats"),
            (at.control, "PUT /v1/tasks/cats/exits/early"),
            (at.control, "POST /v1/units/ab/stop"),
            (at.control, "POST /v1/units/ab/start"),
            (at.control, "POST /v1/units/ab/ping"),
        ] {
            for form in FORMS {
                let content = format!("Content-Type: {form}");
                let headers = ["Host: localhost", BROWSER, &content];
                let question = Question::new(line).with_headers(&headers);
                let (status, text) = ask_plainly(address, &question).await;
                assert_eq!(status, 415, "{line} {form}: {text}");
                assert!(text.contains("expected application/json"), "{text}");
            }
        }
    });
}

#[test]
fn the_content_types_of_tritons_clients_are_taken() {
    let repository = tempfile::tempdir().unwrap();
    with_server(repository.path(), AccessConfig::default(), async |at| {
        let form = "Content-Type: application/x-www-form-urlencoded";
        for headers in [
            &["Host: localhost"][..],
            &["Host: localhost", LIBCURL, form],
            &["Host: localhost", "Content-Type: application/octet-stream"],
        ] {
            for (line, expected) in [
                ("POST /v2/repository/models/cats/unload", 200),
                ("POST /v2/repository/models/cats/load", 400),
                ("POST /v2/repository/index", 200),
                ("POST /v2/systemsharedmemory/unregister", 200),
            ] {
                let question = Question::new(line).with_headers(headers);
                let (status, text) = ask_plainly(at.http, &question).await;
                assert_eq!(status, expected, "{line} {headers:?}: {text}");
            }
        }
        // Asking for answers changes nothing, and curl sends tensors so.
        let question = Question::new("POST /v2/models/none/infer");
        let question = question.with_headers(&["Host: localhost", BROWSER, form]);
        assert_eq!(ask_plainly(at.http, &question).await.0, 404);
    });
}

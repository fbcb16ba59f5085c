//! Content types that a page can have a browser send anywhere, without asking the server first.
//!
//! Changes through the port of the protocol may not have them. What Triton's clients send there is
//! taken: no content type, `application/octet-stream`, and that of forms from its client in C++.

use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, USER_AGENT};

/// What no client of the protocol sends.
const REFUSED: [&str; 2] = ["text/plain", "multipart/form-data"];

/// What libcurl says of a body where its user says nothing.
const FORM: &str = "application/x-www-form-urlencoded";

/// The content type of a change that a page may have had sent; `None` for all others.
pub(crate) fn find_form_content(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = text(CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    let is = |known: &str| media_type.eq_ignore_ascii_case(known);
    // Every browser calls itself so, and no page can have it say something else in a request that
    // needs no permission.
    let is_browser = text(USER_AGENT).starts_with("Mozilla/");
    let is_refused = REFUSED.into_iter().any(is) || is(FORM) && is_browser;
    is_refused.then(|| media_type.to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn what_forms_send_is_refused_and_what_clients_send_is_not() {
        const BROWSER: &str = "Mozilla/5.0 (X11; Linux x86_64)";
        for (content, agent, is_refused) in [
            ("text/plain", "curl/8.5.0", true),
            ("Text/Plain; charset=utf-8", BROWSER, true),
            ("multipart/form-data; boundary=x", BROWSER, true),
            (FORM, BROWSER, true),
            // Triton's client in C++, and curl -d.
            (FORM, "libcurl-agent/1.0", false),
            (FORM, "curl/8.5.0", false),
            ("application/octet-stream", "Python/3.11 aiohttp/3.9", false),
            ("application/json", BROWSER, false),
            ("", "", false),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [(CONTENT_TYPE, content), (USER_AGENT, agent)] {
                if !value.is_empty() {
                    headers.insert(name, HeaderValue::from_static(value));
                }
            }
            let found = find_form_content(&headers);
            assert_eq!(found.is_some(), is_refused, "{content} {agent}: {found:?}");
        }
    }
}

//! Which web pages may ask a server, and by which names it may be asked.
//!
//! A browser sends requests for any page that it shows, also to servers that only its own machine
//! reaches; and a page may give its own name the server's address. So a request that a page of
//! another origin sends is refused, and so is one that asks for a host which somebody else could
//! own. Programs that are no browsers say nothing of pages, and ask for the host that they were
//! given.

use std::collections::HashSet;
use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tessera_core::{Error, Result};

/// Ends of names that nobody can register.
const PRIVATE_SUFFIXES: [&str; 6] =
    [".localhost", ".local", ".internal", ".svc", ".svc.cluster.local", ".lan"];

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Which web pages may ask a server, and by which names it may be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebAccess {
    hosts: HashSet<String>,
    origins: HashSet<String>,
    allows_any_host: bool,
    allows_any_origin: bool,
}

impl WebAccess {
    /// Access for these hosts beside those that nobody else can own, and for pages of these origins;
    /// `*` stands for all.
    pub fn new(hosts: &[String], origins: &[String]) -> Result<Self> {
        let mut access = Self::default();
        if let Ok(name) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
            access.hosts.insert(name.trim().to_ascii_lowercase());
        }
        for host in hosts {
            if host == "*" {
                access.allows_any_host = true;
            } else if host.is_empty() || host.contains(['/', '@', ' ']) {
                let message =
                    format!("--allow-host \"{host}\", expected a name such as example.org");
                return Err(Error::usage(message));
            } else {
                access.hosts.insert(host_name(host).to_ascii_lowercase());
            }
        }
        for origin in origins {
            let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            if origin == "*" {
                access.allows_any_origin = true;
            } else if rest.is_none_or(|rest| rest.is_empty() || rest.contains('/')) {
                return Err(Error::usage(format!(
                    "--allow-origin \"{origin}\", expected one such as https://example.org:8080"
                )));
            } else {
                access.origins.insert(origin.to_ascii_lowercase());
            }
        }
        Ok(access)
    }

    /// Whether a request may be answered; the origin of the page that it comes from, where that is
    /// another one than the server's and may read the answer. The error says what is in the way.
    pub fn check_request(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> std::result::Result<Option<HeaderValue>, String> {
        let host = match uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => headers.get(HOST).map(|host| host.to_str().unwrap_or("?")),
        };
        if let Some(host) = host.filter(|host| !self.allows_host(host_name(host))) {
            return Err(format!(
                "this server does not answer for host \"{}\"; --allow-host adds one",
                shortened(host)
            ));
        }
        if let Some(origin) = headers.get(ORIGIN) {
            return self.check_origin(origin, host.unwrap_or_default());
        }
        let site = headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes);
        let is_foreign = matches!(site, Some(b"cross-site" | b"same-site"));
        // Somebody follows a link: the page that has it sees nothing of the answer.
        let is_link = method == Method::GET
            && headers.get(SEC_FETCH_MODE).is_some_and(|mode| mode == "navigate");
        if is_foreign && !is_link && !self.allows_any_origin {
            return Err("a page of another site asks; --allow-origin allows it".to_owned());
        }
        Ok(None)
    }

    fn check_origin(
        &self,
        origin: &HeaderValue,
        host: &str,
    ) -> std::result::Result<Option<HeaderValue>, String> {
        let text = origin.to_str().unwrap_or("?").to_ascii_lowercase();
        let own = text.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(host));
        if own {
            return Ok(None);
        }
        if self.allows_any_origin || self.origins.contains(&text) {
            return Ok(Some(origin.clone()));
        }
        Err(format!(
            "a page of another origin asks, {}; --allow-origin allows it",
            shortened(&text)
        ))
    }

    fn allows_host(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        let is_address = host.parse::<IpAddr>().is_ok();
        // A name of one word is looked up where the server is, and nowhere else.
        let is_private =
            !host.contains('.') || PRIVATE_SUFFIXES.iter().any(|suffix| host.ends_with(suffix));
        self.allows_any_host || is_address || is_private || self.hosts.contains(host)
    }
}

/// A host without its port, and without the brackets of an address.
fn host_name(host: &str) -> &str {
    if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn shortened(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        access: &WebAccess,
        method: Method,
        given: &[(&'static str, &str)],
    ) -> std::result::Result<Option<HeaderValue>, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        access.check_request(&method, &Uri::from_static("/v1/system"), &headers)
    }

    fn access(hosts: &[&str], origins: &[&str]) -> Result<WebAccess> {
        let owned =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        WebAccess::new(&owned(hosts), &owned(origins))
    }

    #[test]
    fn a_host_that_somebody_else_may_own_is_refused() {
        let usual = access(&[], &[]).unwrap();
        for host in [
            "localhost:8000",
            "127.0.0.1",
            "[::1]:8003",
            "10.1.2.3:80",
            "tessera",
            "a.localhost",
            "printer.local",
            "tessera.models.svc:8000",
            "TESSERA.models.SVC.cluster.local.",
        ] {
            assert_eq!(check(&usual, Method::GET, &[("host", host)]), Ok(None), "{host}");
        }
        for host in ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "a.b:x", ".x"] {
            assert!(check(&usual, Method::GET, &[("host", host)]).is_err(), "{host}");
        }
        let named = access(&["models.example.org"], &[]).unwrap();
        assert!(check(&named, Method::GET, &[("host", "Models.example.org:8000")]).is_ok());
        assert!(check(&named, Method::GET, &[("host", "example.org")]).is_err());
        assert!(check(&access(&["*"], &[]).unwrap(), Method::GET, &[("host", "a.b")]).is_ok());
        assert!(access(&["http://a/b"], &[]).is_err());
        let authority = Uri::from_static("http://evil.example/grpc");
        assert!(usual.check_request(&Method::POST, &authority, &HeaderMap::new()).is_err());
    }

    #[test]
    fn a_page_of_another_origin_is_refused_unless_it_is_named() {
        let usual = access(&[], &[]).unwrap();
        let from = |origin: &'static str| [("host", "localhost:8003"), ("origin", origin)];
        assert_eq!(check(&usual, Method::PUT, &from("http://localhost:8003")), Ok(None));
        for origin in ["http://localhost:8000", "https://evil.example", "null", "http://localhost"]
        {
            let refused = check(&usual, Method::POST, &from(origin)).unwrap_err();
            assert!(refused.contains("another origin"), "{refused}");
        }
        let site = |site, mode| [("sec-fetch-site", site), ("sec-fetch-mode", mode)];
        assert!(check(&usual, Method::POST, &site("cross-site", "no-cors")).is_err());
        assert!(check(&usual, Method::GET, &site("same-site", "no-cors")).is_err());
        assert!(check(&usual, Method::POST, &site("cross-site", "navigate")).is_err());
        assert!(check(&usual, Method::GET, &site("cross-site", "navigate")).is_ok());
        assert!(check(&usual, Method::POST, &site("same-origin", "cors")).is_ok());
        let named = access(&[], &["https://page.example"]).unwrap();
        let allowed = check(&named, Method::POST, &from("https://page.example")).unwrap();
        assert_eq!(allowed.unwrap(), "https://page.example");
        assert!(check(&named, Method::POST, &from("http://page.example")).is_err());
        assert!(check(&access(&[], &["*"]).unwrap(), Method::POST, &from("null")).is_ok());
        assert!(access(&[], &["page.example"]).is_err());
        assert!(access(&[], &["https://page.example/"]).is_err());
    }
}

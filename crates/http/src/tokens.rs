//! Tokens and certificates: who may ask for what.
//!
//! A file has a line for each token: a name, roles with commas between them, and the token. Requests
//! carry it as `Authorization: Bearer TOKEN`. Lines `certificate NAME ROLES` give roles to those
//! whose certificate has that name; they need no token.

use std::collections::{BTreeSet, HashMap};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use tessera_core::{ContentHash, Error, Result};

/// Tokens shorter than this can be guessed.
const SHORTEST_TOKEN: usize = 16;

/// What a line about a certificate begins with.
const CERTIFICATE: &str = "certificate";

/// What a certificate may that no line names, where lines name others.
const UNNAMED_ROLES: [Role; 2] = [Role::Infer, Role::Observe];

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Ask for answers.
    Infer,
    /// See what there is, and how it does.
    Observe,
    /// Change what is served. Who may do that also sees it.
    Change,
}

impl Role {
    /// Its name in a file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Infer => "infer",
            Self::Observe => "observe",
            Self::Change => "change",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Infer, Self::Observe, Self::Change].into_iter().find(|role| role.name() == name)
    }
}

/// Somebody who has a token or a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleHolder {
    /// What the file calls it, or its certificate.
    pub name: String,
    roles: BTreeSet<Role>,
}

impl RoleHolder {
    /// Whether it has one of these roles.
    pub fn has_any(&self, roles: &[Role]) -> bool {
        let implied = |role: &Role| *role == Role::Observe && self.roles.contains(&Role::Change);
        roles.iter().any(|role| self.roles.contains(role) || implied(role))
    }
}

/// The tokens of a file, and the certificates that it names.
#[derive(Debug, Default)]
pub struct Tokens {
    /// By hash: how long it takes to find one says nothing of the others.
    holders: HashMap<ContentHash, RoleHolder>,
    /// By the name of the certificate.
    certificates: HashMap<String, RoleHolder>,
}

impl Tokens {
    /// Reads the lines of a file; names all that are wrong.
    pub fn parse_file(text: &str) -> Result<Self> {
        let (mut tokens, mut wrong) = (Self::default(), Vec::new());
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Err(reason) = tokens.add_line(line) {
                wrong.push(format!("line {}: {reason}", index + 1));
            }
        }
        if !wrong.is_empty() {
            return Err(Error::usage(wrong.join("; ")));
        }
        if tokens.holders.is_empty() && tokens.certificates.is_empty() {
            let message = "there is no token in it, expected lines: NAME ROLES TOKEN, or certificate \
                           NAME ROLES";
            return Err(Error::usage(message));
        }
        Ok(tokens)
    }

    /// Adds what a line says. What is wrong is said without the token.
    fn add_line(&mut self, line: &str) -> std::result::Result<(), String> {
        if let Some(rest) = line.strip_prefix(CERTIFICATE)
            && rest.starts_with(char::is_whitespace)
        {
            return self.add_certificate(rest.trim());
        }
        let mut words = line.split_whitespace();
        let (Some(name), Some(roles), Some(token), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("expected three words: NAME ROLES TOKEN".to_owned());
        };
        if token.len() < SHORTEST_TOKEN {
            return Err(format!("the token has less than {SHORTEST_TOKEN} characters"));
        }
        let roles = parse_roles(roles).map_err(|role| {
            format!("role \"{role}\", expected infer, observe or change, with commas between")
        })?;
        let holder = RoleHolder { name: name.to_owned(), roles };
        if self.holders.insert(hash_of(token), holder).is_some() {
            return Err("the token is there twice".to_owned());
        }
        Ok(())
    }

    /// Adds what a line says after its first word. A name may have spaces in it.
    fn add_certificate(&mut self, line: &str) -> std::result::Result<(), String> {
        // The last word is not repeated: it may be the token of somebody who is called like that.
        let expected = || {
            format!("expected {CERTIFICATE} NAME ROLES, with roles of infer, observe and change")
        };
        let (name, roles) = line.rsplit_once(char::is_whitespace).ok_or_else(expected)?;
        let roles = parse_roles(roles).map_err(|_| expected())?;
        let name = name.trim().to_owned();
        let holder = RoleHolder { name: name.clone(), roles };
        if self.certificates.insert(name, holder).is_some() {
            return Err("the certificate is there twice".to_owned());
        }
        Ok(())
    }

    /// Whether any line is about a certificate.
    pub fn names_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Whose certificate has these names; `None` where there is no name, or where no line is about
    /// certificates: then a token is needed.
    pub fn find_certificate(&self, names: &[String]) -> Option<RoleHolder> {
        let first = names.first().filter(|_| self.names_certificates())?;
        let named = names.iter().find_map(|name| self.certificates.get(name)).cloned();
        Some(named.unwrap_or_else(|| RoleHolder {
            name: first.clone(),
            roles: UNNAMED_ROLES.into_iter().collect(),
        }))
    }

    /// Whose token a request carries: `Ok(None)` where it carries none, an error where it is none
    /// of ours.
    pub fn find_holder(
        &self,
        headers: &HeaderMap,
    ) -> std::result::Result<Option<&RoleHolder>, &'static str> {
        let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
        let value = value.to_str().map_err(|_| "the token is not text")?;
        let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err("expected Authorization: Bearer TOKEN");
        }
        self.holders.get(&hash_of(token.trim())).map(Some).ok_or("the token is not known")
    }
}

/// Roles with commas between them; the error is one that is none.
fn parse_roles(text: &str) -> std::result::Result<BTreeSet<Role>, &str> {
    text.split(',').map(|role| Role::from_name(role).ok_or(role)).collect()
}

fn hash_of(token: &str) -> ContentHash {
    ContentHash::of_content(token.as_bytes())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const FILE: &str = "# who may do what\n\napp infer 0123456789abcdef\n\
                        ops change,infer fedcba9876543210\n";

    fn headers(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))])
    }

    #[test]
    fn a_token_has_its_roles_and_no_others() {
        let tokens = Tokens::parse_file(FILE).unwrap();
        let app = tokens.find_holder(&headers("Bearer 0123456789abcdef")).unwrap().unwrap();
        assert_eq!(app.name, "app");
        assert!(app.has_any(&[Role::Observe, Role::Infer]));
        assert!(!app.has_any(&[Role::Change]) && !app.has_any(&[Role::Observe]));
        let ops = tokens.find_holder(&headers("bearer fedcba9876543210")).unwrap().unwrap();
        assert!(ops.has_any(&[Role::Change]) && ops.has_any(&[Role::Observe]));
        assert_eq!(tokens.find_holder(&HeaderMap::new()), Ok(None));
        for wrong in ["Bearer 0123456789abcdeF", "Bearer ", "Basic 0123456789abcdef", "x"] {
            assert!(tokens.find_holder(&headers(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_that_is_wrong_is_named_without_its_token() {
        for (line, expected) in [
            ("app infer", "line 1: expected three words"),
            ("app infer short", "less than 16 characters"),
            ("app admin 0123456789abcdef", "role \"admin\""),
            ("# nothing", "there is no token in it"),
            ("a infer 0123456789abcdef\nb infer 0123456789abcdef", "line 2: the token is there"),
            ("certificate infer 0123456789abcdef", "expected certificate NAME ROLES"),
            ("certificate ops", "expected certificate NAME ROLES"),
            ("certificate a infer\ncertificate a change", "line 2: the certificate is there twice"),
        ] {
            let error = Tokens::parse_file(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("0123456789abcdef"), "{error}");
        }
    }

    #[test]
    fn a_certificate_has_the_roles_of_its_name_and_others_may_not_change_anything() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let file = "certificate ops change\ncertificate Jane Doe observe\n";
        let tokens = Tokens::parse_file(file).unwrap();
        let ops = tokens.find_certificate(&names(&["x.example", "ops"])).unwrap();
        assert_eq!(ops.name, "ops");
        assert!(ops.has_any(&[Role::Change]) && !ops.has_any(&[Role::Infer]));
        let jane = tokens.find_certificate(&names(&["Jane Doe"])).unwrap();
        assert!(jane.has_any(&[Role::Observe]) && !jane.has_any(&[Role::Infer, Role::Change]));
        let other = tokens.find_certificate(&names(&["app", "x"])).unwrap();
        assert_eq!(other.name, "app");
        assert!(other.has_any(&[Role::Infer]) && other.has_any(&[Role::Observe]));
        assert!(!other.has_any(&[Role::Change]));
        assert_eq!(tokens.find_certificate(&[]), None);
        // Where no line is about certificates, one does not stand for a token.
        let tokens = Tokens::parse_file(FILE).unwrap();
        assert_eq!(tokens.find_certificate(&names(&["ops"])), None);
    }
}

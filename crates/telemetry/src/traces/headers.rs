//! Headers that go with every batch of spans, as `OTEL_EXPORTER_OTLP_HEADERS` gives them.

use tessera_core::{Error, Result};

/// Reads `name=value,name=value`, values percent-encoded, and returns lines of HTTP.
pub(super) fn header_lines(text: &str) -> Result<String> {
    let mut lines = String::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (name.trim(), decode_percent(value.trim()));
        let value = value.filter(|value| !value.is_empty() && is_header_value(value));
        let (true, Some(value)) = (is_header_name(name), value) else {
            // Without its value, which may be a secret.
            return Err(Error::usage(format!(
                "\"{name}\" is no header, expected NAME=VALUE, percent-encoded"
            )));
        };
        lines.push_str(&format!("{}: {value}\r\n", name.to_ascii_lowercase()));
    }
    Ok(lines)
}

fn is_header_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

fn is_header_value(value: &str) -> bool {
    value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

/// The text behind `%20` and the like; `None` where there is none.
fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = behind;
            continue;
        }
        let (digits, behind) = behind.split_first_chunk::<2>()?;
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
        bytes.push(digit(digits[0])? << 4 | digit(digits[1])?);
        rest = behind;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_pairs_with_values_that_may_be_encoded() {
        for (text, expected) in [
            ("", ""),
            (" , ", ""),
            ("x-tenant=ants", "x-tenant: ants\r\n"),
            ("Authorization=Bearer%20a=b", "authorization: Bearer a=b\r\n"),
            ("a=1, b = %42b", "a: 1\r\nb: Bb\r\n"),
        ] {
            assert_eq!(header_lines(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_header_is_refused_by_name_and_tells_no_secret() {
        for text in ["secret", "=1", "a b=1", "a=", "a=%2", "a=%zz", "a=%0d%0ax: y", "a=%ff"] {
            assert!(header_lines(text).is_err(), "{text}");
        }
        let error = header_lines("key=hush%00").unwrap_err().to_string();
        assert!(error.contains("\"key\"") && !error.contains("hush"), "{error}");
    }
}

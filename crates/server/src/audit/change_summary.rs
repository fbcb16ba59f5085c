//! What a change is about: the tasks and models that it names, and its document in a line.

use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use serde::Serialize;
use serde_json::{Map, Value};

use super::noted_body::{BodyNotes, MOST_KEPT};
use super::shown_json::show_json;
use super::wire_fields::{WireValue, wire_fields};
use crate::access::PortKind;

/// The most names that a line has.
const MOST_NAMES: usize = 32;

/// What a change is about.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ChangeNames {
    /// The tasks, models, units or nodes that it names.
    pub(crate) names: Vec<String>,
    /// Its document in a line, without what may be a secret.
    pub(crate) summary: Option<String>,
}

/// What a request is about that came through this port; `encoding` is how its body is compressed.
pub(crate) fn describe_change(
    port: PortKind,
    path: &str,
    encoding: Option<&str>,
    notes: &BodyNotes,
) -> ChangeNames {
    let (body, is_all) = notes.take_beginning();
    let mut change = match port {
        PortKind::Grpc => describe_call(path, encoding, &body),
        _ => describe_request(path, encoding, &body, is_all),
    };
    if change.names.len() > MOST_NAMES {
        let count = change.names.len();
        change.names.truncate(MOST_NAMES);
        change.names.push(format!("… {count} in all"));
    }
    change
}

fn describe_request(path: &str, encoding: Option<&str>, body: &[u8], is_all: bool) -> ChangeNames {
    let mut names: Vec<String> = path_name(path).into_iter().collect();
    let body = unpack(encoding, body);
    let document: Option<Value> = serde_json::from_slice(&body).ok();
    if let Some(Value::Object(tasks)) = document.as_ref().and_then(|found| found.get("tasks")) {
        names.extend(tasks.keys().cloned());
    }
    let summary = match document {
        Some(document) => Some(show_json(&document)),
        None if body.is_empty() => None,
        None if is_all && body.len() < MOST_KEPT => Some("no JSON".to_owned()),
        None => Some("too large to be shown".to_owned()),
    };
    ChangeNames { names, summary }
}

/// The task, model, unit or node in a path.
fn path_name(path: &str) -> Option<String> {
    let mut parts = path.split('?').next()?.split('/').skip(1);
    let (version, kind) = (parts.next()?, parts.next()?);
    let name = match (version, kind) {
        ("v1", "models" | "tasks" | "units" | "nodes" | "tokens") | ("v2", "models") => {
            parts.next()?
        }
        ("v2", "repository") => parts.nth(1)?,
        ("v2", "systemsharedmemory" | "cudasharedmemory") => parts.nth(1)?,
        _ => return None,
    };
    Some(decode_percent(name)).filter(|name| !name.is_empty())
}

/// A part of a path as it was before it was escaped.
fn decode_percent(text: &str) -> String {
    let (mut decoded, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| byte == b'%');
        let digits = digits.and_then(|digits| str::from_utf8(digits).ok());
        let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(value.unwrap_or(byte));
        rest = if value.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// A call of gRPC: a flag, a length, and a message of which the end may be missing.
fn describe_call(path: &str, encoding: Option<&str>, body: &[u8]) -> ChangeNames {
    let Some((&flag, message)) = body.split_first().map(|(flag, rest)| (flag, rest.get(4..)))
    else {
        return ChangeNames::default();
    };
    let message = message.unwrap_or_default();
    let message = unpack(encoding.filter(|_| flag == 1), message);
    let fields = wire_fields(&message);
    // As `inference.proto` numbers them.
    let (name_field, settings_field) = match path.rsplit('/').next() {
        Some("RepositoryModelLoad" | "RepositoryModelUnload") => (Some(2), 3),
        Some("TraceSetting") => (Some(2), 1),
        Some("LogSettings") => (None, 1),
        _ => return ChangeNames::default(),
    };
    let of_number = |number| fields.iter().filter(move |(found, _)| *found == number);
    let names = name_field.into_iter().flat_map(of_number);
    let names = names.filter_map(|(_, name)| name.text()).map(str::to_owned);
    let names = names.filter(|name| !name.is_empty()).collect();
    let settings: Map<String, Value> =
        of_number(settings_field).filter_map(|(_, entry)| map_entry(*entry)).collect();
    let summary = (!settings.is_empty()).then(|| show_json(&settings.into()));
    ChangeNames { names, summary }
}

/// The name and the value of a setting, where that is text or a number.
fn map_entry(entry: WireValue<'_>) -> Option<(String, Value)> {
    let fields = entry.fields();
    let of_number = |number| fields.iter().find(|(found, _)| *found == number);
    let name = of_number(1)?.1.text()?.to_owned();
    let values = of_number(2).map(|(_, value)| value.fields()).unwrap_or_default();
    let mut shown = values.into_iter().map(|(_, value)| match value {
        WireValue::Number(number) => number.into(),
        value => value.text().map_or_else(|| "(bytes)".into(), Value::from),
    });
    let first = shown.next().unwrap_or(Value::Null);
    Some((name, first))
}

/// The beginning of what was compressed, as far as it can be read and is not too much.
fn unpack(encoding: Option<&str>, packed: &[u8]) -> Vec<u8> {
    let mut unpacked = Vec::new();
    let limit = MOST_KEPT as u64;
    let read = match encoding.map(str::trim) {
        Some("gzip") => MultiGzDecoder::new(packed).take(limit).read_to_end(&mut unpacked),
        Some("deflate") => ZlibDecoder::new(packed).take(limit).read_to_end(&mut unpacked),
        _ => return packed.to_vec(),
    };
    // What could be read until then is there.
    read.ok();
    unpacked
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn frame(flag: u8, message: &[u8]) -> Vec<u8> {
        let len = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[flag], &len[..], message].concat()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn the_names_in_paths_and_documents_are_found() {
        let describe = |path: &str, body: &str| {
            let change = describe_request(path, None, body.as_bytes(), true);
            (change.names.join(","), change.summary.unwrap_or_default())
        };
        let (names, summary) = describe("/v1/system", r#"{"tasks": {"a": ["m"], "b": ["n"]}}"#);
        assert_eq!((names.as_str(), summary.contains("\"a\":[\"m\"]")), ("a,b", true), "{summary}");
        for (path, expected) in [
            ("/v1/tasks/50%25%20of/exits/x", "50% of"),
            ("/v2/repository/models/%E6%A8%A1/load", "模"),
            ("/v2/models/cats/trace/setting", "cats"),
            ("/v2/systemsharedmemory/region/r/register", "r"),
            ("/v1/units/ab%2/stop", "ab%2"),
            ("/v2/logging", ""),
            ("/", ""),
        ] {
            assert_eq!(describe(path, "").0, expected, "{path}");
        }
        assert_eq!(describe("/v1/tasks/a", "{").1, "no JSON");
        let packed = gzip(br#"{"model": "dogs"}"#);
        let change = describe_request("/v1/tasks/a", Some("gzip"), &packed, true);
        assert_eq!(change.summary.unwrap(), r#"{"model":"dogs"}"#);
    }

    #[test]
    fn a_call_of_grpc_names_its_model_also_compressed_and_cut_short() {
        // model_name: "cats"; parameters: {"config": {string: "…"}}, cut amid the value.
        let message = b"\x12\x04cats\x1a\x20\x0a\x06config\x12\x10\x22\x0esecret";
        let path = "/inference.GRPCInferenceService/RepositoryModelLoad";
        for (flag, encoding, body) in
            [(0, None, message.to_vec()), (1, Some("gzip"), gzip(message))]
        {
            let change = describe_call(path, encoding, &frame(flag, &body));
            assert_eq!(change.names, ["cats"], "{encoding:?}");
            let summary = change.summary.unwrap();
            assert!(summary.contains("config") && !summary.contains("secret"), "{summary}");
        }
        for len in 0..4 {
            assert!(describe_call(path, None, &frame(0, message)[..len]).names.is_empty());
        }
    }

    #[test]
    fn a_bomb_unpacks_to_no_more_than_is_kept() {
        let bomb = gzip(&vec![b' '; 20 << 20]);
        assert_eq!(unpack(Some("gzip"), &bomb).len(), MOST_KEPT);
    }
}

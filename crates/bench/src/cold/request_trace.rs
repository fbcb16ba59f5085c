//! Requests as somebody has seen them come, from a file.

use std::path::Path;

use tessera_core::{Error, Result};
use tessera_plan::residency::eviction::EvictionRequest;

/// Reads a file of lines such as `1250.5,name`: when a request comes, in milliseconds, and what it
/// asks for. Who is named first is the first of the instances, and so on; where there are more
/// names than instances these begin again. Lines that begin with # say nothing.
pub(super) fn read_request_trace(
    file: &Path,
    instances: &[String],
) -> Result<Vec<EvictionRequest>> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Error::from_io(file.display().to_string(), &error))?;
    parse_request_trace(&text, instances)
        .map_err(|error| error.with_context(file.display().to_string()))
}

fn parse_request_trace(text: &str, instances: &[String]) -> Result<Vec<EvictionRequest>> {
    let mut names: Vec<&str> = Vec::new();
    let mut requests: Vec<EvictionRequest> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: &str| Error::invalid(format!("line {number}: \"{line}\", {what}"));
        let (at, name) = line.split_once(',').ok_or_else(|| wrong("expected MILLISECONDS,NAME"))?;
        let at_ms: f64 = at.trim().parse().map_err(|_| wrong("expected a number first"))?;
        let earliest = requests.last().map_or(0.0, |before| before.at_ms);
        if !at_ms.is_finite() || at_ms < earliest {
            return Err(wrong("expected a time that is not before the one above"));
        }
        let name = name.trim();
        let known = names.iter().position(|known| *known == name);
        let place = known.unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        let instance = instances[place % instances.len()].clone();
        requests.push(EvictionRequest { at_ms, instance });
    }
    if requests.is_empty() {
        return Err(Error::invalid("no requests"));
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_instances_in_the_order_in_which_they_come() {
        let instances = ["one".to_owned(), "two".to_owned()];
        let text = "# milliseconds,function\n0.5,f7\n\n2,f1\n2.0, f7\n9,f9\n";
        let requests = parse_request_trace(text, &instances).unwrap();
        let seen: Vec<(f64, &str)> =
            requests.iter().map(|request| (request.at_ms, &request.instance[..])).collect();
        assert_eq!(seen, [(0.5, "one"), (2.0, "two"), (2.0, "one"), (9.0, "one")]);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        let instances = ["one".to_owned()];
        let refuse = |text: &str| parse_request_trace(text, &instances).unwrap_err().to_string();
        assert!(refuse("").contains("no requests"));
        assert!(refuse("1,a\n2").contains("line 2: \"2\", expected MILLISECONDS,NAME"));
        assert!(refuse("x,a").contains("expected a number"));
        assert!(refuse("2,a\n1,a").contains("not before"));
        assert!(refuse("NaN,a").contains("not before"));
    }
}

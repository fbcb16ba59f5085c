//! What others are to know of where an inbox listens.

use tessera_core::{Error, Result};

/// The socket address under which others reach what was bound.
pub(in crate::transport) fn advertised_address(
    bound: &str,
    advertise: Option<&str>,
) -> Result<String> {
    let (host, port) = bound
        .strip_prefix("tcp://")
        .and_then(|rest| rest.rsplit_once(':'))
        .ok_or_else(|| Error::usage(format!("\"{bound}\" is no tcp://ADDRESS:PORT")))?;
    match advertise {
        Some(name) if name.contains(char::is_control) || name.is_empty() => {
            Err(Error::usage(format!("{name:?} is no name under which others reach an inbox")))
        }
        Some(name) => Ok(format!("tcp://{name}:{port}")),
        None if ["0.0.0.0", "[::]", "*", "[::ffff:0.0.0.0]"].contains(&host) => Err(Error::usage(
            "an inbox that listens at all addresses must be told under which name others reach it",
        )),
        None => Ok(bound.to_owned()),
    }
}

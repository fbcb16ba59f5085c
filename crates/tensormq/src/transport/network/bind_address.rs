//! Where an inbox listens, and what others are to know of it.

use std::time::Duration;

use tessera_core::{Error, Result};

use super::listener::CLOSE_LINGER;
use crate::wait::Deadline;

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
            "an inbox that listens at all addresses needs a name under which others reach it: advertise",
        )),
        None => Ok(bound.to_owned()),
    }
}

/// Binds; waits for a moment where an inbox was there that is closed and whose senders hear of it.
pub(in crate::transport) fn bind_with_retry<T, E>(
    bind: impl Fn() -> Result<T, E>,
    is_taken: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let end = Deadline::after(CLOSE_LINGER * 2);
    loop {
        match bind() {
            Err(error) if is_taken(&error) && !end.has_passed() => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

//! Values of flags.

use std::time::Duration;

use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_engine::EngineName;

/// Seconds, above 0.
pub fn parse_seconds(text: &str) -> Result<Duration> {
    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| Error::usage("expected a number of seconds above 0"))
}

/// Whether units are in processes of their own.
pub fn parse_isolation(text: &str) -> Result<Isolation, String> {
    text.parse().map_err(|error: Error| error.to_string())
}

/// A value that the flag before it can't have: `--strategy "x", expected one of …`.
pub fn flag_error(error: Error) -> Error {
    Error::usage(format!("--{error}"))
}

/// The engine by name.
pub fn parse_engine(text: &str) -> Result<EngineName, String> {
    text.parse().map_err(|error: Error| error.to_string())
}

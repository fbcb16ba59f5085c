//! The error that every crate returns: a kind for programs, a message for people.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What went wrong, as far as a program needs to tell the cases apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller asked for something that makes no sense (an option, an argument).
    Usage,
    /// A model, tensor or manifest breaks the rules of its format.
    Invalid,
    /// Valid, but not something that this engine or version can do.
    Unsupported,
    /// A thing that was named does not exist.
    NotFound,
    /// Stored content does not match its hash.
    Corrupt,
    /// The operating system refused.
    Io,
    /// An engine failed while loading or running a unit.
    Engine,
    /// A queue or a pool has no room, and the caller did not want to wait.
    Full,
    /// The time that the caller gave has passed.
    TimedOut,
    /// Whoever was at the other end is gone: ended, killed, or out of reach for too long.
    Lost,
}

/// An error with a kind and one line that names the thing at fault and what would be right.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// A result with Tessera's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident),* $(,)?) => {
        $($(#[$doc])* pub fn $name(message: impl Into<String>) -> Self {
            Self::new(ErrorKind::$kind, message)
        })*
    };
}

impl Error {
    /// An error of `kind`; line breaks in `message` become spaces, so that it stays one line.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message: String = message.into();
        let message = if message.contains(['\n', '\r']) {
            message.split_whitespace().collect::<Vec<_>>().join(" ")
        } else {
            message
        };
        Self { kind, message }
    }

    constructors! {
        /// The caller asked for something that makes no sense.
        usage => Usage,
        /// A model, tensor or manifest breaks the rules of its format.
        invalid => Invalid,
        /// Valid, but not something that this engine or version can do.
        unsupported => Unsupported,
        /// A thing that was named does not exist.
        not_found => NotFound,
        /// Stored content does not match its hash.
        corrupt => Corrupt,
        /// An engine failed while loading or running a unit.
        engine => Engine,
        /// A queue or a pool has no room.
        full => Full,
        /// The time that the caller gave has passed.
        timed_out => TimedOut,
        /// Whoever was at the other end is gone.
        lost => Lost,
    }

    /// The operating system refused to do `what` ("read weights/ab…").
    pub fn from_io(what: impl fmt::Display, source: &std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("{what}: {source}"))
    }

    /// What went wrong, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error, told as part of `context`: `context: message`.
    #[must_use]
    pub fn with_context(self, context: impl fmt::Display) -> Self {
        Self::new(self.kind, format!("{context}: {}", self.message))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

//! What goes wrong with keys and certificates.

use tessera_core::Error;

/// An error about this.
pub(crate) fn identity_error(what: &str) -> impl Fn(rcgen::Error) -> Error + '_ {
    move |error| Error::invalid(format!("{what}: {error}"))
}

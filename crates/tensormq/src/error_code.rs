//! Kinds of errors as numbers: so that who is refused learns why, in another process or host.

use tessera_core::ErrorKind;

/// Kinds of refusal that the other side tells apart.
const REFUSAL_KINDS: [ErrorKind; 6] = [
    ErrorKind::Invalid,
    ErrorKind::NotFound,
    ErrorKind::Unsupported,
    ErrorKind::Full,
    ErrorKind::Lost,
    ErrorKind::Usage,
];

pub(crate) fn error_kind_code(kind: ErrorKind) -> u8 {
    REFUSAL_KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u8
}

pub(crate) fn error_kind_from_code(code: u8) -> ErrorKind {
    REFUSAL_KINDS.get(usize::from(code)).copied().unwrap_or(ErrorKind::Invalid)
}

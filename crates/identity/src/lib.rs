//! Who belongs to a cluster.
//!
//! A cluster has an [`Authority`], whose key its controllers have and nobody else. Whoever joins
//! makes a key of its own and asks for a certificate ([`CertificateRequest`]) with a [`JoinToken`],
//! which says whom to believe (the authority's fingerprint) and lets in once (a secret). From then
//! on certificates say who is who, for control and data alike: [`NodeName`] is what they say.

#![forbid(unsafe_code)]

mod authority;
mod certificate_request;
mod fingerprint;
mod identity_error;
mod join_token;
mod node_name;
mod secret;

pub use authority::{Authority, SignedCertificate};
pub use certificate_request::CertificateRequest;
pub use fingerprint::Fingerprint;
pub use join_token::{JoinToken, TokenId};
pub use node_name::{CONTROLLER_CERTIFICATE_NAME, NodeName};
pub use secret::{JoinSecret, SecretHash};

//! Who belongs to a cluster: tokens that let nodes in, the nodes, and their certificates.

mod member_record;
mod registry;
mod token_record;

pub use member_record::MemberRecord;
pub use registry::{AdmittedNode, MemberRegistry, NewToken, RegistryConfig};
pub use token_record::{TokenRecord, TokenState};

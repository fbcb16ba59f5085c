//! Where a role speaks the protocol.

use clap::Args;
use tessera_command::parse_byte_size;
use tessera_server::{GatewayConfig, LogControl, PortKind, RegionRules};

use super::access::AccessArguments;

#[derive(Args)]
pub(crate) struct GatewayArguments {
    /// Port of the protocol over HTTP; 0 for any that is free
    #[arg(long, default_value_t = 8000, value_name = "PORT")]
    pub(crate) http: u16,
    /// Port of the protocol over gRPC
    #[arg(long, default_value_t = 8001, value_name = "PORT")]
    pub(crate) grpc: u16,
    /// Call the server triton, and word common errors as Triton does, for scripts that compare them
    #[arg(long)]
    pub(crate) triton_names: bool,
    /// Memory that requests and answers under way may take, all together; such as 2GB [default: a
    /// quarter of what there is]
    #[arg(long, value_name = "SIZE", value_parser = parse_byte_size)]
    pub(crate) max_body_memory: Option<u64>,
    /// Let clients register shared memory whose keys begin with PREFIX; none for no shared memory
    /// [default: any where only this machine reaches the server, else none]
    #[arg(long, value_name = "PREFIX")]
    pub(crate) shared_memory: Option<String>,
}

impl GatewayArguments {
    /// The gateway that the user asks for, with the log that clients may change.
    pub(crate) fn gateway_config(
        &self,
        access: &AccessArguments,
        log: LogControl,
    ) -> GatewayConfig {
        GatewayConfig {
            shared_memory: self.region_rules(access),
            most_body_bytes: self.max_body_memory,
            http: access.listen_on("--http", PortKind::Http, self.http),
            grpc: access.listen_on("--grpc", PortKind::Grpc, self.grpc),
            log,
            triton_names: self.triton_names,
        }
    }

    /// Which regions clients may register: any on this machine alone, else those that were named.
    fn region_rules(&self, access: &AccessArguments) -> RegionRules {
        match &self.shared_memory {
            Some(prefix) if prefix == "none" => RegionRules::Nothing,
            Some(prefix) => RegionRules::KeysWith(prefix.trim_start_matches('/').to_owned()),
            None if access.host.is_loopback() => RegionRules::default(),
            None => RegionRules::Nothing,
        }
    }
}

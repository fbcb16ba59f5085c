//! A server of nothing, for tests.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use tessera_control::TaskDefaults;
use tessera_engine::{CudaOptions, EngineName};
use tessera_server::{
    AccessConfig, ControlConfig, GatewayConfig, ListenSetting, LogControl, ManagedSiteConfig,
    ModelFilesConfig, NodeConfig, PortKind, RegionRules, RunLimits, StandaloneConfig, StoreConfig,
    TelemetryConfig, TransportConfig, WeightLimits,
};

fn any_port(name: &'static str, kind: PortKind) -> ListenSetting {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    ListenSetting { name, kind, address }
}

/// A server of nothing, on ports that are free.
pub(crate) fn empty_server(repository: &Path) -> StandaloneConfig {
    StandaloneConfig {
        repository: repository.to_path_buf(),
        site: ManagedSiteConfig {
            transport: TransportConfig::default(),
            node: NodeConfig {
                first_start: 1,
                repository: repository.to_path_buf(),
                engine: EngineName::Rten,
                cuda: CudaOptions::default(),
                cores: NonZeroUsize::MIN,
                run_limits: RunLimits::default(),
                weight_limits: WeightLimits::default(),
            },
            control: ControlConfig {
                repository: repository.to_path_buf(),
                store: StoreConfig::Memory,
                defaults: TaskDefaults::default(),
            },
        },
        gateway: GatewayConfig {
            http: any_port("http", PortKind::Http),
            grpc: any_port("grpc", PortKind::Grpc),
            shared_memory: RegionRules::default(),
            most_body_bytes: None,
            log: LogControl::default(),
            triton_names: false,
        },
        telemetry: TelemetryConfig::default(),
        metrics: any_port("metrics", PortKind::Metrics),
        rest: any_port("control", PortKind::Control),
        access: AccessConfig::default(),
        models: ModelFilesConfig::default(),
        drain: Duration::from_secs(1),
    }
}

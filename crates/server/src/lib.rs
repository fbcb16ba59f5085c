//! The roles that the one binary can run as, put together from parts.
//!
//! ```text
//! part        what it holds                                   its Config
//! transport   the endpoint of this process, and its peers     TransportConfig
//! node        workers and their supervisor                    NodeConfig
//! gateway     dispatcher, protocol over HTTP and gRPC         DispatchConfig, GatewayConfig
//! control     intent, its store, who reconciles, REST         ControlConfig
//! telemetry   metrics, events, traces                         TelemetryConfig
//! ```
//!
//! Each has a `Config` and a `build()`; a role is a choice of parts, and what ties them together.
//! [`Standalone`] has all parts in one process. A cluster has a [`Controller`], which decides, and
//! [nodes](ClusterNode), which run units and have a gateway where they are to answer clients. The
//! [instance](run_instance) of a unit is what a node starts.
//!
//! What comes from outside is handed in: addresses to listen on, the shutdown, who is told how
//! requests ended. Nothing here reads flags, writes to the terminal or sets up logs.

#![forbid(unsafe_code)]

mod access;
mod audit;
mod catalogue;
mod client_names;
mod cluster_node;
mod cluster_port;
mod connection;
mod control;
mod controller;
mod form_content;
mod gateway;
mod gpu_sampler;
mod host_memory;
mod idle_cores;
mod input_memory;
mod instance;
mod instance_group;
mod listeners;
mod model_files;
mod node;
mod reloading;
mod repository_content;
mod repository_models;
mod request_guard;
mod runtime;
mod shutdown;
mod standalone;
mod state_folder;
mod system_sample;
mod telemetry;
mod tls;
mod transport;

pub use access::{AccessConfig, PortKind};
pub use cluster_node::{ClusterNode, ClusterNodeConfig, ClusterNodeStatus, NodeJoin};
pub use control::{ControlConfig, ControlPart, StoreConfig};
pub use controller::{
    Controller, ControllerAddresses, ControllerConfig, ControllerStatus, EtcdState,
};
pub use gateway::{DispatchConfig, DispatchPart, GatewayConfig};
pub use instance::run_instance;
pub use listeners::ListenSetting;
pub use model_files::{FailedModel, ModelFilesConfig};
pub use node::{NodeConfig, NodePart};
pub use runtime::run_role;
pub use shutdown::{ShutdownSignal, ShutdownTrigger, shutdown_channel};
pub use standalone::{
    LocalSite, ManagedSite, ManagedSiteConfig, ReadyServer, ServerAddresses, ServerStatus,
    Standalone, StandaloneConfig,
};
pub use telemetry::TelemetryConfig;
pub use tessera_gateway::{LogControl, RegionRules};
pub use tessera_http::WebAccess;
pub use tessera_node::{GpuBudget, RunLimits, WeightLimits};
pub use tls::TlsFiles;
pub use transport::{NetworkConfig, TransportConfig, TransportPart};

//! How a site is made that runs in this process and is asked without front ends.

use std::num::NonZeroUsize;
use std::path::Path;

use tessera_control::TaskDefaults;
use tessera_engine::{CudaOptions, EngineName};
use tessera_server::{
    ControlConfig, ManagedSite, ManagedSiteConfig, NodeConfig, RunLimits, StoreConfig,
    TransportConfig, WeightLimits,
};
use tessera_tensormq::Transport;

/// What a site in this process is like.
pub(crate) struct InProcessSite<'a> {
    pub(crate) repository: &'a Path,
    pub(crate) engine: EngineName,
    pub(crate) cuda: CudaOptions,
    pub(crate) transport: Option<Transport>,
    pub(crate) weight_limits: WeightLimits,
    pub(crate) defaults: TaskDefaults,
}

impl InProcessSite<'_> {
    /// On all cores, without limits of its own, and without memory of earlier ones.
    pub(crate) fn config(self) -> ManagedSiteConfig {
        let Self { repository, engine, cuda, transport, weight_limits, defaults } = self;
        let repository = repository.to_path_buf();
        ManagedSiteConfig {
            transport: TransportConfig { transport, network: None },
            node: NodeConfig {
                first_start: 1,
                repository: repository.clone(),
                engine,
                cuda,
                cores: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
                run_limits: RunLimits::default(),
                weight_limits,
            },
            control: ControlConfig { repository, store: StoreConfig::Memory, defaults },
        }
    }
}

/// Ends a site with all that it runs.
pub(crate) fn stop_site(site: &ManagedSite) {
    site.local_site().dispatcher().stop_accepting();
    site.local_site().node_supervisor().stop_all();
}

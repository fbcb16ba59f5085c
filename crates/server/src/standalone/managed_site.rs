//! A node, its dispatcher and who manages them, without the front ends.

use std::sync::Arc;

use serde_json::json;
use tessera_control::Manager;
use tessera_core::Result;
use tessera_dispatch::Dispatcher;
use tessera_node::NodeEvent;
use tessera_telemetry::{RequestObserver, Telemetry};

use super::local_site::LocalSite;
use crate::control::{ControlConfig, ControlPart};
use crate::gateway::{DispatchConfig, REPLY_INBOX};
use crate::node::NodeConfig;
use crate::transport::TransportConfig;

/// What a managed site is made of.
#[derive(Clone, Debug)]
pub struct ManagedSiteConfig {
    /// How tensors go between its processes.
    pub transport: TransportConfig,
    /// What runs units.
    pub node: NodeConfig,
    /// What decides which.
    pub control: ControlConfig,
}

/// A site that serves nothing yet.
pub struct ManagedSite {
    pub(super) site: Arc<LocalSite>,
    pub(super) control: ControlPart,
}

impl ManagedSiteConfig {
    /// Puts a site together, on the runtime that this is called on; `observer` is told how requests
    /// ended.
    pub fn build(
        self,
        telemetry: Arc<Telemetry>,
        observer: Arc<dyn RequestObserver>,
    ) -> Result<ManagedSite> {
        // First: where another server has it, nothing is started.
        let store = self.control.open_store()?;
        let cores = self.node.cores;
        let transport = self.transport.build()?;
        let dispatch =
            DispatchConfig { cores, shares_units: false, reply_inbox: REPLY_INBOX.to_owned() }
                .build(&transport, observer)?;
        let events = relay_node_events(dispatch.dispatcher.clone(), Arc::clone(&telemetry));
        let node = self.node.build(&transport, events)?;
        let canceller = node.supervisor.clone();
        dispatch.dispatcher.on_cancelled(move |request| canceller.cancel_request(request));
        let endpoint = transport.endpoint;
        let site = Arc::new(LocalSite::new(node, dispatch, telemetry, endpoint, cores));
        let control = self.control.build(store, Arc::clone(&site) as _)?;
        Ok(ManagedSite { site, control })
    }
}

impl ManagedSite {
    /// What runs there.
    pub fn local_site(&self) -> &LocalSite {
        &self.site
    }

    /// Who decides what should.
    pub fn manager(&self) -> &Manager {
        &self.control.manager
    }
}

/// Passes what happens to instances on to the dispatcher.
fn relay_node_events(dispatcher: Dispatcher, telemetry: Arc<Telemetry>) -> impl Fn(NodeEvent) {
    move |event| match event {
        NodeEvent::Up { unit, instance } => {
            dispatcher.instance_up(&unit, &instance);
            telemetry.publish_event(json!({ "kind": "up", "unit": unit, "instance": instance }));
        }
        NodeEvent::Down { unit, instance, reason, comes_back } => {
            dispatcher.instance_down(&unit, &instance, &reason, comes_back);
            telemetry.publish_event(json!({
                "kind": "down", "unit": unit, "instance": instance, "reason": reason,
                "comes_back": comes_back,
            }));
        }
        NodeEvent::Lost { request, part } => dispatcher.retry_part(request, part),
    }
}

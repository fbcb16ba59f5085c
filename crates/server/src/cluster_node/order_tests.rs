//! Which orders a node obeys, and which it remembers.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tessera_cluster::wire::{
    Assignment, NodeOrder, Ping, Removed, RemovedNodes, node_order::Order,
};
use tessera_core::ErrorKind;
use tessera_engine::{CudaOptions, EngineName};
use tessera_identity::{Authority, CertificateRequest, NodeName};
use tessera_node::{RunLimits, WeightLimits};
use tessera_tensormq::TlsIdentity;
use tokio::sync::mpsc;

use super::agent::obey_order;
use super::places_file::PlacesFile;
use super::workload::NodeWorkload;
use super::{ClusterNodeConfig, NodeJoin};
use crate::access::{AccessConfig, PortKind};
use crate::listeners::ListenSetting;
use crate::node::NodeConfig;
use crate::state_folder::create_state_folder;
use crate::telemetry::TelemetryConfig;
use crate::transport::{NetworkConfig, TransportConfig};

fn identity(authority: &Authority, name: &str) -> TlsIdentity {
    let name: NodeName = name.parse().unwrap();
    let request = CertificateRequest::generate(&name).unwrap();
    let names = [name.certificate_name()];
    let life = Duration::from_secs(60);
    let signed = authority.sign_request(request.request_pem(), &names, life).unwrap();
    let (own, all) = (&signed.certificate_pem, authority.certificate_pem());
    TlsIdentity::from_pem(&names[0], own, &request.key_pem(), all).unwrap()
}

/// A node that runs nothing, as it is when it has just been started.
fn start_workload(folder: &Path) -> Arc<NodeWorkload> {
    let repository = folder.to_path_buf();
    tessera_repository::Repository::open_or_create(&repository).unwrap();
    let tls = identity(&Authority::generate("test").unwrap(), "edge");
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let config = ClusterNodeConfig {
        controllers: Vec::new(),
        join: NodeJoin { name: "edge".parse().unwrap(), token: None },
        node: NodeConfig {
            repository: repository.clone(),
            engine: EngineName::Rten,
            cuda: CudaOptions::default(),
            cores: NonZeroUsize::MIN,
            run_limits: RunLimits::default(),
            weight_limits: WeightLimits::default(),
            first_start: 1,
        },
        repository: repository.clone(),
        address,
        advertise: address.to_string(),
        tier: 0,
        object_store: None,
        gateway: None,
        telemetry: TelemetryConfig::default(),
        metrics: ListenSetting {
            name: "--metrics",
            kind: PortKind::Metrics,
            address: SocketAddr::new(address, 0),
        },
        access: AccessConfig::default(),
        drain: Duration::ZERO,
    };
    let network = NetworkConfig { identity: tls.clone(), address, advertise: address.to_string() };
    let transport = TransportConfig { transport: None, network: Some(network) }.build().unwrap();
    let state = create_state_folder(&repository).unwrap();
    let (draining, _) = mpsc::unbounded_channel();
    let supply = config.build_supply(&tls, &Arc::default()).unwrap();
    let kept = (state.as_path(), PlacesFile::in_folder(&state));
    let workload = config.build_workload(kept, tls, &transport, None, draining, supply).unwrap();
    workload.restore();
    workload
}

fn assignment(number: u64) -> Order {
    Order::Assignment(Assignment { number, units: Some("[]".into()), ..Assignment::default() })
}

fn removed_nodes(names: &[&str]) -> Order {
    let certificate_names = names.iter().map(|name| (*name).to_owned()).collect();
    Order::RemovedNodes(RemovedNodes { certificate_names })
}

#[tokio::test]
async fn nothing_that_a_controller_of_before_says_is_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let workload = start_workload(folder.path());
    let obey =
        |epoch, order| obey_order(&workload, NodeOrder { epoch, order: Some(order) }).map(drop);
    let applied = || workload.state.lock().unwrap().applied;
    obey(7, assignment(1)).unwrap();
    obey(7, removed_nodes(&["gone.node.tessera"])).unwrap();
    let ping = || Order::Ping(Ping { number: 1 });
    let removed = || Order::Removed(Removed { reason: "it was removed".to_owned() });
    for order in [assignment(2), removed_nodes(&[]), removed(), ping()] {
        let refused = obey(6, order).unwrap_err();
        // Not an error of use, which would end the node.
        assert_eq!(refused.kind(), ErrorKind::Lost, "{refused}");
    }
    assert_eq!(applied(), 1);
    assert_eq!(workload.tls.removed_peers(), ["gone.node.tessera"]);
    // Whatever the next one says first, the one before commands nobody any more.
    obey(8, ping()).unwrap();
    assert!(obey(7, assignment(3)).is_err());
    obey(8, assignment(3)).unwrap();
    assert_eq!(applied(), 3);
    assert_eq!(obey(8, removed()).unwrap_err().kind(), ErrorKind::Usage);
}

#[tokio::test]
async fn a_node_that_is_started_again_knows_who_was_removed_and_whom_to_obey() {
    let folder = tempfile::tempdir().unwrap();
    let workload = start_workload(folder.path());
    let names = ["one.node.tessera", "two.node.tessera"];
    for order in [removed_nodes(&names), assignment(4)] {
        obey_order(&workload, NodeOrder { epoch: 9, order: Some(order) }).unwrap();
    }
    drop(workload);
    let workload = start_workload(folder.path());
    let known: HashSet<String> = workload.tls.removed_peers().into_iter().collect();
    assert_eq!(known, names.map(str::to_owned).into());
    assert_eq!(workload.highest_epoch(), 9);
    assert!(obey_order(&workload, NodeOrder { epoch: 8, order: Some(assignment(5)) }).is_err());
}

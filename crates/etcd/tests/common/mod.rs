//! What tests of etcd have in common.

use std::time::Duration;

use tessera_core::ErrorKind;
use tessera_etcd::{EtcdClient, EtcdConfig, Transaction};
use tessera_lab::EtcdMembers;

/// How long etcd may take until a cluster that just started, or lost a member, answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Members of etcd; `None`, said out loud, where it is not installed.
pub(crate) fn start_members(count: usize) -> Option<EtcdMembers> {
    match EtcdMembers::start(count) {
        Ok(members) => Some(members),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A client of all members.
pub(crate) fn client_of(members: &EtcdMembers) -> EtcdClient {
    EtcdClient::new(&EtcdConfig { endpoints: members.urls(), tls: None }).unwrap()
}

/// Waits until etcd takes changes.
pub(crate) async fn wait_until_ready(client: &EtcdClient) {
    let ready = async {
        while let Err(error) = client.commit(Transaction::new().put("ready", "")).await {
            eprintln!("not ready: {error}");
        }
    };
    tokio::time::timeout(ANSWER_TIMEOUT, ready).await.unwrap();
}

//! A node's side of the control wire: it reports how it is, and does what it is assigned.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tessera_cluster::wire::{
    AssignmentApplied, AssignmentDrained, HeldBlocks, LinkReports, NodeDescription, NodeOrder,
    NodeReport, NodeState, Pong, TaskTraffics, UnitProfiles, UnitReports, node_order, node_report,
};
use tessera_cluster::{
    ControllerAddress, ControllerConnection, JoinedNode, NodeAssignment, NodeSession,
    write_document,
};
use tessera_core::{Error, ErrorKind, Result, lock};
use tokio::sync::{mpsc, watch};

use super::controller_link::ControllerLink;
use super::identity_file::IdentityFile;
use super::link_watch::{LINK_INTERVAL, have_changed};
use super::workload::{DrainingTable, NodeWorkload};
use crate::host_memory::available_memory_bytes;
use crate::idle_cores::IdleCores;

/// How often a node says how it is.
const STATE_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait before a controller is tried again; up to so long when it stays away.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How soon a certificate is asked for again that could not be renewed.
const RENEW_PAUSE: Duration = Duration::from_secs(30);

/// What speaks to controllers for a node.
pub(super) struct NodeAgent {
    pub(super) controllers: Vec<ControllerAddress>,
    pub(super) identity: Mutex<JoinedNode>,
    pub(super) identity_file: IdentityFile,
    pub(super) description: NodeDescription,
    pub(super) workload: Arc<NodeWorkload>,
    pub(super) link: Arc<ControllerLink>,
    /// Whether a controller was attached to at some time.
    pub(super) was_attached: watch::Sender<bool>,
}

impl NodeAgent {
    /// Keeps a stream to a controller until the node does not belong to the cluster any more;
    /// returns why.
    pub(super) async fn stay_attached(self: Arc<Self>) -> Error {
        let mut pause = FIRST_PAUSE;
        let mut last_error = String::new();
        loop {
            for address in &self.controllers {
                let node = lock(&self.identity).clone();
                let ended = match ControllerConnection::open(address, &node).await {
                    Ok(connection) => self.attach(&connection).await,
                    Err(error) => Err(error),
                };
                self.link.set_current(None);
                match ended {
                    Ok(()) => pause = FIRST_PAUSE,
                    Err(error) if error.kind() == ErrorKind::Usage => return error,
                    Err(error) => {
                        let message = error.to_string();
                        if message != last_error {
                            tracing::warn!(%error, "no controller: going on with what there is");
                            last_error = message;
                        }
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Attaches to a controller, and obeys it until the stream ends. An error of use is one that
    /// trying again does not mend.
    async fn attach(self: &Arc<Self>, connection: &ControllerConnection) -> Result<()> {
        let session = connection.attach(self.workload.highest_epoch()).await?;
        self.link.set_current(Some(connection.clone()));
        self.was_attached.send_replace(true);
        self.workload.node.supervisor.set_keeps_names(false);
        tracing::info!(node = %lock(&self.identity).name, "attached to a controller");
        let reporting = tokio::spawn(report_for(
            Arc::clone(&self.workload),
            self.description.clone(),
            session.reports.clone(),
        ));
        let renewing = tokio::spawn(Arc::clone(self).renew_in_time(connection.clone()));
        let ended = self.obey_orders(session).await;
        // Nobody tells others where what is started again is.
        self.workload.node.supervisor.set_keeps_names(true);
        reporting.abort();
        renewing.abort();
        match ended {
            Err(error) if error.kind() != ErrorKind::Usage => {
                tracing::warn!(%error, "the controller is away: going on without it");
                Ok(())
            }
            ended => ended,
        }
    }

    async fn obey_orders(&self, mut session: NodeSession) -> Result<()> {
        loop {
            let order = session.next_order().await?;
            let workload = Arc::clone(&self.workload);
            // It may wait for connections to others, and for a disk.
            let obeyed = tokio::task::spawn_blocking(move || obey_order(&workload, order)).await;
            if let Some(report) = obeyed.map_err(|error| Error::engine(error.to_string()))?? {
                send_report(&session.reports, report).await?;
            }
        }
    }

    /// Has the certificate renewed when half of its life is over.
    async fn renew_in_time(self: Arc<Self>, connection: ControllerConnection) {
        loop {
            let node = lock(&self.identity).clone();
            let left = node.renew_at().duration_since(SystemTime::now()).unwrap_or_default();
            tokio::time::sleep(left).await;
            let renewed = match connection.renew_certificate(&node).await {
                Ok(renewed) => self.take_certificate(renewed),
                Err(error) => Err(error),
            };
            if let Err(error) = renewed {
                tracing::warn!(%error, "the certificate is not renewed yet");
                tokio::time::sleep(RENEW_PAUSE).await;
            }
        }
    }

    fn take_certificate(&self, node: JoinedNode) -> Result<()> {
        self.workload.tls.renew(&node.certificate_pem, &node.key_pem, &node.authority_pem)?;
        self.workload.node.supervisor.announce_credentials();
        self.identity_file.save(&node)?;
        tracing::info!("the certificate is renewed");
        *lock(&self.identity) = node;
        Ok(())
    }
}

/// Does what a controller says, unless one has been heard of that began later; returns what is to
/// be said to it. An error of use says that the node does not belong to the cluster any more.
pub(super) fn obey_order(
    workload: &NodeWorkload,
    NodeOrder { epoch, order }: NodeOrder,
) -> Result<Option<node_report::Report>> {
    if !workload.admit_epoch(epoch) {
        return Err(Error::lost("a controller commands that is none any more"));
    }
    match order {
        Some(node_order::Order::Ping(ping)) => {
            return Ok(Some(node_report::Report::Pong(Pong { number: ping.number })));
        }
        Some(node_order::Order::Removed(removed)) => return Err(Error::usage(removed.reason)),
        Some(node_order::Order::RemovedNodes(removed)) => {
            workload.set_removed_nodes(removed.certificate_names);
        }
        Some(node_order::Order::Assignment(assignment)) => {
            workload.obey(NodeAssignment::from_wire(&assignment)?);
        }
        None => {}
    }
    Ok(None)
}

async fn send_report(
    reports: &mpsc::Sender<NodeReport>,
    report: node_report::Report,
) -> Result<()> {
    let sent = reports.send(NodeReport { report: Some(report) }).await;
    sent.map_err(|_| Error::lost("the stream to the controller has ended"))
}

/// Reports what a node is, and then how it is, until the stream ends.
async fn report_for(
    workload: Arc<NodeWorkload>,
    description: NodeDescription,
    reports: mpsc::Sender<NodeReport>,
) -> Result<()> {
    send_report(&reports, node_report::Report::Description(description)).await?;
    let mut idle = IdleCores::default();
    let (mut last_units, mut last_held) = (None, None);
    let (mut applied, mut drained) = (0, 0);
    let mut ticks = tokio::time::interval(STATE_INTERVAL);
    let mut link_ticks = tokio::time::interval(LINK_INTERVAL);
    let (mut last_links, mut last_profiles, mut last_traffic) = (Vec::new(), None, Vec::new());
    loop {
        let is_tick = tokio::select! {
            _ = ticks.tick() => true,
            _ = link_ticks.tick() => {
                let links = workload.prober.estimates();
                if have_changed(&last_links, &links) {
                    let document = write_document(&links)?;
                    let report = node_report::Report::Links(LinkReports { document });
                    send_report(&reports, report).await?;
                    last_links = links;
                }
                continue;
            }
            () = workload.report_due.notified() => false,
        };
        if is_tick {
            workload.recent_times.update(&workload.node.supervisor.instance_statuses());
            let traffic = workload.task_traffic();
            if traffic != last_traffic {
                let document = write_document(&traffic)?;
                let report = node_report::Report::Traffic(TaskTraffics { document });
                send_report(&reports, report).await?;
                last_traffic = traffic;
            }
        }
        let profiles = workload.candidates.profiles();
        if last_profiles.as_ref() != Some(&profiles) {
            let document = write_document(&profiles)?;
            let report = node_report::Report::Profiles(UnitProfiles { document });
            send_report(&reports, report).await?;
            last_profiles = Some(profiles);
        }
        let held = workload.candidates.held_blocks();
        if last_held.as_ref() != Some(&held) {
            let hashes = held.iter().map(|hash| Bytes::copy_from_slice(hash.as_bytes()));
            let report = node_report::Report::Held(HeldBlocks { hashes: hashes.collect() });
            send_report(&reports, report).await?;
            last_held = Some(held);
        }
        // First of all what was carried out: what is said of units after it is about those.
        let (now_applied, now_drained) = {
            let state = lock(&workload.state);
            (state.applied, state.drained)
        };
        let units = workload.unit_reports();
        if last_units.as_ref() != Some(&units) {
            let document = write_document(&units)?;
            let report = node_report::Report::Units(UnitReports { document });
            send_report(&reports, report).await?;
            last_units = Some(units);
        }
        if now_applied != applied {
            applied = now_applied;
            let report = AssignmentApplied { number: applied };
            send_report(&reports, node_report::Report::Applied(report)).await?;
        }
        if now_drained != drained {
            drained = now_drained;
            let report = AssignmentDrained { number: drained };
            send_report(&reports, node_report::Report::Drained(report)).await?;
        }
        if is_tick {
            let state = NodeState {
                available_memory: available_memory_bytes(),
                available_storage: workload.available_storage(),
                idle_cores: idle.idle_cores(),
            };
            send_report(&reports, node_report::Report::State(state)).await?;
        }
    }
}

/// Waits for the requests of earlier tables, one table after the other.
pub(super) async fn drain_tables(
    workload: std::sync::Weak<NodeWorkload>,
    mut tables: mpsc::UnboundedReceiver<DrainingTable>,
) {
    while let Some(DrainingTable { number, generation }) = tables.recv().await {
        let Some(workload) = workload.upgrade() else { return };
        if let (Some(generation), Some(dispatch)) = (generation, &workload.dispatch) {
            dispatch.dispatcher.wait_until_drained(generation).await;
        }
        lock(&workload.state).drained = number;
        workload.report_due.notify_one();
    }
}

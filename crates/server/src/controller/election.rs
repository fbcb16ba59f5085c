//! Several controllers with one state in etcd, of which one leads.
//!
//! Whoever leads has a lease and a key in etcd, and writes only for as long as the key is there;
//! the key's revision is the epoch of its orders, and nodes obey the highest that they have seen.
//! So one that was asleep writes nothing and commands nobody when it wakes up. The others say who
//! leads, and have no port for nodes, so that those find the one that has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{StatusCode, Uri, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tessera_control::{EtcdRows, IntentRows, RowChange, RowMap, RowSpace, RowStore};
use tessera_core::{Error, Result};
use tessera_etcd::{Candidate, EtcdClient, EtcdConfig, LeaderRecord, Leadership};
use tessera_gateway::health_router;
use tessera_http::json_response;
use tokio::sync::{Mutex, Notify};

use super::ControllerConfig;
use super::leader::{Leader, LeaderParts};
use super::router_switch::RouterSwitch;
use super::stored_models::StoredModels;
use crate::listeners::Listener;
use crate::shutdown::ShutdownSignal;

/// How long one leads that says nothing any more.
const LEASE: Duration = Duration::from_secs(4);
/// How long to wait before leading is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long to wait for one that can't lead, so that another does.
const INCAPABLE_PAUSE: Duration = Duration::from_secs(10);
/// How long the port for nodes may be somebody else's.
const BIND_TIME: Duration = Duration::from_secs(10);
const BIND_PAUSE: Duration = Duration::from_millis(200);
/// How long giving up may take: the lease runs out otherwise.
const RESIGN_TIME: Duration = Duration::from_secs(2);
/// How long it is believed who leads.
const LEADER_MEMORY: Duration = Duration::from_millis(500);

/// Where controllers keep their state together.
#[derive(Clone, Debug)]
pub struct EtcdState {
    /// How etcd is reached.
    pub config: EtcdConfig,
    /// Name or address under which people reach this controller; that which it listens at where
    /// there is none.
    pub advertise: Option<String>,
}

/// What a leader says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LeaderCard {
    name: String,
    /// Its control plane.
    control: String,
}

/// A controller among several.
pub(super) struct Contender {
    config: Arc<ControllerConfig>,
    etcd: EtcdConfig,
    prefix: String,
    card: LeaderCard,
    client: EtcdClient,
    switch: RouterSwitch,
    stored: Option<Arc<StoredModels>>,
}

impl Contender {
    /// One whose control plane is at `control`, and answers through `switch`.
    pub(super) fn new(
        config: Arc<ControllerConfig>,
        etcd: EtcdConfig,
        control: String,
        switch: RouterSwitch,
        stored: Option<Arc<StoredModels>>,
    ) -> Result<Self> {
        let prefix = format!("tessera/{}", config.cluster);
        let card = LeaderCard { name: config.name.to_string(), control };
        let client = EtcdClient::new(&etcd)?;
        Ok(Self { config, etcd, prefix, card, client, switch, stored })
    }

    fn leader_prefix(&self) -> String {
        format!("{}/leader", self.prefix)
    }

    /// Leads whenever nobody else does, until the shutdown.
    pub(super) async fn contend(self, mut shutdown: ShutdownSignal) {
        let mut last_error = String::new();
        loop {
            self.follow();
            let ended = tokio::select! {
                ended = self.lead_once(&mut last_error) => ended,
                () = shutdown.shutdown_requested() => return,
            };
            let Some((leadership, leader)) = ended else { continue };
            let lost = self.lead_until(&leadership, leader, &mut shutdown).await;
            self.follow();
            tokio::time::timeout(RESIGN_TIME, leadership.resign()).await.ok();
            if !lost {
                return;
            }
        }
    }

    /// Waits until it leads, and begins to; `None` where it can't, after a pause.
    async fn lead_once(&self, last_error: &mut String) -> Option<(Leadership, LeadingController)> {
        let mut note = |error: &Error, what: &'static str| {
            let message = error.to_string();
            if message != *last_error {
                tracing::warn!(%error, "{what}");
                *last_error = message;
            }
        };
        let card = serde_json::to_vec(&self.card).unwrap_or_default();
        let candidate = Candidate { ttl: LEASE, ..Candidate::new(self.leader_prefix(), card) };
        let leadership = match Leadership::campaign(&self.client, &candidate).await {
            Ok(leadership) => leadership,
            Err(error) => {
                note(&error, "nobody can lead: nodes go on with what they have");
                tokio::time::sleep(PAUSE).await;
                return None;
            }
        };
        match self.begin_leading(&leadership).await {
            Ok(leader) => {
                last_error.clear();
                Some((leadership, leader))
            }
            Err(error) => {
                note(&error, "this controller can't lead: another may");
                tokio::time::timeout(RESIGN_TIME, leadership.resign()).await.ok();
                tokio::time::sleep(INCAPABLE_PAUSE).await;
                None
            }
        }
    }

    async fn begin_leading(&self, leadership: &Leadership) -> Result<LeadingController> {
        let guard = leadership.guard();
        let listener = self.bind_port().await?;
        let (etcd, prefix, rows_guard) = (self.etcd.clone(), self.prefix.clone(), guard.clone());
        let opened =
            tokio::task::spawn_blocking(move || EtcdRows::new(&etcd, &prefix, &rows_guard)).await;
        let rows = opened.map_err(|error| Error::engine(error.to_string()))??;
        let failed = Arc::new(Notify::new());
        let rows: Arc<dyn RowStore> = Arc::new(WatchedRows { rows, failed: Arc::clone(&failed) });
        let parts = LeaderParts {
            config: Arc::clone(&self.config),
            intent: IntentRows::new(Arc::clone(&rows)),
            rows,
            epoch: Some(u64::try_from(guard.epoch()).unwrap_or_default()),
            stored: self.stored.clone(),
        };
        let leader = parts.lead(listener).await?;
        if let Some((task, reason)) = leader.restored.left_out.iter().next() {
            let error = Error::usage(format!("task \"{task}\" can't be served by it: {reason}"));
            leader.stop().await;
            return Err(error);
        }
        Ok(LeadingController { leader, failed })
    }

    async fn bind_port(&self) -> Result<Listener> {
        let end = Instant::now() + BIND_TIME;
        loop {
            let mut wrong = Vec::new();
            if let Some(listener) = self.config.listen.bind_or_note(&mut wrong).await {
                return Ok(listener);
            }
            if Instant::now() >= end {
                return Err(Error::usage(wrong.join("; ")));
            }
            tokio::time::sleep(BIND_PAUSE).await;
        }
    }

    /// Leads until that is over; returns whether it is because it does not any more.
    async fn lead_until(
        &self,
        leadership: &Leadership,
        leading: LeadingController,
        shutdown: &mut ShutdownSignal,
    ) -> bool {
        let LeadingController { leader, failed } = leading;
        tracing::info!(epoch = leadership.epoch(), "this controller leads");
        self.switch.set_router(leader.router.clone());
        let is_lost = tokio::select! {
            () = leadership.lost() => true,
            () = failed.notified() => true,
            () = shutdown.shutdown_requested() => false,
        };
        tracing::info!("this controller does not lead any more: nodes go on with what they have");
        // Before anything else, so that nobody hears of it any more.
        self.follow();
        leader.stop().await;
        is_lost
    }

    /// Says who leads.
    fn follow(&self) {
        let view = Arc::new(LeaderView {
            client: self.client.clone(),
            prefix: self.leader_prefix(),
            own: self.card.control.clone(),
            known: Mutex::default(),
        });
        let refuse = move |uri: Uri| {
            let view = Arc::clone(&view);
            async move { view.point_to_leader(&uri).await }
        };
        let health = health_router(Arc::new(|| true));
        self.switch.set_router(Router::new().fallback(refuse).merge(health));
    }
}

/// A controller that leads, and what is notified where it should not any more.
struct LeadingController {
    leader: Leader,
    failed: Arc<Notify>,
}

/// Who leads, or why nobody knows.
type FoundLeader = std::result::Result<Option<LeaderCard>, String>;

/// Who leads, as it was found out lately.
struct LeaderView {
    client: EtcdClient,
    prefix: String,
    own: String,
    known: Mutex<Option<(Instant, FoundLeader)>>,
}

impl LeaderView {
    async fn leader(&self) -> FoundLeader {
        let mut known = self.known.lock().await;
        if let Some((at, found)) = &*known
            && at.elapsed() < LEADER_MEMORY
        {
            return found.clone();
        }
        let found = self.client.current_leader(&self.prefix).await;
        let card = |record: LeaderRecord| serde_json::from_slice(&record.value).ok();
        let found = found.map(|found| found.and_then(card)).map_err(|error| error.to_string());

        *known = Some((Instant::now(), found.clone()));
        found
    }

    /// Answers that somebody else decides, and where that is.
    async fn point_to_leader(&self, uri: &Uri) -> Response {
        let say =
            |status: StatusCode, error: String| json_response(status, &json!({ "error": error }));
        match self.leader().await {
            Ok(Some(LeaderCard { name, control })) if control != self.own => {
                let path = uri.path_and_query().map_or("/", |path| path.as_str());
                let place = format!("{control}{path}");
                let error = format!("controller \"{name}\" leads: {place}");
                let mut answer = say(StatusCode::TEMPORARY_REDIRECT, error);
                if let Ok(place) = place.parse() {
                    answer.headers_mut().insert(header::LOCATION, place);
                }
                answer
            }
            Ok(_) => say(
                StatusCode::SERVICE_UNAVAILABLE,
                "no controller leads for the moment: nodes go on with what they have".to_owned(),
            ),
            Err(error) => say(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{error}; nothing can be changed, and nodes go on with what they have"),
            ),
        }
    }
}

/// Rows whose failures are noticed: whether one that failed was written is not known, so that the
/// next leader, which may be the same, reads all of them anew.
struct WatchedRows {
    rows: EtcdRows,
    failed: Arc<Notify>,
}

impl RowStore for WatchedRows {
    fn load_rows(&self, space: RowSpace) -> Result<Option<RowMap>> {
        self.rows.load_rows(space)
    }

    fn save_rows(&self, space: RowSpace, changes: &[RowChange]) -> Result<()> {
        let saved = self.rows.save_rows(space, changes);
        if let Err(error) = &saved {
            tracing::warn!(%error, "etcd has not taken a change");
            self.failed.notify_one();
        }
        saved
    }
}

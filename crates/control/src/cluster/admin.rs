//! Tokens and nodes as people see and change them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tessera_cluster::wire::{Removed, node_order};
use tessera_core::{Error, ErrorKind, Result};
use tessera_identity::{NodeName, TokenId};

use super::cluster_site::ClusterSite;
use super::node_table::{NodeStatus, removed_nodes_order};
use super::plan_status::ClusterPlanStatus;
use crate::members::{MemberRecord, MemberRegistry, TokenRecord, TokenState};
use crate::names::shorten_name;
use crate::run_apart::{run_blocking, run_to_completion};

/// Looks after the tokens and nodes of a cluster.
#[derive(Clone)]
pub struct ClusterAdmin {
    members: Arc<MemberRegistry>,
    site: ClusterSite,
}

/// How a token is.
#[derive(Clone, Debug, Serialize)]
pub struct TokenStatus {
    /// What it is listed under.
    pub id: String,
    /// What it is good for.
    pub state: TokenState,
    /// When it was made and until when it lets in, in seconds since 1970.
    pub created: u64,
    /// See `created`.
    pub expires: u64,
    /// The node that it let in.
    pub used_by: Option<String>,
    /// With its secret, where it was made just now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl ClusterAdmin {
    /// For the members of a cluster, and what runs at them.
    pub fn new(members: Arc<MemberRegistry>, site: ClusterSite) -> Self {
        Self { members, site }
    }

    /// The nodes of the cluster, those that were never attached among them.
    pub fn node_statuses(&self) -> Vec<NodeStatus> {
        let known = self.site.nodes().node_statuses();
        let status = |member: MemberRecord| {
            let known = known.iter().find(|status| status.name == member.name).cloned();
            let mut status = known.unwrap_or_else(|| NodeStatus::never_attached(&member.name));
            if member.drained && status.state == "attached" {
                "drained".clone_into(&mut status.state);
            }
            status
        };
        self.members.list_members().into_iter().map(status).collect()
    }

    /// One node.
    pub fn node_status(&self, name: &str) -> Result<NodeStatus> {
        let found = self.node_statuses().into_iter().find(|status| status.name == name);
        found.ok_or_else(|| self.unknown_node(name))
    }

    fn unknown_node(&self, name: &str) -> Error {
        let names: Vec<String> =
            self.members.list_members().into_iter().map(|member| member.name).take(20).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let name = shorten_name(name);
        Error::not_found(format!("there is no node \"{name}\", there is {names}"))
    }

    fn node_name(&self, name: &str) -> Result<NodeName> {
        name.parse().map_err(|_| self.unknown_node(name))
    }

    /// What the planner would do with tasks, and why.
    pub fn plan_status(&self) -> ClusterPlanStatus {
        self.site.plan_status()
    }

    /// Has a node get nothing to do, and what runs there run elsewhere; or something again.
    pub async fn set_drained(&self, name: &str, drained: bool) -> Result<NodeStatus> {
        let (members, node) = (Arc::clone(&self.members), self.node_name(name)?);
        run_blocking(move || members.set_drained(&node, drained)).await?;
        if drained {
            let (site, name) = (self.site.clone(), name.to_owned());
            run_to_completion(async move { site.leave_node(&name).await }).await?;
        }
        self.node_status(name)
    }

    /// Has a node not belong to the cluster any more: what runs there runs elsewhere before, and
    /// its connections end.
    pub async fn remove_node(&self, name: &str) -> Result<NodeStatus> {
        let is_away = self.node_status(name)?.state == "away";
        let before = match self.set_drained(name, true).await {
            // What ran at a node that is away does not run: it waits for another.
            Err(error) if is_away && error.kind() != ErrorKind::NotFound => {
                tracing::warn!(node = name, %error, "what ran at it runs nowhere");
                self.node_status(name)?
            }
            drained => drained?,
        };
        let (members, node) = (Arc::clone(&self.members), self.node_name(name)?);
        run_blocking(move || members.remove_member(&node)).await?;
        let nodes = self.site.nodes();
        let reason = "it was removed from the cluster".to_owned();
        // One that is away finds out when it comes back.
        nodes.send_order(name, node_order::Order::Removed(Removed { reason })).ok();
        nodes.forget(name);
        nodes.send_to_all(&removed_nodes_order(self.members.removed_certificate_names()));
        Ok(before)
    }

    /// The tokens, those that are good for nothing any more among them.
    pub fn token_statuses(&self) -> Vec<TokenStatus> {
        self.members.list_tokens().into_iter().map(token_status).collect()
    }

    /// Makes a token that lets one node in before so much time has passed.
    pub async fn create_token(&self, life: Duration) -> Result<TokenStatus> {
        let members = Arc::clone(&self.members);
        let made = run_blocking(move || members.create_token(life)).await?;
        let token = Some(made.token.to_string());
        Ok(TokenStatus { token, ..token_status(made.record) })
    }

    /// Has a token let nobody in any more.
    pub async fn revoke_token(&self, id: &str) -> Result<TokenStatus> {
        let unknown = || Error::not_found(format!("there is no token \"{}\"", shorten_name(id)));
        let parsed: TokenId = id.parse().map_err(|_| unknown())?;
        let members = Arc::clone(&self.members);
        run_blocking(move || members.revoke_token(parsed)).await?;
        let found = self.token_statuses().into_iter().find(|status| status.id == id);
        found.ok_or_else(unknown)
    }
}

fn token_status(record: TokenRecord) -> TokenStatus {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let state = record.state_at(now);
    let TokenRecord { id, created, expires, used_by, .. } = record;
    TokenStatus { id, state, created, expires, used_by, token: None }
}

//! Lets nodes in, and knows who they are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tessera_core::{Error, Result, lock};
use tessera_identity::{Authority, JoinSecret, JoinToken, NodeName, SignedCertificate, TokenId};

use super::member_record::MemberRecord;
use super::token_record::{TokenRecord, unknown_token};
use crate::store::{RowChange, RowMap, RowSpace, RowStore};

const AUTHORITY_KEY: &str = "authority";
const EPOCH_KEY: &str = "epoch";
const TOKEN_PREFIX: &str = "token:";
const MEMBER_PREFIX: &str = "node:";
/// How long tokens are listed that let nobody in any more.
const TOKEN_MEMORY: Duration = Duration::from_secs(7 * 86_400);

/// What a cluster is like.
#[derive(Clone, Debug)]
pub struct RegistryConfig {
    /// What it is called.
    pub cluster: String,
    /// How long a node's certificate is good; it renews it long before.
    pub certificate_life: Duration,
}

/// A token that was made, with its secret.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// For whoever is to join.
    pub token: JoinToken,
    /// What is kept.
    pub record: TokenRecord,
}

/// A node that was let in.
#[derive(Clone, Debug)]
pub struct AdmittedNode {
    /// As it is kept.
    pub record: MemberRecord,
    /// What it shows from now on.
    pub certificate: SignedCertificate,
}

/// Lets nodes in, and knows who they are.
pub struct MemberRegistry {
    config: RegistryConfig,
    rows: Arc<dyn RowStore>,
    authority: Authority,
    state: Mutex<RegistryState>,
}

#[derive(Clone, Debug, Default)]
struct RegistryState {
    tokens: BTreeMap<String, TokenRecord>,
    members: BTreeMap<String, MemberRecord>,
}

impl MemberRegistry {
    /// Reads what is kept; a cluster that there was not gets an authority.
    pub fn open(rows: Arc<dyn RowStore>, config: RegistryConfig) -> Result<Self> {
        let kept = rows.load_rows(RowSpace::Members)?.unwrap_or_default();
        let authority = open_authority(&kept, rows.as_ref(), &config.cluster)?;
        let state = RegistryState {
            tokens: read_records(&kept, TOKEN_PREFIX)?,
            members: read_records(&kept, MEMBER_PREFIX)?,
        };
        Ok(Self { config, rows, authority, state: Mutex::new(state) })
    }

    /// A number that is higher than all before: nodes obey whoever has the highest.
    pub fn begin_epoch(&self) -> Result<u64> {
        let kept = self.rows.load_rows(RowSpace::Members)?.unwrap_or_default();
        let before = kept.get(EPOCH_KEY).map(|row| decode::<u64>(row, EPOCH_KEY)).transpose()?;
        let epoch = before.unwrap_or(0) + 1;
        let row = RowChange::Put(EPOCH_KEY.to_owned(), encode(&epoch)?);
        self.rows.save_rows(RowSpace::Members, &[row])?;
        Ok(epoch)
    }

    /// Whom those of the cluster believe.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// What the cluster is called.
    pub fn cluster(&self) -> &str {
        &self.config.cluster
    }

    /// Makes a token that lets one node in before so much time has passed.
    pub fn create_token(&self, life: Duration) -> Result<NewToken> {
        let token = JoinToken::generate(self.authority.fingerprint())?;
        let created = unix_seconds(SystemTime::now());
        let record = TokenRecord {
            id: token.id.to_string(),
            secret_hash: token.secret.to_hash().to_text(),
            created,
            expires: created.saturating_add(life.as_secs()),
            used_by: None,
            revoked: false,
        };
        let mut state = lock(&self.state);
        // Those that have been good for nothing for long are not kept for ever.
        let is_old = |known: &&TokenRecord| {
            let ended = if known.used_by.is_some() || known.revoked {
                known.created
            } else {
                known.expires
            };
            ended.saturating_add(TOKEN_MEMORY.as_secs()) < created
        };
        let old: Vec<String> =
            state.tokens.values().filter(is_old).map(|known| known.id.clone()).collect();
        let removed = old.iter().map(|id| RowChange::Remove(format!("{TOKEN_PREFIX}{id}")));
        let mut rows: Vec<RowChange> = removed.collect();
        rows.push(put_row(TOKEN_PREFIX, &record.id, &record)?);
        self.rows.save_rows(RowSpace::Members, &rows)?;
        state.tokens.retain(|id, _| !old.contains(id));
        state.tokens.insert(record.id.clone(), record.clone());
        Ok(NewToken { token, record })
    }

    /// All tokens, those that are good for nothing any more among them.
    pub fn list_tokens(&self) -> Vec<TokenRecord> {
        lock(&self.state).tokens.values().cloned().collect()
    }

    /// Has a token let nobody in any more.
    pub fn revoke_token(&self, id: TokenId) -> Result<()> {
        let mut state = lock(&self.state);
        let known = state.tokens.get(&id.to_string());
        let known = known.ok_or_else(|| Error::not_found(format!("there is no token {id}")))?;
        let record = TokenRecord { revoked: true, ..known.clone() };
        self.rows.save_rows(RowSpace::Members, &[put_row(TOKEN_PREFIX, &record.id, &record)?])?;
        state.tokens.insert(record.id.clone(), record);
        Ok(())
    }

    /// Lets a node in.
    pub fn admit_node(
        &self,
        token_id: &str,
        secret: &JoinSecret,
        name: &NodeName,
        request_pem: &str,
    ) -> Result<AdmittedNode> {
        let now = unix_seconds(SystemTime::now());
        let mut state = lock(&self.state);
        let token = state.tokens.get(token_id).ok_or_else(unknown_token)?;
        token.check_admission(secret, now)?;
        let known = state.members.get(name.as_str()).filter(|member| !member.removed);
        if known.is_some_and(|member| member.certificate_expires > now) {
            return Err(Error::usage(format!(
                "there is a node \"{name}\" already, expected another name or `tessera node \
                 remove {name}` before"
            )));
        }
        let certificate = self.sign_request(name, request_pem)?;
        let token = TokenRecord { used_by: Some(name.to_string()), ..token.clone() };
        let record = MemberRecord {
            name: name.to_string(),
            joined: now,
            certificate_expires: unix_seconds(certificate.expires),
            // One whose certificate had expired is still the same.
            drained: known.is_some_and(|member| member.drained),
            removed: false,
        };
        self.rows.save_rows(
            RowSpace::Members,
            &[
                put_row(TOKEN_PREFIX, &token.id, &token)?,
                put_row(MEMBER_PREFIX, &record.name, &record)?,
            ],
        )?;
        state.tokens.insert(token.id.clone(), token);
        state.members.insert(record.name.clone(), record.clone());
        Ok(AdmittedNode { record, certificate })
    }

    /// Gives a node of the cluster a certificate for as long again.
    pub fn renew_certificate(
        &self,
        name: &NodeName,
        request_pem: &str,
    ) -> Result<SignedCertificate> {
        let mut state = lock(&self.state);
        let member = find_member(&state, name)?;
        let certificate = self.sign_request(name, request_pem)?;
        let certificate_expires = unix_seconds(certificate.expires);
        let record = MemberRecord { certificate_expires, ..member.clone() };
        self.save_member(&mut state, record)?;
        Ok(certificate)
    }

    /// Whether a node belongs to the cluster.
    pub fn is_member(&self, name: &NodeName) -> bool {
        find_member(&lock(&self.state), name).is_ok()
    }

    /// The nodes of the cluster.
    pub fn list_members(&self) -> Vec<MemberRecord> {
        lock(&self.state).members.values().filter(|member| !member.removed).cloned().collect()
    }

    /// Has nothing placed at a node any more, or again.
    pub fn set_drained(&self, name: &NodeName, drained: bool) -> Result<()> {
        let mut state = lock(&self.state);
        let record = MemberRecord { drained, ..find_member(&state, name)?.clone() };
        self.save_member(&mut state, record)
    }

    /// Has a node not belong to the cluster any more.
    pub fn remove_member(&self, name: &NodeName) -> Result<()> {
        let mut state = lock(&self.state);
        let record = MemberRecord { removed: true, ..find_member(&state, name)?.clone() };
        self.save_member(&mut state, record)
    }

    /// The names in certificates that are good, of nodes that do not belong to the cluster.
    pub fn removed_certificate_names(&self) -> Vec<String> {
        let now = unix_seconds(SystemTime::now());
        let state = lock(&self.state);
        let removed = state.members.values();
        let removed = removed.filter(|member| member.removed && member.certificate_expires > now);
        removed
            .filter_map(|member| member.name.parse::<NodeName>().ok())
            .map(|name| name.certificate_name())
            .collect()
    }

    fn save_member(&self, state: &mut RegistryState, record: MemberRecord) -> Result<()> {
        self.rows
            .save_rows(RowSpace::Members, &[put_row(MEMBER_PREFIX, &record.name, &record)?])?;
        state.members.insert(record.name.clone(), record);
        Ok(())
    }

    fn sign_request(&self, name: &NodeName, request_pem: &str) -> Result<SignedCertificate> {
        let names = [name.certificate_name()];
        self.authority.sign_request(request_pem, &names, self.config.certificate_life)
    }
}

fn find_member<'a>(state: &'a RegistryState, name: &NodeName) -> Result<&'a MemberRecord> {
    let member = state.members.get(name.as_str()).filter(|member| !member.removed);
    member.ok_or_else(|| {
        let names = state.members.values().filter(|member| !member.removed);
        let names: Vec<&str> = names.map(|member| member.name.as_str()).take(20).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Error::not_found(format!("there is no node \"{name}\", there is {names}"))
    })
}

/// The authority that is kept, in PEM with its key; a new one where there is none.
fn open_authority(kept: &RowMap, rows: &dyn RowStore, cluster: &str) -> Result<Authority> {
    if let Some(kept) = kept.get(AUTHORITY_KEY) {
        let (certificate, key): (String, String) = decode(kept, AUTHORITY_KEY)?;
        return Authority::from_pem(&certificate, &key);
    }
    let authority = Authority::generate(cluster)?;
    let pair = (authority.certificate_pem(), authority.key_pem());
    let row = RowChange::Put(AUTHORITY_KEY.to_owned(), encode(&pair)?);
    rows.save_rows(RowSpace::Members, &[row])?;
    Ok(authority)
}

fn read_records<T: DeserializeOwned>(kept: &RowMap, prefix: &str) -> Result<BTreeMap<String, T>> {
    let named = kept.iter().filter_map(|(key, value)| Some((key.strip_prefix(prefix)?, value)));
    named.map(|(name, value)| Ok((name.to_owned(), decode(value, name)?))).collect()
}

fn put_row(prefix: &str, name: &str, record: &impl Serialize) -> Result<RowChange> {
    Ok(RowChange::Put(format!("{prefix}{name}"), encode(record)?))
}

fn encode(record: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(record).map_err(|error| Error::invalid(error.to_string()))
}

fn decode<T: DeserializeOwned>(bytes: &[u8], key: &str) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::corrupt(format!("row \"{key}\" of the store: {error}")))
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use tessera_identity::CertificateRequest;

    use super::*;
    use crate::members::token_record::TokenState;
    use crate::store::MemoryRows;

    const HOUR: Duration = Duration::from_secs(3600);

    fn open(rows: &Arc<MemoryRows>) -> MemberRegistry {
        let config = RegistryConfig { cluster: "test".to_owned(), certificate_life: HOUR };
        MemberRegistry::open(Arc::<MemoryRows>::clone(rows), config).unwrap()
    }

    fn admit(registry: &MemberRegistry, token: &JoinToken, name: &str) -> Result<AdmittedNode> {
        let name: NodeName = name.parse().unwrap();
        let request = CertificateRequest::generate(&name).unwrap();
        let (id, secret) = (token.id.to_string(), &token.secret);
        registry.admit_node(&id, secret, &name, request.request_pem())
    }

    #[test]
    fn a_token_lets_one_node_in_and_others_are_refused_with_the_reason() {
        let rows = Arc::default();
        let registry = open(&rows);
        let token = registry.create_token(HOUR).unwrap().token;
        let refused = |token: &JoinToken, name: &str, reason: &str| {
            let error = admit(&registry, token, name).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        };
        // Of another cluster, and with another secret.
        let foreign = open(&Arc::default()).create_token(HOUR).unwrap().token;
        refused(&foreign, "edge", "none of this cluster's");
        let secret = foreign.secret;
        refused(&JoinToken { secret, ..token }, "edge", "none of this cluster's");
        let expired = registry.create_token(Duration::ZERO).unwrap().token;
        refused(&expired, "edge", "it has expired");
        let revoked = registry.create_token(HOUR).unwrap().token;
        registry.revoke_token(revoked.id).unwrap();
        refused(&revoked, "edge", "it was revoked");
        admit(&registry, &token, "edge").unwrap();
        refused(&token, "edge", "it was used already");
        let other = registry.create_token(HOUR).unwrap().token;
        refused(&other, "edge", "there is a node \"edge\" already");
        // What is kept is the same after the next start, and has no secret in it.
        let again = open(&rows);
        assert_eq!(again.authority().fingerprint(), registry.authority().fingerprint());
        assert_eq!(again.list_members(), registry.list_members());
        assert_eq!(again.list_tokens(), registry.list_tokens());
        let now = unix_seconds(SystemTime::now());
        let states: Vec<TokenState> =
            again.list_tokens().iter().map(|token| token.state_at(now)).collect();
        for state in [TokenState::Used, TokenState::Expired, TokenState::Revoked, TokenState::Valid]
        {
            assert_eq!(states.iter().filter(|found| **found == state).count(), 1, "{states:?}");
        }
        let kept = rows.load_rows(RowSpace::Members).unwrap().unwrap();
        let kept: String = kept.values().flat_map(|row| String::from_utf8(row.clone())).collect();
        assert!(kept.contains(&token.id.to_string()) && !kept.contains(&token.secret.to_text()));
    }

    #[test]
    fn a_node_whose_certificate_has_expired_joins_again_under_its_name() {
        let rows = Arc::<MemoryRows>::default();
        let config =
            RegistryConfig { cluster: "test".to_owned(), certificate_life: Duration::ZERO };
        let brief = MemberRegistry::open(Arc::<MemoryRows>::clone(&rows), config).unwrap();
        admit(&brief, &brief.create_token(HOUR).unwrap().token, "edge").unwrap();
        brief.set_drained(&"edge".parse().unwrap(), true).unwrap();
        let registry = open(&rows);
        admit(&registry, &registry.create_token(HOUR).unwrap().token, "edge").unwrap();
        assert!(registry.list_members()[0].drained);
        let second = registry.create_token(HOUR).unwrap().token;
        assert!(admit(&registry, &second, "edge").is_err());
    }

    #[test]
    fn a_node_that_is_removed_is_not_renewed_and_may_join_again() {
        let registry = open(&Arc::default());
        let edge: NodeName = "edge".parse().unwrap();
        let request = CertificateRequest::generate(&edge).unwrap();
        let renew = || registry.renew_certificate(&edge, request.request_pem());
        assert!(renew().unwrap_err().to_string().contains("there is no node \"edge\""));
        admit(&registry, &registry.create_token(HOUR).unwrap().token, "edge").unwrap();
        renew().unwrap();
        registry.set_drained(&edge, true).unwrap();
        assert!(registry.list_members()[0].drained);
        registry.remove_member(&edge).unwrap();
        assert!(renew().is_err() && registry.remove_member(&edge).is_err());
        assert!(registry.list_members().is_empty());
        assert_eq!(registry.removed_certificate_names(), [edge.certificate_name()]);
        admit(&registry, &registry.create_token(HOUR).unwrap().token, "edge").unwrap();
        assert!(registry.removed_certificate_names().is_empty());
        assert!(!registry.list_members()[0].drained);
    }
}

//! Reads and writes at the API server that a pass needs: ConfigMap, Secrets, conditions, records.
//!
//! Every write is a server-side apply of exactly what is ours, made only when something differs. Object contents are
//! checked for their owner here.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use shared::acl::{self, refusal};
use shared::api::ValkeyCluster;
use shared::api::conditions::{self, ConditionType};
use shared::names;
use shared::secret::Redacted;
use shared::tls::{AuthorityRecord, Material};
use shared::valkey::Credentials;

use crate::authorities::auth_secret_of;
use crate::plan::{Published, Record, Unpublished, Verdict};
use crate::seen::{ClusterKey, ClusterSeen, ObjectKey};

#[cfg(test)]
mod tests;

/// Room that a ConfigMap has for its data, bytes (its limit of 1 MiB less keys and metadata).
const CONFIG_MAP_ROOM: usize = (1 << 20) - 8192;

/// Times that a condition is written before it is left to the next pass.
const WRITES: usize = 4;

/// Why a Secret gives nothing.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The API server did not answer.
    #[error("cannot read Secret {name:?}")]
    Read {
        /// Which one.
        name: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// It does not exist.
    #[error("Secret {name:?} not found")]
    Missing {
        /// Which one.
        name: String,
    },
    /// It belongs to something else.
    #[error("Secret {name:?} is not owned by this cluster")]
    Foreign {
        /// Which one.
        name: String,
    },
    /// It lacks a key, or the key is no text.
    #[error("Secret {name:?} has no usable key {key:?}")]
    Key {
        /// Which one.
        name: String,
        /// Which key.
        key: &'static str,
    },
}

/// The ACL ConfigMap's content.
#[derive(Debug, Clone)]
pub struct AclMap {
    /// Version of the object that was read.
    pub version: String,
    /// What a decision needs, or why there is nothing.
    pub published: Result<Published, Unpublished>,
    /// The published text.
    pub text: String,
    /// The text recorded as accepted.
    pub accepted: Option<String>,
    /// UID of the object.
    pub uid: String,
}

/// Reads the ACL ConfigMap; `None` when it does not exist.
pub async fn acl_map(client: &Client, cluster: &ClusterSeen) -> kube::Result<Option<AclMap>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &cluster.key.0.namespace);
    let Some(map) = api.get_opt(&names::acl_config_map(&cluster.key.0.name)).await? else { return Ok(None) };
    Ok(Some(acl_map_of(&map, &cluster.uid)))
}

fn acl_map_of(map: &ConfigMap, cluster_uid: &str) -> AclMap {
    let value = |key| map.data.as_ref().and_then(|data| data.get(key)).cloned();
    let text = value(names::KEY_USERS_ACL).unwrap_or_default();
    let accepted = value(names::KEY_USERS_ACL_ACCEPTED);
    let refused = map.annotations().get(names::ANNOTATION_ACL_REFUSED);
    let published = if owned_by(map, cluster_uid) {
        let published = |revision| Published {
            revision,
            accepted: accepted.as_ref() == Some(&text),
            refused: refused.and_then(|record| refusal::revision(record)).map(ToOwned::to_owned),
            fits_twice: text.len() * 2 <= CONFIG_MAP_ROOM,
        };
        acl::revision(&text).map(published).ok_or(Unpublished::Malformed)
    } else {
        Err(Unpublished::Foreign)
    };
    AclMap {
        version: map.resource_version().unwrap_or_default(),
        uid: map.uid().unwrap_or_default(),
        published,
        text,
        accepted,
    }
}

fn owned_by<K: Resource>(object: &K, uid: &str) -> bool {
    let owners = object.meta().owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true)).any(|owner| owner.uid == uid)
}

/// Writes what a pass learned onto the ACL ConfigMap. One apply carries all that is ours: what it leaves out goes.
pub async fn write_record(
    client: &Client,
    cluster: &ClusterKey,
    map: &AclMap,
    record: &Record,
) -> kube::Result<()> {
    let name = names::acl_config_map(&cluster.0.name);
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &cluster.0.namespace);
    let (accepted, annotations) = match record {
        Record::Accepted => (Some(&map.text), BTreeMap::new()),
        Record::Refused { words } => {
            let revision =
                map.published.as_ref().map(|published| published.revision.as_str()).unwrap_or_default();
            let note = (names::ANNOTATION_ACL_REFUSED, refusal::record(revision, words));
            (map.accepted.as_ref(), BTreeMap::from([note]))
        }
    };
    let data: BTreeMap<&str, &String> =
        accepted.map(|text| (names::KEY_USERS_ACL_ACCEPTED, text)).into_iter().collect();
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "uid": map.uid, "annotations": annotations },
        "data": data,
    });
    let params = PatchParams::apply(names::MANAGER_LOOPS).force();
    api.patch_metadata(&name, &params, &Patch::Apply(body)).await.map(|_| ())
}

/// Login of the operator's user, read afresh: a copy that is kept could outlive a rotation.
pub async fn operator_credentials(
    client: &Client,
    cluster: &ClusterSeen,
) -> Result<Credentials, SecretError> {
    let (key, secret) = auth_secret(client, cluster).await?;
    let password = text(&secret, &key, names::KEY_OPERATOR_PASSWORD)?;
    Ok(Credentials { user: names::USER_OPERATOR.to_owned(), password: Redacted::new(password) })
}

/// The auth Secret of a cluster; one that is not the cluster's is an error.
async fn auth_secret(client: &Client, cluster: &ClusterSeen) -> Result<(ObjectKey, Secret), SecretError> {
    let key = auth_secret_of(cluster);
    let missing = || SecretError::Missing { name: key.name.clone() };
    let secret = secret(client, &key).await?.ok_or_else(missing)?;
    if !owned_by(&secret, &cluster.uid) {
        return Err(SecretError::Foreign { name: key.name });
    }
    Ok((key, secret))
}

/// What the auth Secret records of authorities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// UID of the Secret.
    pub uid: String,
    /// The record, if there is one.
    pub record: Option<AuthorityRecord>,
}

/// Reads what the auth Secret records of authorities.
pub async fn recorded(client: &Client, cluster: &ClusterSeen) -> Result<Recorded, SecretError> {
    let (_, secret) = auth_secret(client, cluster).await?;
    Ok(Recorded { uid: secret.uid().unwrap_or_default(), record: AuthorityRecord::of(&secret) })
}

/// Records authorities in the auth Secret of this UID, and touches nothing else in it.
pub async fn write_authorities(
    client: &Client,
    cluster: &ClusterSeen,
    uid: &str,
    record: &AuthorityRecord,
) -> kube::Result<()> {
    let key = auth_secret_of(cluster);
    let api: Api<Secret> = Api::namespaced(client.clone(), &key.namespace);
    let data: BTreeMap<&str, ByteString> = record.data().into_iter().collect();
    let body = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": key.name, "uid": uid },
        "data": data,
    });
    let params = PatchParams::apply(names::MANAGER_LOOPS_TLS).force();
    api.patch_metadata(&key.name, &params, &Patch::Apply(body)).await.map(|_| ())
}

/// Reads a TLS Secret; one that does not exist is a finding, not an error.
pub async fn tls_material(client: &Client, key: &ObjectKey) -> Result<Material, SecretError> {
    Ok(Material::read(secret(client, key).await?.as_ref()))
}

async fn secret(client: &Client, key: &ObjectKey) -> Result<Option<Secret>, SecretError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &key.namespace);
    let read = |source| SecretError::Read { name: key.name.clone(), source: Box::new(source) };
    api.get_opt(&key.name).await.map_err(read)
}

fn text(secret: &Secret, object: &ObjectKey, key: &'static str) -> Result<String, SecretError> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    let text = bytes.and_then(|ByteString(bytes)| String::from_utf8(bytes.clone()).ok());
    text.filter(|text| !text.is_empty()).ok_or_else(|| SecretError::Key { name: object.name.clone(), key })
}

/// Writes a condition of ours if it differs; tells whether it did.
///
/// Each loop has a field manager of its own: an apply removes what the same manager applied before and left out. The
/// resourceVersion keeps the write off a namesake that came after the cluster: a UID is ignored in an apply of a custom
/// resource's status (measured on 1.36.3). Others write the status often, so after a conflict the cluster is read
/// live and judged once more.
pub async fn write_condition(
    client: &Client,
    cluster: &ClusterSeen,
    kind: ConditionType,
    verdict: &Verdict,
    manager: &str,
) -> kube::Result<bool> {
    let api: Api<ValkeyCluster> = Api::namespaced(client.clone(), &cluster.key.0.namespace);
    let mut at = (cluster.version.clone(), cluster.conditions.clone());
    for _ in 1..WRITES {
        match apply_condition(&api, cluster, (at.0.as_deref(), &at.1), kind, verdict, manager).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            done => return done,
        }
        let Some(live) = api.get_opt(&cluster.key.0.name).await? else { return Ok(false) };
        if live.uid().as_deref() != Some(&cluster.uid) {
            return Ok(false);
        }
        at = (live.resource_version(), live.status.map(|status| status.conditions).unwrap_or_default());
    }
    apply_condition(&api, cluster, (at.0.as_deref(), &at.1), kind, verdict, manager).await
}

async fn apply_condition(
    api: &Api<ValkeyCluster>,
    cluster: &ClusterSeen,
    (version, conditions): (Option<&str>, &[Condition]),
    kind: ConditionType,
    verdict: &Verdict,
    manager: &str,
) -> kube::Result<bool> {
    let now = Time(Timestamp::now());
    let Verdict { status, reason, message } = verdict;
    let next = conditions::next(conditions, kind, *status, reason, message, cluster.generation, &now);
    if conditions::find(conditions, kind) == Some(&next) {
        return Ok(false);
    }
    let name = &cluster.key.0.name;
    let body = json!({
        "apiVersion": ValkeyCluster::api_version(&()),
        "kind": ValkeyCluster::kind(&()),
        "metadata": { "name": name, "uid": cluster.uid, "resourceVersion": version },
        "status": { "conditions": [next] },
    });
    api.patch_status(name, &PatchParams::apply(manager).force(), &Patch::Apply(body)).await?;
    Ok(true)
}

/// The cluster as events name it.
pub fn reference(cluster: &ClusterSeen) -> ObjectReference {
    ObjectReference {
        api_version: Some(ValkeyCluster::api_version(&()).into_owned()),
        kind: Some(ValkeyCluster::kind(&()).into_owned()),
        name: Some(cluster.key.0.name.clone()),
        namespace: Some(cluster.key.0.namespace.clone()),
        uid: Some(cluster.uid.clone()),
        ..ObjectReference::default()
    }
}

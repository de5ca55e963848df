//! Reads and writes at the API server that a pass needs: ConfigMap, Secrets, conditions, records.
//!
//! Every write is a server-side apply of exactly what is ours, made only when something differs. Object contents are
//! checked for their owner here.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use shared::acl::{self, refusal};
use shared::api::ValkeyCluster;
use shared::api::conditions::{self, ConditionType};
use shared::names;
use shared::secret::Redacted;
use shared::valkey::Credentials;

use crate::plan::{Published, Record, Unpublished, Verdict};
use crate::seen::{ClusterKey, ClusterSeen, ObjectKey};

#[cfg(test)]
mod tests;

/// Room that a ConfigMap has for its data, bytes (its limit of 1 MiB less keys and metadata).
const CONFIG_MAP_ROOM: usize = (1 << 20) - 8192;

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
    let key = ObjectKey {
        namespace: cluster.key.0.namespace.clone(),
        name: names::auth_secret(&cluster.key.0.name),
    };
    let secret = secret(client, &key).await?;
    if !owned_by(&secret, &cluster.uid) {
        return Err(SecretError::Foreign { name: key.name });
    }
    let password = text(&secret, &key, names::KEY_OPERATOR_PASSWORD)?;
    Ok(Credentials { user: names::USER_OPERATOR.to_owned(), password: Redacted::new(password) })
}

/// The public part of a TLS Secret.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// Authorities, PEM.
    pub ca: String,
    /// Certificate chain, PEM.
    pub certificate: String,
}

/// Reads the public part of a TLS Secret.
pub async fn tls_files(client: &Client, key: &ObjectKey) -> Result<TlsFiles, SecretError> {
    let secret = secret(client, key).await?;
    Ok(TlsFiles { ca: text(&secret, key, "ca.crt")?, certificate: text(&secret, key, "tls.crt")? })
}

async fn secret(client: &Client, key: &ObjectKey) -> Result<Secret, SecretError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &key.namespace);
    let name = || key.name.clone();
    let read = |source| SecretError::Read { name: name(), source: Box::new(source) };
    api.get_opt(&key.name).await.map_err(read)?.ok_or_else(|| SecretError::Missing { name: name() })
}

fn text(secret: &Secret, object: &ObjectKey, key: &'static str) -> Result<String, SecretError> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    let text = bytes.and_then(|ByteString(bytes)| String::from_utf8(bytes.clone()).ok());
    text.filter(|text| !text.is_empty()).ok_or_else(|| SecretError::Key { name: object.name.clone(), key })
}

/// Writes a condition of ours if it differs; tells whether it did.
///
/// Each loop has a field manager of its own: an apply removes what the same manager applied before and left out.
pub async fn write_condition(
    client: &Client,
    cluster: &ClusterSeen,
    kind: ConditionType,
    verdict: &Verdict,
    manager: &str,
) -> kube::Result<bool> {
    let now = Time(Timestamp::now());
    let Verdict { status, reason, message } = verdict;
    let next =
        conditions::next(&cluster.conditions, kind, *status, reason, message, cluster.generation, &now);
    if conditions::find(&cluster.conditions, kind) == Some(&next) {
        return Ok(false);
    }
    let api: Api<ValkeyCluster> = Api::namespaced(client.clone(), &cluster.key.0.namespace);
    let name = &cluster.key.0.name;
    let body = json!({
        "apiVersion": ValkeyCluster::api_version(&()),
        "kind": ValkeyCluster::kind(&()),
        // The UID makes it a condition of this cluster, not of a namesake that came after it.
        "metadata": { "name": name, "uid": cluster.uid },
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

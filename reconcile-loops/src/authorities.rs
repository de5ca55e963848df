//! The TLS Secrets of the clusters, and who may vouch for their nodes.
//!
//! Owns the rule that nodes are verified by all authorities that they may have read: those in the Secret, and those of the
//! record that not all nodes are proved to have left behind. While a Secret is invalid, or its parts do not fit each
//! other, running nodes keep what they have. Each loop has a store of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use shared::names;
use shared::tls::{AuthorityRecord, Material};
use shared::versioned::Versioned;

use crate::api::{self, Recorded, SecretError};
use crate::caches::Caches;
use crate::seen::{ClusterKey, ClusterSeen, ObjectKey};

/// What was read of TLS Secrets.
#[derive(Debug, Default)]
pub struct TlsSecrets {
    materials: Versioned<ObjectKey, Material>,
    records: Versioned<ObjectKey, Recorded>,
    /// The last usable ca.crt by cluster, with the cluster's UID.
    usable: Mutex<BTreeMap<ClusterKey, (String, Arc<str>)>>,
}

/// The TLS Secret of a cluster, if it has one.
pub fn key_of(cluster: &ClusterSeen) -> Option<ObjectKey> {
    let name = cluster.tls_secret.clone()?;
    Some(ObjectKey { namespace: cluster.key.0.namespace.clone(), name })
}

/// The auth Secret of a cluster.
pub fn auth_secret_of(cluster: &ClusterSeen) -> ObjectKey {
    ObjectKey { namespace: cluster.key.0.namespace.clone(), name: names::auth_secret(&cluster.key.0.name) }
}

impl TlsSecrets {
    /// What the Secret of a TLS cluster holds, read when it has changed.
    pub async fn read(
        &self,
        client: &Client,
        caches: &Caches,
        key: &ObjectKey,
    ) -> Result<Arc<Material>, SecretError> {
        self.materials.get(key, caches.secret_version(key), api::tls_material(client, key)).await
    }

    /// What the auth Secret of a TLS cluster records of authorities, read when it has changed.
    pub async fn recorded(
        &self,
        client: &Client,
        caches: &Caches,
        cluster: &ClusterSeen,
    ) -> Result<Arc<Recorded>, SecretError> {
        let key = auth_secret_of(cluster);
        self.records.get(&key, caches.secret_version(&key), api::recorded(client, cluster)).await
    }

    /// Who may vouch for the nodes of a cluster whose Secret holds `material`; `None` when that is not known.
    pub fn authorities(
        &self,
        cluster: &ClusterSeen,
        secret: &ObjectKey,
        material: &Material,
        record: Option<&AuthorityRecord>,
    ) -> Option<Arc<str>> {
        let mut known = self.usable.lock().unwrap_or_else(PoisonError::into_inner);
        let of = &cluster.key.0;
        let usable = material.usable_authorities(&secret.name, &of.name, &of.namespace);
        if let Some(usable) = &usable {
            known.insert(cluster.key.clone(), (cluster.uid.clone(), Arc::clone(usable)));
        }
        AuthorityRecord::trusted(record, usable.as_ref()).or_else(|| {
            let last = known.get(&cluster.key).filter(|(uid, _)| *uid == cluster.uid);
            last.map(|(_, pem)| Arc::clone(pem)).or_else(|| material.authorities())
        })
    }

    /// Drops what belongs to none of these clusters.
    pub fn retain(&self, clusters: &[ClusterSeen]) {
        self.materials.retain(|key| clusters.iter().any(|cluster| key_of(cluster).as_ref() == Some(key)));
        self.records.retain(|key| clusters.iter().any(|cluster| auth_secret_of(cluster) == *key));
        let mut known = self.usable.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|key, _| clusters.iter().any(|cluster| cluster.key == *key));
    }
}

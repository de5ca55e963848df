//! The TLS Secrets of the clusters, and who may vouch for their nodes.
//!
//! Owns the rule that nodes are verified by the last authorities that nodes could use: while a Secret is invalid, or its
//! parts do not fit each other, running nodes keep what they have. Each loop has a store of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use shared::tls::Material;
use shared::versioned::Versioned;

use crate::api::{self, SecretError};
use crate::caches::Caches;
use crate::seen::{ClusterKey, ClusterSeen, ObjectKey};

/// What was read of TLS Secrets.
#[derive(Debug, Default)]
pub struct TlsSecrets {
    materials: Versioned<ObjectKey, Material>,
    /// The last usable ca.crt by cluster, with the cluster's UID.
    usable: Mutex<BTreeMap<ClusterKey, (String, Arc<str>)>>,
}

/// The TLS Secret of a cluster, if it has one.
pub fn key_of(cluster: &ClusterSeen) -> Option<ObjectKey> {
    let name = cluster.tls_secret.clone()?;
    Some(ObjectKey { namespace: cluster.key.0.namespace.clone(), name })
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

    /// Who may vouch for the nodes of a cluster whose Secret holds `material`; `None` when that is not known.
    pub fn authorities(
        &self,
        cluster: &ClusterSeen,
        secret: &ObjectKey,
        material: &Material,
    ) -> Option<Arc<str>> {
        let mut known = self.usable.lock().unwrap_or_else(PoisonError::into_inner);
        let of = &cluster.key.0;
        let Some(usable) = material.usable_authorities(&secret.name, &of.name, &of.namespace) else {
            let last = known.get(&cluster.key).filter(|(uid, _)| *uid == cluster.uid);
            return last.map(|(_, pem)| Arc::clone(pem)).or_else(|| material.authorities());
        };
        known.insert(cluster.key.clone(), (cluster.uid.clone(), Arc::clone(&usable)));
        Some(usable)
    }

    /// Drops what belongs to none of these clusters.
    pub fn retain(&self, clusters: &[ClusterSeen]) {
        self.materials.retain(|key| clusters.iter().any(|cluster| key_of(cluster).as_ref() == Some(key)));
        let mut known = self.usable.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|key, _| clusters.iter().any(|cluster| cluster.key == *key));
    }
}

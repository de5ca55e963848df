//! The TLS loop: every running node of a TLS cluster serves the certificate that is in the Secret.
//!
//! The Secret is validated by cluster-ctl; here only what a handshake shows is compared, so that a renewal counts as
//! done when it is served and not when it was asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;
use kube::Client;
use shared::api::conditions::ConditionType;
use shared::names;
use shared::run::App;
use shared::telemetry;
use shared::valkey::{Credentials, Limits, certificate};
use tracing::{info, warn};

use crate::acl::{ReloadLabels, Reloads, count, not_read, word};
use crate::api::{self, SecretError, TlsFiles};
use crate::caches::Caches;
use crate::nodes::{Nodes, endpoint};
use crate::plan::{self, NodeResult};
use crate::secrets::Versioned;
use crate::seen::{ClusterKey, ClusterSeen, ObjectKey};
use crate::tick::{Count, Reload};

/// Field manager of the TLS loop, beside that of the ACL loop: an apply drops what the same manager applied before.
const MANAGER: &str = "valkey-operator/reconcile-loops-tls";

/// Where the three TLS files are mounted in a pod, and the settings that name them.
const SETTINGS: [(&str, &str); 3] = [
    ("tls-cert-file", "/etc/valkey/tls/tls.crt"),
    ("tls-key-file", "/etc/valkey/tls/tls.key"),
    ("tls-ca-cert-file", "/etc/valkey/tls/ca.crt"),
];

/// The TLS loop's means.
pub struct TlsLoop {
    client: Client,
    caches: Arc<Caches>,
    nodes: Nodes,
    reloads: Reloads,
    files: Versioned<TlsFiles>,
    credentials: Versioned<Credentials>,
}

impl TlsLoop {
    /// A loop with the process' settings.
    pub fn new(app: &App, caches: Arc<Caches>) -> Self {
        let limits =
            Limits { connect: app.settings.valkey_connect_timeout, response: app.settings.valkey_timeout };
        let reloads = Reloads::default();
        app.metrics.register("tls_reloads", "Passes over a node by the TLS loop, by result", reloads.clone());
        Self {
            client: app.client.clone(),
            caches,
            nodes: Nodes::new(limits, app.settings.node_fan_out, app.metrics.valkey.clone()),
            reloads,
            files: Versioned::default(),
            credentials: Versioned::default(),
        }
    }

    /// Each running node's result, and the fingerprint of the Secret's certificate.
    async fn results(
        &self,
        cluster: &ClusterSeen,
        secret: &ObjectKey,
    ) -> Result<(String, BTreeMap<String, NodeResult>), Nothing> {
        let read = api::tls_files(&self.client, secret);
        let files = self.files.get(secret, self.caches.secret_version(secret), read).await;
        let files = files.map_err(|error| Nothing::of("SecretInvalid", error))?;
        let leaf = certificate::leaf(&files.certificate)
            .map_err(|error| Nothing::Known { reason: "SecretInvalid", message: error.to_string() })?;
        let auth = ObjectKey { name: names::auth_secret(&cluster.key.0.name), ..secret.clone() };
        let read = api::operator_credentials(&self.client, cluster);
        let credentials = self.credentials.get(&auth, self.caches.secret_version(&auth), read).await;
        let credentials = credentials.map_err(|error| Nothing::of("NoCredentials", error))?;
        let asked = cluster.nodes.iter().map(|node| {
            let endpoint = endpoint(&cluster.key, node, Some(&files.ca));
            let (leaf, credentials) = (&leaf, &credentials);
            async move { (node.name.clone(), self.nodes.tls(&endpoint, leaf, &SETTINGS, credentials).await) }
        });
        Ok((certificate::fingerprint(&leaf), join_all(asked).await.into_iter().collect()))
    }
}

/// The Secrets that a pass over a cluster reads.
fn secrets_of(cluster: &ClusterSeen) -> [ObjectKey; 2] {
    let key = |name| ObjectKey { namespace: cluster.key.0.namespace.clone(), name };
    [key(cluster.tls_secret.clone().unwrap_or_default()), key(names::auth_secret(&cluster.key.0.name))]
}

/// Why no node was asked.
enum Nothing {
    /// The API server did not say.
    NotRead(SecretError),
    /// Something is wrong with a Secret.
    Known { reason: &'static str, message: String },
}

impl Nothing {
    fn of(reason: &'static str, error: SecretError) -> Self {
        match error {
            error @ SecretError::Read { .. } => Self::NotRead(error),
            error => Self::Known { reason, message: error.to_string() },
        }
    }
}

impl Reload for TlsLoop {
    const NAME: &'static str = "tls";

    fn clusters(&self, only: Option<&ClusterKey>) -> Vec<ClusterSeen> {
        let mut clusters = self.caches.seen(only);
        clusters.retain(|cluster| cluster.tls_secret.is_some());
        if only.is_none() {
            let used: BTreeSet<ObjectKey> = clusters.iter().flat_map(secrets_of).collect();
            self.files.retain(|key| used.contains(key));
            self.credentials.retain(|key| used.contains(key));
        }
        clusters
    }

    async fn pass(&self, cluster: &ClusterSeen, early: bool) -> Count {
        let (cluster_name, namespace) = (&cluster.key.0.name, &cluster.key.0.namespace);
        let Some(name) = &cluster.tls_secret else { return Count { settled: true, ..Count::default() } };
        let secret = ObjectKey { namespace: namespace.clone(), name: name.clone() };
        let seen = self.results(cluster, &secret).await;
        let nothing = BTreeMap::new();
        let (fingerprint, results) = match &seen {
            Ok((fingerprint, results)) => (Ok(fingerprint.as_str()), results),
            Err(Nothing::Known { reason, message }) => (Err((*reason, message.as_str())), &nothing),
            Err(Nothing::NotRead(error)) => return not_read(cluster, error),
        };
        for (node, result) in results {
            self.reloads.get_or_create(&ReloadLabels { result: word(result) }).inc();
            match result {
                NodeResult::Refused(error) | NodeResult::Failed { error, .. } if !early => {
                    warn!(cluster_name, namespace, node, error, "TLS reload failed, will retry next tick");
                }
                NodeResult::Current { reloaded: true } => {
                    info!(cluster_name, namespace, node, "node serves a renewed certificate");
                }
                _ => {}
            }
        }
        let (verdict, settled) = plan::tls(fingerprint, results);
        let written =
            api::write_condition(&self.client, cluster, ConditionType::TlsReady, &verdict, MANAGER).await;
        if let Err(error) = written {
            let error = telemetry::chain(&error);
            warn!(cluster_name, namespace, error, "condition not written, will retry next tick");
        }
        count(results, settled)
    }

    async fn changed(&self) -> BTreeSet<ClusterKey> {
        loop {
            let secrets = self.caches.secret_changes.take().await;
            let clusters = self.clusters(None).into_iter().filter(|cluster| {
                let namespace = cluster.key.0.namespace.clone();
                let name = cluster.tls_secret.clone().unwrap_or_default();
                secrets.contains(&ObjectKey { namespace, name })
            });
            let keys: BTreeSet<ClusterKey> = clusters.map(|cluster| cluster.key).collect();
            if !keys.is_empty() {
                return keys;
            }
        }
    }

    fn summary(&self, clusters: usize, total: Count) {
        let Count { nodes, current, reloaded, failed, settled: _ } = total;
        info!(clusters, nodes, current, reloaded, failed, "TLS reconcile tick");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_name_files_in_the_mounted_directory() {
        for (setting, path) in SETTINGS {
            assert!(
                path.strip_prefix(shared::conf::TLS_DIR).is_some_and(|file| file.starts_with('/')),
                "{setting}"
            );
        }
    }
}

//! The TLS loop: every running node of a TLS cluster serves the certificate that is in the Secret.
//!
//! The Secret is validated by cluster-ctl; here only what a handshake shows is compared, so that a renewal counts as
//! done when it is served and not when it was asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::join_all;
use kube::Client;
use shared::api::conditions::ConditionType;
use shared::names;
use shared::run::App;
use shared::telemetry;
use shared::tls::Doubt;
use shared::valkey::{Credentials, Limits, certificate};
use shared::versioned::Versioned;
use tracing::{info, warn};

use crate::acl::{ReloadLabels, Reloads, count, not_read, word};
use crate::api::{self, SecretError};
use crate::authorities::{TlsSecrets, key_of};
use crate::caches::Caches;
use crate::nodes::{Nodes, endpoint};
use crate::plan::{self, NodeResult};
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
    secrets: TlsSecrets,
    credentials: Versioned<ObjectKey, Credentials>,
    /// Fingerprint of the certificate that every running node of a cluster was last seen to serve.
    served: Mutex<BTreeMap<ClusterKey, String>>,
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
            secrets: TlsSecrets::default(),
            credentials: Versioned::default(),
            served: Mutex::default(),
        }
    }

    fn served(&self) -> MutexGuard<'_, BTreeMap<ClusterKey, String>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each running node's result, the fingerprint of the Secret's certificate, and what is doubtful about it. No node is
    /// pointed at files that it, its peers or its clients could not use: it keeps what it has.
    async fn results(&self, cluster: &ClusterSeen, secret: &ObjectKey) -> Result<Seen, Nothing> {
        let material = self.secrets.read(&self.client, &self.caches, secret).await;
        let material = material.map_err(|error| Nothing::of("SecretInvalid", error))?;
        let known = |reason, message| Nothing::Known { reason, message };
        let ClusterKey(of) = &cluster.key;
        let valid = material.check(&secret.name, &of.name, &of.namespace);
        let valid = valid.map_err(|problem| known("SecretInvalid", problem.to_string()))?;
        if let Some(doubt) = valid.unusable() {
            return Err(known(doubt.reason(), doubt.to_string()));
        }
        let (Some(leaf), Some(ca)) = (material.leaf(), material.authorities()) else {
            return Err(known("SecretInvalid", "ca.crt holds no certificate".to_owned()));
        };
        let auth = auth_secret_of(cluster);
        let read = api::operator_credentials(&self.client, cluster);
        let credentials = self.credentials.get(&auth, self.caches.secret_version(&auth), read).await;
        let credentials = credentials.map_err(|error| Nothing::of("NoCredentials", error))?;
        let asked = cluster.nodes.iter().map(|node| {
            let endpoint = endpoint(&cluster.key, node, Some(&ca));
            let credentials = &credentials;
            async move { (node.name.clone(), self.nodes.tls(&endpoint, leaf, &SETTINGS, credentials).await) }
        });
        Ok(Seen {
            fingerprint: certificate::fingerprint(leaf),
            results: join_all(asked).await.into_iter().collect(),
            doubt: valid.doubts.first().cloned(),
        })
    }
}

fn auth_secret_of(cluster: &ClusterSeen) -> ObjectKey {
    ObjectKey { namespace: cluster.key.0.namespace.clone(), name: names::auth_secret(&cluster.key.0.name) }
}

/// What a pass found.
struct Seen {
    fingerprint: String,
    results: BTreeMap<String, NodeResult>,
    doubt: Option<Doubt>,
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
            let used: BTreeSet<ObjectKey> = clusters.iter().map(auth_secret_of).collect();
            self.secrets.retain(&clusters);
            self.credentials.retain(|key| used.contains(key));
            self.served().retain(|key, _| clusters.iter().any(|cluster| cluster.key == *key));
        }
        clusters
    }

    async fn pass(&self, cluster: &ClusterSeen, early: bool) -> Count {
        let (cluster_name, namespace) = (&cluster.key.0.name, &cluster.key.0.namespace);
        let Some(secret) = key_of(cluster) else { return Count { settled: true, ..Count::default() } };
        let seen = self.results(cluster, &secret).await;
        let nothing = BTreeMap::new();
        let (fingerprint, results, doubt) = match &seen {
            Ok(seen) => (Ok(seen.fingerprint.as_str()), &seen.results, seen.doubt.as_ref()),
            Err(Nothing::Known { reason, message }) => (Err((*reason, message.as_str())), &nothing, None),
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
        let (verdict, settled) = plan::tls(fingerprint, results, doubt);
        let written =
            api::write_condition(&self.client, cluster, ConditionType::TlsReady, &verdict, MANAGER).await;
        if let Err(error) = written {
            let error = telemetry::chain(&error);
            warn!(cluster_name, namespace, error, "condition not written, will retry next tick");
        }
        // A change of the authorities alone shows in no handshake: nodes are told again for as long as a kubelet may take.
        let mut proved = settled;
        if settled && let Ok(fingerprint) = fingerprint {
            let before = self.served().insert(cluster.key.clone(), fingerprint.to_owned());
            proved = !early || before.is_none_or(|before| before != fingerprint);
        }
        count(results, proved)
    }

    async fn changed(&self) -> BTreeSet<ClusterKey> {
        loop {
            let secrets = self.caches.secret_changes.take().await;
            let clusters = self.clusters(None).into_iter();
            let clusters =
                clusters.filter(|cluster| key_of(cluster).is_some_and(|key| secrets.contains(&key)));
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

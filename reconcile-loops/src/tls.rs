//! The TLS loop: every running node of a TLS cluster serves the certificate that is in the Secret.
//!
//! The Secret is validated by cluster-ctl; here what a handshake and the server itself show is compared, so that a renewal
//! counts as done when it is served and not when it was asked for. Owns the record of authorities in the auth Secret.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use kube::Client;
use prometheus_client::metrics::counter::Counter;
use shared::api::conditions::{ConditionStatus, ConditionType};
use shared::events::{Events, Notice};
use shared::names::MANAGER_LOOPS_TLS;
use shared::run::App;
use shared::telemetry;
use shared::tls::{Authorities, AuthorityRecord};
use shared::valkey::{Credentials, Limits, certificate};
use shared::versioned::Versioned;
use tracing::{info, warn};

use crate::acl::{ReloadLabels, Reloads, count, not_read, word};
use crate::api::{self, SecretError};
use crate::authorities::{TlsSecrets, auth_secret_of, key_of};
use crate::caches::Caches;
use crate::nodes::{Nodes, WantedTls, endpoint};
use crate::plan::{self, NodeResult, PublishedTls, REFRESHED_BY, Trust};
use crate::seen::{ClusterKey, ClusterSeen, ObjectKey};
use crate::tick::{Count, Reload};

/// Where the three TLS files are mounted in a pod, and the settings that name them.
const SETTINGS: [(&str, &str); 3] = [
    ("tls-cert-file", "/etc/valkey/tls/tls.crt"),
    ("tls-key-file", "/etc/valkey/tls/tls.key"),
    ("tls-ca-cert-file", "/etc/valkey/tls/ca.crt"),
];

/// The TLS loop's means.
pub struct TlsLoop {
    client: Client,
    events: Events,
    caches: Arc<Caches>,
    nodes: Nodes,
    reloads: Reloads,
    replacements: Counter,
    secrets: TlsSecrets,
    credentials: Versioned<ObjectKey, Credentials>,
    /// Since when nodes of a cluster have been told of this revision of ca.crt, as far as the process knows.
    told: Mutex<BTreeMap<ClusterKey, (String, Instant)>>,
}

impl TlsLoop {
    /// A loop with the process' settings.
    pub fn new(app: &App, caches: Arc<Caches>) -> Self {
        let limits =
            Limits { connect: app.settings.valkey_connect_timeout, response: app.settings.valkey_timeout };
        let reloads = Reloads::default();
        app.metrics.register("tls_reloads", "Passes over a node by the TLS loop, by result", reloads.clone());
        let replacements = Counter::default();
        app.metrics.register(
            "authorities_replaced",
            "Times that a ca.crt was replaced by one without an authority in common",
            replacements.clone(),
        );
        Self {
            client: app.client.clone(),
            events: app.events.clone(),
            caches,
            nodes: Nodes::new(limits, app.settings.node_fan_out, app.metrics.valkey.clone()),
            reloads,
            replacements,
            secrets: TlsSecrets::default(),
            credentials: Versioned::default(),
            told: Mutex::default(),
        }
    }

    /// How long nodes of a cluster have been told of this revision of ca.crt.
    fn told_for(&self, cluster: &ClusterKey, revision: &str) -> Duration {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = told.entry(cluster.clone()).or_insert_with(|| (revision.to_owned(), Instant::now()));
        if entry.0 != revision {
            *entry = (revision.to_owned(), Instant::now());
        }
        entry.1.elapsed()
    }

    /// Each running node's result and what is published. No node is pointed at files that it, its peers or its clients
    /// could not use: it keeps what it has.
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
        let of_text = |pem: &Arc<str>| Authorities::from_pem(pem.as_bytes()).ok();
        let authorities = material.authorities().and_then(|ca| Some((of_text(&ca)?, ca)));
        let (Some(leaf), Some((authorities, ca))) = (material.leaf(), authorities) else {
            return Err(known("SecretInvalid", "ca.crt holds no certificate".to_owned()));
        };
        let auth = auth_secret_of(cluster);
        let read = api::operator_credentials(&self.client, cluster);
        let credentials = self.credentials.get(&auth, self.caches.secret_version(&auth), read).await;
        let credentials = credentials.map_err(|error| Nothing::of("NoCredentials", error))?;
        let revision = authorities.revision();
        let (auth_uid, record) = self.record(cluster, secret, &ca, &revision).await?;
        let trusted = self.secrets.authorities(cluster, secret, &material, record.as_ref());
        let all = trusted.as_ref().and_then(of_text);
        let first_to_expire = authorities.first_to_expire();
        let wanted = WantedTls {
            certificate: leaf,
            settings: &SETTINGS,
            authority: first_to_expire.as_deref(),
            conclusive: all.is_some_and(|all| authorities.shown_by_first_to_expire(&all)),
        };
        let asked = cluster.nodes.iter().map(|node| {
            let endpoint = endpoint(&cluster.key, node, trusted.as_deref());
            let (credentials, wanted) = (&credentials, &wanted);
            async move { (node.name.clone(), self.nodes.tls(&endpoint, wanted, credentials).await) }
        });
        let trust = match &record {
            Some(record) if !record.is_proved(&ca) => Trust::Changed {
                replaced: record.is_replaced_by(&ca),
                waited: self.told_for(&cluster.key, &revision) >= REFRESHED_BY,
            },
            _ => Trust::Proved,
        };
        Ok(Seen {
            published: PublishedTls {
                fingerprint: certificate::fingerprint(leaf),
                authorities: revision,
                trust,
                doubt: valid.doubts.first().cloned(),
            },
            results: join_all(asked).await.into_iter().collect(),
            ca,
            auth_uid,
        })
    }

    /// The record of authorities, `ca` noted in it: before a node reads a ca.crt it is recorded that it may have.
    async fn record(
        &self,
        cluster: &ClusterSeen,
        secret: &ObjectKey,
        ca: &Arc<str>,
        revision: &str,
    ) -> Result<(String, Option<AuthorityRecord>), Nothing> {
        let recorded = self.secrets.recorded(&self.client, &self.caches, cluster).await;
        let recorded = recorded.map_err(|error| Nothing::of("NoCredentials", error))?;
        let uid = recorded.uid.clone();
        let Some(noted) = AuthorityRecord::noting(recorded.record.as_ref(), ca) else {
            return Ok((uid, recorded.record.clone()));
        };
        let written = api::write_authorities(&self.client, cluster, &uid, &noted).await;
        written.map_err(Nothing::NotWritten)?;
        let known = self.told.lock().unwrap_or_else(PoisonError::into_inner).get(&cluster.key).cloned();
        // A watch that is behind shows the record without it once more: told once.
        if noted.is_replaced_by(ca) && known.is_none_or(|(known, _)| known != revision) {
            self.tell_replacement(cluster, secret).await;
        }
        Ok((uid, Some(noted)))
    }

    async fn tell_replacement(&self, cluster: &ClusterSeen, secret: &ObjectKey) {
        let (cluster_name, namespace) = (&cluster.key.0.name, &cluster.key.0.namespace);
        let reason = plan::AUTHORITIES_REPLACED;
        self.replacements.inc();
        warn!(
            cluster_name,
            namespace,
            reason,
            secret = secret.name,
            "ca.crt was replaced without an overlap"
        );
        let note = format!("TLS Secret \"{}\": {}", secret.name, plan::REPLACED);
        let notice = Notice::warning(reason, "ReloadTls", note);
        self.events.publish(&api::reference(cluster), &notice).await;
    }

    /// Records that every running node has read the ca.crt that was just proved; tells whether that is recorded now.
    async fn record_proof(&self, cluster: &ClusterSeen, seen: &Seen) -> bool {
        if seen.published.trust == Trust::Proved {
            return true;
        }
        let proved = AuthorityRecord::proving(&seen.ca);
        let Err(error) = api::write_authorities(&self.client, cluster, &seen.auth_uid, &proved).await else {
            return true;
        };
        let (cluster_name, namespace) = (&cluster.key.0.name, &cluster.key.0.namespace);
        let error = telemetry::chain(&error);
        warn!(cluster_name, namespace, error, "proof of ca.crt not recorded, will retry next tick");
        false
    }
}

/// What a pass found.
struct Seen {
    published: PublishedTls,
    results: BTreeMap<String, NodeResult>,
    ca: Arc<str>,
    auth_uid: String,
}

/// Why no node was asked.
enum Nothing {
    /// The API server did not say.
    NotRead(SecretError),
    /// The API server did not take the record of authorities.
    NotWritten(kube::Error),
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
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.retain(|key, _| clusters.iter().any(|cluster| cluster.key == *key));
        }
        clusters
    }

    async fn pass(&self, cluster: &ClusterSeen, early: bool) -> Count {
        let (cluster_name, namespace) = (&cluster.key.0.name, &cluster.key.0.namespace);
        let Some(secret) = key_of(cluster) else { return Count { settled: true, ..Count::default() } };
        let seen = self.results(cluster, &secret).await;
        let nothing = BTreeMap::new();
        let (published, results) = match &seen {
            Ok(seen) => (Ok(&seen.published), &seen.results),
            Err(Nothing::Known { reason, message }) => (Err((*reason, message.as_str())), &nothing),
            Err(Nothing::NotRead(error)) => return not_read(cluster, error),
            Err(Nothing::NotWritten(error)) => return not_read(cluster, error),
        };
        for (node, result) in results {
            self.reloads.get_or_create(&ReloadLabels { result: word(result) }).inc();
            match result {
                NodeResult::Refused(error) | NodeResult::Failed { error, .. } if !early => {
                    warn!(cluster_name, namespace, node, error, "TLS reload failed, will retry next tick");
                }
                NodeResult::Current { reloaded: true } | NodeResult::Told { reloaded: true } => {
                    info!(cluster_name, namespace, node, "node serves a renewed certificate");
                }
                _ => {}
            }
        }
        let (verdict, mut settled) = plan::tls(published, results);
        if let (Ok(seen), ConditionStatus::True) = (&seen, verdict.status) {
            settled &= self.record_proof(cluster, seen).await;
        }
        let kind = ConditionType::TlsReady;
        let written = api::write_condition(&self.client, cluster, kind, &verdict, MANAGER_LOOPS_TLS).await;
        if let Err(error) = written {
            let error = telemetry::chain(&error);
            warn!(cluster_name, namespace, error, "condition not written, will retry next tick");
        }
        count(results, settled)
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

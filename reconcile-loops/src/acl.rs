//! The ACL loop: every running node runs the published users.acl, and the cluster's condition says so.
//!
//! A node is asked to re-read its file only when it does not prove the published revision, so a quiet cluster costs one
//! login per node and pass, and no API call at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::TryFutureExt;
use futures::future::join_all;
use kube::Client;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use shared::api::conditions::{ConditionStatus, ConditionType, find};
use shared::events::{Events, Notice};
use shared::names::MANAGER_LOOPS;
use shared::run::App;
use shared::telemetry;
use shared::tls;
use shared::valkey::{Credentials, Limits};
use tokio::sync::OnceCell;
use tracing::{info, warn};

use crate::api::{self, AclMap, SecretError};
use crate::authorities::{self, TlsSecrets};
use crate::caches::Caches;
use crate::nodes::{Nodes, endpoint};
use crate::plan::{self, AclDecision, NodeResult, Record, Unpublished};
use crate::seen::{ClusterKey, ClusterSeen};
use crate::tick::{Count, Reload};

/// Results of reloads, by result.
pub(crate) type Reloads = Family<ReloadLabels, Counter>;

/// Labels of [`Reloads`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReloadLabels {
    /// `current`, `reloaded`, `stale`, `refused`, or the kind of an error.
    pub(crate) result: &'static str,
}

/// The ACL loop's means.
pub struct AclLoop {
    client: Client,
    events: Events,
    caches: Arc<Caches>,
    nodes: Nodes,
    reloads: Reloads,
    secrets: TlsSecrets,
    known: Mutex<BTreeMap<ClusterKey, Known>>,
}

/// What is kept of a cluster between passes; losing it costs one read.
#[derive(Debug, Clone)]
struct Known {
    map: Arc<AclMap>,
    /// When the published revision was first seen.
    since: Instant,
}

impl AclLoop {
    /// A loop with the process' settings.
    pub fn new(app: &App, caches: Arc<Caches>) -> Self {
        let limits =
            Limits { connect: app.settings.valkey_connect_timeout, response: app.settings.valkey_timeout };
        let reloads = Reloads::default();
        app.metrics.register("acl_reloads", "Passes over a node by the ACL loop, by result", reloads.clone());
        Self {
            client: app.client.clone(),
            events: app.events.clone(),
            caches,
            nodes: Nodes::new(limits, app.settings.node_fan_out, app.metrics.valkey.clone()),
            reloads,
            secrets: TlsSecrets::default(),
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<ClusterKey, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The published file, read only when its version is not the one that is known.
    async fn published(&self, cluster: &ClusterSeen) -> Result<Option<Known>, kube::Error> {
        let Some((version, _)) = self.caches.acl_version(&cluster.key) else {
            self.known().remove(&cluster.key);
            return Ok(None);
        };
        let known = self.known().get(&cluster.key).cloned();
        if let Some(known) = &known
            && known.map.version == version
        {
            return Ok(Some(known.clone()));
        }
        let Some(map) = api::acl_map(&self.client, cluster).await? else { return Ok(None) };
        let revision = |map: &AclMap| map.published.as_ref().ok().map(|published| published.revision.clone());
        let same = known.as_ref().filter(|known| revision(&known.map) == revision(&map));
        let fresh = Known { since: same.map_or_else(Instant::now, |known| known.since), map: Arc::new(map) };
        self.known().insert(cluster.key.clone(), fresh.clone());
        Ok(Some(fresh))
    }

    /// The authorities that nodes of a TLS cluster are verified against; `None` in plaintext.
    async fn authorities(&self, cluster: &ClusterSeen) -> Result<Option<Arc<str>>, SecretError> {
        let Some(key) = authorities::key_of(cluster) else { return Ok(None) };
        let material = self.secrets.read(&self.client, &self.caches, &key).await?;
        let recorded = match self.secrets.recorded(&self.client, &self.caches, cluster).await {
            Ok(recorded) => recorded.record.clone(),
            Err(error @ SecretError::Read { .. }) => return Err(error),
            // Whoever needs the auth Secret says what is wrong with it.
            Err(_) => None,
        };
        let known = self.secrets.authorities(cluster, &key, &material, recorded.as_ref());
        known.map(Some).ok_or(SecretError::Key { name: key.name, key: tls::KEY_AUTHORITIES })
    }

    /// Each running node's result.
    async fn results(
        &self,
        cluster: &ClusterSeen,
        map: &AclMap,
    ) -> Result<BTreeMap<String, NodeResult>, SecretError> {
        let Ok(published) = &map.published else { return Ok(BTreeMap::new()) };
        let ca = match self.authorities(cluster).await {
            Ok(ca) => ca,
            Err(error @ SecretError::Read { .. }) => return Err(error),
            Err(error) => {
                let failed = NodeResult::Failed { kind: "no_authority", error: telemetry::chain(&error) };
                return Ok(cluster.nodes.iter().map(|node| (node.name.clone(), failed.clone())).collect());
            }
        };
        let credentials: OnceCell<Credentials> = OnceCell::new();
        let asked = cluster.nodes.iter().map(|node| {
            let endpoint = endpoint(&cluster.key, node, ca.as_deref());
            // Read once a pass, and only when a node has to be told something.
            let read = || api::operator_credentials(&self.client, cluster);
            let login = credentials
                .get_or_try_init(read)
                .map_ok(Clone::clone)
                .map_err(|error| telemetry::chain(&error));
            async move { (node.name.clone(), self.nodes.acl(&endpoint, &published.revision, login).await) }
        });
        Ok(join_all(asked).await.into_iter().collect())
    }

    /// Does what was decided; every failure is told and left to the next pass.
    async fn apply(&self, cluster: &ClusterSeen, known: Option<&Known>, decision: &AclDecision) {
        let (cluster_name, namespace) = (&cluster.key.0.name, &cluster.key.0.namespace);
        if let (Some(record), Some(known)) = (&decision.record, known) {
            match api::write_record(&self.client, &cluster.key, &known.map, record).await {
                Ok(()) => self.tell_record(cluster, known, record).await,
                Err(error) => {
                    let error = telemetry::chain(&error);
                    warn!(
                        cluster_name,
                        namespace, error, "outcome of users.acl not recorded, will retry next tick"
                    );
                }
            }
        }
        let kind = ConditionType::AclApplied;
        let verdict = &decision.verdict;
        match api::write_condition(&self.client, cluster, kind, verdict, MANAGER_LOOPS).await {
            Ok(false) => {}
            Ok(true) => {
                let had = find(&cluster.conditions, kind);
                let news = had
                    .is_none_or(|had| had.reason != verdict.reason || had.status != verdict.status.as_str());
                if news && verdict.status == ConditionStatus::True {
                    info!(cluster_name, namespace, detail = verdict.message, "ACL rules applied");
                    let notice = Notice::normal("AclApplied", "ReloadAcl", verdict.message.clone());
                    self.events.publish(&api::reference(cluster), &notice).await;
                }
            }
            Err(error) => {
                let error = telemetry::chain(&error);
                warn!(cluster_name, namespace, error, "condition not written, will retry next tick");
            }
        }
    }

    async fn tell_record(&self, cluster: &ClusterSeen, known: &Known, record: &Record) {
        let Record::Refused { words } = record else { return };
        let (cluster_name, namespace) = (&cluster.key.0.name, &cluster.key.0.namespace);
        let revision =
            known.map.published.as_ref().map(|published| published.revision.as_str()).unwrap_or_default();
        warn!(
            cluster_name,
            namespace, revision, words, "a node refused users.acl, recorded on its ConfigMap"
        );
        let short = plan::short(revision);
        let note = format!("a node refused revision {short} of users.acl, its old rules stay: {words}");
        let notice = Notice::warning("AclRefused", "ReloadAcl", note);
        self.events.publish(&api::reference(cluster), &notice).await;
    }
}

impl Reload for AclLoop {
    const NAME: &'static str = "acl";

    fn clusters(&self, only: Option<&ClusterKey>) -> Vec<ClusterSeen> {
        let clusters = self.caches.seen(only);
        if only.is_none() {
            let alive: BTreeSet<&ClusterKey> = clusters.iter().map(|cluster| &cluster.key).collect();
            self.known().retain(|key, _| alive.contains(key));
            self.secrets.retain(&clusters);
        }
        clusters
    }

    async fn pass(&self, cluster: &ClusterSeen, early: bool) -> Count {
        let (cluster_name, namespace) = (&cluster.key.0.name, &cluster.key.0.namespace);
        let known = match self.published(cluster).await {
            Ok(known) => known,
            Err(error) => return not_read(cluster, &error),
        };
        let results = match &known {
            Some(known) => self.results(cluster, &known.map).await,
            None => Ok(BTreeMap::new()),
        };
        let results = match results {
            Ok(results) => results,
            Err(error) => return not_read(cluster, &error),
        };
        for (node, result) in &results {
            self.reloads.get_or_create(&ReloadLabels { result: word(result) }).inc();
            // An early pass comes again in a second: the regular one tells what lasts.
            match result {
                NodeResult::Refused(error) | NodeResult::Failed { error, .. } if !early => {
                    warn!(cluster_name, namespace, node, error, "ACL LOAD failed, will retry next tick");
                }
                _ => {}
            }
        }
        let published = known
            .as_ref()
            .map_or(Err(Unpublished::Missing), |known| known.map.published.as_ref().map_err(|why| *why));
        let age = known.as_ref().map_or(Duration::ZERO, |known| known.since.elapsed());
        let decision = plan::acl(published, &results, age);
        self.apply(cluster, known.as_ref(), &decision).await;
        count(&results, decision.settled)
    }

    async fn changed(&self) -> BTreeSet<ClusterKey> {
        self.caches.acl_changes.take().await.into_iter().map(ClusterKey).collect()
    }

    fn summary(&self, clusters: usize, total: Count) {
        let Count { nodes, current, reloaded, failed, settled: _ } = total;
        info!(clusters, nodes, current, reloaded, failed, "ACL reconcile tick");
    }
}

/// A pass that the API server did not let begin: nothing is known, so nothing is said of the nodes.
pub(crate) fn not_read(cluster: &ClusterSeen, error: &(dyn std::error::Error + 'static)) -> Count {
    let (cluster_name, namespace) = (&cluster.key.0.name, &cluster.key.0.namespace);
    let error = telemetry::chain(error);
    warn!(cluster_name, namespace, error, "inputs not read, will retry next tick");
    Count { nodes: cluster.nodes.len(), failed: 1, ..Count::default() }
}

/// The result as a metric label.
pub(crate) fn word(result: &NodeResult) -> &'static str {
    match result {
        NodeResult::Current { reloaded: false } | NodeResult::Told { reloaded: false } => "current",
        NodeResult::Current { reloaded: true } | NodeResult::Told { reloaded: true } => "reloaded",
        NodeResult::Stale => "stale",
        NodeResult::Refused(_) => "refused",
        NodeResult::Failed { kind, .. } => kind,
    }
}

/// Sums up the results of one pass.
pub(crate) fn count(results: &BTreeMap<String, NodeResult>, settled: bool) -> Count {
    let number = |wanted: fn(&NodeResult) -> bool| results.values().filter(|result| wanted(result)).count();
    Count {
        nodes: results.len(),
        current: number(|result| matches!(result, NodeResult::Current { .. } | NodeResult::Told { .. })),
        reloaded: number(|result| word(result) == "reloaded"),
        failed: number(|result| matches!(result, NodeResult::Refused(_) | NodeResult::Failed { .. })),
        settled,
    }
}

//! What is counted of clusters: actions by kind and outcome, and per cluster its state, nodes and slots.
//!
//! Per-cluster series go with their cluster.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use shared::api::conditions::{self, ConditionType};
use shared::api::{ClusterState, Lifecycle, ValkeyClusterStatus};
use shared::metrics::Metrics;

use crate::action::Action;
use crate::execute::Outcome;
use crate::model::{Certificate, Observed};
use crate::ports::ClusterKey;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct ClusterLabels {
    namespace: String,
    cluster: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct DetailLabels {
    namespace: String,
    cluster: String,
    /// State, condition type or lifecycle.
    name: &'static str,
}

type ClusterGauge = Family<ClusterLabels, Gauge<i64, AtomicI64>>;
type DetailGauge = Family<DetailLabels, Gauge<i64, AtomicI64>>;

/// The metrics of cluster-ctl.
#[derive(Clone, Debug, Default)]
pub struct ClusterMetrics {
    actions: Family<ActionLabels, Counter>,
    state: DetailGauge,
    condition: DetailGauge,
    nodes: DetailGauge,
    ready_nodes: ClusterGauge,
    slots: ClusterGauge,
    expiry: ClusterGauge,
    /// Series per cluster that exist, so that they can be removed.
    details: Arc<Mutex<BTreeMap<ClusterKey, Vec<DetailLabels>>>>,
}

impl ClusterMetrics {
    /// Registers them.
    pub fn register(metrics: &Metrics) -> Self {
        let this = Self::default();
        metrics.register("actions", "Actions taken on clusters, by kind and outcome", this.actions.clone());
        metrics.register("cluster_state", "1 for the state that the cluster is in", this.state.clone());
        metrics.register(
            "cluster_condition",
            "1 while the condition is True, 0 otherwise",
            this.condition.clone(),
        );
        metrics.register("cluster_nodes", "Nodes by lifecycle", this.nodes.clone());
        metrics.register(
            "cluster_ready_nodes",
            "Nodes that serve, replicas in sync",
            this.ready_nodes.clone(),
        );
        metrics.register("cluster_slots_assigned", "Hash slots with an owner, of 16384", this.slots.clone());
        metrics.register(
            "certificate_expiry_timestamp_seconds",
            "When the certificate of a TLS cluster expires, seconds since the Unix epoch",
            this.expiry.clone(),
        );
        this
    }

    /// Counts an action.
    pub fn acted(&self, action: &Action, outcome: &Outcome) {
        let outcome = match outcome {
            Outcome::Done => "done",
            Outcome::Stale(_) => "stale",
            Outcome::Unknown(_) => "unknown",
        };
        self.actions.get_or_create(&ActionLabels { kind: action.kind(), outcome }).inc();
    }

    /// Shows a cluster.
    pub fn show(&self, key: &ClusterKey, seen: &Observed, status: &ValkeyClusterStatus) {
        let detail =
            |name| DetailLabels { namespace: key.namespace.clone(), cluster: key.name.clone(), name };
        let mut used = Vec::new();
        let mut set = |family: &DetailGauge, name: &'static str, value: i64| {
            family.get_or_create(&detail(name)).set(value);
            used.push(detail(name));
        };
        for state in [ClusterState::Creating, ClusterState::Active, ClusterState::Invalid] {
            set(&self.state, state.as_str(), i64::from(status.state == state));
        }
        for kind in ConditionType::ALL {
            if let Some(condition) = conditions::find(&status.conditions, kind) {
                set(&self.condition, kind.as_str(), i64::from(condition.status == "True"));
            }
        }
        for lifecycle in Lifecycle::ALL {
            let count = seen.members.values().filter(|member| member.spec.lifecycle == lifecycle).count();
            set(&self.nodes, lifecycle.as_str(), i64::try_from(count).unwrap_or(i64::MAX));
        }
        let cluster = labels(key);
        self.ready_nodes.get_or_create(&cluster).set(status.ready_nodes.unwrap_or(0).into());
        self.slots.get_or_create(&cluster).set(status.slots_assigned.unwrap_or(0).into());
        self.details.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), used);
    }

    /// Shows when the certificate of a cluster expires; nothing while that is not known.
    pub fn show_certificate(&self, key: &ClusterKey, certificate: Option<&Certificate>) {
        match certificate {
            Some(certificate) => {
                self.expiry.get_or_create(&labels(key)).set(certificate.expires.0 / 1000);
            }
            None => drop(self.expiry.remove(&labels(key))),
        }
    }

    /// Removes the series of a cluster that is gone.
    pub fn forget(&self, key: &ClusterKey) {
        let used = self.details.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        for labels in used.into_iter().flatten() {
            for family in [&self.state, &self.condition, &self.nodes] {
                family.remove(&labels);
            }
        }
        self.ready_nodes.remove(&labels(key));
        self.slots.remove(&labels(key));
        self.expiry.remove(&labels(key));
    }
}

fn labels(key: &ClusterKey) -> ClusterLabels {
    ClusterLabels { namespace: key.namespace.clone(), cluster: key.name.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_a_cluster_go_with_it() {
        let registry = Metrics::new("cluster-ctl", "test");
        let metrics = ClusterMetrics::register(&registry);
        let key = ClusterKey { namespace: "ns".to_owned(), name: "some-cluster".to_owned() };
        let gauge = |family: &DetailGauge, name| {
            let labels = DetailLabels { namespace: key.namespace.clone(), cluster: key.name.clone(), name };
            family.get_or_create(&labels).set(1);
            metrics.details.lock().unwrap().entry(key.clone()).or_default().push(labels);
        };
        gauge(&metrics.state, "Active");
        gauge(&metrics.nodes, "Joining");
        metrics.slots.get_or_create(&labels(&key)).set(3);
        assert!(registry.encode().unwrap().contains("some-cluster"));
        metrics.forget(&key);
        assert!(!registry.encode().unwrap().contains("some-cluster"));
    }
}

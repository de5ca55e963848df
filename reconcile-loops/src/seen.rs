//! The observation: which clusters there are and which of their nodes run, as plain data, from plain objects.
//!
//! Owns the proof that a pod belongs to a cluster. A label is no proof: the operator's password is sent to what passes
//! here, so the chain of controller UIDs from pod over node to cluster has to be closed.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};
use shared::api::{ValkeyCluster, ValkeyNode};
use shared::names;

#[cfg(test)]
mod tests;

/// Namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// The key of a namespaced object.
    pub fn of<K: ResourceExt>(object: &K) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

/// Namespace and name of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterKey(pub ObjectKey);

impl fmt::Display for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.namespace, self.0.name)
    }
}

/// A node whose server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSeen {
    /// Name of node and pod.
    pub name: String,
    /// The pod.
    pub pod_uid: String,
    /// Its address.
    pub ip: IpAddr,
}

/// A cluster and its running nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterSeen {
    /// Which cluster.
    pub key: ClusterKey,
    /// Its UID.
    pub uid: String,
    /// Version of the object that was seen.
    pub version: Option<String>,
    /// Generation of its spec.
    pub generation: Option<i64>,
    /// Its present conditions.
    pub conditions: Vec<Condition>,
    /// Its TLS Secret, if it is a TLS cluster.
    pub tls_secret: Option<String>,
    /// Nodes that run, by name.
    pub nodes: Vec<NodeSeen>,
}

/// Matches clusters, nodes and pods. Clusters that are being deleted are left alone.
pub fn clusters_seen<'a>(
    clusters: impl IntoIterator<Item = &'a ValkeyCluster>,
    nodes: impl IntoIterator<Item = &'a ValkeyNode>,
    pods: impl IntoIterator<Item = &'a Pod>,
) -> Vec<ClusterSeen> {
    let pods: BTreeMap<ObjectKey, &Pod> = pods.into_iter().map(|pod| (ObjectKey::of(pod), pod)).collect();
    let mut running: BTreeMap<&str, Vec<NodeSeen>> = BTreeMap::new();
    for node in nodes {
        let Some(cluster_uid) = controller(node, "ValkeyCluster", &node.spec.cluster_name) else { continue };
        let seen = pods.get(&ObjectKey::of(node)).and_then(|pod| node_seen(node, pod));
        running.entry(cluster_uid).or_default().extend(seen);
    }
    let alive = clusters.into_iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
    let seen = alive.filter_map(|cluster| {
        let uid = cluster.uid()?;
        let mut nodes = running.remove(uid.as_str()).unwrap_or_default();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Some(ClusterSeen {
            key: ClusterKey(ObjectKey::of(cluster)),
            uid,
            version: cluster.resource_version(),
            generation: cluster.metadata.generation,
            conditions: cluster.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default(),
            tls_secret: cluster.spec.tls.as_ref().map(|tls| tls.secret_ref.clone()),
            nodes,
        })
    });
    seen.collect()
}

/// UID of the controller, if it is of this kind and name.
fn controller<'a, K: Resource>(object: &'a K, kind: &str, name: &str) -> Option<&'a str> {
    let owners = object.meta().owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    (owner.kind == kind && owner.name == name).then_some(owner.uid.as_str())
}

fn node_seen(node: &ValkeyNode, pod: &Pod) -> Option<NodeSeen> {
    let name = node.name_any();
    let (node_uid, pod_uid) = (node.uid()?, pod.uid()?);
    let owned = controller(pod, "ValkeyNode", &name) == Some(node_uid.as_str());
    let recorded = node.status.as_ref().and_then(|status| status.pod.as_ref());
    let current = recorded.is_none_or(|record| record.uid == pod_uid && record.terminated_at.is_none());
    let status = pod.status.as_ref()?;
    let running = status.phase.as_deref() == Some("Running") && pod.metadata.deletion_timestamp.is_none();
    let ended = status.container_statuses.iter().flatten().any(|container| {
        container.name == names::CONTAINER
            && container.state.as_ref().is_some_and(|state| state.terminated.is_some())
    });
    let ip = status.pod_ip.as_ref()?.parse().ok()?;
    (owned && current && running && !ended).then_some(NodeSeen { name, pod_uid, ip })
}

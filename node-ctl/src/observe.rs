//! What is known of one node, as plain data.
//!
//! Owns the reading of Kubernetes objects: whose they are, whether they end. Makes no request and decides nothing. The
//! same function reads objects from the caches and objects just fetched; only the latter come with the owner.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Resource, ResourceExt};
use shared::api::{Lifecycle, PodRecord, ValkeyNode};
use shared::names;

use crate::meta;

/// Longest reason and message in a record, in characters: the bounds of the CRD.
const MAX_REASON: usize = 1024;
/// See [`MAX_REASON`].
const MAX_MESSAGE: usize = 4096;

/// One node as seen in one pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Stage of the node's life.
    pub lifecycle: Lifecycle,
    /// The node has a deletionTimestamp.
    pub deleting: bool,
    /// Our finalizer is on the node.
    pub finalizer: bool,
    /// What was recorded of its Pod.
    pub record: Option<PodRecord>,
    /// The object with the name of its Pod.
    pub pod: Seen<PodView>,
    /// The object with the name of its ConfigMap.
    pub config_map: Seen<ConfigMapView>,
    /// The cluster that it belongs to.
    pub owner: Owner,
}

/// An object by name: not there, this node's, or somebody else's.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen<T> {
    /// No object of the name.
    Absent,
    /// Controlled by this very node, by UID.
    Ours(T),
    /// Controlled by another, or by nobody; the words name it.
    Foreign(String),
}

/// A Pod of ours.
#[derive(Debug, Clone, PartialEq)]
pub struct PodView {
    /// Its UID.
    pub uid: String,
    /// It has a deletionTimestamp.
    pub terminating: bool,
    /// It carries our finalizer: it cannot vanish before it is recorded.
    pub held: bool,
    /// The end of its container, if it was seen.
    pub end: Option<End>,
}

/// A ConfigMap of ours.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigMapView {
    /// Its UID.
    pub uid: String,
    /// It has a deletionTimestamp.
    pub terminating: bool,
}

/// How the container ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// When.
    pub at: Time,
    /// Exit code.
    pub exit_code: i32,
    /// The kubelet's word for it.
    pub reason: Option<String>,
    /// Message, or the last lines of the log.
    pub message: Option<String>,
}

/// The `ValkeyCluster` that a node belongs to.
#[derive(Debug, Clone, PartialEq)]
pub enum Owner {
    /// Not asked for: the caches do not hold clusters.
    Unread,
    /// It is there and stays.
    Present,
    /// It has a deletionTimestamp.
    Deleting,
    /// It is gone, or another of the same name took its place.
    Gone,
    /// The node names no cluster as its controller.
    Nobody,
}

/// Reads one node with the objects of the names that are its.
pub fn observe(
    node: &ValkeyNode,
    pod: Option<&Pod>,
    config_map: Option<&ObjectMeta>,
    owner: Owner,
) -> Observed {
    let uid = node.uid().unwrap_or_default();
    Observed {
        lifecycle: node.spec.lifecycle,
        deleting: node.meta().deletion_timestamp.is_some(),
        finalizer: node.finalizers().iter().any(|name| name == names::NODE_FINALIZER),
        record: node.status.as_ref().and_then(|status| status.pod.clone()),
        pod: pod.map_or(Seen::Absent, |pod| whose(&pod.metadata, &uid, "Pod", || view_pod(pod))),
        config_map: config_map
            .map_or(Seen::Absent, |found| whose(found, &uid, "ConfigMap", || view_config_map(found))),
        owner,
    }
}

fn whose<T>(found: &ObjectMeta, node_uid: &str, kind: &str, view: impl FnOnce() -> T) -> Seen<T> {
    let name = found.name.as_deref().unwrap_or_default();
    match meta::controller_of(found) {
        Some(owner) if !node_uid.is_empty() && owner.uid == node_uid => Seen::Ours(view()),
        Some(owner) => Seen::Foreign(format!("{kind} {name:?} belongs to {} {:?}", owner.kind, owner.name)),
        None => Seen::Foreign(format!("{kind} {name:?} belongs to nobody")),
    }
}

fn view_pod(pod: &Pod) -> PodView {
    PodView {
        uid: pod.uid().unwrap_or_default(),
        terminating: pod.meta().deletion_timestamp.is_some(),
        held: pod.finalizers().iter().any(|name| name == names::POD_FINALIZER),
        end: terminated(pod).map(|terminated| End {
            // A container that never started may have no time of its end.
            at: terminated
                .finished_at
                .clone()
                .or_else(|| pod.meta().deletion_timestamp.clone())
                .or_else(|| pod.meta().creation_timestamp.clone())
                .unwrap_or(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH)),
            exit_code: terminated.exit_code,
            reason: terminated.reason.as_deref().map(|text| cut(text, MAX_REASON)),
            message: terminated.message.as_deref().map(|text| cut(text, MAX_MESSAGE)),
        }),
    }
}

/// The end of the container `valkey`, where the kubelet has seen it. `ContainerStatusUnknown` is no such proof: the
/// kubelet lost track of a container that may run.
fn terminated(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let container = statuses.iter().find(|status| status.name == names::CONTAINER)?;
    let terminated = container.state.as_ref()?.terminated.as_ref()?;
    (terminated.reason.as_deref() != Some("ContainerStatusUnknown")).then_some(terminated)
}

fn view_config_map(meta: &ObjectMeta) -> ConfigMapView {
    ConfigMapView {
        uid: meta.uid.clone().unwrap_or_default(),
        terminating: meta.deletion_timestamp.is_some(),
    }
}

fn cut(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

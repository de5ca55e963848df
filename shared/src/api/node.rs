//! `ValkeyNode`: one member of a cluster. Internal: made by the operator, read by people.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::placement::Placement;

/// One member of a cluster, fixed at creation but for its lifecycle.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "valkey.gomomento.com",
    version = "v1alpha1",
    kind = "ValkeyNode",
    plural = "valkeynodes",
    shortname = "vkn",
    category = "valkey",
    namespaced,
    status = "ValkeyNodeStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "ValkeyNode is one member of a ValkeyCluster and owns the Pod of the same name. Internal to the operator: do not create or edit it. Its spec never changes except lifecycle; any other change is a new node that takes over.",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Lifecycle", type_ = "string", json_path = ".spec.lifecycle"),
    printcolumn(name = "Role", type_ = "string", json_path = ".status.role", priority = 1),
    printcolumn(
        name = "Shard",
        type_ = "integer",
        json_path = ".spec.shardIndex",
        priority = 1,
        description = "Scheduling index of the shard"
    ),
    printcolumn(
        name = "Slots",
        type_ = "integer",
        json_path = ".status.slots",
        priority = 1,
        description = "Hash slots owned"
    ),
    printcolumn(name = "Synced", type_ = "boolean", json_path = ".status.synced", priority = 1),
    printcolumn(name = "Pod IP", type_ = "string", json_path = ".status.podIP", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", priority = 1)
)]
#[cfg_attr(test, kube(cel))]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
#[x_kube(validation = Rule::new("self.clusterName == oldSelf.clusterName && self.image == oldSelf.image && self.shardIndex == oldSelf.shardIndex && self.valkeySettings == oldSelf.valkeySettings && has(self.cpu) == has(oldSelf.cpu) && (!has(self.cpu) || self.cpu == oldSelf.cpu) && has(self.memory) == has(oldSelf.memory) && (!has(self.memory) || self.memory == oldSelf.memory) && has(self.version) == has(oldSelf.version) && (!has(self.version) || self.version == oldSelf.version) && has(self.tlsSecret) == has(oldSelf.tlsSecret) && (!has(self.tlsSecret) || self.tlsSecret == oldSelf.tlsSecret) && has(self.placement) == has(oldSelf.placement) && (!has(self.placement) || self.placement == oldSelf.placement)")
    .message("the spec of a ValkeyNode is immutable except for lifecycle"))]
pub struct ValkeyNodeSpec {
    /// Name of the ValkeyCluster that the node belongs to, in the same namespace.
    #[schemars(length(min = 1, max = 48))]
    pub cluster_name: String,

    /// Container image, resolved from the config at creation.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,

    /// CPU, request and limit, resolved at creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub cpu: Option<String>,

    /// Memory, request and limit, resolved at creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub memory: Option<String>,

    /// Declared version of the image, copied at creation. A difference does not make a node outdated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub version: Option<String>,

    /// The Valkey settings that people wrote, resolved at creation. Those that the operator manages are added when
    /// valkey.conf is rendered.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 256, "additionalProperties" = {"type": "string", "maxLength": 4096}))]
    pub valkey_settings: BTreeMap<String, String>,

    /// Scheduling index of the shard, also a label of the pod. Not Valkey's shard ID, which is in the status.
    #[schemars(range(min = 0, max = 16383))]
    pub shard_index: i32,

    /// Name of the Secret with the certificate. Unset: plaintext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub tls_secret: Option<String>,

    /// Where the pod may run, copied from the cluster at creation with the operator's default filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,

    /// "Joining" while the node is made part of the cluster, then "Active", "Leaving" while it is taken out. Moves
    /// only forward.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf || oldSelf == 'Joining' || (oldSelf == 'Active' && self == 'Leaving')")
        .message("lifecycle moves only from Joining to Active or Leaving, and from Active to Leaving"))]
    pub lifecycle: Lifecycle,
}

/// Stage in the life of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Lifecycle {
    /// Being made part of the cluster.
    Joining,
    /// A full member.
    #[default]
    Active,
    /// Being taken out of the cluster.
    Leaving,
}

impl Lifecycle {
    /// All stages, in order.
    pub const ALL: [Self; 3] = [Self::Joining, Self::Active, Self::Leaving];

    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "Joining",
            Self::Active => "Active",
            Self::Leaving => "Leaving",
        }
    }

    /// Whether a node may change from this stage to `next`; staying is no change and allowed.
    pub const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Joining, _)
                | (Self::Active, Self::Active | Self::Leaving)
                | (Self::Leaving, Self::Leaving)
        )
    }
}

/// What is known of a node. Written by the operator only.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
#[x_kube(
    validation = Rule::new("!has(oldSelf.nodeId) || (has(self.nodeId) && self.nodeId == oldSelf.nodeId)")
        .message("nodeId is recorded once and never changes"),
    validation = Rule::new("!has(oldSelf.pod) || (has(self.pod) && self.pod.uid == oldSelf.pod.uid)")
        .message("the pod's UID is recorded once and never changes"),
    validation = Rule::new("!has(oldSelf.pod) || !has(oldSelf.pod.terminatedAt) || (has(self.pod) && self.pod == oldSelf.pod)")
        .message("the end of the pod is recorded once and never changes")
)]
pub struct ValkeyNodeStatus {
    /// ID of the node in the Valkey cluster, as the node itself says: 40 hex digits. Recorded once, before the first
    /// command that changes the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 40, max = 40), regex(pattern = "^[0-9a-f]{40}$"))]
    pub node_id: Option<String>,

    /// The one Pod of this node. Recorded once; its end is added when seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRecord>,

    /// "primary" or "replica", as the topology says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<NodeRole>,

    /// Valkey's ID of the shard that the node belongs to: 40 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub shard_id: Option<String>,

    /// IP address of the pod.
    #[serde(default, rename = "podIP", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_ip: Option<String>,

    /// The Kubernetes Node on which its Pod runs, or ran last: what becomes of it may prove the end of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub machine: Option<String>,

    /// Hash slots that the node owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16384))]
    pub slots: Option<i32>,

    /// Whether a replica has caught up with its primary; true for a primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synced: Option<bool>,
}

/// The one Pod of a node, and its end.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct PodRecord {
    /// UID of the Pod.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,

    /// When its container was seen terminated. Absent while it may still run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminated_at: Option<Time>,

    /// Exit code of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,

    /// Reason of the end, as the kubelet gives it, for example "OOMKilled".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,

    /// Message about the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
}

/// Role of a node in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum NodeRole {
    /// Owns slots, or may get them.
    Primary,
    /// Copies a primary.
    Replica,
}

impl NodeRole {
    /// The word in the API and in labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
        }
    }
}

/// How a node joins: value of the label `valkey.gomomento.com/join-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JoinType {
    /// A replacement, or one replica more.
    Replica,
    /// Replaces a primary that was lost without copies.
    Primary,
    /// The primary of a new shard of a formed cluster. The label is cleared when the join completes.
    Shard,
}

impl JoinType {
    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replica => "replica",
            Self::Primary => "primary",
            Self::Shard => "shard",
        }
    }
}

/// A label value that is no join type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no join type: replica, primary or shard")]
pub struct UnknownJoinType(pub String);

impl FromStr for JoinType {
    type Err = UnknownJoinType;

    fn from_str(value: &str) -> Result<Self, Self::Err> {
        [Self::Replica, Self::Primary, Self::Shard]
            .into_iter()
            .find(|kind| kind.as_str() == value)
            .ok_or_else(|| UnknownJoinType(value.to_owned()))
    }
}

impl fmt::Display for JoinType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for NodeRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

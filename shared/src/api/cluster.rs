//! `ValkeyCluster`: what a product team writes, and what the operator reports about it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::acl::AclBinding;
use super::placement::Placement;

/// What a cluster should be.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "valkey.gomomento.com",
    version = "v1alpha1",
    kind = "ValkeyCluster",
    plural = "valkeyclusters",
    shortname = "vkc",
    category = "valkey",
    namespaced,
    status = "ValkeyClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "ValkeyCluster is a sharded Valkey cluster. Its headless Service of the same name is where cluster-aware clients start; data lives in memory and is kept by replication.",
    validation = Rule::new("size(self.metadata.name) <= 48 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("the name of a ValkeyCluster must be a DNS label of at most 48 characters that starts with a letter: names of Services, Pods and Secrets are derived from it"),
    printcolumn(name = "Config", type_ = "string", json_path = ".spec.configRef"),
    printcolumn(name = "Shards", type_ = "integer", json_path = ".spec.shards"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicasPerShard", description = "Replicas per shard, besides the primary"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready", description = "Ready nodes of wanted nodes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Slots", type_ = "integer", json_path = ".status.slotsAssigned", priority = 1, description = "Assigned hash slots, of 16384"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[cfg_attr(test, kube(cel))]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
#[x_kube(validation = Rule::new("has(self.tls) == has(oldSelf.tls)")
    .message("tls cannot be added to or removed from an existing cluster; only tls.secretRef may change"))]
pub struct ValkeyClusterSpec {
    /// Name of the ValkeyConfig from the platform's menu that says how the nodes run. If its result differs, a change
    /// replaces the nodes one by one; each successor is in sync before a node leaves.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub config_ref: String,

    /// Number of shards (primaries) over which the 16384 hash slots are spread evenly. May be changed at any time;
    /// slots move while the cluster serves.
    #[schemars(range(min = 1, max = 16384))]
    pub shards: i32,

    /// Replicas of each shard, besides its primary. 0 means that a lost node loses its data.
    #[schemars(range(min = 0, max = 16384))]
    pub replicas_per_shard: i32,

    /// Users of the cluster, in addition to those of the config. Without any binding, in config or cluster, the default
    /// user needs no password and may do everything; with any binding it is off. Changes reach running nodes without a
    /// restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.all(a, self.exists_one(b, b.username == a.username))")
        .message("duplicate username in ACL bindings"))]
    pub acl: Vec<AclBinding>,

    /// Where the pods may run. Changing zones or nodeSelector replaces the nodes one by one; zoneSpread is for pods made
    /// from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,

    /// Serve clients and the cluster bus with TLS only. Whether it is set cannot change after creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,

    /// Annotations for the pods, verbatim. Added and changed ones are also written to running pods; a removed one goes
    /// with its pod. Kubernetes allows an object 256 KiB of annotations in all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = {"type": "string", "maxLength": 16384}))]
    #[x_kube(
        validation = Rule::new("self.all(k, size(k) <= 317 && k.matches('^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))")
            .message("a podAnnotations key must be an annotation key: an optional DNS prefix with a slash, then at most 63 letters, digits, dashes, dots or underscores"),
        validation = Rule::new("self.all(k, !k.startsWith('valkey.gomomento.com/'))")
            .message("the annotation prefix valkey.gomomento.com/ is reserved for the operator"),
        validation = Rule::new("self.all(k, !k.startsWith('container.apparmor.security.beta.kubernetes.io/') && !k.startsWith('seccomp.security.alpha.kubernetes.io/'))")
            .message("the annotation prefixes container.apparmor.security.beta.kubernetes.io/ and seccomp.security.alpha.kubernetes.io/ are reserved: the operator sets the security profile of pods")
    )]
    pub pod_annotations: BTreeMap<String, String>,
}

/// TLS of a cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct TlsSpec {
    /// Name of a Secret in the same namespace with the keys "tls.crt", "tls.key" and "ca.crt". The certificate must be
    /// valid for "{cluster}.{namespace}.svc.cluster.local" and "*.{cluster}.{namespace}.svc.cluster.local", for server
    /// and client authentication. A renewed certificate in the Secret is loaded without a restart; naming another Secret
    /// replaces the nodes one by one.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub secret_ref: String,
}

/// What the operator observes and intends. Written by the operator only.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct ValkeyClusterStatus {
    /// "Creating" until the cluster has formed, then "Active"; "Invalid" while the TLS Secret fails validation.
    /// "Updating" is reserved: rolling work runs under "Active", see the conditions.
    #[serde(default)]
    pub state: ClusterState,

    /// Copy of the spec that the bootstrap in progress follows. Set on entering Creating, cleared on Active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schema::snapshot_of::<ValkeyClusterSpec>")]
    pub target_spec: Option<Box<ValkeyClusterSpec>>,

    /// Names of the members: each is a ValkeyNode and a Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,

    /// Why the cluster is Invalid, or what blocks progress and what ends the wait. Absent when nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Ready, Progressing, Degraded, ReferencesResolved, TLSReady, ACLApplied and CertificateExpiringSoon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// Shards that serve slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<i32>,

    /// Members that are Active and, as a replica, in sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_nodes: Option<i32>,

    /// Ready nodes of wanted nodes, for people, for example "6/6". Programs read readyNodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,

    /// Hash slots that have an owner, of 16384.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots_assigned: Option<i32>,

    /// The latest action on the cluster, recorded before it is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_action: Option<LastAction>,
}

/// State of a cluster. Recomputed on each pass and only shown; nothing is decided from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ClusterState {
    /// Not yet formed.
    #[default]
    Creating,
    /// Formed.
    Active,
    /// Reserved; never written.
    Updating,
    /// The TLS Secret fails validation.
    Invalid,
}

impl ClusterState {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "Creating",
            Self::Active => "Active",
            Self::Updating => "Updating",
            Self::Invalid => "Invalid",
        }
    }
}

/// The intent that the executor records before it acts: a write under a fresh resourceVersion, so that of two operators
/// only one acts.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct LastAction {
    /// Counts the actions of this cluster, from 1.
    pub number: i64,

    /// What is done.
    pub kind: String,

    /// To whom or what it is done, for example the name of a node.
    pub on: String,

    /// When the intent was recorded.
    pub time: Time,

    /// No command of it can be under way any more: whoever recorded it has had every reply and looked again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
}

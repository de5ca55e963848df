//! `ValkeyConfig`: how a node runs. Resolution along `baseRef` is in [`crate::resolve`], not here.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::acl::AclBinding;

/// How the nodes of a cluster run: image, size, Valkey settings, platform users.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "valkey.gomomento.com",
    version = "v1alpha1",
    kind = "ValkeyConfig",
    plural = "valkeyconfigs",
    category = "valkey",
    derive = "PartialEq",
    derive = "Default",
    doc = "ValkeyConfig says how Valkey nodes run: image, cpu, memory, Valkey settings, platform ACL bindings. Cluster-scoped and owned by the platform team; a ValkeyCluster selects one with configRef. Configs inherit through baseRef: the value nearest to the selected config wins.",
    printcolumn(name = "ImageRef", type_ = "string", json_path = ".spec.imageRef"),
    printcolumn(name = "BaseRef", type_ = "string", json_path = ".spec.baseRef")
)]
#[cfg_attr(test, kube(cel))]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct ValkeyConfigSpec {
    /// Name of the ValkeyImage to run. Unset: inherited from baseRef; the chain of configs must set it somewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub image_ref: Option<String>,

    /// Name of another ValkeyConfig from which everything unset here is inherited. A chain has at most 10 configs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub base_ref: Option<String>,

    /// Size of a node. cpu and memory are inherited separately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Valkey settings, as in valkey.conf: directive name in lower case to value, for example "maxmemory-policy":
    /// "allkeys-lru". Merged key by key along baseRef, the nearest value wins. Settings that the operator manages are
    /// accepted and overridden (an event names them); those that would break authentication, membership or the process
    /// are refused. Changing an effective setting replaces the nodes of every cluster that uses the config, one by one,
    /// while they serve.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(
        extend("maxProperties" = 256),
        extend("additionalProperties" = {"type": "string", "maxLength": 4096, "pattern": "^[^\\x00-\\x1F\\x7F-\\x9F]*$"})
    )]
    #[x_kube(
        validation = Rule::new("self.all(k, size(k) <= 128 && k.matches('^[a-z][a-z0-9-]*$'))")
            .message("a valkey setting is a directive name in lower case: a letter, then letters, digits or dashes, at most 128 characters"),
        validation = Rule::new("['include', 'user', 'requirepass', 'rename-command'].all(k, !(k in self))")
            .message("include, user, requirepass and rename-command may not be set: users come from ACL bindings, and the operator needs its own login and commands"),
        validation = Rule::new("['daemonize', 'supervised', 'pidfile', 'enable-protected-configs'].all(k, !(k in self)) && self.all(k, !k.startsWith('syslog-'))")
            .message("daemonize, supervised, pidfile, syslog-* and enable-protected-configs may not be set: the operator manages the server process"),
        validation = Rule::new("['replicaof', 'slaveof', 'cluster-port', 'cluster-replica-no-failover', 'cluster-slave-no-failover'].all(k, !(k in self))")
            .message("replicaof, slaveof, cluster-port, cluster-replica-no-failover and cluster-slave-no-failover may not be set: the operator manages replication and failover"),
        validation = Rule::new("self.all(k, k in ['cluster-announce-ip', 'cluster-announce-hostname'] || !(k.startsWith('cluster-announce-') || k.startsWith('replica-announce-') || k.startsWith('slave-announce-')))")
            .message("cluster-announce-*, replica-announce-* and slave-announce-* may not be set: the operator manages the addresses that nodes announce")
    )]
    pub valkey: BTreeMap<String, String>,

    /// ACL bindings that every cluster using this config gets, before its own. Taken whole from the nearest config that
    /// sets it; an empty list counts as set and ends inheritance. Changes reach running nodes without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.all(a, self.exists_one(b, b.username == a.username))")
        .message("duplicate username in ACL bindings"))]
    pub acl: Option<Vec<AclBinding>>,
}

/// Size of a node. Each value is both request and limit of the container; both set gives the Guaranteed QoS class.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct Resources {
    /// CPU of a node as a Kubernetes quantity above zero, for example "500m" or "2". Request and limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = super::schema::QUANTITY))]
    pub cpu: Option<String>,

    /// Memory of a node as a Kubernetes quantity above zero, for example "4Gi". Request and limit. Unless the config
    /// sets maxmemory, Valkey gets 75 % of it for data; the rest is for replication buffers and copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = super::schema::QUANTITY))]
    pub memory: Option<String>,
}

//! Every name that the operator gives or reads: objects, labels, annotations, finalizers, field managers.
//!
//! Owns the mapping from a cluster or node name to the names derived from it. Knows nothing of the objects themselves.

/// API group of the five custom resources.
pub const GROUP: &str = "valkey.gomomento.com";
/// The one served and stored version.
pub const VERSION: &str = "v1alpha1";

/// Client port, plaintext or TLS.
pub const CLIENT_PORT: u16 = 6379;
/// Cluster bus port (client port + 10000, as Valkey fixes it).
pub const BUS_PORT: u16 = 16379;

/// Longest name of a `ValkeyCluster`: leaves room for `-operator-auth` and `-xxxxx-config` within 63 characters.
pub const MAX_CLUSTER_NAME: usize = 48;

/// Hex digits in the random suffix of a node name.
pub const NODE_SUFFIX_LEN: usize = 5;

/// Finalizer on a `ValkeyCluster`; goes only when no node of it is left.
pub const CLUSTER_FINALIZER: &str = "valkey.gomomento.com/cleanup";
/// Finalizer on a `ValkeyNode`; goes only when its Pod is gone.
pub const NODE_FINALIZER: &str = "valkey.gomomento.com/node-cleanup";
/// Finalizer on a node's Pod from its creation until its UID is on the `ValkeyNode`: a second, as a rule.
pub const POD_FINALIZER: &str = "valkey.gomomento.com/unrecorded";
/// Finalizer on the auth Secret while its cluster lives.
pub const AUTH_FINALIZER: &str = "valkey.gomomento.com/auth-in-use";

/// Recommended label: what the object is part of. Always [`APP_NAME`].
pub const LABEL_NAME: &str = "app.kubernetes.io/name";
/// Recommended label: the cluster.
pub const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";
/// Recommended label: who manages the object. Always [`MANAGED_BY`].
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Recommended label: role in the architecture. [`COMPONENT_NODE`] on node objects.
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
/// The scheduling index of a node's shard; stable for the node's life.
pub const LABEL_SHARD_INDEX: &str = "valkey.gomomento.com/shard-index";
/// Live pod label: `primary` or `replica`, kept right by cluster-ctl.
pub const LABEL_ROLE: &str = "valkey.gomomento.com/role";
/// How a `ValkeyNode` joins: `replica`, `primary` or `shard`.
pub const LABEL_JOIN_TYPE: &str = "valkey.gomomento.com/join-type";

/// Value of [`LABEL_NAME`].
pub const APP_NAME: &str = "valkey";
/// Value of [`LABEL_MANAGED_BY`].
pub const MANAGED_BY: &str = "valkey-operator";
/// Value of [`LABEL_COMPONENT`] on node objects.
pub const COMPONENT_NODE: &str = "node";

/// Prefix of every label and annotation of ours; people may not set pod annotations under it.
pub const RESERVED_PREFIX: &str = "valkey.gomomento.com/";
/// Pod annotation: revision of users.acl; patched so that the kubelet refreshes the pod's files at once.
pub const ANNOTATION_ACL_REVISION: &str = "valkey.gomomento.com/acl-revision";
/// Pod annotation: checksum of the TLS Secret's public parts; patched so that the kubelet refreshes the pod's files at
/// once.
pub const ANNOTATION_TLS_REVISION: &str = "valkey.gomomento.com/tls-revision";
/// ACL ConfigMap annotation: a revision that a running node refused.
pub const ANNOTATION_ACL_REFUSED: &str = "valkey.gomomento.com/acl-refused";
/// `ValkeyCluster` annotation: a token; a new one asks for rotation of the system passwords.
pub const ANNOTATION_ROTATE_PASSWORDS: &str = "valkey.gomomento.com/rotate-passwords";
/// Auth Secret annotation: token of the rotation of passwords that goes on.
pub const ANNOTATION_ROTATION: &str = "valkey.gomomento.com/rotation";
/// Auth Secret annotation: token of the last rotation of passwords that was finished.
pub const ANNOTATION_ROTATED: &str = "valkey.gomomento.com/rotated";
/// `ValkeyNode` annotation set by a person: the pod UID that is certainly dead.
pub const ANNOTATION_CONFIRMED_DEAD: &str = "valkey.gomomento.com/confirmed-dead";
/// `ValkeyNode` annotation: which start attempt this node is.
pub const ANNOTATION_START_ATTEMPT: &str = "valkey.gomomento.com/start-attempt";

/// Pod readiness gate: set True once the member is part of the cluster.
pub const READINESS_GATE: &str = "valkey.gomomento.com/joined";

/// Name of the one container of a Valkey pod.
pub const CONTAINER: &str = "valkey";
/// Key of the rendered configuration in a node's ConfigMap.
pub const KEY_VALKEY_CONF: &str = "valkey.conf";
/// Key of the published ACL file in the ACL ConfigMap.
pub const KEY_USERS_ACL: &str = "users.acl";
/// Key of the last ACL file that a node proved to accept.
pub const KEY_USERS_ACL_ACCEPTED: &str = "users.acl.accepted";
/// Auth Secret key: password of the operator's user.
pub const KEY_OPERATOR_PASSWORD: &str = "operator-password";
/// Auth Secret key: password of the replication user.
pub const KEY_REPL_PASSWORD: &str = "repl-password";
/// Auth Secret key, while a rotation goes on: the operator's password to be.
pub const KEY_OPERATOR_PASSWORD_NEXT: &str = "operator-password-next";
/// Auth Secret key, while a rotation goes on: the replication password to be.
pub const KEY_REPL_PASSWORD_NEXT: &str = "repl-password-next";
/// Auth Secret key, while a rotation goes on: the operator's password that was.
pub const KEY_OPERATOR_PASSWORD_PREVIOUS: &str = "operator-password-previous";
/// Auth Secret key, while a rotation goes on: the replication password that was.
pub const KEY_REPL_PASSWORD_PREVIOUS: &str = "repl-password-previous";
/// Auth Secret key: the line that a node includes from its mount.
pub const KEY_PRIMARYAUTH_CONF: &str = "primaryauth.conf";
/// Auth Secret key of a TLS cluster: the last ca.crt that every running node has read.
pub const KEY_CA_PROVED: &str = "ca.crt.proved";
/// Auth Secret key of a TLS cluster: authorities that nodes were told of since; empty at rest.
pub const KEY_CA_PENDING: &str = "ca.crt.pending";

/// Valkey user of the operator.
pub const USER_OPERATOR: &str = "_momento_operator";
/// Valkey user of replication and slot migration.
pub const USER_REPL: &str = "_momento_repl";
/// Valkey user whose password is the revision of the ACL file; it may run nothing.
pub const USER_REVISION: &str = "_momento_revision";

/// Server-side-apply field manager of cluster-ctl.
pub const MANAGER_CLUSTER: &str = "valkey-operator/cluster-ctl";
/// Server-side-apply field manager of node-ctl.
pub const MANAGER_NODE: &str = "valkey-operator/node-ctl";
/// Server-side-apply field manager of reconcile-loops.
pub const MANAGER_LOOPS: &str = "valkey-operator/reconcile-loops";

/// The same of the TLS loop, which applies beside the ACL loop: an apply drops what the same manager applied before.
pub const MANAGER_LOOPS_TLS: &str = "valkey-operator/reconcile-loops-tls";

/// Name of the headless Service of a cluster.
pub fn service(cluster: &str) -> String {
    cluster.to_owned()
}

/// Name of the Secret with the system users' passwords.
pub fn auth_secret(cluster: &str) -> String {
    format!("{cluster}-operator-auth")
}

/// Name of the ConfigMap with users.acl.
pub fn acl_config_map(cluster: &str) -> String {
    format!("{cluster}-acl")
}

/// Name of a node (and its Pod) from its cluster and a random suffix of [`NODE_SUFFIX_LEN`] hex digits.
pub fn node(cluster: &str, suffix: &str) -> String {
    format!("{cluster}-{suffix}")
}

/// Name of the ConfigMap with a node's valkey.conf.
pub fn node_config_map(node: &str) -> String {
    format!("{node}-config")
}

/// Fully qualified DNS name of a member, as covered by the certificate's wildcard.
pub fn pod_host(pod: &str, cluster: &str, namespace: &str) -> String {
    format!("{pod}.{cluster}.{namespace}.svc.cluster.local")
}

/// Fully qualified DNS name of the cluster's Service.
pub fn service_host(cluster: &str, namespace: &str) -> String {
    format!("{cluster}.{namespace}.svc.cluster.local")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_cluster_name_leaves_every_derived_name_a_dns_label() {
        let cluster = "c".repeat(MAX_CLUSTER_NAME);
        let node = node(&cluster, "fffff");
        for name in
            [service(&cluster), auth_secret(&cluster), acl_config_map(&cluster), node_config_map(&node), node]
        {
            assert!(name.len() <= 63, "{name} has {} characters", name.len());
        }
    }
}

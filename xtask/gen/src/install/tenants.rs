//! What product teams may do: two ClusterRoles, shipped with the operator and bound by the platform team; the same
//! rules for the built-in roles, for those who want that; and a manifest to copy for a new team.
//!
//! Nothing here touches Secrets, Pods, ConfigMaps, or the writing of the menu and of `ValkeyNode`s.

use serde_json::{Value, json};
use shared::names::GROUP;

use super::labels;

/// Writes clusters and reads their nodes; to be bound in a namespace.
pub(crate) const CLUSTER_EDITOR: &str = "valkey-cluster-editor";
/// Reads the menu, which is cluster-wide; to be bound cluster-wide.
pub(crate) const MENU_READER: &str = "valkey-menu-reader";

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];
const MENU: [&str; 3] = ["valkeyconfigs", "valkeyimages", "valkeyroles"];

/// The team in the manifest to copy: its namespace, and its group as the API server knows it.
const TEAM: &str = "team-a";

/// The two roles.
pub(super) fn roles() -> [Value; 2] {
    [
        cluster_role(
            CLUSTER_EDITOR,
            &json!({}),
            &[rule(&["valkeyclusters"], &WRITE), rule(&["valkeynodes"], &READ)],
        ),
        cluster_role(MENU_READER, &json!({}), &[rule(&MENU, &READ)]),
    ]
}

/// Roles that Kubernetes merges into `edit` and `admin`, and into `view`: whoever has one of these in a namespace then
/// has the same of clusters there. The menu is cluster-wide, so only a ClusterRoleBinding of `view` reads it by this.
pub(super) fn aggregation() -> [Value; 2] {
    let edit = json!({
        "rbac.authorization.k8s.io/aggregate-to-admin": "true",
        "rbac.authorization.k8s.io/aggregate-to-edit": "true",
    });
    let view = json!({ "rbac.authorization.k8s.io/aggregate-to-view": "true" });
    let menu_and_nodes = [MENU.as_slice(), &["valkeyclusters", "valkeynodes"]].concat();
    [
        cluster_role("valkey-aggregate-edit", &edit, &[rule(&["valkeyclusters"], &WRITE)]),
        cluster_role("valkey-aggregate-view", &view, &[rule(&menu_and_nodes, &READ)]),
    ]
}

/// A new team: its namespace, and both roles for its group.
pub(super) fn onboarding() -> [Value; 3] {
    let binding = |kind: &str, metadata: Value, role: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": metadata,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": TEAM }],
        })
    };
    [
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": { "name": TEAM, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
        }),
        binding("RoleBinding", json!({ "name": CLUSTER_EDITOR, "namespace": TEAM }), CLUSTER_EDITOR),
        binding("ClusterRoleBinding", json!({ "name": format!("{TEAM}-{MENU_READER}") }), MENU_READER),
    ]
}

fn cluster_role(name: &str, more_labels: &Value, rules: &[Value]) -> Value {
    let mut all = labels();
    if let (Some(all), Some(more)) = (all.as_object_mut(), more_labels.as_object()) {
        all.extend(more.clone());
    }
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": name, "labels": all },
        "rules": rules,
    })
}

fn rule(resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [GROUP], "resources": resources, "verbs": verbs })
}

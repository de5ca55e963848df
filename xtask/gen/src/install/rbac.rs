//! What the operator may do: per binary the verbs that its code uses, and nothing else; merged into one ClusterRole,
//! since the three containers share one ServiceAccount.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use shared::names::GROUP as VALKEY;

use super::{NAME, NAMESPACE, cluster_wide};

/// API group, resource, verbs.
type Grant = (&'static str, &'static str, &'static [&'static str]);

/// Watches the whole picture, writes nodes and cluster-level objects, keeps pods' metadata right.
const CLUSTER_CTL: &[Grant] = &[
    (VALKEY, "valkeyclusters", &["list", "watch", "patch"]),
    (VALKEY, "valkeyclusters/status", &["patch"]),
    // Owner references that block the owner's deletion: OwnerReferencesPermissionEnforcement asks for this.
    (VALKEY, "valkeyclusters/finalizers", &["update"]),
    (VALKEY, "valkeynodes", &["list", "watch", "create", "patch", "delete"]),
    (VALKEY, "valkeynodes/status", &["patch"]),
    (VALKEY, "valkeyconfigs", &["list", "watch"]),
    (VALKEY, "valkeyimages", &["list", "watch"]),
    (VALKEY, "valkeyroles", &["list", "watch"]),
    ("", "pods", &["get", "list", "watch", "patch", "delete"]),
    ("", "pods/status", &["patch"]),
    ("", "services", &["get", "list", "watch", "create", "patch"]),
    ("discovery.k8s.io", "endpointslices", &["list", "watch"]),
    ("", "secrets", &["get", "list", "watch", "create", "patch"]),
    ("", "configmaps", &["get", "list", "watch", "create", "patch"]),
    ("", "nodes", &["list", "watch"]),
    ("events.k8s.io", "events", &["create"]),
];

/// Creates a node's ConfigMap and Pod, records the Pod and then lets go of it, and deletes both with the node.
const NODE_CTL: &[Grant] = &[
    (VALKEY, "valkeyclusters", &["get"]),
    (VALKEY, "valkeynodes", &["get", "list", "watch", "patch"]),
    (VALKEY, "valkeynodes/status", &["patch"]),
    (VALKEY, "valkeynodes/finalizers", &["update"]),
    ("", "pods", &["get", "list", "watch", "create", "patch", "delete"]),
    ("", "configmaps", &["get", "list", "watch", "create", "delete"]),
    ("events.k8s.io", "events", &["create"]),
];

/// Watches what should be loaded, tells whether it is.
const RECONCILE_LOOPS: &[Grant] = &[
    // Read live when somebody else wrote the status first.
    (VALKEY, "valkeyclusters", &["get", "list", "watch"]),
    (VALKEY, "valkeyclusters/status", &["patch"]),
    (VALKEY, "valkeynodes", &["list", "watch"]),
    ("", "pods", &["list", "watch"]),
    // The refusal or the proof of a users.acl is recorded on its ConfigMap.
    ("", "configmaps", &["get", "list", "watch", "patch"]),
    // The authorities that nodes have read are recorded in the auth Secret.
    ("", "secrets", &["get", "list", "watch", "patch"]),
    ("events.k8s.io", "events", &["create"]),
];

/// The ClusterRole and its binding.
pub(super) fn documents() -> [Value; 2] {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": cluster_wide(),
        "rules": rules(&[CLUSTER_CTL, NODE_CTL, RECONCILE_LOOPS]),
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": cluster_wide(),
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME },
        "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE }],
    });
    [role, binding]
}

/// One rule per resource, verbs merged and sorted.
fn rules(binaries: &[&[Grant]]) -> Vec<Value> {
    let mut merged: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for (group, resource, verbs) in binaries.iter().copied().flatten() {
        merged.entry((group, resource)).or_default().extend(*verbs);
    }
    merged
        .into_iter()
        .map(|((group, resource), verbs)| json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documentation's table of verbs a binary: resource, then one cell each.
    fn documented() -> BTreeMap<String, [BTreeSet<String>; 3]> {
        let page = include_str!("../../../../docs/security/rbac.md");
        let rows = page.lines().skip_while(|line| !line.starts_with("| resource | cluster-ctl |")).skip(2);
        let mut table = BTreeMap::new();
        for row in rows.take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [resources, verbs @ ..] = cells.as_slice() else { continue };
            let verbs: Vec<BTreeSet<String>> = verbs.iter().map(|cell| words(cell)).collect();
            let verbs: [BTreeSet<String>; 3] = verbs.try_into().unwrap();
            table.extend(words(resources).into_iter().map(|resource| (resource, verbs.clone())));
        }
        table
    }

    fn words(cell: &str) -> BTreeSet<String> {
        cell.split(',').map(str::trim).filter(|word| !word.is_empty()).map(ToOwned::to_owned).collect()
    }

    #[test]
    fn the_evidence_has_the_number_of_verbs() {
        let page = include_str!("../../../../docs/security/evidence.md");
        let count = |grants: &[Grant]| grants.iter().map(|(_, _, verbs)| verbs.len()).sum::<usize>();
        let rules = rules(&[CLUSTER_CTL, NODE_CTL, RECONCILE_LOOPS]);
        let all: usize = rules.iter().map(|rule| rule["verbs"].as_array().unwrap().len()).sum();
        let [cluster, node, loops] = [CLUSTER_CTL, NODE_CTL, RECONCILE_LOOPS].map(count);
        let told = format!("| {all} on {} resources | {cluster} | {node} | {loops} |", rules.len());
        assert!(page.contains(&told), "docs/security/evidence.md lacks {told}");
    }

    #[test]
    fn the_documentation_lists_exactly_the_verbs_of_each_binary() {
        let mut granted: BTreeMap<String, [BTreeSet<String>; 3]> = BTreeMap::new();
        for (index, grants) in [CLUSTER_CTL, NODE_CTL, RECONCILE_LOOPS].into_iter().enumerate() {
            for (group, resource, verbs) in grants {
                let name = if *resource == "events" {
                    format!("{resource} ({group})")
                } else {
                    (*resource).to_owned()
                };
                granted.entry(name).or_default()[index].extend(verbs.iter().map(|verb| (*verb).to_owned()));
            }
        }
        assert_eq!(documented(), granted, "docs/security/rbac.md");
    }

    #[test]
    fn no_grant_is_a_wildcard_and_none_allows_escalation() {
        for (group, resource, verbs) in [CLUSTER_CTL, NODE_CTL, RECONCILE_LOOPS].into_iter().flatten() {
            assert!(!verbs.contains(&"*") && *resource != "*" && *group != "*", "{resource}");
            assert!(
                !["escalate", "bind", "impersonate"].iter().any(|verb| verbs.contains(verb)),
                "{resource}"
            );
            assert!(!(*resource == "secrets" && verbs.contains(&"delete")), "Secrets are never deleted");
        }
    }

    #[test]
    fn grants_for_one_resource_become_one_rule() {
        let rules = rules(&[&[("", "pods", &["get"])], &[("", "pods", &["list", "get"])]]);
        assert_eq!(rules, [json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] })]);
    }
}

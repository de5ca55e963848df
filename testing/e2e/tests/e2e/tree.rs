//! What a cluster consists of, in full, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use test_e2e::objects::{name, text};
use test_e2e::{Deployed, Kind, Scene};

/// Kinds and names that Kubernetes itself puts into every namespace, or makes for a Service.
fn is_of_kubernetes(kind: &str, object: &Value) -> bool {
    match kind {
        "Event" | "Endpoints" | "EndpointSlice" | "PodMetrics" => true,
        "ConfigMap" => name(object) == "kube-root-ca.crt",
        "ServiceAccount" => name(object) == "default",
        _ => false,
    }
}

/// The tree of `cluster`: kind and name, and name of the controlling owner.
async fn expected(cluster: &Deployed<'_>) -> BTreeSet<(String, String, String)> {
    let name_of = &cluster.name;
    let entry = |kind: &str, name: &str, owner: &str| (kind.to_owned(), name.to_owned(), owner.to_owned());
    let mut tree = BTreeSet::from([
        entry("ValkeyCluster", name_of, ""),
        entry("Service", name_of, name_of),
        entry("Secret", &format!("{name_of}-operator-auth"), name_of),
        entry("ConfigMap", &format!("{name_of}-acl"), name_of),
    ]);
    for node in cluster.list(Kind::NODE).await.unwrap() {
        let node = name(&node);
        tree.insert(entry("ValkeyNode", node, name_of));
        tree.insert(entry("Pod", node, node));
        tree.insert(entry("ConfigMap", &format!("{node}-config"), node));
    }
    tree
}

/// Checks owner references and labels of one object of the tree, and returns the owner's name.
fn owner_and_labels(kind: &str, object: &Value) -> String {
    if kind == "ValkeyCluster" {
        return String::new();
    }
    let what = format!("{kind} {}", name(object));
    let owners =
        object["metadata"]["ownerReferences"].as_array().unwrap_or_else(|| panic!("{what} has no owner"));
    assert_eq!(owners.len(), 1, "{what}");
    assert_eq!(owners[0]["controller"], true, "{what}");
    assert_eq!(owners[0]["blockOwnerDeletion"], true, "{what}");
    let labels = &object["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/name"], "valkey", "{what}");
    assert_eq!(labels["app.kubernetes.io/instance"], "tree", "{what}");
    assert_eq!(labels["app.kubernetes.io/managed-by"], "valkey-operator", "{what}");
    if matches!(kind, "ValkeyNode" | "Pod") || name(object).ends_with("-config") {
        assert_eq!(labels["app.kubernetes.io/component"], "node", "{what}");
        let index = text(labels, "/valkey.gomomento.com~1shard-index");
        assert!(["0", "1"].contains(&index), "{what} has shard index {index:?}");
    }
    text(&owners[0], "/name").to_owned()
}

#[tokio::test]
async fn a_namespace_with_a_cluster_holds_the_documented_tree_and_nothing_else() {
    let scene = Scene::new("tree").await.unwrap();
    let cluster = scene.blueprint("tree", 2, 1).create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    let mut seen = BTreeSet::new();
    for (kind, object) in scene.objects.everything().await.unwrap() {
        if !is_of_kubernetes(&kind, &object) {
            seen.insert((kind.clone(), name(&object).to_owned(), owner_and_labels(&kind, &object)));
        }
    }
    assert_eq!(seen, expected(&cluster).await);
    scene.finish().unwrap();
}

#[tokio::test]
async fn every_member_is_named_and_numbered_and_says_its_role() {
    let scene = Scene::new("members").await.unwrap();
    let cluster = scene.blueprint("tree", 2, 1).create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    let mut roles = Vec::new();
    for node in cluster.list(Kind::NODE).await.unwrap() {
        let node_name = name(&node);
        let suffix = node_name.strip_prefix("tree-").unwrap();
        assert!(suffix.len() == 5 && suffix.chars().all(|it| "0123456789abcdef".contains(it)), "{node_name}");
        let pod = scene.objects.get(Kind::POD, node_name).await.unwrap();
        let label = text(&pod, "/metadata/labels/valkey.gomomento.com~1role");
        assert_eq!(label, text(&node, "/status/role"), "{node_name}");
        assert_eq!(text(&pod, "/status/podIP"), text(&node, "/status/podIP"), "{node_name}");
        assert_eq!(text(&pod, "/metadata/uid"), text(&node, "/status/pod/uid"), "{node_name}");
        roles.push((
            text(&node, "/metadata/labels/valkey.gomomento.com~1shard-index").to_owned(),
            label.to_owned(),
        ));
    }
    roles.sort();
    let expected = [("0", "primary"), ("0", "replica"), ("1", "primary"), ("1", "replica")];
    assert_eq!(roles, expected.map(|(index, role)| (index.to_owned(), role.to_owned())));
    scene.finish().unwrap();
}

/// The values of the auth Secret's keys.
async fn auth_secret(scene: &Scene) -> BTreeMap<String, String> {
    let template =
        "go-template={{range $key, $value := .data}}{{$key}}={{$value | base64decode}}{{\"\\n\"}}{{end}}";
    let arguments = ["-n", &scene.name, "get", "secret", "tree-operator-auth", "-o", template];
    let text = scene.kubectl().run(&arguments).await.unwrap().success().unwrap();
    let lines = text.lines().filter_map(|line| line.split_once('='));
    lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[tokio::test]
async fn the_system_passwords_are_long_and_in_no_object_but_the_secret_and_in_no_log() {
    let scene = Scene::new("passwords").await.unwrap();
    let cluster = scene.blueprint("tree", 1, 1).create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    let secret = auth_secret(&scene).await;
    let passwords = [&secret["operator-password"], &secret["repl-password"]];
    assert_ne!(passwords[0], passwords[1]);
    assert_eq!(secret["primaryauth.conf"], format!("primaryauth \"{}\"", passwords[1]));
    let leaks = |text: &str| passwords.iter().any(|password| text.contains(password.as_str()));
    for (kind, object) in scene.objects.everything().await.unwrap() {
        assert!(kind == "Secret" || !leaks(&object.to_string()), "a password is in {kind} {}", name(&object));
    }
    for container in test_e2e::operator::CONTAINERS {
        let log = scene.operator.log(container, 2000).await.unwrap();
        assert!(!leaks(&log), "a password is in the log of {container}");
    }
    for password in passwords {
        assert!(password.chars().all(|it| it.is_ascii_hexdigit()));
        assert_eq!(password.len(), 128);
    }
    scene.finish().unwrap();
}

//! Rules on changes: what an existing object may become.

use serde_json::{Value, json};
use support::TestNamespace;
use test_api::Server;
use test_api::case::{object, with};

const NODE_ID: &str = "0123456789abcdef0123456789abcdef01234567";
const OTHER_ID: &str = "fedcba9876543210fedcba9876543210fedcba98";

/// A change, and what it is refused with; `None` if it is allowed.
type Change = (&'static str, Value, Option<&'static str>);

/// The dry-run answers to `changes` of `stored` that are not as they should be.
async fn wrong(server: &Server, stored: &Value, status: bool, changes: &[Change]) -> Vec<String> {
    let mut failures = Vec::new();
    for (what, patch, refused_with) in changes {
        let answer = server.dry_patch(stored, patch, status).await.unwrap();
        match (refused_with, answer) {
            (None, Err(refusal)) => failures.push(format!("{what}: refused: {refusal}")),
            (Some(_), Ok(_)) => failures.push(format!("{what}: accepted")),
            (Some(expected), Err(refusal)) if !refusal.contains(expected) => {
                failures.push(format!("{what}: not {expected:?} but: {refusal}"));
            }
            (None, Ok(_)) | (Some(_), Err(_)) => {}
        }
    }
    failures
}

fn cluster(name: &str, spec: &Value) -> Value {
    let base = json!({ "configRef": "small", "shards": 3, "replicasPerShard": 1 });
    object("ValkeyCluster", name, &with(&base, spec))
}

fn node(name: &str, spec: &Value) -> Value {
    let base = json!({ "clusterName": "cache", "image": "valkey:9", "shardIndex": 0 });
    object("ValkeyNode", name, &with(&base, spec))
}

#[tokio::test]
async fn tls_changes_its_secret_but_neither_comes_nor_goes() {
    let server = Server::ready().await.unwrap();
    let namespace = TestNamespace::create(&server.cluster, "api-tls").await.unwrap();
    let plain = server.create(&cluster("plain", &json!({})), &namespace.name).await.unwrap();
    let tls = json!({ "tls": { "secretRef": "first" } });
    let secure = server.create(&cluster("secure", &tls), &namespace.name).await.unwrap();
    let refused = Some("tls cannot be added to or removed from an existing cluster");
    let of_plain = [
        ("add TLS", json!({ "spec": { "tls": { "secretRef": "new" } } }), refused),
        ("scale without TLS", json!({ "spec": { "shards": 5 } }), None),
    ];
    let of_secure = [
        ("remove TLS", json!({ "spec": { "tls": null } }), refused),
        ("another Secret", json!({ "spec": { "tls": { "secretRef": "second" } } }), None),
        ("scale with TLS", json!({ "spec": { "shards": 5 } }), None),
    ];
    assert_eq!(wrong(&server, &plain, false, &of_plain).await, [""; 0]);
    assert_eq!(wrong(&server, &secure, false, &of_secure).await, [""; 0]);
}

#[tokio::test]
async fn every_field_of_a_cluster_but_the_presence_of_tls_may_change() {
    let server = Server::ready().await.unwrap();
    let namespace = TestNamespace::create(&server.cluster, "api-edit").await.unwrap();
    let stored = server.create(&cluster("cache", &json!({})), &namespace.name).await.unwrap();
    let binding = json!({ "username": "a", "passwordHashes": ["0f".repeat(32)], "permissions": [{ "roleRef": "r", "keys": [] }] });
    let changes = [
        ("config", json!({ "spec": { "configRef": "large" } }), None),
        ("fewer shards", json!({ "spec": { "shards": 1 } }), None),
        ("no replicas", json!({ "spec": { "replicasPerShard": 0 } }), None),
        ("users", json!({ "spec": { "acl": [binding] } }), None),
        ("placement", json!({ "spec": { "placement": { "zoneSpread": "required" } } }), None),
        ("annotations", json!({ "spec": { "podAnnotations": { "a": "b" } } }), None),
        ("the rules of creation", json!({ "spec": { "shards": 0 } }), Some("greater than or equal to 1")),
    ];
    assert_eq!(wrong(&server, &stored, false, &changes).await, [""; 0]);
}

#[tokio::test]
async fn a_node_changes_nothing_but_its_lifecycle() {
    let server = Server::ready().await.unwrap();
    let namespace = TestNamespace::create(&server.cluster, "api-node").await.unwrap();
    let bare = server.create(&node("bare", &json!({})), &namespace.name).await.unwrap();
    let full = json!({
        "cpu": "1", "memory": "1Gi", "version": "9", "valkeySettings": { "hz": "10" }, "tlsSecret": "t",
        "placement": { "zones": ["a"] },
    });
    let full = server.create(&node("full", &full), &namespace.name).await.unwrap();
    let values = [
        ("clusterName", json!("other")),
        ("image", json!("valkey:10")),
        ("shardIndex", json!(1)),
        ("cpu", json!("2")),
        ("memory", json!("2Gi")),
        ("version", json!("10")),
        ("valkeySettings", json!({ "hz": "11" })),
        ("valkeySettings", json!({ "maxclients": "1" })),
        ("tlsSecret", json!("other")),
        ("placement", json!({ "zones": ["b"] })),
        ("placement", json!({ "zoneSpread": "required" })),
    ];
    let refused = Some("the spec of a ValkeyNode is immutable except for lifecycle");
    let edits: Vec<Change> = values
        .into_iter()
        .map(|(field, value)| (field, json!({ "spec": { field: value } }), refused))
        .collect();
    assert_eq!(wrong(&server, &bare, false, &edits).await, [""; 0], "on a minimal node");
    assert_eq!(wrong(&server, &full, false, &edits).await, [""; 0], "on a full node");
    let removals: Vec<Change> = ["cpu", "memory", "version", "valkeySettings", "tlsSecret", "placement"]
        .into_iter()
        .map(|field| (field, json!({ "spec": { field: null } }), refused))
        .collect();
    assert_eq!(wrong(&server, &full, false, &removals).await, [""; 0], "removed");
    let allowed = [
        ("labels", json!({ "metadata": { "labels": { "a": "b" } } }), None),
        ("lifecycle", json!({ "spec": { "lifecycle": "Leaving" } }), None),
    ];
    assert_eq!(wrong(&server, &full, false, &allowed).await, [""; 0]);
}

#[tokio::test]
async fn a_lifecycle_moves_only_forward() {
    let server = Server::ready().await.unwrap();
    let namespace = TestNamespace::create(&server.cluster, "api-life").await.unwrap();
    let refused = Some("lifecycle moves only from Joining to Active or Leaving, and from Active to Leaving");
    let to = |lifecycle: &str| json!({ "spec": { "lifecycle": lifecycle } });
    let moves = |verdicts: [Option<&'static str>; 3]| {
        let [joining, active, leaving] = verdicts;
        [
            ("to Joining", to("Joining"), joining),
            ("to Active", to("Active"), active),
            ("to Leaving", to("Leaving"), leaving),
        ]
    };
    for (from, verdicts) in [
        ("Joining", [None, None, None]),
        ("Active", [refused, None, None]),
        ("Leaving", [refused, refused, None]),
    ] {
        let name = format!("from-{}", from.to_lowercase());
        let stored =
            server.create(&node(&name, &json!({ "lifecycle": from })), &namespace.name).await.unwrap();
        assert_eq!(wrong(&server, &stored, false, &moves(verdicts)).await, [""; 0], "from {from}");
    }
}

#[tokio::test]
async fn what_identifies_a_node_is_recorded_once() {
    let server = Server::ready().await.unwrap();
    let namespace = TestNamespace::create(&server.cluster, "api-record").await.unwrap();
    let stored = server.create(&node("cache-0a1b2", &json!({})), &namespace.name).await.unwrap();
    let first = [
        ("an id", json!({ "status": { "nodeId": NODE_ID } }), None),
        ("an id that is none", json!({ "status": { "nodeId": "x" } }), Some("status.nodeId")),
        ("a pod", json!({ "status": { "pod": { "uid": "u" } } }), None),
    ];
    assert_eq!(wrong(&server, &stored, true, &first).await, [""; 0]);
    let record =
        json!({ "status": { "nodeId": NODE_ID, "pod": { "uid": "u" }, "role": "replica", "slots": 0 } });
    let stored = server.patch_status(&stored, &record).await.unwrap();
    let end = json!({ "terminatedAt": "2026-01-02T03:04:05Z", "exitCode": 137, "reason": "OOMKilled", "message": "m" });
    let then = [
        ("the same again", record.clone(), None),
        ("a new role", json!({ "status": { "role": "primary", "slots": 5461, "synced": true } }), None),
        ("the end of the pod", json!({ "status": { "pod": end } }), None),
        ("another id", json!({ "status": { "nodeId": OTHER_ID } }), Some("nodeId is recorded once")),
        ("no id", json!({ "status": { "nodeId": null } }), Some("nodeId is recorded once")),
        ("another pod", json!({ "status": { "pod": { "uid": "v" } } }), Some("UID is recorded once")),
        ("no pod", json!({ "status": { "pod": null } }), Some("UID is recorded once")),
    ];
    assert_eq!(wrong(&server, &stored, true, &then).await, [""; 0]);
    let stored = server.patch_status(&stored, &json!({ "status": { "pod": end } })).await.unwrap();
    let last = [
        (
            "another end",
            json!({ "status": { "pod": { "exitCode": 0 } } }),
            Some("the end of the pod is recorded once"),
        ),
        (
            "no end",
            json!({ "status": { "pod": { "terminatedAt": null } } }),
            Some("the end of the pod is recorded once"),
        ),
        ("slots", json!({ "status": { "slots": 1 } }), None),
    ];
    assert_eq!(wrong(&server, &stored, true, &last).await, [""; 0]);
}

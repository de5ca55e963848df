//! What the server stores: defaults, pruning, the status subresource, and that our types read all of it back.

use serde_json::{Value, json};
use shared::api::{ValkeyCluster, ValkeyClusterStatus, ValkeyConfig, ValkeyNode};
use support::TestNamespace;
use test_api::Server;
use test_api::case::{Verdict, object, with};
use test_api::cases;

fn cluster() -> Value {
    object("ValkeyCluster", "cache", &json!({ "configRef": "small", "shards": 3, "replicasPerShard": 1 }))
}

#[tokio::test]
async fn defaults_are_filled_in_and_nothing_else() {
    let server = Server::ready().await.unwrap();
    let stored = server.dry_create(&cluster()).await.unwrap().unwrap();
    assert_eq!(stored["spec"], json!({ "configRef": "small", "shards": 3, "replicasPerShard": 1 }));
    let node = object("ValkeyNode", "n", &json!({ "clusterName": "c", "image": "i", "shardIndex": 0 }));
    let stored = server.dry_create(&node).await.unwrap().unwrap();
    let expected = json!({
        "clusterName": "c", "image": "i", "shardIndex": 0, "lifecycle": "Active", "valkeySettings": {},
    });
    assert_eq!(stored["spec"], expected);
    let keys = json!([{ "pattern": "a" }]);
    let binding = json!({
        "username": "u", "passwordHashes": ["0f".repeat(32)], "permissions": [{ "roleRef": "r", "keys": keys }],
    });
    let config = object("ValkeyConfig", "c", &json!({ "acl": [binding] }));
    let stored = server.dry_create(&config).await.unwrap().unwrap();
    let key = stored.pointer("/spec/acl/0/permissions/0/keys/0").unwrap();
    assert_eq!(key, &json!({ "pattern": "a", "access": "readwrite" }));
}

#[tokio::test]
async fn unknown_fields_and_nulls_are_dropped() {
    let server = Server::ready().await.unwrap();
    let patch =
        json!({ "spec": { "image": "evil:1", "acl": [], "placement": { "zones": [], "affinity": {} } } });
    let mut with_null = with(&cluster(), &patch);
    with_null["spec"]["tls"] = Value::Null;
    let stored = server.dry_create(&with_null).await.unwrap().unwrap();
    let expected = json!({
        "configRef": "small", "shards": 3, "replicasPerShard": 1, "acl": [], "placement": { "zones": [] },
    });
    assert_eq!(stored["spec"], expected);
}

#[tokio::test]
async fn an_empty_acl_of_a_config_stays_set() {
    let server = Server::ready().await.unwrap();
    for (spec, expected) in [(json!({ "acl": [] }), Some(0)), (json!({}), None)] {
        let stored = server.dry_create(&object("ValkeyConfig", "c", &spec)).await.unwrap().unwrap();
        let config: ValkeyConfig = serde_json::from_value(stored).unwrap();
        assert_eq!(config.spec.acl.map(|acl| acl.len()), expected);
    }
}

#[tokio::test]
async fn a_status_is_written_only_through_its_subresource_and_starts_creating() {
    let server = Server::ready().await.unwrap();
    let namespace = TestNamespace::create(&server.cluster, "api-status").await.unwrap();
    let spoofed = with(&cluster(), &json!({ "status": { "state": "Active", "nodes": ["x"] } }));
    let stored = server.create(&spoofed, &namespace.name).await.unwrap();
    assert_eq!(stored["status"], Value::Null);
    let stored = server.patch_status(&stored, &json!({ "status": { "nodes": ["a"] } })).await.unwrap();
    assert_eq!(stored["status"], json!({ "state": "Creating", "nodes": ["a"] }));
    let edited = server.dry_patch(&stored, &json!({ "status": { "nodes": [] } }), false).await.unwrap();
    assert_eq!(edited.unwrap()["status"], stored["status"], "the main resource does not touch the status");
}

#[tokio::test]
async fn a_full_status_is_stored_as_the_operator_writes_it() {
    let server = Server::ready().await.unwrap();
    let namespace = TestNamespace::create(&server.cluster, "api-full").await.unwrap();
    let stored = server.create(&cluster(), &namespace.name).await.unwrap();
    let typed: ValkeyCluster = serde_json::from_value(stored.clone()).unwrap();
    let written: ValkeyClusterStatus = serde_json::from_value(json!({
        "state": "Invalid",
        "targetSpec": typed.spec,
        "nodes": ["cache-00001"],
        "message": "m",
        "observedGeneration": 1,
        "conditions": [{
            "type": "Ready", "status": "False", "reason": "Scaling", "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        }],
        "shards": 3, "readyNodes": 5, "ready": "5/6", "slotsAssigned": 16384,
        "lastAction": { "number": 7, "kind": "Failover", "on": "cache-00001", "time": "2026-01-02T03:04:05Z" },
    }))
    .unwrap();
    let answer = server.patch_status(&stored, &json!({ "status": written })).await.unwrap();
    let read: ValkeyCluster = serde_json::from_value(answer.clone()).unwrap();
    assert_eq!(read.status.as_ref(), Some(&written), "nothing was dropped, so the CRD knows every field");
    let cleared =
        server.patch_status(&answer, &json!({ "status": { "targetSpec": null, "message": null } })).await;
    let read: ValkeyCluster = serde_json::from_value(cleared.unwrap()).unwrap();
    assert_eq!(read.status.unwrap().target_spec, None);
}

#[tokio::test]
async fn two_writers_own_different_conditions() {
    use kube::api::{Api, Patch, PatchParams};
    let server = Server::ready().await.unwrap();
    let namespace = TestNamespace::create(&server.cluster, "api-conditions").await.unwrap();
    server.create(&cluster(), &namespace.name).await.unwrap();
    let api: Api<ValkeyCluster> = Api::namespaced(server.cluster.client.clone(), &namespace.name);
    let apply = |manager: &'static str, types: &'static [&'static str]| {
        let conditions: Vec<Value> = types
            .iter()
            .map(|kind| {
                json!({
                    "type": kind, "status": "True", "reason": "R", "message": manager,
                    "lastTransitionTime": "2026-01-02T03:04:05Z",
                })
            })
            .collect();
        let patch = json!({
            "apiVersion": "valkey.gomomento.com/v1alpha1", "kind": "ValkeyCluster",
            "metadata": { "name": "cache" }, "status": { "conditions": conditions },
        });
        let api = api.clone();
        async move { api.patch_status("cache", &PatchParams::apply(manager).force(), &Patch::Apply(patch)).await }
    };
    apply("cluster-ctl", &["Ready", "Progressing"]).await.unwrap();
    apply("reconcile-loops", &["ACLApplied"]).await.unwrap();
    let cluster = apply("cluster-ctl", &["Ready"]).await.unwrap();
    let left: Vec<(String, String)> =
        cluster.status.unwrap().conditions.into_iter().map(|kept| (kept.type_, kept.message)).collect();
    let expected = [("Ready", "cluster-ctl"), ("ACLApplied", "reconcile-loops")];
    assert_eq!(left, expected.map(|(kind, writer)| (kind.to_owned(), writer.to_owned())));
}

#[tokio::test]
async fn our_types_read_back_whatever_the_server_accepts() {
    let server = Server::ready().await.unwrap();
    for case in cases::all().into_iter().filter(|case| matches!(case.verdict, Verdict::Accept)) {
        let stored = server.dry_create(&case.object).await.unwrap().unwrap();
        let spec = stored["spec"].clone();
        let again = match stored["kind"].as_str().unwrap() {
            "ValkeyCluster" => reread::<ValkeyCluster>(stored),
            "ValkeyConfig" => reread::<ValkeyConfig>(stored),
            "ValkeyNode" => reread::<ValkeyNode>(stored),
            "ValkeyImage" => reread::<shared::api::ValkeyImage>(stored),
            _ => reread::<shared::api::ValkeyRole>(stored),
        };
        // An empty list or map that is the same as none may be left out when written again.
        assert_eq!(without_empty(&again), without_empty(&spec), "{}", case.what);
    }
}

/// The spec after a round trip through `K`.
fn reread<K: serde::de::DeserializeOwned + serde::Serialize>(stored: Value) -> Value {
    serde_json::to_value(serde_json::from_value::<K>(stored).unwrap()).unwrap()["spec"].clone()
}

fn without_empty(value: &Value) -> Value {
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty) || value == &json!({});
    match value {
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| (name.clone(), without_empty(member)))
            .filter(|(_, member)| !is_empty(member))
            .collect(),
        Value::Array(entries) => entries.iter().map(without_empty).collect(),
        other => other.clone(),
    }
}

//! Tests of the node loop: the plan's cases, the bytes of what is made, and whole lives against a model.

mod life;
mod model;
mod plan;
mod pod;
mod policies;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde_json::json;
use shared::api::{ValkeyCluster, ValkeyNode};

/// UID of the node in these tests.
const NODE_UID: &str = "node-uid";
/// UID of its cluster.
const CLUSTER_UID: &str = "cluster-uid";

/// A node as cluster-ctl makes it. Its names differ from every label's fixed value, so that swapped ones show.
fn node() -> ValkeyNode {
    serde_json::from_value(json!({
        "apiVersion": "valkey.gomomento.com/v1alpha1",
        "kind": "ValkeyNode",
        "metadata": {
            "name": "cart-3f8a1",
            "namespace": "shop",
            "uid": NODE_UID,
            "resourceVersion": "1",
            "ownerReferences": [{
                "apiVersion": "valkey.gomomento.com/v1alpha1",
                "kind": "ValkeyCluster",
                "name": "cart",
                "uid": CLUSTER_UID,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "clusterName": "cart",
            "image": "registry.example/valkey:9.1.2",
            "cpu": "500m",
            "memory": "1Gi",
            "version": "9.1.2",
            "valkeySettings": {"maxmemory-policy": "allkeys-lru"},
            "shardIndex": 2,
            "lifecycle": "Joining",
        },
    }))
    .unwrap()
}

/// Its cluster.
fn cluster() -> ValkeyCluster {
    serde_json::from_value(json!({
        "apiVersion": "valkey.gomomento.com/v1alpha1",
        "kind": "ValkeyCluster",
        "metadata": {"name": "cart", "namespace": "shop", "uid": CLUSTER_UID},
        "spec": {
            "configRef": "small",
            "shards": 3,
            "replicasPerShard": 1,
            "podAnnotations": {"team.example/owner": "checkout"},
        },
    }))
    .unwrap()
}

/// A controller of an object.
fn controlled_by(kind: &str, name: &str, uid: &str) -> Vec<OwnerReference> {
    vec![OwnerReference {
        api_version: "valkey.gomomento.com/v1alpha1".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]
}

#[test]
fn the_fixture_is_a_node_of_its_cluster() {
    assert_eq!(crate::meta::cluster_of(&node()), Some(("cart", CLUSTER_UID)));
    assert_eq!(node().name_any(), "cart-3f8a1");
}

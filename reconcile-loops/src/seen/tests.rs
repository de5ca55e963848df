use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

use super::*;

fn owner(kind: &str, name: &str, uid: &str) -> OwnerReference {
    let (kind, name, uid) = (kind.to_owned(), name.to_owned(), uid.to_owned());
    OwnerReference {
        api_version: "v".to_owned(),
        kind,
        name,
        uid,
        controller: Some(true),
        ..OwnerReference::default()
    }
}

fn of<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn cluster(name: &str) -> ValkeyCluster {
    of(json!({
        "apiVersion": "valkey.gomomento.com/v1alpha1", "kind": "ValkeyCluster",
        "metadata": { "name": name, "namespace": "ns", "uid": format!("uid-{name}"), "generation": 3 },
        "spec": { "configRef": "c", "shards": 1, "replicasPerShard": 0 },
    }))
}

fn node(cluster: &str, name: &str) -> ValkeyNode {
    let mut node: ValkeyNode = of(json!({
        "apiVersion": "valkey.gomomento.com/v1alpha1", "kind": "ValkeyNode",
        "metadata": { "name": name, "namespace": "ns", "uid": format!("uid-{name}") },
        "spec": { "clusterName": cluster, "image": "i", "shardIndex": 0 },
    }));
    node.metadata.owner_references = Some(vec![owner("ValkeyCluster", cluster, &format!("uid-{cluster}"))]);
    node
}

fn pod(name: &str) -> Pod {
    let mut pod: Pod = of(json!({
        "metadata": { "name": name, "namespace": "ns", "uid": format!("pod-{name}") },
        "status": {
            "phase": "Running", "podIP": "10.0.0.7",
            "containerStatuses": [{
                "name": "valkey", "ready": true, "restartCount": 0, "image": "i", "imageID": "i",
                "state": { "running": {} },
            }],
        },
    }));
    pod.metadata.owner_references = Some(vec![owner("ValkeyNode", name, &format!("uid-{name}"))]);
    pod
}

fn running(nodes: &[ValkeyNode], pods: &[Pod]) -> Vec<String> {
    let clusters = [cluster("a")];
    let seen = clusters_seen(&clusters, nodes, pods);
    assert_eq!(seen.len(), 1);
    seen.into_iter().flat_map(|cluster| cluster.nodes).map(|node| node.name).collect()
}

#[test]
fn a_running_pod_of_a_node_of_the_cluster_counts() {
    let clusters = [cluster("a"), cluster("a-1")];
    let nodes = [node("a-1", "a-1-00002"), node("a", "a-00001"), node("a", "a-00000")];
    let pods = [pod("a-00001"), pod("a-00000"), pod("a-1-00002")];
    let seen = clusters_seen(&clusters, &nodes, &pods);
    let names = |index: usize| seen[index].nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>();
    assert_eq!((names(0), names(1)), (vec!["a-00000", "a-00001"], vec!["a-1-00002"]));
    assert_eq!((seen[0].generation, seen[0].uid.as_str()), (Some(3), "uid-a"));
}

#[test]
fn a_pod_that_only_looks_like_a_member_is_never_sent_the_password() {
    let good = || pod("a-00000");
    let with = |change: fn(&mut Pod)| {
        let mut pod = good();
        change(&mut pod);
        running(&[node("a", "a-00000")], &[pod])
    };
    assert_eq!(with(|_| ()), ["a-00000"]);
    assert!(with(|pod| pod.metadata.owner_references = None).is_empty());
    assert!(
        with(|pod| pod.metadata.owner_references = Some(vec![owner("ReplicaSet", "a-00000", "uid-a-00000")]))
            .is_empty()
    );
    assert!(
        with(|pod| pod.metadata.owner_references = Some(vec![owner("ValkeyNode", "a-00000", "older")]))
            .is_empty()
    );
    assert!(with(|pod| pod.metadata.namespace = Some("other".to_owned())).is_empty());

    let mut stranger = node("a", "a-00000");
    stranger.metadata.owner_references = Some(vec![owner("ValkeyCluster", "a", "uid-of-an-older-a")]);
    assert!(running(&[stranger], &[good()]).is_empty());
    let mut orphan = node("a", "a-00000");
    orphan.metadata.owner_references = None;
    assert!(running(&[orphan], &[good()]).is_empty());
}

#[test]
fn a_pod_that_does_not_serve_is_not_waited_for() {
    let with = |change: fn(&mut Pod)| {
        let mut pod = pod("a-00000");
        change(&mut pod);
        running(&[node("a", "a-00000")], &[pod])
    };
    assert!(with(|pod| pod.status.as_mut().unwrap().phase = Some("Pending".to_owned())).is_empty());
    assert!(with(|pod| pod.status.as_mut().unwrap().pod_ip = None).is_empty());
    assert!(with(|pod| pod.status = None).is_empty());
    let ended: fn(&mut Pod) = |pod| {
        let status = pod.status.as_mut().unwrap();
        let state = serde_json::from_value(json!({ "terminated": { "exitCode": 137 } })).unwrap();
        status.container_statuses.as_mut().unwrap()[0].state = Some(state);
    };
    assert!(with(ended).is_empty(), "the phase says Running for a second after the server's end");
}

#[test]
fn a_pod_other_than_the_recorded_one_is_not_the_node() {
    let mut recorded = node("a", "a-00000");
    recorded.status = serde_json::from_value(json!({ "pod": { "uid": "another" } })).unwrap();
    assert!(running(&[recorded.clone()], &[pod("a-00000")]).is_empty());
    recorded.status = serde_json::from_value(json!({ "pod": { "uid": "pod-a-00000" } })).unwrap();
    assert_eq!(running(&[recorded], &[pod("a-00000")]), ["a-00000"]);
}

#[test]
fn a_cluster_that_is_being_deleted_is_left_alone() {
    let mut going = cluster("a");
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert!(clusters_seen(&[going], &[], &[]).is_empty());
}

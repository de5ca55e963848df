//! Placement as people ask for it: clusters under a running operator, on machines in three zones.
//!
//! What the scheduler makes of every combination is proved with bare Pods elsewhere; here the way from a
//! `ValkeyCluster` to where its servers run.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "an assumption that fails is a failed test"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use support::Cluster;
use test_e2e::objects::text;
use test_e2e::{Deployed, Kind, Scene};

/// Nine small servers on a busy machine.
const SETTLED_WITHIN: Duration = Duration::from_mins(2);

/// Zone of each machine.
async fn zones(cluster: &Cluster) -> BTreeMap<String, String> {
    let said = cluster.kubectl().run(&["get", "nodes", "-o", "json"]).await.unwrap().success().unwrap();
    let list: Value = serde_json::from_str(&said).unwrap();
    let zone = |node: &Value| {
        let zone = node["metadata"]["labels"]["topology.kubernetes.io/zone"].as_str()?;
        Some((text(node, "/metadata/name").to_owned(), zone.to_owned()))
    };
    let zones: BTreeMap<String, String> = list["items"].as_array().unwrap().iter().filter_map(zone).collect();
    let mut names: Vec<&String> = zones.values().collect();
    names.sort();
    names.dedup();
    assert!(names.len() >= 3, "these tests need machines in three zones, there are {zones:?}");
    zones
}

/// Shard index to the zones of its pods, one entry a pod.
async fn spread(cluster: &Deployed<'_>, zones: &BTreeMap<String, String>) -> BTreeMap<String, Vec<String>> {
    let mut spread: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pod in cluster.list(Kind::POD).await.unwrap() {
        let shard = pod["metadata"]["labels"]["valkey.gomomento.com/shard-index"].as_str().unwrap();
        spread.entry(shard.to_owned()).or_default().push(zones[text(&pod, "/spec/nodeName")].clone());
    }
    for pods in spread.values_mut() {
        pods.sort();
    }
    spread
}

#[tokio::test]
async fn the_members_of_a_shard_run_in_different_zones() {
    let scene = Scene::new("spread").await.unwrap();
    let zones = zones(&scene.cluster).await;
    let required = json!({ "placement": { "zoneSpread": "required" } });
    for (name, fields) in [("usual", json!({})), ("strict", required)] {
        let cluster = scene.blueprint(name, 2, 2).with(&fields).create().await.unwrap();
        cluster.settled(SETTLED_WITHIN).await.unwrap();
        let spread = spread(&cluster, &zones).await;
        assert_eq!(spread.len(), 2, "{spread:?}");
        for (shard, mut used) in spread.clone() {
            used.dedup();
            assert_eq!(used.len(), 3, "{name}, shard {shard}: {spread:?}");
        }
    }
    scene.finish().unwrap();
}

#[tokio::test]
async fn all_pods_stay_in_the_named_zone_and_on_the_selected_machines() {
    let scene = Scene::new("zones").await.unwrap();
    let zones = zones(&scene.cluster).await;
    let (machine, zone) = zones.iter().nth(1).unwrap();
    let in_zone = json!({ "placement": { "zones": [zone], "zoneSpread": "required" } });
    let on_machine = json!({ "placement": { "nodeSelector": { "kubernetes.io/hostname": machine } } });
    for (name, fields) in [("zone", in_zone), ("machine", on_machine)] {
        let cluster = scene.blueprint(name, 1, 2).with(&fields).create().await.unwrap();
        cluster.settled(SETTLED_WITHIN).await.unwrap();
        let spread = spread(&cluster, &zones).await;
        assert_eq!(spread["0"], [zone.as_str(); 3], "{name}");
        // What the pods were made from says so too, whatever becomes of the cluster's own spec.
        for node in cluster.list(Kind::NODE).await.unwrap() {
            let wanted = fields["placement"].as_object().unwrap();
            for (field, value) in wanted {
                assert_eq!(&node["spec"]["placement"][field], value, "{name}: {}", node["spec"]);
            }
        }
    }
    scene.finish().unwrap();
}

/// A pod that fits nowhere is said on the cluster in the scheduler's words, and correcting the cluster heals it.
#[tokio::test]
async fn a_zone_that_does_not_exist_is_reported_and_correcting_it_heals() {
    let scene = Scene::new("nowhere").await.unwrap();
    let fields = json!({ "placement": { "zones": ["no-such-zone"] } });
    let cluster = scene.blueprint("lost", 1, 1).with(&fields).create().await.unwrap();
    cluster.says("didn't match Pod's node affinity/selector", Duration::from_secs(30)).await.unwrap();
    cluster.edit(&json!({ "placement": { "zones": null } })).await.unwrap();
    cluster.settled(SETTLED_WITHIN).await.unwrap();
    scene.finish().unwrap();
}

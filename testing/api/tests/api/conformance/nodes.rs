//! `ValkeyNode`s: made, moved, recorded, guarded by a finalizer, gone.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use kube::ResourceExt as _;
use shared::api::{Lifecycle, PodRecord, ValkeyCluster, ValkeyNode, ValkeyNodeSpec, ValkeyNodeStatus};
use shared::names;

use super::objects::cluster;
use super::pair::{Held, Pair};
use super::{cluster_ctl, node_ctl};

/// A node of the cluster that joins it, with the finalizer that every node has from the start.
fn node(cluster: &ValkeyCluster) -> ValkeyNode {
    let spec = ValkeyNodeSpec {
        cluster_name: "c".to_owned(),
        image: "registry.example/valkey:9.1.2".to_owned(),
        lifecycle: Lifecycle::Joining,
        ..ValkeyNodeSpec::default()
    };
    let mut node = ValkeyNode::new("c-1", spec);
    node.metadata.namespace.clone_from(&cluster.metadata.namespace);
    node.metadata.owner_references = Some(vec![cluster_ctl::build::owner(cluster)]);
    node.metadata.finalizers = Some(vec![names::NODE_FINALIZER.to_owned()]);
    node.metadata.labels = Some(BTreeMap::from([(names::LABEL_JOIN_TYPE.to_owned(), "replica".to_owned())]));
    node
}

async fn made(pair: &mut Pair) -> Result<Held<ValkeyNode>> {
    let owner = cluster(pair).await?;
    let new = owner.map(node);
    cluster_ctl!(pair, "ok", |kube, side| kube.create_node(new.of(side)))?;
    pair.look().await?;
    pair.get("c-1").await
}

#[tokio::test]
async fn a_node_is_made_once_and_its_lifecycle_moves_forward() -> Result<()> {
    let mut pair = Pair::new().await?;
    let node = made(&mut pair).await?;
    let again = node.map(|node| {
        let mut again = node.clone();
        (again.metadata.uid, again.metadata.resource_version) = (None, None);
        again
    });
    cluster_ctl!(pair, "exists", |kube, side| kube.create_node(again.of(side)))?;
    let uid = node.map(|node| node.uid().unwrap_or_default());
    for (to, uid, clear, wanted) in [
        (Lifecycle::Active, node.map(|_| "another".to_owned()), false, "conflict"),
        (Lifecycle::Active, uid.clone(), true, "ok"),
        // The same once more.
        (Lifecycle::Active, uid.clone(), false, "ok"),
        // The label is gone, so it cannot be taken off.
        (Lifecycle::Active, uid.clone(), true, "conflict"),
        // Not forward.
        (Lifecycle::Joining, uid.clone(), false, "conflict"),
        (Lifecycle::Leaving, uid.clone(), false, "ok"),
    ] {
        cluster_ctl!(pair, wanted, |kube, side| kube.set_lifecycle(
            pair.namespace(side),
            "c-1",
            uid.of(side),
            to,
            clear
        ))?;
        pair.look().await?;
    }
    cluster_ctl!(pair, "not found", |kube, side| kube.set_lifecycle(
        pair.namespace(side),
        "c-2",
        uid.of(side),
        Lifecycle::Active,
        false
    ))?;
    pair.look().await.map(drop)
}

#[tokio::test]
async fn a_nodes_status_is_written_by_two_and_recorded_once() -> Result<()> {
    let mut pair = Pair::new().await?;
    let new = made(&mut pair).await?;
    let status = |id: char, slots| ValkeyNodeStatus {
        node_id: Some(id.to_string().repeat(40)),
        slots: Some(slots),
        ..ValkeyNodeStatus::default()
    };
    let record = |uid: &str| PodRecord { uid: uid.to_owned(), ..PodRecord::default() };
    cluster_ctl!(pair, "ok", |kube, side| kube.save_node_status(new.of(side), &status('a', 5)))?;
    pair.look().await?;
    cluster_ctl!(pair, "conflict", |kube, side| kube.save_node_status(new.of(side), &status('a', 6)))?;
    pair.look().await?;
    // Recorded at whatever version.
    node_ctl!(pair, "ok", |kube, side| kube.record_pod(new.of(side), &record("u")))?;
    pair.look().await?;
    let held = pair.get::<ValkeyNode>("c-1").await?;
    cluster_ctl!(pair, "ok", |kube, side| kube.save_node_status(held.of(side), &status('a', 7)))?;
    let shapes = pair.look().await?;
    let pod = shapes.get("ValkeyNode/c-1").and_then(|node| node.content.pointer("/status/pod/uid"));
    ensure!(pod.is_some_and(|uid| uid == "u"), "what the other writes stays: {shapes:#?}");
    let held = pair.get::<ValkeyNode>("c-1").await?;
    cluster_ctl!(pair, "ok", |kube, side| kube.save_node_status(held.of(side), &status('a', 7)))?;
    let shapes = pair.look().await?;
    ensure!(shapes.values().all(|shape| !shape.changed), "a write of nothing is no write: {shapes:#?}");
    cluster_ctl!(pair, "failed", |kube, side| kube.save_node_status(held.of(side), &status('b', 7)))?;
    node_ctl!(pair, "Refused", |kube, side| kube.record_pod(held.of(side), &record("v")))?;
    let ended = PodRecord { exit_code: Some(137), terminated_at: Some(end(1)), ..record("u") };
    node_ctl!(pair, "ok", |kube, side| kube.record_pod(held.of(side), &ended))?;
    pair.look().await?;
    let again = PodRecord { terminated_at: Some(end(2)), ..ended.clone() };
    node_ctl!(pair, "Refused", |kube, side| kube.record_pod(held.of(side), &again))?;
    node_ctl!(pair, "ok", |kube, side| kube.record_pod(held.of(side), &ended))?;
    let shapes = pair.look().await?;
    ensure!(shapes.values().all(|shape| !shape.changed), "recorded already: {shapes:#?}");
    Ok(())
}

fn end(second: i64) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    sim::world::apiserver::time(1_800_000_000_000 + second * 1_000)
}

#[tokio::test]
async fn a_node_that_goes_waits_for_its_finalizers() -> Result<()> {
    let mut pair = Pair::new().await?;
    let node = made(&mut pair).await?;
    let uid = node.map(|node| node.uid().unwrap_or_default());
    let another = node.map(|_| "another".to_owned());
    let two = || vec![names::NODE_FINALIZER.to_owned(), "example.com/theirs".to_owned()];
    node_ctl!(pair, "ok", |kube, side| kube.set_finalizers(node.of(side), two()))?;
    pair.look().await?;
    node_ctl!(pair, "Conflict", |kube, side| kube.set_finalizers(node.of(side), Vec::new()))?;
    for uid in [&another, &uid, &uid] {
        cluster_ctl!(pair, "ok", |kube, side| kube.delete_node(pair.namespace(side), "c-1", uid.of(side)))?;
        pair.look().await?;
    }
    let going = pair.get::<ValkeyNode>("c-1").await?;
    let three = || [two(), vec!["example.com/more".to_owned()]].concat();
    node_ctl!(pair, "Refused", |kube, side| kube.set_finalizers(going.of(side), three()))?;
    cluster_ctl!(pair, "ok", |kube, side| kube.set_lifecycle(
        pair.namespace(side),
        "c-1",
        uid.of(side),
        Lifecycle::Leaving,
        false
    ))?;
    pair.look().await?;
    let going = pair.get::<ValkeyNode>("c-1").await?;
    let theirs = || vec!["example.com/theirs".to_owned()];
    node_ctl!(pair, "ok", |kube, side| kube.set_finalizers(going.of(side), theirs()))?;
    pair.look().await?;
    let last = pair.get::<ValkeyNode>("c-1").await?;
    node_ctl!(pair, "ok", |kube, side| kube.set_finalizers(last.of(side), Vec::new()))?;
    let shapes = pair.look().await?;
    ensure!(shapes.len() == 1, "only the cluster is left: {shapes:#?}");
    node_ctl!(pair, "ok", |kube, side| kube.set_finalizers(last.of(side), Vec::new()))?;
    cluster_ctl!(pair, "ok", |kube, side| kube.delete_node(pair.namespace(side), "c-1", uid.of(side)))?;
    let status = ValkeyNodeStatus::default();
    cluster_ctl!(pair, "not found", |kube, side| kube.save_node_status(last.of(side), &status))?;
    pair.look().await.map(drop)
}

#[tokio::test]
async fn a_clusters_node_goes_after_it_once_released() -> Result<()> {
    let mut pair = Pair::new().await?;
    made(&mut pair).await?;
    pair.delete::<ValkeyCluster>("c").await?;
    pair.look_until(|shapes| {
        shapes.len() == 1 && shapes.get("ValkeyNode/c-1").is_some_and(|node| node.going)
    })
    .await?;
    let going = pair.get::<ValkeyNode>("c-1").await?;
    node_ctl!(pair, "ok", |kube, side| kube.set_finalizers(going.of(side), Vec::new()))?;
    let shapes = pair.look().await?;
    ensure!(shapes.is_empty(), "{shapes:#?}");
    Ok(())
}

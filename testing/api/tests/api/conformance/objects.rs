//! Clusters, and the Service, Secret and ConfigMap that belong to one.

use anyhow::{Result, ensure};
use cluster_ctl::ports::ClusterObject;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::ResourceExt as _;
use serde_json::json;
use shared::api::{ClusterState, ValkeyCluster, ValkeyClusterSpec, ValkeyClusterStatus};

use super::pair::{Held, Pair, Side};
use super::{cluster_ctl, node_ctl};

/// A cluster whose config does not exist: nobody makes anything for it.
pub(crate) async fn cluster(pair: &mut Pair) -> Result<Held<ValkeyCluster>> {
    let spec =
        ValkeyClusterSpec { config_ref: "nowhere".to_owned(), shards: 3, ..ValkeyClusterSpec::default() };
    pair.create(&ValkeyCluster::new("c", spec)).await?;
    pair.look().await?;
    pair.get("c").await
}

fn status(nodes: &[&str]) -> ValkeyClusterStatus {
    ValkeyClusterStatus {
        state: ClusterState::Active,
        nodes: nodes.iter().map(|name| (*name).to_owned()).collect(),
        ..ValkeyClusterStatus::default()
    }
}

#[tokio::test]
async fn a_clusters_status_and_finalizer() -> Result<()> {
    let mut pair = Pair::new().await?;
    let new = cluster(&mut pair).await?;
    for _ in 0..2 {
        // The second time nothing changes.
        cluster_ctl!(pair, "ok", |kube, side| kube.set_cluster_finalizer(new.of(side), true))?;
        pair.look().await?;
    }
    let held = pair.get::<ValkeyCluster>("c").await?;
    cluster_ctl!(pair, "conflict", |kube, side| kube.save_status(new.of(side), &status(&["a"])))?;
    cluster_ctl!(pair, "ok", |kube, side| kube.save_status(held.of(side), &status(&["a"])))?;
    pair.look().await?;
    cluster_ctl!(pair, "conflict", |kube, side| kube.save_status(held.of(side), &status(&["b"])))?;
    let held = pair.get::<ValkeyCluster>("c").await?;
    cluster_ctl!(pair, "ok", |kube, side| kube.save_status(held.of(side), &status(&["a"])))?;
    let shapes = pair.look().await?;
    ensure!(shapes.values().all(|shape| !shape.changed), "a write of nothing is no write: {shapes:#?}");
    let patch = json!({ "spec": { "shards": 4 } });
    pair.edit("c", &patch, |cluster: &mut ValkeyCluster| cluster.spec.shards = 4).await?;
    let shapes = pair.look().await?;
    ensure!(shapes.values().all(|shape| shape.generation == Some(2)), "an edit is a generation: {shapes:#?}");
    cluster_ctl!(pair, "conflict", |kube, side| kube.save_status(held.of(side), &status(&["b"])))?;
    // Told to go, it stays for the finalizer, and can be written to.
    pair.delete::<ValkeyCluster>("c").await?;
    pair.look().await?;
    let going = pair.get::<ValkeyCluster>("c").await?;
    pair.delete::<ValkeyCluster>("c").await?;
    pair.look().await?;
    cluster_ctl!(pair, "ok", |kube, side| kube.save_status(going.of(side), &status(&[])))?;
    pair.look().await?;
    cluster_ctl!(pair, "ok", |kube, side| kube.set_cluster_finalizer(going.of(side), false))?;
    let shapes = pair.look().await?;
    ensure!(shapes.is_empty(), "{shapes:#?}");
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_is_gone_and_one_of_its_name() -> Result<()> {
    let mut pair = Pair::new().await?;
    let old = cluster(&mut pair).await?;
    pair.delete::<ValkeyCluster>("c").await?;
    pair.look().await?;
    cluster_ctl!(pair, "not found", |kube, side| kube.save_status(old.of(side), &status(&["a"])))?;
    cluster_ctl!(pair, "conflict", |kube, side| kube.set_cluster_finalizer(old.of(side), true))?;
    pair.look().await?;
    cluster(&mut pair).await?;
    cluster_ctl!(pair, "conflict", |kube, side| kube.save_status(old.of(side), &status(&["a"])))?;
    cluster_ctl!(pair, "conflict", |kube, side| kube.set_cluster_finalizer(old.of(side), true))?;
    let shapes = pair.look().await?;
    ensure!(shapes.values().all(|shape| shape.life == 1 && !shape.changed), "{shapes:#?}");
    Ok(())
}

fn secret(cluster: &ValkeyCluster) -> Secret {
    let data = [("password".to_owned(), ByteString(b"one".to_vec()))];
    Secret { data: Some(data.into()), ..cluster_ctl::build::auth_secret_guard(cluster) }
}

#[tokio::test]
async fn objects_of_a_cluster_are_made_once_and_applied() -> Result<()> {
    let mut pair = Pair::new().await?;
    let owner = cluster(&mut pair).await?;
    let service = owner.map(|it| ClusterObject::Service(Box::new(cluster_ctl::build::service(it))));
    let secrets = owner.map(|it| ClusterObject::Secret(Box::new(secret(it))));
    let maps = |text| {
        owner.map(|it| ClusterObject::ConfigMap(Box::new(cluster_ctl::build::acl_config_map(it, text))))
    };
    let map = maps("user a");
    for object in [&service, &secrets, &map] {
        cluster_ctl!(pair, "ok", |kube, side| kube.create_object(object.of(side)))?;
        pair.look().await?;
        cluster_ctl!(pair, "exists", |kube, side| kube.create_object(object.of(side)))?;
        pair.look().await?;
    }
    let map_name = match map.of(Side::Server) {
        ClusterObject::ConfigMap(map) => map.name_any(),
        _ => String::new(),
    };
    let patch = json!({ "metadata": { "labels": { "theirs": "x" } }, "data": { "theirs": "y" } });
    pair.edit(&map_name, &patch, |map: &mut ConfigMap| {
        map.labels_mut().insert("theirs".to_owned(), "x".to_owned());
        map.data.get_or_insert_default().insert("theirs".to_owned(), "y".to_owned());
    })
    .await?;
    pair.look().await?;
    // Applied for the first time, ours is taken over; what others set stays.
    for object in [&service, &map] {
        cluster_ctl!(pair, "ok", |kube, side| kube.apply_object(object.of(side)))?;
        pair.look_but_for_versions().await?;
    }
    for object in [&service, &maps("user b"), &maps("user b")] {
        cluster_ctl!(pair, "ok", |kube, side| kube.apply_object(object.of(side)))?;
        pair.look().await?;
    }
    // One that is not there is made.
    pair.delete::<ConfigMap>(&map_name).await?;
    pair.look().await?;
    cluster_ctl!(pair, "ok", |kube, side| kube.apply_object(map.of(side)))?;
    pair.look().await.map(drop)
}

#[tokio::test]
async fn a_secret_is_replaced_and_released_at_its_version() -> Result<()> {
    let mut pair = Pair::new().await?;
    let owner = cluster(&mut pair).await?;
    let made = owner.map(|it| ClusterObject::Secret(Box::new(secret(it))));
    let name = secret(owner.of(Side::Server)).name_any();
    cluster_ctl!(pair, "ok", |kube, side| kube.create_object(made.of(side)))?;
    pair.look().await?;
    let first = pair.get::<Secret>(&name).await?;
    let changed = first.map(|secret| {
        let data = [("password".to_owned(), ByteString(b"two".to_vec()))];
        Secret { data: Some(data.into()), ..secret.clone() }
    });
    cluster_ctl!(pair, "ok", |kube, side| kube.replace_secret(changed.of(side)))?;
    pair.look().await?;
    cluster_ctl!(pair, "conflict", |kube, side| kube.replace_secret(changed.of(side)))?;
    cluster_ctl!(pair, "conflict", |kube, side| kube.release_secret(first.of(side)))?;
    pair.delete::<Secret>(&name).await?;
    pair.look().await?;
    let going = pair.get::<Secret>(&name).await?;
    cluster_ctl!(pair, "ok", |kube, side| kube.release_secret(going.of(side)))?;
    pair.look().await?;
    cluster_ctl!(pair, "not found", |kube, side| kube.release_secret(going.of(side)))?;
    cluster_ctl!(pair, "not found", |kube, side| kube.replace_secret(going.of(side)))?;
    pair.look().await.map(drop)
}

#[tokio::test]
async fn what_a_cluster_owned_goes_after_it() -> Result<()> {
    let mut pair = Pair::new().await?;
    let owner = cluster(&mut pair).await?;
    let service = owner.map(|it| ClusterObject::Service(Box::new(cluster_ctl::build::service(it))));
    let guarded = owner.map(|it| ClusterObject::Secret(Box::new(secret(it))));
    let map = owner.map(|it| ClusterObject::ConfigMap(Box::new(cluster_ctl::build::acl_config_map(it, ""))));
    for object in [&service, &guarded, &map] {
        cluster_ctl!(pair, "ok", |kube, side| kube.create_object(object.of(side)))?;
    }
    pair.create(&ConfigMap {
        metadata: kube::api::ObjectMeta { name: Some("theirs".to_owned()), ..Default::default() },
        ..Default::default()
    })
    .await?;
    let shapes = pair.look().await?;
    ensure!(shapes.len() == 5, "{shapes:#?}");
    pair.delete::<ValkeyCluster>("c").await?;
    pair.look_until(|shapes| shapes.keys().eq(["ConfigMap/theirs", "Secret/c-operator-auth"])).await?;
    let map = pair.get::<ConfigMap>("theirs").await?;
    let uid = map.map(|map| map.uid().unwrap_or_default());
    let key = |side: Side| node_ctl::ports::Key::new(pair.namespace(side), "theirs");
    let (server, model) = (key(Side::Server), key(Side::Model));
    let key = |side: Side| if side == Side::Server { &server } else { &model };
    node_ctl!(pair, "ok", |kube, side| kube.delete_config_map(key(side), "another"))?;
    pair.look().await?;
    node_ctl!(pair, "ok", |kube, side| kube.delete_config_map(key(side), uid.of(side)))?;
    pair.look().await?;
    node_ctl!(pair, "ok", |kube, side| kube.delete_config_map(key(side), uid.of(side)))?;
    let _: Held<Secret> = pair.get("c-operator-auth").await?;
    ensure!(pair.get::<Service>("c").await.is_err(), "the Service is gone");
    Ok(())
}

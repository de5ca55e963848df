//! Pods: made once, labelled and gated, let go with grace or without, kept until released.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cluster_ctl::ports::PodUpkeep;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, PodSpec};
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use node_ctl::ports::Key;
use shared::names;

use super::pair::{Held, Pair, Side};
use super::{cluster_ctl, node_ctl};

/// A Pod that no machine takes, or that a machine has which does not exist.
fn pod(name: &str, bound: bool, guarded: bool) -> Pod {
    let container = Container {
        name: "valkey".to_owned(),
        image: Some("registry.example/valkey:9.1.2".to_owned()),
        ..Container::default()
    };
    let nowhere = BTreeMap::from([("pool.example/kind".to_owned(), "nowhere".to_owned())]);
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            finalizers: guarded.then(|| vec![names::POD_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container],
            node_name: bound.then(|| "nowhere".to_owned()),
            node_selector: (!bound).then_some(nowhere),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// Makes a Pod on both sides; its name and UID on each.
async fn made(pair: &mut Pair, new: &Pod) -> Result<(Held<Key>, Held<String>)> {
    let sides = Held::new(Side::Server, Side::Model);
    let name = new.name_any();
    let placed = sides.map(|side| {
        let mut new = new.clone();
        new.metadata.namespace = Some(pair.namespace(*side).to_owned());
        new
    });
    node_ctl!(pair, "made", |kube, side| kube.create_pod(placed.of(side)))?;
    pair.look().await?;
    node_ctl!(pair, "taken", |kube, side| kube.create_pod(placed.of(side)))?;
    let uid = pair.get::<Pod>(&name).await?.map(|pod| pod.uid().unwrap_or_default());
    Ok((sides.map(|side| Key::new(pair.namespace(*side), &name)), uid))
}

fn another(uid: &Held<String>) -> Held<String> {
    uid.map(|_| "b2c7a3c0-0000-4000-8000-000000000000".to_owned())
}

#[tokio::test]
async fn a_pod_that_no_machine_has_goes_at_once_but_for_its_finalizer() -> Result<()> {
    let mut pair = Pair::new().await?;
    let (key, uid) = made(&mut pair, &pod("free", false, false)).await?;
    let other = another(&uid);
    for uid in [&other, &uid, &uid] {
        node_ctl!(pair, "ok", |kube, side| kube.delete_pod(key.of(side), uid.of(side), None))?;
        pair.look().await?;
    }
    ensure!(pair.look().await?.is_empty());
    let (key, uid) = made(&mut pair, &pod("held", false, true)).await?;
    node_ctl!(pair, "ok", |kube, side| kube.delete_pod(key.of(side), uid.of(side), None))?;
    pair.look().await?;
    let other = another(&uid);
    node_ctl!(pair, "ok", |kube, side| kube.release_pod(key.of(side), other.of(side)))?;
    pair.look().await?;
    for _ in 0..2 {
        node_ctl!(pair, "ok", |kube, side| kube.release_pod(key.of(side), uid.of(side)))?;
        pair.look().await?;
    }
    ensure!(pair.look().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_pod_that_a_machine_has_waits_for_its_kubelet() -> Result<()> {
    let mut pair = Pair::new().await?;
    let (key, uid) = made(&mut pair, &pod("bound", true, true)).await?;
    cluster_ctl!(pair, "ok", |kube, side| kube.delete_pod(pair.namespace(side), "bound", uid.of(side)))?;
    pair.look().await?;
    node_ctl!(pair, "ok", |kube, side| kube.release_pod(key.of(side), uid.of(side)))?;
    let shapes = pair.look().await?;
    ensure!(shapes.get("Pod/bound").is_some_and(|pod| pod.going && pod.grace == Some(30)), "{shapes:#?}");
    node_ctl!(pair, "ok", |kube, side| kube.delete_pod(key.of(side), uid.of(side), Some(0)))?;
    ensure!(pair.look().await?.is_empty());
    // Ended at once, with the finalizer still on it.
    let (key, uid) = made(&mut pair, &pod("bound", true, true)).await?;
    node_ctl!(pair, "ok", |kube, side| kube.delete_pod(key.of(side), uid.of(side), Some(0)))?;
    pair.look().await?;
    node_ctl!(pair, "ok", |kube, side| kube.release_pod(key.of(side), uid.of(side)))?;
    ensure!(pair.look().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_pod_is_labelled_and_gated() -> Result<()> {
    let mut pair = Pair::new().await?;
    made(&mut pair, &pod("p", false, false)).await?;
    let held = pair.get::<Pod>("p").await?;
    let text = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let labelled = |role| PodUpkeep {
        labels: text("role", role),
        annotations: text("example.com/shard", "1"),
        ..PodUpkeep::default()
    };
    for change in [
        labelled("primary"),
        labelled("primary"),
        labelled("replica"),
        PodUpkeep { joined: Some(true), ..PodUpkeep::default() },
        PodUpkeep { joined: Some(false), ..PodUpkeep::default() },
    ] {
        cluster_ctl!(pair, "ok", |kube, side| kube.upkeep_pod(held.of(side), &change))?;
        pair.look().await?;
    }
    let of_another = held.map(|pod| {
        let mut pod = pod.clone();
        pod.metadata.uid = Some("b2c7a3c0-0000-4000-8000-000000000000".to_owned());
        pod
    });
    let joined = PodUpkeep { joined: Some(true), ..PodUpkeep::default() };
    cluster_ctl!(pair, "conflict", |kube, side| kube.upkeep_pod(of_another.of(side), &joined))?;
    cluster_ctl!(pair, "conflict", |kube, side| kube.upkeep_pod(of_another.of(side), &labelled("none")))?;
    pair.look().await?;
    pair.delete::<Pod>("p").await?;
    pair.look().await?;
    cluster_ctl!(pair, "not found", |kube, side| kube.upkeep_pod(held.of(side), &joined))?;
    cluster_ctl!(pair, "not found", |kube, side| kube.upkeep_pod(held.of(side), &labelled("none")))?;
    pair.look().await.map(drop)
}

#[tokio::test]
async fn a_nodes_config_map_is_made_once() -> Result<()> {
    let mut pair = Pair::new().await?;
    let sides = Held::new(Side::Server, Side::Model);
    let new = sides.map(|side| ConfigMap {
        metadata: ObjectMeta {
            name: Some("c-1-config".to_owned()),
            namespace: Some(pair.namespace(*side).to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("valkey.conf".to_owned(), "port 6379".to_owned())])),
        ..ConfigMap::default()
    });
    node_ctl!(pair, "made", |kube, side| kube.create_config_map(new.of(side)))?;
    pair.look().await?;
    node_ctl!(pair, "taken", |kube, side| kube.create_config_map(new.of(side)))?;
    let shapes = pair.look().await?;
    let map = shapes.get("ConfigMap/c-1-config").context("no such map")?;
    ensure!(!map.changed, "{map:#?}");
    Ok(())
}

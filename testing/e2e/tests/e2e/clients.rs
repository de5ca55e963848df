//! What clients get: names, redirections, keys.

use std::collections::BTreeSet;
use std::time::Duration;

use shared::valkey::info::Role;
use test_e2e::{Deployed, Probe, Scene, eventually};

/// Enough keys to meet every shard.
const KEYS: usize = 60;

/// The addresses that `host` has for a Pod in the cluster.
async fn resolve(scene: &Scene, host: &str) -> BTreeSet<String> {
    let lines = scene.run(&format!("getent ahostsv4 {host}")).await.unwrap();
    lines.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn host(cluster: &Deployed<'_>) -> String {
    shared::names::service_host(&cluster.name, &cluster.scene.name)
}

#[tokio::test]
async fn the_name_of_the_service_gives_exactly_the_members_and_each_member_has_a_name() {
    let scene = Scene::new("names").await.unwrap();
    let cluster = scene.blueprint("names", 2, 1).create().await.unwrap();
    let other = scene.blueprint("names-1", 1, 0).create().await.unwrap();
    scene.client().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    other.settled(Duration::from_mins(1)).await.unwrap();
    let members = cluster.addresses().await.unwrap();
    let ips: BTreeSet<String> = members.values().cloned().collect();
    eventually("the Service's name to give the members", Duration::from_secs(5), || async {
        let seen = resolve(&scene, &host(&cluster)).await;
        Ok(Probe::of(seen == ips, format!("{seen:?}, not {ips:?}")))
    })
    .await
    .unwrap();
    for (pod, ip) in members {
        let name = shared::names::pod_host(&pod, &cluster.name, &scene.name);
        assert_eq!(resolve(&scene, &name).await, BTreeSet::from([ip]), "{name}");
    }
    scene.finish().unwrap();
}

#[tokio::test]
async fn a_plain_client_is_redirected_and_an_aware_one_reaches_every_key() {
    let scene = Scene::new("keys").await.unwrap();
    let cluster = scene.blueprint("keys", 3, 1).create().await.unwrap();
    scene.client().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    let host = host(&cluster);
    eventually("the Service's name to resolve", Duration::from_secs(5), || async {
        Ok(Probe::of(!resolve(&scene, &host).await.is_empty(), "no address"))
    })
    .await
    .unwrap();
    let loop_over = |command: &str| format!("for i in $(seq {KEYS}); do {command}; done");
    let ip = cluster.addresses().await.unwrap().into_values().next().unwrap();
    let plain = scene.run(&loop_over(&format!("valkey-cli -h {ip} SET key:$i v$i"))).await.unwrap();
    let moved = plain.lines().filter(|line| line.starts_with("MOVED ")).count();
    assert!(moved > 0 && moved <= KEYS, "{plain}");
    let written = scene.run(&loop_over(&format!("valkey-cli -c -h {host} SET key:$i v$i"))).await.unwrap();
    assert_eq!(written.lines().filter(|line| *line == "OK").count(), KEYS, "{written}");
    let read = scene.run(&loop_over(&format!("valkey-cli -c -h {host} GET key:$i"))).await.unwrap();
    let expected: Vec<String> = (1..=KEYS).map(|index| format!("v{index}")).collect();
    assert_eq!(read.lines().collect::<Vec<_>>(), expected);
    let total = 2 * u64::try_from(KEYS).unwrap();
    eventually("every shard to hold keys, replicas as many as primaries", Duration::from_secs(5), || async {
        let views = cluster.views().await?;
        let keys: Vec<(Role, u64)> = views.iter().map(|view| (view.info.role, view.info.keys)).collect();
        let all: u64 = keys.iter().map(|(_, keys)| keys).sum();
        Ok(Probe::of(all == total && keys.iter().all(|(_, keys)| *keys > 0), format!("{keys:?}")))
    })
    .await
    .unwrap();
    scene.finish().unwrap();
}

//! Pods that somebody deletes: while the cluster is being formed, and together with the operator.

use std::time::{Duration, Instant};

use test_e2e::objects::{Propagation, name, text};
use test_e2e::{Kind, Probe, Random, Scene, eventually};

/// How many Pods are lost.
const LOSSES: usize = 5;
/// The pause before each loss is below this: a bootstrap takes about five seconds.
const PAUSE: Duration = Duration::from_millis(1500);

#[tokio::test]
async fn a_cluster_whose_pods_are_deleted_at_random_instants_of_its_bootstrap_is_formed_all_the_same() {
    let scene = Scene::new("lost").await.unwrap();
    let mut random = Random::announced("deleting Pods").unwrap();
    scene.client().await.unwrap();
    let start = Instant::now();
    let cluster = scene.blueprint("lost", 3, 1).create().await.unwrap();
    for _ in 0..LOSSES {
        tokio::time::sleep(random.within(PAUSE)).await;
        let pods = cluster.list(Kind::POD).await.unwrap();
        let Some(pod) = pods.get(random.index(pods.len())) else { continue };
        test_e2e::say(&format!("{:.1?}: deleting {}", start.elapsed(), name(pod)));
        scene.objects.delete(Kind::POD, name(pod), Propagation::Background).await.unwrap();
    }
    cluster.settled(Duration::from_mins(2)).await.unwrap();
    test_e2e::say(&format!("settled {:.1?} after it was asked for", start.elapsed()));
    cluster.whole(Duration::from_secs(20)).await.unwrap();
    cluster.tidy(Duration::from_secs(10)).await.unwrap();
    scene.finish().unwrap();
}

#[tokio::test]
async fn a_pod_that_is_deleted_before_it_started_is_replaced() {
    let scene = Scene::new("unstarted").await.unwrap();
    let cluster = scene.blueprint("lost", 1, 1).create().await.unwrap();
    let pod = eventually("the first Pod", Duration::from_secs(20), || async {
        let pods = cluster.list(Kind::POD).await?;
        Ok(pods.into_iter().next().map_or(Probe::NotYet("no Pod".to_owned()), Probe::Yes))
    })
    .await
    .unwrap();
    scene.objects.delete(Kind::POD, name(&pod), Propagation::Background).await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    cluster.whole(Duration::from_secs(20)).await.unwrap();
    cluster.tidy(Duration::from_secs(10)).await.unwrap();
    scene.finish().unwrap();
}

#[tokio::test]
async fn a_pod_that_is_deleted_by_force_while_the_cluster_is_formed_is_replaced() {
    let scene = Scene::new("forced").await.unwrap();
    let cluster = scene.blueprint("lost", 1, 1).create().await.unwrap();
    let pod = eventually("the first running Pod", Duration::from_secs(20), || async {
        let running = |pod: &serde_json::Value| text(pod, "/status/phase") == "Running";
        let pods = cluster.list(Kind::POD).await?;
        Ok(pods.into_iter().find(running).map_or(Probe::NotYet("none".to_owned()), Probe::Yes))
    })
    .await
    .unwrap();
    scene.objects.delete_at_once(Kind::POD, name(&pod)).await.unwrap();
    // Its death is proved when nothing has been heard of it for two minutes and a half.
    cluster.settled(Duration::from_mins(5)).await.unwrap();
    cluster.whole(Duration::from_secs(20)).await.unwrap();
    cluster.tidy(Duration::from_secs(10)).await.unwrap();
    scene.finish().unwrap();
}

#[tokio::test]
async fn members_that_are_told_to_stop_together_with_the_operator_are_proved_dead_and_replaced() {
    let scene = Scene::alone("emptied").await.unwrap();
    scene.client().await.unwrap();
    let cluster = scene.blueprint("emptied", 2, 1).create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    let primary = |node: &serde_json::Value| text(node, "/status/role") == "primary";
    let nodes = cluster.list(Kind::NODE).await.unwrap();
    let primaries: Vec<&str> = nodes.iter().filter(|node| primary(node)).map(name).collect();
    assert_eq!(primaries.len(), 2, "{primaries:?}");
    let start = Instant::now();
    scene.operator.stop().await.unwrap();
    for primary in &primaries {
        scene.objects.delete(Kind::POD, primary, Propagation::Background).await.unwrap();
    }
    // Nobody can vote here, and a death that nobody saw is proved by its machine after 145 s at the earliest.
    let replaced = |object: &serde_json::Value| {
        object.pointer("/status/nodes").and_then(serde_json::Value::as_array).is_some_and(|names| {
            names.len() == 4 && !names.iter().any(|it| primaries.iter().any(|old| it == old))
        })
    };
    cluster.until("to have other members in their place", Duration::from_mins(1), replaced).await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    test_e2e::say(&format!("settled {:.1?} after all were told to stop", start.elapsed()));
    cluster.whole(Duration::from_secs(20)).await.unwrap();
    cluster.tidy(Duration::from_secs(10)).await.unwrap();
    scene.finish().unwrap();
}

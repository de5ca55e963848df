//! Deleting a cluster takes all of it and nothing else.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_e2e::objects::{Propagation, name, text};
use test_e2e::{Deployed, Kind, Probe, Scene, eventually};

/// Longest wait for the end of a cluster: Pods end within a second or two, the garbage collector follows.
const GONE: Duration = Duration::from_secs(30);

/// Objects of other people, and how to tell that nobody touched them.
async fn bystanders(scene: &Scene) -> Vec<(Kind, String, String)> {
    let labels = json!({ "metadata": { "labels": { "app.kubernetes.io/name": "valkey" } } });
    for (kind, name) in [(Kind::CONFIG_MAP, "settings-of-an-app"), (Kind::SECRET, "password-of-an-app")] {
        scene.objects.apply(kind, name, labels.clone()).await.unwrap();
    }
    let mut seen = Vec::new();
    for (kind, name) in [
        (Kind::CONFIG_MAP, "settings-of-an-app"),
        (Kind::SECRET, "password-of-an-app"),
        (Kind::IMAGE, scene.name.as_str()),
        (Kind::CONFIG, scene.name.as_str()),
    ] {
        let object = scene.objects.get(kind, name).await.unwrap();
        seen.push((kind, name.to_owned(), text(&object, "/metadata/resourceVersion").to_owned()));
    }
    seen
}

async fn assert_untouched(scene: &Scene, bystanders: &[(Kind, String, String)]) {
    for (kind, name, version) in bystanders {
        let object = scene.objects.get(*kind, name).await.unwrap();
        assert_eq!(text(&object, "/metadata/resourceVersion"), version, "{} {name}", kind.name);
    }
}

/// Name and UID of each Pod of a cluster.
async fn pods(cluster: &Deployed<'_>) -> Vec<(String, String)> {
    let pods = cluster.list(Kind::POD).await.unwrap();
    pods.iter().map(|pod| (name(pod).to_owned(), text(pod, "/metadata/uid").to_owned())).collect()
}

/// Deletes cluster `a` while its neighbour `a-1` and objects of other people look on.
async fn delete_beside_others(prefix: &str, propagation: Propagation) {
    let scene = Scene::new(prefix).await.unwrap();
    let cluster = scene.blueprint("a", 2, 1).create().await.unwrap();
    let neighbour = scene.blueprint("a-1", 1, 0).create().await.unwrap();
    let bystanders = bystanders(&scene).await;
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    neighbour.settled(Duration::from_mins(1)).await.unwrap();
    let before = pods(&neighbour).await;
    let start = Instant::now();
    cluster.delete(propagation).await.unwrap();
    cluster.gone(GONE).await.unwrap();
    test_e2e::say(&format!("gone after {:.1?}", start.elapsed()));
    assert_eq!(pods(&neighbour).await, before);
    neighbour.settled(Duration::from_secs(5)).await.unwrap();
    neighbour.whole(Duration::from_secs(5)).await.unwrap();
    assert_untouched(&scene, &bystanders).await;
    scene.finish().unwrap();
}

#[tokio::test]
async fn a_deleted_cluster_goes_with_all_its_objects_and_nothing_else() {
    delete_beside_others("background", Propagation::Background).await;
}

#[tokio::test]
async fn a_cluster_deleted_in_the_foreground_goes_too() {
    delete_beside_others("foreground", Propagation::Foreground).await;
}

#[tokio::test]
async fn a_cluster_deleted_with_its_children_orphaned_leaves_no_node_and_nothing_that_cannot_be_deleted() {
    let scene = Scene::new("orphan").await.unwrap();
    let cluster = scene.blueprint("a", 1, 1).create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    cluster.delete(Propagation::Orphan).await.unwrap();
    eventually("cluster, nodes and Pods to be gone", GONE, || async {
        let mut left = vec![];
        for kind in [Kind::CLUSTER, Kind::NODE, Kind::POD] {
            left.extend(scene.objects.list(kind, "").await?.iter().map(|object| name(object).to_owned()));
        }
        Ok(Probe::of(left.is_empty(), format!("left: {left:?}")))
    })
    .await
    .unwrap();
    for kind in Kind::MADE {
        for object in cluster.list(kind).await.unwrap() {
            scene.objects.delete(kind, name(&object), Propagation::Background).await.unwrap();
        }
    }
    let gone = cluster.gone(Duration::from_secs(10)).await;
    release_secret(&scene).await;
    gone.unwrap();
    scene.finish().unwrap();
}

/// Without it a failure of the test above would leave a namespace that nobody can delete.
async fn release_secret(scene: &Scene) {
    for secret in scene.objects.list(Kind::SECRET, "").await.unwrap() {
        let free = json!({ "metadata": { "finalizers": null } });
        drop(scene.objects.patch(Kind::SECRET, name(&secret), &free).await);
    }
}

#[tokio::test]
async fn a_cluster_that_is_still_starting_can_be_deleted() {
    let scene = Scene::new("early").await.unwrap();
    let cluster = scene.blueprint("a", 3, 1).create().await.unwrap();
    eventually("the first Pod", Duration::from_secs(20), || async {
        Ok(Probe::of(!cluster.list(Kind::POD).await?.is_empty(), "no Pod"))
    })
    .await
    .unwrap();
    cluster.delete(Propagation::Background).await.unwrap();
    cluster.gone(GONE).await.unwrap();
    scene.finish().unwrap();
}

#[tokio::test]
async fn a_cluster_deleted_while_the_operator_is_away_waits_and_goes_when_it_is_back() {
    let scene = Scene::alone("away").await.unwrap();
    let cluster = scene.blueprint("a", 1, 1).create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    scene.operator.scale(0).await.unwrap();
    scene.operator.await_ready().await.unwrap();
    let before = pods(&cluster).await;
    cluster.delete(Propagation::Background).await.unwrap();
    // Longer than the garbage collector takes for the children of an object that is gone.
    let waiting = eventually("anything to go", Duration::from_secs(4), || async {
        let there = cluster.object().await?["metadata"]["deletionTimestamp"] != Value::Null
            && pods(&cluster).await == before;
        Ok(Probe::of(!there, "all still there"))
    })
    .await;
    assert!(waiting.unwrap_err().to_string().ends_with("all still there"));
    cluster.whole(Duration::from_secs(5)).await.unwrap();
    scene.operator.scale(1).await.unwrap();
    cluster.gone(GONE).await.unwrap();
    scene.finish().unwrap();
}

#[tokio::test]
async fn a_namespace_can_be_deleted_with_its_clusters() {
    let scene = Scene::new("whole").await.unwrap();
    let clusters = [
        scene.blueprint("a", 2, 1).create().await.unwrap(),
        scene.blueprint("b", 1, 0).create().await.unwrap(),
    ];
    for cluster in &clusters {
        cluster.settled(Duration::from_mins(1)).await.unwrap();
    }
    scene.objects.delete(Kind::NAMESPACE, &scene.name, Propagation::Background).await.unwrap();
    eventually("the namespace to be gone", Duration::from_mins(1), || async {
        let namespace = scene.objects.find(Kind::NAMESPACE, &scene.name).await?;
        Ok(namespace.map_or(Probe::Yes(()), |it| Probe::NotYet(it["status"].to_string())))
    })
    .await
    .unwrap();
    scene.finish().unwrap();
}

//! What a person sees with kubectl.

use std::time::Duration;

use test_e2e::{Probe, Scene, eventually};

/// What kubectl prints in the scene's namespace.
async fn kubectl(scene: &Scene, arguments: &[&str]) -> String {
    let arguments = [&["-n", &scene.name], arguments].concat();
    scene.kubectl().run(&arguments).await.unwrap().success().unwrap()
}

/// The words of each line; columns that are empty are not seen.
fn table(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn kubectl_waits_for_a_cluster_and_shows_and_describes_it() {
    let scene = Scene::new("kubectl").await.unwrap();
    let cluster = scene.blueprint("shown", 2, 1).create().await.unwrap();
    kubectl(&scene, &["wait", "--for=condition=Ready", "--timeout=60s", "valkeycluster/shown"]).await;
    cluster.settled(Duration::from_secs(5)).await.unwrap();

    let plain = kubectl(&scene, &["get", "valkeyclusters"]).await;
    let rows = table(&plain);
    assert_eq!(rows[0], ["NAME", "CONFIG", "SHARDS", "REPLICAS", "STATE", "READY", "AGE"]);
    assert_eq!(rows[1][..6], ["shown", scene.name.as_str(), "2", "1", "Active", "4/4"]);
    let wide = kubectl(&scene, &["get", "valkeyclusters", "-o", "wide"]).await;
    let rows = table(&wide);
    assert_eq!(rows[0][7..], ["SLOTS", "MESSAGE"]);
    assert_eq!(rows[1][7..], ["16384"]);

    let nodes = kubectl(&scene, &["get", "valkeynodes", "-o", "wide", "--no-headers"]).await;
    let roles: Vec<&str> =
        ["primary", "replica"].into_iter().filter(|role| nodes.matches(role).count() == 2).collect();
    assert_eq!(roles, ["primary", "replica"], "{nodes}");
    scene.finish().unwrap();
}

#[tokio::test]
async fn kubectl_describe_tells_the_story_of_a_bootstrap() {
    let scene = Scene::new("describe").await.unwrap();
    let cluster = scene.blueprint("told", 1, 1).create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    eventually("the events of a bootstrap", Duration::from_secs(5), || async {
        let described = kubectl(&scene, &["describe", "valkeycluster", "told"]).await;
        let events = described.split_once("Events:").map_or("", |(_, events)| events);
        let steps = [
            "CreatingNodes",
            "SettingEpochs",
            "AssigningSlots",
            "MeetingNodes",
            "AttachingReplicas",
            "CompletingJoin",
        ];
        let missing: Vec<&&str> = steps.iter().filter(|step| !events.contains(**step)).collect();
        Ok(Probe::of(missing.is_empty(), format!("{missing:?} missing in {described}")))
    })
    .await
    .unwrap();
    let described = kubectl(&scene, &["describe", "valkeycluster", "told"]).await;
    assert!(described.contains("all slots are served with every replica in sync"), "{described}");
    let warnings: Vec<_> =
        scene.events("told").await.unwrap().into_iter().filter(|(kind, ..)| kind == "Warning").collect();
    assert!(warnings.is_empty(), "{warnings:?}");
    scene.finish().unwrap();
}

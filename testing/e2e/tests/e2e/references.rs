//! What a cluster says while the menu lacks what it names, and that it goes on by itself when it is there.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_e2e::objects::{condition_is, text};
use test_e2e::scene::{config_spec, image_spec};
use test_e2e::{Deployed, Kind, Probe, Scene, eventually};

/// SHA-256 of `secret`.
const HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
/// From the edit of a reference to the status that takes it into account: long before anybody looks again unasked, but
/// other tests play beside this one.
const WAKES_WITHIN: Duration = Duration::from_secs(10);

fn binding(username: &str, role: &str) -> Value {
    json!([{
        "username": username,
        "passwordHashes": [HASH],
        "permissions": [{ "roleRef": role, "keys": [{ "pattern": "*" }] }],
    }])
}

/// Waits until the cluster says exactly `words`, everywhere it should, and has made no node.
async fn blocked(cluster: &Deployed<'_>, words: &str) {
    let object = cluster
        .until(&format!("to say {words:?}"), Duration::from_secs(10), |it| {
            text(it, "/status/message") == words
        })
        .await
        .unwrap();
    assert!(condition_is(&object, "ReferencesResolved", "False"), "{object:#}");
    assert!(condition_is(&object, "Ready", "False"), "{object:#}");
    eventually(&format!("an event with {words:?}"), Duration::from_secs(5), || async {
        let events = cluster.scene.events(&cluster.name).await?;
        let found = events.iter().any(|(kind, _, note)| kind == "Warning" && note.contains(words));
        Ok(Probe::of(found, format!("{events:?}")))
    })
    .await
    .unwrap();
    assert!(cluster.list(Kind::NODE).await.unwrap().is_empty());
}

/// Waits until the cluster takes the repaired reference into account, then until it serves.
async fn heals(cluster: &Deployed<'_>) {
    let start = Instant::now();
    let resolved = |object: &Value| condition_is(object, "ReferencesResolved", "True");
    cluster.until("to resolve its references", WAKES_WITHIN, resolved).await.unwrap();
    test_e2e::say(&format!("{} woke within {:.1?}", cluster.name, start.elapsed()));
    cluster.settled(Duration::from_mins(1)).await.unwrap();
}

#[tokio::test]
async fn a_missing_config_is_named_and_its_creation_is_enough() {
    let scene = Scene::new("config").await.unwrap();
    let missing = format!("{}-missing", scene.name);
    let cluster =
        scene.blueprint("refs", 1, 0).with(&json!({ "configRef": missing })).create().await.unwrap();
    blocked(&cluster, &format!("ValkeyConfig \"{missing}\" not found")).await;
    scene.menu(Kind::CONFIG, &missing, config_spec(&scene.name)).await.unwrap();
    heals(&cluster).await;
    scene.finish().unwrap();
}

#[tokio::test]
async fn a_missing_image_is_named_and_its_creation_is_enough() {
    let scene = Scene::new("image").await.unwrap();
    let missing = format!("{}-missing", scene.name);
    scene.menu(Kind::CONFIG, &missing, config_spec(&missing)).await.unwrap();
    let cluster =
        scene.blueprint("refs", 1, 0).with(&json!({ "configRef": missing })).create().await.unwrap();
    blocked(&cluster, &format!("ValkeyImage \"{missing}\" not found")).await;
    scene.menu(Kind::IMAGE, &missing, image_spec().unwrap()).await.unwrap();
    heals(&cluster).await;
    scene.finish().unwrap();
}

#[tokio::test]
async fn a_missing_role_is_named_with_its_user_and_its_creation_is_enough() {
    let scene = Scene::new("role").await.unwrap();
    let missing = format!("{}-missing", scene.name);
    let acl = json!({ "acl": binding("app", &missing) });
    let cluster = scene.blueprint("refs", 1, 0).with(&acl).create().await.unwrap();
    scene.client().await.unwrap();
    blocked(&cluster, &format!("ValkeyRole \"{missing}\" not found (referenced by user \"app\")")).await;
    let reads = json!({ "categories": [{ "name": "read", "access": "allow" }] });
    scene.menu(Kind::ROLE, &missing, reads).await.unwrap();
    heals(&cluster).await;
    let ip = cluster.addresses().await.unwrap().into_values().next().unwrap();
    let script = format!(
        "c='valkey-cli -h {ip}'; a=\"$c --user app --pass secret --no-auth-warning\"; $c GET k; $a GET k; $a SET k v"
    );
    let answers = scene.run(&script).await.unwrap();
    let answers: Vec<&str> = answers.lines().filter(|line| !line.is_empty()).collect();
    assert!(
        answers.len() == 2 && answers[0].starts_with("NOAUTH") && answers[1].starts_with("NOPERM"),
        "{answers:?}"
    );
    scene.finish().unwrap();
}

#[tokio::test]
async fn configs_in_a_circle_are_reported_and_opening_the_circle_is_enough() {
    let scene = Scene::new("circle").await.unwrap();
    let (one, two) = (format!("{}-one", scene.name), format!("{}-two", scene.name));
    scene.menu(Kind::CONFIG, &one, json!({ "imageRef": scene.name, "baseRef": two })).await.unwrap();
    scene.menu(Kind::CONFIG, &two, json!({ "baseRef": one })).await.unwrap();
    let cluster = scene.blueprint("refs", 1, 0).with(&json!({ "configRef": one })).create().await.unwrap();
    blocked(&cluster, "config inheritance depth exceeds 10 (cycle?)").await;
    scene.menu(Kind::CONFIG, &two, json!({ "valkey": { "maxmemory-policy": "allkeys-lru" } })).await.unwrap();
    heals(&cluster).await;
    scene.finish().unwrap();
}

#[tokio::test]
async fn a_user_bound_by_config_and_cluster_is_reported_and_unbinding_one_is_enough() {
    let scene = Scene::new("user").await.unwrap();
    let twice = format!("{}-acl", scene.name);
    let role = json!({ "categories": [{ "name": "all", "access": "allow" }] });
    scene.menu(Kind::ROLE, &twice, role).await.unwrap();
    let config = json!({ "imageRef": scene.name, "acl": binding("app", &twice) });
    scene.menu(Kind::CONFIG, &twice, config).await.unwrap();
    let spec = json!({ "configRef": twice, "acl": binding("app", &twice) });
    let cluster = scene.blueprint("refs", 1, 0).with(&spec).create().await.unwrap();
    blocked(&cluster, "duplicate username \"app\" in merged ACL bindings").await;
    cluster.edit(&json!({ "acl": binding("other", &twice) })).await.unwrap();
    heals(&cluster).await;
    scene.finish().unwrap();
}

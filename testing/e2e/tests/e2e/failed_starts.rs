//! Nodes that do not start: the reason is shown in the words of whoever knows it, and correcting it is enough.

use std::time::Duration;

use serde_json::json;
use test_e2e::objects::text;
use test_e2e::scene::image_spec;
use test_e2e::{Kind, Scene};

/// Until the words are shown.
const SHOWN: Duration = Duration::from_secs(20);
/// Until the corrected cluster serves.
const HEALED: Duration = Duration::from_mins(1);

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_shown_in_the_kubelets_words_and_correcting_it_heals() {
    let scene = Scene::new("tag").await.unwrap();
    let mut image = image_spec().unwrap();
    image["tag"] = json!("no-such-tag");
    scene.menu(Kind::IMAGE, &scene.name, image).await.unwrap();
    let cluster = scene.blueprint("start", 1, 1).create().await.unwrap();
    let said = cluster.says("no-such-tag", SHOWN).await.unwrap();
    let message = text(&said, "/status/message");
    assert!(message.contains("ErrImagePull") || message.contains("ImagePullBackOff"), "{message}");
    scene.menu(Kind::IMAGE, &scene.name, image_spec().unwrap()).await.unwrap();
    cluster.settled(HEALED).await.unwrap();
    cluster.whole(Duration::from_secs(5)).await.unwrap();
    scene.finish().unwrap();
}

#[tokio::test]
async fn a_setting_that_the_server_refuses_is_shown_in_its_words_and_correcting_it_heals() {
    let scene = Scene::new("setting").await.unwrap();
    let config = |policy: &str| json!({ "imageRef": scene.name, "valkey": { "maxmemory-policy": policy } });
    scene.menu(Kind::CONFIG, &scene.name, config("nonsense")).await.unwrap();
    let cluster = scene.blueprint("start", 1, 1).create().await.unwrap();
    // The server quotes the line and says what is allowed in it.
    let said = cluster.says("argument(s) must be one of the following", SHOWN).await.unwrap();
    assert!(text(&said, "/status/message").contains("nonsense"), "{}", said["status"]["message"]);
    scene.menu(Kind::CONFIG, &scene.name, config("allkeys-lru")).await.unwrap();
    cluster.settled(HEALED).await.unwrap();
    cluster.whole(Duration::from_secs(5)).await.unwrap();
    scene.finish().unwrap();
}

#[tokio::test]
async fn pods_that_cannot_be_scheduled_are_shown_in_the_schedulers_words_and_correcting_it_heals() {
    let scene = Scene::new("place").await.unwrap();
    let nowhere = json!({ "placement": { "nodeSelector": { "end-to-end": "nowhere" } } });
    let cluster = scene.blueprint("start", 1, 1).with(&nowhere).create().await.unwrap();
    let said = cluster.says("bootstrap blocked: pod cannot be scheduled", SHOWN).await.unwrap();
    let message = text(&said, "/status/message");
    assert!(message.starts_with("bootstrap blocked: ") && message.contains("didn't match"), "{message}");
    cluster.edit(&json!({ "placement": null })).await.unwrap();
    cluster.settled(HEALED).await.unwrap();
    cluster.whole(Duration::from_secs(5)).await.unwrap();
    scene.finish().unwrap();
}

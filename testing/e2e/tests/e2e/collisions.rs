//! Objects of other people that have a name which a cluster needs.

use std::time::Duration;

use serde_json::{Value, json};
use test_e2e::objects::{Propagation, controller_uid, text};
use test_e2e::{Deployed, Kind, Scene};

/// Labels as the operator's own objects have them: they alone do not make an object its own.
fn labels(cluster: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "valkey",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/managed-by": "valkey-operator",
    })
}

/// Makes `kind` `name` first and then a cluster that needs the name; then takes the obstacle away.
async fn collide(prefix: &str, kind: Kind, name: &str, labels: Option<Value>, content: Value) {
    let scene = Scene::new(prefix).await.unwrap();
    let mut body = content;
    body["metadata"] = json!({ "labels": labels });
    let before = scene.objects.apply(kind, name, body).await.unwrap();
    let cluster = scene.blueprint("taken", 1, 1).create().await.unwrap();
    cluster
        .says(&format!("named \"{name}\" exists and does not belong"), Duration::from_secs(10))
        .await
        .unwrap();
    untouched(&cluster, kind, &before).await;
    assert!(cluster.list(Kind::POD).await.unwrap().is_empty());
    scene.objects.delete(kind, name, Propagation::Background).await.unwrap();
    cluster.settled(Duration::from_secs(20)).await.unwrap();
    let after = scene.objects.get(kind, name).await.unwrap();
    assert_eq!(controller_uid(&after), Some(cluster.uid.as_str()));
    scene.finish().unwrap();
}

async fn untouched(cluster: &Deployed<'_>, kind: Kind, before: &Value) {
    let after = cluster.scene.objects.get(kind, test_e2e::objects::name(before)).await.unwrap();
    assert_eq!(controller_uid(&after), None);
    for part in ["spec", "data"] {
        assert_eq!(after[part], before[part]);
    }
    for field in ["/metadata/uid", "/metadata/resourceVersion"] {
        assert_eq!(text(&after, field), text(before, field));
    }
}

#[tokio::test]
async fn a_service_of_somebody_else_is_left_alone_and_its_end_heals() {
    let spec = json!({ "spec": { "selector": { "app": "other" }, "ports": [{ "port": 80 }] } });
    collide("service", Kind::SERVICE, "taken", None, spec).await;
}

#[tokio::test]
async fn a_secret_of_somebody_else_is_left_alone_and_its_end_heals() {
    let data = json!({ "stringData": { "operator-password": "theirs", "repl-password": "theirs" } });
    collide("secret", Kind::SECRET, "taken-operator-auth", None, data).await;
}

#[tokio::test]
async fn a_config_map_of_somebody_else_is_left_alone_even_with_our_labels_and_its_end_heals() {
    let data = json!({ "data": { "users.acl": "user default on nopass ~* &* +@all" } });
    collide("configmap", Kind::CONFIG_MAP, "taken-acl", Some(labels("taken")), data).await;
}

//! Objects of other people that have a name which a cluster needs.

use std::time::Duration;

use serde_json::{Value, json};
use test_e2e::objects::{Propagation, controller_uid, text};
use test_e2e::{Deployed, Kind, Scene};

/// An object that is not the operator's wakes nobody: its end is noticed with the next heartbeat, after at most 15 s; then a
/// cluster forms, beside four others and those of other tests.
const HEALED: Duration = Duration::from_mins(1);

/// Labels as the operator's own objects have them: they alone do not make an object its own.
fn labels(cluster: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "valkey",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/managed-by": "valkey-operator",
    })
}

/// Makes `kind` `name` first and then a cluster that needs the name; then takes the obstacle away.
async fn collide(
    scene: &Scene,
    cluster: &str,
    kind: Kind,
    name: &str,
    labels: Option<Value>,
    content: Value,
) {
    let mut body = content;
    body["metadata"] = json!({ "labels": labels });
    let before = scene.objects.apply(kind, name, body).await.unwrap();
    let cluster = scene.blueprint(cluster, 1, 1).create().await.unwrap();
    cluster
        .says(&format!("named \"{name}\" exists and does not belong"), Duration::from_secs(10))
        .await
        .unwrap();
    untouched(&cluster, kind, &before).await;
    assert!(cluster.list(Kind::POD).await.unwrap().is_empty());
    scene.objects.delete(kind, name, Propagation::Background).await.unwrap();
    cluster.settled(HEALED).await.unwrap();
    let after = scene.objects.get(kind, name).await.unwrap();
    assert_eq!(controller_uid(&after), Some(cluster.uid.as_str()));
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
async fn objects_of_somebody_else_are_left_alone_even_with_our_labels_and_their_end_heals() {
    let scene = Scene::new("taken").await.unwrap();
    let service = json!({ "spec": { "selector": { "app": "other" }, "ports": [{ "port": 80 }] } });
    let secret = json!({ "stringData": { "operator-password": "theirs", "repl-password": "theirs" } });
    let acl = json!({ "data": { "users.acl": "user default on nopass ~* &* +@all" } });
    tokio::join!(
        collide(&scene, "a", Kind::SERVICE, "a", None, service),
        collide(&scene, "b", Kind::SECRET, "b-operator-auth", None, secret.clone()),
        collide(&scene, "c", Kind::SECRET, "c-operator-auth", Some(labels("c")), secret),
        collide(&scene, "d", Kind::CONFIG_MAP, "d-acl", None, acl.clone()),
        collide(&scene, "e", Kind::CONFIG_MAP, "e-acl", Some(labels("e")), acl),
    );
    scene.finish().unwrap();
}

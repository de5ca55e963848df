//! Everything runs where the `restricted` Pod Security Standard is enforced.

use std::time::Duration;

use serde_json::json;
use test_e2e::objects::{condition_is, text};
use test_e2e::{Kind, Scene, operator};

#[tokio::test]
async fn clusters_and_the_operator_run_where_restricted_is_enforced() {
    let scene = Scene::new("restricted").await.unwrap();
    let cluster = scene.blueprint("safe", 1, 1).create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    for namespace in [scene.name.as_str(), operator::NAMESPACE] {
        let object = scene.objects.get(Kind::NAMESPACE, namespace).await.unwrap();
        let level = text(&object, "/metadata/labels/pod-security.kubernetes.io~1enforce");
        assert_eq!(level, "restricted", "{namespace}");
    }
    for pod in scene.operator.pods().await.unwrap() {
        assert!(condition_is(&pod, "Ready", "True"));
    }
    // The label is no mere decoration: a Pod that asks for nothing is refused.
    let (repository, tag) = test_e2e::scene::valkey_image().unwrap();
    let image = format!("{repository}:{tag}");
    let pod = json!({ "spec": { "containers": [{ "name": "any", "image": image }] } });
    let refusal = scene.objects.apply(Kind::POD, "any", pod).await.unwrap_err();
    assert!(format!("{refusal:#}").contains("violates PodSecurity"), "{refusal:#}");
    scene.finish().unwrap();
}

//! Single containers of the operator die while a cluster is being formed. Their processes are found on the machine:
//! the operator's image has no shell with which to kill them from inside.

use std::time::{Duration, Instant};

use test_e2e::objects::text;
use test_e2e::{Random, Scene, operator, processes};

/// The pause before each death is below this.
const PAUSE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_cluster_is_formed_although_each_container_of_the_operator_dies_once() {
    let scene = Scene::alone("containers").await.unwrap();
    // A fresh Pod, so that no container waits for its next start from crashes before.
    scene.operator.kill().await.unwrap();
    scene.operator.await_ready().await.unwrap();
    let mut random = Random::announced("killing containers").unwrap();
    let start = Instant::now();
    let cluster = scene.blueprint("crash", 3, 1).create().await.unwrap();
    let mut victims = operator::CONTAINERS.to_vec();
    while !victims.is_empty() {
        tokio::time::sleep(random.within(PAUSE)).await;
        let victim = victims.swap_remove(random.index(victims.len()));
        let pods = scene.operator.pods().await.unwrap();
        assert_eq!(pods.len(), 1);
        let all = processes::of_pod(text(&pods[0], "/metadata/uid")).unwrap();
        let process =
            all.iter().find(|it| it.program == victim).unwrap_or_else(|| panic!("{victim} not in {all:?}"));
        test_e2e::say(&format!("{:.1?}: killing {victim}", start.elapsed()));
        process.signal("KILL").unwrap();
    }
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    test_e2e::say(&format!("settled {:.1?} after it was asked for", start.elapsed()));
    cluster.whole(Duration::from_secs(10)).await.unwrap();
    cluster.tidy(Duration::from_secs(10)).await.unwrap();
    let restarts = scene.operator.restarts().await.unwrap();
    assert!(restarts.iter().all(|(_, count)| *count == 1), "{restarts:?}");
    scene.operator.kill().await.unwrap();
    scene.operator.await_ready().await.unwrap();
    scene.finish().unwrap();
}

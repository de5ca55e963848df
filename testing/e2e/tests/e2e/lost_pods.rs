//! Pods that somebody deletes while the cluster is being formed.

use std::time::{Duration, Instant};

use test_e2e::objects::{Propagation, name};
use test_e2e::{Kind, Random, Scene};

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

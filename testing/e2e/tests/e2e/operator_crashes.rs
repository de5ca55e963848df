//! The operator dies, or runs twice, while clusters are being formed: nothing changes but time.

use std::time::{Duration, Instant};

use test_e2e::objects::Propagation;
use test_e2e::{Deployed, Random, Scene};

/// How often the operator dies.
const DEATHS: usize = 10;
/// The pause before each death is below this, so that each life of the operator does some steps of a bootstrap.
const PAUSE: Duration = Duration::from_secs(4);
/// Until all is well after the last disturbance.
const PATIENCE: Duration = Duration::from_mins(2);

async fn settled_and_tidy(clusters: &[Deployed<'_>]) {
    for cluster in clusters {
        cluster.settled(PATIENCE).await.unwrap();
        cluster.whole(Duration::from_secs(10)).await.unwrap();
        cluster.tidy(Duration::from_secs(10)).await.unwrap();
    }
}

#[tokio::test]
async fn clusters_are_formed_although_the_operator_dies_again_and_again() {
    let scene = Scene::alone("deaths").await.unwrap();
    let mut random = Random::announced("killing the operator").unwrap();
    let start = Instant::now();
    let mut clusters = Vec::new();
    for death in 0..DEATHS {
        // A new cluster with every second death, so that each step of a bootstrap meets one.
        if death % 2 == 0 {
            let name = format!("c{death}");
            clusters.push(scene.blueprint(&name, 1 + random.index(3), 1).create().await.unwrap());
        }
        tokio::time::sleep(random.within(PAUSE)).await;
        test_e2e::say(&format!("{:.1?}: killing the operator", start.elapsed()));
        scene.operator.kill().await.unwrap();
    }
    settled_and_tidy(&clusters).await;
    test_e2e::say(&format!("{} clusters settled after {:.1?}", clusters.len(), start.elapsed()));
    scene.finish().unwrap();
}

#[tokio::test]
async fn two_operators_at_once_form_and_delete_clusters_as_one_does() {
    let scene = Scene::alone("two").await.unwrap();
    let mut random = Random::announced("starting a second operator").unwrap();
    let mut clusters = vec![scene.blueprint("one", 3, 1).create().await.unwrap()];
    tokio::time::sleep(random.within(Duration::from_secs(2))).await;
    scene.operator.scale(2).await.unwrap();
    scene.operator.await_ready().await.unwrap();
    for (name, shards) in [("two", 3), ("three", 1), ("four", 1)] {
        clusters.push(scene.blueprint(name, shards, 1).create().await.unwrap());
    }
    settled_and_tidy(&clusters).await;
    for cluster in &clusters {
        cluster.delete(Propagation::Background).await.unwrap();
    }
    for cluster in &clusters {
        cluster.gone(PATIENCE).await.unwrap();
    }
    scene.operator.scale(1).await.unwrap();
    scene.operator.await_ready().await.unwrap();
    scene.finish().unwrap();
}

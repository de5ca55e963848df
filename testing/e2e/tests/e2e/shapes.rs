//! Every size of cluster settles, many at once in one namespace, also with names that prefix each other.

use std::time::{Duration, Instant};

use test_e2e::{Deployed, Kind, Scene};

/// Names and sizes: shards and replicas of each.
const SHAPES: [(&str, usize, usize); 7] = [
    ("a", 1, 0),
    ("a-1", 1, 1),
    ("a-1-b", 3, 0),
    ("ab", 3, 1),
    ("a-12", 3, 2),
    ("a-b", 6, 1),
    ("a-1-b-c", 7, 1),
];

#[tokio::test]
async fn clusters_of_every_shape_settle_side_by_side_and_know_no_member_of_each_other() {
    let scene = Scene::alone("shapes").await.unwrap();
    let start = Instant::now();
    let mut clusters = Vec::new();
    for (name, shards, replicas) in SHAPES {
        clusters.push(scene.blueprint(name, shards, replicas).create().await.unwrap());
    }
    for cluster in &clusters {
        cluster.settled(Duration::from_mins(2)).await.unwrap();
        test_e2e::say(&format!(
            "{} settled {:.1?} after the first was asked for",
            cluster.name,
            start.elapsed()
        ));
    }
    for cluster in &clusters {
        // Every view lists exactly the cluster's own members.
        cluster.whole(Duration::from_secs(10)).await.unwrap();
    }
    let members: usize = clusters.iter().map(Deployed::members).sum();
    assert_eq!(scene.objects.list(Kind::NODE, "").await.unwrap().len(), members);
    scene.finish().unwrap();
}

//! What a settled cluster costs: no writes, next to no reads, little memory. Read from the audit log and the machine.

use std::collections::BTreeSet;
use std::time::Duration;

use test_e2e::audit::{self, AuditLog, Request};
use test_e2e::objects::{condition_is, text};
use test_e2e::{Probe, Scene, eventually, processes};

/// How long the operator is watched: longer than any of its pauses.
const WATCHED: Duration = Duration::from_secs(90);
/// Requests that read in that time, besides the watches, each of which the server ends about every five minutes.
const MOST_READS: usize = 4;
/// Memory of the three programs together that the kernel could not drop and read again from their files.
const MOST_MEMORY: u64 = 40 * 1024 * 1024;

#[tokio::test]
async fn a_settled_cluster_costs_no_writes_next_to_no_reads_and_less_than_forty_mebibytes() {
    let scene = Scene::alone("rest").await.unwrap();
    let cluster = scene.blueprint("rest", 3, 1).create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    let applied = |object: &serde_json::Value| condition_is(object, "ACLApplied", "True");
    cluster.until("to have its ACL applied", Duration::from_secs(95), applied).await.unwrap();
    let before = scene.operator.restarts().await.unwrap();
    let mut log = AuditLog::from_here(&audit::required().unwrap()).unwrap();
    let mut requests = Vec::new();
    // Waiting in vain for the first write is the test.
    let waited = eventually("a write", WATCHED, || {
        let new = log.read();
        let seen = new.map(|new| {
            requests.extend(new.into_iter().filter(|request| request.concerns(&scene.name)));
            requests.iter().filter(|request| request.is_write()).count()
        });
        async move { Ok(Probe::of(seen? > 0, "none")) }
    })
    .await;
    test_e2e::say(&format!("requests in {WATCHED:?}:\n{}", audit::summary(&requests)));
    let after = scene.operator.restarts().await.unwrap();
    assert_eq!(after, before, "the operator was started again meanwhile: nothing was at rest");
    assert!(waited.is_err(), "{requests:#?}");
    let (watches, reads): (Vec<&Request>, Vec<&Request>) =
        requests.iter().partition(|request| request.verb == "watch");
    assert!(reads.len() <= MOST_READS, "{reads:#?}");
    let watched: BTreeSet<_> = watches.iter().map(|request| (&request.program, &request.resource)).collect();
    assert_eq!(watched.len(), watches.len(), "a watch was opened twice");
    assert_small(&scene).await;
    scene.finish().unwrap();
}

/// The memory of the operator's programs is within its limit.
async fn assert_small(scene: &Scene) {
    let mut sum = 0;
    for pod in scene.operator.pods().await.unwrap() {
        for process in processes::of_pod(text(&pod, "/metadata/uid")).unwrap() {
            let (resident, own) = (process.resident_memory().unwrap(), process.anonymous_memory().unwrap());
            let kib = |bytes: u64| bytes / 1024;
            test_e2e::say(&format!("{}: {} KiB, {} of its own", process.program, kib(resident), kib(own)));
            sum += own;
        }
    }
    assert!(sum > 0, "no process found");
    assert!(sum <= MOST_MEMORY, "{sum} bytes");
}

#[tokio::test]
async fn no_request_of_a_whole_life_is_refused_for_want_of_a_permission() {
    let mut log = AuditLog::from_here(&audit::required().unwrap()).unwrap();
    let scene = Scene::alone("permissions").await.unwrap();
    let cluster = scene.blueprint("life", 2, 1).create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    cluster.edit(&serde_json::json!({ "podAnnotations": { "team": "a" } })).await.unwrap();
    cluster.settled(Duration::from_secs(20)).await.unwrap();
    cluster.delete(test_e2e::objects::Propagation::Background).await.unwrap();
    cluster.gone(Duration::from_secs(30)).await.unwrap();
    let requests = log.read().unwrap();
    assert!(requests.iter().any(Request::is_write), "the audit log shows nothing");
    let denied: Vec<&Request> = requests.iter().filter(|request| request.is_denied()).collect();
    assert!(denied.is_empty(), "{denied:#?}");
    scene.finish().unwrap();
}

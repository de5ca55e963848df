//! The debug overlay: reconcile-loops as a Deployment of its own, at one, three and no replicas. An edit of users reaches
//! running nodes with any number but none, and with none all else goes on.

use std::time::Duration;

use serde_json::json;
use test_e2e::objects::{Kind, Propagation, at, condition_is};
use test_e2e::{Deployed, Probe, Scene, eventually};

/// The Deployment that the overlay adds.
const LOOPS: &str = "valkey-operator-reconcile-loops";
/// From the edit until the node lets the user in: kubelet and ticks of 5 s included.
const REACHED_WITHIN: Duration = Duration::from_mins(1);
const PASSWORD: &str = "secret";
/// Its SHA-256.
const HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
/// How long an edit is watched not to arrive: several ticks of the overlay.
const WATCHED: Duration = Duration::from_secs(15);

#[tokio::test]
async fn users_reach_running_nodes_with_one_and_three_replicas_of_reconcile_loops_and_with_none_all_else_goes_on()
 {
    let scene = Scene::alone("overlay").await.unwrap();
    scene.operator.apply_overlay("debug").await.unwrap();
    let checked = check(&scene).await;
    // Whatever happened, the tests after this one need the operator as it was.
    scene.operator.apply_release().await.unwrap();
    scene.operator.objects.delete(Kind::DEPLOYMENT, LOOPS, Propagation::Background).await.unwrap();
    scene.operator.await_ready().await.unwrap();
    checked.unwrap();
    scene.finish().unwrap();
}

async fn check(scene: &Scene) -> anyhow::Result<()> {
    let role = json!({ "commands": [{ "name": "ping", "access": "allow" }] });
    scene.menu(Kind::ROLE, &scene.name, role).await?;
    let cluster = scene.blueprint("c", 1, 0).create().await?;
    cluster.settled(Duration::from_mins(1)).await?;
    for replicas in [1_u32, 3] {
        loops(scene, replicas).await?;
        let user = format!("with{replicas}");
        bind(&cluster, &user).await?;
        eventually(&format!("{user} to be let in"), REACHED_WITHIN, || async {
            let said = login(&cluster, &user).await?;
            Ok(Probe::of(said.contains("PONG"), said))
        })
        .await?;
        // Nodes are made only of a file that a running node has proved.
        eventually("the file to be on record as accepted", REACHED_WITHIN, || async {
            let map = scene.objects.get(Kind::CONFIG_MAP, "c-acl").await?;
            let of = |key| map.pointer("/data").and_then(|data| data.get(key)).cloned();
            Ok(Probe::of(of("users.acl") == of("users.acl.accepted"), at(&map, "/data").to_string()))
        })
        .await?;
    }
    loops(scene, 0).await?;
    cluster.edit(&json!({ "replicasPerShard": 1 })).await?;
    cluster
        .until("to have two nodes", Duration::from_mins(1), |object| {
            object.pointer("/status/readyNodes").and_then(serde_json::Value::as_u64) == Some(2)
        })
        .await?;
    bind(&cluster, "without").await?;
    // Waiting in vain is the test.
    let reached = eventually("a user without reconcile-loops", WATCHED, || async {
        let said = login(&cluster, "without").await?;
        Ok(Probe::of(said.contains("PONG"), said))
    });
    anyhow::ensure!(reached.await.is_err(), "a user was loaded although nobody loads users");
    loops(scene, 1).await?;
    eventually("the user to be let in after all", REACHED_WITHIN, || async {
        let said = login(&cluster, "without").await?;
        Ok(Probe::of(said.contains("PONG"), said))
    })
    .await
}

/// Sets the replicas and waits until exactly so many run and are ready.
async fn loops(scene: &Scene, replicas: u32) -> anyhow::Result<()> {
    let objects = &scene.operator.objects;
    objects.patch(Kind::DEPLOYMENT, LOOPS, &json!({ "spec": { "replicas": replicas } })).await?;
    scene.operator.await_ready().await?;
    let selector = format!("app.kubernetes.io/name={LOOPS}");
    eventually(&format!("{replicas} replicas of reconcile-loops"), Duration::from_mins(1), || async {
        let pods = objects.list(Kind::POD, &selector).await?;
        let ready = pods.iter().filter(|pod| condition_is(pod, "Ready", "True")).count();
        let wanted = usize::try_from(replicas)?;
        Ok(Probe::of(pods.len() == wanted && ready == wanted, format!("{ready} of {} ready", pods.len())))
    })
    .await
}

/// Binds one user, and so no other.
async fn bind(cluster: &Deployed<'_>, user: &str) -> anyhow::Result<()> {
    let permission = json!({ "roleRef": cluster.scene.name, "keys": [{ "pattern": "*" }] });
    let binding = json!([{ "username": user, "passwordHashes": [HASH], "permissions": [permission] }]);
    cluster.edit(&json!({ "acl": binding })).await
}

/// What a node answers to the user's PING: `PONG`, or that the password is wrong.
async fn login(cluster: &Deployed<'_>, user: &str) -> anyhow::Result<String> {
    let addresses = cluster.addresses().await?;
    let ip = addresses.values().next().map(String::as_str).unwrap_or_default();
    cluster.scene.run(&format!("valkey-cli -t 2 -h {ip} --user {user} --pass {PASSWORD} PING 2>&1")).await
}

//! The passwords of the system users: rotated under load, whatever happens to the operator meanwhile, and never taken from
//! somebody who only edits the Secret.

use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use shared::names;
use test_e2e::objects::{Propagation, at, condition, name, text};
use test_e2e::tls::{self, Load, TlsSecret};
use test_e2e::{Authority, Deployed, Kind, Probe, Random, Scene, eventually};

/// From the annotation to its end: twice the kubelet's refresh, which is asked for.
const ROTATES: Duration = Duration::from_mins(4);

async fn secret(cluster: &Deployed<'_>) -> Value {
    cluster.scene.objects.get(Kind::SECRET, &names::auth_secret(&cluster.name)).await.unwrap()
}

fn password(secret: &Value, key: &str) -> String {
    let ByteString(bytes) = serde_json::from_value(at(secret, &format!("/data/{key}")).clone()).unwrap();
    String::from_utf8(bytes).unwrap()
}

async fn ask_for_rotation(cluster: &Deployed<'_>, token: &str) {
    let patch = json!({ "metadata": { "annotations": { names::ANNOTATION_ROTATE_PASSWORDS: token } } });
    cluster.scene.objects.patch(Kind::CLUSTER, &cluster.name, &patch).await.unwrap();
}

/// Waits until the Secret says that the rotation is over, and gives it.
async fn rotated(cluster: &Deployed<'_>, token: &str) -> Value {
    let annotation = format!("/metadata/annotations/{}", names::ANNOTATION_ROTATED.replace('/', "~1"));
    eventually(&format!("the rotation {token} to be over"), ROTATES, || async {
        let now = secret(cluster).await;
        let said =
            condition(&cluster.object().await?, "Progressing").cloned().unwrap_or_default().to_string();
        Ok(if text(&now, &annotation) == token { Probe::Yes(now) } else { Probe::NotYet(said) })
    })
    .await
    .unwrap()
}

/// What every member answers to a login of `user` with `password`, in the client Pod.
async fn logins(cluster: &Deployed<'_>, user: &str, password: &str) -> Vec<String> {
    let options = cluster.client_options();
    let addresses = cluster.addresses().await.unwrap();
    let script: Vec<String> = addresses
        .values()
        .map(|ip| format!("echo 'AUTH {user} {password}' | valkey-cli -h {ip} {options} 2>&1 | head -n 1"))
        .collect();
    cluster.scene.run(&script.join("; ")).await.unwrap().lines().map(str::to_owned).collect()
}

/// Waits until every member takes the new passwords and refuses the old ones.
async fn only_the_new_ones_are_accepted(cluster: &Deployed<'_>, old: &Value, new: &Value) {
    let users =
        [(names::USER_OPERATOR, names::KEY_OPERATOR_PASSWORD), (names::USER_REPL, names::KEY_REPL_PASSWORD)];
    for (user, key) in users {
        let (old, new) = (password(old, key), password(new, key));
        assert_ne!(old, new);
        eventually(&format!("{user} to log in with the new password alone"), ROTATES, || async {
            let (with_old, with_new) = (logins(cluster, user, &old).await, logins(cluster, user, &new).await);
            let done = with_new.iter().all(|it| it == "OK")
                && with_old.len() == cluster.members()
                && with_old.iter().all(|it| it.contains("WRONGPASS"));
            Ok(Probe::of(done, format!("old: {with_old:?}, new: {with_new:?}")))
        })
        .await
        .unwrap();
    }
    // Whom members of a TLS cluster trust is recorded beside the passwords.
    let keys = new["data"].as_object().unwrap().keys().filter(|key| !key.starts_with("ca.crt."));
    let keys: Vec<&String> = keys.collect();
    assert_eq!(keys, ["operator-password", "primaryauth.conf", "repl-password"]);
}

/// Cuts every replication link: members have to log in at each other anew.
async fn cut_links(cluster: &Deployed<'_>) {
    let options = cluster.client_options();
    let addresses = cluster.addresses().await.unwrap();
    let cut = |ip: &String| format!("valkey-cli -h {ip} {options} CLIENT KILL TYPE replica");
    let script: Vec<String> = addresses.values().map(cut).collect();
    cluster.scene.run(&script.join("; ")).await.unwrap();
}

/// Rotates under load, with or without TLS; every link made afterwards works.
async fn rotates(scene: &Scene, cluster: &Deployed<'_>) {
    let host = names::service_host(&cluster.name, &scene.name);
    let lives = cluster.lives().await.unwrap();
    let old = secret(cluster).await;
    let load = Load::start(scene, &host, &cluster.client_options()).await.unwrap();
    let start = Instant::now();
    ask_for_rotation(cluster, "first").await;
    let new = rotated(cluster, "first").await;
    test_e2e::say(&format!("rotated {:.1?} after it was asked for", start.elapsed()));
    only_the_new_ones_are_accepted(cluster, &old, &new).await;
    test_e2e::say(&format!("the old ones are refused by all {:.1?} after it", start.elapsed()));
    let (sent, failed) = load.end(100).await.unwrap();
    test_e2e::say(&format!("{sent} writes, {} failed", failed.len()));
    assert!(failed.is_empty(), "{sent} writes: {failed:?}");
    assert_eq!(cluster.lives().await.unwrap(), lives, "a Pod was restarted or replaced");
    cut_links(cluster).await;
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    cluster.whole(Duration::from_secs(20)).await.unwrap();
    // Whoever comes now learns the new ones.
    let pods = cluster.list(Kind::POD).await.unwrap();
    scene.objects.delete(Kind::POD, name(&pods[0]), Propagation::Background).await.unwrap();
    eventually("the Pod to be replaced", Duration::from_mins(1), || async {
        let now = cluster.list(Kind::POD).await?;
        let gone = now.iter().all(|pod| name(pod) != name(&pods[0]));
        Ok(Probe::of(gone && now.len() == cluster.members(), format!("{} Pods", now.len())))
    })
    .await
    .unwrap();
    cluster.settled(Duration::from_mins(2)).await.unwrap();
    cluster.whole(Duration::from_secs(20)).await.unwrap();
}

#[tokio::test]
async fn passwords_are_rotated_under_load_without_a_restart_or_a_failed_command() {
    let scene = Scene::alone("passwords").await.unwrap();
    let cluster = scene.blueprint("auth", 3, 1).create().await.unwrap();
    scene.client().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    rotates(&scene, &cluster).await;
    scene.finish().unwrap();
}

#[tokio::test]
async fn passwords_are_rotated_over_tls_too() {
    let scene = Scene::alone("tls-passwords").await.unwrap();
    let authority = Authority::new("ours").unwrap();
    let issued = authority.sign(&tls::request("auth", &scene.name)).unwrap();
    TlsSecret::new(&scene, "certificate").hold(&issued, &authority.pem()).await.unwrap();
    scene.client().await.unwrap();
    scene.trust(&authority.pem()).await.unwrap();
    let blueprint = scene.blueprint("auth", 3, 1).with(&tls::spec("certificate"));
    let cluster = blueprint.create().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    rotates(&scene, &cluster).await;
    scene.finish().unwrap();
}

#[tokio::test]
async fn a_rotation_whose_operator_dies_again_and_again_is_finished_all_the_same() {
    let scene = Scene::alone("dying").await.unwrap();
    let cluster = scene.blueprint("auth", 3, 1).create().await.unwrap();
    scene.client().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    let mut random = Random::announced("killing the operator in a rotation").unwrap();
    let old = secret(&cluster).await;
    ask_for_rotation(&cluster, "first").await;
    for _ in 0..4 {
        tokio::time::sleep(random.within(Duration::from_secs(3))).await;
        scene.operator.kill().await.unwrap();
        let keys: Vec<String> = secret(&cluster).await["data"].as_object().unwrap().keys().cloned().collect();
        test_e2e::say(&format!("killed while the Secret held {keys:?}"));
        scene.operator.await_ready().await.unwrap();
    }
    let new = rotated(&cluster, "first").await;
    only_the_new_ones_are_accepted(&cluster, &old, &new).await;
    cut_links(&cluster).await;
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    cluster.whole(Duration::from_secs(20)).await.unwrap();
    scene.finish().unwrap();
}

#[tokio::test]
async fn passwords_that_somebody_writes_into_the_secret_are_reported_and_never_published() {
    let scene = Scene::new("edited").await.unwrap();
    let cluster = scene.blueprint("auth", 1, 1).create().await.unwrap();
    scene.client().await.unwrap();
    cluster.settled(Duration::from_mins(1)).await.unwrap();
    let map = names::acl_config_map(&cluster.name);
    let published = scene.objects.get(Kind::CONFIG_MAP, &map).await.unwrap();
    let good = secret(&cluster).await;
    let edit = json!({ "data": { names::KEY_OPERATOR_PASSWORD: ByteString(b"guessed".to_vec()) } });
    scene.objects.patch(Kind::SECRET, &names::auth_secret(&cluster.name), &edit).await.unwrap();
    cluster.says("does not know", Duration::from_secs(10)).await.unwrap();
    let now = scene.objects.get(Kind::CONFIG_MAP, &map).await.unwrap();
    assert_eq!(now["data"][names::KEY_USERS_ACL], published["data"][names::KEY_USERS_ACL]);
    let back = json!({ "data": good["data"] });
    scene.objects.patch(Kind::SECRET, &names::auth_secret(&cluster.name), &back).await.unwrap();
    cluster.settled(Duration::from_secs(30)).await.unwrap();
    cluster.whole(Duration::from_secs(10)).await.unwrap();
    scene.finish().unwrap();
}

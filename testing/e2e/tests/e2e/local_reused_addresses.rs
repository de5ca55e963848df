//! Two clusters side by side on one machine, whose fresh Pods are given the addresses of dead members of the other: the
//! engine itself greets whoever answers at a member's silent address, so only forgetting in time keeps them apart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use test_e2e::addresses::{Watch, give_next};
use test_e2e::objects::{Propagation, name, text};
use test_e2e::{Deployed, Kind, Probe, Scene, eventually, processes};

/// Keys of each cluster: the same names, other values.
const KEYS: usize = 300;
/// All is well again after a round. Whoever still has the former owner of the address in its neighbour table reaches the new one after
/// half a minute only.
const PATIENCE: Duration = Duration::from_mins(2);

/// How long a dead member's address is silent before another Pod is asked for that is given it: well before the engine
/// decides to greet it, just before, and after.
const SOON: Duration = Duration::from_millis(1500);
const BEFORE_THE_GREETING: Duration = Duration::from_millis(4200);
const AFTER_THE_GREETING: Duration = Duration::from_secs(8);
/// Who ends, how, and for how long there is silence.
const HAND_OVERS: [(&str, End, Duration); 4] = [
    ("replica", End::Deleted, SOON),
    ("primary", End::Killed, BEFORE_THE_GREETING),
    ("primary", End::Killed, AFTER_THE_GREETING),
    ("replica", End::Deleted, AFTER_THE_GREETING),
];

async fn keys(cluster: &Deployed<'_>, command: &str) -> Result<Vec<String>> {
    let host = shared::names::service_host(&cluster.name, &cluster.scene.name);
    let script = format!(
        "for i in $(seq {KEYS}); do echo \"{}\"; done | valkey-cli -c -h {host}",
        command.replace("CLUSTER", &cluster.name)
    );
    let said = cluster.scene.run(&script).await?;
    Ok(test_e2e::tls::replies_in(&said).into_iter().map(str::to_owned).collect())
}

async fn write_keys(cluster: &Deployed<'_>) {
    eventually("the keys to be written", Duration::from_secs(20), || async {
        let said = keys(cluster, "SET key:$i CLUSTER-$i").await?;
        Ok(Probe::of(said.len() == KEYS && said.iter().all(|reply| reply == "OK"), format!("{said:?}")))
    })
    .await
    .unwrap();
}

/// Each key has this cluster's value, and there is no other key.
async fn keys_are_its_own(cluster: &Deployed<'_>) {
    let expected: Vec<String> = (1..=KEYS).map(|index| format!("{}-{index}", cluster.name)).collect();
    assert_eq!(keys(cluster, "GET key:$i").await.unwrap(), expected, "{}", cluster.name);
    let views = cluster.views().await.unwrap();
    let primaries = views.iter().filter(|view| view.myself().is_some_and(|line| !line.slots.is_empty()));
    let total: u64 = primaries.map(|view| view.info.keys).sum();
    assert_eq!(usize::try_from(total).unwrap(), KEYS, "keys of {}", cluster.name);
}

fn role(pod: &Value) -> &str {
    text(pod, &format!("/metadata/labels/{}", shared::names::LABEL_ROLE.replace('/', "~1")))
}

fn address(pod: &Value) -> Result<Ipv4Addr> {
    text(pod, "/status/podIP").parse().with_context(|| format!("{} has no address", name(pod)))
}

async fn addresses(cluster: &Deployed<'_>) -> Result<BTreeMap<String, String>> {
    cluster.addresses().await
}

/// How a member ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its Pod is deleted: the server may say good-bye.
    Deleted,
    /// Its process is killed.
    Killed,
}

/// A member of `victim` in this role ends, and after `silence` a fresh Pod of `heir` is made at its address.
async fn hand_over(
    victim: &Deployed<'_>,
    (wanted, end): (&str, End),
    heir: &Deployed<'_>,
    silence: Duration,
) -> Result<()> {
    let pods = victim.list(Kind::POD).await?;
    let dead = pods.iter().find(|pod| role(pod) == wanted).with_context(|| format!("no {wanted}"))?;
    let (machine, ip) = (text(dead, "/spec/nodeName"), address(dead)?);
    // Its own successor is to get another address.
    give_next(machine, elsewhere(ip))?;
    match end {
        End::Deleted => {
            victim.scene.objects.delete(Kind::POD, name(dead), Propagation::Background).await?;
        }
        End::Killed => {
            let all = processes::of_pod(text(dead, "/metadata/uid"))?;
            let server = all.iter().find(|it| it.program.starts_with("valkey")).context("no server")?;
            server.signal("KILL")?;
        }
    }
    eventually("its network to be taken down", Duration::from_secs(20), || async {
        let left = victim.scene.objects.find(Kind::POD, name(dead)).await?;
        let phase = left.as_ref().map_or("gone", |pod| text(pod, "/status/phase")).to_owned();
        Ok(Probe::of(phase == "gone" || phase == "Failed" || phase == "Succeeded", phase))
    })
    .await?;
    let gone = Instant::now();
    tokio::time::sleep(silence).await;
    // Its own successor has an address by then, and does not take this one.
    eventually("the successor to have an address", Duration::from_secs(20), || async {
        let now = addresses(victim).await?;
        Ok(Probe::of(now.len() == victim.members() && !now.contains_key(name(dead)), format!("{now:?}")))
    })
    .await?;
    let before = addresses(heir).await?;
    let pods = heir.list(Kind::POD).await?;
    let replica = pods.iter().find(|pod| role(pod) == "replica").context("no replica")?;
    heir.scene.objects.delete(Kind::POD, name(replica), Propagation::Background).await?;
    let fresh = eventually("a fresh Pod with an address", Duration::from_secs(30), || async {
        give_next(machine, ip)?;
        let now = addresses(heir).await?;
        let fresh = now.into_iter().find(|(pod, _)| !before.contains_key(pod));
        Ok(fresh.map_or_else(|| Probe::NotYet("none".to_owned()), Probe::Yes))
    })
    .await?;
    test_e2e::say(&format!(
        "{wanted} of {} {end:?} at {ip}: {} of {} is there {:.1?} later",
        victim.name,
        fresh.0,
        heir.name,
        gone.elapsed()
    ));
    ensure!(fresh.1 == ip.to_string(), "{} has {}, and not {ip}: the test did not choose", fresh.0, fresh.1);
    Ok(())
}

/// An address of the same range that is far from this one.
fn elsewhere(ip: Ipv4Addr) -> Ipv4Addr {
    let [a, b, c, last] = ip.octets();
    Ipv4Addr::new(a, b, c, last % 200 + 40)
}

/// A scene whose clusters all live on one machine.
fn on_one_machine() -> Value {
    json!({ "placement": { "nodeSelector": { "kubernetes.io/hostname": "node-1" } } })
}

#[tokio::test]
async fn clusters_that_are_given_each_others_addresses_never_know_of_each_other_and_keep_their_keys() {
    let scene = Scene::alone("reuse").await.unwrap();
    let mut clusters = Vec::new();
    for name in ["one", "two"] {
        clusters.push(scene.blueprint(name, 3, 1).with(&on_one_machine()).create().await.unwrap());
    }
    let [one, two] = &clusters[..] else { panic!("two clusters") };
    for cluster in &clusters {
        cluster.settled(PATIENCE).await.unwrap();
        write_keys(cluster).await;
    }
    let watch = Watch::start(&[one, two]).await.unwrap();
    for (round, (role, end, silence)) in HAND_OVERS.into_iter().enumerate() {
        let (victim, heir) = if round % 2 == 0 { (one, two) } else { (two, one) };
        hand_over(victim, (role, end), heir, silence).await.unwrap();
        for cluster in &clusters {
            cluster.settled(PATIENCE).await.unwrap();
        }
        let seen = watch.seen().await;
        assert!(seen.strangers().is_empty(), "{:?}", seen.strangers());
    }
    for cluster in &clusters {
        cluster.whole(Duration::from_secs(20)).await.unwrap();
        keys_are_its_own(cluster).await;
    }
    // The last one came a moment ago.
    let seen = eventually("every member to have been looked at", Duration::from_secs(20), || async {
        let seen = watch.seen().await;
        let all = clusters.iter().all(|it| seen.members[&it.name].len() >= 6 + HAND_OVERS.len());
        let members = format!("{:?}", seen.members);
        Ok(if all { Probe::Yes(seen) } else { Probe::NotYet(members) })
    });
    let seen = seen.await.unwrap();
    test_e2e::say(&format!("looks {:?}, strangers {:?}", seen.looks, seen.strangers()));
    assert!(seen.strangers().is_empty(), "{:?}", seen.strangers());
    for cluster in &clusters {
        assert!(seen.looks[&cluster.name] > 500, "{:?}", seen.looks);
    }
    scene.finish().unwrap();
}

/// A dead owner of slots is listed until its slots have another owner, and with no replica left that takes as long as a
/// Pod takes to start: longer than the engine waits with its greeting.
#[tokio::test]
async fn a_fresh_pod_that_is_greeted_by_a_cluster_that_lost_a_shard_is_replaced_before_its_own_knows_it() {
    let scene = Scene::alone("reuse-lost").await.unwrap();
    let one = scene.blueprint("one", 3, 0).with(&on_one_machine()).create().await.unwrap();
    let two = scene.blueprint("two", 3, 1).with(&on_one_machine()).create().await.unwrap();
    for cluster in [&one, &two] {
        cluster.settled(PATIENCE).await.unwrap();
        write_keys(cluster).await;
    }
    let watch = Watch::start(&[&one, &two]).await.unwrap();
    for silence in [BEFORE_THE_GREETING, AFTER_THE_GREETING] {
        hand_over(&one, ("primary", End::Killed), &two, silence).await.unwrap();
        for cluster in [&one, &two] {
            cluster.settled(PATIENCE).await.unwrap();
        }
    }
    for cluster in [&one, &two] {
        cluster.whole(Duration::from_secs(20)).await.unwrap();
    }
    keys_are_its_own(&two).await;
    let (left, others) = (keys(&one, "GET key:$i").await.unwrap(), "two-");
    assert!(left.iter().all(|value| !value.starts_with(others)), "{left:?}");
    let seen = watch.seen().await;
    let strangers = seen.strangers();
    let greeted: BTreeSet<_> = strangers.iter().map(|it| it.member).collect();
    test_e2e::say(&format!("looks {:?}, {} fresh members were greeted", seen.looks, greeted.len()));
    assert!(strangers.iter().all(|it| !it.has_joined && it.cluster == "two"), "{strangers:#?}");
    scene.finish().unwrap();
}

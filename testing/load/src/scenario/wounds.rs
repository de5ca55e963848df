//! Faults that prove no death: machines, networks, the API server, a frozen server.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use test_e2e::objects::text;
use test_e2e::tls::{self, TlsSecret};
use test_e2e::{Authority, Scene};

use super::Setting;
use super::breaking::{Away, Broken, Cut, require_local};
use super::members::Member;
use super::planned::options;
use super::stage::{Stage, roomy};
use crate::report::Row;
use crate::run::Options;

/// How long such a fault lasts where nothing ends it.
const WHILE: Duration = Duration::from_mins(2);
/// How long a primary without a replica is frozen where no probe ends it.
const LONG: Duration = Duration::from_mins(10);
/// Until all is well after it was mended.
const MENDED_WITHIN: Duration = Duration::from_mins(3);

/// A machine that has a primary and not the operator, whose own absence is another question.
async fn victim(stage: &Stage<'_>) -> Result<(String, Vec<String>)> {
    let mut operators = Vec::new();
    for pod in stage.scene.operator.pods().await? {
        operators.push(text(&pod, "/spec/nodeName").to_owned());
    }
    let members = stage.members().await?;
    let fits = |member: &&Member| member.owns_slots() && !operators.contains(&member.machine);
    let machine = members.iter().find(fits).context("no primary beside the operator")?.machine.clone();
    let there = members.iter().filter(|it| it.machine == machine);
    let there = there.map(|it| {
        format!("{} ({} of shard {})", it.name, if it.owns_slots() { "primary" } else { "replica" }, it.shard)
    });
    let there = there.collect();
    Ok((machine, there))
}

/// A kubelet stopped for two minutes: its pods run on, and nothing may happen to them.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn kubelet(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    require_local()?;
    let mut stage = Stage::open(scene, "kubelet", 3, 1, &options(setting)).await?;
    let before = uids(&stage.members().await?);
    let (machine, there) = victim(&stage).await?;
    let operation = stage.fault(&format!("kubelet of {machine} stopped for two minutes"));
    let broken = Broken::by("stop-kubelet", &machine).await?;
    tokio::time::sleep(WHILE).await;
    broken.mend().await?;
    let after = uids(&stage.members().await?);
    let kept = if before == after { "every pod was kept" } else { "pods were replaced" };
    stage.end(operation, MENDED_WITHIN, &format!("{kept}; there: {}", there.join(", "))).await?;
    stage.close(Some(&setting.folder)).await
}

fn uids(members: &[Member]) -> Vec<String> {
    let mut uids: Vec<String> = members.iter().map(|member| member.uid.clone()).collect();
    uids.sort();
    uids
}

/// A machine loses power and comes back 90 s later.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn machine(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    require_local()?;
    let mut stage = Stage::open(scene, "machine", 3, 1, &options(setting)).await?;
    let (machine, there) = victim(&stage).await?;
    let operation = stage.fault(&format!("{machine} crashed, back after 90 s"));
    let broken = Broken::by("crash", &machine).await?;
    tokio::time::sleep(Duration::from_secs(90)).await;
    broken.mend().await?;
    stage.load.recorder.mark("the machine is back");
    stage.end(operation, MENDED_WITHIN, &there.join(", ")).await?;
    stage.close(Some(&setting.folder)).await
}

/// The pods of one machine cut off from the others for 40 s while clients reach all of them.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn cut(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    require_local()?;
    let mut stage = Stage::open(scene, "cut", 3, 1, &options(setting)).await?;
    let (machine, there) = victim(&stage).await?;
    let operation = stage.fault(&format!("pods of {machine} cut off for 40 s"));
    let cut = Cut::off(&machine)?;
    tokio::time::sleep(Duration::from_secs(40)).await;
    drop(cut);
    stage.load.recorder.mark("healed");
    stage.end(operation, MENDED_WITHIN, &there.join(", ")).await?;
    stage.close(Some(&setting.folder)).await
}

/// The API server away for two minutes; a primary dies meanwhile, and the engine elects its replica.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn api(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    require_local()?;
    let mut stage = Stage::open(scene, "api", 3, 1, &options(setting)).await?;
    let primaries = stage.primaries().await?;
    let victim = primaries.first().context("no primary")?.clone();
    let operation = stage.fault("the API server away for two minutes, a primary killed meanwhile");
    let away = Away::now()?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    stage.load.recorder.mark(format!("{} killed", victim.name));
    victim.signal("KILL")?;
    tokio::time::sleep(WHILE).await;
    drop(away);
    stage.load.recorder.mark("the API server is back");
    stage.end(operation, MENDED_WITHIN, &victim.name).await?;
    stage.close(Some(&setting.folder)).await
}

/// A primary of 3×0 that speaks TLS only frozen for ten minutes. The kubelet's probe is content with a port that accepts, as
/// the kernel does for a frozen process; so nobody but the operator could destroy it, and nothing of it may be. Few clients
/// call meanwhile: who is not accepted fills the queue of the port, and a full one fails the probe.
///
/// # Errors
///
/// The scenario cannot be played, or the primary was replaced.
pub async fn frozen_long(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    require_local()?;
    let authority = Authority::until("authority", 2040)?;
    let name = "frozen-long";
    let secret = TlsSecret::new(scene, "certificate");
    secret.hold(&authority.sign(&tls::request(name, &scene.name))?, &authority.pem()).await?;
    scene.client().await?;
    scene.trust(&authority.pem()).await?;
    roomy(scene).await?;
    let cluster = scene.blueprint(name, 3, 0).with(&tls::spec(&secret.name)).create().await?;
    cluster.settled(Duration::from_mins(2)).await?;
    let few = Options { clients: 1, tasks: 1, rate: 1, probes: 0, newcomer_pause: LONG, ..options(setting) };
    let mut stage = Stage::over(scene, name, cluster, Some(authority.pem()), &few).await?;
    let primaries = stage.primaries().await?;
    let before = uids(&primaries);
    let victim = primaries.first().context("no primary")?.clone();
    let operation = stage.fault("a primary of 3×0, by TLS, frozen for ten minutes");
    victim.signal("STOP")?;
    tokio::time::sleep(LONG).await;
    victim.signal("CONT").context("it was ended while it was frozen")?;
    stage.end(operation, MENDED_WITHIN, &victim.name).await?;
    let after = uids(&stage.members().await?);
    ensure!(before == after, "members were replaced: {before:?} before, {after:?} after");
    stage.close(Some(&setting.folder)).await
}

/// A primary of 3×0 frozen for two minutes: it may be the only copy, so nothing of it may be destroyed.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn frozen(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    require_local()?;
    let mut stage = Stage::open(scene, "frozen", 3, 0, &options(setting)).await?;
    let primaries = stage.primaries().await?;
    let before = uids(&primaries);
    let victim = primaries.first().context("no primary")?.clone();
    let operation = stage.fault("a primary of 3×0 frozen for two minutes");
    victim.signal("STOP")?;
    // A probe of the kubelet kills a server that hangs for longer than its threshold: six times ten seconds.
    tokio::time::sleep(Duration::from_secs(45)).await;
    let meanwhile = uids(&stage.members().await?);
    tokio::time::sleep(WHILE.saturating_sub(Duration::from_secs(45))).await;
    // It may have been killed by then.
    let went_on = victim.signal("CONT").is_ok();
    let kept = if before == meanwhile { "kept" } else { "replaced" };
    let note = format!("{}: after 45 s {kept}; after two minutes still there: {went_on}", victim.name);
    stage.end(operation, MENDED_WITHIN, &note).await?;
    stage.close(Some(&setting.folder)).await
}

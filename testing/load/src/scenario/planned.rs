//! Planned changes of size, and machines that are emptied.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use redis::cmd;
use serde_json::json;
use shared::slots::SlotSet;
use test_e2e::Scene;

use super::Setting;
use super::members::Member;
use super::order::Rules;
use super::stage::Stage;
use crate::report::Row;
use crate::run::Options;

/// A planned change is given up after this.
pub const LIMIT: Duration = Duration::from_mins(3);
/// By hand a migration is given up after this.
const BY_HAND: Duration = Duration::from_mins(1);

/// How the load of a scenario is.
pub fn options(setting: &Setting) -> Options {
    Options { rate: setting.rate, seed: setting.seed, ..Options::default() }
}

/// Changes the number of shards and waits.
///
/// # Errors
///
/// The API server refuses it.
pub async fn reshard(stage: &mut Stage<'_>, to: usize) -> Result<Row> {
    let name = format!("shards {}→{to}", stage.cluster.shards);
    let operation = stage.begin(&name, Rules { replicas: stage.cluster.replicas, one_shard_of: None });
    stage.cluster.edit(&json!({ "shards": to })).await?;
    stage.cluster.shards = to;
    stage.end(operation, LIMIT, "").await.cloned()
}

/// Shards 3→4→6→3→1→3.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn scale(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    let mut stage = Stage::open(scene, "scale", 3, 1, &options(setting)).await?;
    for shards in [4, 6, 3, 1, 3] {
        reshard(&mut stage, shards).await?;
    }
    stage.close(Some(&setting.folder)).await
}

/// Shards 3→4 with many keys by the operator, and the move of the same slots by hand in one job a giver.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn bulk(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    let many = Options { keys: 100_000, ..options(setting) };
    let mut stage = Stage::open(scene, "bulk", 3, 1, &many).await?;
    let before = owners(&stage.primaries().await?);
    reshard(&mut stage, 4).await?;
    let after = stage.primaries().await?;
    let newcomer = after
        .iter()
        .find(|member| id(member).is_some_and(|id| !before.contains_key(id)))
        .context("no new owner of slots after 3→4")?
        .clone();
    scene.operator.scale(0).await?;
    scene.operator.await_ready().await?;
    let given: Vec<(Member, SlotSet)> = givers(&before, &after)?;
    let back = stage.begin("the same slots back by hand", Rules { replicas: 1, one_shard_of: None });
    let took = migrate(&stage, given.iter().map(|(giver, slots)| (&newcomer, giver, slots))).await?;
    stage.end_held(back, &format!("one job a receiver, {:.2} s", took.as_secs_f64())).await?;
    let forth = stage.begin("and forth by hand, in bulk", Rules { replicas: 1, one_shard_of: None });
    let took = migrate(&stage, given.iter().map(|(giver, slots)| (giver, &newcomer, slots))).await?;
    stage.end_held(forth, &format!("one job a giver, all at once, {:.2} s", took.as_secs_f64())).await?;
    scene.operator.scale(1).await?;
    scene.operator.await_ready().await?;
    stage.close(Some(&setting.folder)).await
}

fn id(member: &Member) -> Option<&str> {
    member.server.as_ref().map(|server| server.id.as_str())
}

fn owners(primaries: &[Member]) -> BTreeMap<String, SlotSet> {
    let servers = primaries.iter().filter_map(|member| member.server.clone());
    servers.map(|server| (server.id, server.slots)).collect()
}

/// What each of the former owners has given.
fn givers(before: &BTreeMap<String, SlotSet>, after: &[Member]) -> Result<Vec<(Member, SlotSet)>> {
    let mut givers = Vec::new();
    for member in after {
        let Some(server) = &member.server else { bail!("{} does not answer", member.name) };
        let Some(had) = before.get(&server.id) else { continue };
        let given = had.difference(&server.slots);
        ensure!(!given.is_empty(), "{} gave nothing", member.name);
        givers.push((member.clone(), given));
    }
    Ok(givers)
}

/// Moves slots from one to another, all at once; how long until every new owner says that it owns them.
pub(super) async fn migrate<'a>(
    stage: &Stage<'_>,
    moves: impl Iterator<Item = (&'a Member, &'a Member, &'a SlotSet)>,
) -> Result<Duration> {
    let start = Instant::now();
    try_join_all(moves.map(|(from, to, slots)| async move {
        let mut command = cmd("CLUSTER");
        command.arg("MIGRATESLOTS").arg("SLOTSRANGE");
        for range in slots.ranges() {
            command.arg(range.start).arg(range.end);
        }
        command.arg("NODE").arg(id(to).context("a receiver that does not answer")?);
        // A node runs its jobs one after the other, but takes them at once.
        stage.load.nodes.ask(&from.address, &command).await.context("CLUSTER MIGRATESLOTS")?;
        loop {
            let now = stage.members().await?;
            let owner = now.iter().find(|member| member.name == to.name);
            let owned = owner.and_then(|member| member.server.as_ref()).map(|server| &server.slots);
            if owned.is_some_and(|owned| slots.difference(owned).is_empty()) {
                return Ok(());
            }
            ensure!(start.elapsed() < BY_HAND, "{} does not own {slots:?} after {BY_HAND:?}", to.name);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }))
    .await?;
    Ok(start.elapsed())
}

/// Replicas 1→2→0→1.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn replicas(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    let mut stage = Stage::open(scene, "replicas", 3, 1, &options(setting)).await?;
    for to in [2, 0, 1] {
        let from = stage.cluster.replicas;
        let rules = Rules { replicas: from.min(to), one_shard_of: None };
        let operation = stage.begin(&format!("replicas {from}→{to}"), rules);
        stage.cluster.edit(&json!({ "replicasPerShard": to })).await?;
        stage.cluster.replicas = to;
        stage.end(operation, LIMIT, "").await?;
    }
    stage.close(Some(&setting.folder)).await
}

/// Every machine that has members is drained, one after the other.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn drain(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    let mut stage = Stage::open(scene, "drain", 3, 1, &options(setting)).await?;
    let machines = machines(&stage.members().await?);
    for machine in machines {
        let operation = stage.begin(&format!("drain {machine}"), Rules { replicas: 0, one_shard_of: None });
        let emptied = empty(scene, &machine).await;
        let note = emptied.map_or_else(|error| format!("{error:#}"), |()| String::new());
        stage.end(operation, LIMIT, &note).await?;
        scene.kubectl().run(&["uncordon", &machine]).await?.success()?;
    }
    stage.close(Some(&setting.folder)).await
}

/// The machines that members run on.
pub fn machines(members: &[Member]) -> Vec<String> {
    let mut machines: Vec<String> = members.iter().map(|member| member.machine.clone()).collect();
    machines.sort();
    machines.dedup();
    machines
}

/// `kubectl drain`, as a person empties a machine.
///
/// # Errors
///
/// It does not end well within two minutes.
pub async fn empty(scene: &Scene, machine: &str) -> Result<()> {
    let arguments =
        ["drain", machine, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s"];
    scene.kubectl().run(&arguments).await?.success().map(drop)
}

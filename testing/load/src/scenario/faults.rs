//! Servers that die: with and without a replica, with and without a majority, in the middle of planned work.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use test_e2e::{Kind, Scene};

use super::Setting;
use super::breaking::require_local;
use super::members::Member;
use super::planned::{self, LIMIT, options};
use super::stage::{Stage, config};
use crate::report::{Row, Settled};

/// How often a primary is killed, each time with a fresh cluster around it.
const DEATHS: usize = 10;
/// How often several die at once.
const DOUBLE_DEATHS: usize = 3;

/// Kills the processes of some primaries at once, and waits until the cluster is whole.
///
/// # Errors
///
/// There are too few primaries, or they have no processes here.
pub async fn kill(
    stage: &mut Stage<'_>,
    name: &str,
    count: usize,
    random: &mut fastrand::Rng,
) -> Result<Row> {
    let mut primaries = stage.primaries().await?;
    ensure!(primaries.len() >= count, "{} primaries", primaries.len());
    random.shuffle(&mut primaries);
    primaries.truncate(count);
    let operation = stage.fault(name);
    for primary in &primaries {
        primary.signal("KILL")?;
    }
    let names: Vec<&str> = primaries.iter().map(|it| it.name.as_str()).collect();
    stage.end(operation, LIMIT, &names.join(", ")).await.cloned()
}

/// The median of some times, and the longest.
fn median(rows: &[Row], time: impl Fn(&Row) -> Option<f64>) -> Option<(f64, f64)> {
    let mut times: Vec<f64> = rows.iter().filter_map(time).collect();
    times.sort_by(f64::total_cmp);
    Some((*times.get(times.len() / 2)?, *times.last()?))
}

fn tell_medians(what: &str, rows: &[Row]) {
    let whole = |row: &Row| if let Settled::After(time) = row.settled { Some(time) } else { None };
    let lost: u64 = rows.iter().map(|row| row.verdict.lost).sum();
    let failed: u64 = rows.iter().map(|row| row.window.failed()).sum();
    test_e2e::say(&format!(
        "{what}: {} times, median and longest: writable {:?} s, whole {:?} s; lost {lost}, failed {failed}",
        rows.len(),
        median(rows, |row| row.writable_s),
        median(rows, whole),
    ));
}

async fn again_and_again(
    scene: &Scene,
    setting: &Setting,
    scenario: &str,
    (shards, replicas): (usize, usize),
    (times, count): (usize, usize),
) -> Result<Vec<Row>> {
    require_local()?;
    let mut random = fastrand::Rng::with_seed(setting.seed);
    let mut stage = Stage::open(scene, scenario, shards, replicas, &options(setting)).await?;
    for number in 1..=times {
        let name = format!("{count} of {shards} primaries killed, {number}");
        kill(&mut stage, &name, count, &mut random).await?;
    }
    let rows = stage.close(Some(&setting.folder)).await?;
    tell_medians(scenario, &rows);
    Ok(rows)
}

/// One primary of 3×1, ten times.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn primary(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    again_and_again(scene, setting, "primary", (3, 1), (DEATHS, 1)).await
}

/// Two of four primaries at once.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn half(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    again_and_again(scene, setting, "half", (4, 1), (DOUBLE_DEATHS, 2)).await
}

/// Two of three primaries at once.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn two_of_three(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    again_and_again(scene, setting, "two-of-three", (3, 1), (DOUBLE_DEATHS, 2)).await
}

/// A primary of 3×0: its data is lost, its slots are served again.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn bare(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    again_and_again(scene, setting, "bare", (3, 0), (2, 1)).await
}

/// A primary killed in the middle of scaling out and in, and of a roll.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn midway(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    require_local()?;
    let mut random = fastrand::Rng::with_seed(setting.seed);
    let mut stage = Stage::open(scene, "midway", 3, 1, &options(setting)).await?;
    for to in [4, 3] {
        let name = format!("shards {}→{to}, a primary killed while slots move", stage.cluster.shards);
        let operation = stage.fault(&name);
        stage.cluster.edit(&json!({ "shards": to })).await?;
        stage.cluster.shards = to;
        stage.until_action(&operation, "MigrateSlots", LIMIT).await?;
        let victim = any(&stage.primaries().await?, &mut random)?;
        victim.signal("KILL")?;
        stage.end(operation, LIMIT, &victim.name).await?;
    }
    let operation = stage.fault("a roll of 3×1, a primary killed after the first hand-over");
    scene.menu(Kind::CONFIG, &scene.name, config(&scene.name, &json!({ "valkey": { "hz": "21" } }))).await?;
    stage.until_action(&operation, "Failover", LIMIT).await?;
    let victim = any(&stage.primaries().await?, &mut random)?;
    victim.signal("KILL")?;
    stage.end(operation, LIMIT, &victim.name).await?;
    stage.close(Some(&setting.folder)).await
}

fn any(members: &[Member], random: &mut fastrand::Rng) -> Result<Member> {
    random.choice(members).cloned().context("no member that serves")
}

/// A primary killed while the operator is at zero: the engine's own election, then the operator comes back.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn no_operator(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    require_local()?;
    let mut random = fastrand::Rng::with_seed(setting.seed);
    let mut stage = Stage::open(scene, "no-operator", 3, 1, &options(setting)).await?;
    scene.operator.scale(0).await?;
    scene.operator.await_ready().await?;
    let operation = stage.fault("a primary killed, the operator at zero for 30 s");
    let victim = any(&stage.primaries().await?, &mut random)?;
    victim.signal("KILL")?;
    tokio::time::sleep(Duration::from_secs(30)).await;
    scene.operator.scale(1).await?;
    scene.operator.await_ready().await?;
    stage.end(operation, LIMIT, &victim.name).await?;
    stage.close(Some(&setting.folder)).await
}

/// Clusters in which no majority can ever vote: 1×1 and 2×1, killed, then every machine drained.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn small(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    require_local()?;
    let mut random = fastrand::Rng::with_seed(setting.seed);
    let mut rows = Vec::new();
    for shards in [1, 2] {
        let scenario = format!("small-{shards}");
        let mut stage = Stage::open(scene, &scenario, shards, 1, &options(setting)).await?;
        for number in 1..=3 {
            let name = format!("a primary of {shards}×1 killed, {number}");
            kill(&mut stage, &name, 1, &mut random).await?;
        }
        for machine in planned::machines(&stage.members().await?) {
            let operation = stage.fault(&format!("drain {machine}, {shards}×1"));
            let emptied = planned::empty(scene, &machine).await;
            let note = emptied.map_or_else(|error| format!("{error:#}"), |()| String::new());
            stage.end(operation, LIMIT, &note).await?;
            scene.kubectl().run(&["uncordon", &machine]).await?.success()?;
        }
        rows.extend(stage.close(Some(&setting.folder)).await?);
    }
    Ok(rows)
}

//! What the engine costs by itself: the operator's steps taken by hand, beside the operator's own on the same cluster.

use std::time::Duration;

use anyhow::{Context as _, Result};
use redis::cmd;
use serde_json::json;
use shared::slots::SlotSet;
use test_e2e::{Probe, Scene, eventually};
use tokio::time::sleep;

use super::Setting;
use super::members::Member;
use super::order::Rules;
use super::planned::{migrate, options, reshard};
use super::rolls::roll;
use super::stage::{Stage, config};
use crate::interruptions::BY_HAND;
use crate::report::Row;

/// For so long nothing is done: what the machine and the clients cost by themselves.
const NOTHING: Duration = Duration::from_secs(30);
/// Pause after a step, so that its stalls are told from those of the next.
const PAUSE: Duration = Duration::from_secs(1);
/// A hand-over is given up after this.
const LIMIT: Duration = Duration::from_secs(30);
/// Steps of each kind.
const STEPS: usize = 9;
/// Slots of a move: what the operator moves at a time (`slotBatch`).
const SLOTS: u16 = 1024;

/// Nothing, hand-overs, and moves of slots with the operator at zero; then rolls and shards 3→4→3→4→3 with it.
///
/// # Errors
///
/// The scenario cannot be played.
pub async fn by_hand(scene: &Scene, setting: &Setting) -> Result<Vec<Row>> {
    let mut stage = Stage::open(scene, "by-hand", 3, 1, &options(setting)).await?;
    scene.operator.scale(0).await?;
    scene.operator.await_ready().await?;
    let rules = Rules { replicas: 1, one_shard_of: None };
    let nothing = stage.begin("nothing", rules);
    sleep(NOTHING).await;
    stage.end_held(nothing, "the operator at zero").await?;
    let hand_overs = stage.begin("hand-overs by hand", rules);
    for step in 0..STEPS {
        hand_over(&stage, step).await.with_context(|| format!("hand-over {step}"))?;
        sleep(PAUSE).await;
    }
    stage.end_held(hand_overs, &format!("{STEPS} times")).await?;
    let moves = stage.begin("moves by hand", rules);
    for step in 0..STEPS {
        step_of_slots(&stage, step).await.with_context(|| format!("move {step}"))?;
        sleep(PAUSE).await;
    }
    stage.end_held(moves, &format!("{STEPS} times {SLOTS} slots")).await?;
    scene.operator.scale(1).await?;
    scene.operator.await_ready().await?;
    for hz in ["20", "30", "40"] {
        let settings = json!({ "valkey": { "hz": hz } });
        roll(&mut stage, &format!("a roll: hz {hz}"), config(&scene.name, &settings)).await?;
    }
    for shards in [4, 3, 4, 3] {
        reshard(&mut stage, shards).await?;
    }
    stage.close(Some(&setting.folder)).await
}

/// The replica of one of the shards, in turn, takes over as a person tells it to.
async fn hand_over(stage: &Stage<'_>, step: usize) -> Result<()> {
    let primaries = stage.primaries().await?;
    let old = primaries.get(step % primaries.len().max(1)).context("no primary")?;
    let is_replica = |member: &Member| member.shard == old.shard && !member.owns_slots();
    let members = stage.members().await?;
    let next = members.iter().find(|member| is_replica(member)).context("no replica")?;
    stage.load.recorder.mark(format!("{BY_HAND}Failover {}", next.name));
    let mut command = cmd("CLUSTER");
    command.arg("FAILOVER");
    stage.load.nodes.ask(&next.address, &command).await.context("CLUSTER FAILOVER")?;
    eventually(&format!("{} to take over", next.name), LIMIT, || async {
        let now = stage.members().await?;
        let server = now.into_iter().find(|it| it.name == next.name).and_then(|it| it.server);
        let done = server.as_ref().is_some_and(|it| it.primary && it.synced_replicas == 1);
        Ok(Probe::of(done, server.map_or_else(|| "silent".to_owned(), |it| format!("{it:?}"))))
    })
    .await
}

/// A batch of slots goes from one primary to the next, each giving in turn.
async fn step_of_slots(stage: &Stage<'_>, step: usize) -> Result<()> {
    let primaries = stage.primaries().await?;
    let at = |index: usize| primaries.get(index % primaries.len().max(1)).context("no primary");
    let (giver, taker) = (at(step)?, at(step + 1)?);
    let slots: SlotSet = giver.server.as_ref().context("a silent giver")?.slots.take(SLOTS);
    stage.load.recorder.mark(format!("{BY_HAND}MigrateSlots {} to {}", giver.name, taker.name));
    migrate(stage, std::iter::once((giver, taker, &slots))).await.map(drop)
}

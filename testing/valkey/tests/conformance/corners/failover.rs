//! Who follows whom: hand-overs, elections, FORCE, TAKEOVER.

use anyhow::Result;
use shared::valkey::FailoverKind::{Force, Planned, Takeover};

use super::corners;
use crate::op::Op;
use crate::pair::Pair;
use crate::picture::everywhere;

corners!(
    a_planned_hand_over_swaps_the_roles: [3, 1, 0],
    a_second_replica_follows_the_new_primary: [1, 2, 0],
    a_dead_primary_is_replaced_by_a_majority: [3, 1, 0],
    without_a_majority_only_a_takeover_helps: [2, 1, 0],
    a_dead_primary_is_replaced_at_once_by_force: [3, 1, 0],
    a_living_primary_is_deposed_by_force: [3, 1, 0],
    a_living_primary_is_deposed_by_a_takeover: [2, 1, 0],
    two_takeovers_at_once_draw_different_epochs: [2, 1, 0],
    a_hand_over_from_a_dead_primary_is_refused: [2, 1, 0],
    a_stopped_primary_is_replaced_and_comes_back_as_replica: [3, 1, 0],
    an_empty_process_at_the_address_of_a_primary_has_its_replica_elected: [3, 1, 0],
    a_reset_primary_has_its_replica_elected: [3, 1, 0],
    a_replica_changes_its_shard: [2, 1, 0],
    a_replica_of_a_primary_without_slots: [2, 0, 2],
    a_replica_of_a_primary_that_nobody_wrote_to_has_offset_0: [1, 1, 0];
);

async fn a_planned_hand_over_swaps_the_roles(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Write(0, 1)).await?;
    pair.does(Op::Failover(3, Planned)).await?;
    pair.until("3 is the primary of 0", |pictures| {
        everywhere(pictures, |one| {
            one.line("0").is_some_and(|line| line.follows.as_deref() == Some("3")) && one.owns("3")
        })
    })
    .await?;
    pair.does(Op::Failover(0, Planned)).await?;
    pair.until("and back", |pictures| everywhere(pictures, |one| one.owns("0") && one.linked != Some(false)))
        .await?;
    Ok(())
}

async fn a_second_replica_follows_the_new_primary(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Failover(1, Planned)).await?;
    pair.until("all follow 1", |pictures| {
        everywhere(pictures, |one| one.owns("1") && one.linked != Some(false))
            && [0, 2]
                .iter()
                .all(|place| pictures.get(place).is_some_and(|one| one.follows.as_deref() == Some("1")))
    })
    .await?;
    Ok(())
}

async fn a_dead_primary_is_replaced_by_a_majority(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Write(1, 6_000)).await?;
    pair.does(Op::Kill(1)).await?;
    pair.until("its replica is elected", |pictures| {
        everywhere(pictures, |one| one.owns("4") && one.fails("1"))
    })
    .await?;
    pair.does(Op::Write(4, 6_000)).await?;
    pair.forget(1, 0).await?;
    pair.until("it is forgotten", |pictures| everywhere(pictures, |one| one.line("1").is_none())).await?;
    Ok(())
}

async fn without_a_majority_only_a_takeover_helps(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Kill(0)).await?;
    let doubted = pair.agree().await?;
    anyhow::ensure!(!everywhere(&doubted, |one| one.fails("0")), "{doubted:#?}");
    pair.does(Op::Failover(2, Force)).await?;
    pair.wait(std::time::Duration::from_secs(6)).await;
    pair.agree().await?;
    pair.does(Op::Failover(2, Takeover)).await?;
    pair.until("taken over", |pictures| {
        everywhere(pictures, |one| one.owns("2") && !one.owns("0") && one.serves)
    })
    .await?;
    Ok(())
}

async fn a_dead_primary_is_replaced_at_once_by_force(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Kill(2)).await?;
    pair.wait(std::time::Duration::from_millis(500)).await;
    pair.does(Op::Failover(5, Force)).await?;
    pair.until("replaced", |pictures| {
        everywhere(pictures, |one| one.owns("5") && one.serves && one.fails("2"))
    })
    .await?;
    Ok(())
}

async fn a_living_primary_is_deposed_by_force(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Failover(3, Force)).await?;
    pair.until("deposed", |pictures| everywhere(pictures, |one| one.owns("3") && !one.owns("0"))).await?;
    pair.until("linked", |pictures| everywhere(pictures, |one| one.linked != Some(false))).await?;
    Ok(())
}

async fn a_living_primary_is_deposed_by_a_takeover(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Write(0, 1)).await?;
    pair.until("replicated", |pictures| pictures.get(&2).is_some_and(|one| one.keys == 1)).await?;
    pair.does(Op::Failover(2, Takeover)).await?;
    pair.until("deposed", |pictures| everywhere(pictures, |one| one.owns("2") && !one.owns("0"))).await?;
    pair.until("linked", |pictures| everywhere(pictures, |one| one.linked != Some(false))).await?;
    Ok(())
}

async fn two_takeovers_at_once_draw_different_epochs(pair: &mut Pair) -> Result<()> {
    // The second may or may not have heard of the first one's epoch when it draws its own.
    pair.leave_to_chance();
    pair.does(Op::Failover(2, Takeover)).await?;
    pair.does(Op::Failover(3, Takeover)).await?;
    pair.until("both have", |pictures| {
        everywhere(pictures, |one| one.owns("2") && one.owns("3") && one.serves)
    })
    .await?;
    Ok(())
}

async fn a_hand_over_from_a_dead_primary_is_refused(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Kill(0)).await?;
    pair.until("doubted", |pictures| {
        everywhere(pictures, |one| one.line("0").is_some_and(|line| line.doubted))
    })
    .await?;
    pair.refuses(Op::Failover(2, Planned), "Master is down or failed").await?;
    pair.agree().await.map(drop)
}

async fn a_stopped_primary_is_replaced_and_comes_back_as_replica(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Freeze(0)).await?;
    pair.until("replaced", |pictures| everywhere(pictures, |one| one.owns("3") && one.fails("0"))).await?;
    pair.does(Op::Thaw(0)).await?;
    pair.until("back", |pictures| {
        everywhere(pictures, |one| !one.fails("0") && one.owns("3") && one.linked != Some(false))
    })
    .await?;
    Ok(())
}

async fn an_empty_process_at_the_address_of_a_primary_has_its_replica_elected(pair: &mut Pair) -> Result<()> {
    // Without a key: whether its replica copies the emptiness of the new process first is chance.
    pair.does(Op::Restart(0)).await?;
    pair.until("the replica is elected", |pictures| {
        pictures.iter().all(|(place, one)| if *place == 0 { one.lines.len() == 1 } else { one.owns("3") })
    })
    .await?;
    pair.forget(0, 0).await?;
    pair.does(Op::Meet(1, 0)).await?;
    pair.until("met", |pictures| {
        everywhere(pictures, |one| one.line("0'").is_some() && one.line("0").is_none())
    })
    .await?;
    pair.does(Op::Replicate(0, 3)).await?;
    pair.until("linked", |pictures| everywhere(pictures, |one| one.linked != Some(false) && one.serves))
        .await?;
    Ok(())
}

async fn a_reset_primary_has_its_replica_elected(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Reset(0)).await?;
    pair.until("the replica is elected", |pictures| {
        pictures.iter().all(|(place, one)| if *place == 0 { one.lines.len() == 1 } else { one.owns("3") })
    })
    .await?;
    Ok(())
}

async fn a_replica_changes_its_shard(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Write(0, 1)).await?;
    pair.until("replicated", |pictures| pictures.get(&2).is_some_and(|one| one.keys == 1)).await?;
    pair.does(Op::Replicate(2, 1)).await?;
    pair.until("changed", |pictures| {
        everywhere(pictures, |one| one.linked != Some(false))
            && pictures.get(&2).is_some_and(|one| one.keys == 0 && one.follows.as_deref() == Some("1"))
    })
    .await?;
    Ok(())
}

async fn a_replica_of_a_primary_without_slots(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Replicate(3, 2)).await?;
    pair.until("linked", |pictures| pictures.get(&3).is_some_and(|one| one.linked == Some(true))).await?;
    pair.does(Op::Failover(3, Planned)).await?;
    pair.until("swapped", |pictures| pictures.get(&2).is_some_and(|one| one.follows.as_deref() == Some("3")))
        .await?;
    pair.does(Op::Kill(3)).await?;
    pair.until("its replica is elected", |pictures| {
        everywhere(pictures, |one| one.fails("3") && one.line("2").is_some_and(|line| line.follows.is_none()))
    })
    .await?;
    Ok(())
}

async fn a_replica_of_a_primary_that_nobody_wrote_to_has_offset_0(pair: &mut Pair) -> Result<()> {
    pair.agree().await?;
    pair.does(Op::Start).await?;
    pair.does(Op::Meet(0, 2)).await?;
    pair.until("met", |pictures| everywhere(pictures, |one| one.lines.len() == 3)).await?;
    pair.does(Op::Kill(0)).await?;
    // Of a primary that it never heard of: offset 1 until the first sync.
    pair.does(Op::Replicate(2, 0)).await?;
    pair.until("never linked", |pictures| pictures.get(&2).is_some_and(|one| one.offset == 1)).await?;
    Ok(())
}

//! Who knows whom: MEET, FORGET, RESET, restarts.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::corners;
use crate::op::Op;
use crate::pair::Pair;
use crate::picture::everywhere;

corners!(
    a_dead_replica_is_forgotten_by_all: [3, 1, 0],
    what_one_forgets_all_forget: [3, 1, 0],
    a_reset_member_is_nowhere_until_it_is_forgotten: [3, 1, 0],
    a_reset_and_forgotten_member_is_met_again_as_another: [2, 1, 0],
    an_empty_process_at_the_address_of_a_replica_is_another: [3, 1, 0],
    a_dead_primary_that_is_forgotten_leaves_its_slots_to_nobody: [3, 0, 0],
    a_replica_keeps_its_forgotten_primary: [2, 1, 0],
    a_stopped_replica_comes_back_as_it_was: [2, 1, 0],
    a_newcomer_learns_of_all_from_one: [3, 0, 0],
    two_clusters_that_meet_become_one: [2, 1, 0];
    nodes_that_meet_one_another_both_ways: 3,
    a_node_that_meets_itself_stays_alone: 1,
    an_introduction_to_a_dead_address_ends: 2,
    a_living_node_that_one_forgot_comes_back: 2,
    forgotten_on_both_sides_and_met_again_within_the_ban: 2,
    nodes_without_epochs_draw_different_ones: 4,
);

async fn a_dead_replica_is_forgotten_by_all(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Kill(5)).await?;
    pair.forget(5, 0).await?;
    pair.until("five are left", |pictures| everywhere(pictures, |one| one.lines.len() == 5 && one.serves))
        .await?;
    pair.forget(5, 0).await?;
    pair.agree().await.map(drop)
}

async fn what_one_forgets_all_forget(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Kill(5)).await?;
    pair.does(Op::Forget(1, 5, 0)).await?;
    pair.until("all have forgotten it", |pictures| everywhere(pictures, |one| one.line("5").is_none()))
        .await?;
    Ok(())
}

async fn a_reset_member_is_nowhere_until_it_is_forgotten(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Reset(5)).await?;
    let pictures = pair.agree().await?;
    let nowhere = |place: &usize| {
        pictures.get(place).and_then(|one| one.line("5")).is_some_and(|line| line.nowhere && line.failed)
    };
    ensure!((0..5).all(|place| nowhere(&place)), "{pictures:#?}");
    pair.forget(5, 0).await?;
    pair.until("forgotten", |pictures| everywhere(pictures, |one| one.line("5").is_none())).await?;
    Ok(())
}

async fn a_reset_and_forgotten_member_is_met_again_as_another(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Reset(3)).await?;
    pair.forget(3, 0).await?;
    pair.until("forgotten", |pictures| everywhere(pictures, |one| one.line("3").is_none())).await?;
    pair.does(Op::Meet(0, 3)).await?;
    pair.until("met", |pictures| {
        everywhere(pictures, |one| one.line("3'").is_some() && one.lines.len() == 4)
    })
    .await?;
    pair.does(Op::Replicate(3, 1)).await?;
    pair.until("linked", |pictures| everywhere(pictures, |one| one.linked != Some(false) && one.serves))
        .await?;
    Ok(())
}

async fn an_empty_process_at_the_address_of_a_replica_is_another(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Restart(5)).await?;
    pair.agree().await?;
    pair.forget(5, 0).await?;
    pair.agree().await?;
    pair.does(Op::Meet(0, 5)).await?;
    pair.until("met", |pictures| everywhere(pictures, |one| one.line("5'").is_some())).await?;
    Ok(())
}

async fn a_dead_primary_that_is_forgotten_leaves_its_slots_to_nobody(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Kill(1)).await?;
    pair.until("it failed", |pictures| everywhere(pictures, |one| one.fails("1") && !one.serves)).await?;
    pair.forget(1, 0).await?;
    pair.until("its slots are nobody's", |pictures| {
        everywhere(pictures, |one| {
            one.slots.first().is_some_and(|assigned| *assigned < 16_384) && !one.serves
        })
    })
    .await?;
    pair.does(Op::Slots(0, 5_462, 10_922)).await?;
    pair.until("somebody's again", |pictures| everywhere(pictures, |one| one.serves)).await?;
    Ok(())
}

async fn a_replica_keeps_its_forgotten_primary(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Kill(0)).await?;
    pair.refuses(Op::Forget(2, 0, 0), "Can't forget my master").await?;
    pair.does(Op::Forget(1, 0, 0)).await?;
    pair.does(Op::Forget(3, 0, 0)).await?;
    let pictures = pair.agree().await?;
    ensure!(pictures.get(&2).is_some_and(|one| one.follows.as_deref() == Some("0")), "{pictures:#?}");
    Ok(())
}

async fn a_stopped_replica_comes_back_as_it_was(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Freeze(3)).await?;
    pair.until("it failed", |pictures| everywhere(pictures, |one| one.fails("3"))).await?;
    pair.does(Op::Thaw(3)).await?;
    pair.until("it is back", |pictures| {
        everywhere(pictures, |one| !one.fails("3") && one.linked != Some(false))
    })
    .await?;
    Ok(())
}

async fn a_newcomer_learns_of_all_from_one(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Start).await?;
    pair.does(Op::Meet(2, 3)).await?;
    pair.until("all know all", |pictures| everywhere(pictures, |one| one.lines.len() == 4 && one.serves))
        .await?;
    pair.does(Op::Replicate(3, 1)).await?;
    pair.until("linked", |pictures| everywhere(pictures, |one| one.linked != Some(false))).await?;
    Ok(())
}

async fn two_clusters_that_meet_become_one(pair: &mut Pair) -> Result<()> {
    // The other one is a single node that owns everything at a higher epoch than all.
    pair.does(Op::Start).await?;
    pair.does(Op::Epoch(4, 9)).await?;
    pair.does(Op::Slots(4, 0, 16_383)).await?;
    pair.does(Op::Meet(0, 4)).await?;
    pair.until("the higher epoch has it all", |pictures| {
        everywhere(pictures, |one| one.lines.len() == 5 && one.owns("4") && one.size == 1)
    })
    .await?;
    Ok(())
}

async fn nodes_that_meet_one_another_both_ways(pair: &mut Pair) -> Result<()> {
    pair.leave_to_chance();
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 1)] {
        pair.does(Op::Meet(from, to)).await?;
    }
    pair.until("all know all", |pictures| everywhere(pictures, |one| one.lines.len() == 3 && !one.greets))
        .await?;
    Ok(())
}

async fn a_node_that_meets_itself_stays_alone(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Meet(0, 0)).await?;
    pair.until("alone", |pictures| everywhere(pictures, |one| one.lines.len() == 1 && !one.greets)).await?;
    Ok(())
}

async fn an_introduction_to_a_dead_address_ends(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Kill(1)).await?;
    pair.does(Op::Meet(0, 1)).await?;
    let pictures = pair.agree().await?;
    ensure!(everywhere(&pictures, |one| one.lines.len() == 1 && !one.greets), "{pictures:#?}");
    Ok(())
}

async fn a_living_node_that_one_forgot_comes_back(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Meet(0, 1)).await?;
    pair.until("both know both", |pictures| everywhere(pictures, |one| one.lines.len() == 2)).await?;
    pair.does(Op::Forget(0, 1, 0)).await?;
    pair.wait(Duration::from_secs(7)).await;
    pair.until("it is back", |pictures| everywhere(pictures, |one| one.lines.len() == 2)).await?;
    Ok(())
}

async fn forgotten_on_both_sides_and_met_again_within_the_ban(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Meet(0, 1)).await?;
    pair.until("both know both", |pictures| everywhere(pictures, |one| one.lines.len() == 2)).await?;
    pair.does(Op::Forget(0, 1, 0)).await?;
    pair.does(Op::Forget(1, 0, 0)).await?;
    pair.wait(Duration::from_secs(7)).await;
    pair.until("both are alone", |pictures| everywhere(pictures, |one| one.lines.len() == 1)).await?;
    pair.does(Op::Meet(0, 1)).await?;
    pair.wait(Duration::from_secs(1)).await;
    pair.agree().await.map(drop)
}

async fn nodes_without_epochs_draw_different_ones(pair: &mut Pair) -> Result<()> {
    pair.leave_to_chance();
    for (place, slots) in shared::slots::contiguous_spread(4).into_iter().enumerate() {
        pair.does(Op::Slots(place, slots.start, slots.end)).await?;
    }
    for place in 1..4 {
        pair.does(Op::Meet(0, place)).await?;
    }
    pair.until("all serve", |pictures| everywhere(pictures, |one| one.lines.len() == 4 && one.serves))
        .await?;
    Ok(())
}

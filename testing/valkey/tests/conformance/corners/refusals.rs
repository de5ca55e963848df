//! Commands that are refused, in the engine's words, and change nothing.

use anyhow::{Result, ensure};
use shared::valkey::FailoverKind;

use super::corners;
use crate::op::Op;
use crate::pair::Pair;

corners!(
    what_a_lone_primary_refuses: [2, 1, 1],
    what_a_replica_refuses: [2, 1, 0],
    a_primary_with_keys_is_not_reset: [1, 1, 0],
    replicating_the_present_primary_changes_nothing: [1, 1, 0],
    keys_are_written_to_the_owner_alone: [2, 1, 0],
    assigned_slots_are_not_assigned_again: [2, 0, 1];
    an_epoch_is_given_once_and_only_to_a_loner: 2,
    a_loner_refuses_what_needs_another: 1,
);

const KINDS: [FailoverKind; 3] = [FailoverKind::Planned, FailoverKind::Force, FailoverKind::Takeover];

async fn what_a_lone_primary_refuses(pair: &mut Pair) -> Result<()> {
    pair.refuses(Op::Epoch(0, 9), "only when the node does not know any other node").await?;
    pair.refuses(Op::Slots(0, 16_000, 16_383), "Slot 16000 is already busy").await?;
    pair.refuses(Op::Replicate(0, 1), "must be empty and without assigned slots").await?;
    pair.refuses(Op::Replicate(0, 3), "I can only replicate a").await?;
    pair.refuses(Op::Replicate(4, 3), "I can only replicate a").await?;
    pair.refuses(Op::Replicate(0, 0), "Can't replicate myself").await?;
    for kind in KINDS {
        pair.refuses(Op::Failover(0, kind), "You should send CLUSTER FAILOVER to a replica").await?;
        pair.refuses(Op::Failover(4, kind), "You should send CLUSTER FAILOVER to a replica").await?;
    }
    pair.refuses(Op::Forget(0, 0, 0), "I can't forget myself").await?;
    pair.agree().await.map(drop)
}

async fn what_a_replica_refuses(pair: &mut Pair) -> Result<()> {
    pair.refuses(Op::Forget(2, 0, 0), "Can't forget my master").await?;
    pair.refuses(Op::Forget(2, 2, 0), "I can't forget myself").await?;
    pair.refuses(Op::Replicate(2, 3), "I can only replicate a").await?;
    pair.refuses(Op::Replicate(2, 2), "Can't replicate myself").await?;
    pair.refuses(Op::Epoch(2, 9), "only when the node does not know any other node").await?;
    pair.refuses(Op::Slots(2, 0, 0), "Slot 0 is already busy").await?;
    pair.agree().await.map(drop)
}

async fn a_primary_with_keys_is_not_reset(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Write(0, 7)).await?;
    pair.until("the replica has the key", |all| all.values().all(|one| one.keys == 1)).await?;
    pair.refuses(Op::Reset(0), "can't be called with master nodes containing keys").await?;
    pair.does(Op::Reset(1)).await?;
    pair.does(Op::Forget(0, 1, 0)).await?;
    let all = pair.agree().await?;
    let dropped = all.get(&1).is_some_and(|one| one.keys == 0 && one.lines.len() == 1);
    ensure!(dropped && all.get(&0).is_some_and(|one| one.keys == 1 && one.lines.len() == 1), "{all:#?}");
    Ok(())
}

async fn replicating_the_present_primary_changes_nothing(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Write(0, 7)).await?;
    pair.does(Op::Replicate(1, 0)).await?;
    pair.until("still linked", |all| all.values().all(|one| one.keys == 1 && one.linked != Some(false)))
        .await?;
    Ok(())
}

async fn keys_are_written_to_the_owner_alone(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Write(0, 7)).await?;
    pair.refuses(Op::Write(1, 7), "MOVED").await?;
    pair.refuses(Op::Write(2, 7), "MOVED").await?;
    pair.does(Op::Write(1, 16_000)).await?;
    pair.until("replicas have them", |all| all.values().all(|one| one.keys == 1)).await?;
    Ok(())
}

async fn assigned_slots_are_not_assigned_again(pair: &mut Pair) -> Result<()> {
    pair.refuses(Op::Slots(2, 0, 5), "Slot 0 is already busy").await?;
    pair.refuses(Op::Slots(0, 0, 5), "Slot 0 is already busy").await?;
    pair.refuses(Op::Slots(0, 8_000, 9_000), "is already busy").await?;
    pair.agree().await.map(drop)
}

async fn an_epoch_is_given_once_and_only_to_a_loner(pair: &mut Pair) -> Result<()> {
    pair.does(Op::Epoch(0, 5)).await?;
    pair.refuses(Op::Epoch(0, 6), "Node config epoch is already non-zero").await?;
    pair.does(Op::Meet(0, 1)).await?;
    pair.until("both know both", |all| all.values().all(|one| one.lines.len() == 2)).await?;
    pair.refuses(Op::Epoch(1, 7), "only when the node does not know any other node").await?;
    pair.refuses(Op::Epoch(0, 7), "only when the node does not know any other node").await?;
    pair.agree().await.map(drop)
}

async fn a_loner_refuses_what_needs_another(pair: &mut Pair) -> Result<()> {
    pair.refuses(Op::Replicate(0, 0), "Can't replicate myself").await?;
    pair.refuses(Op::Forget(0, 0, 0), "I can't forget myself").await?;
    pair.refuses(Op::Write(0, 1), "CLUSTERDOWN").await?;
    pair.does(Op::Slots(0, 0, 16_383)).await?;
    pair.refuses(Op::Slots(0, 3, 3), "Slot 3 is already busy").await?;
    pair.until("it serves", |all| all.values().all(|one| one.serves)).await?;
    pair.does(Op::Write(0, 1)).await?;
    pair.refuses(Op::Reset(0), "containing keys").await?;
    pair.agree().await.map(drop)
}

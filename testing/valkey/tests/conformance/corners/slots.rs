//! Who owns what: assignment, epochs that decide, migration.

use anyhow::{Result, ensure};
use test_valkey::Version;

use crate::Sequence;
use crate::op::Op;
use crate::pair::Pair;
use crate::picture::everywhere;

pub(super) fn all(version: Version) -> Vec<Sequence> {
    let mut chosen = assignment::all(version);
    if version == Version::V9_1 {
        chosen.extend(migration::all(version));
    }
    chosen
}

mod assignment {
    use super::*;
    use crate::corners::corners;

    corners!(
        an_heir_above_every_epoch_has_the_slots_of_the_dead: [3, 0, 0],
        an_heir_without_epoch_loses_the_slots_to_the_dead: [3, 0, 0];
        slots_given_after_the_introduction_are_heard_of: 3,
    );

    async fn an_heir_above_every_epoch_has_the_slots_of_the_dead(pair: &mut Pair) -> Result<()> {
        pair.does(Op::Kill(1)).await?;
        pair.does(Op::Start).await?;
        pair.does(Op::Epoch(3, 9)).await?;
        pair.does(Op::Slots(3, 5_462, 10_922)).await?;
        pair.does(Op::Meet(0, 3)).await?;
        pair.until("the heir has them", |pictures| {
            everywhere(pictures, |one| one.owns("3") && !one.owns("1") && one.serves)
        })
        .await?;
        pair.forget(1, 0).await?;
        pair.until("the dead is forgotten", |pictures| everywhere(pictures, |one| one.lines.len() == 3))
            .await?;
        Ok(())
    }

    async fn an_heir_without_epoch_loses_the_slots_to_the_dead(pair: &mut Pair) -> Result<()> {
        pair.does(Op::Kill(1)).await?;
        pair.until("it failed", |pictures| everywhere(pictures, |one| one.fails("1"))).await?;
        pair.does(Op::Start).await?;
        pair.does(Op::Slots(3, 5_462, 10_922)).await?;
        pair.does(Op::Meet(0, 3)).await?;
        pair.until("the dead has them", |pictures| {
            everywhere(pictures, |one| one.owns("1") && !one.owns("3"))
        })
        .await?;
        Ok(())
    }

    async fn slots_given_after_the_introduction_are_heard_of(pair: &mut Pair) -> Result<()> {
        for place in 0..3 {
            pair.does(Op::Epoch(place, 1 + u64::try_from(place)?)).await?;
        }
        pair.does(Op::Slots(0, 0, 8_191)).await?;
        pair.does(Op::Meet(0, 1)).await?;
        pair.does(Op::Meet(0, 2)).await?;
        pair.until("introduced", |pictures| everywhere(pictures, |one| one.lines.len() == 3)).await?;
        pair.does(Op::Slots(1, 8_192, 16_383)).await?;
        pair.until("heard of", |pictures| everywhere(pictures, |one| one.serves && one.size == 2)).await?;
        Ok(())
    }
}

mod migration {
    use super::*;
    use crate::corners::corners;

    corners!(
        a_range_moves_with_its_keys: [2, 1, 0],
        a_member_without_slots_gets_some: [2, 0, 1],
        a_drained_primary_stays_an_empty_one_with_its_replica: [2, 1, 0],
        slots_are_not_moved_without_sense: [2, 1, 1],
        slots_are_not_moved_to_a_replica: [2, 1, 0];
    );

    async fn a_range_moves_with_its_keys(pair: &mut Pair) -> Result<()> {
        for slot in [0, 5, 99, 100] {
            pair.does(Op::Write(0, slot)).await?;
        }
        pair.does(Op::Migrate(0, 0, 99, 1)).await?;
        pair.until("moved", |pictures| {
            let keys = |place: &usize| pictures.get(place).map(|one| one.keys);
            [0, 2].iter().all(|place| keys(place) == Some(1))
                && [1, 3].iter().all(|place| keys(place) == Some(3))
        })
        .await?;
        pair.refuses(Op::Write(0, 5), "MOVED").await?;
        pair.does(Op::Write(1, 5)).await?;
        pair.agree().await.map(drop)
    }

    async fn a_member_without_slots_gets_some(pair: &mut Pair) -> Result<()> {
        pair.does(Op::Migrate(0, 0, 1_000, 2)).await?;
        pair.until("moved", |pictures| everywhere(pictures, |one| one.owns("2") && one.size == 3)).await?;
        pair.does(Op::Migrate(1, 9_000, 9_999, 2)).await?;
        pair.agree().await.map(drop)
    }

    async fn a_drained_primary_stays_an_empty_one_with_its_replica(pair: &mut Pair) -> Result<()> {
        pair.does(Op::Migrate(0, 0, 8_191, 1)).await?;
        let pictures = pair
            .until("drained", |pictures| everywhere(pictures, |one| !one.owns("0") && one.serves))
            .await?;
        ensure!(pictures.get(&2).is_some_and(|one| one.follows.as_deref() == Some("0")), "{pictures:#?}");
        pair.does(Op::Reset(2)).await?;
        pair.forget(2, 0).await?;
        pair.does(Op::Reset(0)).await?;
        pair.forget(0, 0).await?;
        pair.until("both are gone", |pictures| everywhere(pictures, |one| one.lines.len() <= 2)).await?;
        Ok(())
    }

    async fn slots_are_not_moved_without_sense(pair: &mut Pair) -> Result<()> {
        pair.refuses(Op::Migrate(1, 0, 5, 4), "Slots are not served by this node").await?;
        pair.refuses(Op::Migrate(2, 0, 5, 4), "Slot migration can only be used on primary nodes").await?;
        pair.refuses(Op::Migrate(0, 0, 5, 0), "Target node can not be this node").await?;
        pair.refuses(Op::Migrate(0, 8_000, 9_000, 4), "").await?;
        pair.refuses(Op::Migrate(4, 0, 5, 0), "Slots are not served by this node").await?;
        pair.agree().await.map(drop)
    }

    async fn slots_are_not_moved_to_a_replica(pair: &mut Pair) -> Result<()> {
        pair.run(Op::Migrate(0, 0, 5, 3)).await?;
        pair.wait(std::time::Duration::from_secs(2)).await;
        let pictures = pair.agree().await?;
        ensure!(
            everywhere(&pictures, |one| one.line("1").is_some_and(|line| line.slots == "8192-16383")),
            "{pictures:#?}"
        );
        Ok(())
    }
}

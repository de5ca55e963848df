//! Sequences made from a seed: a cluster of three to six nodes, and what happens to it.
//!
//! What is drawn depends on the seed and on what both sides last agreed on, so a seed tells the same sequence again.
//! Never drawn, because chance decides how it ends: the end of a primary with two replicas (either is elected), FORGET
//! of a living member (it comes back by itself, and is forgotten again as long as it is banned: a corner shows it), a
//! second silence while the first is not over.

use anyhow::Result;
use shared::slots::SLOT_COUNT;
use shared::valkey::FailoverKind;
use test_valkey::Version;

use crate::Sequence;
use crate::corners::told;
use crate::op::{Op, Place};
use crate::pair::Pair;
use crate::picture::Pictures;

/// Seeds that are told each time; `VALKEY_CONFORMANCE=seed-N` tells any other.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=24;
/// The same for the older engine, which has no migration of its own.
const SEEDS_OF_8_1: std::ops::RangeInclusive<u64> = 1..=8;
/// Things that happen in one sequence.
const STEPS: usize = 6;
/// How often something drawn makes no sense and another is drawn.
const DRAWS: usize = 50;

/// All that are run each time, or those that `only` names.
pub(crate) fn all(version: Version, only: Option<&str>) -> Vec<Sequence> {
    let seeds: Vec<u64> = match (only, version) {
        (Some(only), _) => {
            only.split(',').filter_map(|name| name.trim().strip_prefix("seed-")?.parse().ok()).collect()
        }
        (None, Version::V9_1) => SEEDS.collect(),
        (None, Version::V8_1) => SEEDS_OF_8_1.collect(),
    };
    let sequence = |seed: u64| -> Sequence { (format!("seed-{seed}"), Box::pin(tell(version, seed))) };
    seeds.into_iter().map(sequence).collect()
}

async fn tell(version: Version, seed: u64) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (shards, replicas, spare) = *rng
        .choice(&[(3, 0, 0), (3, 1, 0), (2, 1, 0), (2, 1, 1), (1, 1, 1), (3, 0, 2), (2, 0, 1), (1, 1, 2)])
        .unwrap_or(&(3, 0, 0));
    let mut pair = Pair::formed(version, shards, replicas, spare).await?;
    let outcome = happen(&mut pair, version, &mut rng).await;
    told(&pair, outcome)
}

async fn happen(pair: &mut Pair, version: Version, rng: &mut fastrand::Rng) -> Result<()> {
    let mut pictures = pair.agree().await?;
    for _ in 0..STEPS {
        let drawn = (0..DRAWS).find_map(|_| draw(&Outline { pair, pictures: &pictures, version }, rng));
        for op in drawn.into_iter().flatten() {
            pair.run(op).await?;
        }
        pictures = pair.agree().await?;
    }
    Ok(())
}

/// What can be said of the cluster as it is.
struct Outline<'a> {
    pair: &'a Pair,
    pictures: &'a Pictures,
    version: Version,
}

impl Outline<'_> {
    /// Nodes that answer.
    fn living(&self) -> Vec<Place> {
        self.pictures.keys().copied().collect()
    }

    fn name(&self, place: Place) -> String {
        self.pair.name(place)
    }

    /// How many of the living follow it.
    fn followers(&self, place: Place) -> usize {
        let name = self.name(place);
        self.pictures.values().filter(|one| one.follows.as_ref() == Some(&name)).count()
    }

    /// Nobody is silent, nor doubted by anybody for another reason.
    fn is_calm(&self) -> bool {
        self.pair.silent().is_none()
            && self.pictures.values().all(|one| one.lines.values().all(|line| !line.failed && !line.doubted))
    }

    /// Whether its end has one outcome only.
    fn may_fall_silent(&self, place: Place) -> bool {
        self.is_calm() && self.pictures.len() > 2 && self.followers(place) < 2
    }
}

/// Something that may happen now; `None` if what was drawn may not.
fn draw(now: &Outline<'_>, rng: &mut fastrand::Rng) -> Option<Vec<Op>> {
    let living = now.living();
    let one = *rng.choice(&living)?;
    let other = *rng.choice(&living)?;
    let kinds = [FailoverKind::Planned, FailoverKind::Force, FailoverKind::Takeover];
    Some(match rng.u8(0..100) {
        0..=11 => vec![Op::Write(one, rng.u16(..SLOT_COUNT)), Op::Write(other, rng.u16(..SLOT_COUNT))],
        12..=31 => {
            let kind = *rng.choice(&kinds)?;
            // A hand-over from a primary that is silent, but not yet known to be, is no refusal and no hand-over.
            vec![Op::Failover(one, kind)]
        }
        32..=41 => vec![Op::Replicate(one, other)],
        42..=47 => vec![Op::Slots(one, rng.u16(..8_000), rng.u16(8_000..SLOT_COUNT))],
        48..=50 => vec![Op::Epoch(one, 77)],
        51..=54 => vec![Op::Meet(one, other)],
        55..=58 => vec![Op::Start, Op::Meet(one, now.pair.count())],
        59..=68 if now.version == Version::V9_1 => {
            let start = rng.u16(..SLOT_COUNT - 500);
            vec![Op::Migrate(one, start, start + rng.u16(..500), other)]
        }
        59..=75 => reset(now, one, rng)?,
        76..=85 => vec![Op::Kill(one).filter(now.may_fall_silent(one))?],
        86..=90 => vec![Op::Restart(one).filter(now.may_fall_silent(one))?],
        91..=94 => vec![Op::Freeze(one).filter(now.may_fall_silent(one))?],
        _ => match now.pair.silent()? {
            (place, true) => vec![Op::Thaw(place)],
            (place, false) => {
                now.living().into_iter().map(|on| Op::Forget(on, place, now.pair.life(place))).collect()
            }
        },
    })
}

/// RESET, and mostly FORGET everywhere as the operator does.
fn reset(now: &Outline<'_>, one: Place, rng: &mut fastrand::Rng) -> Option<Vec<Op>> {
    let mut ops = vec![Op::Reset(one).filter(now.may_fall_silent(one))?];
    if rng.u8(0..4) > 0 && now.pictures.get(&one).is_some_and(|it| it.keys == 0 || it.follows.is_some()) {
        let life = now.pair.life(one);
        ops.extend(now.living().into_iter().filter(|on| *on != one).map(|on| Op::Forget(on, one, life)));
    }
    Some(ops)
}

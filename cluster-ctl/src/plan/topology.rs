//! Scaling: slots move to an even spread over the shards that stay, drained shards go, new shards come.
//!
//! Slots move in atomic jobs of the engine (9.0 and later), straight from giver to receiver. What a job did is judged
//! by who owns the slots; the job list tells only progress and cause.

use std::collections::{BTreeMap, BTreeSet};

use shared::api::{JoinType, Lifecycle};
use shared::slots::{SLOT_COUNT, SlotSet};
use shared::valkey::report::{MigrationState, SlotMigration};
use shared::valkey::types::NodeId;

use super::picture::Picture;
use super::shards::Shard;
use super::{Verdict, retire, start, view};
use crate::action::{Action, Decision};
use crate::model::Desired;
use crate::words::{Reason, counted};

/// Slot migrations open at once in a cluster.
const MAX_JOBS: usize = 3;
/// Longest pause after failed migrations of one giver, seconds.
const MAX_PAUSE_SECONDS: i64 = 60;
/// How long a primary stays after its last slots have gone, seconds. A client learns of a move when it is redirected, and a
/// node that was reset redirects nobody: it says CLUSTERDOWN, on which client libraries pause for a second and more.
const REDIRECTS_SECONDS: i64 = 2;

/// A shard beyond the wanted number that owns no slot any more: its replicas go, then its primary.
pub(super) fn retire_drained(seen: &Picture<'_>, _want: &Desired) -> Verdict {
    let keep = seen.kept();
    for shard in seen.shards().values().filter(|shard| !keep.contains(&shard.index)) {
        if !shard.slots.is_empty() || shard.open_jobs().next().is_some() {
            continue;
        }
        let why = format!("shard {} is drained", shard.index);
        let replica = shard.replicas.iter().find(|(member, _)| member.spec.lifecycle != Lifecycle::Leaving);
        let (member, _) = replica.copied().unwrap_or(shard.primary);
        let stays = replica.is_none() && (redirects(shard) || is_followed(seen, shard));
        if member.spec.lifecycle != Lifecycle::Leaving && !stays {
            return retire::begin(member, Reason::Scaling, &why);
        }
    }
    // A joiner of a shard that is not wanted any more has joined nothing yet.
    let cancelled = seen.joining().iter().find(|member| {
        !keep.contains(&member.shard_index()) && !view::shard_owns(seen, member.shard_index())
    });
    cancelled.map_or(Verdict::Pass, |member| {
        retire::begin(member, Reason::Scaling, "its shard is not wanted any more")
    })
}

/// Whether slots of this shard have gone so lately, by its primary's own clock, that clients may still come for them.
fn redirects(shard: &Shard<'_>) -> bool {
    let (_, report) = shard.primary;
    let given = report.migrations.iter().flatten().filter(|job| job.source == Some(report.id));
    given.map(|job| report.now_seconds() - job.updated).any(|age| (0..REDIRECTS_SECONDS).contains(&age))
}

/// Whether some view gives its primary a replica: one that is not heard now would be left alone with a primary that leaves,
/// and keep it from leaving.
fn is_followed(seen: &Picture<'_>, shard: &Shard<'_>) -> bool {
    seen.replicas_of(shard.primary.1.id).next().is_some()
}

/// Nothing else is to do, but a drained shard is still there for its clients, or for a replica that is not heard.
pub(super) fn await_drained(seen: &Picture<'_>, _want: &Desired) -> Verdict {
    let keep = seen.kept();
    for shard in seen.shards().values().filter(|shard| !keep.contains(&shard.index)) {
        if !shard.slots.is_empty() {
            continue;
        }
        if redirects(shard) {
            let message = format!("shard {} is drained, and redirects its clients for a moment", shard.index);
            return Verdict::wait(Reason::Scaling, message);
        }
        if is_followed(seen, shard) {
            let message =
                format!("shard {} is drained, but a replica that is not heard follows it", shard.index);
            return Verdict::wait(Reason::Scaling, message);
        }
    }
    Verdict::Pass
}

/// Moves one batch of slots towards the even spread.
pub(super) fn rebalance(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let (keep, all) = (seen.kept(), seen.shards());
    let owned: u32 = all.values().map(|shard| u32::from(shard.slots.len())).sum();
    if owned != u32::from(SLOT_COUNT) {
        // A shard is unseen or slots are lost: repair comes first.
        return Verdict::Pass;
    }
    let flow = Flow::new(all, keep);
    let Some((giver, receiver, count)) = flow.next(all) else {
        return flow.under_way();
    };
    let engine = seen.reports().map(|(_, report)| report.info.version).min();
    if engine.is_some_and(|version| !version.migrates_slots()) {
        let message = "moving slots needs Valkey 9 on every node; roll the cluster to such an image first";
        return Verdict::wait(Reason::EngineTooOld, message);
    }
    if let Some(wait) = not_ready(receiver, want) {
        return Verdict::wait(Reason::Scaling, wait);
    }
    if let Some(wait) = pause_after_failure(giver) {
        return Verdict::wait(Reason::MigrationFailed, wait);
    }
    let slots = batch(giver, count, want);
    let (Some(source), Some(target)) = (view::target(giver.primary.0), view::target(receiver.primary.0))
    else {
        return Verdict::Pass;
    };
    let message = format!(
        "moving {} from shard {} to shard {}",
        counted(slots.len(), "slot"),
        giver.index,
        receiver.index
    );
    let action = Action::MigrateSlots { source, target, slots };
    Verdict::act(Decision::act(action, Reason::Scaling, message))
}

/// Makes the nodes of a shard that is wanted and stands for nothing yet, at the lowest free index.
pub(super) fn add_shards(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let recorded = seen.recorded();
    if recorded.len() >= usize::from(want.shape.shards) {
        return Verdict::Pass;
    }
    let free = (0..=want.shape.shards).find(|index| !recorded.contains(index));
    free.map_or(Verdict::Pass, |index| {
        start::replacement_for(seen, want, index, JoinType::Shard, Reason::Scaling)
    })
}

/// How many slots each shard has too many or too few, jobs under way counted as done.
struct Flow {
    /// By shard index: slots to give (positive) or to receive (negative).
    surplus: BTreeMap<u16, i32>,
    /// Givers with a job under way.
    giving: BTreeSet<u16>,
    /// Receivers with a job under way.
    receiving: BTreeSet<u16>,
    jobs: usize,
}

impl Flow {
    fn new(all: &BTreeMap<u16, Shard<'_>>, keep: &BTreeSet<u16>) -> Self {
        let by_id: BTreeMap<NodeId, u16> =
            all.values().map(|shard| (shard.primary.1.id, shard.index)).collect();
        let mut counts: BTreeMap<u16, i32> =
            all.values().map(|shard| (shard.index, i32::from(shard.slots.len()))).collect();
        let (mut giving, mut receiving, mut jobs) = (BTreeSet::new(), BTreeSet::new(), 0);
        for shard in all.values() {
            for job in shard.open_jobs().filter(|job| job.source == Some(shard.primary.1.id)) {
                jobs += 1;
                giving.insert(shard.index);
                let moving = i32::from(job.slots.intersection(&shard.slots).len());
                *counts.entry(shard.index).or_default() -= moving;
                if let Some(receiver) = job.target.and_then(|id| by_id.get(&id)) {
                    *counts.entry(*receiver).or_default() += moving;
                    receiving.insert(*receiver);
                }
            }
        }
        let surplus = surplus(&counts, keep);
        Self { surplus, giving, receiving, jobs }
    }

    /// The next move: the fullest idle giver to the emptiest idle receiver, and how many slots at most. A shard that gives
    /// receives nothing meanwhile, nor the other way round: primaries that are paused for their own jobs wait for each
    /// other until the engine's limit of 10 s, and one may end by an assertion then (measured on 9.1.2). It receives from
    /// one at a time: a giver holds its writes until the receiver has caught up with it, and what others send to the same
    /// receiver meanwhile makes that longer.
    fn next<'a>(&self, all: &'a BTreeMap<u16, Shard<'a>>) -> Option<(&'a Shard<'a>, &'a Shard<'a>, u16)> {
        if self.jobs >= MAX_JOBS {
            return None;
        }
        let busy = |index: &u16| self.giving.contains(index) || self.receiving.contains(index);
        let idle = self.surplus.iter().filter(|(index, surplus)| **surplus > 0 && !busy(index));
        let (giver, give) = idle.max_by_key(|(index, surplus)| (**surplus, **index))?;
        let needy = self.surplus.iter().filter(|(index, surplus)| **surplus < 0 && !busy(index));
        let (receiver, need) = needy.min_by_key(|(index, surplus)| (**surplus, **index))?;
        let count = u16::try_from((*give).min(-*need)).ok()?;
        Some((all.get(giver)?, all.get(receiver)?, count))
    }

    fn under_way(&self) -> Verdict {
        match self.jobs {
            0 => Verdict::Pass,
            jobs => {
                Verdict::wait(Reason::Scaling, format!("moving slots: {} under way", counted(jobs, "job")))
            }
        }
    }
}

/// Surplus of each shard over the even spread: shards that stay share all slots, the others keep none. The remainder
/// goes to those that hold most, so that as few slots as possible move.
fn surplus(counts: &BTreeMap<u16, i32>, keep: &BTreeSet<u16>) -> BTreeMap<u16, i32> {
    let mut staying: Vec<(u16, i32)> = counts
        .iter()
        .filter(|(index, _)| keep.contains(index))
        .map(|(index, count)| (*index, *count))
        .collect();
    staying.sort_by_key(|(index, count)| (std::cmp::Reverse(*count), *index));
    let shards = i32::try_from(staying.len()).unwrap_or(i32::MAX).max(1);
    let (share, rest) = (i32::from(SLOT_COUNT) / shards, i32::from(SLOT_COUNT) % shards);
    let targets: BTreeMap<u16, i32> = staying
        .into_iter()
        .enumerate()
        .map(|(rank, (index, _))| {
            (index, share + i32::from(i32::try_from(rank).is_ok_and(|rank| rank < rest)))
        })
        .collect();
    counts.iter().map(|(index, count)| (*index, count - targets.get(index).copied().unwrap_or(0))).collect()
}

/// Why a receiver may not get slots yet: it and its replicas must be in sync and published first.
fn not_ready(receiver: &Shard<'_>, want: &Desired) -> Option<String> {
    if receiver.synced().count() < usize::from(want.shape.replicas) {
        return Some(format!("shard {} waits for its replicas before it gets slots", receiver.index));
    }
    // A primary that saw itself without a majority refuses every key of its slots for another five seconds after it has
    // met the others (8.1, 9.1): one that joined slowly would be given slots that nobody serves.
    let (member, report) = receiver.primary;
    if !report.cluster.ok {
        return Some(format!("{} does not report cluster_state:ok yet", member.name));
    }
    let published = |member: &crate::model::Member| member.pod.as_ref().is_some_and(|pod| pod.published);
    let hidden = receiver.members().find(|(member, _)| !published(member));
    hidden.map(|(member, _)| format!("{} is not published yet", member.name))
}

/// The pause after failed jobs of this giver, while it lasts: 1 s doubling, by the giver's own clock.
fn pause_after_failure(giver: &Shard<'_>) -> Option<String> {
    let jobs: Vec<&SlotMigration> = giver.primary.1.migrations.iter().flatten().collect();
    let failures = jobs.iter().take_while(|job| job.state == MigrationState::Failed).count();
    let last = jobs.first().filter(|_| failures > 0)?;
    let pause =
        1i64.checked_shl(u32::try_from(failures - 1).unwrap_or(u32::MAX)).unwrap_or(MAX_PAUSE_SECONDS);
    let pause = pause.clamp(1, MAX_PAUSE_SECONDS);
    // A clock that was set back keeps nobody.
    (0..pause).contains(&(giver.primary.1.now_seconds() - last.updated)).then(|| {
        format!(
            "moving slots from shard {} failed {}, trying again after {pause} s: {}",
            giver.index,
            counted(failures, "time"),
            last.message
        )
    })
}

/// The first slots of the giver: at most `count`, a batch, and what is estimated at a batch's bytes; at least one.
fn batch(giver: &Shard<'_>, count: u16, want: &Desired) -> SlotSet {
    let bytes_per_slot = (giver.primary.1.info.used_memory / u64::from(giver.slots.len().max(1))).max(1);
    let by_bytes = u16::try_from(want.limits.slot_batch_bytes / bytes_per_slot).unwrap_or(u16::MAX);
    giver.slots.take(count.min(want.limits.slot_batch).min(by_bytes).max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_spread_is_even_moves_conserve_slots_and_an_even_cluster_moves_none(
            cuts in prop::collection::vec(0..=i32::from(SLOT_COUNT), 0..9),
            leaving in 0usize..4,
        ) {
            let mut bounds = cuts;
            bounds.extend([0, i32::from(SLOT_COUNT)]);
            bounds.sort_unstable();
            let counts: BTreeMap<u16, i32> =
                (0u16..).zip(bounds.windows(2).map(|pair| pair[1] - pair[0])).collect();
            let keep: BTreeSet<u16> = counts.keys().copied().skip(leaving.min(counts.len() - 1)).collect();
            let surplus = surplus(&counts, &keep);
            prop_assert_eq!(surplus.values().sum::<i32>(), 0);
            let after: BTreeMap<u16, i32> = counts.iter().map(|(index, count)| (*index, count - surplus[index])).collect();
            for (index, count) in &after {
                let share = i32::from(SLOT_COUNT) / i32::try_from(keep.len()).unwrap();
                if keep.contains(index) {
                    prop_assert!((share..=share + 1).contains(count), "{after:?}");
                } else {
                    prop_assert_eq!(*count, 0);
                }
            }
            prop_assert!(super::surplus(&after, &keep).values().all(|surplus| *surplus == 0), "{after:?}");
        }
    }
}

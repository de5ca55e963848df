//! The shards of a formed cluster as the live topology shows them, and which of them are to stay.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use shared::api::Lifecycle;
use shared::slots::SlotSet;
use shared::valkey::info::Role;
use shared::valkey::report::{NodeReport, SlotMigration};
use shared::valkey::types::NodeId;

use super::picture::Picture;
use crate::model::{Desired, Member, Observed, sync_state};

/// One shard: a primary and whoever follows it. Its index is its primary's scheduling index.
#[derive(Clone, Debug)]
pub(crate) struct Shard<'a> {
    /// Scheduling index.
    pub(crate) index: u16,
    /// The primary: the slot owner, or the anchor of a shard that owns no slots.
    pub(crate) primary: (&'a Member, &'a NodeReport),
    /// Answering members that follow the primary.
    pub(crate) replicas: Vec<(&'a Member, &'a NodeReport)>,
    /// Slots of the primary, in its own view.
    pub(crate) slots: SlotSet,
}

impl<'a> Shard<'a> {
    /// Active replicas in sync.
    pub(crate) fn synced(&self) -> impl Iterator<Item = (&'a Member, &'a NodeReport)> + '_ {
        self.replicas.iter().copied().filter(|(member, report)| {
            member.spec.lifecycle == Lifecycle::Active && sync_state(report, self.primary.1).is_synced()
        })
    }

    /// Slot migrations that it gives or receives and that can still change something.
    pub(crate) fn open_jobs(&self) -> impl Iterator<Item = &'a SlotMigration> + '_ {
        self.primary.1.migrations.iter().flatten().filter(|job| job.state.is_open())
    }

    /// Every member that answers, primary first.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&'a Member, &'a NodeReport)> + '_ {
        std::iter::once(self.primary).chain(self.replicas.iter().copied())
    }
}

/// Answering replicas by the primary that they follow.
type Following<'a> = BTreeMap<NodeId, Vec<(&'a Member, &'a NodeReport)>>;

/// The shards of members that stay, by index. A shard whose primary does not answer is not among them.
pub(crate) fn shards(seen: &Observed) -> BTreeMap<u16, Shard<'_>> {
    let mut following: Following<'_> = BTreeMap::new();
    for (member, report) in seen.reports().filter(|(_, report)| report.info.role == Role::Replica) {
        if let Some(primary) = report.myself().and_then(|line| line.primary) {
            following.entry(primary).or_default().push((member, report));
        }
    }
    let mut shards = BTreeMap::new();
    for (member, report) in primaries(seen, &following) {
        let slots = report.myself().map(|line| line.slots.clone()).unwrap_or_default();
        let replicas = following.get(&report.id).cloned().unwrap_or_default();
        let shard = Shard { index: member.shard_index(), primary: (member, report), replicas, slots };
        shards.entry(shard.index).or_insert(shard);
    }
    shards
}

/// Primaries that stay, slot owners first: of several in one shard index the owner is its primary, and of slotless
/// ones the anchor.
fn primaries<'a>(seen: &'a Observed, following: &Following<'_>) -> Vec<(&'a Member, &'a NodeReport)> {
    let mut primaries: Vec<(&Member, &NodeReport)> = seen
        .reports()
        .filter(|(member, report)| {
            !member.deleting && report.info.role == Role::Primary && is_itself(member, report)
        })
        .filter(|(member, report)| {
            report.myself().is_some_and(|line| !line.slots.is_empty()) || anchors(seen, member, report)
        })
        .collect();
    primaries.sort_by_cached_key(|(member, report)| {
        let slots = report.myself().map_or(0, |line| line.slots.len());
        (Reverse(slots), Reverse(following.get(&report.id).map_or(0, Vec::len)), member.name.clone())
    });
    primaries
}

/// It answers under the ID that was recorded for it: it was not reset.
pub(crate) fn is_itself(member: &Member, report: &NodeReport) -> bool {
    member.recorded_id.is_none_or(|id| id == report.id)
}

/// It was reset, and somebody who was still learning of it by gossip has introduced it again under its new ID, or is about
/// to: it must be reset again before it goes, or its new ID stays behind.
pub(crate) fn lingers(seen: &Observed, member: &Member) -> bool {
    member
        .report()
        .filter(|report| !is_itself(member, report))
        .is_some_and(|report| report.nodes.len() > 1 || seen.listed_by_others(report.id))
}

/// A slotless primary that its shard gathers around: it has followers or is Active.
fn anchors(seen: &Observed, member: &Member, report: &NodeReport) -> bool {
    seen.followers(report.id).next().is_some() || member.spec.lifecycle == Lifecycle::Active
}

/// The shard indices that members stand for, by record: a lost primary does not make its shard go.
pub(crate) fn recorded_indices(seen: &Picture<'_>) -> BTreeSet<u16> {
    let owns = |member: &Member| member.id().is_some_and(|id| !seen.slots_of(id).is_empty());
    let counts = |member: &Member| member.spec.lifecycle != Lifecycle::Leaving || owns(member);
    let indices = seen.by_shard().keys().copied();
    indices.filter(|index| seen.staying_of(*index).any(counts)).collect()
}

/// The shard indices that stay under the wanted size: all of them, or all but the smallest (fewest slots, then highest
/// index), slots that are under way counted as arrived: a choice that turned with them would send them to and fro for ever.
///
/// A member that owns nothing and is still joining, or leaves again, changes nothing of the choice: otherwise making one
/// and taking it away would follow each other for ever.
pub(crate) fn kept(seen: &Picture<'_>, want: &Desired) -> BTreeSet<u16> {
    let unowned = seen.unowned().len();
    let under_way = slots_under_way(seen);
    let weight = |index: u16| {
        let owned: SlotSet = seen
            .staying_of(index)
            .filter_map(Member::id)
            .flat_map(|id| current_slots(seen, id).ranges().to_vec())
            .collect();
        // What no view shows may be, or have been, of a shard that nobody answers for.
        let established = seen.staying_of(index).any(|member| member.spec.lifecycle == Lifecycle::Active);
        let weight = if owned.is_empty() && established { unowned } else { owned.len() };
        i32::from(weight) + under_way.get(&index).copied().unwrap_or(0)
    };
    let mut ranked: Vec<(Reverse<i32>, u16)> =
        seen.recorded().iter().map(|index| (Reverse(weight(*index)), *index)).collect();
    ranked.sort_unstable();
    ranked.into_iter().take(usize::from(want.shape.shards)).map(|(_, index)| index).collect()
}

/// The slots of `id` by its own account; of one that does not answer, what any view gives it and nobody claims.
fn current_slots(seen: &Observed, id: NodeId) -> SlotSet {
    match seen.answering(id) {
        Some((_, report)) => report.myself().map(|line| line.slots.clone()).unwrap_or_default(),
        None => seen.slots_of(id).difference(seen.claimed()),
    }
}

/// How many slots each shard gains or loses by the jobs under way.
fn slots_under_way(seen: &Observed) -> BTreeMap<u16, i32> {
    let mut gains: BTreeMap<u16, i32> = BTreeMap::new();
    for (giver, report) in seen.reports() {
        let given = report.migrations.iter().flatten().filter(|job| job.state.is_open());
        for job in given.filter(|job| job.source == Some(report.id)) {
            let Some(receiver) = job.target.and_then(|id| seen.member_by_id(id)) else { continue };
            let moving = i32::from(job.slots.intersection(&current_slots(seen, report.id)).len());
            *gains.entry(giver.shard_index()).or_default() -= moving;
            *gains.entry(receiver.shard_index()).or_default() += moving;
        }
    }
    gains
}

//! Lost slots: shards of which no copy is left, slots that nobody owns any more, and replicas that a dead primary left
//! behind.
//!
//! Slots are given away only when nobody who may live could own them: every member has answered or is proved dead, and
//! no slot is moving.

use std::collections::BTreeSet;

use shared::api::{JoinType, Lifecycle};
use shared::slots::SlotSet;
use shared::valkey::info::Role;
use shared::valkey::report::NodeReport;
use shared::valkey::types::{Epoch, NodeId};

use super::failover::last_copy;
use super::picture::Picture;
use super::shards::Shard;
use super::stability::orphaned_slots;
use super::{Verdict, retire, shards, start, view};
use crate::action::{Action, Decision, Target, Wait};
use crate::model::{Desired, Member};
use crate::words::Reason;

/// A shard of which every member is proved dead or holds no copy: its slots go to a fresh node, above every epoch in
/// use, and only when all views agree is the dead owner forgotten.
pub(super) fn replace_lost_primary(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let mut waits = Vec::new();
    for (id, dead) in seen.dead_owners().iter().copied() {
        if last_copy(seen, id).is_some() {
            continue;
        }
        match replace(seen, want, id, dead) {
            Verdict::Act(decision) => return Verdict::Act(Box::new(decision.with_waits(waits))),
            Verdict::Wait(more) => waits.extend(more),
            Verdict::Pass => {}
        }
    }
    if waits.is_empty() { Verdict::Pass } else { Verdict::Wait(waits) }
}

fn replace(seen: &Picture<'_>, want: &Desired, id: NodeId, dead: &Member) -> Verdict {
    if let Some(unknown) = unknown_of_shard(seen, id, dead) {
        let message = format!(
            "{} is dead and {} of its shard, which may hold its data, does not answer; it comes back, or its death is confirmed with the annotation {}",
            dead.name,
            unknown.name,
            shared::names::ANNOTATION_CONFIRMED_DEAD
        );
        return Verdict::wait(Reason::PrimaryUnreachable, message);
    }
    // First of all: one that still follows the dead owner could be elected after its slots were given away.
    if let Some(on) = seen.followers(id).find_map(|(member, _)| view::target(member)) {
        let message = format!("{} never had a copy of the lost {}, resetting it", on.node.name, dead.name);
        return Verdict::act(Decision::act(Action::Reset { on }, Reason::ShardLost, message));
    }
    let index = dead.shard_index();
    let claim = seen.lines_of(id).map(|line| line.epoch).max().unwrap_or(Epoch(0));
    let Some((fresh, report)) = fresh(seen, index, claim) else {
        return remove_outdone(seen, index, claim, dead)
            .or_else(|| clear_the_place(seen, index))
            .unwrap_or_else(|| make_heir(seen, want, index, &dead.name));
    };
    let Some(target) = view::target(fresh) else { return Verdict::Pass };
    if let Some(verdict) = raise_epoch(seen, fresh, report, &format!("takes the place of {}", dead.name)) {
        return verdict;
    }
    let orphans = orphaned_slots(seen, id);
    let missing = orphans.difference(&report.myself().map(|line| line.slots.clone()).unwrap_or_default());
    if !missing.is_empty() {
        let what = format!("gets slots of the lost {}", dead.name);
        return assign(seen, fresh, missing, &what);
    }
    let seed = seen.reports().find(|(_, report)| report.nodes.len() > 1 && report.info.role == Role::Primary);
    let Some(seed) = seed.and_then(|(member, _)| view::target(member)) else {
        return Verdict::wait(Reason::ShardLost, "no live member is left to introduce the successor to");
    };
    let message = format!("introducing {} to {}", fresh.name, seed.node.name);
    Verdict::act(Decision::act(Action::Meet { seed, others: vec![target] }, Reason::ShardLost, message))
}

/// Slots that no view shows as owned, once everybody has been heard, are orphans of a shard that was lost with all who
/// knew of it: they go to the shards that have no owner, a part to each, or to the smallest.
pub(super) fn give_unowned(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let unowned = seen.unowned();
    if unowned.is_empty() {
        return Verdict::Pass;
    }
    if let Some(wait) = not_all_heard(seen, unowned) {
        return Verdict::Wait(vec![wait]);
    }
    let owners = seen.owners().keys().filter_map(|id| seen.member_by_id(*id));
    let owning: BTreeSet<u16> = owners.map(Member::shard_index).collect();
    let recorded = seen.recorded();
    // One that knows others and has no epoch of its own cannot be given one any more, and a claim at epoch 0 is worth nothing.
    let may_own = |shard: &Shard<'_>| {
        let report = shard.primary.1;
        report.nodes.len() == 1 || report.myself().is_some_and(|line| line.epoch.0 > 0)
    };
    let is_place = |index: &u16| seen.shards().get(index).is_none_or(may_own);
    let mut places: Vec<u16> = seen.kept().difference(&owning).copied().filter(is_place).collect();
    if places.is_empty() && recorded.len() < usize::from(want.shape.shards) {
        places.extend((0..want.shape.shards).find(|index| !recorded.contains(index)));
    }
    if places.is_empty() {
        let able = seen.shards().values().filter(|shard| may_own(shard));
        let smallest = able.min_by_key(|shard| (shard.slots.len(), shard.index));
        let Some(smallest) = smallest else { return Verdict::Pass };
        return assign(seen, smallest.primary.0, unowned.clone(), "gets slots that nobody owned any more");
    }
    let count = u16::try_from(places.len()).unwrap_or(u16::MAX);
    let share = unowned.take(unowned.len().div_ceil(count));
    let mut waits = Vec::new();
    for index in places {
        match give(seen, want, index, &share) {
            Verdict::Act(decision) => return Verdict::Act(Box::new(decision.with_waits(waits))),
            Verdict::Wait(more) => waits.extend(more),
            Verdict::Pass => {}
        }
    }
    if waits.is_empty() { Verdict::Pass } else { Verdict::Wait(waits) }
}

fn give(seen: &Picture<'_>, want: &Desired, index: u16, share: &SlotSet) -> Verdict {
    let anchor = seen.shards().get(&index).map(|shard| shard.primary);
    let Some((heir, report)) = anchor.or_else(|| fresh(seen, index, Epoch(0))) else {
        return make_heir(seen, want, index, &format!("shard {index}"));
    };
    if let Some(verdict) = raise_epoch(seen, heir, report, &format!("takes the place of shard {index}")) {
        return verdict;
    }
    assign(seen, heir, share.clone(), "gets slots that nobody owned any more")
}

/// A replica of a primary that owned nothing and is dead, or was reset while the replica was away: nothing is lost with it,
/// and as long as it is followed it cannot be forgotten.
pub(super) fn release_followers(seen: &Picture<'_>, _want: &Desired) -> Verdict {
    // A slot that nobody shows may have been the dead one's.
    if !seen.unowned().is_empty() && seen.unknown().is_some() {
        return Verdict::Pass;
    }
    for member in seen.gone() {
        let Some(id) = member.id().filter(|id| seen.slots_of(*id).is_empty()) else { continue };
        let follower = seen.followers(id).find_map(|(follower, _)| view::target(follower));
        if let Some(on) = follower {
            let message = format!(
                "{} follows {}, which is gone and owned nothing: resetting it",
                on.node.name, member.name
            );
            return Verdict::act(Decision::act(Action::Reset { on }, Reason::Retiring, message));
        }
    }
    Verdict::Pass
}

/// A member that was reset and is known again under its new ID is reset again: only alone it may go.
pub(super) fn reset_again(seen: &Picture<'_>, _want: &Desired) -> Verdict {
    let again = seen
        .gone()
        .iter()
        .filter(|member| !member.deleting && member.spec.lifecycle != Lifecycle::Leaving)
        .filter(|member| shards::lingers(seen, member))
        .find_map(|member| view::target(member).filter(|on| seen.slots_of(on.id).is_empty()));
    again.map_or(Verdict::Pass, |on| {
        let message = format!("resetting {} again: others still know it", on.node.name);
        Verdict::act(Decision::act(Action::Reset { on }, Reason::Retiring, message))
    })
}

/// The nodes of the shard that know nobody and are empty.
fn alone<'a>(seen: &Picture<'a>, index: u16) -> impl Iterator<Item = (&'a Member, &'a NodeReport)> {
    seen.reports_of(index).filter(|(member, report)| {
        member.spec.lifecycle != Lifecycle::Leaving
            && shards::is_itself(member, report)
            && report.nodes.len() == 1
            && report.info.keys == 0
    })
}

/// Whether a node that knows nobody has an epoch that the claim of another, at `claim`, outdoes. One that has none yet
/// can still be given a higher one.
fn is_outdone(report: &NodeReport, claim: Epoch) -> bool {
    report.myself().is_some_and(|line| line.epoch != Epoch(0) && line.epoch <= claim)
}

/// The node of the shard that can take slots over from an owner of the epoch `claim`: alone, empty and not outdone. Of
/// several the one that was begun with, so that every tick chooses the same.
fn fresh<'a>(seen: &Picture<'a>, index: u16, claim: Epoch) -> Option<(&'a Member, &'a NodeReport)> {
    alone(seen, index).filter(|(_, report)| !is_outdone(report, claim)).min_by_key(|(member, report)| {
        let line = report.myself();
        let (slots, epoch) = line.map_or((true, true), |it| (it.slots.is_empty(), it.epoch.0 == 0));
        (slots, epoch, member.name.clone())
    })
}

/// A node got its epoch while the dead owner, whose epoch is higher, lived: the views would go back to the dead one's
/// claim, and an epoch is given only once. It goes, so that one can come that is above all.
fn remove_outdone(seen: &Picture<'_>, index: u16, claim: Epoch, dead: &Member) -> Option<Verdict> {
    let (member, report) = alone(seen, index).find(|(_, report)| is_outdone(report, claim))?;
    if seen.listed_by_others(report.id) || !seen.slots_of(report.id).is_empty() {
        return None;
    }
    if let Some(unheard) = seen.unheard() {
        let message =
            format!("{} is replaced when {} has answered, which may list it", member.name, unheard.name);
        return Some(Verdict::wait(Reason::PrimaryUnreachable, message));
    }
    let message =
        format!("replacing {}: its config epoch is not above that of the lost {}", member.name, dead.name);
    let action = Action::DeleteNodes { nodes: vec![view::node_ref(member)], cluster_deleted: false };
    Some(Verdict::act(Decision::act(action, Reason::ReplacingNode, message)))
}

/// A node that has joined already, empty, cannot take over slots that its own view gives to the dead owner: it goes, so
/// that a fresh one can. Replicas first.
fn clear_the_place(seen: &Picture<'_>, index: u16) -> Option<Verdict> {
    let mut joined: Vec<(&Member, &NodeReport)> = seen
        .reports_of(index)
        .filter(|(member, report)| {
            member.spec.lifecycle != Lifecycle::Leaving
                && shards::is_itself(member, report)
                && report.nodes.len() - report.nodes.handshakes() > 1
                && report.info.keys == 0
                && seen.slots_of(report.id).is_empty()
        })
        .collect();
    joined.sort_by_key(|(member, report)| (report.info.role == Role::Primary, member.name.clone()));
    let (member, report) = joined.first()?;
    if member.spec.lifecycle == Lifecycle::Active {
        let why = "it joined its lost shard without the slots";
        return Some(retire::begin(member, Reason::ShardLost, why));
    }
    if seen.followers(report.id).next().is_some() {
        return None;
    }
    let on = view::target(member)?;
    let message =
        format!("resetting {}: it learned of the others before it owned its shard's slots", member.name);
    Some(Verdict::act(Decision::act(Action::Reset { on }, Reason::ShardLost, message)))
}

/// A node for the shard, unless one is on its way.
fn make_heir(seen: &Picture<'_>, want: &Desired, index: u16, lost: &str) -> Verdict {
    let coming = seen.staying_of(index).find(|member| {
        let reset = member.report().is_some_and(|report| !shards::is_itself(member, report));
        !member.verified_dead() && !reset && member.spec.lifecycle != Lifecycle::Leaving
    });
    match coming {
        Some(member) => {
            let wait = view::pod_wait(seen, member).or_else(|| view::answer_wait(member));
            let why = wait.map_or_else(String::new, |wait| format!(": {}", wait.message));
            Verdict::wait(
                Reason::ShardLost,
                format!("{lost} is lost with its data, its successor starts{why}"),
            )
        }
        None => start::replacement_for(seen, want, index, JoinType::Primary, Reason::ShardLost),
    }
}

/// An epoch above every one in use, for an heir that has none yet and knows nobody.
fn raise_epoch(seen: &Picture<'_>, heir: &Member, report: &NodeReport, what: &str) -> Option<Verdict> {
    let none_yet = report.nodes.len() == 1 && report.myself().is_some_and(|line| line.epoch.0 == 0);
    let target = view::target(heir).filter(|_| none_yet)?;
    if let Some(unknown) = seen.unknown() {
        // It may have the very epoch that looks free: one was given in the last tick, and its reply lost in this one.
        let message = format!("{} {what} when {} has answered, whose epoch counts", heir.name, unknown.name);
        return Some(Verdict::wait(Reason::PrimaryUnreachable, message));
    }
    let epoch = Epoch(seen.highest_epoch().0 + 1);
    let message = format!("{} {what} at epoch {epoch}", heir.name);
    let action = Action::SetConfigEpochs { epochs: vec![(target, epoch)] };
    Some(Verdict::act(Decision::act(action, Reason::ShardLost, message)))
}

fn assign(seen: &Picture<'_>, heir: &Member, slots: SlotSet, what: &str) -> Verdict {
    if let Some(wait) = not_all_heard(seen, &slots) {
        return Verdict::Wait(vec![wait]);
    }
    let Some(target): Option<Target> = view::target(heir) else { return Verdict::Pass };
    let message = format!("{} {what}: {slots}", heir.name);
    Verdict::act(Decision::act(
        Action::AssignSlots { slots: vec![(target, slots)] },
        Reason::ShardLost,
        message,
    ))
}

/// Why slots may still be somebody's.
fn not_all_heard(seen: &Picture<'_>, slots: &SlotSet) -> Option<Wait> {
    if let Some(unknown) = seen.unknown() {
        let message = format!(
            "{slots} have no living owner; they are given to another when {} has answered, which may own them, or is confirmed dead with the annotation {}",
            unknown.name,
            shared::names::ANNOTATION_CONFIRMED_DEAD
        );
        // Silence is no loss: what one lost reply looks like must not be called one.
        return Some(Wait { reason: Reason::PrimaryUnreachable, message });
    }
    let message = format!("{slots} have no living owner; they are given to another when no slot is moving");
    seen.slots_are_moving().then_some(Wait { reason: Reason::ShardLost, message })
}

/// A member of the shard, by record or by any view, that is neither dead nor answering.
pub(super) fn unknown_of_shard<'s>(seen: &'s Picture<'_>, id: NodeId, dead: &Member) -> Option<&'s Member> {
    let is_unknown = |member: &&Member| !member.verified_dead() && member.report().is_none();
    let of_view = seen.replicas_of(id).filter_map(|replica| seen.member_by_id(replica)).find(is_unknown);
    of_view.or_else(|| {
        seen.of_shard(dead.shard_index()).filter(|member| member.recorded_id.is_some()).find(is_unknown)
    })
}

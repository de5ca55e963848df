//! Repair: the dead are forgotten, their shards get a primary again, and missing members are made anew.
//!
//! Every rule here works from proof of death or from a majority of views; silence alone decides nothing.

use std::collections::BTreeSet;

use shared::api::{JoinType, Lifecycle};
use shared::slots::{SLOT_COUNT, SlotSet};
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

use super::picture::Picture;
use super::{Verdict, shards, start, view};
use crate::action::{Action, Decision, Target, Wait};
use crate::model::{Desired, Member, Observed};
use crate::words::{Reason, counted};

/// A member that is dead, or that a majority flags `fail`, and that owns no slot and that nobody replicates, is
/// forgotten on every live node at once: the engine itself sends MEET to a silent address, and the address may be
/// given to another cluster's pod (measured on 8.1 and 9.1).
pub(super) fn forget_dead(seen: &Picture<'_>, _want: &Desired) -> Verdict {
    for id in doubted(seen) {
        let dead = match seen.member_by_id(id) {
            Some(member) => member.verified_dead() || member.was_reset() || seen.failed_for_majority(id),
            // A member that was removed while the view was away that still lists it.
            None => seen.doubted_by_all(id),
        };
        let answers = seen.answering(id).is_some();
        let replicated = seen.followers(id).next().is_some() || replica_unheard(seen, id);
        let listed = seen.lines_of(id).next().is_some();
        if !dead || !listed || answers || replicated || !seen.slots_of(id).is_empty() {
            continue;
        }
        let on: Vec<Target> = seen
            .reports()
            .filter(|(member, report)| shards::is_itself(member, report) && report.line(id).is_some())
            .filter_map(|(member, _)| view::target(member))
            .collect();
        if on.is_empty() {
            continue;
        }
        let name = seen.member_by_id(id).map_or_else(|| id.to_string(), |member| member.name.clone());
        let message = format!("forgetting {name} on {}", counted(on.len(), "node"));
        return Verdict::act(Decision::act(Action::Forget { id, on }, Reason::ForgettingNode, message));
    }
    Verdict::Pass
}

/// Some view lists a replica of `id` that was not heard in this tick and is not taken for failed: it may live and follow.
fn replica_unheard(seen: &Picture<'_>, id: NodeId) -> bool {
    let silent = |replica: &NodeId| seen.answering(*replica).is_none() && !seen.failed_for_majority(*replica);
    let may_live = |member: &Member| !member.verified_dead() && !member.was_reset();
    seen.replicas_of(id).filter(silent).filter_map(|replica| seen.member_by_id(replica)).any(may_live)
}

/// IDs that could be dead: some view doubts that they live, or their member is known to be gone.
fn doubted(seen: &Picture<'_>) -> BTreeSet<NodeId> {
    let gone = seen.gone().iter().filter_map(|member| member.id());
    seen.doubted().iter().copied().chain(gone).collect()
}

/// The objects of the dead go last, when no live view lists them.
pub(super) fn remove_dead(seen: &Picture<'_>, _want: &Desired) -> Verdict {
    // A silent member may still list the dead.
    if seen.unheard().is_some() {
        return Verdict::Pass;
    }
    let gone = seen.gone().iter().find(|member| {
        !member.deleting
            && member.spec.lifecycle != Lifecycle::Leaving
            && member.id().is_none_or(|id| !seen.listed_by_others(id))
            && !shards::lingers(seen, member)
            && member.recorded_id.is_some()
            // Its object is the last trace of slots that nobody has taken over yet.
            && (member.recorded_slots == 0 || seen.claimed().len() == SLOT_COUNT)
            && !is_last_record(seen, member)
    });
    gone.map_or(Verdict::Pass, |member| {
        let message = format!("{} is dead and forgotten by all, removing it", member.name);
        let action = Action::DeleteNodes { nodes: vec![view::node_ref(member)], cluster_deleted: false };
        Verdict::act(Decision::act(action, Reason::ReplacingNode, message))
    })
}

/// The only member that has left `Joining`: with its object the record would go that the cluster was formed, and its heirs
/// would be taken for a bootstrap that has gone wrong.
fn is_last_record(seen: &Observed, member: &Member) -> bool {
    let records = |member: &&Member| member.spec.lifecycle != Lifecycle::Joining;
    records(&member) && seen.staying().filter(records).count() == 1
}

/// A shard below its size gets one new node, which joins as a replica; one of a shard that owns nothing yet joins with
/// its shard.
pub(super) fn restore_members(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let dead: BTreeSet<u16> = seen.dead_owners().iter().map(|(_, member)| member.shard_index()).collect();
    for index in seen.kept().intersection(seen.recorded()) {
        let members: Vec<&Member> = seen
            .staying_of(*index)
            .filter(|member| member.spec.lifecycle != Lifecycle::Leaving)
            // One that never started is tried again at its own pace.
            .filter(|member| start::never_answered(member) || !is_missing(seen, want, member))
            .collect();
        // A shard of which nobody is left but its slots is given an heir, not a member.
        let lost = members.is_empty() && (dead.contains(index) || !seen.unowned().is_empty());
        if lost || members.len() >= want.shape.per_shard() {
            continue;
        }
        let new = members.iter().all(|member| member.join == Some(JoinType::Shard));
        let (join, reason) = if new {
            (JoinType::Shard, Reason::Scaling)
        } else {
            (JoinType::Replica, Reason::ReplicaMissing)
        };
        return start::replacement_for(seen, want, *index, join, reason);
    }
    Verdict::Pass
}

/// A member that counts as lost: proved dead; or flagged `fail` by a majority and silent for long, while another
/// primary serves its shard. If it comes back it is one too many.
pub(super) fn is_missing(seen: &Picture<'_>, want: &Desired, member: &Member) -> bool {
    if member.verified_dead() {
        return true;
    }
    let Some(id) = member.id().filter(|_| member.report().is_none()) else { return false };
    if is_forgotten(seen, member, id) {
        return member.silent_millis > want.patience.node_loss_millis;
    }
    let long = seen.outage(id).is_some_and(|millis| millis > want.patience.node_loss_millis);
    long && seen.failed_for_majority(id) && seen.slots_of(id).is_empty()
}

/// Nobody lists or follows it any more, what it owned has been taken over, and the primary of its shard serves.
fn is_forgotten(seen: &Picture<'_>, member: &Member, id: NodeId) -> bool {
    let owns =
        |other: &Member| other.report().and_then(NodeReport::myself).is_some_and(|it| !it.slots.is_empty());
    (member.recorded_slots == 0 || seen.claimed().len() == SLOT_COUNT)
        && !seen.listed_by_others(id)
        && seen.followers(id).next().is_none()
        && seen.of_shard(member.shard_index()).any(owns)
}

/// A member whose process runs, answers nobody and was forgotten by all is of no use to anybody and holds its place: its
/// Pod is ended, so that it is replaced. Seen with 9.1.2: a fresh replica hung for minutes when it was sent to a new
/// primary, and its port went on accepting connections.
pub(super) fn end_hung(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let mut waits = Vec::new();
    for member in seen.silent().iter().filter(|member| !member.deleting && member.silent_millis > 0) {
        let (Some(pod), Some(id)) = (member.pod.as_ref(), member.recorded_id) else { continue };
        if pod.overdue || !is_forgotten(seen, member, id) {
            continue;
        }
        let name = &member.name;
        if pod.deleting {
            let message = view::terminating_words(member);
            waits.push(Wait { reason: Reason::PodTerminating, message });
        } else if member.silent_millis > want.patience.node_loss_millis {
            let message = format!(
                "{name} has answered nobody for {} s and was forgotten by all: ending its Pod, so that it is replaced",
                member.silent_millis / 1000
            );
            let action = Action::EndPod { node: view::node_ref(member), pod_uid: pod.uid.clone(), id };
            return Verdict::act(Decision::act(action, Reason::ReplacingNode, message).with_waits(waits));
        } else {
            let message =
                format!("{name} answers nobody and was forgotten by all; its Pod is ended if that lasts");
            waits.push(Wait { reason: Reason::ReplacingNode, message });
        }
    }
    if waits.is_empty() { Verdict::Pass } else { Verdict::Wait(waits) }
}

/// Members that another may take over from and that some view shows as owning slots, with their IDs.
pub(super) fn dead_owners<'a>(seen: &Picture<'a>) -> Vec<(NodeId, &'a Member)> {
    seen.dead()
        .filter_map(|member| Some((member.id()?, member)))
        .filter(|(id, _)| !orphaned_slots(seen, *id).is_empty())
        .collect()
}

/// Slots that `id` owns in some view and that no other answering node claims for itself.
pub(super) fn orphaned_slots(seen: &Observed, id: NodeId) -> SlotSet {
    let slots = seen.slots_of(id);
    if slots.is_empty() || seen.answering(id).is_none() {
        return slots.difference(seen.claimed());
    }
    let others = seen.reports().filter(|(_, report)| report.id != id);
    let claimed: SlotSet = others
        .filter_map(|(_, report)| report.myself())
        .flat_map(|line| line.slots.ranges().iter().copied())
        .collect();
    slots.difference(&claimed)
}

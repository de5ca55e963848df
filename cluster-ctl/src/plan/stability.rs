//! Repair: the dead are forgotten, their shards get a primary again, and missing members are made anew.
//!
//! Every rule here works from proof of death or from a majority of views; silence alone decides nothing.

use shared::api::{JoinType, Lifecycle};
use shared::slots::SlotSet;
use shared::valkey::commands::FailoverKind;
use shared::valkey::info::Role;
use shared::valkey::report::NodeReport;
use shared::valkey::types::{NodeId, Offset};

use super::{Verdict, shards, start, view};
use crate::action::{Action, Decision, Target};
use crate::model::{Desired, Member, Observed};
use crate::words::Reason;

/// A member that is dead, or that a majority flags `fail`, and that owns no slot and that nobody replicates, is
/// forgotten on every live node at once: the engine itself sends MEET to a silent address, and the address may be
/// given to another cluster's pod (measured on 8.1 and 9.1).
pub(super) fn forget_dead(seen: &Observed, _want: &Desired) -> Verdict {
    let listed = seen.reports().flat_map(|(_, report)| &report.nodes).filter(|line| !line.flags.handshake);
    let mut ids: Vec<NodeId> = listed.map(|line| line.id).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        let dead = match seen.member_by_id(id) {
            Some(member) => member.verified_dead() || was_reset(member) || failed_for_majority(seen, id),
            None => departed(seen, id),
        };
        let answers = seen.reports().any(|(_, report)| report.id == id);
        if !dead || answers || !view::slots_of(seen, id).is_empty() || replicated(seen, id) {
            continue;
        }
        let on: Vec<Target> = seen
            .reports()
            .filter(|(_, report)| report.line(id).is_some())
            .filter_map(|(member, _)| view::target(member))
            .collect();
        let name = seen.member_by_id(id).map_or_else(|| id.to_string(), |member| member.name.clone());
        let message = format!("forgetting {name} on {} nodes", on.len());
        return Verdict::act(Decision::act(Action::Forget { id, on }, Reason::ForgettingNode, message));
    }
    Verdict::Pass
}

/// It answers under another ID than the one on record: nobody will ever answer under that one again.
fn was_reset(member: &Member) -> bool {
    member.report().is_some_and(|report| !shards::is_itself(member, report))
}

/// An ID of no member that no view holds for alive: a member that was removed while this view was away.
fn departed(seen: &Observed, id: NodeId) -> bool {
    seen.lines_of(id).all(|line| line.flags.fail || line.flags.pfail || line.flags.noaddr)
}

/// A dead primary of a shard that has a copy: the best copy is promoted at once, by vote where a vote is possible.
pub(super) fn promote_replica(seen: &Observed, want: &Desired) -> Verdict {
    let mut waits = Vec::new();
    for (id, dead) in dead_owners(seen) {
        let Some(best) = best_copy(seen, id) else { continue };
        if let Some(why) = promotion_refused(seen, id, dead) {
            waits.push(crate::action::Wait { reason: Reason::AwaitingFailover, message: why });
            continue;
        }
        let (Some(on), Some(report)) = (view::target(best), best.report()) else { continue };
        if seen.handed_over_lately(id, want.patience.promotion_millis) {
            let message = format!("{} is being promoted in the place of {}", best.name, dead.name);
            waits.push(crate::action::Wait { reason: Reason::PromotingReplica, message });
            continue;
        }
        let (kind, message) = if vote_possible(seen, report, id) {
            (FailoverKind::Force, format!("{} is dead, promoting {}", dead.name, best.name))
        } else {
            (FailoverKind::Takeover, format!("no quorum — issued TAKEOVER on replica {}", best.name))
        };
        let action = Action::Failover { kind, on, from: id };
        return Verdict::act(Decision::act(action, Reason::PromotingReplica, message).with_waits(waits));
    }
    if waits.is_empty() { silent_owners(seen) } else { Verdict::Wait(waits) }
}

/// Slot owners that are silent and not proved dead: the engine's own failover is awaited, or a person.
fn silent_owners(seen: &Observed) -> Verdict {
    let mut waits = Vec::new();
    for member in seen.members.values().filter(|member| !member.verified_dead() && member.report().is_none())
    {
        let Some(id) = member.id() else { continue };
        if view::slots_of(seen, id).is_empty() || !suspected(seen, id) {
            continue;
        }
        let Some(copy) = best_copy(seen, id).and_then(Member::report) else {
            let machine =
                member.pod.as_ref().and_then(|pod| pod.machine.as_deref()).unwrap_or("an unknown machine");
            let message = format!(
                "{} on {machine} does not answer and has no copy; it comes back, or its death is confirmed with the annotation {}",
                member.name,
                shared::names::ANNOTATION_CONFIRMED_DEAD
            );
            waits.push(crate::action::Wait { reason: Reason::PrimaryUnreachable, message });
            continue;
        };
        let (reason, message) = if vote_possible(seen, copy, id) {
            (
                Reason::AwaitingFailover,
                format!("primary unhealthy but replicas exist, waiting for auto-failover: {}", member.name),
            )
        } else {
            (
                Reason::PrimaryUnreachable,
                format!("{} does not answer and too few primaries are left to vote", member.name),
            )
        };
        waits.push(crate::action::Wait { reason, message });
    }
    if waits.is_empty() { Verdict::Pass } else { Verdict::Wait(waits) }
}

/// A shard of which every member is proved dead or holds no copy: its slots go to a fresh node, above every epoch in
/// use, and only when all views agree is the dead owner forgotten.
pub(super) fn replace_lost_primary(seen: &Observed, want: &Desired) -> Verdict {
    for (id, dead) in dead_owners(seen) {
        if best_copy(seen, id).is_some() || shard_unknown(seen, id, dead) {
            continue;
        }
        // First of all: one that still follows the dead owner could be elected after its slots were given away.
        if let Some(on) = follower_without_copy(seen, id) {
            let message =
                format!("{} never had a copy of the lost {}, resetting it", on.node.name, dead.name);
            return Verdict::act(Decision::act(Action::Reset { on }, Reason::ShardLost, message));
        }
        let orphans = orphaned_slots(seen, id);
        let fresh =
            seen.staying().filter(|member| member.shard_index() == dead.shard_index()).find(|member| {
                member.report().is_some_and(|report| {
                    shards::is_itself(member, report) && report.nodes.len() == 1 && report.info.keys == 0
                })
            });
        let Some(fresh) = fresh else {
            let taken = seen
                .staying()
                .any(|member| member.shard_index() == dead.shard_index() && !member.verified_dead());
            if taken {
                return Verdict::wait(
                    Reason::ShardLost,
                    format!("{} is lost with its data, its successor starts", dead.name),
                );
            }
            return start::replacement(seen, want, dead, JoinType::Primary, Reason::ShardLost);
        };
        let (Some(target), Some(report)) = (view::target(fresh), fresh.report()) else { continue };
        let line = report.myself();
        if line.is_some_and(|line| line.epoch.0 == 0) {
            let epoch = shared::valkey::types::Epoch(seen.highest_epoch().0 + 1);
            let message = format!("{} takes the place of {} at epoch {epoch}", fresh.name, dead.name);
            let action = Action::SetConfigEpochs { epochs: vec![(target, epoch)] };
            return Verdict::act(Decision::act(action, Reason::ShardLost, message));
        }
        let own = line.map(|line| line.slots.clone()).unwrap_or_default();
        if own != orphans {
            let message = format!("{} gets {} of the lost {}", fresh.name, orphans, dead.name);
            let action = Action::AssignSlots { slots: vec![(target, orphans.difference(&own))] };
            return Verdict::act(Decision::act(action, Reason::ShardLost, message));
        }
        let seed =
            seen.reports().find(|(_, report)| report.nodes.len() > 1 && report.info.role == Role::Primary);
        let Some(seed) = seed.and_then(|(member, _)| view::target(member)) else {
            return Verdict::wait(Reason::ShardLost, "no live member is left to introduce the successor to");
        };
        let message = format!("introducing {} to {}", fresh.name, seed.node.name);
        return Verdict::act(Decision::act(
            Action::Meet { seed, others: vec![target] },
            Reason::ShardLost,
            message,
        ));
    }
    Verdict::Pass
}

/// A replica of the lost owner; none of them has a copy, so nothing of use is on it.
fn follower_without_copy(seen: &Observed, id: NodeId) -> Option<Target> {
    seen.reports()
        .filter(|(_, report)| report.myself().and_then(|line| line.primary) == Some(id))
        .find_map(|(member, _)| view::target(member))
}

/// The objects of the dead go last, when no live view lists them.
pub(super) fn remove_dead(seen: &Observed, _want: &Desired) -> Verdict {
    // A silent member may still list the dead.
    if seen.unheard().is_some() {
        return Verdict::Pass;
    }
    let gone = seen.staying().find(|member| {
        (member.verified_dead() || was_reset(member))
            && member.spec.lifecycle != Lifecycle::Leaving
            && member.id().is_none_or(|id| !view::listed_by_others(seen, id))
            && member.recorded_id.is_some()
    });
    gone.map_or(Verdict::Pass, |member| {
        let message = format!("{} is dead and forgotten by all, removing it", member.name);
        let action = Action::DeleteNodes { nodes: vec![view::node_ref(member)], cluster_deleted: false };
        Verdict::act(Decision::act(action, Reason::ReplacingNode, message))
    })
}

/// A shard below its size gets one new node, which joins as a replica; one of a shard that owns nothing yet joins with
/// its shard.
pub(super) fn restore_members(seen: &Observed, want: &Desired) -> Verdict {
    let recorded = shards::recorded_indices(seen);
    for index in shards::kept(seen, want).intersection(&recorded) {
        let members: Vec<&Member> = seen
            .staying()
            .filter(|member| member.shard_index() == *index && member.spec.lifecycle != Lifecycle::Leaving)
            .filter(|member| !is_missing(seen, want, member))
            .collect();
        if members.len() >= want.shape.per_shard() {
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
fn is_missing(seen: &Observed, want: &Desired, member: &Member) -> bool {
    if member.verified_dead() {
        return true;
    }
    let Some(id) = member.id().filter(|_| member.report().is_none()) else { return false };
    let outage = seen
        .reports()
        .filter_map(|(_, report)| {
            let line = report.line(id).filter(|line| line.flags.fail && line.pong_recv > 0)?;
            Some((report.info.server_time_usec / 1000).saturating_sub(line.pong_recv))
        })
        .max();
    let long = outage
        .and_then(|millis| i64::try_from(millis).ok())
        .is_some_and(|millis| millis > want.patience.node_loss_millis);
    long && failed_for_majority(seen, id) && view::slots_of(seen, id).is_empty()
}

/// Members proved dead that some view shows as owning slots, with their IDs.
fn dead_owners(seen: &Observed) -> Vec<(NodeId, &Member)> {
    let dead = seen.members.values().filter(|member| member.verified_dead());
    dead.filter_map(|member| Some((member.id()?, member)))
        .filter(|(id, _)| !orphaned_slots(seen, *id).is_empty())
        .collect()
}

/// Slots that `id` owns in some view and that no answering primary claims for itself.
fn orphaned_slots(seen: &Observed, id: NodeId) -> SlotSet {
    let claimed: SlotSet = seen
        .reports()
        .filter(|(_, report)| report.id != id)
        .filter_map(|(_, report)| report.myself())
        .flat_map(|line| line.slots.ranges().iter().copied())
        .collect();
    view::slots_of(seen, id).difference(&claimed)
}

/// Whether a replica of a dead primary holds a copy of its data: it finished its first sync and does nothing else.
fn is_copy(report: &NodeReport, dead: NodeId) -> bool {
    report.myself().and_then(|line| line.primary) == Some(dead)
        && !report.info.loading
        && report.info.link.as_ref().is_some_and(|link| {
            link.offset > Offset(1)
                && !link.sync_in_progress
                && (link.up || link.down_since_seconds.is_some_and(|down| down >= 0))
        })
}

/// Of the copies the one with the highest offset in the largest group of one replication history, then the lowest name.
fn best_copy(seen: &Observed, dead: NodeId) -> Option<&Member> {
    seen.reports()
        .filter(|(_, report)| is_copy(report, dead))
        .max_by(|(left, a), (right, b)| {
            let offset = |report: &NodeReport| report.info.link.as_ref().map(|link| link.offset);
            offset(a).cmp(&offset(b)).then_with(|| right.name.cmp(&left.name))
        })
        .map(|(member, _)| member)
}

/// Why no replica of `dead` may be promoted now: another replica of it is unknown, or some view has moved on.
fn promotion_refused(seen: &Observed, id: NodeId, dead: &Member) -> Option<String> {
    let moved_on =
        seen.reports().any(|(_, report)| report.line(id).is_some_and(|line| line.slots.is_empty()));
    if moved_on {
        return Some(format!("{} is dead; a successor has been elected and is becoming known", dead.name));
    }
    let replicas =
        seen.reports().flat_map(|(_, report)| &report.nodes).filter(|line| line.primary == Some(id));
    for line in replicas {
        let Some(member) = seen.member_by_id(line.id) else { continue };
        if member.report().is_none() && !member.verified_dead() {
            return Some(format!("{} is dead; its replica {} does not answer", dead.name, member.name));
        }
    }
    None
}

/// Whether an election can succeed in the candidate's own view: a majority of the slot-holding primaries, the dead
/// one included in the count, is alive there.
fn vote_possible(seen: &Observed, candidate: &NodeReport, dead: NodeId) -> bool {
    let voters: Vec<_> =
        candidate.nodes.iter().filter(|line| line.flags.primary && !line.slots.is_empty()).collect();
    let is_dead = |id: NodeId| id == dead || seen.member_by_id(id).is_some_and(Member::verified_dead);
    let alive =
        voters.iter().filter(|line| !line.flags.fail && !line.flags.pfail && !is_dead(line.id)).count();
    alive > voters.len() / 2
}

/// Whether any member of the shard, by record or by any view, is neither dead nor answering.
fn shard_unknown(seen: &Observed, id: NodeId, dead: &Member) -> bool {
    let of_view = seen
        .reports()
        .flat_map(|(_, report)| &report.nodes)
        .filter(|line| line.primary == Some(id))
        .filter_map(|line| seen.member_by_id(line.id));
    let of_record = seen
        .members
        .values()
        .filter(|member| member.shard_index() == dead.shard_index() && member.recorded_id.is_some());
    of_view.chain(of_record).any(|member| !member.verified_dead() && member.report().is_none())
}

/// A majority of the slot-holding primaries flags `id` as failed, by vote (`fail`), not by suspicion (`fail?`).
fn failed_for_majority(seen: &Observed, id: NodeId) -> bool {
    let primaries = slot_owners(seen);
    let flagging = seen
        .reports()
        .filter(|(_, report)| primaries.contains(&report.id))
        .filter(|(_, report)| report.line(id).is_some_and(|line| line.flags.fail))
        .count();
    flagging > primaries.len() / 2
}

/// Some view doubts that `id` is alive.
fn suspected(seen: &Observed, id: NodeId) -> bool {
    seen.lines_of(id).any(|line| line.flags.fail || line.flags.pfail)
}

fn slot_owners(seen: &Observed) -> Vec<NodeId> {
    let mut owners: Vec<NodeId> = seen
        .reports()
        .flat_map(|(_, report)| &report.nodes)
        .filter(|line| !line.slots.is_empty())
        .map(|line| line.id)
        .collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

/// Whether any answering node replicates `id`.
fn replicated(seen: &Observed, id: NodeId) -> bool {
    seen.reports()
        .any(|(_, report)| report.id != id && report.myself().and_then(|line| line.primary) == Some(id))
}

//! Joining a formed cluster: gate, introduction, replication, Active.
//!
//! A newcomer is asked who it is before anybody is told of it. One that carries data or knows strangers is replaced,
//! never reset and kept. One whose shard or place is not wanted any more leaves again.

use std::collections::{BTreeMap, BTreeSet};

use shared::api::{JoinType, Lifecycle};
use shared::slots::SLOT_COUNT;
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

use super::outdated::is_outdated;
use super::picture::Picture;
use super::shards::Shard;
use super::{Verdict, retire, start, view};
use crate::action::{Action, Decision, Target, Wait};
use crate::model::{Desired, Member, Observed, Sync, sync_state};
use crate::words::Reason;

/// Brings each `Joining` member one step further.
pub(super) fn finish_joins(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let mut waits = Vec::new();
    for member in seen.joining() {
        match step(seen, want, member) {
            Verdict::Act(decision) => return Verdict::Act(Box::new(decision.with_waits(waits))),
            Verdict::Wait(more) => waits.extend(more),
            Verdict::Pass => {}
        }
    }
    if waits.is_empty() { Verdict::Pass } else { Verdict::Wait(waits) }
}

fn step(seen: &Picture<'_>, want: &Desired, member: &Member) -> Verdict {
    if let Some(why) = unwanted(seen, want, member) {
        return retire::begin(member, Reason::Scaling, why);
    }
    if let Some(verdict) = start::joiner(seen, want, member) {
        return verdict;
    }
    let (Some(report), Some(target)) = (member.report(), view::target(member)) else { return Verdict::Pass };
    let all = seen.shards();
    let primary = match all.get(&member.shard_index()) {
        Some(shard) => shard.primary,
        None => match founder(seen, want, member) {
            Some(founder) => founder,
            None => return waiting(member, Reason::Scaling, &gathering(seen, member)),
        },
    };
    if primary.1.id == report.id {
        return join_as_primary(seen, member, report, target, all.values());
    }
    join_as_replica(seen, member, (report, target), primary, all.values())
}

/// Why a joiner is not needed any more.
fn unwanted(seen: &Picture<'_>, want: &Desired, member: &Member) -> Option<&'static str> {
    let owns = member.id().is_some_and(|id| !seen.slots_of(id).is_empty());
    if owns {
        return None;
    }
    // A shard is drained before its members go: until then it keeps its replicas.
    let drained = !view::shard_owns(seen, member.shard_index());
    if drained && !seen.kept().contains(&member.shard_index()) {
        return Some("its shard is not wanted any more");
    }
    let serving: Vec<&Member> = seen
        .staying_of(member.shard_index())
        .filter(|other| other.spec.lifecycle == Lifecycle::Active)
        // One past its end is being replaced by the very joiner.
        .filter(|other| !other.verified_dead() && !other.pod.as_ref().is_some_and(|pod| pod.overdue))
        .collect();
    let rolling = want
        .template
        .as_ref()
        .is_ok_and(|template| serving.iter().any(|other| is_outdated(&other.spec, template)));
    let full =
        serving.len() >= want.shape.per_shard() && serving.iter().all(|other| other.report().is_some());
    (full && !rolling).then_some("its shard has all its members")
}

/// What a joiner of a shard without a primary waits for.
fn gathering(seen: &Picture<'_>, member: &Member) -> String {
    let silent = seen.staying_of(member.shard_index()).find(|other| other.is_unknown());
    silent.map_or_else(
        || "waits for the other nodes of its shard".to_owned(),
        |silent| {
            format!(
                "waits for the other nodes of its shard, of which {} does not answer; it comes back, or its death is confirmed with the annotation {}",
                silent.name,
                shared::names::ANNOTATION_CONFIRMED_DEAD
            )
        },
    )
}

/// The member around which a new shard gathers: the lowest name, once every node of the shard answers. Replicas made for a
/// shard whose other members died before it owned a slot count as well: while every slot has a living owner, there is
/// nobody else whom they could be waiting for.
fn founder<'a>(seen: &Picture<'a>, want: &Desired, member: &Member) -> Option<(&'a Member, &'a NodeReport)> {
    let of_shard: Vec<&Member> =
        seen.staying_of(member.shard_index()).filter(|other| !other.verified_dead()).collect();
    let orphaned = seen.claimed().len() == SLOT_COUNT
        && of_shard.iter().all(|other| other.spec.lifecycle == Lifecycle::Joining);
    let siblings: Vec<&Member> = of_shard
        .into_iter()
        .filter(|other| match other.join {
            Some(JoinType::Shard) => true,
            Some(JoinType::Replica) => orphaned,
            Some(JoinType::Primary) | None => false,
        })
        .collect();
    if siblings.len() < want.shape.per_shard() {
        return None;
    }
    let answering: Vec<(&Member, &NodeReport)> =
        siblings.iter().filter_map(|sibling| Some((*sibling, sibling.report()?))).collect();
    (answering.len() == siblings.len())
        .then(|| answering.into_iter().min_by_key(|(other, _)| other.name.clone()))?
}

/// A primary needs to be known; one that takes slots owns them already, one of a new shard gets them later.
fn join_as_primary<'s, 'a: 's>(
    seen: &Picture<'_>,
    member: &Member,
    report: &NodeReport,
    target: Target,
    all: impl Iterator<Item = &'s Shard<'a>>,
) -> Verdict {
    if known_to_majority(seen, report.id) {
        return activate(member, "is known to a majority");
    }
    introduce(seen, member, report, target, all)
}

fn join_as_replica<'s, 'a: 's>(
    seen: &Picture<'_>,
    member: &Member,
    (report, target): (&NodeReport, Target),
    (primary, primary_report): (&Member, &NodeReport),
    all: impl Iterator<Item = &'s Shard<'a>>,
) -> Verdict {
    let acquainted = primary_report.line(report.id).is_some() && report.line(primary_report.id).is_some();
    if !acquainted || !known_to_majority(seen, report.id) {
        return introduce(seen, member, report, target, all);
    }
    if !known_to_majority(seen, primary_report.id) {
        return waiting(member, Reason::NodesMeeting, "waits until its primary has joined");
    }
    match sync_state(report, primary_report) {
        Sync::Elsewhere => {
            let message = format!("attaching {} to {}", member.name, primary.name);
            let action = Action::Replicate { links: vec![(target, primary_report.id)] };
            Verdict::act(Decision::act(action, Reason::AttachingReplicas, message))
        }
        state if state.is_synced() => activate(member, "is synced"),
        Sync::Copying | Sync::Linked { .. } => {
            waiting(member, Reason::ReplicasSyncing, "is copying its primary's data")
        }
    }
}

/// One slot owner a tick hears of the newcomer. Gossip alone would do it from one, only ten times slower.
fn introduce<'s, 'a: 's>(
    seen: &Picture<'_>,
    member: &Member,
    report: &NodeReport,
    target: Target,
    all: impl Iterator<Item = &'s Shard<'a>>,
) -> Verdict {
    if let Some(wait) = view::ban_wait(seen, member) {
        return Verdict::Wait(vec![wait]);
    }
    let seed = all
        .filter(|shard| !shard.slots.is_empty() && shard.primary.1.id != report.id)
        .map(|shard| shard.primary)
        .find(|(_, seed)| seed.line(report.id).is_none() && seed.nodes.handshakes() == 0);
    let Some(seed) = seed.and_then(|(seed, _)| view::target(seed)) else {
        return waiting(member, Reason::NodesMeeting, "is being introduced");
    };
    let message = format!("introducing {} to {}", member.name, seed.node.name);
    let action = Action::Meet { seed, others: vec![target] };
    Verdict::act(Decision::act(action, Reason::MeetingNodes, message))
}

fn activate(member: &Member, why: &str) -> Verdict {
    let message = format!("completed join: {} {why}", member.name);
    let action = Action::Activate {
        nodes: vec![view::node_ref(member)],
        forms_cluster: false,
        clear_join_type: member.join == Some(JoinType::Shard),
    };
    Verdict::act(Decision::act(action, Reason::CompletingJoin, message))
}

fn waiting(member: &Member, reason: Reason, what: &str) -> Verdict {
    Verdict::Wait(vec![Wait { reason, message: format!("{} {what}", member.name) }])
}

/// A majority of the slot-holding primaries lists `id` by its real ID.
fn known_to_majority(seen: &Picture<'_>, id: NodeId) -> bool {
    2 * seen.listed_by_owners(id) > seen.electorate()
}

/// The slot-holding primaries. The dead do not count; a shard that nobody answers for does, although no view may show
/// that it owns slots.
pub(super) fn electorate(seen: &Observed) -> usize {
    let owners = seen.owners().keys().copied();
    let living: BTreeSet<NodeId> =
        owners.filter(|id| seen.member_by_id(*id).is_none_or(|member| !member.may_be_succeeded())).collect();
    living.len() + unheard_shards(seen, &living)
}

/// Shards with a member that may live, of which none answers and none is among the `owners`.
fn unheard_shards(seen: &Observed, owners: &BTreeSet<NodeId>) -> usize {
    let mut heard: BTreeMap<u16, bool> = BTreeMap::new();
    for member in seen.staying().filter(|member| !member.verified_dead()) {
        let counts = member.report().is_some() || member.id().is_some_and(|id| owners.contains(&id));
        if counts || member.spec.lifecycle == Lifecycle::Active {
            *heard.entry(member.shard_index()).or_default() |= counts;
        }
    }
    heard.values().filter(|heard| !**heard).count()
}

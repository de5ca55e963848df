//! Joining a formed cluster: gate, introduction, replication, Active.
//!
//! A newcomer is asked who it is before anybody is told of it. One that carries data or knows strangers is replaced,
//! never reset and kept.

use shared::api::Lifecycle;
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

use super::{Verdict, start, view};
use crate::action::{Action, Decision, Wait};
use crate::model::{Desired, Member, Observed, Sync, sync_state};
use crate::words::Reason;

/// Brings each `Joining` member one step further.
pub(super) fn finish_joins(seen: &Observed, want: &Desired) -> Verdict {
    let mut waits = Vec::new();
    for member in seen.staying().filter(|member| member.spec.lifecycle == Lifecycle::Joining) {
        match step(seen, want, member) {
            Verdict::Act(decision) => return Verdict::Act(Box::new(decision.with_waits(waits))),
            Verdict::Wait(more) => waits.extend(more),
            Verdict::Pass => {}
        }
    }
    if waits.is_empty() { Verdict::Pass } else { Verdict::Wait(waits) }
}

fn step(seen: &Observed, want: &Desired, member: &Member) -> Verdict {
    if let Some(verdict) = start::joiner(seen, want, member) {
        return verdict;
    }
    let (Some(report), Some(target)) = (member.report(), view::target(member)) else { return Verdict::Pass };
    let Some(primary) = primary_of(seen, member) else {
        return Verdict::wait(
            Reason::ReplicaMissing,
            format!("{} waits for a primary in its shard", member.name),
        );
    };
    if primary.id == report.id {
        return activate(member, "serves slots");
    }
    let Some(seed) = seen.member_by_id(primary.id).and_then(view::target) else { return Verdict::Pass };
    if primary.line(report.id).is_none() {
        if primary.nodes.iter().any(|line| line.flags.handshake) {
            return waiting(member, Reason::NodesMeeting, "is being introduced");
        }
        let message = format!("introducing {} to {}", member.name, seed.node.name);
        return Verdict::act(Decision::act(
            Action::Meet { seed, others: vec![target] },
            Reason::MeetingNodes,
            message,
        ));
    }
    if report.line(primary.id).is_none() || !known_to_majority(seen, report.id) {
        return waiting(member, Reason::NodesMeeting, "is not known to a majority of primaries yet");
    }
    match sync_state(report, primary) {
        Sync::Elsewhere => {
            let message = format!("attaching {} to {}", member.name, seed.node.name);
            let action = Action::Replicate { links: vec![(target, primary.id)] };
            Verdict::act(Decision::act(action, Reason::AttachingReplicas, message))
        }
        state if state.is_synced() => activate(member, "is synced"),
        Sync::Copying | Sync::Linked { .. } => {
            waiting(member, Reason::ReplicasSyncing, "is copying its primary's data")
        }
    }
}

fn activate(member: &Member, why: &str) -> Verdict {
    let message = format!("completed join: {} {why}", member.name);
    let action = Action::Activate { nodes: vec![view::node_ref(member)], forms_cluster: false };
    Verdict::act(Decision::act(action, Reason::CompletingJoin, message))
}

fn waiting(member: &Member, reason: Reason, what: &str) -> Verdict {
    Verdict::Wait(vec![Wait { reason, message: format!("{} {what}", member.name) }])
}

/// The answering slot owner of the member's shard: itself, or the one of the same shard index.
fn primary_of<'a>(seen: &'a Observed, member: &Member) -> Option<&'a NodeReport> {
    seen.reports()
        .filter(|(other, _)| other.shard_index() == member.shard_index())
        .find(|(_, report)| report.myself().is_some_and(|line| !line.slots.is_empty()))
        .map(|(_, report)| report)
}

/// A majority of the slot-holding primaries lists `id` by its real ID.
fn known_to_majority(seen: &Observed, id: NodeId) -> bool {
    let owns = |report: &NodeReport| report.myself().is_some_and(|line| !line.slots.is_empty());
    let owners = seen.reports().flat_map(|(_, report)| &report.nodes).filter(|line| !line.slots.is_empty());
    let total = owners.map(|line| line.id).collect::<std::collections::BTreeSet<_>>().len();
    let knowing = seen.reports().filter(|(_, report)| owns(report) && report.line(id).is_some()).count();
    knowing > total / 2
}

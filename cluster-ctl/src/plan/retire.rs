//! Retiring a live member: unpublished, Leaving, reset at one instant at the node, forgotten, deleted.
//!
//! The removal happens at the node (`CLUSTER RESET HARD`, refused on a primary with keys): deleting the object first
//! would let a slow process remove a member that was promoted meanwhile.

use shared::slots::SLOT_COUNT;
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

use super::picture::Picture;
use super::shards::is_itself;
use super::{Verdict, view};
use crate::action::{Action, Decision, Target, Wait};
use crate::model::{Desired, Member, sync_state};
use crate::words::{Reason, counted};

/// The first step: the member is taken from the published ones and marked Leaving.
pub(super) fn begin(member: &Member, reason: Reason, why: &str) -> Verdict {
    let message = format!("retiring {}: {why}", member.name);
    Verdict::act(Decision::act(Action::MarkLeaving { node: view::node_ref(member) }, reason, message))
}

/// The further steps of every member that is marked Leaving.
pub(super) fn finish_leaving(seen: &Picture<'_>, want: &Desired) -> Verdict {
    let mut waits = Vec::new();
    for member in seen.leaving() {
        let Some(id) = member.recorded_id else {
            return delete(member, "it never joined");
        };
        let reset =
            member.verified_dead() || member.report().is_some_and(|report| !is_itself(member, report));
        if !reset {
            let Some(report) = member.report() else {
                let message = format!("{} is Leaving and does not answer", member.name);
                waits.push(Wait { reason: Reason::Retiring, message });
                continue;
            };
            if let Err(wait) = may_go(seen, want, member, report) {
                waits.extend(wait);
                continue;
            }
            if member.leaves_with_keys() && report.nodes.len() > 1 {
                match end_with_keys(seen, want, member, report) {
                    Ok(action) => return Verdict::Act(Box::new(action.with_waits(waits))),
                    Err(wait) => waits.push(wait),
                }
                continue;
            }
            if report.nodes.len() > 1 {
                let Some(on) = view::target(member) else { continue };
                let message = format!("resetting {}, which leaves the cluster", member.name);
                return Verdict::act(Decision::act(Action::Reset { on }, Reason::Retiring, message));
            }
        }
        if let Some(report) = member.report().filter(|report| !is_itself(member, report)) {
            // Somebody was still learning of it by gossip, and introduced it again under its new ID.
            if report.nodes.len() > 1 || seen.listed_by_others(report.id) {
                let Some(on) = view::target(member) else { continue };
                let message = format!("resetting {} again: others still know it", member.name);
                return Verdict::act(Decision::act(Action::Reset { on }, Reason::Retiring, message));
            }
        }
        return let_go(seen, member, id);
    }
    if waits.is_empty() { Verdict::Pass } else { Verdict::Wait(waits) }
}

/// Whether a member that leaves may be reset; else why not, where that is this rule's to say.
fn may_go(
    seen: &Picture<'_>,
    want: &Desired,
    member: &Member,
    report: &NodeReport,
) -> Result<(), Option<Wait>> {
    let name = &member.name;
    let wait = |message| Err(Some(Wait { reason: Reason::Retiring, message }));
    if !seen.slots_of(report.id).is_empty() || seen.followers(report.id).next().is_some() {
        // Promoted after it was marked: rolling treats it as an outdated primary.
        return Err(None);
    }
    if seen.replicas_of(report.id).next().is_some() {
        return wait(format!("{name} leaves when no view shows a replica of it any more"));
    }
    if is_needed(seen, want, member, report) {
        // One of a shard that is to go is kept until that is drained, which must not wait for it.
        if !seen.kept().contains(&member.shard_index()) {
            return Err(None);
        }
        return wait(format!("{name} leaves when its shard has its replicas without it"));
    }
    if let Some(primary) = unheard_owner(seen, report) {
        return wait(format!(
            "{name} leaves when {primary}, whose data it holds, has answered: it may be needed"
        ));
    }
    Ok(())
}

/// The last steps of one that is reset or dead: forgotten by all, then deleted, when nobody can bring it back.
fn let_go(seen: &Picture<'_>, member: &Member, id: NodeId) -> Verdict {
    let on: Vec<Target> = seen
        .reports()
        .filter(|(other, report)| report.id != id && is_itself(other, report) && report.line(id).is_some())
        .filter_map(|(other, _)| view::target(other))
        .collect();
    if !on.is_empty() {
        let message = format!("forgetting {} on {}", member.name, counted(on.len(), "node"));
        return Verdict::act(Decision::act(Action::Forget { id, on }, Reason::Retiring, message));
    }
    if let Some(silent) = seen.unheard() {
        let message =
            format!("{} goes when {} has answered, which may still list it", member.name, silent.name);
        return Verdict::wait(Reason::Retiring, message);
    }
    let greeting =
        |(other, report): (&Member, &NodeReport)| other.name != member.name && report.nodes.handshakes() > 0;
    if seen.reports().any(greeting) {
        // The greeting may be for its address, and would bring it back under its new ID.
        return Verdict::wait(
            Reason::Retiring,
            format!("{} goes when no introduction is under way", member.name),
        );
    }
    delete(member, "nobody lists it any more")
}

/// A primary that gave its slots away and still holds keys of them, which its own primary had not told it to delete when that
/// died: `CLUSTER RESET` refuses. When that lasts and every slot is another's, its Pod is ended.
fn end_with_keys(
    seen: &Picture<'_>,
    want: &Desired,
    member: &Member,
    report: &NodeReport,
) -> Result<Decision, Wait> {
    let (name, keys) = (&member.name, counted(report.info.keys, "key"));
    let wait = |reason, message| Err(Wait { reason, message });
    let Some(pod) = &member.pod else {
        return wait(Reason::Retiring, format!("{name} leaves with {keys} and has no Pod to end"));
    };
    if pod.deleting {
        return wait(Reason::PodTerminating, view::terminating_words(member));
    }
    if seen.claimed().len() < SLOT_COUNT || seen.slots_are_moving() {
        let message =
            format!("{name} leaves and holds {keys}; it goes when every slot has an owner and none moves");
        return wait(Reason::Retiring, message);
    }
    if member.keys_kept_millis <= want.patience.node_loss_millis {
        let message = format!(
            "{name} leaves and owns nothing, but holds {keys}, with which it cannot be reset; its Pod is ended if that lasts"
        );
        return wait(Reason::Retiring, message);
    }
    let message = format!(
        "ending the Pod of {name}, which leaves: it cannot be reset with its {keys}, and every slot is another's"
    );
    let action = Action::EndPod { node: view::node_ref(member), pod_uid: pod.uid.clone(), id: report.id };
    Ok(Decision::act(action, Reason::Retiring, message))
}

/// A replica in sync whose shard would have fewer replicas than are asked for by now: one was lost, or more were asked for,
/// since it was marked. Its successor is made beside it, as for a missing one.
fn is_needed(seen: &Picture<'_>, want: &Desired, member: &Member, report: &NodeReport) -> bool {
    let primary = report.myself().and_then(|line| seen.answering(line.primary?));
    let shard = primary.and_then(|(primary, _)| seen.shards().get(&primary.shard_index()));
    let followed =
        shard.filter(|shard| shard.replicas.iter().any(|(replica, _)| replica.name == member.name));
    followed.is_some_and(|shard| {
        !shard.slots.is_empty()
            && sync_state(report, shard.primary.1).is_synced()
            && shard.synced().count() < usize::from(want.shape.replicas)
    })
}

/// The owner of slots whose replica this is, if it was not heard in this tick.
fn unheard_owner(seen: &Picture<'_>, replica: &NodeReport) -> Option<String> {
    let primary = replica.myself()?.primary.filter(|id| !seen.slots_of(*id).is_empty())?;
    let name = || seen.member_by_id(primary).map_or_else(|| primary.to_string(), |it| it.name.clone());
    seen.answering(primary).is_none().then(name)
}

fn delete(member: &Member, why: &str) -> Verdict {
    let message = format!("removing {}: {why}", member.name);
    let action = Action::DeleteNodes { nodes: vec![view::node_ref(member)], cluster_deleted: false };
    Verdict::act(Decision::act(action, Reason::Retiring, message))
}

//! The last gate before an action is executed. Independent of the rules: it judges the action against the observation
//! by code of its own, so that an error in a rule meets a second opinion.

use std::collections::BTreeSet;

use shared::api::Lifecycle;
use shared::slots::{SLOT_COUNT, SlotSet};
use shared::valkey::commands::FailoverKind;
use shared::valkey::report::NodeReport;
use shared::valkey::types::{NodeId, NodeLine};
use shared::valkey::view::View;

use crate::action::{Action, NodeRef, Target};
use crate::model::{Member, Observed};

/// Why an action must not be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A slot would have two owners.
    #[error("slots {slots} are owned by {owner} in some view")]
    SlotsOwned {
        /// The slots.
        slots: SlotSet,
        /// Their owner there.
        owner: NodeId,
    },
    /// A primary would give slots and receive others at the same time.
    #[error("slots {job} are moving the other way")]
    MovesBothWays {
        /// Those of the open job.
        job: SlotSet,
    },
    /// Slots would be given away while a member that may own them does not answer.
    #[error("slots would be given away while {silent} does not answer")]
    AssignsUnheard {
        /// Who is silent.
        silent: String,
    },
    /// The views would take the slots back from their receiver.
    #[error("{receiver} gets slots at epoch {epoch}, which {owner} owned at a later or the same one")]
    StaleClaim {
        /// Who would get them.
        receiver: NodeId,
        /// The receiver's config epoch.
        epoch: u64,
        /// Who is shown as their owner, proved dead.
        owner: NodeId,
    },
    /// One action gives one slot twice.
    #[error("slots {slots} are given twice")]
    SlotsTwice {
        /// The slots.
        slots: SlotSet,
    },
    /// A node that owns slots would be deleted.
    #[error("{node} owns slots {slots} in some view")]
    DeletesOwner {
        /// The node.
        node: String,
        /// The slots.
        slots: SlotSet,
    },
    /// A node would be deleted while others list it.
    #[error("{node} is still listed by other members")]
    DeletesListed {
        /// The node.
        node: String,
    },
    /// A node would be deleted that may be the only copy of its shard.
    #[error("{node} follows {primary}, which owned slots and does not answer: it may hold the only copy")]
    DeletesCopy {
        /// The node.
        node: String,
        /// Its primary.
        primary: NodeId,
    },
    /// A node would be deleted while another that may list it, or it itself, does not answer.
    #[error("{node} would be deleted while {silent} does not answer")]
    DeletesUnheard {
        /// The node.
        node: String,
        /// Who is silent.
        silent: String,
    },
    /// A node would be deleted or created in a cluster where that is not allowed now.
    #[error("{what} while the cluster {state}")]
    WrongTime {
        /// What would be done.
        what: &'static str,
        /// The state of the cluster.
        state: &'static str,
    },
    /// A slot owner or a replicated node would be forgotten.
    #[error("{id} owns slots, answers, or is replicated")]
    ForgetsUsed {
        /// The node.
        id: NodeId,
    },
    /// A primary that is not proved dead would lose its role without its consent.
    #[error("{id} is not proved dead")]
    DeposesLiving {
        /// The primary.
        id: NodeId,
    },
    /// One that holds nothing of the shard would become its primary.
    #[error("{node} does not follow {id} or holds no data")]
    PromotesEmpty {
        /// The node.
        node: String,
        /// The primary whose place it would take.
        id: NodeId,
    },
    /// A member that is in use would be reset.
    #[error("{node} neither leaves nor lacks a copy, or it owns slots or is replicated")]
    ResetsUsed {
        /// The node.
        node: String,
    },
    /// Slots would go to what is no primary.
    #[error("{id} is no living primary that could receive slots")]
    WrongReceiver {
        /// The receiver.
        id: NodeId,
    },
    /// Two nodes would get one config epoch.
    #[error("config epoch {epoch} is given twice or in use")]
    EpochTwice {
        /// The epoch.
        epoch: u64,
    },
}

/// Checks `action` against what was seen.
pub fn check(action: &Action, seen: &Observed) -> Result<(), Violation> {
    match action {
        Action::AssignSlots { slots } => {
            check_slots(slots.iter().map(|(target, slots)| (target.id, slots)), seen)
        }
        Action::DeleteNodes { nodes, cluster_deleted } => check_delete(nodes, *cluster_deleted, seen),
        Action::Forget { id, .. } => check_forget(*id, seen),
        Action::Failover { kind, on, from } => check_failover(*kind, on, *from, seen),
        Action::EndPod { id, pod_uid, .. } => check_end_pod(*id, pod_uid, seen),
        Action::SetConfigEpochs { epochs } => {
            let used: BTreeSet<u64> = lines(seen).map(|line| line.epoch.0).collect();
            let mut given = BTreeSet::new();
            for (_, epoch) in epochs {
                if used.contains(&epoch.0) || !given.insert(epoch.0) {
                    return Err(Violation::EpochTwice { epoch: epoch.0 });
                }
            }
            Ok(())
        }
        Action::Reset { on } => check_reset(&on.node, on.id, seen),
        Action::MigrateSlots { source, target, slots } => check_migration(source.id, target.id, slots, seen),
        Action::ReleaseCluster if !seen.members.is_empty() => {
            Err(Violation::WrongTime { what: "releasing the cluster", state: "still has nodes" })
        }
        Action::CreateNodes { .. } | Action::TakeSnapshot { .. } if seen.cluster.deleting => {
            Err(Violation::WrongTime { what: "creating", state: "is being deleted" })
        }
        Action::ReleaseCluster
        | Action::CreateNodes { .. }
        | Action::TakeSnapshot { .. }
        | Action::Meet { .. }
        | Action::Replicate { .. }
        | Action::MarkLeaving { .. }
        | Action::Activate { .. } => Ok(()),
    }
}

/// Every line of every view; of views that are the very same, one after the other, only the first one's.
fn lines(seen: &Observed) -> impl Iterator<Item = &NodeLine> {
    let mut before = None;
    let views = seen.reports().map(|(_, report)| &report.nodes);
    let new =
        views.filter(move |view| before.replace(view.common().as_ptr()) != Some(view.common().as_ptr()));
    new.flat_map(View::iter)
}

/// What each says of itself.
fn own_lines(seen: &Observed) -> impl Iterator<Item = &NodeLine> {
    seen.reports().filter_map(|(_, report)| report.nodes.own())
}

/// Only slots that nobody owns in any view, but for owners proved dead and the receiver itself; each once.
fn check_slots<'a>(
    slots: impl Iterator<Item = (NodeId, &'a SlotSet)>,
    seen: &Observed,
) -> Result<(), Violation> {
    let silent = seen
        .members
        .values()
        .find(|member| member.recorded_id.is_some() && member.report().is_none() && !member.verified_dead());
    if let Some(silent) = silent {
        return Err(Violation::AssignsUnheard { silent: silent.name.clone() });
    }
    let mut given = SlotSet::new();
    let mut receivers = Vec::new();
    for (receiver, wanted) in slots {
        if given.intersects(wanted) {
            return Err(Violation::SlotsTwice { slots: given.intersection(wanted) });
        }
        given = given.union(wanted);
        receivers.push((receiver, wanted));
    }
    for line in lines(seen).filter(|line| line.slots.intersects(&given)) {
        let of_line = seen.members.values().filter(|member| member.id() == Some(line.id));
        let dead = of_line.into_iter().any(Member::may_be_succeeded);
        let outdone = receivers
            .iter()
            .filter(|(receiver, wanted)| dead && line.id != *receiver && wanted.intersects(&line.slots));
        let epoch_of = |id: NodeId| own_lines(seen).find(|own| own.id == id).map_or(0, |own| own.epoch.0);
        if let Some((receiver, _)) = outdone.into_iter().find(|(id, _)| epoch_of(*id) <= line.epoch.0) {
            let epoch = epoch_of(*receiver);
            return Err(Violation::StaleClaim { receiver: *receiver, epoch, owner: line.id });
        }
        let theirs = receivers.iter().filter(|(receiver, _)| !dead && line.id != *receiver);
        let taken = theirs.map(|(_, wanted)| line.slots.intersection(wanted)).find(|taken| !taken.is_empty());
        if let Some(slots) = taken {
            return Err(Violation::SlotsOwned { slots, owner: line.id });
        }
    }
    Ok(())
}

fn check_delete(nodes: &[NodeRef], cluster_deleted: bool, seen: &Observed) -> Result<(), Violation> {
    if cluster_deleted {
        let state = "is not being deleted";
        return if seen.cluster.deleting {
            Ok(())
        } else {
            Err(Violation::WrongTime { what: "deleting every node", state })
        };
    }
    for node in nodes {
        let Some(id) = seen
            .members
            .get(&node.name)
            .and_then(|member| member.recorded_id.or(member.report().map(|it| it.id)))
        else {
            continue;
        };
        let silent = seen.members.values().find(|member| {
            let runs = member.pod.as_ref().is_some_and(|_| !member.pod_vanished && !member.deleting);
            runs && member.recorded_id.is_some() && member.report().is_none() && !member.verified_dead()
        });
        if let Some(silent) = silent {
            return Err(Violation::DeletesUnheard { node: node.name.clone(), silent: silent.name.clone() });
        }
        for (_, report) in seen.reports() {
            let Some(line) = report.line(id) else { continue };
            if !line.slots.is_empty() {
                let slots = line.slots.clone();
                return Err(Violation::DeletesOwner { node: node.name.clone(), slots });
            }
            if report.id != id {
                return Err(Violation::DeletesListed { node: node.name.clone() });
            }
        }
        if let Some(primary) = owner_it_copies(&node.name, seen) {
            return Err(Violation::DeletesCopy { node: node.name.clone(), primary });
        }
    }
    Ok(())
}

/// The owner of slots whose data the member `name` holds, if that owner was not heard.
fn owner_it_copies(name: &str, seen: &Observed) -> Option<NodeId> {
    let report = seen.members.get(name)?.report()?;
    let primary = report.nodes.own()?.primary?;
    let owned = report.line(primary).is_some_and(|line| !line.slots.is_empty());
    let heard = seen.reports().any(|(_, other)| other.id == primary);
    (owned && !heard && report.info.keys > 0).then_some(primary)
}

/// Only a member that is marked Leaving and follows no owner of slots that is silent, one that is still joining and holds no key, or a replica of a dead primary that
/// never had its data or that had none; it owns nothing in any view and nobody replicates it.
fn check_reset(node: &NodeRef, id: NodeId, seen: &Observed) -> Result<(), Violation> {
    let member = seen.members.get(&node.name);
    let leaving = member.is_some_and(|member| member.spec.lifecycle == Lifecycle::Leaving);
    let copyless = member.and_then(|member| member.report()).is_some_and(|report| {
        let primary = report.nodes.own().and_then(|line| line.primary);
        let of_dead = primary.is_some_and(|primary| {
            let is_gone = |other: &Member| other.verified_dead() || other.was_reset();
            seen.members.values().any(|other| other.id() == Some(primary) && is_gone(other))
        });
        let no_copy = !may_hold_data(report);
        let had_none = lines(seen).all(|line| Some(line.id) != primary || line.slots.is_empty());
        of_dead && (no_copy || had_none)
    });
    // A replica of an owner that does not answer may be what its shard goes on from.
    let needed =
        member.and_then(|member| member.report()).and_then(|it| it.nodes.own()?.primary).is_some_and(|id| {
            let owns = lines(seen).any(|line| line.id == id && !line.slots.is_empty());
            owns && !seen.reports().any(|(_, report)| report.id == id)
        });
    let joining = member.is_some_and(|member| {
        member.spec.lifecycle == Lifecycle::Joining && member.report().is_some_and(|it| it.info.keys == 0)
    });
    let used = lines(seen).any(|line| (line.id == id && !line.slots.is_empty()) || line.primary == Some(id));
    // One that answers under another ID was reset already.
    let reset = member.is_some_and(|member| member.recorded_id.is_some_and(|recorded| recorded != id));
    if ((leaving && !needed) || copyless || joining || reset) && !used {
        Ok(())
    } else {
        Err(Violation::ResetsUsed { node: node.name.clone() })
    }
}

/// A replica with a data set of whatever age: what it holds may be all that is left. One that loads or copies another holds
/// none.
fn may_hold_data(report: &NodeReport) -> bool {
    let copying = report.info.loading || report.info.link.as_ref().is_none_or(|link| link.sync_in_progress);
    let counted = report.info.link.as_ref().is_some_and(|link| link.offset.0 > 1);
    !copying && (counted || report.info.keys > 0)
}

/// Only slots that the giver alone owns, to a primary.
fn check_migration(from: NodeId, to: NodeId, slots: &SlotSet, seen: &Observed) -> Result<(), Violation> {
    let other = own_lines(seen).find(|line| line.id != from && line.slots.intersects(slots));
    if let Some(line) = other {
        return Err(Violation::SlotsOwned { slots: line.slots.intersection(slots), owner: line.id });
    }
    let open = seen.reports().flat_map(|(_, report)| report.migrations.iter().flatten());
    let mut open = open.filter(|job| job.state.is_open());
    if let Some(job) = open.find(|job| job.source == Some(to) || job.target == Some(from)) {
        return Err(Violation::MovesBothWays { job: job.slots.clone() });
    }
    let primary = own_lines(seen).any(|line| line.id == to && line.flags.primary);
    if primary && from != to { Ok(()) } else { Err(Violation::WrongReceiver { id: to }) }
}

fn check_forget(id: NodeId, seen: &Observed) -> Result<(), Violation> {
    let used = seen.reports().any(|(_, report)| report.id == id)
        || lines(seen).any(|line| line.id == id && !line.slots.is_empty())
        || own_lines(seen).any(|line| line.primary == Some(id));
    if used { Err(Violation::ForgetsUsed { id }) } else { Ok(()) }
}

/// A primary that is proved dead; by vote also one that does not answer and that a majority of slot owners calls failed. Its
/// successor follows it and holds data: an empty one would empty the whole shard (measured on 9.1.2).
fn check_failover(kind: FailoverKind, on: &Target, from: NodeId, seen: &Observed) -> Result<(), Violation> {
    let member = seen.members.values().find(|member| member.id() == Some(from));
    let silent = !seen.reports().any(|(_, report)| report.id == from);
    let dead = silent && member.is_some_and(Member::may_be_succeeded);
    let by_vote = kind == FailoverKind::Force && silent && failed_for_most(from, seen);
    if kind == FailoverKind::Planned {
        return Ok(());
    }
    if !dead && !by_vote {
        return Err(Violation::DeposesLiving { id: from });
    }
    let successor = seen.members.get(&on.node.name).and_then(Member::report);
    let follows =
        successor.and_then(|report| report.nodes.own()).is_some_and(|own| own.primary == Some(from));
    if follows && successor.is_some_and(may_hold_data) {
        Ok(())
    } else {
        Err(Violation::PromotesEmpty { node: on.node.name.clone(), id: from })
    }
}

/// It answers, leaves, owns nothing and is followed by nobody in any view, and each slot is owned by another that answers, by
/// that one's own account, and none is moving: whatever keys it holds, others serve their slots.
fn leaves_nothing(member: &Member, id: NodeId, pod_uid: &str, seen: &Observed) -> bool {
    let answers = member.report().is_some_and(|report| report.id == id)
        && member.pod.as_ref().is_some_and(|pod| pod.uid == pod_uid);
    let used = lines(seen).any(|line| line.primary == Some(id) || (line.id == id && !line.slots.is_empty()));
    let others = own_lines(seen).filter(|line| line.id != id && line.flags.primary);
    let owned: SlotSet = others.flat_map(|line| line.slots.ranges().iter().copied()).collect();
    let leaves = member.spec.lifecycle == Lifecycle::Leaving;
    leaves && answers && !used && owned.len() == SLOT_COUNT && !seen.slots_are_moving()
}

fn failed_for_most(id: NodeId, seen: &Observed) -> bool {
    let owners: BTreeSet<NodeId> =
        lines(seen).filter(|line| !line.slots.is_empty()).map(|line| line.id).collect();
    let flagging = seen.reports().filter(|(_, report)| {
        owners.contains(&report.id) && report.line(id).is_some_and(|line| line.flags.fail)
    });
    flagging.count() > owners.len() / 2
}

/// Only the Pod of a member that does not answer the operator and that nobody else hears either, while a replica of it
/// is there to take over; or one of no use that keeps keys of what others own.
fn check_end_pod(id: NodeId, pod_uid: &str, seen: &Observed) -> Result<(), Violation> {
    let member = seen.members.values().find(|member| member.id() == Some(id));
    let silent = member.is_some_and(|member| {
        member.report().is_none() && member.pod.as_ref().is_some_and(|pod| pod.uid == pod_uid)
    });
    let heard = lines(seen).any(|line| line.id == id && !line.flags.fail && !line.flags.pfail);
    let followed = own_lines(seen).any(|line| line.primary == Some(id));
    let taken = own_lines(seen).map(|line| line.slots.len()).fold(0, u16::saturating_add);
    let owes = member.is_none_or(|member| member.recorded_slots > 0) && taken < SLOT_COUNT;
    let idle = !owes && !lines(seen).any(|line| line.id == id || line.primary == Some(id));
    let dispensable = member.is_some_and(|member| leaves_nothing(member, id, pod_uid, seen));
    if dispensable || (silent && !heard && (followed || idle)) {
        Ok(())
    } else {
        Err(Violation::DeposesLiving { id })
    }
}

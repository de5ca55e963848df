//! Questions that several rules ask of an observation.

use std::collections::{BTreeMap, BTreeSet};

use shared::api::Lifecycle;
use shared::slots::{SLOT_COUNT, SlotSet};
use shared::valkey::report::NodeReport;
use shared::valkey::types::{NodeId, NodeLine};

use crate::action::{Decision, NodeRef, Pace, Target, Wait};
use crate::model::{Answer, Container, Desired, Member, Observed};
use crate::words::Reason;

/// The member as the target of a command; `None` unless its server answered in this tick and its Pod is on record: no
/// command changes a node before both its ID and its Pod's UID are recorded.
pub(crate) fn target(member: &Member) -> Option<Target> {
    let pod = member.pod.as_ref().filter(|pod| is_recorded(member, pod))?;
    Some(Target { node: node_ref(member), pod_uid: pod.uid.clone(), id: member.report()?.id, ip: pod.ip? })
}

fn is_recorded(member: &Member, pod: &crate::model::Pod) -> bool {
    member.recorded_pod.as_ref().is_some_and(|record| record.uid == pod.uid)
}

/// The member as an object.
pub(crate) fn node_ref(member: &Member) -> NodeRef {
    NodeRef { name: member.name.clone(), uid: member.uid.clone() }
}

/// Slots that any view shows as owned by `id`.
pub(crate) fn slots_of(seen: &Observed, id: NodeId) -> SlotSet {
    seen.lines_of(id).flat_map(|line| line.slots.ranges().iter().copied()).collect()
}

/// Every slot owner that any view shows, with all slots that any view gives it.
pub(crate) fn owners(seen: &Observed) -> BTreeMap<NodeId, SlotSet> {
    let mut owners: BTreeMap<NodeId, SlotSet> = BTreeMap::new();
    // Views are ordered by ID and mostly agree: what repeats the view before it says nothing new.
    let mut before: &[NodeLine] = &[];
    for (_, report) in seen.reports() {
        for (number, line) in report.nodes.iter().enumerate().filter(|(_, line)| !line.slots.is_empty()) {
            let repeated = before.get(number).is_some_and(|it| it.id == line.id && it.slots == line.slots);
            if !repeated {
                let known = owners.entry(line.id).or_default();
                *known = known.union(&line.slots);
            }
        }
        before = &report.nodes;
    }
    owners
}

/// Slots that no view shows as owned. They may be somebody's as long as a member is unknown.
pub(crate) fn unowned(seen: &Observed) -> SlotSet {
    without_owner(&owners(seen))
}

/// Slots that none of these owners has.
pub(crate) fn without_owner(owners: &BTreeMap<NodeId, SlotSet>) -> SlotSet {
    let owned: SlotSet = owners.values().flat_map(|slots| slots.ranges().iter().copied()).collect();
    SlotSet::all().difference(&owned)
}

/// Slots that answering primaries claim for themselves.
pub(crate) fn claimed(seen: &Observed) -> SlotSet {
    let own = seen.reports().filter_map(|(_, report)| report.myself());
    own.flat_map(|line| line.slots.ranges().iter().copied()).collect()
}

/// Slots that members of the shard `index` own in any view.
pub(crate) fn slots_of_shard(seen: &Observed, index: u16) -> SlotSet {
    let owners = owners(seen);
    let members = seen.staying().filter(|member| member.shard_index() == index);
    let of_members = members.filter_map(|member| owners.get(&member.id()?));
    of_members.flat_map(|slots| slots.ranges().iter().copied()).collect()
}

/// Answering members that replicate `id`.
pub(crate) fn followers(seen: &Observed, id: NodeId) -> impl Iterator<Item = (&Member, &NodeReport)> {
    seen.reports().filter(move |(_, report)| report.myself().and_then(|line| line.primary) == Some(id))
}

/// Whether any answering member other than itself lists `id`.
pub(crate) fn listed_by_others(seen: &Observed, id: NodeId) -> bool {
    seen.reports().any(|(_, report)| report.id != id && report.line(id).is_some())
}

/// Live members by the scheduling index of their shard: deletion not asked for, not proved dead.
pub(crate) fn live_by_shard(seen: &Observed) -> BTreeMap<u16, Vec<&Member>> {
    let mut shards: BTreeMap<u16, Vec<&Member>> = BTreeMap::new();
    for member in seen.staying().filter(|member| !member.verified_dead()) {
        shards.entry(member.shard_index()).or_default().push(member);
    }
    shards
}

/// Of `candidates` the one whose machine, then zone, carries the fewest of `primaries`, then the lowest name: so that
/// no machine holds a majority of primaries where that can be avoided.
pub(crate) fn least_crowded<'a>(candidates: &[&'a Member], primaries: &[&Member]) -> Option<&'a Member> {
    let machine = |member: &Member| member.pod.as_ref().and_then(|pod| pod.machine.clone());
    let zone = |member: &Member| member.pod.as_ref().and_then(|pod| pod.zone.clone());
    let crowd = |member: &Member| {
        let on = primaries
            .iter()
            .filter(|other| machine(other).is_some() && machine(other) == machine(member))
            .count();
        let near =
            primaries.iter().filter(|other| zone(other).is_some() && zone(other) == zone(member)).count();
        (on, near, member.name.clone())
    };
    candidates.iter().copied().min_by_key(|member| crowd(member))
}

/// Why a member's Pod does not run yet, in the real words; `None` when it runs or its death is proved.
pub(crate) fn pod_wait(member: &Member) -> Option<Wait> {
    let name = &member.name;
    let wait = |reason, message| Some(Wait { reason, message });
    if member.verified_dead() || member.pod_running() {
        return None;
    }
    let Some(pod) = &member.pod else {
        return wait(Reason::PodsStarting, format!("{name}: the Pod is being created"));
    };
    if let Some(words) = &pod.unschedulable {
        let message = format!("bootstrap blocked: pod cannot be scheduled: {name}: {words}");
        return wait(Reason::PodUnschedulable, message);
    }
    match &pod.container {
        Container::Waiting { reason, message } if is_start_failure(reason) => {
            wait(Reason::PodNotStarting, format!("{name}: {reason}: {message}"))
        }
        Container::Waiting { .. } | Container::Running | Container::Ended(_) => {
            wait(Reason::PodsStarting, format!("{name}: the Pod is starting"))
        }
    }
}

/// Words by which the kubelet says that a container will not start without a change (Kubernetes 1.27 to 1.36).
fn is_start_failure(reason: &str) -> bool {
    matches!(
        reason,
        "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "CreateContainerConfigError"
            | "CreateContainerError"
            | "RunContainerError"
    )
}

/// What is said of a member whose Pod is being deleted while its server still runs.
pub(crate) fn terminating_words(member: &Member) -> String {
    format!("the Pod of {} is being deleted; its place is filled when its process has ended", member.name)
}

/// Why a running member cannot be used yet: it is silent, or refuses our password.
pub(crate) fn answer_wait(member: &Member) -> Option<Wait> {
    let name = &member.name;
    match &member.answer {
        Answer::Silent(words) if member.pod_running() => {
            Some(Wait { reason: Reason::NodesStarting, message: format!("{name} does not answer: {words}") })
        }
        Answer::AuthRejected => Some(Wait {
            reason: Reason::AuthRejected,
            message: format!(
                "{name} refuses the operator's password; compare the auth Secret with what the node loaded"
            ),
        }),
        Answer::Said(_) if !member.pod.as_ref().is_some_and(|pod| is_recorded(member, pod)) => Some(Wait {
            reason: Reason::NodesStarting,
            message: format!("the Pod of {name} is not on record yet"),
        }),
        Answer::Silent(_) | Answer::Said(_) | Answer::NotAsked => None,
    }
}

/// IDs that a member may know without being foreign: those of all members of the cluster.
pub(crate) fn strangers(member: &Member, ours: &BTreeSet<NodeId>) -> Vec<NodeId> {
    member
        .report()
        .map(|report| {
            let known = report.nodes.iter().filter(|line| !line.flags.handshake).map(|line| line.id);
            known.filter(|id| !ours.contains(id)).collect()
        })
        .unwrap_or_default()
}

/// Active members whose names DNS does not answer for yet: a client that is sent to one of them fails.
fn unpublished(seen: &Observed) -> Option<Wait> {
    let hidden = |member: &&Member| {
        let found = member.pod.as_ref().is_some_and(|pod| pod.published);
        member.spec.lifecycle == Lifecycle::Active && member.report().is_some() && !found
    };
    let names: Vec<&str> = seen.staying().filter(hidden).map(|member| member.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        let message = format!("waiting until the Service shows {} as ready", names.join(", "));
        Wait { reason: Reason::Publishing, message }
    })
}

/// The decision of a tick in which no rule acts.
pub(crate) fn idle(seen: &Observed, want: &Desired, mut waits: Vec<Wait>) -> Decision {
    if let Some(words) = want.template.as_ref().err().or(want.acl.as_ref().err()) {
        waits.push(Wait { reason: Reason::ReferencesUnresolved, message: words.clone() });
    }
    let lost = unowned(seen).len();
    let said = |wait: &Wait| matches!(wait.reason, Reason::ShardLost | Reason::PrimaryUnreachable);
    if lost > 0 && seen.unknown().is_none() && !waits.iter().any(said) {
        let message = format!("{lost} slots have no owner in any view; their keys are lost");
        waits.push(Wait { reason: Reason::ShardLost, message });
    }
    let nobodys = SLOT_COUNT - claimed(seen).len();
    if lost == 0 && nobodys > 0 && waits.is_empty() && seen.unknown().is_none() && !seen.slots_are_moving() {
        let message =
            format!("{nobodys} slots are claimed by nobody; the views do not agree about their owner");
        waits.push(Wait { reason: Reason::ClusterForming, message });
    }
    let going: Vec<&str> =
        seen.members.values().filter(|member| member.deleting).map(|member| member.name.as_str()).collect();
    if !going.is_empty() {
        let message = format!("waiting until the Pods of {} are gone", going.join(", "));
        waits.push(Wait { reason: Reason::Retiring, message });
    }
    waits.extend(unpublished(seen));
    waits.extend(want.notices.iter().cloned());
    // The cause before what follows from it: with passwords that no node knows nobody is heard.
    waits.sort_by_key(|wait| wait.reason != Reason::AuthSecretChanged);
    if let Some(words) = seen.objects.foreign() {
        waits.push(Wait { reason: Reason::ObjectNotOwned, message: words.to_owned() });
    }
    match waits.first().cloned() {
        None => Decision::settled(),
        Some(Wait { reason, message }) => {
            let brief = waits.iter().all(|wait| wait.reason.is_brief());
            let pace = if brief { Pace::Quick } else { Pace::Wait };
            Decision { action: None, reason, message, waits, pace }
        }
    }
}

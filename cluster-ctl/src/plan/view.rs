//! Questions that several rules ask of an observation.

use std::collections::BTreeMap;

use shared::api::Lifecycle;
use shared::slots::SLOT_COUNT;
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

use super::picture::Picture;
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

/// Whether a member of the shard `index` that stays owns slots in any view.
pub(crate) fn shard_owns(seen: &Picture<'_>, index: u16) -> bool {
    seen.staying_of(index).filter_map(Member::id).any(|id| !seen.slots_of(id).is_empty())
}

/// How many primaries each machine and zone carries.
#[derive(Default)]
pub(crate) struct Crowd<'a> {
    machines: BTreeMap<&'a str, usize>,
    zones: BTreeMap<&'a str, usize>,
}

impl<'a> Crowd<'a> {
    /// Counts one more primary.
    pub(crate) fn add(&mut self, primary: &'a Member) {
        if let Some(machine) = machine(primary) {
            *self.machines.entry(machine).or_default() += 1;
        }
        if let Some(zone) = zone(primary) {
            *self.zones.entry(zone).or_default() += 1;
        }
    }

    /// Of `candidates` the one whose machine, then zone, carries the fewest primaries, then the lowest name: so that no
    /// machine holds a majority of primaries where that can be avoided.
    pub(crate) fn least<'m>(&self, candidates: impl IntoIterator<Item = &'m Member>) -> Option<&'m Member> {
        let count = |counts: &BTreeMap<&str, usize>, place: Option<&str>| {
            place.and_then(|place| counts.get(place)).copied().unwrap_or(0)
        };
        candidates.into_iter().min_by_key(|member| {
            let member: &'m Member = member;
            (count(&self.machines, machine(member)), count(&self.zones, zone(member)), member.name.as_str())
        })
    }
}

impl<'a> FromIterator<&'a Member> for Crowd<'a> {
    fn from_iter<I: IntoIterator<Item = &'a Member>>(primaries: I) -> Self {
        let mut crowd = Self::default();
        primaries.into_iter().for_each(|primary| crowd.add(primary));
        crowd
    }
}

/// Why `member` is not introduced to anybody now: the others drop it as long as one of them bans it.
pub(crate) fn ban_wait(seen: &Observed, member: &Member) -> Option<Wait> {
    member.id().filter(|id| seen.banned.contains(id)).map(|_| {
        let message = format!(
            "{} was forgotten a moment ago; it is introduced when nobody refuses any more to know it, a minute after that",
            member.name
        );
        Wait { reason: Reason::ForgottenLately, message }
    })
}

/// The machine that its Pod runs on.
pub(super) fn machine(member: &Member) -> Option<&str> {
    member.pod.as_ref()?.machine.as_deref()
}

fn zone(member: &Member) -> Option<&str> {
    member.pod.as_ref()?.zone.as_deref()
}

/// A Pod that has not started for so long, seconds, is worth a person's look, although nothing says that it cannot.
const SLOW_START_SECONDS: i64 = 120;

/// Why a member's Pod does not run yet, in the real words; `None` when it runs or its death is proved.
pub(crate) fn pod_wait(seen: &Observed, member: &Member) -> Option<Wait> {
    let name = &member.name;
    let wait = |reason, message| Some(Wait { reason, message });
    if member.verified_dead() || member.pod_running() {
        return None;
    }
    let Some(pod) = &member.pod else {
        return wait(Reason::PodsStarting, format!("{name}: the Pod is being created"));
    };
    if let Some(words) = &pod.unschedulable {
        let what = if seen.formed() { "" } else { "bootstrap blocked: " };
        let message = format!("{what}pod cannot be scheduled: {name}: {words}");
        return wait(Reason::PodUnschedulable, message);
    }
    match &pod.container {
        Container::Waiting { reason, message } if is_start_failure(reason) => {
            wait(Reason::PodNotStarting, format!("{name}: {reason}: {message}"))
        }
        Container::Waiting { .. } if seen.now.seconds_since(member.created) >= SLOW_START_SECONDS => {
            let message = format!(
                "{name}: the Pod has not started for {SLOW_START_SECONDS} s; its events say why: kubectl describe pod {name}"
            );
            wait(Reason::PodNotStarting, message)
        }
        Container::Waiting { .. } | Container::Running | Container::Ended(_) => {
            wait(Reason::PodsStarting, format!("{name}: the Pod is starting"))
        }
    }
}

/// Words by which the kubelet says that a container will not start without a change (Kubernetes 1.27 to 1.36).
pub(super) fn is_start_failure(reason: &str) -> bool {
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

/// IDs that some view lists by more than a greeting and that are no member's, ordered.
pub(crate) fn strangers(seen: &Observed) -> Vec<NodeId> {
    let known = seen.lines().filter(|line| !line.flags.handshake).map(|line| line.id);
    let mut strangers: Vec<NodeId> = known.filter(|id| seen.member_by_id(*id).is_none()).collect();
    strangers.dedup();
    strangers
}

/// The first ID that `report` lists by more than a greeting and that is no member's.
pub(crate) fn stranger(seen: &Picture<'_>, report: &NodeReport) -> Option<NodeId> {
    let knows = |id: &&NodeId| report.line(**id).is_some_and(|line| !line.flags.handshake);
    seen.strangers().iter().find(knows).copied()
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

/// Silence shorter than this, milliseconds, is what one lost reply or a busy machine looks like: it is not told.
const BRIEF_SILENCE_MILLIS: i64 = 10_000;

/// Active members that own nothing, are not heard, and may live: what ends that, and what a person can do. Owners are
/// spoken of by the rules that replace them.
fn unheard_copies(seen: &Picture<'_>, want: &Desired) -> Vec<Wait> {
    let silent = seen.silent().iter().filter(|member| {
        let owns = member.id().is_some_and(|id| !seen.slots_of(id).is_empty());
        member.is_unknown() && !member.deleting && member.spec.lifecycle == Lifecycle::Active && !owns
    });
    let seconds = want.patience.node_loss_millis / 1000;
    let wait = |member: &&Member| {
        let name = &member.name;
        let what = match &member.pod {
            Some(pod) if pod.deleting => return None,
            Some(_) if member.pod_running() && member.silent_millis < BRIEF_SILENCE_MILLIS => return None,
            Some(_) => "does not answer".to_owned(),
            None => "lost its Pod, and nothing proves that its process has ended".to_owned(),
        };
        let message = format!(
            "{name} {what}; it is replaced when it has been missed for {seconds} s, or when its death is confirmed with the annotation {}",
            shared::names::ANNOTATION_CONFIRMED_DEAD
        );
        Some(Wait { reason: Reason::ReplicaMissing, message })
    };
    silent.filter_map(wait).collect()
}

/// Members of which nobody will hear again and that some view lists. The engine soon brings the views together, and nothing
/// that Kubernetes watches tells of it.
fn unforgotten(seen: &Picture<'_>) -> Option<Wait> {
    let listed =
        |member: &&&Member| !member.deleting && member.id().is_some_and(|id| seen.listed_by_others(id));
    let names: Vec<&str> = seen.gone().iter().filter(listed).map(|member| member.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        let message =
            format!("waiting until no view gives {} slots or replicas, to forget it", names.join(", "));
        Wait { reason: Reason::ForgettingNode, message }
    })
}

/// The decision of a tick in which no rule acts.
pub(crate) fn idle(seen: &Picture<'_>, want: &Desired, mut waits: Vec<Wait>) -> Decision {
    if let Some(words) = want.template.as_ref().err().or(want.acl.as_ref().err()) {
        waits.push(Wait { reason: Reason::ReferencesUnresolved, message: words.clone() });
    }
    let lost = seen.unowned().len();
    let said = |wait: &Wait| matches!(wait.reason, Reason::ShardLost | Reason::PrimaryUnreachable);
    if lost > 0 && seen.unknown().is_none() && !waits.iter().any(said) {
        let message = format!("{lost} slots have no owner in any view; their keys are lost");
        waits.push(Wait { reason: Reason::ShardLost, message });
    }
    let nobodys = SLOT_COUNT - seen.claimed().len();
    if lost == 0 && nobodys > 0 && waits.is_empty() && seen.unknown().is_none() && !seen.slots_are_moving() {
        let message =
            format!("{nobodys} slots are claimed by nobody; the views do not agree about their owner");
        waits.push(Wait { reason: Reason::ClusterForming, message });
    }
    let going: Vec<&str> = seen.deleting().iter().map(|member| member.name.as_str()).collect();
    if !going.is_empty() {
        let message = format!("waiting until the Pods of {} are gone", going.join(", "));
        waits.push(Wait { reason: Reason::Retiring, message });
    }
    waits.extend(unforgotten(seen));
    waits.extend(unheard_copies(seen, want));
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

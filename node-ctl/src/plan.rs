//! Decides the next step for one node: pure, total, the same input gives the same step.
//!
//! Owns the order of steps and every rule about when nothing may be touched. Knows no client and no clock.

use shared::api::{Lifecycle, PodRecord};

use crate::observe::{ConfigMapView, Observed, Owner, PodView, Seen};

/// Grace of a pod whose whole cluster goes, in seconds: nobody is left to hand over to.
pub const NO_USE_GRACE: u32 = 1;

/// The one next step.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Put our finalizer on the node, before anything of it exists.
    AddFinalizer,
    /// Record the Pod's UID, or its end.
    RecordPod(PodRecord),
    /// Create the node's ConfigMap.
    CreateConfigMap,
    /// Create the node's Pod, record its UID, and release it.
    CreatePod,
    /// Take our finalizer off the Pod: it is recorded and may go.
    ReleasePod {
        /// Of exactly this UID.
        uid: String,
    },
    /// Delete the node's Pod.
    DeletePod {
        /// Of exactly this UID.
        uid: String,
        /// Grace in seconds; the Pod's own when absent.
        grace: Option<u32>,
    },
    /// Delete the node's ConfigMap.
    DeleteConfigMap {
        /// Of exactly this UID.
        uid: String,
    },
    /// Let the node go.
    RemoveFinalizer,
    /// Touch nothing, and say why.
    Refuse(Refusal),
    /// Something is under way that an event will end.
    Wait(Wait),
    /// Nothing is left to do.
    Rest,
}

/// Why nothing may be touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A name that the node needs is taken; the words name the object and its owner.
    NameTaken(String),
    /// A second Pod of this node exists: its UID is not the recorded one.
    SecondPod(String),
    /// The node names no `ValkeyCluster` as its controller.
    NoCluster,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The Pod was told to stop and has not gone yet.
    PodTerminating,
    /// The ConfigMap was told to go and has not gone yet.
    ConfigMapTerminating,
    /// The cluster goes: no new objects.
    ClusterDeleting,
}

impl Step {
    /// Whether the step may only be taken on an observation that was read live: a cache can be behind our own writes.
    pub const fn needs_live(&self) -> bool {
        match self {
            Self::CreateConfigMap
            | Self::CreatePod
            | Self::DeletePod { .. }
            | Self::RemoveFinalizer
            | Self::Refuse(_) => true,
            // Preconditions on the write itself are enough, or nothing is written.
            Self::AddFinalizer
            | Self::RecordPod(_)
            | Self::ReleasePod { .. }
            | Self::DeleteConfigMap { .. }
            | Self::Wait(_)
            | Self::Rest => false,
        }
    }

    /// The step in one word, for metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::AddFinalizer => "add_finalizer",
            Self::RecordPod(_) => "record_pod",
            Self::CreateConfigMap => "create_config_map",
            Self::CreatePod => "create_pod",
            Self::ReleasePod { .. } => "release_pod",
            Self::DeletePod { .. } => "delete_pod",
            Self::DeleteConfigMap { .. } => "delete_config_map",
            Self::RemoveFinalizer => "remove_finalizer",
            Self::Refuse(_) => "refuse",
            Self::Wait(_) => "wait",
            Self::Rest => "rest",
        }
    }
}

/// Decides the next step.
pub fn plan(seen: &Observed) -> Step {
    if !seen.finalizer {
        // While it is being deleted a finalizer cannot be added, and without ours nothing is left to us.
        return if seen.deleting { Step::Rest } else { Step::AddFinalizer };
    }
    if let Some(record) = record(seen) {
        return Step::RecordPod(record);
    }
    if let Some(uid) = release(seen) {
        return Step::ReleasePod { uid };
    }
    if seen.deleting { take_away(seen) } else { make(seen) }
}

/// The record as it should be, where it is not so yet: the UID once, then the end once.
fn record(seen: &Observed) -> Option<PodRecord> {
    let Seen::Ours(pod) = &seen.pod else { return None };
    let recorded = seen.record.as_ref();
    if recorded.is_some_and(|record| record.uid != pod.uid || record.terminated_at.is_some()) {
        return None;
    }
    let end = pod.end.as_ref();
    if recorded.is_some() && end.is_none() {
        return None;
    }
    Some(PodRecord {
        uid: pod.uid.clone(),
        terminated_at: end.map(|end| end.at.clone()),
        exit_code: end.map(|end| end.exit_code),
        reason: end.and_then(|end| end.reason.clone()),
        message: end.and_then(|end| end.message.clone()),
    })
}

/// The Pod that our finalizer holds for no reason any more: the record is there, or the node goes with whatever is its.
fn release(seen: &Observed) -> Option<String> {
    let Seen::Ours(pod) = &seen.pod else { return None };
    let recorded = seen.record.as_ref().is_some_and(|record| record.uid == pod.uid);
    (pod.held && (recorded || seen.deleting)).then(|| pod.uid.clone())
}

/// A node that lives.
fn make(seen: &Observed) -> Step {
    match (&seen.pod, &seen.record) {
        (Seen::Ours(pod), Some(record)) if pod.uid != record.uid => {
            Step::Refuse(Refusal::SecondPod(pod.uid.clone()))
        }
        (Seen::Ours(pod), _) => keep(seen, pod),
        // It existed: never again, whoever has the name now.
        (_, Some(_)) => Step::Rest,
        (_, None) if seen.lifecycle != Lifecycle::Joining => Step::Rest,
        (Seen::Foreign(whose), None) => Step::Refuse(Refusal::NameTaken(whose.clone())),
        (Seen::Absent, None) => create(seen),
    }
}

/// The Pod is there. Its ConfigMap is re-created if it is missing, for the pod's mount is refreshed from it.
fn keep(seen: &Observed, pod: &PodView) -> Step {
    let lives = pod.end.is_none() && !pod.terminating;
    let cluster_stays = matches!(seen.owner, Owner::Present | Owner::Unread);
    if lives && cluster_stays && seen.config_map == Seen::Absent { Step::CreateConfigMap } else { Step::Rest }
}

/// The Pod was never there.
fn create(seen: &Observed) -> Step {
    match seen.owner {
        Owner::Nobody => return Step::Refuse(Refusal::NoCluster),
        Owner::Deleting | Owner::Gone => return Step::Wait(Wait::ClusterDeleting),
        Owner::Present | Owner::Unread => {}
    }
    match &seen.config_map {
        Seen::Absent => Step::CreateConfigMap,
        Seen::Foreign(whose) => Step::Refuse(Refusal::NameTaken(whose.clone())),
        Seen::Ours(ConfigMapView { terminating: true, .. }) => Step::Wait(Wait::ConfigMapTerminating),
        Seen::Ours(_) => Step::CreatePod,
    }
}

/// A node that goes: its Pod, then its ConfigMap, then the finalizer.
fn take_away(seen: &Observed) -> Step {
    match (&seen.pod, &seen.config_map) {
        (Seen::Ours(PodView { terminating: true, .. }), _) => Step::Wait(Wait::PodTerminating),
        (Seen::Ours(pod), _) => {
            let cluster_goes = matches!(seen.owner, Owner::Deleting | Owner::Gone);
            // Retired and reset, it has nothing to hand over.
            let of_no_use = cluster_goes || seen.lifecycle == Lifecycle::Leaving;
            Step::DeletePod { uid: pod.uid.clone(), grace: of_no_use.then_some(NO_USE_GRACE) }
        }
        // One that is terminating already needs nothing of us, and must not hold up the node.
        (_, Seen::Ours(ConfigMapView { uid, terminating: false })) => {
            Step::DeleteConfigMap { uid: uid.clone() }
        }
        _ => Step::RemoveFinalizer,
    }
}

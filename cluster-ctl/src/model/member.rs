//! One member as a tick saw it: its `ValkeyNode`, its Pod, and what its server said. Draws only what follows from it alone.

use std::net::IpAddr;

use shared::api::{JoinType, Lifecycle, ValkeyNodeSpec};
use shared::valkey::info::Role;
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

use super::Millis;

/// One `ValkeyNode`, its Pod, and what the server in it said.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a member")]
pub struct Member {
    /// Name of the `ValkeyNode` and of its Pod.
    pub name: String,
    /// UID of the `ValkeyNode`.
    pub uid: String,
    /// Its spec.
    pub spec: ValkeyNodeSpec,
    /// How it joins; `None` for a member of the first bootstrap.
    pub join: Option<JoinType>,
    /// Its deletion was asked for.
    pub deleting: bool,
    /// When it was created.
    pub created: Millis,
    /// Which attempt at starting this node is, from 0.
    pub start_attempt: u32,
    /// A person confirmed by annotation that the recorded Pod is dead.
    pub confirmed_dead: bool,
    /// The Kubernetes node on which its Pod runs, or ran last.
    pub machine: Option<String>,
    /// What became of that machine proves that the recorded Pod's process has ended.
    pub ended_with_machine: bool,
    /// Set-once record: the Valkey node ID.
    pub recorded_id: Option<NodeId>,
    /// Set-once record: the Pod that was made for it.
    pub recorded_pod: Option<PodRecord>,
    /// Slots that it owned when it last answered, by its record; 0 for a replica.
    pub recorded_slots: u16,
    /// The Pod as the Kubernetes API shows it.
    pub pod: Option<Pod>,
    /// The recorded Pod is gone, confirmed by a live read. Proves nothing about its process.
    pub pod_vanished: bool,
    /// What its server said in this tick.
    pub answer: Answer,
    /// For how long its running server has not answered, as far as this process has seen it, milliseconds.
    pub silent_millis: i64,
    /// For how long it has been [leaving with keys](Member::leaves_with_keys), likewise, milliseconds.
    pub keys_kept_millis: i64,
}

/// The set-once record of a node's Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRecord {
    /// UID of the Pod.
    pub uid: String,
    /// How its container ended, once seen.
    pub ended: Option<Ending>,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Exit code.
    pub exit_code: i32,
    /// Kubernetes' word: `Error`, `OOMKilled`, `Completed`, …
    pub reason: String,
    /// Last words of the process or of Kubernetes.
    pub message: String,
    /// When, by the kubelet's clock, where that is known.
    pub at: Option<Millis>,
}

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a Pod")]
pub struct Pod {
    /// UID.
    pub uid: String,
    /// IP, once it has one.
    pub ip: Option<IpAddr>,
    /// The Kubernetes node that it was bound to.
    pub machine: Option<String>,
    /// The zone of that Kubernetes node, where known.
    pub zone: Option<String>,
    /// Its deletion was asked for.
    pub deleting: bool,
    /// Its deletion should have ended by now, grace and all: its kubelet does not act.
    pub overdue: bool,
    /// State of the container `valkey`.
    pub container: Container,
    /// The scheduler's words while it cannot place the pod.
    pub unschedulable: Option<String>,
    /// Readiness gate: a member that clients may be sent to.
    pub joined: bool,
    /// An EndpointSlice of the Service shows it as ready: clients find it by its name.
    pub published: bool,
    /// Value of the role label.
    pub role_label: Option<String>,
}

/// State of the container `valkey`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Container {
    /// Not started; reason and message where Kubernetes gives them.
    Waiting {
        /// Kubernetes' word: `ContainerCreating`, `ErrImagePull`, …
        reason: String,
        /// Its message.
        message: String,
    },
    /// Running, never restarted.
    Running,
    /// Ended.
    Ended(Ending),
}

/// What a node said in this tick.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Everything that was asked.
    Said(Box<NodeReport>),
    /// Nothing: no Pod with an IP to ask.
    NotAsked,
    /// No answer within the limits, in these words. Says nothing about life or death.
    Silent(String),
    /// It answered and refused our password: not the same as silence.
    AuthRejected,
}

impl Member {
    /// What its server said.
    pub fn report(&self) -> Option<&NodeReport> {
        match &self.answer {
            Answer::Said(report) => Some(report),
            Answer::NotAsked | Answer::Silent(_) | Answer::AuthRejected => None,
        }
    }

    /// Its Valkey node ID: recorded, or as it says itself.
    pub fn id(&self) -> Option<NodeId> {
        self.recorded_id.or_else(|| self.report().map(|report| report.id))
    }

    /// IP of its Pod.
    pub fn ip(&self) -> Option<IpAddr> {
        self.pod.as_ref().and_then(|pod| pod.ip)
    }

    /// How its process ended, when that is proved: by the record, or by the container of the recorded Pod.
    pub fn ending(&self) -> Option<&Ending> {
        if let Some(ending) = self.recorded_pod.as_ref().and_then(|record| record.ended.as_ref()) {
            return Some(ending);
        }
        match &self.pod.as_ref()?.container {
            // Kubernetes writes this reason for a container that it has lost sight of: no proof of an end.
            Container::Ended(ending) if ending.reason != "ContainerStatusUnknown" => Some(ending),
            Container::Ended(_) | Container::Waiting { .. } | Container::Running => None,
        }
    }

    /// Its process is proved dead: seen to have ended, proved by what became of its machine, or confirmed by a person.
    /// Neither silence nor an absent Pod proves it; and what still answers is not dead, whatever anybody says.
    pub fn verified_dead(&self) -> bool {
        let confirmed = self.confirmed_dead || self.ended_with_machine;
        self.ending().is_some() || (confirmed && self.report().is_none())
    }

    /// It may run and did not answer in this tick.
    pub fn is_unheard(&self) -> bool {
        self.is_unknown() && self.pod.is_some() && !self.pod_vanished
    }

    /// It may live, or may have lived until a moment ago, and did not answer in this tick, whatever became of its Pod.
    pub fn is_unknown(&self) -> bool {
        self.recorded_id.is_some() && self.report().is_none() && !self.verified_dead()
    }

    /// It answers under another ID than the one on record: it was reset, and nobody will ever answer under that one again.
    pub fn was_reset(&self) -> bool {
        self.recorded_id.is_some_and(|id| self.report().is_some_and(|report| report.id != id))
    }

    /// Another may take over what it owned: it is proved dead, or its server was started anew in the very Pod and has
    /// forgotten who it was. One that leaves is reset on purpose once it owns nothing, and a view that was away may still
    /// show slots of it.
    pub fn may_be_succeeded(&self) -> bool {
        self.verified_dead() || (self.was_reset() && self.spec.lifecycle != Lifecycle::Leaving)
    }

    /// It leaves, owns no slot by its own account, and is a primary with keys: the engine refuses to reset such a one (8.1,
    /// 9.1).
    pub fn leaves_with_keys(&self) -> bool {
        let kept = self.report().filter(|report| self.recorded_id == Some(report.id)).is_some_and(|report| {
            let owns = report.myself().is_none_or(|line| !line.slots.is_empty());
            report.info.role == Role::Primary && report.info.keys > 0 && !owns
        });
        kept && !self.deleting && self.spec.lifecycle == Lifecycle::Leaving
    }

    /// Its container runs and its Pod has an IP.
    pub fn pod_running(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.container == Container::Running && pod.ip.is_some())
    }

    /// Scheduling index of its shard.
    pub fn shard_index(&self) -> u16 {
        u16::try_from(self.spec.shard_index).unwrap_or(u16::MAX)
    }
}

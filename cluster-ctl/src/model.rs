//! What a tick has seen and what is wanted: plain data, and questions that follow from it alone.
//!
//! Owns no client, clock or randomness: times are fields, fresh names are passed in. Partial by design: a node that
//! did not answer is there with what is known of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use shared::api::{JoinType, Lifecycle, ValkeyNodeSpec};
use shared::valkey::info::Role;
use shared::valkey::report::NodeReport;
use shared::valkey::types::{Epoch, NodeId, NodeLine};

use crate::action::Wait;

/// Milliseconds since the Unix epoch, by the operator's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub i64);

impl Millis {
    /// Whole seconds from `earlier` to here; 0 when the clock went backwards.
    pub fn seconds_since(self, earlier: Self) -> i64 {
        (self.0 - earlier.0).max(0) / 1000
    }
}

/// The size of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Number of shards, 1 to 16384.
    pub shards: u16,
    /// Replicas besides the primary, per shard.
    pub replicas: u16,
}

impl Shape {
    /// Members of a whole cluster of this size.
    pub fn members(self) -> usize {
        usize::from(self.shards) * self.per_shard()
    }

    /// Members of one whole shard.
    pub fn per_shard(self) -> usize {
        usize::from(self.replicas) + 1
    }
}

/// What the tick saw.
#[derive(Clone, Debug)]
pub struct Observed {
    /// When it was seen.
    pub now: Millis,
    /// The `ValkeyCluster`, without its spec.
    pub cluster: Cluster,
    /// Service, auth Secret and ACL ConfigMap.
    pub objects: Objects,
    /// Every `ValkeyNode` of the cluster, by name.
    pub members: BTreeMap<String, Member>,
    /// Pacing only: the primary whose role was last given to a replica, and when that was asked for.
    pub last_failover: Option<(NodeId, Millis)>,
}

/// The `ValkeyCluster` as an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Object UID.
    pub uid: String,
    /// Its deletion was asked for.
    pub deleting: bool,
    /// It carries our finalizer.
    pub finalizer: bool,
    /// Size recorded in `status.targetSpec`, while a transition lasts.
    pub snapshot: Option<Shape>,
}

/// Whether a cluster-level object is there and ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// There, with our controller owner reference.
    Ours,
    /// Not there.
    Missing,
    /// There, and somebody else's: neither adopted nor overwritten. Holds what is wrong, for a person.
    Foreign(String),
}

/// The cluster-level objects that a node needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objects {
    /// The headless Service.
    pub service: Ownership,
    /// The Secret with the system users' passwords.
    pub auth: Ownership,
    /// The ConfigMap with users.acl.
    pub acl: Ownership,
}

impl Objects {
    /// The first object that is somebody else's, in the words for a person.
    pub fn foreign(&self) -> Option<&str> {
        [&self.service, &self.auth, &self.acl].into_iter().find_map(|object| match object {
            Ownership::Foreign(words) => Some(words.as_str()),
            Ownership::Ours | Ownership::Missing => None,
        })
    }

    /// Whether all are there and ours.
    pub fn ready(&self) -> bool {
        [&self.service, &self.auth, &self.acl].into_iter().all(|object| *object == Ownership::Ours)
    }
}

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

    /// Its container runs and its Pod has an IP.
    pub fn pod_running(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.container == Container::Running && pod.ip.is_some())
    }

    /// Scheduling index of its shard.
    pub fn shard_index(&self) -> u16 {
        u16::try_from(self.spec.shard_index).unwrap_or(u16::MAX)
    }
}

impl Observed {
    /// Whether any member has left `Joining`: the durable record that bootstrap is over.
    pub fn formed(&self) -> bool {
        self.members.values().any(|member| member.spec.lifecycle != Lifecycle::Joining)
    }

    /// Members whose deletion was not asked for.
    pub fn staying(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|member| !member.deleting)
    }

    /// What every answering member said, with its member.
    pub fn reports(&self) -> impl Iterator<Item = (&Member, &NodeReport)> {
        self.members.values().filter_map(|member| member.report().map(|report| (member, report)))
    }

    /// A member that may run and did not answer in this tick: what it owns and whom it lists is then unknown, so that
    /// nothing may be concluded from what the others do not show.
    pub fn unheard(&self) -> Option<&Member> {
        self.staying().find(|member| {
            let may_run = member.recorded_id.is_some() && member.pod.is_some() && !member.pod_vanished;
            may_run && member.report().is_none() && !member.verified_dead()
        })
    }

    /// A member that may live, or may have lived until a moment ago, and that was not heard in this tick, whatever became
    /// of its Pod: as long as there is one, slots that nobody shows as owned may be its, and no view is complete.
    pub fn unknown(&self) -> Option<&Member> {
        self.members.values().find(|member| {
            member.recorded_id.is_some() && member.report().is_none() && !member.verified_dead()
        })
    }

    /// Whether a slot migration that can still change something is under way.
    pub fn slots_are_moving(&self) -> bool {
        self.reports().any(|(_, report)| report.migrations.iter().flatten().any(|job| job.state.is_open()))
    }

    /// The member with this Valkey node ID.
    pub fn member_by_id(&self, id: NodeId) -> Option<&Member> {
        self.members.values().find(|member| member.id() == Some(id))
    }

    /// IDs of all members.
    pub fn ids(&self) -> BTreeSet<NodeId> {
        self.members.values().filter_map(Member::id).collect()
    }

    /// Every view's line of `id`.
    pub fn lines_of(&self, id: NodeId) -> impl Iterator<Item = &NodeLine> {
        self.reports().filter_map(move |(_, report)| report.line(id))
    }

    /// The highest configuration epoch in any view.
    pub fn highest_epoch(&self) -> Epoch {
        self.reports().flat_map(|(_, report)| &report.nodes).map(|line| line.epoch).max().unwrap_or_default()
    }

    /// Whether the role of primary `id` was given away less than `millis` ago.
    pub fn handed_over_lately(&self, id: NodeId, millis: i64) -> bool {
        self.last_failover.is_some_and(|(from, at)| from == id && (self.now.0 - at.0).abs() < millis)
    }

    /// Whether any answering member knows a peer, one in handshake included.
    pub fn any_peer_known(&self) -> bool {
        self.reports().any(|(_, report)| report.nodes.len() > 1)
    }
}

/// A replica's state relative to the primary that it should follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Link up, nothing in progress, following exactly that primary.
    Linked {
        /// Bytes of the primary's stream that it lacks, as far as two reads of one tick can tell; 0 when none.
        behind: u64,
    },
    /// Attached, still copying or waiting for the link.
    Copying,
    /// Not attached to that primary.
    Elsewhere,
}

impl Sync {
    /// Good enough to count as a replica: linked, and at most [`MAX_LAG`] behind.
    pub fn is_synced(self) -> bool {
        matches!(self, Self::Linked { behind } if behind <= MAX_LAG)
    }
}

/// Bytes that a replica may lack and still count as synced: a coordinated hand-over waits for the rest itself.
pub const MAX_LAG: u64 = 1024 * 1024;

/// How far the answering `replica` is with `primary`.
pub fn sync_state(replica: &NodeReport, primary: &NodeReport) -> Sync {
    let follows = replica.info.role == Role::Replica
        && replica.myself().and_then(|line| line.primary) == Some(primary.id);
    match &replica.info.link {
        _ if !follows => Sync::Elsewhere,
        // `up` only after the first full sync; the offset alone proves nothing (1 before it, measured on 9.1.2).
        Some(link) if link.up && !link.sync_in_progress && !replica.info.loading => {
            let behind = primary.info.offset.0.saturating_sub(link.offset.0);
            Sync::Linked { behind: u64::try_from(behind).unwrap_or(0) }
        }
        _ => Sync::Copying,
    }
}

/// What is wanted, and what the plan may use to get there.
#[derive(Clone, Debug)]
pub struct Desired {
    /// Size in the live spec.
    pub shape: Shape,
    /// What a node made now would be, without its shard; or the words of what does not resolve.
    pub template: Result<ValkeyNodeSpec, String>,
    /// Whether users.acl can be rendered; or the words of what does not resolve.
    pub acl: Result<(), String>,
    /// What a person should know of the access to the nodes: a refused users.acl, a deleted auth Secret.
    pub notices: Vec<Wait>,
    /// Why no node may be made now in a formed cluster.
    pub hold: Option<Wait>,
    /// Verdict on the TLS Secret; `Ok` too for a cluster without TLS.
    pub tls: Result<(), String>,
    /// The certificate in a valid TLS Secret; `None` without one, and without TLS.
    pub certificate: Option<Certificate>,
    /// Fresh node names, free in this observation, in random order.
    pub names: Vec<String>,
    /// How patient the plan is.
    pub patience: Patience,
    /// How much may move at once.
    pub limits: Limits,
}

/// The certificate of a TLS cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// When it expires.
    pub expires: Millis,
    /// What will give trouble with it, gravest first.
    pub doubts: Vec<Wait>,
    /// Why no server can be started with it: one of the doubts.
    pub unusable: Option<Wait>,
}

/// How much may move at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slots of one migration, at least 1.
    pub slot_batch: u16,
    /// Estimated bytes of one migration.
    pub slot_batch_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { slot_batch: 1024, slot_batch_bytes: 8 << 20 }
    }
}

/// Limits after which waiting changes its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// First retry of a node that did not start with a current spec, seconds; doubles up to half an hour.
    pub start_retry_seconds: i64,
    /// Before a hand-over is asked for again, milliseconds: above the engine's limit of 5 s for one.
    pub hand_over_millis: i64,
    /// Before a promotion of a dead primary's replica is sent again, milliseconds.
    pub promotion_millis: i64,
    /// A silent primary that is not proved dead is succeeded by force, or its Pod ended, after this time, milliseconds.
    pub failover_millis: i64,
    /// A silent member that a majority flags `fail` counts as missing after this time, milliseconds.
    pub node_loss_millis: i64,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            start_retry_seconds: 30,
            hand_over_millis: 6_000,
            promotion_millis: 1_000,
            failover_millis: 20_000,
            node_loss_millis: 30_000,
        }
    }
}

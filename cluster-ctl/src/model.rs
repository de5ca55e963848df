//! What a tick has seen and what is wanted: plain data, and questions that follow from it alone.
//!
//! Owns no client, clock or randomness: times are fields, fresh names are passed in. Partial by design: a node that
//! did not answer is there with what is known of it.

mod member;
mod sync;
mod views;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};

use shared::api::Lifecycle;
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

pub use member::{Answer, Container, Ending, Member, Pod, PodRecord};
pub use sync::{MAX_LAG, Sync, sync_state};
use views::Views;
pub use wanted::{Certificate, Desired, Limits, Patience};

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
    /// Every `ValkeyNode` of the cluster, by name. What their servers said is digested already: it stays as it is.
    pub members: BTreeMap<String, Member>,
    /// Pacing only: the primary whose role was last given to a replica, and when that was asked for.
    pub last_failover: Option<(NodeId, Millis)>,
    /// Pacing only: members that the others were told to forget so lately that they still drop them when they hear of them.
    pub banned: BTreeSet<NodeId>,
    views: Views,
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

impl Observed {
    /// What was seen, with what the views of `members` say together.
    pub fn new(now: Millis, cluster: Cluster, objects: Objects, members: BTreeMap<String, Member>) -> Self {
        let views = Views::of(&members);
        Self { now, cluster, objects, members, last_failover: None, banned: BTreeSet::new(), views }
    }

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
        self.staying().find(|member| member.is_unheard())
    }

    /// A member that may live, or may have lived until a moment ago, and that was not heard in this tick, whatever became
    /// of its Pod: as long as there is one, slots that nobody shows as owned may be its, and no view is complete.
    pub fn unknown(&self) -> Option<&Member> {
        self.members.values().find(|member| member.is_unknown())
    }

    /// Whether a slot migration that can still change something is under way.
    pub fn slots_are_moving(&self) -> bool {
        self.reports().any(|(_, report)| report.migrations.iter().flatten().any(|job| job.state.is_open()))
    }

    /// IDs of all members.
    pub fn ids(&self) -> BTreeSet<NodeId> {
        self.members.values().filter_map(Member::id).collect()
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

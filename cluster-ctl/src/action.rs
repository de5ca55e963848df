//! What a plan may decide: one action, the waits beside it, and when to look again. Data only.
//!
//! An action names everything that its execution needs (identities, slots, expected state), so that the executor
//! makes no choice of its own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use shared::api::{JoinType, ValkeyNodeSpec};
use shared::slots::SlotSet;
use shared::valkey::commands::FailoverKind;
use shared::valkey::types::{Epoch, NodeId};

use crate::model::Shape;
use crate::words::Reason;

/// A `ValkeyNode` object, by identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeRef {
    /// Name.
    pub name: String,
    /// UID: a node of the same name made later is another node.
    pub uid: String,
}

/// A member to send a command to: the identity that the plan saw, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The object.
    pub node: NodeRef,
    /// UID of the Pod that answered.
    pub pod_uid: String,
    /// Valkey node ID that answered; checked again on the connection that carries the command.
    pub id: NodeId,
    /// IP that answered.
    pub ip: IpAddr,
}

/// A `ValkeyNode` to be created.
#[derive(Clone, Debug, PartialEq)]
pub struct NewNode {
    /// Name, drawn at random and passed in.
    pub name: String,
    /// Spec.
    pub spec: ValkeyNodeSpec,
    /// Join type; `None` in the first bootstrap.
    pub join: Option<JoinType>,
    /// Which attempt at starting this node, from 0.
    pub start_attempt: u32,
}

/// One mutating step of one kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Record the size of a transition in `status.targetSpec`.
    TakeSnapshot {
        /// The size.
        shape: Shape,
    },
    /// Create `ValkeyNode`s. Allowed only while the live set of the cluster's nodes is exactly `known`.
    CreateNodes {
        /// The nodes.
        nodes: Vec<NewNode>,
        /// UIDs of all nodes that the plan knew.
        known: BTreeSet<String>,
    },
    /// `CLUSTER SET-CONFIG-EPOCH` on fresh nodes that know nobody.
    SetConfigEpochs {
        /// Node and its epoch, each epoch once.
        epochs: Vec<(Target, Epoch)>,
    },
    /// `CLUSTER ADDSLOTSRANGE` on primaries-to-be that know nobody outside the plan.
    AssignSlots {
        /// Node and its slots, disjoint.
        slots: Vec<(Target, SlotSet)>,
    },
    /// `CLUSTER MEET` of each of `others` from `seed`, each asked first who it is and whether it is alone.
    Meet {
        /// The member that sends.
        seed: Target,
        /// The members to introduce.
        others: Vec<Target>,
    },
    /// `CLUSTER REPLICATE`.
    Replicate {
        /// Replica and the ID of its primary.
        links: Vec<(Target, NodeId)>,
    },
    /// Lifecycle Joining → Active.
    Activate {
        /// The nodes.
        nodes: Vec<NodeRef>,
        /// Whether this is bootstrap's last step.
        forms_cluster: bool,
        /// Whether the join type is cleared: that of a new shard is.
        clear_join_type: bool,
    },
    /// Take a member from the published ones (readiness gate False), then lifecycle → Leaving.
    MarkLeaving {
        /// The node.
        node: NodeRef,
    },
    /// `CLUSTER RESET HARD` on a Leaving member that owns nothing: it drops its data and knows nobody any more.
    Reset {
        /// The member.
        on: Target,
    },
    /// `CLUSTER MIGRATESLOTS`: one atomic job from giver to receiver.
    MigrateSlots {
        /// The primary that owns them.
        source: Target,
        /// The primary that receives them.
        target: Target,
        /// The slots.
        slots: SlotSet,
    },
    /// `CLUSTER FORGET` of a departed or dead member on every live node.
    Forget {
        /// Whom.
        id: NodeId,
        /// On which nodes.
        on: Vec<Target>,
    },
    /// `CLUSTER FAILOVER` on one replica.
    Failover {
        /// Which form.
        kind: FailoverKind,
        /// The replica.
        on: Target,
        /// The primary that it takes over from.
        from: NodeId,
    },
    /// Delete `ValkeyNode`s; their Pods go with them.
    DeleteNodes {
        /// The nodes.
        nodes: Vec<NodeRef>,
        /// Whether the whole cluster goes: then owned slots do not hold a node back.
        cluster_deleted: bool,
    },
    /// Delete the Pod of a member that is silent, or that leaves and cannot be reset, with its normal grace: so that its
    /// process is proved to have ended.
    EndPod {
        /// The node.
        node: NodeRef,
        /// UID of its Pod.
        pod_uid: String,
        /// The member: a primary with a copy, one that owns nothing and that everybody has forgotten, or one that leaves with
        /// keys of what others own.
        id: NodeId,
    },
    /// Remove our finalizers from the auth Secret and, last, from the `ValkeyCluster`.
    ReleaseCluster,
}

impl Action {
    /// Its kind: log field, metric label and `status.lastAction.kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::TakeSnapshot { .. } => "TakeSnapshot",
            Self::CreateNodes { .. } => "CreateNodes",
            Self::SetConfigEpochs { .. } => "SetConfigEpochs",
            Self::AssignSlots { .. } => "AssignSlots",
            Self::Meet { .. } => "Meet",
            Self::Replicate { .. } => "Replicate",
            Self::Activate { .. } => "Activate",
            Self::MarkLeaving { .. } => "MarkLeaving",
            Self::Reset { .. } => "Reset",
            Self::MigrateSlots { .. } => "MigrateSlots",
            Self::Forget { .. } => "Forget",
            Self::Failover { .. } => "Failover",
            Self::DeleteNodes { .. } => "DeleteNodes",
            Self::EndPod { .. } => "EndPod",
            Self::ReleaseCluster => "ReleaseCluster",
        }
    }

    /// Whether all that it does is done to objects of Kubernetes, where the next plan sees it when the watch has brought it.
    pub fn is_on_objects(&self) -> bool {
        matches!(
            self,
            Self::CreateNodes { .. }
                | Self::Activate { .. }
                | Self::MarkLeaving { .. }
                | Self::DeleteNodes { .. }
                | Self::EndPod { .. }
        )
    }

    /// Whether it is `other` once more: names of new nodes are drawn anew each time.
    pub fn repeats(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::CreateNodes { known, .. }, Self::CreateNodes { known: before, .. }) => known == before,
            _ => self == other,
        }
    }

    /// The nodes it is about, for logs and `status.lastAction.on`.
    pub fn on(&self) -> Vec<&str> {
        fn names<'a, T: 'a>(items: &'a [(Target, T)]) -> Vec<&'a str> {
            items.iter().map(|(target, _)| target.node.name.as_str()).collect()
        }
        match self {
            Self::TakeSnapshot { .. } | Self::ReleaseCluster => Vec::new(),
            Self::CreateNodes { nodes, .. } => nodes.iter().map(|node| node.name.as_str()).collect(),
            Self::SetConfigEpochs { epochs } => names(epochs),
            Self::AssignSlots { slots } => names(slots),
            Self::Meet { others, .. } => others.iter().map(|other| other.node.name.as_str()).collect(),
            Self::Replicate { links } => names(links),
            Self::Activate { nodes, .. } | Self::DeleteNodes { nodes, .. } => {
                nodes.iter().map(|node| node.name.as_str()).collect()
            }
            Self::MarkLeaving { node } | Self::EndPod { node, .. } => vec![node.name.as_str()],
            Self::MigrateSlots { source, target, .. } => {
                vec![source.node.name.as_str(), target.node.name.as_str()]
            }
            Self::Forget { on, .. } => on.iter().map(|target| target.node.name.as_str()).collect(),
            Self::Reset { on } | Self::Failover { on, .. } => vec![on.node.name.as_str()],
        }
    }
}

/// Something that the plan waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    /// The word.
    pub reason: Reason,
    /// What is awaited, why, and what a person can do where that is something.
    pub message: String,
}

/// When to look again. A watch event comes before any of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// At once: there is work.
    Now,
    /// Shortly: the engine finishes within moments.
    Quick,
    /// After the setting `waitRequeue`.
    Wait,
    /// After the setting `heartbeat`: nothing is expected.
    Heartbeat,
}

/// What a tick does.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "an unread decision is neither executed nor shown"]
pub struct Decision {
    /// The one mutating step, if any.
    pub action: Option<Action>,
    /// The word for what is going on.
    pub reason: Reason,
    /// What a person reads about it.
    pub message: String,
    /// Everything that holds something up.
    pub waits: Vec<Wait>,
    /// When to look again.
    pub pace: Pace,
}

impl Decision {
    /// A step to be taken now.
    pub fn act(action: Action, reason: Reason, message: impl Into<String>) -> Self {
        Self { action: Some(action), reason, message: message.into(), waits: Vec::new(), pace: Pace::Now }
    }

    /// Nothing to do but wait.
    pub fn wait(reason: Reason, message: impl Into<String>, pace: Pace) -> Self {
        let message = message.into();
        Self { action: None, reason, message: message.clone(), waits: vec![Wait { reason, message }], pace }
    }

    /// Nothing left to do.
    pub fn settled() -> Self {
        Self {
            action: None,
            reason: Reason::Settled,
            message: "the cluster is as specified".to_owned(),
            waits: Vec::new(),
            pace: Pace::Heartbeat,
        }
    }

    /// The same decision with a wait that is shown before all others; without an action it is what is going on.
    pub fn in_front(mut self, wait: Wait) -> Self {
        if self.action.is_none() {
            self.reason = wait.reason;
            self.message.clone_from(&wait.message);
        }
        self.waits.retain(|other| *other != wait);
        self.waits.insert(0, wait);
        self
    }

    /// The same decision with further waits shown beside it.
    pub fn with_waits(mut self, waits: impl IntoIterator<Item = Wait>) -> Self {
        self.waits.extend(waits);
        self
    }
}

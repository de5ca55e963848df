//! The words under which a wait, a step, a refusal or a loss is known everywhere: condition reason, event reason, log
//! field and metric label are this one word.
//!
//! Owns the vocabulary only; which word applies is decided in `plan` and `status`.

use std::fmt;

/// One word for what happens, why it waits or what went wrong. Bounded, so that it can be a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Nothing is left to do.
    Settled,
    /// All slots are served with every replica in sync.
    Serving,
    /// Config, image and roles resolve.
    Resolved,
    /// The spec of a transition is being recorded.
    SpecSnapshot,
    /// `ValkeyNode`s are being created.
    CreatingNodes,
    /// Pods exist but are not Running with an IP yet.
    PodsStarting,
    /// A pod cannot be scheduled; the message has the scheduler's words.
    PodUnschedulable,
    /// A container cannot start (image pull, crash, bad directive); the message has the real words.
    PodNotStarting,
    /// A member's Pod is being deleted while its server still runs.
    PodTerminating,
    /// A member that Kubernetes gave up and that still runs is being replaced.
    Evacuating,
    /// The server in a Running pod does not answer yet.
    NodesStarting,
    /// A node holds keys, slots or peers that are not of this cluster's plan; it is replaced, never merged.
    ForeignNode,
    /// A node refuses the operator's password.
    AuthRejected,
    /// Config epochs are being set.
    SettingEpochs,
    /// Slots are being assigned.
    AssigningSlots,
    /// Slots that should be free are owned by somebody.
    SlotConflict,
    /// Members are being introduced to each other.
    MeetingNodes,
    /// Members were introduced and are learning of each other.
    NodesMeeting,
    /// A member that the others were told to forget a moment ago is back; it is introduced when they do not drop it again.
    ForgottenLately,
    /// Replicas are being attached to their primaries.
    AttachingReplicas,
    /// Replicas are copying their primary's data.
    ReplicasSyncing,
    /// Every part is there; the engine does not report `cluster_state:ok` yet.
    ClusterForming,
    /// Members become Active.
    CompletingJoin,
    /// The Service does not show every member as ready yet: DNS does not answer for its name.
    Publishing,
    /// A node is being replaced.
    ReplacingNode,
    /// A member of the shard is gone for good and is being forgotten by the others.
    ForgettingNode,
    /// A primary is unhealthy; the engine's own failover is awaited.
    AwaitingFailover,
    /// A primary is unreachable, but not proved dead, and nobody can vote: held for a person.
    PrimaryUnreachable,
    /// A dead primary's replica is being promoted.
    PromotingReplica,
    /// A shard lost every copy of its data.
    ShardLost,
    /// A shard has fewer replicas than asked for, or one of its members is not heard.
    ReplicaMissing,
    /// The number of shards or replicas is being changed, or slots move to an even spread.
    Scaling,
    /// Nodes with an outdated spec are being replaced.
    Rolling,
    /// A member leaves the cluster.
    Retiring,
    /// Slots should move and the running engine cannot move them.
    EngineTooOld,
    /// A slot migration failed; it is tried again after a pause.
    MigrationFailed,
    /// A menu object, role or user does not resolve.
    ReferencesUnresolved,
    /// The TLS Secret failed validation.
    TlsInvalid,
    /// The key in the TLS Secret is not that of its certificate.
    TlsKeyMismatch,
    /// No authority in ca.crt vouches for the certificate in the TLS Secret.
    TlsUntrusted,
    /// The certificate may not be used by clients, which members are to each other.
    TlsNoClientAuth,
    /// The certificate is good for at least 30 days more.
    CertificateFresh,
    /// The certificate expires in less than 30 days.
    CertificateExpiring,
    /// The certificate has expired.
    CertificateExpired,
    /// An object of a name that the cluster needs exists and is not ours.
    ObjectNotOwned,
    /// The auth Secret is gone and no copy that a node accepts is left.
    AuthSecretLost,
    /// The auth Secret holds passwords that the published users.acl does not know: they are not published.
    AuthSecretChanged,
    /// The passwords of the system users are being rotated.
    RotatingPasswords,
    /// The passwords of the system users were rotated.
    PasswordsRotated,
    /// The auth Secret was deleted; the finalizer keeps it usable while the cluster lives.
    AuthSecretDeleted,
    /// A running node refused the rendered users.acl; the last accepted one is published instead.
    AclRefused,
    /// No running node has proved the published users.acl yet: no node is made that could die of it.
    AclUnproved,
    /// The cluster-level objects are being made.
    PreparingObjects,
    /// The cluster is being deleted.
    Deleting,
    /// The operator's view of the Kubernetes API was behind; it looks again.
    StaleView,
    /// Another process of the operator, or an earlier one, recorded an action a moment ago: its commands may still be
    /// under way.
    CommandsUnderWay,
    /// The safety gate refused an action.
    SafetyRefused,
    /// A call failed; it is retried with back-off.
    CallFailed,
}

impl Reason {
    /// The word: CamelCase, stable.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Settled => "Settled",
            Self::Serving => "Serving",
            Self::Resolved => "Resolved",
            Self::SpecSnapshot => "SpecSnapshot",
            Self::CreatingNodes => "CreatingNodes",
            Self::PodsStarting => "PodsStarting",
            Self::PodUnschedulable => "PodUnschedulable",
            Self::PodNotStarting => "PodNotStarting",
            Self::PodTerminating => "PodTerminating",
            Self::Evacuating => "Evacuating",
            Self::NodesStarting => "NodesStarting",
            Self::ForeignNode => "ForeignNode",
            Self::AuthRejected => "AuthRejected",
            Self::SettingEpochs => "SettingEpochs",
            Self::AssigningSlots => "AssigningSlots",
            Self::SlotConflict => "SlotConflict",
            Self::MeetingNodes => "MeetingNodes",
            Self::NodesMeeting => "NodesMeeting",
            Self::ForgottenLately => "ForgottenLately",
            Self::AttachingReplicas => "AttachingReplicas",
            Self::ReplicasSyncing => "ReplicasSyncing",
            Self::ClusterForming => "ClusterForming",
            Self::CompletingJoin => "CompletingJoin",
            Self::Publishing => "Publishing",
            Self::ReplacingNode => "ReplacingNode",
            Self::ForgettingNode => "ForgettingNode",
            Self::AwaitingFailover => "AwaitingFailover",
            Self::PrimaryUnreachable => "PrimaryUnreachable",
            Self::PromotingReplica => "PromotingReplica",
            Self::ShardLost => "ShardLost",
            Self::ReplicaMissing => "ReplicaMissing",
            Self::Scaling => "Scaling",
            Self::Rolling => "Rolling",
            Self::Retiring => "Retiring",
            Self::EngineTooOld => "EngineTooOld",
            Self::MigrationFailed => "MigrationFailed",
            Self::ReferencesUnresolved => "ReferencesUnresolved",
            Self::TlsInvalid => "TlsInvalid",
            Self::TlsKeyMismatch => "TlsKeyMismatch",
            Self::TlsUntrusted => "TlsUntrusted",
            Self::TlsNoClientAuth => "TlsNoClientAuth",
            Self::CertificateFresh => "CertificateFresh",
            Self::CertificateExpiring => "CertificateExpiring",
            Self::CertificateExpired => "CertificateExpired",
            Self::ObjectNotOwned => "ObjectNotOwned",
            Self::AuthSecretLost => "AuthSecretLost",
            Self::AuthSecretChanged => "AuthSecretChanged",
            Self::RotatingPasswords => "RotatingPasswords",
            Self::PasswordsRotated => "PasswordsRotated",
            Self::AuthSecretDeleted => "AuthSecretDeleted",
            Self::AclRefused => "AclRefused",
            Self::AclUnproved => "AclUnproved",
            Self::PreparingObjects => "PreparingObjects",
            Self::Deleting => "Deleting",
            Self::StaleView => "StaleView",
            Self::CommandsUnderWay => "CommandsUnderWay",
            Self::SafetyRefused => "SafetyRefused",
            Self::CallFailed => "CallFailed",
        }
    }

    /// The engine or Kubernetes ends it within moments: worth looking again soon.
    pub fn is_brief(self) -> bool {
        matches!(
            self,
            Self::NodesStarting
                | Self::NodesMeeting
                | Self::ReplicasSyncing
                | Self::ClusterForming
                | Self::Scaling
                | Self::Rolling
                | Self::Retiring
                | Self::PromotingReplica
                | Self::ForgettingNode
        )
    }

    /// Something holds progress up that time alone may not end: it fills `status.message` and, as a change, an event.
    pub fn is_obstacle(self) -> bool {
        self.is_trouble()
            || matches!(
                self,
                Self::PodUnschedulable
                    | Self::PodNotStarting
                    | Self::ReferencesUnresolved
                    | Self::TlsInvalid
                    | Self::TlsKeyMismatch
                    | Self::TlsUntrusted
                    | Self::AuthSecretDeleted
                    | Self::AclRefused
                    | Self::AclUnproved
                    | Self::ObjectNotOwned
                    | Self::SlotConflict
                    | Self::EngineTooOld
                    | Self::MigrationFailed
                    | Self::SafetyRefused
                    | Self::CallFailed
            )
    }

    /// Something is broken or lost: the condition Degraded.
    pub fn is_trouble(self) -> bool {
        matches!(
            self,
            Self::ForeignNode
                | Self::AuthRejected
                | Self::AuthSecretLost
                | Self::AuthSecretChanged
                | Self::AwaitingFailover
                | Self::PrimaryUnreachable
                | Self::PromotingReplica
                | Self::ShardLost
                | Self::ForgettingNode
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A number of things in words: `1 node`, `3 nodes`. For nouns that take an s.
pub(crate) fn counted<N: fmt::Display + PartialEq + From<u8> + Copy>(number: N, noun: &str) -> String {
    let s = if number == N::from(1) { "" } else { "s" };
    format!("{number} {noun}{s}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_thing_is_told_in_the_singular() {
        let told = [counted(0_usize, "node"), counted(1_u16, "node"), counted(2_u64, "node")];
        assert_eq!(told, ["0 nodes", "1 node", "2 nodes"]);
    }
}

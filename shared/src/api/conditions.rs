//! Conditions of a `ValkeyCluster`: their types, and how a list of them changes.
//!
//! Standard metav1 shape. Owns the rule that the transition time moves only when the status does. Reasons and messages
//! come from whoever decides.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The condition types of a `ValkeyCluster`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// Observed shards, slots and replicas equal the spec, by a majority of views.
    Ready,
    /// Something is being changed towards the spec.
    Progressing,
    /// Something is broken or lost, and data or redundancy may suffer.
    Degraded,
    /// Config, image and roles all exist and combine.
    ReferencesResolved,
    /// The certificate in the Secret is the one that every node serves.
    TlsReady,
    /// Every running node has proved the published ACL revision.
    AclApplied,
    /// The certificate expires in less than 30 days.
    CertificateExpiringSoon,
}

impl ConditionType {
    /// All types, in the order in which they are documented.
    pub const ALL: [Self; 7] = [
        Self::Ready,
        Self::Progressing,
        Self::Degraded,
        Self::ReferencesResolved,
        Self::TlsReady,
        Self::AclApplied,
        Self::CertificateExpiringSoon,
    ];

    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
            Self::ReferencesResolved => "ReferencesResolved",
            Self::TlsReady => "TLSReady",
            Self::AclApplied => "ACLApplied",
            Self::CertificateExpiringSoon => "CertificateExpiringSoon",
        }
    }
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It cannot be told.
    Unknown,
}

impl ConditionStatus {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// Longest message that metav1.Condition allows, in bytes here so that it holds in any encoding.
const MAX_MESSAGE: usize = 32_768;

/// The condition of type `kind` in `conditions`.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

/// Builds a condition that follows `previous`: the transition time is kept when the status is unchanged, otherwise it is
/// `now`. Nothing else of `previous` is kept.
pub fn next(
    previous: &[Condition],
    kind: ConditionType,
    status: ConditionStatus,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) -> Condition {
    let since = find(previous, kind)
        .filter(|old| old.status == status.as_str())
        .map_or_else(|| now.clone(), |old| old.last_transition_time.clone());
    Condition {
        type_: kind.as_str().to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.to_owned(),
        message: cut(message).to_owned(),
        observed_generation: generation,
        last_transition_time: since,
    }
}

/// Puts `condition` into `conditions`, in place of the one of its type. Returns whether anything changed.
pub fn set(conditions: &mut Vec<Condition>, condition: Condition) -> bool {
    match conditions.iter_mut().find(|old| old.type_ == condition.type_) {
        Some(old) if *old == condition => false,
        Some(old) => {
            *old = condition;
            true
        }
        None => {
            conditions.push(condition);
            true
        }
    }
}

/// The longest prefix of `message` that fits and ends between characters.
fn cut(message: &str) -> &str {
    let end = message.floor_char_boundary(MAX_MESSAGE);
    message.get(..end).unwrap_or(message)
}

//! What is wanted, and how patiently and how much at once it is worked towards.

use shared::api::ValkeyNodeSpec;

use super::{Millis, Shape};
use crate::action::Wait;

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

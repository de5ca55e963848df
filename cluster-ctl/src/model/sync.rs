//! How far a replica is with its primary.

use shared::valkey::info::Role;
use shared::valkey::report::NodeReport;

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

//! What one node says in one round trip, as plain data.
//!
//! Owns the shapes of CLUSTER INFO, slot migration jobs and the bundle that a tick reads. Does no I/O and draws no
//! conclusion.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::info::Info;
use super::types::{Epoch, NodeId, NodeLine};
use super::view::View;
use crate::slots::SlotSet;

/// CLUSTER INFO (Valkey 8.1 and 9.1): the answering node's summary of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClusterInfo {
    /// `cluster_state:ok`. A primary says `fail` for the first two seconds of its life whatever it owns.
    pub ok: bool,
    /// Slots that have an owner, 0 to 16384.
    pub slots_assigned: u16,
    /// Assigned slots whose owner is neither `fail?` nor `fail`.
    pub slots_ok: u16,
    /// Slots whose owner is `fail?`.
    pub slots_pfail: u16,
    /// Slots whose owner is `fail`.
    pub slots_fail: u16,
    /// Known nodes, itself and nodes in handshake included.
    pub known_nodes: u32,
    /// Primaries that own at least one slot.
    pub size: u32,
    /// Highest epoch seen.
    pub current_epoch: Epoch,
    /// Its own configuration epoch, or its primary's.
    pub my_epoch: Epoch,
}

/// Which end of a slot migration answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Operation {
    /// The answering node (or its primary) gives the slots away.
    Export,
    /// The answering node (or its primary) receives them.
    Import,
}

/// Where a slot migration job stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum MigrationState {
    /// Running, in the engine's word: `connecting`, `snapshotting`, `waiting-to-pause`, …
    Open(String),
    /// Done; slot ownership moved.
    Success,
    /// Given up; slots stayed. The job's message says why.
    Failed,
    /// Cancelled by a person or the operator.
    Cancelled,
}

impl MigrationState {
    /// Whether the job can still change anything.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }
}

/// One job of CLUSTER GETSLOTMIGRATIONS (since 9.0). The list lives in memory: judge an outcome by slot ownership.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotMigration {
    /// The engine's name of the job; MIGRATESLOTS does not return it.
    pub name: String,
    /// Which end answers.
    pub operation: Operation,
    /// The slots.
    pub slots: SlotSet,
    /// Receiver; `None` on a replica of the target.
    pub target: Option<NodeId>,
    /// Giver; `None` on a replica of the target.
    pub source: Option<NodeId>,
    /// Creation, Unix seconds of the answering node.
    pub created: i64,
    /// Last change of state, Unix seconds of the answering node.
    pub updated: i64,
    /// State.
    pub state: MigrationState,
    /// The engine's words on a failure; empty otherwise.
    pub message: String,
    /// Bytes of replication stream that the target still lacks.
    pub remaining_bytes: u64,
}

/// All that a tick asks of a node, read in one pipeline, so nearly at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// The answering node, from the line of CLUSTER NODES marked `myself`.
    pub id: NodeId,
    /// Its view of the cluster, itself included.
    pub nodes: View,
    /// Its summary.
    pub cluster: ClusterInfo,
    /// INFO.
    pub info: Info,
    /// Slot migration jobs, newest first; `None` when not asked for, on an engine before 9.0, and while loading.
    pub migrations: Option<Vec<SlotMigration>>,
    /// Replicas that it counts to another shard than the primary they follow. Only a young node is asked
    /// ([`YOUNG_SECONDS`]): a node gives every peer that it learns of by gossip a shard of its own, until the peer itself
    /// has told it better, which takes up to half a node timeout.
    pub parted: BTreeSet<NodeId>,
}

/// How long a process counts as young, seconds since its start: much longer than it needs to hear from every peer.
pub const YOUNG_SECONDS: u64 = 60;

impl NodeReport {
    /// Unix seconds by the answering node's own clock, as its jobs' times are.
    pub fn now_seconds(&self) -> i64 {
        i64::try_from(self.info.server_time_usec / 1_000_000).unwrap_or(i64::MAX)
    }

    /// The answering node's own line.
    pub fn myself(&self) -> Option<&NodeLine> {
        self.nodes.own().filter(|line| line.id == self.id).or_else(|| self.line(self.id))
    }

    /// The line of `id`.
    pub fn line(&self, id: NodeId) -> Option<&NodeLine> {
        self.nodes.line(id)
    }
}

/// Replicas among `nodes` that stand in another group of `shards` than their primary.
pub(super) fn parted(nodes: &[NodeLine], shards: &[BTreeSet<NodeId>]) -> BTreeSet<NodeId> {
    let group: BTreeMap<NodeId, usize> = shards
        .iter()
        .enumerate()
        .flat_map(|(number, shard)| shard.iter().map(move |id| (*id, number)))
        .collect();
    let apart = |line: &&NodeLine| {
        let own = group.get(&line.id);
        own.is_some() && line.primary.is_some_and(|primary| group.get(&primary) != own)
    };
    nodes.iter().filter(apart).map(|line| line.id).collect()
}

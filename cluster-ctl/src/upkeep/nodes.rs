//! Status of each `ValkeyNode`: the set-once node ID, and what a person wants to know of it.

use std::sync::Arc;

use futures::StreamExt;
use shared::api::{NodeRole, ValkeyNode, ValkeyNodeStatus};
use shared::valkey::info::Role;

use crate::model::{Member, Observed, sync_state};
use crate::ports::{Kube, KubeError, World};

/// Writes the node IDs that are known and not recorded yet: all of them must be recorded before any command changes a
/// node. Returns whether they are; a node that somebody else has just written is looked at again in the next tick.
pub async fn record_ids<K: Kube>(
    kube: &K,
    world: &World,
    seen: &Observed,
    fan_out: usize,
) -> Result<bool, KubeError> {
    let unrecorded = |node: &ValkeyNode, member: &Member| {
        member.recorded_id.is_none()
            && member.report().is_some()
            && node.status.as_ref().is_none_or(|it| it.node_id.is_none())
    };
    write(kube, world, seen, fan_out, unrecorded).await
}

/// Writes every status that differs.
pub async fn show<K: Kube>(
    kube: &K,
    world: &World,
    seen: &Observed,
    fan_out: usize,
) -> Result<(), KubeError> {
    write(kube, world, seen, fan_out, |_, _| true).await.map(drop)
}

async fn write<K: Kube>(
    kube: &K,
    world: &World,
    seen: &Observed,
    fan_out: usize,
    select: impl Fn(&ValkeyNode, &Member) -> bool,
) -> Result<bool, KubeError> {
    let mut changes = Vec::new();
    for node in &world.nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let Some(member) = seen.members.get(name).filter(|member| select(node, member)) else { continue };
        let wanted = status(seen, member, node.status.as_ref());
        if node.status.as_ref().is_none_or(|have| !same(have, &wanted))
            && wanted != ValkeyNodeStatus::default()
        {
            changes.push((Arc::clone(node), wanted));
        }
    }
    let results: Vec<Result<(), KubeError>> = futures::stream::iter(changes)
        .map(|(node, status)| async move { kube.save_node_status(&node, &status).await })
        .buffer_unordered(fan_out.max(1))
        .collect()
        .await;
    let mut complete = true;
    for result in results {
        match result {
            // A node that went away needs no status.
            Ok(()) | Err(KubeError::NotFound { .. }) => {}
            Err(KubeError::Conflict { .. }) => complete = false,
            Err(error) => return Err(error),
        }
    }
    Ok(complete)
}

/// Our part of a node's status; `pod` is node-ctl's. What a silent node last said stays.
fn status(seen: &Observed, member: &Member, old: Option<&ValkeyNodeStatus>) -> ValkeyNodeStatus {
    let old = old.cloned().unwrap_or_default();
    let Some(report) = member.report() else { return ValkeyNodeStatus { pod: None, ..old } };
    let line = report.myself();
    let primary = line.and_then(|line| line.primary);
    let synced = primary
        .map(|id| seen.answering(id).is_some_and(|(_, primary)| sync_state(report, primary).is_synced()));
    ValkeyNodeStatus {
        node_id: Some(member.recorded_id.unwrap_or(report.id).to_string()),
        pod: None,
        role: Some(match report.info.role {
            Role::Primary => NodeRole::Primary,
            Role::Replica => NodeRole::Replica,
        }),
        shard_id: old.shard_id,
        machine: member.machine.clone().or(old.machine),
        pod_ip: member.ip().map(|ip| ip.to_string()),
        slots: Some(line.map_or(0, |line| i32::from(line.slots.len()))),
        synced: Some(synced.unwrap_or(true)),
    }
}

fn same(have: &ValkeyNodeStatus, wanted: &ValkeyNodeStatus) -> bool {
    ValkeyNodeStatus { pod: None, ..have.clone() } == *wanted
}

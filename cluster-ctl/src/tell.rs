//! What is said of a tick: one log line and one event per action, and each wait when it changes. At rest a heartbeat.

use std::collections::BTreeSet;

use shared::api::ValkeyCluster;
use shared::events::Notice;
use shared::valkey::commands::FailoverKind;
use tracing::{info, warn};

use crate::action::{Action, Decision, Wait};
use crate::memory::Memory;
use crate::model::{Member, Observed};
use crate::passwords::Passwords;
use crate::ports::{ClusterKey, Kube};
use crate::words::Reason;

/// Tells of an action that was taken.
pub async fn tell_action<K: Kube>(
    kube: &K,
    key: &ClusterKey,
    cluster: &ValkeyCluster,
    action: &Action,
    decision: &Decision,
) {
    log_action(key, action, decision);
    // The snapshot is bookkeeping: what follows from it is told.
    if matches!(action, Action::TakeSnapshot { .. }) {
        return;
    }
    let make = if decision.reason.is_trouble() { Notice::warning } else { Notice::normal };
    kube.notify(cluster, &make(decision.reason.as_str(), action.kind(), decision.message.as_str())).await;
}

/// Tells of a decision to wait or to rest, quiet when nothing is new.
pub async fn tell_wait<K: Kube>(
    kube: &K,
    memory: &Memory,
    key: &ClusterKey,
    cluster: &ValkeyCluster,
    seen: &Observed,
    decision: &Decision,
) {
    if decision.reason == Reason::Settled && memory.heartbeat_is_due(key, seen.now) {
        let shards: BTreeSet<u16> = seen.members.values().map(Member::shard_index).collect();
        let (shards, nodes) = (shards.len(), seen.members.len());
        info!(cluster_name = %key.name, namespace = %key.namespace, shards, nodes, "active tick");
    }
    if !memory.is_news(key, decision.reason, &decision.message) {
        return;
    }
    let (reason, detail) = (decision.reason, decision.message.as_str());
    let obstacle = decision.waits.iter().find(|wait| wait.reason.is_obstacle());
    match obstacle {
        Some(wait) => {
            let (reason, detail) = (wait.reason, wait.message.as_str());
            warn!(cluster_name = %key.name, namespace = %key.namespace, %reason, detail, "{}", wait_message(reason, seen.formed()));
            kube.notify(cluster, &Notice::warning(reason.as_str(), "Wait", detail)).await;
        }
        None if reason != Reason::Settled => {
            info!(cluster_name = %key.name, namespace = %key.namespace, %reason, detail, "waiting");
        }
        None => {}
    }
}

/// Tells what is wrong with the certificate of a TLS cluster, each thing once.
pub async fn tell_warnings<K: Kube>(
    kube: &K,
    key: &ClusterKey,
    cluster: &ValkeyCluster,
    warnings: Vec<Wait>,
) {
    for Wait { reason, message } in warnings {
        warn!(cluster_name = %key.name, namespace = %key.namespace, %reason, detail = message, "certificate needs attention");
        kube.notify(cluster, &Notice::warning(reason.as_str(), "CheckCertificate", message)).await;
    }
}

/// Tells of a rotation of passwords: that a phase of it is over, and its end.
pub async fn tell_rotation<K: Kube>(
    kube: &K,
    key: &ClusterKey,
    cluster: &ValkeyCluster,
    before: &Passwords,
    ended: bool,
) {
    let (reason, detail) = if ended {
        (Reason::PasswordsRotated, "the passwords of the system users were rotated")
    } else if before.next.is_some() {
        (
            Reason::RotatingPasswords,
            "every member knows the new passwords of the system users; they are in use",
        )
    } else {
        (Reason::RotatingPasswords, "new passwords of the system users are announced to every member")
    };
    info!(cluster_name = %key.name, namespace = %key.namespace, %reason, detail, "rotating passwords");
    kube.notify(cluster, &Notice::normal(reason.as_str(), "RotatePasswords", detail)).await;
}

fn log_action(key: &ClusterKey, action: &Action, decision: &Decision) {
    let on = action.on().join(",");
    let (kind, reason, detail) = (action.kind(), decision.reason, &decision.message);
    let message = match action {
        Action::Meet { .. } => "cluster meet issued",
        Action::Activate { forms_cluster: true, .. } => "cluster formed, transitioning to Active",
        Action::Activate { .. } => "completed join",
        Action::Failover { kind: FailoverKind::Takeover, .. } => "no quorum — issued TAKEOVER on replica",
        _ => "action",
    };
    info!(cluster_name = %key.name, namespace = %key.namespace, action = kind, %reason, on, detail, "{message}");
}

/// The message that people search for, by reason.
fn wait_message(reason: Reason, formed: bool) -> &'static str {
    match reason {
        Reason::PodUnschedulable if formed => "pod cannot be scheduled",
        Reason::PodUnschedulable => "bootstrap blocked: pod cannot be scheduled",
        Reason::AwaitingFailover => "primary unhealthy but replicas exist, waiting for auto-failover",
        Reason::TlsInvalid => "TLS Secret validation failed, setting cluster Invalid",
        _ => "waiting",
    }
}

//! Deletion of a cluster: its nodes, then our finalizers. No flush, no drain, nothing is created.

use crate::action::{Action, Decision, NodeRef, Pace};
use crate::model::Observed;
use crate::words::{Reason, counted};

/// The steps of a cluster whose deletion was asked for.
pub fn plan(seen: &Observed) -> Decision {
    let nodes: Vec<NodeRef> =
        seen.staying().map(|member| NodeRef { name: member.name.clone(), uid: member.uid.clone() }).collect();
    if !nodes.is_empty() {
        let message = format!("deleting {}", counted(nodes.len(), "node"));
        return Decision::act(
            Action::DeleteNodes { nodes, cluster_deleted: true },
            Reason::Deleting,
            message,
        );
    }
    if !seen.members.is_empty() {
        let names: Vec<&str> = seen.members.keys().map(String::as_str).collect();
        let message = format!("waiting until the Pods of {} are gone", names.join(", "));
        return Decision::wait(Reason::Deleting, message, Pace::Wait);
    }
    if seen.cluster.finalizer {
        return Decision::act(
            Action::ReleaseCluster,
            Reason::Deleting,
            "every node is gone, releasing the cluster",
        );
    }
    Decision::wait(Reason::Deleting, "waiting for finalizers of others", Pace::Heartbeat)
}

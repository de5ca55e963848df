//! What the CRDs' rules and server-side apply make of the operator's writes: set-once records, lifecycle moves, whose
//! field is whose.

use shared::api::{Lifecycle, PodRecord, ValkeyNode, ValkeyNodeStatus};

use super::ApiError;

/// cluster-ctl applies its part of a node's status: everything but `pod`, which stays.
pub fn apply_node_status(node: &mut ValkeyNode, part: &ValkeyNodeStatus) -> Result<(), ApiError> {
    let old = node.status.clone().unwrap_or_default();
    if old.node_id.is_some() && part.node_id != old.node_id {
        return Err(ApiError::Invalid("nodeId is recorded once and never changes".to_owned()));
    }
    node.status = Some(ValkeyNodeStatus { pod: old.pod, ..part.clone() });
    Ok(())
}

/// node-ctl applies its part of a node's status: `pod` alone.
pub fn apply_pod_record(node: &mut ValkeyNode, record: &PodRecord) -> Result<(), ApiError> {
    let status = node.status.get_or_insert_default();
    if let Some(old) = &status.pod {
        if old.uid != record.uid {
            return Err(ApiError::Invalid("the pod's UID is recorded once and never changes".to_owned()));
        }
        if old.terminated_at.is_some() && old != record {
            return Err(ApiError::Invalid(
                "the end of the pod is recorded once and never changes".to_owned(),
            ));
        }
    }
    status.pod = Some(record.clone());
    Ok(())
}

/// A move of the lifecycle.
pub fn move_lifecycle(node: &mut ValkeyNode, to: Lifecycle) -> Result<(), ApiError> {
    if !node.spec.lifecycle.may_become(to) {
        return Err(ApiError::Invalid(format!("lifecycle moves not from {} to {to}", node.spec.lifecycle)));
    }
    node.spec.lifecycle = to;
    Ok(())
}

/// Adds or removes one finalizer. None can be added to an object that is told to go.
pub fn set_finalizer(
    finalizers: &mut Option<Vec<String>>,
    deleting: bool,
    name: &str,
    present: bool,
) -> Result<(), ApiError> {
    let list = finalizers.get_or_insert_default();
    let there = list.iter().any(|entry| entry == name);
    if present && !there {
        if deleting {
            return Err(ApiError::Invalid("no finalizer can be added to an object that goes".to_owned()));
        }
        list.push(name.to_owned());
    }
    if !present {
        list.retain(|entry| entry != name);
    }
    if list.is_empty() {
        *finalizers = None;
    }
    Ok(())
}

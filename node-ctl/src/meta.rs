//! What all objects of a node have in common: labels, owner, and whose an object is.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use shared::api::{ValkeyCluster, ValkeyNode};
use shared::names;

/// Labels of every object of a node. People build policies on them: they never change.
pub fn labels(node: &ValkeyNode) -> BTreeMap<String, String> {
    let mut labels = shard_labels(node);
    labels.insert(names::LABEL_MANAGED_BY.to_owned(), names::MANAGED_BY.to_owned());
    labels.insert(names::LABEL_COMPONENT.to_owned(), names::COMPONENT_NODE.to_owned());
    labels
}

/// Labels that select the pods of the node's cluster.
pub fn cluster_labels(node: &ValkeyNode) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::LABEL_NAME.to_owned(), names::APP_NAME.to_owned()),
        (names::LABEL_INSTANCE.to_owned(), node.spec.cluster_name.clone()),
    ])
}

/// Labels that select the pods of the node's shard, by its scheduling index.
pub fn shard_labels(node: &ValkeyNode) -> BTreeMap<String, String> {
    let mut labels = cluster_labels(node);
    labels.insert(names::LABEL_SHARD_INDEX.to_owned(), node.spec.shard_index.to_string());
    labels
}

/// A plain selector of exactly these labels.
pub fn selector(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels), match_expressions: None }
}

/// Metadata of a new object of the node: name, labels, and the node as its controller.
pub fn owned(node: &ValkeyNode, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: node.namespace(),
        labels: Some(labels(node)),
        owner_references: Some(vec![owner_reference(node)]),
        ..ObjectMeta::default()
    }
}

fn owner_reference(node: &ValkeyNode) -> OwnerReference {
    OwnerReference {
        api_version: ValkeyNode::api_version(&()).into_owned(),
        kind: ValkeyNode::kind(&()).into_owned(),
        name: node.name_any(),
        uid: node.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The controller of an object, if it has one.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Name and UID of the `ValkeyCluster` that controls a node.
pub fn cluster_of(node: &ValkeyNode) -> Option<(&str, &str)> {
    let owner = controller_of(&node.metadata)?;
    let ours = owner.kind == ValkeyCluster::kind(&())
        && owner.api_version == ValkeyCluster::api_version(&())
        && owner.name == node.spec.cluster_name;
    ours.then_some((owner.name.as_str(), owner.uid.as_str()))
}

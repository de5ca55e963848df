//! The objects that cluster-ctl writes, as they should be. Pure construction; comparing and writing is `upkeep`'s.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use shared::api::{ValkeyCluster, ValkeyNode};
use shared::names;

use crate::action::NewNode;
use crate::model::{Cluster, Millis};
use crate::passwords::Passwords;

/// A point in time as the API writes it, to the second.
pub fn time(at: Millis) -> Time {
    Time(Timestamp::from_second(at.0.div_euclid(1000)).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Whether the object's controller is the owner of this UID.
pub fn owned_by(meta: &ObjectMeta, uid: &str) -> bool {
    meta.owner_references.iter().flatten().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

/// Whether our finalizer may be taken off the Secret of this metadata when `cluster` goes: it is the cluster's, or was
/// orphaned and still carries the cluster's labels.
pub fn may_release(meta: &ObjectMeta, cluster: &Cluster) -> bool {
    let orphan = meta.owner_references.iter().flatten().all(|owner| owner.controller != Some(true));
    let has = |key: &str, value: &str| {
        meta.labels.iter().flatten().any(|(name, text)| name == key && text == value)
    };
    owned_by(meta, &cluster.uid)
        || (orphan
            && has(names::LABEL_MANAGED_BY, names::MANAGED_BY)
            && has(names::LABEL_INSTANCE, &cluster.name))
}

/// The controller owner reference to the cluster.
pub fn owner(cluster: &ValkeyCluster) -> OwnerReference {
    OwnerReference {
        api_version: ValkeyCluster::api_version(&()).into_owned(),
        kind: ValkeyCluster::kind(&()).into_owned(),
        name: cluster.metadata.name.clone().unwrap_or_default(),
        uid: cluster.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Labels that every object of a cluster carries.
pub fn labels(cluster: &str) -> BTreeMap<String, String> {
    [
        (names::LABEL_NAME, names::APP_NAME),
        (names::LABEL_INSTANCE, cluster),
        (names::LABEL_MANAGED_BY, names::MANAGED_BY),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

fn meta(cluster: &ValkeyCluster, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: cluster.metadata.namespace.clone(),
        labels: Some(labels(cluster_name(cluster))),
        owner_references: Some(vec![owner(cluster)]),
        ..ObjectMeta::default()
    }
}

fn cluster_name(cluster: &ValkeyCluster) -> &str {
    cluster.metadata.name.as_deref().unwrap_or_default()
}

/// A new `ValkeyNode`.
pub fn node(cluster: &ValkeyCluster, new: &NewNode) -> ValkeyNode {
    let mut meta = meta(cluster, new.name.clone());
    let labels = meta.labels.get_or_insert_default();
    labels.insert(names::LABEL_COMPONENT.to_owned(), names::COMPONENT_NODE.to_owned());
    labels.insert(names::LABEL_SHARD_INDEX.to_owned(), new.spec.shard_index.to_string());
    if let Some(join) = new.join {
        labels.insert(names::LABEL_JOIN_TYPE.to_owned(), join.to_string());
    }
    if new.start_attempt > 0 {
        let attempt = (names::ANNOTATION_START_ATTEMPT.to_owned(), new.start_attempt.to_string());
        meta.annotations = Some(BTreeMap::from([attempt]));
    }
    // From its first moment: node-ctl must never find a node that it could not clean up after.
    meta.finalizers = Some(vec![names::NODE_FINALIZER.to_owned()]);
    ValkeyNode { metadata: meta, spec: new.spec.clone(), status: None }
}

/// The headless Service: where clients start, and the domain of the pods' names. Publishes ready addresses only, so
/// that a client never starts from a lone empty node.
pub fn service(cluster: &ValkeyCluster) -> Service {
    let name = cluster_name(cluster);
    let port = |port_name: &str, port: u16| ServicePort {
        name: Some(port_name.to_owned()),
        port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    };
    let selector = [(names::LABEL_NAME, names::APP_NAME), (names::LABEL_INSTANCE, name)];
    Service {
        metadata: meta(cluster, names::service(name)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            ports: Some(vec![port("valkey", names::CLIENT_PORT), port("valkey-bus", names::BUS_PORT)]),
            selector: Some(
                selector.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            ),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The Secret with the passwords of the two system users, and the line that nodes include.
pub fn auth_secret(cluster: &ValkeyCluster, passwords: &Passwords) -> Secret {
    let mut secret = auth_secret_guard(cluster);
    secret.type_ = Some("Opaque".to_owned());
    secret.data = Some(passwords.data());
    secret.metadata.annotations = Some(passwords.annotations()).filter(|annotations| !annotations.is_empty());
    secret
}

/// The metadata of the auth Secret alone: with the finalizer that keeps it while the cluster lives.
pub fn auth_secret_guard(cluster: &ValkeyCluster) -> Secret {
    let mut meta = meta(cluster, names::auth_secret(cluster_name(cluster)));
    meta.finalizers = Some(vec![names::AUTH_FINALIZER.to_owned()]);
    Secret { metadata: meta, ..Secret::default() }
}

/// The ConfigMap with users.acl.
pub fn acl_config_map(cluster: &ValkeyCluster, users_acl: &str) -> ConfigMap {
    ConfigMap {
        metadata: meta(cluster, names::acl_config_map(cluster_name(cluster))),
        data: Some(BTreeMap::from([(names::KEY_USERS_ACL.to_owned(), users_acl.to_owned())])),
        ..ConfigMap::default()
    }
}

//! What the model and the API server must agree on: every object of the namespace, without what is each side's own.
//!
//! Not compared: UIDs, resourceVersions and times themselves (only whether they are new, changed, set), who manages
//! which field, what a server fills in for kinds that are not ours, and generations of those.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde_json::{Value, json};
use shared::api::{ValkeyCluster, ValkeyNode};
use shared::names;

/// An object as both sides must show it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    /// How many objects of this name there were before it.
    pub(crate) life: usize,
    /// Its version is another than at the last look. Never of a Pod: the scheduler writes to it when it likes.
    pub(crate) changed: bool,
    /// Generation, of our kinds.
    pub(crate) generation: Option<i64>,
    /// It is told to go.
    pub(crate) going: bool,
    /// Grace in seconds.
    pub(crate) grace: Option<i64>,
    /// Finalizers.
    pub(crate) finalizers: Vec<String>,
    /// Labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Annotations.
    pub(crate) annotations: BTreeMap<String, String>,
    /// Owners: kind and name.
    pub(crate) owners: Vec<String>,
    /// What it says.
    pub(crate) content: Value,
}

/// An object before it is known whether it is new or changed: its UID, its version, its shape.
pub(crate) struct Seen {
    /// Kind and name.
    pub(crate) key: String,
    /// UID.
    pub(crate) uid: String,
    /// resourceVersion.
    pub(crate) version: String,
    /// Its shape.
    pub(crate) shape: Shape,
}

/// A kind that is compared.
pub(crate) trait Compared: Resource<DynamicType = ()> {
    /// Its generation counts.
    const GENERATIONS: bool = false;
    /// Nobody else writes to it.
    const QUIET: bool = true;
    /// What it says.
    fn content(&self) -> Value;
}

impl Compared for ValkeyCluster {
    const GENERATIONS: bool = true;
    fn content(&self) -> Value {
        json!({ "spec": self.spec, "status": self.status })
    }
}

impl Compared for ValkeyNode {
    const GENERATIONS: bool = true;
    fn content(&self) -> Value {
        json!({ "spec": self.spec, "status": self.status })
    }
}

impl Compared for Service {
    fn content(&self) -> Value {
        let spec = self.spec.clone().unwrap_or_default();
        let ports: Vec<i32> = spec.ports.unwrap_or_default().iter().map(|port| port.port).collect();
        json!({ "ports": ports, "selector": spec.selector, "ip": spec.cluster_ip })
    }
}

impl Compared for Secret {
    fn content(&self) -> Value {
        json!(self.data)
    }
}

impl Compared for ConfigMap {
    fn content(&self) -> Value {
        json!(self.data)
    }
}

impl Compared for Pod {
    const QUIET: bool = false;
    fn content(&self) -> Value {
        let conditions = self.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let gate = conditions.into_iter().find(|condition| condition.type_ == names::READINESS_GATE);
        json!({ "gate": gate.map(|gate| &gate.status), "machine": self.spec.as_ref().map(|spec| &spec.node_name) })
    }
}

/// What `object` shows.
pub(crate) fn seen<T: Compared>(object: &T) -> Seen {
    let meta: &ObjectMeta = object.meta();
    let owners = meta.owner_references.iter().flatten();
    Seen {
        key: format!("{}/{}", T::kind(&()), meta.name.clone().unwrap_or_default()),
        uid: meta.uid.clone().unwrap_or_default(),
        version: meta.resource_version.clone().unwrap_or_default(),
        shape: Shape {
            life: 0,
            changed: T::QUIET,
            generation: meta.generation.filter(|_| T::GENERATIONS),
            going: meta.deletion_timestamp.is_some(),
            grace: meta.deletion_grace_period_seconds,
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            annotations: meta.annotations.clone().unwrap_or_default(),
            owners: owners.map(|owner| format!("{}/{}", owner.kind, owner.name)).collect(),
            content: object.content(),
        },
    }
}

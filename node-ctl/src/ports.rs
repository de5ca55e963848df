//! What one pass needs of Kubernetes, in its own words. The real one is in `api`; tests put a model behind it.
//!
//! A port does what it is told and decides nothing. Reads are live.

use std::error::Error;
use std::future::Future;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use shared::api::{PodRecord, ValkeyCluster, ValkeyNode};
use shared::events::Notice;

/// The Kubernetes API as a node's pass uses it. Names are in the node's namespace.
pub trait Kube: Send + Sync {
    /// The node, if it is there.
    fn node(&self, of: &Key) -> impl Future<Output = Result<Option<ValkeyNode>, CallError>> + Send;

    /// The Pod of a name, whoever owns it.
    fn pod(&self, of: &Key) -> impl Future<Output = Result<Option<Pod>, CallError>> + Send;

    /// The metadata of a ConfigMap, whoever owns it.
    fn config_map(&self, of: &Key) -> impl Future<Output = Result<Option<ObjectMeta>, CallError>> + Send;

    /// The cluster of a name.
    fn cluster(&self, of: &Key) -> impl Future<Output = Result<Option<ValkeyCluster>, CallError>> + Send;

    /// Creates a ConfigMap unless the name is taken.
    fn create_config_map(&self, new: &ConfigMap) -> impl Future<Output = Result<Created, CallError>> + Send;

    /// Creates a Pod unless the name is taken.
    fn create_pod(&self, new: &Pod) -> impl Future<Output = Result<Created, CallError>> + Send;

    /// Takes our finalizer, and nothing else, off the Pod of exactly this UID; one that is gone counts as done.
    fn release_pod(&self, of: &Key, uid: &str) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Deletes the Pod of exactly this UID; one that is gone already counts as deleted. `grace` in seconds.
    fn delete_pod(
        &self,
        of: &Key,
        uid: &str,
        grace: Option<u32>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Deletes the ConfigMap of exactly this UID; one that is gone already counts as deleted.
    fn delete_config_map(&self, of: &Key, uid: &str) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Replaces the node's finalizers, provided that it is still the version in hand.
    fn set_finalizers(
        &self,
        node: &ValkeyNode,
        finalizers: Vec<String>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Writes `status.pod` of exactly this node, and nothing else of its status.
    fn record_pod(
        &self,
        node: &ValkeyNode,
        record: &PodRecord,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Tells people what was done.
    fn tell(&self, node: &ValkeyNode, notice: Notice) -> impl Future<Output = ()> + Send;

    /// Tells people of something that lasts. True when it was news.
    fn tell_change(&self, node: &ValkeyNode, notice: Notice) -> impl Future<Output = bool> + Send;

    /// What was told with [`Kube::tell_change`] for this reason is over.
    fn tell_ended(&self, node: &ValkeyNode, reason: &str);
}

/// An object by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// A name in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Another name in the same namespace.
    #[must_use]
    pub fn sibling(&self, name: impl Into<String>) -> Self {
        Self { namespace: self.namespace.clone(), name: name.into() }
    }
}

/// Outcome of a create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// It was not there; its UID now.
    New(String),
    /// The name is taken: by a create of ours whose reply was lost, or by somebody else.
    Taken,
}

/// A call to the Kubernetes API that did not work.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {kind} {namespace}/{name}")]
pub struct CallError {
    /// The verb.
    pub operation: &'static str,
    /// Kind of the object.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What a caller may conclude.
    pub class: CallClass,
    /// The cause.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

/// What a caller may conclude from a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallClass {
    /// The object changed meanwhile: look again.
    Conflict,
    /// The API server refused the object itself (forbidden, invalid, quota, admission): a person must act.
    Refused,
    /// No answer, or a passing trouble: it may or may not have happened.
    Unavailable,
}

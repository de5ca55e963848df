//! The port to the real Kubernetes API. Each call has the client's limit; classes of errors are told apart here only.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shared::api::{PodRecord, ValkeyCluster, ValkeyNode};
use shared::events::{Events, Notice};
use shared::names;

use crate::ports::{CallClass, CallError, Created, Key, Kube};

/// Tries at a record before the pass as a whole is repeated.
const RECORD_ATTEMPTS: usize = 4;

/// The real Kubernetes API.
#[derive(Clone)]
pub struct KubeApi {
    client: Client,
    events: Events,
}

impl KubeApi {
    /// Calls through `client`; events in the name of node-ctl.
    pub const fn new(client: Client, events: Events) -> Self {
        Self { client, events }
    }

    fn api<T>(&self, namespace: &str) -> Api<T>
    where
        T: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn get<T>(&self, kind: &'static str, of: &Key) -> Result<Option<T>, CallError>
    where
        T: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let got = self.api::<T>(&of.namespace).get_opt(&of.name).await;
        got.map_err(|error| failed("read", kind, of, error))
    }

    async fn create<T>(&self, kind: &'static str, new: &T) -> Result<Created, CallError>
    where
        T: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Serialize
            + Debug,
    {
        let of = Key::new(new.namespace().unwrap_or_default(), new.name_any());
        let params =
            PostParams { field_manager: Some(names::MANAGER_NODE.to_owned()), ..PostParams::default() };
        match self.api::<T>(&of.namespace).create(&params, new).await {
            Ok(created) => Ok(Created::New(created.uid().unwrap_or_default())),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Created::Taken),
            Err(error) => Err(failed("create", kind, &of, error)),
        }
    }

    async fn delete<T>(
        &self,
        kind: &'static str,
        of: &Key,
        uid: &str,
        grace: Option<u32>,
    ) -> Result<(), CallError>
    where
        T: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let params = DeleteParams {
            grace_period_seconds: grace,
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.api::<T>(&of.namespace).delete(&of.name, &params).await {
            Ok(_) => Ok(()),
            // The object of this UID is gone; one that took its name is not ours to touch.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(failed("delete", kind, of, error)),
        }
    }
}

impl Kube for KubeApi {
    async fn node(&self, of: &Key) -> Result<Option<ValkeyNode>, CallError> {
        self.get("ValkeyNode", of).await
    }

    async fn pod(&self, of: &Key) -> Result<Option<Pod>, CallError> {
        self.get("Pod", of).await
    }

    async fn config_map(&self, of: &Key) -> Result<Option<ObjectMeta>, CallError> {
        let got = self.api::<ConfigMap>(&of.namespace).get_metadata_opt(&of.name).await;
        Ok(got.map_err(|error| failed("read", "ConfigMap", of, error))?.map(|found| found.metadata))
    }

    async fn cluster(&self, of: &Key) -> Result<Option<ValkeyCluster>, CallError> {
        self.get("ValkeyCluster", of).await
    }

    async fn create_config_map(&self, new: &ConfigMap) -> Result<Created, CallError> {
        self.create("ConfigMap", new).await
    }

    async fn create_pod(&self, new: &Pod) -> Result<Created, CallError> {
        self.create("Pod", new).await
    }

    async fn release_pod(&self, of: &Key, uid: &str) -> Result<(), CallError> {
        // By value, not by version: the kubelet writes a young Pod all the time, and others' finalizers stay.
        let patch = json!({
            "metadata": { "uid": uid, "$deleteFromPrimitiveList/finalizers": [names::POD_FINALIZER] }
        });
        let params =
            PatchParams { field_manager: Some(names::MANAGER_NODE.to_owned()), ..PatchParams::default() };
        match self.api::<Pod>(&of.namespace).patch_metadata(&of.name, &params, &Patch::Strategic(patch)).await
        {
            Ok(_) => Ok(()),
            // A Pod of another UID has the name now, or none has: this one is gone.
            Err(kube::Error::Api(status)) if status.is_not_found() || is_of_another_uid(&status) => Ok(()),
            Err(error) => Err(failed("release", "Pod", of, error)),
        }
    }

    async fn delete_pod(&self, of: &Key, uid: &str, grace: Option<u32>) -> Result<(), CallError> {
        self.delete::<Pod>("Pod", of, uid, grace).await
    }

    async fn delete_config_map(&self, of: &Key, uid: &str) -> Result<(), CallError> {
        self.delete::<ConfigMap>("ConfigMap", of, uid, None).await
    }

    async fn set_finalizers(&self, node: &ValkeyNode, finalizers: Vec<String>) -> Result<(), CallError> {
        let of = Key::new(node.namespace().unwrap_or_default(), node.name_any());
        // The version in hand makes the list a compare-and-swap: nobody else's finalizer gets lost.
        let patch = json!({
            "metadata": { "resourceVersion": node.resource_version(), "uid": node.uid(), "finalizers": finalizers }
        });
        let params =
            PatchParams { field_manager: Some(names::MANAGER_NODE.to_owned()), ..PatchParams::default() };
        let api = self.api::<ValkeyNode>(&of.namespace);
        match api.patch_metadata(&of.name, &params, &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(failed("set finalizers of", "ValkeyNode", &of, error)),
        }
    }

    async fn record_pod(&self, node: &ValkeyNode, record: &PodRecord) -> Result<(), CallError> {
        let of = Key::new(node.namespace().unwrap_or_default(), node.name_any());
        let params = PatchParams::apply(names::MANAGER_NODE).force();
        let api = self.api::<ValkeyNode>(&of.namespace);
        let mut version = node.resource_version();
        let mut attempt = 1;
        loop {
            let recording = recording(&of, version.as_deref(), record);
            match api.patch_status(&of.name, &params, &Patch::Apply(recording)).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.is_conflict() && attempt < RECORD_ATTEMPTS => {
                    // Others write this status as well. The version of a new node of the name is none that we take.
                    let now = self.node(&of).await?.filter(|now| now.uid() == node.uid());
                    version = now.map_or(version, |now| now.resource_version());
                    attempt += 1;
                }
                Err(error) => return Err(failed("record the Pod of", "ValkeyNode", &of, error)),
            }
        }
    }

    async fn tell(&self, node: &ValkeyNode, notice: Notice) {
        self.events.publish(&node.object_ref(&()), &notice).await;
    }

    async fn tell_change(&self, node: &ValkeyNode, notice: Notice) -> bool {
        self.events.on_change(&node.object_ref(&()), &notice).await
    }

    fn tell_ended(&self, node: &ValkeyNode, reason: &str) {
        self.events.ended(&node.object_ref(&()), reason);
    }
}

/// The status with the record, for the node of exactly this version. A UID would not do: the API server ignores the UID
/// in a patch of the status (Kubernetes 1.36).
fn recording(of: &Key, version: Option<&str>, record: &PodRecord) -> Value {
    json!({
        "apiVersion": ValkeyNode::api_version(&()),
        "kind": ValkeyNode::kind(&()),
        "metadata": { "name": of.name, "namespace": of.namespace, "resourceVersion": version },
        "status": { "pod": record },
    })
}

/// Whether a patch was refused because the object has another UID than the patch says: a built-in kind calls that an
/// invalid change of an immutable field, not a conflict (Kubernetes 1.36).
fn is_of_another_uid(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.is_invalid() && causes.into_iter().any(|cause| cause.field == "metadata.uid")
}

fn failed(operation: &'static str, kind: &'static str, of: &Key, error: kube::Error) -> CallError {
    let class = match &error {
        kube::Error::Api(status) => match status.code {
            409 => CallClass::Conflict,
            400 | 403 | 413 | 422 => CallClass::Refused,
            _ => CallClass::Unavailable,
        },
        _ => CallClass::Unavailable,
    };
    CallError {
        operation,
        kind,
        namespace: of.namespace.clone(),
        name: of.name.clone(),
        class,
        source: Box::new(error),
    }
}

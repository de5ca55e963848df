//! The real Kubernetes behind [`Kube`]: reads from caches, writes with preconditions.
//!
//! Every write carries a UID or a resourceVersion, so that an object of the same name made later is never touched.
//! Decides nothing.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Pod, Secret, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{NamespaceResourceScope, Status};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use shared::api::{Lifecycle, ValkeyCluster, ValkeyClusterStatus, ValkeyNode, ValkeyNodeStatus};
use shared::api_client::namespace_is_ending;
use shared::events::{Events, Notice};
use shared::names;
use shared::tls::Material;
use shared::versioned::Versioned;

use crate::build;
use crate::caches::Caches;
use crate::ports::{ClusterKey, ClusterObject, Kube, KubeError, PodUpkeep, World};

/// The Kubernetes API with its caches.
#[derive(Clone)]
pub struct KubeApi {
    client: Client,
    caches: Arc<Caches>,
    events: Events,
    /// TLS Secrets by namespace and name.
    tls: Arc<Versioned<(String, String), Material>>,
}

impl KubeApi {
    /// Reads from `caches`, writes with `client`.
    pub fn new(client: Client, caches: Arc<Caches>, events: Events) -> Self {
        Self { client, caches, events, tls: Arc::default() }
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn api_of<K, O: ResourceExt>(&self, object: &O) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        self.api(&object.namespace().unwrap_or_default())
    }

    async fn create<K>(&self, what: &'static str, object: &K) -> Result<(), KubeError>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
        K::DynamicType: Default,
    {
        let params =
            PostParams { field_manager: Some(names::MANAGER_CLUSTER.to_owned()), ..PostParams::default() };
        self.api_of::<K, _>(object).create(&params, object).await.map(drop).map_err(failed(what))
    }

    async fn apply<K>(&self, what: &'static str, object: &K) -> Result<(), KubeError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let api = self.api_of::<K, _>(object);
        api.patch(&object.name_any(), &manager(), &Patch::Apply(object)).await.map(drop).map_err(failed(what))
    }

    /// Deletes exactly the object of this UID.
    async fn delete<K>(
        &self,
        what: &'static str,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<(), KubeError>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match self.api::<K>(namespace).delete(name, &params).await.map_err(failed(what)) {
            // Another UID means that the one we mean is gone.
            Ok(_) | Err(KubeError::NotFound { .. } | KubeError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn get<K>(&self, what: &'static str, namespace: &str, name: &str) -> Result<Option<K>, KubeError>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        self.api::<K>(namespace).get_opt(name).await.map_err(failed(what))
    }
}

impl KubeApi {
    /// What a TLS Secret holds: read live, and again whenever the watch says that it has changed.
    async fn tls_secret(&self, namespace: &str, name: &str) -> Result<Arc<Material>, KubeError> {
        let read = async {
            let secret = self.get::<Secret>("reading the TLS Secret", namespace, name).await?;
            Ok(Material::read(secret.as_ref()))
        };
        let version = self.caches.secret_version(namespace, name);
        self.tls.get(&(namespace.to_owned(), name.to_owned()), version, read).await
    }
}

impl Kube for KubeApi {
    async fn world(&self, cluster: &ClusterKey) -> Result<Option<World>, KubeError> {
        let Some(mut world) = self.caches.world(cluster) else {
            self.tls.retain(|(namespace, name)| self.caches.is_tls_secret(namespace, name));
            return Ok(None);
        };
        let deleting = world.cluster.metadata.deletion_timestamp.is_some();
        let tls = world.cluster.spec.tls.as_ref().filter(|_| !deleting);
        if let Some(tls) = tls {
            world.tls = Some(self.tls_secret(&cluster.namespace, &tls.secret_ref).await?);
        }
        Ok(Some(world))
    }

    async fn live_object(
        &self,
        cluster: &ClusterKey,
        like: &ClusterObject,
    ) -> Result<Option<ClusterObject>, KubeError> {
        let name = like.meta().0.name.clone().unwrap_or_default();
        let namespace = &cluster.namespace;
        Ok(match like {
            ClusterObject::Service(_) => self
                .get::<Service>("reading the Service", namespace, &name)
                .await?
                .map(|it| ClusterObject::Service(Box::new(it))),
            ClusterObject::Secret(_) => self
                .get::<Secret>("reading the auth Secret", namespace, &name)
                .await?
                .map(|it| ClusterObject::Secret(Box::new(it))),
            ClusterObject::ConfigMap(_) => self
                .get::<ConfigMap>("reading the ACL ConfigMap", namespace, &name)
                .await?
                .map(|it| ClusterObject::ConfigMap(Box::new(it))),
        })
    }

    async fn live_nodes(&self, cluster: &ValkeyCluster) -> Result<Vec<ValkeyNode>, KubeError> {
        let selector = format!("{}={}", names::LABEL_INSTANCE, cluster.name_any());
        let uid = cluster.metadata.uid.clone().unwrap_or_default();
        let list = self.api_of::<ValkeyNode, _>(cluster).list(&ListParams::default().labels(&selector)).await;
        let list = list.map_err(failed("listing the nodes"))?;
        Ok(list.items.into_iter().filter(|node| build::owned_by(&node.metadata, &uid)).collect())
    }

    async fn live_pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, KubeError> {
        self.get("reading the Pod", namespace, name).await
    }

    async fn save_status(
        &self,
        cluster: &ValkeyCluster,
        status: &ValkeyClusterStatus,
    ) -> Result<ValkeyCluster, KubeError> {
        let body = json!({
            "apiVersion": ValkeyCluster::api_version(&()),
            "kind": ValkeyCluster::kind(&()),
            "metadata": {
                "name": cluster.name_any(),
                "uid": cluster.metadata.uid,
                "resourceVersion": cluster.metadata.resource_version,
            },
            "status": status,
        });
        let api = self.api_of::<ValkeyCluster, _>(cluster);
        api.patch_status(&cluster.name_any(), &manager(), &Patch::Apply(&body))
            .await
            .map_err(failed("saving the status"))
    }

    async fn set_cluster_finalizer(
        &self,
        cluster: &ValkeyCluster,
        present: bool,
    ) -> Result<ValkeyCluster, KubeError> {
        let finalizers: &[&str] = if present { &[names::CLUSTER_FINALIZER] } else { &[] };
        // Applied by our own manager: only our own entry of the set comes and goes.
        let body = json!({
            "apiVersion": ValkeyCluster::api_version(&()),
            "kind": ValkeyCluster::kind(&()),
            "metadata": { "name": cluster.name_any(), "uid": cluster.metadata.uid, "finalizers": finalizers },
        });
        let api = self.api_of::<ValkeyCluster, _>(cluster);
        let done = api.patch(&cluster.name_any(), &manager(), &Patch::Apply(&body)).await;
        done.map_err(failed("setting the cluster's finalizer"))
    }

    async fn release_secret(&self, secret: &Secret) -> Result<(), KubeError> {
        let others: Vec<&String> =
            secret.finalizers().iter().filter(|finalizer| *finalizer != names::AUTH_FINALIZER).collect();
        let patch = json!([
            { "op": "test", "path": "/metadata/resourceVersion", "value": secret.metadata.resource_version },
            { "op": "replace", "path": "/metadata/finalizers", "value": others },
        ]);
        json_patch::<Secret>(&self.api_of(secret), &secret.name_any(), patch, "releasing the auth Secret")
            .await
    }

    async fn replace_secret(&self, secret: &Secret) -> Result<(), KubeError> {
        let patch = json!([
            { "op": "test", "path": "/metadata/resourceVersion", "value": secret.metadata.resource_version },
            { "op": "add", "path": "/metadata/annotations", "value": secret.metadata.annotations },
            { "op": "add", "path": "/data", "value": secret.data },
        ]);
        json_patch::<Secret>(&self.api_of(secret), &secret.name_any(), patch, "updating the auth Secret")
            .await
    }

    async fn create_node(&self, node: &ValkeyNode) -> Result<(), KubeError> {
        self.create("creating the ValkeyNode", node).await
    }

    async fn set_lifecycle(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        to: Lifecycle,
        clear_join_type: bool,
    ) -> Result<(), KubeError> {
        let mut patch = vec![
            json!({ "op": "test", "path": "/metadata/uid", "value": uid }),
            json!({ "op": "replace", "path": "/spec/lifecycle", "value": to }),
        ];
        if clear_join_type {
            let label = names::LABEL_JOIN_TYPE.replace('/', "~1");
            patch.push(json!({ "op": "remove", "path": format!("/metadata/labels/{label}") }));
        }
        json_patch::<ValkeyNode>(&self.api(namespace), name, json!(patch), "moving the lifecycle").await
    }

    async fn delete_node(&self, namespace: &str, name: &str, uid: &str) -> Result<(), KubeError> {
        self.delete::<ValkeyNode>("deleting the ValkeyNode", namespace, name, uid).await
    }

    async fn delete_pod(&self, namespace: &str, name: &str, uid: &str) -> Result<(), KubeError> {
        self.delete::<Pod>("deleting the Pod", namespace, name, uid).await
    }

    async fn save_node_status(&self, node: &ValkeyNode, status: &ValkeyNodeStatus) -> Result<(), KubeError> {
        // The API server ignores a UID in an apply of a custom resource's status (measured on 1.36.3): only the
        // resourceVersion keeps the write off a namesake.
        let body = json!({
            "apiVersion": ValkeyNode::api_version(&()),
            "kind": ValkeyNode::kind(&()),
            "metadata": {
                "name": node.name_any(),
                "uid": node.metadata.uid,
                "resourceVersion": node.metadata.resource_version,
            },
            "status": status,
        });
        let api = self.api_of::<ValkeyNode, _>(node);
        let done = api.patch_status(&node.name_any(), &manager(), &Patch::Apply(&body)).await;
        done.map(drop).map_err(failed("saving a node's status"))
    }

    async fn create_object(&self, object: &ClusterObject) -> Result<(), KubeError> {
        match object {
            ClusterObject::Service(service) => self.create("creating the Service", service.as_ref()).await,
            ClusterObject::Secret(secret) => self.create("creating the auth Secret", secret.as_ref()).await,
            ClusterObject::ConfigMap(map) => self.create("creating the ACL ConfigMap", map.as_ref()).await,
        }
    }

    async fn apply_object(&self, object: &ClusterObject) -> Result<(), KubeError> {
        match object {
            ClusterObject::Service(service) => self.apply("applying the Service", service.as_ref()).await,
            ClusterObject::Secret(secret) => self.apply("applying the auth Secret", secret.as_ref()).await,
            ClusterObject::ConfigMap(map) => self.apply("applying the ACL ConfigMap", map.as_ref()).await,
        }
    }

    async fn upkeep_pod(&self, pod: &Pod, change: &PodUpkeep) -> Result<(), KubeError> {
        let api = self.api_of::<Pod, _>(pod);
        let (name, uid) = (pod.name_any(), &pod.metadata.uid);
        let field_manager =
            PatchParams { field_manager: Some(names::MANAGER_CLUSTER.to_owned()), ..PatchParams::default() };
        if let Some(joined) = change.joined {
            let status = if joined { "True" } else { "False" };
            let condition = json!({
                "type": names::READINESS_GATE, "status": status, "reason": if joined { "Joined" } else { "Leaving" },
                "lastTransitionTime": jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default(),
            });
            let body = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
            let done = api.patch_status(&name, &field_manager, &Patch::Strategic(&body)).await;
            done.map_err(failed("setting a pod's readiness gate"))?;
        }
        if !change.labels.is_empty() || !change.annotations.is_empty() {
            let metadata = json!({ "uid": uid, "labels": change.labels, "annotations": change.annotations });
            let done =
                api.patch(&name, &field_manager, &Patch::Merge(&json!({ "metadata": metadata }))).await;
            done.map_err(failed("labelling a pod"))?;
        }
        Ok(())
    }

    async fn notify(&self, cluster: &ValkeyCluster, notice: &Notice) {
        self.events.publish(&reference(cluster), notice).await;
    }
}

fn reference(cluster: &ValkeyCluster) -> ObjectReference {
    cluster.object_ref(&())
}

fn manager() -> PatchParams {
    PatchParams::apply(names::MANAGER_CLUSTER).force()
}

async fn json_patch<K>(
    api: &Api<K>,
    name: &str,
    patch: serde_json::Value,
    what: &'static str,
) -> Result<(), KubeError>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let patch: json_patch::Patch = serde_json::from_value(patch).map_err(|error| other(what, error))?;
    match api.patch(name, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
        Ok(_) => Ok(()),
        // A failed `test` is reported as an invalid patch: the object is not the one that was seen.
        Err(kube::Error::Api(status)) if status.is_invalid() => Err(KubeError::Conflict { what }),
        Err(error) => Err(failed(what)(error)),
    }
}

fn failed(what: &'static str) -> impl FnOnce(kube::Error) -> KubeError {
    move |error| match error {
        error if namespace_is_ending(&error) => KubeError::NamespaceEnding { what },
        kube::Error::Api(status) if status.is_not_found() => KubeError::NotFound { what },
        kube::Error::Api(status) if status.is_already_exists() => KubeError::Exists { what },
        // A patch that names another UID is called invalid, not a conflict (1.36.3).
        kube::Error::Api(status) if status.is_conflict() || names_another_uid(&status) => {
            KubeError::Conflict { what }
        }
        error => other(what, error),
    }
}

fn names_another_uid(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.is_invalid() && causes.into_iter().any(|cause| cause.field == "metadata.uid")
}

fn other(what: &'static str, error: impl std::error::Error + Send + Sync + 'static) -> KubeError {
    KubeError::Failed { what, source: Box::new(error) }
}

/// Labels of a Pod or `ValkeyNode` to the cluster that it belongs to.
pub fn cluster_of_labels(
    namespace: Option<&str>,
    labels: Option<&BTreeMap<String, String>>,
) -> Option<ClusterKey> {
    let name = labels?.get(names::LABEL_INSTANCE)?;
    Some(ClusterKey { namespace: namespace?.to_owned(), name: name.clone() })
}

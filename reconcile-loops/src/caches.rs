//! What the API server told: watches of clusters, nodes, pods, ACL ConfigMaps and Secrets, the last two by metadata only.
//!
//! Owns the watches and trims what nobody reads. At rest the loops read from here and from the nodes alone. A watch that
//! fails is resumed with back-off by itself.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::PartialObjectMeta;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::store::WriterDropped;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Api, Client, Resource, ResourceExt};
use shared::api::{ValkeyCluster, ValkeyNode};
use shared::names;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::warn;

use crate::seen::{ClusterKey, ClusterSeen, ObjectKey, clusters_seen};

/// Objects that changed since they were last taken. Bounded by the number of objects that exist.
#[derive(Debug, Default)]
pub struct Changes {
    keys: Mutex<BTreeSet<ObjectKey>>,
    wake: Notify,
}

impl Changes {
    /// Notes a change.
    pub fn put(&self, key: ObjectKey) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        self.wake.notify_one();
    }

    /// Takes all that changed, waiting until something did.
    pub async fn take(&self) -> BTreeSet<ObjectKey> {
        loop {
            let taken = std::mem::take(&mut *self.keys.lock().unwrap_or_else(PoisonError::into_inner));
            if !taken.is_empty() {
                return taken;
            }
            self.wake.notified().await;
        }
    }
}

/// The five caches. Dropping them ends their watches.
pub struct Caches {
    /// All clusters; one that does not deserialise is kept as such and stops nothing.
    pub clusters: Store<DeserializeGuard<ValkeyCluster>>,
    /// All nodes.
    pub nodes: Store<DeserializeGuard<ValkeyNode>>,
    /// Pods with our labels.
    pub pods: Store<Pod>,
    /// ConfigMaps `{cluster}-acl`, metadata.
    pub acl: Store<PartialObjectMeta<ConfigMap>>,
    /// All Secrets, metadata: a TLS Secret carries no label of ours.
    pub secrets: Store<PartialObjectMeta<Secret>>,
    /// ACL ConfigMaps that changed, by cluster.
    pub acl_changes: Arc<Changes>,
    /// Secrets that changed.
    pub secret_changes: Arc<Changes>,
    _watches: JoinSet<()>,
}

impl Caches {
    /// Starts the watches.
    pub fn start(client: Client) -> Self {
        let mut watches = JoinSet::new();
        let (acl_changes, secret_changes) = (Arc::new(Changes::default()), Arc::new(Changes::default()));
        let ours = format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGED_BY);
        let everything = watcher::Config::default;
        let (clusters, task) =
            keep(watch_objects(Api::all(client.clone()), everything()), "clusters", |_| (), |_| ());
        watches.spawn(task);
        let (nodes, task) =
            keep(watch_objects(Api::all(client.clone()), everything()), "nodes", |_| (), |_| ());
        watches.spawn(task);
        let (pods, task) = keep(
            watch_objects(Api::all(client.clone()), everything().labels(&ours)),
            "pods",
            trim_pod,
            |_| (),
        );
        watches.spawn(task);
        // Node ConfigMaps carry the component label, the ACL ConfigMap does not.
        let not_of_nodes = format!("{ours},{}!={}", names::LABEL_COMPONENT, names::COMPONENT_NODE);
        let changed = Arc::clone(&acl_changes);
        let (acl, task) = keep(
            watch_objects(Api::all(client.clone()), everything().labels(&not_of_nodes)),
            "ACL ConfigMaps",
            |_| (),
            move |map: &PartialObjectMeta<ConfigMap>| {
                if let Some(key) = cluster_of_acl(map) {
                    changed.put(key.0);
                }
            },
        );
        watches.spawn(task);
        let changed = Arc::clone(&secret_changes);
        let (secrets, task) = keep(
            watch_objects(Api::all(client), everything()),
            "Secrets",
            |secret: &mut PartialObjectMeta<Secret>| {
                secret.metadata.labels = None;
                secret.metadata.annotations = None;
            },
            move |secret: &PartialObjectMeta<Secret>| changed.put(ObjectKey::of(secret)),
        );
        watches.spawn(task);
        Self { clusters, nodes, pods, acl, secrets, acl_changes, secret_changes, _watches: watches }
    }

    /// The clusters with their running nodes, or one of them.
    pub fn seen(&self, only: Option<&ClusterKey>) -> Vec<ClusterSeen> {
        let wanted =
            |namespace: Option<&str>| only.is_none_or(|key| namespace == Some(key.0.namespace.as_str()));
        let clusters: Vec<_> =
            self.clusters.state().into_iter().filter(|it| wanted(it.meta().namespace.as_deref())).collect();
        let nodes: Vec<_> =
            self.nodes.state().into_iter().filter(|it| wanted(it.meta().namespace.as_deref())).collect();
        let pods: Vec<_> =
            self.pods.state().into_iter().filter(|it| wanted(it.meta().namespace.as_deref())).collect();
        let mut seen = clusters_seen(
            clusters.iter().filter_map(|cluster| cluster.0.as_ref().ok()),
            nodes.iter().filter_map(|node| node.0.as_ref().ok()),
            pods.iter().map(AsRef::as_ref),
        );
        seen.retain(|cluster| only.is_none_or(|key| *key == cluster.key));
        seen
    }

    /// Waits until every cache is complete.
    pub async fn synced(&self) -> Result<(), WriterDropped> {
        self.clusters.wait_until_ready().await?;
        self.nodes.wait_until_ready().await?;
        self.pods.wait_until_ready().await?;
        self.acl.wait_until_ready().await?;
        self.secrets.wait_until_ready().await
    }

    /// The version of a cluster's ACL ConfigMap, and the UID of its controller.
    pub fn acl_version(&self, cluster: &ClusterKey) -> Option<(String, Option<String>)> {
        let reference = ObjectRef::new(&names::acl_config_map(&cluster.0.name)).within(&cluster.0.namespace);
        let map = self.acl.get(&reference)?;
        let controller = map.owner_references().iter().find(|owner| owner.controller == Some(true));
        Some((map.resource_version()?, controller.map(|owner| owner.uid.clone())))
    }

    /// The version of a Secret, as far as the watch has seen it.
    pub fn secret_version(&self, key: &ObjectKey) -> Option<String> {
        self.secrets.get(&ObjectRef::new(&key.name).within(&key.namespace))?.resource_version()
    }
}

fn cluster_of_acl(map: &PartialObjectMeta<ConfigMap>) -> Option<ClusterKey> {
    let key = ObjectKey::of(map);
    let cluster =
        key.name.strip_suffix("-acl").filter(|cluster| names::acl_config_map(cluster) == key.name)?;
    Some(ClusterKey(ObjectKey { name: cluster.to_owned(), ..key }))
}

/// Of a pod only identity, owner, IP and the state of its containers are read.
fn trim_pod(pod: &mut Pod) {
    pod.spec = None;
    pod.metadata.annotations = None;
    if let Some(status) = &mut pod.status {
        status.conditions = None;
    }
}

/// A store, and the task that fills it; `changed` is called for objects that came or changed after the first listing.
fn keep<K>(
    events: impl futures::Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    what: &'static str,
    trim: impl Fn(&mut K) + Send + 'static,
    changed: impl Fn(&K) + Send + 'static,
) -> (Store<K>, impl Future<Output = ()> + Send + 'static)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    let (reader, writer) = reflector::store();
    let events = events
        .default_backoff()
        .modify(move |object| {
            object.meta_mut().managed_fields = None;
            trim(object);
        })
        .reflect(writer);
    let task = async move {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object)) => changed(&object),
                Ok(_) => {}
                Err(error) => {
                    warn!(
                        watch = what,
                        error = shared::telemetry::chain(&error),
                        "watch interrupted, resuming"
                    );
                }
            }
        }
    };
    (reader, task)
}

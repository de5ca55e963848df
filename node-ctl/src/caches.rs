//! The watches and the caches that they fill: nodes, their Pods, the metadata of their ConfigMaps.
//!
//! Each event is in its cache before it wakes a node, so that a pass never sees less than what woke it. Scoped by label
//! where people have objects of the kind too. Decides nothing.

use std::fmt::Debug;
use std::hash::Hash;

use futures::future::ready;
use futures::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::PartialObjectMeta;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use shared::api::ValkeyNode;
use shared::names;
use shared::synced::{Synced, Watches};

use crate::meta;
use crate::ports::Key;

/// A node whose content may be unreadable: one bad object must not stop the watch of all.
pub type Guarded = DeserializeGuard<ValkeyNode>;

/// Nodes to look at.
pub type Wakes = BoxStream<'static, Result<ObjectRef<Guarded>, watcher::Error>>;

/// What the watches have seen.
#[derive(Clone)]
pub struct Caches {
    /// Nodes.
    pub nodes: Store<Guarded>,
    pods: Store<Pod>,
    config_maps: Store<PartialObjectMeta<ConfigMap>>,
    /// Whether every watch has listed.
    pub synced: Synced,
}

impl Caches {
    /// Starts the watches. The stream must be polled for the caches to fill.
    pub fn start(client: &Client) -> (Self, Wakes) {
        let ours = format!(
            "{}={},{}={}",
            names::LABEL_MANAGED_BY,
            names::MANAGED_BY,
            names::LABEL_COMPONENT,
            names::COMPONENT_NODE
        );
        let ours = watcher::Config::default().labels(&ours);
        let all = watcher::Config::default();
        let (watches, synced) = Watches::new();
        let (nodes, node_events) = watch::<Guarded>(&watches, Api::all(client.clone()), all, |_| {});
        // What no rule looks at need not be kept.
        let (pods, pod_events) =
            watch::<Pod>(&watches, Api::all(client.clone()), ours.clone(), |pod| pod.spec = None);
        let (config_maps, config_map_events) =
            watch::<PartialObjectMeta<ConfigMap>>(&watches, Api::all(client.clone()), ours, |_| {});
        let wakes = stream::select_all([
            node_events.map_ok(|node| ObjectRef::from_obj(&node)).boxed(),
            by_owner(pod_events),
            by_owner(config_map_events),
        ]);
        (Self { nodes, pods, config_maps, synced }, wakes.boxed())
    }

    /// The Pod of a name, as far as it carries our labels.
    pub fn pod(&self, of: &Key) -> Option<std::sync::Arc<Pod>> {
        self.pods.get(&ObjectRef::new(&of.name).within(&of.namespace))
    }

    /// Whether a Pod of ours has been told to stop and is still there.
    pub fn any_pod_terminating(&self) -> bool {
        self.pods.state().iter().any(|pod| pod.metadata.deletion_timestamp.is_some())
    }

    /// The Pod and the ConfigMap with the names that belong to a node, whoever owns them, as far as they carry our labels.
    pub fn objects_of(
        &self,
        node: &ValkeyNode,
    ) -> (Option<std::sync::Arc<Pod>>, Option<std::sync::Arc<PartialObjectMeta<ConfigMap>>>) {
        let (name, namespace) = (node.name_any(), node.namespace().unwrap_or_default());
        let pod = ObjectRef::new(&name).within(&namespace);
        let config_map = ObjectRef::new(&names::node_config_map(&name)).within(&namespace);
        (self.pods.get(&pod), self.config_maps.get(&config_map))
    }
}

/// One watch: its cache, and each object that appeared, changed or went.
fn watch<K>(
    watches: &Watches,
    api: Api<K>,
    config: watcher::Config,
    trim: impl Fn(&mut K) + Send + 'static,
) -> (Store<K>, impl Stream<Item = Result<K, watcher::Error>> + Send + 'static)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default,
{
    let (reader, writer) = reflector::store();
    let mut listing = watches.add();
    let events = watcher(api, config)
        .default_backoff()
        .modify(move |object| {
            object.managed_fields_mut().clear();
            trim(object);
        })
        .reflect(writer)
        .inspect_ok(move |event| {
            if matches!(event, watcher::Event::InitDone) {
                listing.done();
            }
        })
        .touched_objects();
    (reader, events)
}

/// The nodes that control the objects.
fn by_owner<K>(events: impl Stream<Item = Result<K, watcher::Error>> + Send + 'static) -> Wakes
where
    K: Resource<DynamicType = ()> + Send + 'static,
{
    let owner = |object: K| {
        let owner = meta::controller_of(object.meta())?;
        let ours = owner.kind == ValkeyNode::kind(&()) && owner.api_version == ValkeyNode::api_version(&());
        let namespace = object.meta().namespace.as_deref().filter(|_| ours)?;
        Some(ObjectRef::new(&owner.name).within(namespace))
    };
    events.try_filter_map(move |object| ready(Ok(owner(object)))).boxed()
}

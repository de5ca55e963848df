//! Watches and the caches they fill. One watch per kind, scoped by label where people have objects of the kind too.
//!
//! Each event is in its cache before it wakes a cluster, so that a tick never sees less than what woke it. Decides
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Node, NodeSpec, NodeStatus, Pod, PodSpec, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use shared::api::{ValkeyCluster, ValkeyConfig, ValkeyImage, ValkeyNode, ValkeyRole};
use shared::synced::{Synced, Watches};
use shared::{names, resolve};

use crate::build;
use crate::kube_api::cluster_of_labels;
use crate::model::Millis;
use crate::ports::{ClusterKey, Machine, Menu, World};

/// The label by which an EndpointSlice names its Service.
const SERVICE_OF_SLICE: &str = "kubernetes.io/service-name";

/// A stream of clusters to look at.
pub type Wakes = BoxStream<'static, Result<ObjectRef<ValkeyCluster>, watcher::Error>>;

/// What the watches have seen.
pub struct Caches {
    /// Clusters.
    pub clusters: Store<ValkeyCluster>,
    nodes: Store<ValkeyNode>,
    pods: Store<Pod>,
    services: Store<Service>,
    endpoint_slices: Store<EndpointSlice>,
    secrets: Store<Secret>,
    /// All Secrets, metadata: a TLS Secret carries no label of ours.
    tls_secrets: Store<PartialObjectMeta<Secret>>,
    config_maps: Store<ConfigMap>,
    configs: Store<ValkeyConfig>,
    images: Store<ValkeyImage>,
    roles: Store<ValkeyRole>,
    machines: Store<Node>,
    /// Whether every watch has listed.
    pub synced: Synced,
}

impl Caches {
    /// Starts the watches. The stream must be polled for the caches to fill.
    pub fn start(client: &Client) -> (Arc<Self>, Wakes) {
        let (watches, synced) = Watches::new();
        let everywhere = watcher::Config::default();
        let managed = format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGED_BY);
        let ours = watcher::Config::default().labels(&managed);
        // Nodes' own ConfigMaps are node-ctl's business.
        let cluster_level = format!("{managed},{}!={}", names::LABEL_COMPONENT, names::COMPONENT_NODE);
        let cluster_level = watcher::Config::default().labels(&cluster_level);
        let (clusters, cluster_events) =
            watch::<ValkeyCluster>(&watches, Api::all(client.clone()), everywhere.clone(), |_| {});
        let (nodes, node_events) =
            watch::<ValkeyNode>(&watches, Api::all(client.clone()), everywhere.clone(), |_| {});
        let (pods, pod_events) = watch::<Pod>(&watches, Api::all(client.clone()), ours.clone(), trim_pod);
        let (services, service_events) =
            watch::<Service>(&watches, Api::all(client.clone()), ours.clone(), |_| {});
        // Kubernetes copies the labels of a Service to its `EndpointSlice`s (1.27 to 1.36).
        let (endpoint_slices, slice_events) =
            watch::<EndpointSlice>(&watches, Api::all(client.clone()), ours.clone(), |_| {});
        let (secrets, secret_events) = watch::<Secret>(&watches, Api::all(client.clone()), ours, |_| {});
        let (tls_secrets, tls_events) = watch::<PartialObjectMeta<Secret>>(
            &watches,
            Api::all(client.clone()),
            everywhere.clone(),
            |secret| {
                secret.metadata.labels = None;
                secret.metadata.annotations = None;
            },
        );
        let (config_maps, map_events) =
            watch::<ConfigMap>(&watches, Api::all(client.clone()), cluster_level, |_| {});
        let (configs, config_events) =
            watch::<ValkeyConfig>(&watches, Api::all(client.clone()), everywhere.clone(), |_| {});
        let (images, image_events) =
            watch::<ValkeyImage>(&watches, Api::all(client.clone()), everywhere.clone(), |_| {});
        let (roles, role_events) =
            watch::<ValkeyRole>(&watches, Api::all(client.clone()), everywhere.clone(), |_| {});
        let (machines, machine_events) =
            watch::<Node>(&watches, Api::all(client.clone()), everywhere, trim_machine);
        let caches = Arc::new(Self {
            clusters,
            nodes,
            pods,
            services,
            endpoint_slices,
            secrets,
            tls_secrets,
            config_maps,
            configs,
            images,
            roles,
            machines,
            synced,
        });
        let [of_config, of_image, of_role, of_secret] = std::array::from_fn(|_| Arc::clone(&caches));
        let wakes = stream::select_all([
            cluster_events.map_ok(|cluster| vec![ObjectRef::from_obj(&*cluster)]).boxed(),
            by_label(node_events),
            by_label(pod_events),
            by_label(service_events),
            by_label(slice_events),
            by_label(secret_events),
            by_label(map_events),
            tls_events.map_ok(move |secret| of_secret.users_of_secret(&secret)).boxed(),
            config_events.map_ok(move |config| of_config.users_of_config(&config.name_any())).boxed(),
            image_events.map_ok(move |image| of_image.users_of_image(&image.name_any())).boxed(),
            role_events.map_ok(move |role| of_role.users_of_role(&role.name_any())).boxed(),
            // What becomes of a machine counts only after a while: the ticks of those who wait look at it.
            machine_events.map_ok(|_| Vec::new()).boxed(),
        ]);
        let wakes = wakes.map_ok(|refs| stream::iter(refs).map(Ok)).try_flatten().boxed();
        (caches, wakes)
    }

    /// The cluster and all that belongs to it.
    pub fn world(&self, key: &ClusterKey) -> Option<World> {
        let cluster = self.clusters.get(&ObjectRef::new(&key.name).within(&key.namespace))?;
        let uid = cluster.metadata.uid.clone().unwrap_or_default();
        let mut nodes = self.nodes.state();
        nodes.retain(|node| {
            node.metadata.namespace.as_ref() == Some(&key.namespace) && build::owned_by(&node.metadata, &uid)
        });
        nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let pods = nodes
            .iter()
            .filter_map(|node| {
                let name = node.metadata.name.clone()?;
                Some((name.clone(), self.pods.get(&ObjectRef::new(&name).within(&key.namespace))?))
            })
            .collect();
        Some(World {
            published: self.published(key),
            service: self.services.get(&ObjectRef::new(&names::service(&key.name)).within(&key.namespace)),
            auth: self.secrets.get(&ObjectRef::new(&names::auth_secret(&key.name)).within(&key.namespace)),
            acl: self
                .config_maps
                .get(&ObjectRef::new(&names::acl_config_map(&key.name)).within(&key.namespace)),
            tls: None,
            machines: self
                .machines
                .state()
                .iter()
                .filter_map(|node| Some((node.metadata.name.clone()?, read_machine(node))))
                .collect(),
            menu: Arc::new(self.menu()),
            cluster,
            nodes,
            pods,
        })
    }

    /// UIDs of the Pods that the `EndpointSlice`s of the cluster's Service show as ready.
    fn published(&self, key: &ClusterKey) -> BTreeSet<String> {
        let (namespace, service) = (Some(key.namespace.as_str()), names::service(&key.name));
        let of_service = |slice: &Arc<EndpointSlice>| {
            let label = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_OF_SLICE));
            slice.metadata.namespace.as_deref() == namespace && label == Some(&service)
        };
        let slices = self.endpoint_slices.state().into_iter().filter(of_service);
        slices.flat_map(|slice| ready_pods(&slice).map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    /// The version of a Secret, as far as the watch has seen it.
    pub fn secret_version(&self, namespace: &str, name: &str) -> Option<String> {
        self.tls_secrets.get(&ObjectRef::new(name).within(namespace))?.resource_version()
    }

    /// Whether some cluster names this TLS Secret.
    pub fn is_tls_secret(&self, namespace: &str, name: &str) -> bool {
        self.clusters.state().iter().any(|cluster| names_secret(cluster, namespace, name))
    }

    fn users_of_secret(&self, secret: &PartialObjectMeta<Secret>) -> Vec<ObjectRef<ValkeyCluster>> {
        let (namespace, name) = (secret.namespace().unwrap_or_default(), secret.name_any());
        let clusters = self.clusters.state();
        let using = clusters.iter().filter(|cluster| names_secret(cluster, &namespace, &name));
        using.map(|cluster| ObjectRef::from_obj(&**cluster)).collect()
    }

    fn menu(&self) -> Menu {
        fn specs<K: Resource + Clone + 'static, S>(
            store: &Store<K>,
            spec: impl Fn(&K) -> S,
        ) -> BTreeMap<String, S>
        where
            K::DynamicType: Eq + Hash + Clone,
        {
            store
                .state()
                .iter()
                .filter_map(|object| Some((object.meta().name.clone()?, spec(object))))
                .collect()
        }
        Menu {
            configs: specs(&self.configs, |config| config.spec.clone()),
            images: specs(&self.images, |image| image.spec.clone()),
            roles: specs(&self.roles, |role| role.spec.clone()),
        }
    }

    /// Clusters whose config chain names `config`, those that failed to resolve it included.
    fn users_of_config(&self, config: &str) -> Vec<ObjectRef<ValkeyCluster>> {
        self.users(|_, resolution| resolution.uses_config(config))
    }

    fn users_of_image(&self, image: &str) -> Vec<ObjectRef<ValkeyCluster>> {
        self.users(|_, resolution| resolution.uses_image(image))
    }

    fn users_of_role(&self, role: &str) -> Vec<ObjectRef<ValkeyCluster>> {
        self.users(|cluster, resolution| {
            let of_config = resolution.acl.iter().flatten();
            let permissions = of_config.chain(&cluster.spec.acl).flat_map(|binding| &binding.permissions);
            permissions.into_iter().any(|permission| permission.role_ref == role)
        })
    }

    fn users(
        &self,
        uses: impl Fn(&ValkeyCluster, &resolve::Resolution) -> bool,
    ) -> Vec<ObjectRef<ValkeyCluster>> {
        let menu = self.menu();
        let clusters = self.clusters.state();
        let using = clusters.iter().filter(|cluster| {
            let resolution = resolve::resolve(&cluster.spec.config_ref, &menu.configs, &menu.images);
            uses(cluster, &resolution)
        });
        using.map(|cluster| ObjectRef::from_obj(&**cluster)).collect()
    }
}

fn names_secret(cluster: &ValkeyCluster, namespace: &str, name: &str) -> bool {
    cluster.metadata.namespace.as_deref() == Some(namespace)
        && cluster.spec.tls.as_ref().is_some_and(|tls| tls.secret_ref == name)
}

type Events<K> = BoxStream<'static, Result<Arc<K>, watcher::Error>>;

/// One watch: what it saw, and a stream of every object that came, changed or went.
fn watch<K>(
    watches: &Watches,
    api: Api<K>,
    config: watcher::Config,
    trim: impl Fn(&mut K) + Send + Sync + 'static,
) -> (Store<K>, Events<K>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (reader, writer) = reflector::store();
    let mut listing = watches.add();
    let stream = watcher(api, config)
        .default_backoff()
        .modify(move |object| {
            object.meta_mut().managed_fields = None;
            trim(object);
        })
        .reflect(writer)
        .inspect_ok(move |event| {
            if matches!(event, watcher::Event::InitDone) {
                listing.done();
            }
        })
        .touched_objects()
        .map_ok(Arc::new)
        .boxed();
    (reader, stream)
}

/// Wakes the cluster that the object's labels name.
fn by_label<K: Resource + Send + Sync + 'static>(
    events: Events<K>,
) -> BoxStream<'static, Result<Vec<ObjectRef<ValkeyCluster>>, watcher::Error>> {
    events
        .map_ok(|object| {
            let key = cluster_of_labels(object.meta().namespace.as_deref(), object.meta().labels.as_ref());
            key.into_iter().map(|key| ObjectRef::new(&key.name).within(&key.namespace)).collect()
        })
        .boxed()
}

/// UIDs of the Pods behind the ready addresses of a slice; an address of which nothing is said counts as ready.
fn ready_pods(slice: &EndpointSlice) -> impl Iterator<Item = &str> {
    let ready = slice.endpoints.iter().filter(|endpoint| {
        endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
    });
    ready.filter_map(|endpoint| endpoint.target_ref.as_ref()?.uid.as_deref())
}

/// Of a Pod's spec only the machine is used.
fn trim_pod(pod: &mut Pod) {
    let node_name = pod.spec.take().and_then(|spec| spec.node_name);
    pod.spec = Some(PodSpec { node_name, ..PodSpec::default() });
}

/// Of a Kubernetes node labels, taints and conditions are used.
fn trim_machine(node: &mut Node) {
    node.metadata.annotations = None;
    let taints = node.spec.take().and_then(|spec| spec.taints);
    node.spec = Some(NodeSpec { taints, ..NodeSpec::default() });
    let conditions = node.status.take().and_then(|status| status.conditions);
    node.status = Some(NodeStatus { conditions, ..NodeStatus::default() });
}

fn read_machine(node: &Node) -> Machine {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions
        .filter(|condition| condition.type_ == "Ready" && condition.status == "True")
        .find_map(|condition| condition.last_transition_time.as_ref());
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    Machine {
        zone: node.labels().get("topology.kubernetes.io/zone").cloned(),
        ready_since: ready.map(|time| Millis(time.0.as_millisecond())),
        out_of_service: taints.into_iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service"),
    }
}

//! Watch caches: each shows some earlier state of its kind, and catches up event by event.
//!
//! A cache that is held is stale by all that happens meanwhile; order within a kind is kept, between kinds it is not.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster_ctl::ports::{Machine, Menu};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::Resource;
use shared::api::{ValkeyCluster, ValkeyNode};
use shared::names;

use super::{ApiServer, Stored, owner};
use crate::clock::Ms;

/// The cache of one kind in one process.
#[derive(Debug)]
pub struct Cache<T> {
    shown: BTreeMap<String, Arc<T>>,
    /// How much of the history it shows.
    seen: usize,
    select: fn(&T) -> bool,
    /// How long an event takes to arrive.
    pub lag: Ms,
    /// Nothing arrives before this moment.
    pub held_until: Ms,
}

impl<T: Stored> Cache<T> {
    /// A cache that has just listed.
    pub fn listed(api: &ApiServer, select: fn(&T) -> bool, lag: Ms) -> Self {
        let store = T::store(api);
        let shown = store
            .objects()
            .iter()
            .filter(|(_, object)| select(object))
            .map(|(name, object)| (name.clone(), Arc::clone(object)))
            .collect();
        Self { shown, seen: store.history().len(), select, lag, held_until: 0 }
    }

    /// The object of a name.
    pub fn get(&self, name: &str) -> Option<Arc<T>> {
        self.shown.get(name).cloned()
    }

    /// All that it shows.
    pub fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        self.shown.values()
    }

    /// When the next event arrives.
    pub fn next(&self, api: &ApiServer) -> Option<Ms> {
        let change = T::store(api).history().get(self.seen)?;
        Some((change.at + self.lag).max(self.held_until))
    }

    /// Takes in what has arrived by `now`; the objects that came, changed or went.
    pub fn catch_up(&mut self, api: &ApiServer, now: Ms) -> Vec<Arc<T>> {
        let mut touched = Vec::new();
        while self.next(api).is_some_and(|at| at <= now) {
            let Some(change) = T::store(api).history().get(self.seen) else { break };
            self.seen += 1;
            if change.gone || !(self.select)(&change.object) {
                if self.shown.remove(&change.name).is_none() {
                    continue;
                }
            } else {
                self.shown.insert(change.name.clone(), Arc::clone(&change.object));
            }
            touched.push(Arc::clone(&change.object));
        }
        touched
    }
}

/// The caches of one cluster-ctl.
#[derive(Debug)]
pub struct ClusterCaches {
    /// Clusters.
    pub clusters: Cache<ValkeyCluster>,
    /// Nodes.
    pub nodes: Cache<ValkeyNode>,
    /// Pods.
    pub pods: Cache<Pod>,
    /// Services.
    pub services: Cache<Service>,
    /// Secrets.
    pub secrets: Cache<Secret>,
    /// Cluster-level ConfigMaps.
    pub config_maps: Cache<ConfigMap>,
    /// Kubernetes nodes and the menu, which lag only while the API server is not reached.
    pub whole_cluster: (BTreeMap<String, Machine>, Arc<Menu>),
}

impl ClusterCaches {
    /// Caches that have just listed, with a usual lag for each kind.
    pub fn listed(api: &ApiServer, mut lag: impl FnMut() -> Ms) -> Self {
        Self {
            clusters: Cache::listed(api, |_| true, lag()),
            nodes: Cache::listed(api, |_| true, lag()),
            pods: Cache::listed(api, managed, lag()),
            services: Cache::listed(api, managed, lag()),
            secrets: Cache::listed(api, managed, lag()),
            config_maps: Cache::listed(api, |map| managed(map) && !of_node(map), lag()),
            whole_cluster: (BTreeMap::new(), Arc::default()),
        }
    }

    /// When the next event arrives.
    pub fn next(&self, api: &ApiServer) -> Option<Ms> {
        [
            self.clusters.next(api),
            self.nodes.next(api),
            self.pods.next(api),
            self.services.next(api),
            self.secrets.next(api),
            self.config_maps.next(api),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes in what has arrived; the names of the clusters that it wakes.
    pub fn catch_up(&mut self, api: &ApiServer, now: Ms) -> Vec<String> {
        let mut woken = Vec::new();
        woken.extend(self.clusters.catch_up(api, now).iter().filter_map(|it| it.metadata.name.clone()));
        by_label(&mut woken, &self.nodes.catch_up(api, now));
        by_label(&mut woken, &self.pods.catch_up(api, now));
        by_label(&mut woken, &self.services.catch_up(api, now));
        by_label(&mut woken, &self.secrets.catch_up(api, now));
        by_label(&mut woken, &self.config_maps.catch_up(api, now));
        woken
    }

    /// Holds one kind until `until`: clusters, nodes, Pods or the rest.
    pub fn hold(&mut self, kind: u8, until: Ms) {
        match kind {
            0 => self.clusters.held_until = until,
            1 => self.nodes.held_until = until,
            2 => self.pods.held_until = until,
            _ => {
                self.services.held_until = until;
                self.secrets.held_until = until;
                self.config_maps.held_until = until;
            }
        }
    }
}

/// The caches of one node-ctl.
#[derive(Debug)]
pub struct NodeCaches {
    /// Nodes.
    pub nodes: Cache<ValkeyNode>,
    /// Pods of nodes.
    pub pods: Cache<Pod>,
    /// ConfigMaps of nodes.
    pub config_maps: Cache<ConfigMap>,
}

impl NodeCaches {
    /// Caches that have just listed.
    pub fn listed(api: &ApiServer, mut lag: impl FnMut() -> Ms) -> Self {
        Self {
            nodes: Cache::listed(api, |_| true, lag()),
            pods: Cache::listed(api, |pod| managed(pod) && of_node(pod), lag()),
            config_maps: Cache::listed(api, |map| managed(map) && of_node(map), lag()),
        }
    }

    /// When the next event arrives.
    pub fn next(&self, api: &ApiServer) -> Option<Ms> {
        [self.nodes.next(api), self.pods.next(api), self.config_maps.next(api)].into_iter().flatten().min()
    }

    /// Takes in what has arrived; the names of the nodes that it wakes.
    pub fn catch_up(&mut self, api: &ApiServer, now: Ms) -> Vec<String> {
        let mut woken: Vec<String> =
            self.nodes.catch_up(api, now).iter().filter_map(|it| it.metadata.name.clone()).collect();
        let mut owners: Vec<String> = Vec::new();
        // A Pod has the name of its node; one whose node is gone wakes what is left to be done for that name.
        woken.extend(self.pods.catch_up(api, now).iter().filter_map(|it| it.metadata.name.clone()));
        let maps = self.config_maps.catch_up(api, now);
        owners.extend(maps.iter().filter_map(|it| owner(&it.metadata).map(str::to_owned)));
        let owned = self
            .nodes
            .all()
            .filter(|node| node.metadata.uid.as_ref().is_some_and(|uid| owners.contains(uid)));
        woken.extend(owned.filter_map(|node| node.metadata.name.clone()));
        woken
    }

    /// Holds one kind until `until`: nodes, Pods or ConfigMaps.
    pub fn hold(&mut self, kind: u8, until: Ms) {
        match kind {
            0 | 1 => self.nodes.held_until = until,
            2 => self.pods.held_until = until,
            _ => self.config_maps.held_until = until,
        }
    }
}

fn label<'a, T: Resource>(object: &'a T, key: &str) -> Option<&'a str> {
    object.meta().labels.as_ref()?.get(key).map(String::as_str)
}

fn managed<T: Resource>(object: &T) -> bool {
    label(object, names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY)
}

fn of_node<T: Resource>(object: &T) -> bool {
    label(object, names::LABEL_COMPONENT) == Some(names::COMPONENT_NODE)
}

fn by_label<T: Resource>(woken: &mut Vec<String>, objects: &[Arc<T>]) {
    woken.extend(
        objects.iter().filter_map(|object| label(object.as_ref(), names::LABEL_INSTANCE)).map(str::to_owned),
    );
}

//! A model of the Kubernetes API as far as the operator's ports use it: UIDs, resourceVersions, finalizers, deletion,
//! owners, and for each kind the history that watches deliver.
//!
//! Owns the objects. The rules that the CRDs add are in `rules`. Knows nothing of who calls or of what a call costs.

pub mod caches;
pub mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use shared::api::{ValkeyCluster, ValkeyNode};

use crate::clock::Ms;

/// The one namespace of the simulation.
pub const NAMESPACE: &str = "shop";

/// Why the API server did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// 404.
    #[error("not found")]
    NotFound,
    /// 409 `AlreadyExists`.
    #[error("exists already")]
    Exists,
    /// 409 Conflict.
    #[error("the object has changed")]
    Conflict,
    /// 422.
    #[error("invalid: {0}")]
    Invalid(String),
    /// 500.
    #[error("internal error")]
    Internal,
    /// No answer; it may have been done or not.
    #[error("no answer within the limit")]
    Timeout,
}

/// A kind that the model stores.
pub trait Stored: Resource<DynamicType = ()> + Clone + PartialEq + Send + Sync + 'static {
    /// Its store.
    fn store(api: &ApiServer) -> &Store<Self>;
    /// Its store, to be changed.
    fn store_mut(api: &mut ApiServer) -> &mut Store<Self>;
    /// Whether the object may vanish once it is told to go and no finalizer holds it.
    fn may_vanish(&self) -> bool {
        true
    }
    /// The grace that it gets, seconds, where `asked` was asked for.
    fn grace(&self, _asked: Option<i64>) -> i64 {
        0
    }
    /// Whether it wants something else than `old`: a new generation.
    fn wants_another(&self, _old: &Self) -> bool {
        false
    }
}

/// All objects of one kind, and how they came to be.
#[derive(Debug)]
pub struct Store<T> {
    objects: BTreeMap<String, Arc<T>>,
    /// Every change, in order.
    history: Vec<Change<T>>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), history: Vec::new() }
    }
}

/// One change of one object.
#[derive(Debug)]
pub struct Change<T> {
    /// When.
    pub at: Ms,
    /// Name of the object.
    pub name: String,
    /// The object after the change; for one that went, as it was last.
    pub object: Arc<T>,
    /// It went.
    pub gone: bool,
}

impl<T> Store<T> {
    /// The objects by name.
    pub fn objects(&self) -> &BTreeMap<String, Arc<T>> {
        &self.objects
    }

    /// Every change so far.
    pub fn history(&self) -> &[Change<T>] {
        &self.history
    }
}

/// The API server.
#[derive(Debug, Default)]
pub struct ApiServer {
    clusters: Store<ValkeyCluster>,
    nodes: Store<ValkeyNode>,
    pods: Store<Pod>,
    services: Store<Service>,
    secrets: Store<Secret>,
    config_maps: Store<ConfigMap>,
    version: u64,
    uids: u64,
}

macro_rules! stored {
    ($kind:ty, $field:ident $(, $wants:item)?) => {
        impl Stored for $kind {
            fn store(api: &ApiServer) -> &Store<Self> {
                &api.$field
            }
            fn store_mut(api: &mut ApiServer) -> &mut Store<Self> {
                &mut api.$field
            }
            $($wants)?
        }
    };
}

stored!(
    ValkeyCluster,
    clusters,
    fn wants_another(&self, old: &Self) -> bool {
        self.spec != old.spec
    }
);
stored!(
    ValkeyNode,
    nodes,
    fn wants_another(&self, old: &Self) -> bool {
        self.spec != old.spec
    }
);
stored!(Service, services);
stored!(Secret, secrets);
stored!(ConfigMap, config_maps);

impl Stored for Pod {
    fn store(api: &ApiServer) -> &Store<Self> {
        &api.pods
    }
    fn store_mut(api: &mut ApiServer) -> &mut Store<Self> {
        &mut api.pods
    }
    /// A Pod that was bound waits for the kubelet, which ends its container first.
    fn may_vanish(&self) -> bool {
        self.metadata.deletion_grace_period_seconds == Some(0)
    }
    /// One that no machine has gets none.
    fn grace(&self, asked: Option<i64>) -> i64 {
        let bound = self.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        if bound { asked.unwrap_or(30) } else { 0 }
    }
}

/// A point in time as the API writes it, to the second.
pub fn time(at: Ms) -> Time {
    Time(Timestamp::from_second(at.div_euclid(1000)).unwrap_or(Timestamp::UNIX_EPOCH))
}

impl ApiServer {
    /// The object of a name.
    pub fn get<T: Stored>(&self, name: &str) -> Option<Arc<T>> {
        T::store(self).objects.get(name).cloned()
    }

    /// All objects of a kind.
    pub fn list<T: Stored>(&self) -> Vec<Arc<T>> {
        T::store(self).objects.values().cloned().collect()
    }

    /// Creates an object.
    pub fn create<T: Stored>(&mut self, now: Ms, mut object: T) -> Result<Arc<T>, ApiError> {
        let name = object.meta().name.clone().unwrap_or_default();
        if T::store(self).objects.contains_key(&name) {
            return Err(ApiError::Exists);
        }
        self.uids += 1;
        let uid = format!("uid-{:04}", self.uids);
        let meta = object.meta_mut();
        meta.namespace = Some(NAMESPACE.to_owned());
        meta.uid = Some(uid);
        meta.creation_timestamp = Some(time(now));
        meta.generation = Some(1);
        Ok(self.put(now, name, object))
    }

    /// Changes an object, where it still has the UID and the version given. A change of nothing is no write.
    pub fn update<T: Stored>(
        &mut self,
        now: Ms,
        name: &str,
        uid: Option<&str>,
        version: Option<&str>,
        change: impl FnOnce(&mut T) -> Result<(), ApiError>,
    ) -> Result<Arc<T>, ApiError> {
        let Some(old) = self.get::<T>(name) else { return Err(ApiError::NotFound) };
        let differs = |want: Option<&str>, have: &Option<String>| want.is_some() && want != have.as_deref();
        if differs(uid, &old.meta().uid) || differs(version, &old.meta().resource_version) {
            return Err(ApiError::Conflict);
        }
        let mut new = T::clone(&old);
        change(&mut new)?;
        if new == *old {
            return Ok(old);
        }
        // To be told to go is a new generation, too.
        let told = new.meta().deletion_timestamp.is_some() && old.meta().deletion_timestamp.is_none();
        if told || new.wants_another(&old) {
            let meta = new.meta_mut();
            meta.generation = meta.generation.map(|number| number + 1);
        }
        Ok(self.put(now, name.to_owned(), new))
    }

    /// Tells an object to go. `grace` counts for Pods only.
    pub fn delete<T: Stored>(
        &mut self,
        now: Ms,
        name: &str,
        uid: Option<&str>,
        grace: Option<i64>,
    ) -> Result<(), ApiError> {
        self.update::<T>(now, name, uid, None, |object| {
            let granted = object.grace(grace);
            let meta = object.meta_mut();
            let grace = meta.deletion_grace_period_seconds.map_or(granted, |old| old.min(granted));
            meta.deletion_grace_period_seconds = Some(grace);
            // The end of the grace period, not the moment of the request; earlier when it is shortened.
            let end = time(now + grace * 1000);
            let known = meta.deletion_timestamp.take();
            meta.deletion_timestamp = Some(known.map_or(end.clone(), |known| known.min(end)));
            Ok(())
        })?;
        Ok(())
    }

    /// Names of objects whose owner is gone, with what deletes them.
    pub fn collect_garbage(&mut self, now: Ms) {
        let mut owners: BTreeSet<String> = BTreeSet::new();
        owners.extend(self.list::<ValkeyCluster>().iter().filter_map(|object| object.metadata.uid.clone()));
        owners.extend(self.list::<ValkeyNode>().iter().filter_map(|object| object.metadata.uid.clone()));
        self.collect::<ValkeyNode>(now, &owners, None);
        self.collect::<Pod>(now, &owners, Some(30));
        self.collect::<Service>(now, &owners, None);
        self.collect::<Secret>(now, &owners, None);
        self.collect::<ConfigMap>(now, &owners, None);
    }

    fn collect<T: Stored>(&mut self, now: Ms, owners: &BTreeSet<String>, grace: Option<i64>) {
        for object in self.list::<T>() {
            let meta = object.meta();
            let orphaned = owner(meta).is_some_and(|uid| !owners.contains(uid));
            if orphaned && meta.deletion_timestamp.is_none() {
                // An object that went meanwhile is collected.
                drop(self.delete::<T>(
                    now,
                    meta.name.as_deref().unwrap_or_default(),
                    meta.uid.as_deref(),
                    grace,
                ));
            }
        }
    }

    fn put<T: Stored>(&mut self, now: Ms, name: String, mut object: T) -> Arc<T> {
        self.version += 1;
        object.meta_mut().resource_version = Some(self.version.to_string());
        let meta = object.meta();
        let held = meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        let gone = meta.deletion_timestamp.is_some() && !held && object.may_vanish();
        let object = Arc::new(object);
        let store = T::store_mut(self);
        if gone {
            store.objects.remove(&name);
        } else {
            store.objects.insert(name.clone(), Arc::clone(&object));
        }
        store.history.push(Change { at: now, name, object: Arc::clone(&object), gone });
        object
    }
}

/// UID of the controller of an object.
pub fn owner(meta: &ObjectMeta) -> Option<&str> {
    meta.owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| owner.uid.as_str())
}

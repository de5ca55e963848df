//! [`node_ctl::ports::Kube`] with the modelled API server behind it.

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use node_ctl::ports::{CallClass, CallError, Created, Key, Kube};
use shared::api::{PodRecord, ValkeyCluster, ValkeyNode};
use shared::events::Notice;
use shared::names;

use super::Line;
use crate::world::World;
use crate::world::apiserver::{ApiError, Stored, rules};

/// Kubernetes as one node-ctl sees it.
#[derive(Clone)]
pub struct SimNodeKube {
    line: Line,
    told: Arc<Mutex<std::collections::BTreeMap<(String, String), String>>>,
}

impl SimNodeKube {
    /// Calls through `line`.
    pub fn new(line: &Line) -> Self {
        Self { line: line.clone(), told: Arc::default() }
    }

    async fn read<T: Stored>(&self, kind: &'static str, of: &Key) -> Result<Option<Arc<T>>, CallError> {
        let name = of.name.clone();
        let reply = self.line.api(format!("read {kind} {name}"), move |world| Ok(world.api.get::<T>(&name)));
        reply.await.map_err(|error| failed("read", kind, of, error))
    }

    async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        kind: &'static str,
        of: &Key,
        effect: impl FnOnce(&mut World, &str) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, CallError> {
        let name = of.name.clone();
        let reply = self.line.api(format!("{operation} {kind} {name}"), move |world| {
            world.audit.writes += 1;
            effect(world, &name)
        });
        reply.await.map_err(|error| failed(operation, kind, of, error))
    }
}

fn failed(operation: &'static str, kind: &'static str, of: &Key, error: ApiError) -> CallError {
    let class = match &error {
        ApiError::Conflict => CallClass::Conflict,
        ApiError::Invalid(_) => CallClass::Refused,
        ApiError::NotFound | ApiError::Exists | ApiError::Internal | ApiError::Timeout => {
            CallClass::Unavailable
        }
    };
    let Key { namespace, name } = of.clone();
    CallError { operation, kind, namespace, name, class, source: Box::new(error) }
}

/// An object of this UID that is gone already is as wanted.
fn gone_is_fine<T>(done: Result<T, ApiError>) -> Result<(), ApiError> {
    match done {
        Ok(_) | Err(ApiError::NotFound | ApiError::Conflict) => Ok(()),
        Err(error) => Err(error),
    }
}

fn created<T: Stored>(done: Result<Arc<T>, ApiError>) -> Result<Created, ApiError> {
    match done {
        Ok(object) => Ok(Created::New(object.meta().uid.clone().unwrap_or_default())),
        Err(ApiError::Exists) => Ok(Created::Taken),
        Err(error) => Err(error),
    }
}

impl Kube for SimNodeKube {
    async fn node(&self, of: &Key) -> Result<Option<ValkeyNode>, CallError> {
        Ok(self.read::<ValkeyNode>("ValkeyNode", of).await?.map(|node| node.as_ref().clone()))
    }

    async fn pod(&self, of: &Key) -> Result<Option<Pod>, CallError> {
        Ok(self.read::<Pod>("Pod", of).await?.map(|pod| pod.as_ref().clone()))
    }

    async fn config_map(&self, of: &Key) -> Result<Option<ObjectMeta>, CallError> {
        Ok(self.read::<ConfigMap>("ConfigMap", of).await?.map(|map| map.metadata.clone()))
    }

    async fn cluster(&self, of: &Key) -> Result<Option<ValkeyCluster>, CallError> {
        Ok(self.read::<ValkeyCluster>("ValkeyCluster", of).await?.map(|it| it.as_ref().clone()))
    }

    async fn create_config_map(&self, new: &ConfigMap) -> Result<Created, CallError> {
        let (of, new) = (Key::new("", new.name_any()), new.clone());
        self.write("create", "ConfigMap", &of, |world, _| created(world.api.create(world.now, new))).await
    }

    async fn create_pod(&self, new: &Pod) -> Result<Created, CallError> {
        let (of, new) = (Key::new("", new.name_any()), new.clone());
        self.write("create", "Pod", &of, |world, _| {
            let owner = crate::world::apiserver::owner(&new.metadata).map(str::to_owned);
            let made = created(world.api.create(world.now, new));
            if let (Ok(Created::New(_)), Some(owner)) = (&made, owner) {
                world.note_pod(&owner);
            }
            made
        })
        .await
    }

    async fn release_pod(&self, of: &Key, uid: &str) -> Result<(), CallError> {
        let uid = uid.to_owned();
        self.write("release", "Pod", of, move |world, name| {
            gone_is_fine(world.api.update::<Pod>(world.now, name, Some(&uid), None, |pod| {
                rules::set_finalizer(&mut pod.metadata.finalizers, true, names::POD_FINALIZER, false)
            }))
        })
        .await
    }

    async fn delete_pod(&self, of: &Key, uid: &str, grace: Option<u32>) -> Result<(), CallError> {
        let uid = uid.to_owned();
        self.write("delete", "Pod", of, move |world, name| {
            world.judge_pod_delete(name);
            let grace = i64::from(grace.unwrap_or(30));
            gone_is_fine(world.api.delete::<Pod>(world.now, name, Some(&uid), Some(grace)))
        })
        .await
    }

    async fn delete_config_map(&self, of: &Key, uid: &str) -> Result<(), CallError> {
        let uid = uid.to_owned();
        self.write("delete", "ConfigMap", of, move |world, name| {
            gone_is_fine(world.api.delete::<ConfigMap>(world.now, name, Some(&uid), None))
        })
        .await
    }

    async fn set_finalizers(&self, node: &ValkeyNode, finalizers: Vec<String>) -> Result<(), CallError> {
        let of = Key::new(node.namespace().unwrap_or_default(), node.name_any());
        let (uid, version) = (node.uid(), node.resource_version());
        self.write("set finalizers of", "ValkeyNode", &of, move |world, name| {
            let (uid, version) = (uid.as_deref(), version.as_deref());
            let done = world.api.update::<ValkeyNode>(world.now, name, uid, version, |node| {
                let more = finalizers.len() > node.finalizers().len();
                if more && node.metadata.deletion_timestamp.is_some() {
                    return Err(ApiError::Invalid("no finalizer can be added".to_owned()));
                }
                node.metadata.finalizers = Some(finalizers).filter(|list| !list.is_empty());
                Ok(())
            });
            match done {
                Ok(_) | Err(ApiError::NotFound) => Ok(()),
                Err(error) => Err(error),
            }
        })
        .await
    }

    async fn record_pod(&self, node: &ValkeyNode, record: &PodRecord) -> Result<(), CallError> {
        let of = Key::new(node.namespace().unwrap_or_default(), node.name_any());
        let (uid, record) = (node.uid(), record.clone());
        self.write("record the Pod of", "ValkeyNode", &of, move |world, name| {
            let done = world.api.update::<ValkeyNode>(world.now, name, uid.as_deref(), None, |node| {
                rules::apply_pod_record(node, &record)
            });
            done.map(drop)
        })
        .await
    }

    async fn tell(&self, node: &ValkeyNode, notice: Notice) {
        let of = Key::new("", node.name_any());
        let told = move |_: &mut _, _: &_| {
            drop(notice);
            Ok(())
        };
        drop(self.write("tell", "event of", &of, told).await);
    }

    async fn tell_change(&self, node: &ValkeyNode, notice: Notice) -> bool {
        let key = (node.name_any(), notice.reason.clone());
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert(key, notice.note.clone()) != Some(notice.note)
    }

    fn tell_ended(&self, node: &ValkeyNode, reason: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.remove(&(node.name_any(), reason.to_owned()));
    }
}

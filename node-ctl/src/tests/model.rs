//! A model of the Kubernetes API as far as one node's life goes: names, UIDs, versions, finalizers, set-once records.
//!
//! It counts calls and can lose one: the request on its way, or the reply of what was done.

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::sync::Mutex;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use shared::api::{PodRecord, ValkeyCluster, ValkeyNode};
use shared::events::Notice;
use shared::names;

use super::{cluster, node};
use crate::ports::{CallClass, CallError, Created, Key, Kube};
use crate::reconcile::Look;

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The request never arrives.
    RequestLost,
    /// It is done, but nobody hears of it.
    ReplyLost,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) node: Option<ValkeyNode>,
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) config_maps: BTreeMap<String, ConfigMap>,
    pub(super) cluster: Option<ValkeyCluster>,
    pub(super) pods_created: usize,
    pub(super) graces: Vec<Option<u32>>,
    pub(super) told: Vec<Notice>,
    pub(super) calls: usize,
    pub(super) fault: Option<(usize, Fault)>,
    /// A Pod of somebody else that appears right before the next create.
    pub(super) intruder: Option<Pod>,
    uids: usize,
    lasting: BTreeMap<String, String>,
}

/// The model behind the port.
pub(super) struct Model(pub(super) Mutex<State>);

impl Model {
    /// A fresh node and its cluster, nothing else.
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { node: Some(node()), cluster: Some(cluster()), ..State::default() }))
    }

    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }

    /// What up-to-date caches hold; `None` when the node is gone.
    pub(super) fn cached(&self) -> Option<Look> {
        self.with(|state| {
            let node = state.node.clone()?;
            let name = node.name_any();
            let config_map = state.config_maps.get(&format!("{name}-config")).map(|found| &found.metadata);
            Some(Look::cached(node.into(), state.pods.get(&name), config_map))
        })
    }

    /// A person, or cluster-ctl, deletes the node.
    pub(super) fn delete_node(&self) {
        self.with(|state| {
            let node = state.node.as_mut().unwrap();
            if node.finalizers().is_empty() {
                state.node = None;
            } else {
                node.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
                bump(node);
            }
        });
    }

    /// The kubelet ends what was told to stop; what a finalizer holds stays.
    pub(super) fn kubelet(&self) {
        self.with(|state| {
            state
                .pods
                .retain(|_, pod| pod.metadata.deletion_timestamp.is_none() || !pod.finalizers().is_empty());
        });
    }

    /// A person deletes every Pod, by force: only what a finalizer holds stays, terminating.
    pub(super) fn delete_pods(&self) {
        self.with(|state| {
            for pod in state.pods.values_mut() {
                pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            }
        });
        self.kubelet();
    }

    /// Counts a call, does it, and loses what the fault says.
    fn call<T>(
        &self,
        operation: &'static str,
        act: impl FnOnce(&mut State) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        self.with(|state| {
            state.calls += 1;
            let fault = state.fault.filter(|(at, _)| *at == state.calls).map(|(_, fault)| fault);
            if fault == Some(Fault::RequestLost) {
                return Err(error(operation, CallClass::Unavailable));
            }
            let done = act(state)?;
            if fault == Some(Fault::ReplyLost) {
                return Err(error(operation, CallClass::Unavailable));
            }
            Ok(done)
        })
    }
}

pub(super) fn error(operation: &'static str, class: CallClass) -> CallError {
    CallError {
        operation,
        kind: "object",
        namespace: "shop".to_owned(),
        name: "cart-3f8a1".to_owned(),
        class,
        source: "lost".into(),
    }
}

fn bump(node: &mut ValkeyNode) {
    let version: u64 = node.resource_version().unwrap().parse().unwrap();
    node.metadata.resource_version = Some((version + 1).to_string());
}

fn new_uid(state: &mut State) -> String {
    state.uids += 1;
    format!("uid-{}", state.uids)
}

impl Kube for Model {
    fn node(&self, _: &Key) -> impl Future<Output = Result<Option<ValkeyNode>, CallError>> + Send {
        ready(self.call("read", |state| Ok(state.node.clone())))
    }

    fn pod(&self, of: &Key) -> impl Future<Output = Result<Option<Pod>, CallError>> + Send {
        ready(self.call("read", |state| Ok(state.pods.get(&of.name).cloned())))
    }

    fn config_map(&self, of: &Key) -> impl Future<Output = Result<Option<ObjectMeta>, CallError>> + Send {
        let meta = |state: &mut State| state.config_maps.get(&of.name).map(|found| found.metadata.clone());
        ready(self.call("read", |state| Ok(meta(state))))
    }

    fn cluster(&self, _: &Key) -> impl Future<Output = Result<Option<ValkeyCluster>, CallError>> + Send {
        ready(self.call("read", |state| Ok(state.cluster.clone())))
    }

    fn create_config_map(&self, new: &ConfigMap) -> impl Future<Output = Result<Created, CallError>> + Send {
        ready(self.call("create", |state| {
            let mut new = new.clone();
            if state.config_maps.contains_key(&new.name_any()) {
                return Ok(Created::Taken);
            }
            let uid = new_uid(state);
            new.metadata.uid = Some(uid.clone());
            state.config_maps.insert(new.name_any(), new);
            Ok(Created::New(uid))
        }))
    }

    fn create_pod(&self, new: &Pod) -> impl Future<Output = Result<Created, CallError>> + Send {
        ready(self.call("create", |state| {
            let mut new = new.clone();
            if let Some(intruder) = state.intruder.take() {
                state.pods.insert(new.name_any(), intruder);
            }
            if state.pods.contains_key(&new.name_any()) {
                return Ok(Created::Taken);
            }
            let uid = new_uid(state);
            new.metadata.uid = Some(uid.clone());
            state.pods_created += 1;
            state.pods.insert(new.name_any(), new);
            Ok(Created::New(uid))
        }))
    }

    fn release_pod(&self, of: &Key, uid: &str) -> impl Future<Output = Result<(), CallError>> + Send {
        ready(self.call("release", |state| {
            let Some(pod) = state.pods.get_mut(&of.name).filter(|pod| pod.uid().as_deref() == Some(uid))
            else {
                return Ok(());
            };
            pod.finalizers_mut().retain(|name| name != names::POD_FINALIZER);
            let owner = pod.owner_references().first().map(|owner| owner.uid.clone());
            if let Some(node) = state.node.as_ref().filter(|node| node.uid() == owner) {
                let recorded = node.status.as_ref().and_then(|status| status.pod.as_ref());
                assert_eq!(
                    recorded.map(|record| record.uid.as_str()),
                    Some(uid),
                    "released before it was recorded"
                );
            }
            Ok(())
        }))
    }

    fn delete_pod(
        &self,
        of: &Key,
        uid: &str,
        grace: Option<u32>,
    ) -> impl Future<Output = Result<(), CallError>> + Send {
        ready(self.call("delete", |state| {
            if let Some(pod) = state.pods.get_mut(&of.name).filter(|pod| pod.uid().as_deref() == Some(uid)) {
                pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
                state.graces.push(grace);
            }
            Ok(())
        }))
    }

    fn delete_config_map(&self, of: &Key, uid: &str) -> impl Future<Output = Result<(), CallError>> + Send {
        ready(self.call("delete", |state| {
            if state.config_maps.get(&of.name).is_some_and(|found| found.uid().as_deref() == Some(uid)) {
                state.config_maps.remove(&of.name);
            }
            Ok(())
        }))
    }

    fn set_finalizers(
        &self,
        of: &ValkeyNode,
        finalizers: Vec<String>,
    ) -> impl Future<Output = Result<(), CallError>> + Send {
        ready(self.call("set finalizers", |state| {
            let Some(node) = state.node.as_mut() else { return Ok(()) };
            if node.uid() != of.uid() || node.resource_version() != of.resource_version() {
                return Err(error("set finalizers", CallClass::Conflict));
            }
            let added = finalizers.len() > node.finalizers().len();
            assert!(!(added && node.metadata.deletion_timestamp.is_some()), "the API server forbids this");
            node.metadata.finalizers = Some(finalizers);
            bump(node);
            if node.metadata.deletion_timestamp.is_some() && node.finalizers().is_empty() {
                state.node = None;
            }
            Ok(())
        }))
    }

    fn record_pod(
        &self,
        of: &ValkeyNode,
        record: &PodRecord,
    ) -> impl Future<Output = Result<(), CallError>> + Send {
        ready(self.call("record", |state| {
            let Some(node) = state.node.as_mut().filter(|node| node.uid() == of.uid()) else {
                return Err(error("record", CallClass::Conflict));
            };
            let status = node.status.get_or_insert_default();
            if let Some(old) = &status.pod {
                assert_eq!(old.uid, record.uid, "the UID is recorded once");
                assert!(old.terminated_at.is_none() || old == record, "the end is recorded once");
            }
            status.pod = Some(record.clone());
            bump(node);
            Ok(())
        }))
    }

    fn tell(&self, _: &ValkeyNode, notice: Notice) -> impl Future<Output = ()> + Send {
        self.with(|state| state.told.push(notice));
        ready(())
    }

    fn tell_change(&self, _: &ValkeyNode, notice: Notice) -> impl Future<Output = bool> + Send {
        ready(self.with(|state| {
            let news =
                state.lasting.insert(notice.reason.clone(), notice.note.clone()) != Some(notice.note.clone());
            if news {
                state.told.push(notice);
            }
            news
        }))
    }

    fn tell_ended(&self, _: &ValkeyNode, reason: &str) {
        self.with(|state| state.lasting.remove(reason));
    }
}

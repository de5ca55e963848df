//! The API server and the model of it, side by side, each behind the operator's ports.
//!
//! A call is made on both; both must answer with the same class, and then show the same objects. The model's time is
//! its own: it passes while a call is under way, and while the two are looked at.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_ctl::caches::Caches;
use cluster_ctl::kube_api::KubeApi;
use cluster_ctl::ports::KubeError;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use node_ctl::ports::CallError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use shared::api::{ValkeyCluster, ValkeyNode};
use shared::events::Events;
use shared::names;
use sim::clock::Ms;
use sim::faults::Rates;
use sim::ports::cluster_kube::SimKube;
use sim::ports::node_kube::SimNodeKube;
use sim::ports::{Line, Shared, lock};
use sim::world::apiserver::caches::ClusterCaches;
use sim::world::apiserver::{NAMESPACE, Stored};
use sim::world::{Tempo, World};
use support::{Probe, TestNamespace, eventually};
use test_api::Server;

use super::shape::{Compared, Seen, Shape, seen};

/// How long both may take to show the same. Garbage is collected in the background, and Kubernetes' collector learns of a
/// kind that is new to the API server only when it looks through all kinds again, every 30 s (1.36, `garbagecollector.Sync`).
const LIMIT: Duration = Duration::from_mins(2);
/// The model's time that passes with each look.
const LOOK: Ms = 500;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// The API server.
    Server,
    /// The model.
    Model,
}

/// An object as each side gave it.
#[derive(Clone, Debug)]
pub(crate) struct Held<T> {
    server: T,
    model: T,
}

impl<T> Held<T> {
    /// What each side gave.
    pub(crate) fn new(server: T, model: T) -> Self {
        Self { server, model }
    }

    /// The object of one side.
    pub(crate) fn of(&self, side: Side) -> &T {
        match side {
            Side::Server => &self.server,
            Side::Model => &self.model,
        }
    }

    /// The same made of each.
    pub(crate) fn map<U>(&self, make: impl Fn(&T) -> U) -> Held<U> {
        Held { server: make(&self.server), model: make(&self.model) }
    }
}

/// What is known of a side from earlier looks: UIDs of each name, and its last version.
#[derive(Default)]
struct Memory {
    lives: BTreeMap<String, Vec<String>>,
    versions: BTreeMap<String, String>,
}

/// All objects by kind and name.
pub(crate) type Shapes = BTreeMap<String, Shape>;

/// Both sides.
pub(crate) struct Pair {
    /// cluster-ctl's port to the server.
    pub(crate) server: KubeApi,
    /// node-ctl's port to the server.
    pub(crate) node_server: node_ctl::api::KubeApi,
    /// cluster-ctl's port to the model.
    pub(crate) model: SimKube,
    /// node-ctl's port to the model.
    pub(crate) node_model: SimNodeKube,
    client: Client,
    namespace: TestNamespace,
    world: Shared,
    memory: BTreeMap<Side, Memory>,
}

impl Pair {
    /// A namespace of the server's, and an empty world.
    pub(crate) async fn new() -> Result<Self> {
        let server = Server::ready().await?;
        let client = server.cluster.client.clone();
        let namespace = TestNamespace::create(&server.cluster, "api-conformance").await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace.name);
        eventually("the namespace's service account", Duration::from_mins(1), || async {
            Ok(Probe::of(accounts.get_opt("default").await?.is_some(), "none"))
        })
        .await?;
        let events = |manager| Events::new(client.clone(), manager, None);
        let (caches, _) = Caches::start(&client);
        let world = World::new(1, 0, Tempo { pod_start: 1_000 }, Rates::default());
        let cluster_caches = ClusterCaches::listed(&world.api, || 0);
        let world = Arc::new(Mutex::new(world));
        Ok(Self {
            server: KubeApi::new(client.clone(), caches, events(names::MANAGER_CLUSTER)),
            node_server: node_ctl::api::KubeApi::new(client.clone(), events(names::MANAGER_NODE)),
            model: SimKube::new(&Line::new(&world, "cluster"), Arc::new(Mutex::new(cluster_caches))),
            node_model: SimNodeKube::new(&Line::new(&world, "node")),
            client,
            namespace,
            world,
            memory: BTreeMap::from([(Side::Server, Memory::default()), (Side::Model, Memory::default())]),
        })
    }

    /// The namespace of a side.
    pub(crate) fn namespace(&self, side: Side) -> &str {
        match side {
            Side::Server => &self.namespace.name,
            Side::Model => NAMESPACE,
        }
    }

    /// Runs a call to the model: its time passes until there is an answer.
    pub(crate) fn drive<T>(&self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(answer) = call.as_mut().poll(&mut context) {
                return answer;
            }
            self.pass(1);
        }
    }

    /// The model's time passes.
    fn pass(&self, time: Ms) {
        let mut world = lock(&self.world);
        let end = world.now + time;
        while let Some(next) = world.queue.next().filter(|next| *next <= end) {
            world.now = next.max(world.now);
            let now = world.now;
            while let Some(effect) = world.queue.due(now) {
                effect(&mut world);
            }
        }
        world.now = end;
    }

    fn api<T>(&self) -> Api<T>
    where
        T: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace.name)
    }

    /// The object of a name, which both sides have.
    pub(crate) async fn get<T>(&self, name: &str) -> Result<Held<T>>
    where
        T: Stored + Resource<Scope = NamespaceResourceScope> + DeserializeOwned + Debug,
    {
        let server = self.api::<T>().get(name).await?;
        let model = lock(&self.world).api.get::<T>(name);
        let model = model.ok_or_else(|| anyhow::anyhow!("the model has no {name}"))?;
        Ok(Held { server, model: T::clone(&model) })
    }

    /// Somebody else creates an object.
    pub(crate) async fn create<T>(&self, object: &T) -> Result<()>
    where
        T: Stored + Resource<Scope = NamespaceResourceScope> + DeserializeOwned + Serialize + Debug,
    {
        self.api::<T>().create(&PostParams::default(), object).await?;
        let mut world = lock(&self.world);
        let now = world.now;
        world.api.create(now, object.clone())?;
        Ok(())
    }

    /// Somebody else changes an object by a merge patch; the model by `change`.
    pub(crate) async fn edit<T>(&self, name: &str, patch: &Value, change: impl FnOnce(&mut T)) -> Result<()>
    where
        T: Stored + Resource<Scope = NamespaceResourceScope> + DeserializeOwned + Serialize + Debug,
    {
        self.api::<T>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        let mut world = lock(&self.world);
        let now = world.now;
        world.api.update::<T>(now, name, None, None, |object| {
            change(object);
            Ok(())
        })?;
        Ok(())
    }

    /// Somebody else deletes an object.
    pub(crate) async fn delete<T>(&self, name: &str) -> Result<()>
    where
        T: Stored + Resource<Scope = NamespaceResourceScope> + DeserializeOwned + Debug,
    {
        self.api::<T>().delete(name, &DeleteParams::background()).await?;
        let mut world = lock(&self.world);
        let now = world.now;
        world.api.delete::<T>(now, name, None, None)?;
        Ok(())
    }

    /// Waits until both show the same objects, and returns them.
    pub(crate) async fn look(&mut self) -> Result<Shapes> {
        self.look_at(true, |_| true).await
    }

    /// As [`Pair::look`], and until the objects are as `wanted`: garbage goes some time after its owner on both sides,
    /// so both may show the same before and after.
    pub(crate) async fn look_until(&mut self, wanted: impl Fn(&Shapes) -> bool) -> Result<Shapes> {
        self.look_at(true, wanted).await
    }

    /// As [`Pair::look`], whatever has become of versions: a server writes down who manages a field from now on.
    pub(crate) async fn look_but_for_versions(&mut self) -> Result<Shapes> {
        self.look_at(false, |_| true).await
    }

    async fn look_at(&mut self, versions: bool, wanted: impl Fn(&Shapes) -> bool) -> Result<Shapes> {
        let shapes = eventually("both to show the same", LIMIT, || async {
            let server = self.of_server().await?;
            self.pass(LOOK);
            let (mut server, mut model) =
                (self.judge(Side::Server, server), self.judge(Side::Model, self.of_model()));
            if !versions {
                server.values_mut().chain(model.values_mut()).for_each(|shape| shape.changed = false);
            }
            let differences = differences(&server, &model);
            Ok(if !differences.is_empty() {
                Probe::NotYet(differences.join("\n"))
            } else if wanted(&server) {
                Probe::Yes(server)
            } else {
                Probe::NotYet(format!("both the same, and not what is wanted: {server:#?}"))
            })
        })
        .await?;
        let (server, model) = (self.of_server().await?, self.of_model());
        self.remember(Side::Server, server);
        self.remember(Side::Model, model);
        Ok(shapes)
    }

    async fn of_server(&self) -> Result<Vec<Seen>> {
        let mut found = Vec::new();
        self.list::<ValkeyCluster>(&mut found).await?;
        self.list::<ValkeyNode>(&mut found).await?;
        self.list::<Pod>(&mut found).await?;
        self.list::<Service>(&mut found).await?;
        self.list::<Secret>(&mut found).await?;
        self.list::<ConfigMap>(&mut found).await?;
        // Every namespace has it.
        found.retain(|seen| seen.key != "ConfigMap/kube-root-ca.crt");
        Ok(found)
    }

    async fn list<T>(&self, into: &mut Vec<Seen>) -> Result<()>
    where
        T: Compared + Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        into.extend(self.api::<T>().list(&ListParams::default()).await?.iter().map(seen));
        Ok(())
    }

    fn of_model(&self) -> Vec<Seen> {
        fn list<T: Stored + Compared>(world: &World, into: &mut Vec<Seen>) {
            into.extend(world.api.list::<T>().iter().map(|object| seen(object.as_ref())));
        }
        let world = lock(&self.world);
        let mut found = Vec::new();
        list::<ValkeyCluster>(&world, &mut found);
        list::<ValkeyNode>(&world, &mut found);
        list::<Pod>(&world, &mut found);
        list::<Service>(&world, &mut found);
        list::<Secret>(&world, &mut found);
        list::<ConfigMap>(&world, &mut found);
        found
    }

    /// The shapes, with what is new since the last look.
    fn judge(&self, side: Side, found: Vec<Seen>) -> Shapes {
        let memory = &self.memory[&side];
        let judged = found.into_iter().map(|seen| {
            let lives = memory.lives.get(&seen.key);
            let life =
                lives.map_or(0, |lives| lives.iter().position(|uid| *uid == seen.uid).unwrap_or(lives.len()));
            let changed = seen.shape.changed && memory.versions.get(&seen.key) != Some(&seen.version);
            (seen.key, Shape { life, changed, ..seen.shape })
        });
        judged.collect()
    }

    fn remember(&mut self, side: Side, found: Vec<Seen>) {
        let memory = self.memory.entry(side).or_default();
        for seen in found {
            let lives = memory.lives.entry(seen.key.clone()).or_default();
            if !lives.contains(&seen.uid) {
                lives.push(seen.uid);
            }
            memory.versions.insert(seen.key, seen.version);
        }
    }
}

fn differences(server: &Shapes, model: &Shapes) -> Vec<String> {
    let keys: std::collections::BTreeSet<&String> = server.keys().chain(model.keys()).collect();
    let differing = keys.into_iter().filter(|key| server.get(*key) != model.get(*key));
    differing
        .map(|key| format!("{key}: the server shows {:#?}, the model {:#?}", server.get(key), model.get(key)))
        .collect()
}

/// The class of an answer.
pub(crate) trait Class {
    /// In a word.
    fn class(&self) -> String;
}

impl<T> Class for Result<T, KubeError> {
    fn class(&self) -> String {
        match self {
            Ok(_) => "ok",
            Err(KubeError::Conflict { .. }) => "conflict",
            Err(KubeError::NotFound { .. }) => "not found",
            Err(KubeError::Exists { .. }) => "exists",
            Err(KubeError::NamespaceEnding { .. }) => "namespace ending",
            Err(KubeError::Failed { .. }) => "failed",
        }
        .to_owned()
    }
}

impl Class for Result<(), CallError> {
    fn class(&self) -> String {
        self.as_ref().map_or_else(|error| format!("{:?}", error.class), |()| "ok".to_owned())
    }
}

impl Class for Result<node_ctl::ports::Created, CallError> {
    fn class(&self) -> String {
        match self {
            Ok(node_ctl::ports::Created::New(_)) => "made".to_owned(),
            Ok(node_ctl::ports::Created::Taken) => "taken".to_owned(),
            Err(error) => format!("{:?}", error.class),
        }
    }
}

/// Both answers of `what` must be of class `wanted`.
pub(crate) fn same(
    what: &str,
    wanted: &str,
    server: &(impl Class + Debug),
    model: &(impl Class + Debug),
) -> Result<()> {
    let (by_server, by_model) = (server.class(), model.class());
    ensure!(
        by_server == by_model,
        "{what}: {by_server} by the server ({server:?}), {by_model} in the model ({model:?})"
    );
    ensure!(by_server == wanted, "{what}: {by_server}, not {wanted} ({server:?})");
    Ok(())
}

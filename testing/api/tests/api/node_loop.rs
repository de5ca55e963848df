//! The node loop against a real API server: one Pod per node, whoever else is at work and whenever we die.
//!
//! Runs passes of node-ctl in this process, with looks as old as its caches could be. Whether an installed operator
//! works on the same nodes does not matter: that is one more that may make the Pod. The cluster that the nodes belong
//! to names no config that exists, so that nobody makes nodes for it, and no server ever starts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use node_ctl::api::KubeApi;
use node_ctl::execute::REASON_NAME_TAKEN;
use node_ctl::ports::{CallClass, Key, Kube as _};
use node_ctl::reconcile::{AT_REST, Look, WHILE_BLOCKED, reconcile};
use serde_json::{Value, json};
use shared::api::{PodRecord, ValkeyNode, ValkeyNodeSpec};
use shared::events::Events;
use shared::names;
use support::{Probe, TestNamespace, eventually};
use test_api::Server;
use test_api::case::{object, with};
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_mins(1);

/// A placement that no machine has: the Pod is made, and nothing is started.
fn nowhere() -> Value {
    json!({ "nodeSelector": { "pool.example/kind": "nowhere" } })
}

/// A namespace with a cluster that nobody makes nodes for.
struct Scene {
    server: Server,
    namespace: TestNamespace,
    cluster: Value,
}

impl Scene {
    async fn new(shards: usize) -> Result<Self> {
        let server = Server::ready().await?;
        let namespace = TestNamespace::create(&server.cluster, "api-node-loop").await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(server.cluster.client.clone(), &namespace.name);
        eventually("the namespace's service account", LIMIT, || async {
            Ok(Probe::of(accounts.get_opt("default").await?.is_some(), "none"))
        })
        .await?;
        let spec = json!({ "configRef": namespace.name, "shards": shards, "replicasPerShard": 0 });
        let cluster = server.create(&object("ValkeyCluster", "c", &spec), &namespace.name).await?;
        Ok(Self { server, namespace, cluster })
    }

    fn api<T>(&self) -> Api<T>
    where
        T: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.server.cluster.client.clone(), &self.namespace.name)
    }

    /// A node-ctl of its own.
    fn loop_(&self) -> KubeApi {
        let client = self.server.cluster.client.clone();
        KubeApi::new(client.clone(), Events::new(client, names::MANAGER_NODE, None))
    }

    /// A new node with `more` merged in: of the cluster, if that is [`Scene::owned`].
    async fn node(&self, name: &str, shard: usize, more: &Value) -> Result<ValkeyNode> {
        let spec = json!({
            "clusterName": "c", "image": "registry.example/valkey:9.1.2", "version": "9.1.2", "shardIndex": shard,
            "lifecycle": "Joining",
            "placement": nowhere(),
        });
        let node = with(&object("ValkeyNode", name, &spec), more);
        Ok(serde_json::from_value(self.server.create(&node, &self.namespace.name).await?)?)
    }

    /// What makes an object the cluster's.
    fn owned(&self) -> Value {
        json!({ "metadata": { "ownerReferences": [{
            "apiVersion": self.cluster["apiVersion"], "kind": "ValkeyCluster", "name": "c",
            "uid": self.cluster["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
        }] } })
    }

    /// A look at the node as it is now.
    async fn look(&self, name: &str) -> Result<Look> {
        let node = self.api::<ValkeyNode>().get(name).await?;
        let pod = self.api::<Pod>().get_opt(name).await?;
        let config_map = self.api::<ConfigMap>().get_opt(&names::node_config_map(name)).await?;
        Ok(Look::cached(node.into(), pod.as_ref(), config_map.as_ref().map(|found| &found.metadata)))
    }

    /// Passes until one ends in `rest`.
    async fn settle(&self, by: &KubeApi, name: &str, rest: Duration) -> Result<()> {
        eventually("the node to come to rest", LIMIT, || async {
            let look = self.look(name).await?;
            let passed = reconcile(by, look, || false, |_| {}).await.map_err(anyhow::Error::from)?;
            Ok(Probe::of(passed == rest, format!("next pass in {passed:?}")))
        })
        .await
    }

    /// The UID that is recorded on a node.
    async fn recorded(&self, name: &str) -> Result<Option<String>> {
        let node = self.api::<ValkeyNode>().get(name).await?;
        Ok(node.status.and_then(|status| status.pod).map(|record| record.uid))
    }

    /// UIDs of all Pods that ever were in the namespace since `version`, by name.
    async fn ever_since(&self, version: &str) -> Result<BTreeMap<String, BTreeSet<String>>> {
        use futures::StreamExt as _;
        let mut ever: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let params = WatchParams::default().timeout(2);
        let mut events = self.api::<Pod>().watch(&params, version).await?.boxed();
        while let Some(event) = events.next().await {
            if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) | WatchEvent::Deleted(pod) = event? {
                ever.entry(pod.name_any()).or_default().insert(pod.uid().context("a Pod without UID")?);
            }
        }
        Ok(ever)
    }

    /// The version of the namespace's Pods now.
    async fn version(&self) -> Result<String> {
        let list = self.api::<Pod>().list(&ListParams::default()).await?;
        list.metadata.resource_version.context("a list without version")
    }
}

fn at_once() -> DeleteParams {
    DeleteParams::default().grace_period(0)
}

#[tokio::test]
async fn another_s_pod_of_the_node_s_name_is_refused_told_and_left_alone() {
    let scene = Scene::new(1).await.unwrap();
    let (pods, us) = (scene.api::<Pod>(), scene.loop_());
    // With our labels too: they do not make it ours.
    let theirs = json!({
        "metadata": { "name": "c-00001", "labels": {
            "app.kubernetes.io/name": "valkey", "app.kubernetes.io/instance": "c",
            "app.kubernetes.io/managed-by": "valkey-operator", "app.kubernetes.io/component": "node",
        } },
        "spec": {
            "nodeSelector": { "pool.example/kind": "nowhere" },
            "containers": [{ "name": "valkey", "image": "registry.example/theirs" }],
        },
    });
    let theirs: Pod = serde_json::from_value(theirs).unwrap();
    let before = pods.create(&PostParams::default(), &theirs).await.unwrap();
    scene.node("c-00001", 0, &scene.owned()).await.unwrap();
    for _ in 0..3 {
        scene.settle(&us, "c-00001", WHILE_BLOCKED).await.unwrap();
    }
    let after = pods.get("c-00001").await.unwrap();
    assert_eq!((after.uid(), after.labels()), (before.uid(), before.labels()));
    assert_eq!((after.metadata.finalizers, after.metadata.deletion_timestamp), (None, None));
    assert_eq!(scene.recorded("c-00001").await.unwrap(), None);
    let events: Api<k8s_openapi::api::events::v1::Event> = scene.api();
    let told = eventually("the event", LIMIT, || async {
        let all = events.list(&ListParams::default()).await?;
        let about = all.into_iter().find(|event| event.reason.as_deref() == Some(REASON_NAME_TAKEN));
        Ok(about.and_then(|event| event.note).map_or(Probe::NotYet("none".to_owned()), Probe::Yes))
    });
    assert!(told.await.unwrap().contains("Pod \"c-00001\" belongs to nobody"));

    // Its owner takes it away: then the node gets its own.
    pods.delete("c-00001", &at_once()).await.unwrap();
    scene.settle(&us, "c-00001", AT_REST).await.unwrap();
    let ours = pods.get("c-00001").await.unwrap();
    assert_ne!(ours.uid(), before.uid());
    assert_eq!(scene.recorded("c-00001").await.unwrap(), ours.uid());
    assert_eq!(ours.metadata.finalizers, None, "a recorded Pod is held by nobody");
    leave_nothing(&scene, &us).await.unwrap();
}

#[tokio::test]
async fn a_held_pod_outlives_its_deletion_until_exactly_our_hold_is_taken_off() {
    let scene = Scene::new(1).await.unwrap();
    let (pods, us) = (scene.api::<Pod>(), scene.loop_());
    let mut node = ValkeyNode::new("c-00003", ValkeyNodeSpec::default());
    node.metadata.namespace = Some(scene.namespace.name.clone());
    node.spec.placement = Some(serde_json::from_value(nowhere()).unwrap());
    let mut built = node_ctl::pod::build(&node, &BTreeMap::new());
    // Of no node, so that nobody else acts on it.
    built.metadata.owner_references = None;
    built.spec.as_mut().unwrap().containers[0].image = Some("registry.example/valkey".to_owned());
    built.finalizers_mut().push("team.example/other".to_owned());
    let uid = pods.create(&PostParams::default(), &built).await.unwrap().uid().unwrap();
    pods.delete("c-00003", &at_once()).await.unwrap();
    let held = pods.get("c-00003").await.unwrap();
    assert!(held.metadata.deletion_timestamp.is_some());
    assert_eq!(held.finalizers(), [names::POD_FINALIZER, "team.example/other"]);

    let key = Key::new(&scene.namespace.name, "c-00003");
    us.release_pod(&key, "another-uid").await.unwrap();
    assert_eq!(pods.get("c-00003").await.unwrap().finalizers().len(), 2, "a Pod of another UID was released");
    us.release_pod(&key, &uid).await.unwrap();
    assert_eq!(pods.get("c-00003").await.unwrap().finalizers(), ["team.example/other"]);
    // Again is no error and changes nothing. The scheduler may write to the Pod at any moment, but not each time.
    eventually("a release that changes nothing", LIMIT, || async {
        let before = pods.get("c-00003").await?.resource_version();
        us.release_pod(&key, &uid).await?;
        let after = pods.get("c-00003").await?.resource_version();
        Ok(Probe::of(before == after, format!("version {before:?}, then {after:?}")))
    })
    .await
    .unwrap();
    // What is written on a node is written on exactly that one, too.
    let (record, nodes) = (PodRecord { uid, ..PodRecord::default() }, scene.api::<ValkeyNode>());
    let mut former = scene.node("c-00004", 0, &json!({})).await.unwrap();
    former.metadata.uid = Some("former".to_owned());
    former.metadata.resource_version = Some("1".to_owned());
    for written in [
        us.record_pod(&former, &record).await,
        us.set_finalizers(&former, vec!["team.example/other".to_owned()]).await,
    ] {
        assert_eq!(written.map_err(|error| error.class), Err(CallClass::Conflict));
    }
    let now = nodes.get("c-00004").await.unwrap();
    assert_eq!(now.status.and_then(|status| status.pod), None);
    assert!(!now.metadata.finalizers.unwrap_or_default().contains(&"team.example/other".to_owned()));

    let uid = &record.uid;
    let none = json!({ "metadata": { "finalizers": null } });
    pods.patch("c-00003", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    assert!(pods.get_opt("c-00003").await.unwrap().is_none());
    us.release_pod(&key, uid).await.unwrap();
    leave_nothing(&scene, &us).await.unwrap();
}

#[tokio::test]
async fn a_pod_deleted_between_its_creation_and_its_record_is_recorded_and_not_made_again() {
    let scene = Scene::new(1).await.unwrap();
    let (pods, us) = (scene.api::<Pod>(), scene.loop_());
    let version = scene.version().await.unwrap();
    // Without its cluster nobody makes this node's Pod. A process that had seen one made it and died; before another
    // one looks, somebody deletes it by force.
    let node = scene.node("c-00002", 0, &json!({})).await.unwrap();
    let built = node_ctl::pod::build(&node, &BTreeMap::new());
    let made = pods.create(&PostParams::default(), &built).await.unwrap();
    pods.delete("c-00002", &at_once()).await.unwrap();
    let nodes = scene.api::<ValkeyNode>();
    nodes.patch("c-00002", &PatchParams::default(), &Patch::Merge(scene.owned())).await.unwrap();
    scene.settle(&us, "c-00002", AT_REST).await.unwrap();
    assert_eq!(scene.recorded("c-00002").await.unwrap(), made.uid());
    eventually("the released Pod to be gone", LIMIT, || async {
        Ok(Probe::of(pods.get_opt("c-00002").await?.is_none(), "there"))
    })
    .await
    .unwrap();
    scene.settle(&us, "c-00002", AT_REST).await.unwrap();
    let ever = scene.ever_since(&version).await.unwrap();
    assert_eq!(ever["c-00002"].len(), 1, "{ever:?}");
    leave_nothing(&scene, &us).await.unwrap();
}

#[tokio::test]
async fn two_side_by_side_make_one_pod_per_node_even_while_people_delete_them() {
    const NODES: usize = 8;
    let scene = Scene::new(NODES).await.unwrap();
    let version = scene.version().await.unwrap();
    let mut stale = Vec::new();
    for index in 0..NODES {
        let name = format!("c-0000{index}");
        // What a cache may hold for ever so long: the node as it was before anything was done for it.
        let node = scene.node(&name, index, &scene.owned()).await.unwrap();
        stale.push((name, Look::cached(node.into(), None, None)));
    }
    let work = async |seed: usize| -> Result<()> {
        let us = scene.loop_();
        let end = Instant::now() + Duration::from_secs(6);
        let mut turn = seed;
        while Instant::now() < end {
            let (name, old) = &stale[turn % NODES];
            let look = if turn.is_multiple_of(3) { old.clone() } else { scene.look(name).await? };
            // Conflicts are what two at work are for.
            drop(reconcile(&us, look, || false, |_| {}).await);
            turn += 1;
        }
        Ok(())
    };
    let people = async || -> Result<()> {
        let end = Instant::now() + Duration::from_secs(6);
        let mut turn = 0;
        while Instant::now() < end {
            // Gone already is fine.
            drop(scene.api::<Pod>().delete(&stale[turn % NODES].0, &at_once()).await);
            tokio::time::sleep(Duration::from_millis(70)).await;
            turn += 1;
        }
        Ok(())
    };
    let (one, two, deleted) = tokio::join!(work(0), work(4), people());
    one.and(two).and(deleted).unwrap();
    let us = scene.loop_();
    for (name, _) in &stale {
        scene.settle(&us, name, AT_REST).await.unwrap();
    }
    let ever = scene.ever_since(&version).await.unwrap();
    for (name, _) in &stale {
        let recorded = scene.recorded(name).await.unwrap();
        assert_eq!(
            ever[name].iter().collect::<Vec<_>>(),
            recorded.iter().collect::<Vec<_>>(),
            "{name}: {ever:?}"
        );
    }
    leave_nothing(&scene, &us).await.unwrap();
}

/// The nodes go with all that is theirs.
async fn leave_nothing(scene: &Scene, us: &KubeApi) -> Result<()> {
    let nodes = scene.api::<ValkeyNode>();
    for node in nodes.list(&ListParams::default()).await? {
        nodes.delete(&node.name_any(), &DeleteParams::default()).await?;
    }
    eventually("all nodes to be gone", LIMIT, || async {
        let left = nodes.list(&ListParams::default()).await?;
        for node in &left {
            let look = scene.look(&node.name_any()).await?;
            drop(reconcile(us, look, || false, |_| {}).await);
        }
        Ok(Probe::of(left.items.is_empty(), format!("{} left", left.items.len())))
    })
    .await?;
    let kinds = (scene.api::<Pod>(), scene.api::<ConfigMap>());
    let pods = kinds.0.list(&ListParams::default()).await?.items.len();
    let ours = format!("{}={}", names::LABEL_COMPONENT, names::COMPONENT_NODE);
    let config_maps = kinds.1.list(&ListParams::default().labels(&ours)).await?.items.len();
    ensure!((pods, config_maps) == (0, 0), "{pods} Pods and {config_maps} ConfigMaps are left");
    Ok(())
}

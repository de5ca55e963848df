//! Where pods go: the Pod that a node gets, on a real API server and in the hands of a real scheduler.
//!
//! The Pods are those that node-ctl builds, without their owner: nothing but the scheduler acts on them, and nothing in
//! them ever starts. Needs machines in three zones, as the local cluster has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use shared::api::{Lifecycle, Placement, ValkeyNode, ValkeyNodeSpec, ZoneSpread};
use shared::names;
use support::{Cluster, Probe, TestNamespace, eventually};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
/// The scheduler decides within milliseconds; a machine under load takes longer.
const LIMIT: Duration = Duration::from_mins(1);

/// A namespace that enforces the restricted Pod Security Standard, and the zones of the cluster.
struct Scene {
    cluster: Cluster,
    namespace: TestNamespace,
    /// Zone to the names of its machines that take pods.
    zones: BTreeMap<String, BTreeSet<String>>,
}

impl Scene {
    async fn new() -> Result<Self> {
        let cluster = Cluster::connect().await?;
        let labels = ["enforce", "warn", "audit"].map(|mode| format!("pod-security.kubernetes.io/{mode}"));
        let labels: Vec<(&str, &str)> = labels.iter().map(|label| (label.as_str(), "restricted")).collect();
        let namespace = TestNamespace::create_labelled(&cluster, "api-placement", &labels).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), &namespace.name);
        eventually("the namespace's service account", LIMIT, || async {
            Ok(Probe::of(accounts.get_opt("default").await?.is_some(), "none"))
        })
        .await?;
        let mut zones: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in Api::<Node>::all(cluster.client.clone()).list(&ListParams::default()).await? {
            let takes_pods =
                node.spec.as_ref().is_none_or(|spec| spec.taints.as_ref().is_none_or(Vec::is_empty));
            if let Some(zone) = node.labels().get(ZONE).filter(|_| takes_pods) {
                zones.entry(zone.clone()).or_default().insert(node.name_any());
            }
        }
        ensure!(zones.len() >= 3, "these tests need machines in three zones, there are {zones:?}");
        Ok(Self { cluster, namespace, zones })
    }

    fn zone_names(&self) -> Vec<String> {
        self.zones.keys().cloned().collect()
    }

    /// The Pod of a new node.
    fn pod(&self, name: &str, cluster: &str, shard: i32, placement: Option<Placement>, tls: bool) -> Pod {
        let mut node = ValkeyNode::new(
            name,
            ValkeyNodeSpec {
                cluster_name: cluster.to_owned(),
                image: "registry.example/valkey:9.1.2".to_owned(),
                cpu: Some("1m".to_owned()),
                memory: Some("1Mi".to_owned()),
                shard_index: shard,
                tls_secret: tls.then(|| "cert".to_owned()),
                placement,
                lifecycle: Lifecycle::Joining,
                ..ValkeyNodeSpec::default()
            },
        );
        node.metadata.namespace = Some(self.namespace.name.clone());
        node.metadata.uid = Some("8c1c9d5e-0000-4000-8000-000000000000".to_owned());
        let mut pod = node_ctl::pod::build(&node, &BTreeMap::new());
        // An owner that does not exist would have the pod collected, and nobody is here to let go of it.
        pod.metadata.owner_references = None;
        pod.metadata.finalizers = None;
        pod
    }

    /// Creates `members` pods for each of `shards`, member by member as a cluster grows.
    async fn fill(&self, cluster: &str, shards: i32, members: i32, placement: &Placement) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client.clone(), &self.namespace.name);
        for member in 0..members {
            for shard in 0..shards {
                let name = format!("{cluster}-{shard}-{member}");
                let pod = self.pod(&name, cluster, shard, Some(placement.clone()), false);
                pods.create(&PostParams::default(), &pod).await.with_context(|| name)?;
            }
        }
        Ok(())
    }

    async fn pods_of(&self, cluster: &str) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client.clone(), &self.namespace.name);
        let selector = format!("{}={cluster}", names::LABEL_INSTANCE);
        Ok(pods.list(&ListParams::default().labels(&selector)).await?.items)
    }

    /// Once all pods of a cluster have a machine: how many pods of each shard are in each zone, zones without one
    /// included.
    async fn spread(&self, cluster: &str) -> Result<BTreeMap<String, BTreeMap<String, usize>>> {
        eventually("every pod to have a machine", LIMIT, || async {
            let mut spread: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
            for pod in self.pods_of(cluster).await? {
                let Some(machine) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) else {
                    return Ok(Probe::NotYet(format!(
                        "{} has none: {:?}",
                        pod.name_any(),
                        unscheduled(&pod)
                    )));
                };
                let zone = self.zones.iter().find(|(_, machines)| machines.contains(machine));
                let zone = zone.map(|(zone, _)| zone.clone()).context("a machine without a zone")?;
                let shard = pod.labels()[names::LABEL_SHARD_INDEX].clone();
                let none = || self.zones.keys().map(|zone| (zone.clone(), 0)).collect();
                *spread.entry(shard).or_insert_with(none).entry(zone).or_default() += 1;
            }
            Ok(Probe::Yes(spread))
        })
        .await
    }
}

/// Why a pod has no machine, in the scheduler's words.
fn unscheduled(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|it| it.type_ == "PodScheduled" && it.status == "False")?;
    condition.message.as_deref()
}

fn zones(zones: &[String], zone_spread: ZoneSpread) -> Placement {
    Placement { zones: zones.to_vec(), zone_spread: Some(zone_spread), node_selector: BTreeMap::new() }
}

/// Most pods in one of `zones` minus fewest.
fn skew(shard: &BTreeMap<String, usize>, zones: &[String]) -> usize {
    let counts = || zones.iter().map(|zone| shard[zone]);
    counts().max().unwrap() - counts().min().unwrap()
}

#[tokio::test]
async fn every_placement_is_taken_without_a_warning_where_restricted_is_enforced() {
    let scene = Scene::new().await.unwrap();
    let all = scene.zone_names();
    let subsets = (0..8_usize)
        .map(|bits| (0..3).filter(move |bit| bits & (1 << bit) != 0).map(|bit: usize| all[bit].clone()));
    let selector = BTreeMap::from([("pool.example/kind".to_owned(), "cache".to_owned())]);
    let mut placements = vec![None];
    for zones in subsets.map(Iterator::collect::<Vec<_>>) {
        for zone_spread in [None, Some(ZoneSpread::BestEffort), Some(ZoneSpread::Required)] {
            for node_selector in [BTreeMap::new(), selector.clone()] {
                placements.push(Some(Placement { zones: zones.clone(), zone_spread, node_selector }));
            }
        }
    }
    let mut items: Vec<Value> = Vec::new();
    for (number, placement) in placements.into_iter().enumerate() {
        for tls in [false, true] {
            let name = format!("p-{number}-{tls}");
            items.push(serde_json::to_value(scene.pod(&name, "p", 0, placement.clone(), tls)).unwrap());
        }
    }
    let count = items.len();
    assert_eq!(count, 2 * (1 + 8 * 3 * 2));
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    let kubectl = scene.cluster.kubectl();
    let arguments = ["create", "--dry-run=server", "-o", "name", "-f", "-"];
    let said = kubectl.run_with(&arguments, &list.to_string()).await.unwrap();
    assert!(said.ok && said.err.is_empty(), "{}", said.err);
    assert_eq!(said.out.lines().count(), count, "{}", said.out);

    // The namespace does enforce it: without the security context it is refused.
    let mut careless = scene.pod("careless", "p", 0, None, false);
    careless.spec.as_mut().unwrap().security_context = None;
    let refused = kubectl.run_with(&arguments, &serde_json::to_string(&careless).unwrap()).await.unwrap();
    assert!(!refused.ok && refused.err.contains("violates PodSecurity \"restricted"), "{}", refused.err);
}

#[tokio::test]
async fn the_members_of_each_shard_go_to_different_zones() {
    let scene = Scene::new().await.unwrap();
    let spreads =
        [("prefer", Some(ZoneSpread::BestEffort)), ("unset", None), ("force", Some(ZoneSpread::Required))];
    for (cluster, zone_spread) in spreads {
        let placement = Placement { zone_spread, ..Placement::default() };
        scene.fill(cluster, 3, 3, &placement).await.unwrap();
        let spread = scene.spread(cluster).await.unwrap();
        let used = |shard: &BTreeMap<String, usize>| shard.values().filter(|count| **count > 0).count();
        assert!(spread.len() == 3 && spread.values().all(|shard| used(shard) == 3), "{cluster}: {spread:?}");
    }
}

#[tokio::test]
async fn pods_stay_in_the_zones_that_are_named() {
    let scene = Scene::new().await.unwrap();
    let all = scene.zone_names();
    for (number, allowed) in [&all[..1], &all[1..3]].into_iter().enumerate() {
        for (kind, zone_spread) in [("prefer", ZoneSpread::BestEffort), ("force", ZoneSpread::Required)] {
            let cluster = format!("{kind}-{number}");
            scene.fill(&cluster, 1, 4, &zones(allowed, zone_spread)).await.unwrap();
            let spread = scene.spread(&cluster).await.unwrap();
            let inside: usize = allowed.iter().map(|zone| spread["0"][zone]).sum();
            // Zones that are not named count for nothing, also not as empty ones that must be filled first.
            assert!(inside == 4 && skew(&spread["0"], allowed) <= 1, "{cluster}: {spread:?}");
        }
    }
}

#[tokio::test]
async fn a_required_spread_never_leaves_two_more_in_one_zone_than_in_another() {
    let scene = Scene::new().await.unwrap();
    scene.fill("big", 2, 8, &zones(&[], ZoneSpread::Required)).await.unwrap();
    let spread = scene.spread("big").await.unwrap();
    for (shard, counts) in &spread {
        assert!(skew(counts, &scene.zone_names()) <= 1, "shard {shard}: {counts:?}");
    }
    // Another cluster's pods, and another shard's, do not count.
    scene.fill("small", 2, 1, &zones(&[], ZoneSpread::Required)).await.unwrap();
    let spread = scene.spread("small").await.unwrap();
    assert!(spread.values().all(|counts| counts.values().sum::<usize>() == 1), "{spread:?}");
}

#[tokio::test]
async fn a_required_spread_leaves_a_pod_waiting_rather_than_unbalance_a_shard() {
    let scene = Scene::new().await.unwrap();
    let pods: Api<Pod> = Api::namespaced(scene.cluster.client.clone(), &scene.namespace.name);
    // A zone that counts but has no room: whoever keeps away from its occupants finds no machine there.
    let full = scene.zone_names()[0].clone();
    for machine in &scene.zones[&full] {
        let node_selector = BTreeMap::from([(HOST.to_owned(), machine.clone())]);
        let placement = Placement { node_selector, ..Placement::default() };
        scene.fill(&format!("occupant-{machine}"), 1, 1, &placement).await.unwrap();
        scene.spread(&format!("occupant-{machine}")).await.unwrap();
    }
    let keep_away = json!({ "requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": HOST,
        "labelSelector": { "matchExpressions": [
            { "key": names::LABEL_INSTANCE, "operator": "NotIn", "values": ["force", "prefer"] },
        ] },
    }] });
    let keep_away = serde_json::from_value(keep_away).unwrap();
    for (cluster, zone_spread) in [("prefer", ZoneSpread::BestEffort), ("force", ZoneSpread::Required)] {
        for member in 0..3 {
            let name = format!("{cluster}-{member}");
            let mut pod = scene.pod(&name, cluster, 0, Some(zones(&[], zone_spread)), false);
            let affinity = pod.spec.as_mut().unwrap().affinity.get_or_insert_default();
            affinity.pod_anti_affinity = Some(Clone::clone(&keep_away));
            pods.create(&PostParams::default(), &pod).await.unwrap();
        }
    }
    // Where spreading is only preferred, the two other zones take all three.
    let spread = scene.spread("prefer").await.unwrap();
    assert_eq!((spread["0"][&full], spread["0"].values().sum::<usize>()), (0, 3), "{spread:?}");
    eventually("one pod of three to be left waiting", LIMIT, || async {
        let pods = scene.pods_of("force").await?;
        let waiting: Vec<&str> = pods.iter().filter_map(unscheduled).collect();
        let placed = pods.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()));
        let as_meant = placed.count() == 2
            && waiting.len() == 1
            && waiting[0].contains("didn't match pod topology spread constraints");
        Ok(Probe::of(as_meant, format!("{waiting:?}")))
    })
    .await
    .unwrap();
    // It is not lost: once there is room it goes where it belongs.
    for pod in scene.pods_of(&format!("occupant-{}", scene.zones[&full].first().unwrap())).await.unwrap() {
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    let spread = scene.spread("force").await.unwrap();
    assert!(spread["0"].values().all(|count| *count == 1), "{spread:?}");
}

#[tokio::test]
async fn a_node_selector_is_honoured() {
    let scene = Scene::new().await.unwrap();
    let (zone, machine) =
        scene.zones.iter().nth(1).map(|(zone, machines)| (zone, machines.first().unwrap())).unwrap();
    let only = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let placement = Placement {
        node_selector: only(HOST, machine),
        zone_spread: Some(ZoneSpread::Required),
        ..Placement::default()
    };
    scene.fill("chosen", 1, 3, &placement).await.unwrap();
    // Machines that the selector leaves out count for nothing in the spread.
    assert_eq!(scene.spread("chosen").await.unwrap()["0"][zone], 3);

    let placement = Placement { node_selector: only("pool.example/kind", "nowhere"), ..Placement::default() };
    scene.fill("nowhere", 1, 1, &placement).await.unwrap();
    eventually("the scheduler's refusal", LIMIT, || async {
        let pods = scene.pods_of("nowhere").await?;
        let why = pods.first().and_then(unscheduled).unwrap_or_default();
        Ok(Probe::of(why.contains("didn't match Pod's node affinity/selector"), why))
    })
    .await
    .unwrap();
}

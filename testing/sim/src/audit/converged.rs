//! What must be true once nothing disturbs any more: the cluster is as specified, all of it, and nothing else is left.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::ResourceExt;
use shared::api::{ClusterState, Lifecycle, ValkeyCluster, ValkeyNode};
use shared::names;
use shared::slots::{SLOT_COUNT, SlotSet};
use shared::valkey::types::NodeId;

use crate::world::World;
use crate::world::apiserver::owner;
use crate::world::valkey::node::Node;

type Verdict = Result<(), String>;

fn check(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

impl World {
    /// What the operator says of each cluster: why it waits.
    pub fn said(&self) -> String {
        let words = |cluster: &std::sync::Arc<ValkeyCluster>| {
            let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
            let progressing = conditions.filter(|condition| condition.type_ == "Progressing");
            let words: Vec<String> =
                progressing.map(|condition| format!("{}: {}", condition.reason, condition.message)).collect();
            format!("{} says {}", cluster.name_any(), words.join("; "))
        };
        self.api.list::<ValkeyCluster>().iter().map(words).collect::<Vec<_>>().join(", ")
    }

    /// Every cluster that exists is whole, and nothing of any other is left.
    pub fn converged(&self) -> Verdict {
        let clusters = self.api.list::<ValkeyCluster>();
        for cluster in &clusters {
            check(cluster.metadata.deletion_timestamp.is_none(), || {
                format!("{} is still being deleted", cluster.name_any())
            })?;
            self.converged_cluster(cluster)?;
        }
        let names: BTreeSet<String> = clusters.iter().map(|cluster| cluster.name_any()).collect();
        let uids: BTreeSet<String> = clusters.iter().filter_map(|cluster| cluster.uid()).collect();
        for node in self.api.list::<ValkeyNode>() {
            let ours = owner(&node.metadata).is_some_and(|uid| uids.contains(uid));
            check(ours, || format!("the node {} is left over", node.name_any()))?;
        }
        self.nothing_left::<Pod>(&names)?;
        self.nothing_left::<Service>(&names)?;
        self.nothing_left::<Secret>(&names)?;
        self.nothing_left::<ConfigMap>(&names)
    }

    fn nothing_left<T: crate::world::apiserver::Stored>(&self, clusters: &BTreeSet<String>) -> Verdict {
        for object in self.api.list::<T>() {
            let meta = object.meta();
            let name = meta.name.clone().unwrap_or_default();
            let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key));
            let cluster = label(names::LABEL_INSTANCE).is_some_and(|cluster| clusters.contains(cluster));
            let component = label(names::LABEL_COMPONENT).map(String::as_str);
            let node = name.trim_end_matches("-config");
            let alive =
                component != Some(names::COMPONENT_NODE) || self.api.get::<ValkeyNode>(node).is_some();
            check(cluster && alive && meta.deletion_timestamp.is_none(), || {
                format!("{} {name} is left over", T::kind(&()))
            })?;
        }
        Ok(())
    }

    fn converged_cluster(&self, cluster: &ValkeyCluster) -> Verdict {
        let name = cluster.name_any();
        let (shards, replicas) = (cluster.spec.shards, cluster.spec.replicas_per_shard);
        let members = i64::from(shards) * (i64::from(replicas) + 1);
        let nodes: Vec<_> = self
            .api
            .list::<ValkeyNode>()
            .into_iter()
            .filter(|node| owner(&node.metadata) == cluster.metadata.uid.as_deref())
            .collect();
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        check(count(nodes.len()) == members, || format!("{name} has {} nodes of {members}", nodes.len()))?;
        // An edit of the last moment is not seen in the status yet.
        check(!self.rolls(&name), || format!("{name} has outdated members"))?;
        let mut processes = Vec::new();
        for node in &nodes {
            processes.push(self.converged_node(node)?);
        }
        converged_views(&name, &processes, usize::try_from(shards).unwrap_or(0), replicas)?;
        let status = cluster.status.clone().unwrap_or_default();
        check(status.state == ClusterState::Active, || format!("{name} is {:?}", status.state))?;
        let condition = |kind: &str| {
            status.conditions.iter().find(|it| it.type_ == kind).map_or("absent", |it| it.status.as_str())
        };
        for (kind, wanted) in [("Ready", "True"), ("Progressing", "False"), ("Degraded", "False")] {
            check(condition(kind) == wanted, || format!("{name}: {kind} is {}", condition(kind)))?;
        }
        check(status.target_spec.is_none(), || format!("{name} keeps its snapshot"))?;
        let lost = self.lost_keys(&name);
        check(lost.is_empty(), || format!("{name} lost acknowledged writes (slot, value, held): {lost:?}"))
    }

    fn converged_node(&self, node: &ValkeyNode) -> Result<&Node, String> {
        let name = node.name_any();
        check(node.spec.lifecycle == Lifecycle::Active, || format!("{name} is {}", node.spec.lifecycle))?;
        check(node.metadata.deletion_timestamp.is_none(), || format!("{name} is being deleted"))?;
        let pod = self.api.get::<Pod>(&name).ok_or_else(|| format!("{name} has no Pod"))?;
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let joined = conditions
            .filter(|condition| condition.type_ == names::READINESS_GATE)
            .any(|condition| condition.status == "True");
        check(joined, || format!("{name} is not published"))?;
        let process = self
            .valkey
            .in_pod(&pod.uid().unwrap_or_default())
            .ok_or_else(|| format!("{name} has no living process"))?;
        let role = if process.primary.is_some() { "replica" } else { "primary" };
        let label = pod.labels().get(names::LABEL_ROLE).map(String::as_str);
        check(label == Some(role), || format!("{name} is labelled {label:?} but is a {role}"))?;
        check(process.serves(self.now), || format!("{name} does not serve"))?;
        Ok(process)
    }
}

/// Every member knows exactly the others, all agree who owns what, each shard has its replicas in sync.
fn converged_views(cluster: &str, members: &[&Node], shards: usize, replicas: i32) -> Verdict {
    let ids: BTreeSet<NodeId> = members.iter().map(|node| node.id).collect();
    let primaries: Vec<&&Node> = members.iter().filter(|node| node.votes()).collect();
    check(primaries.len() == shards, || format!("{cluster} has {} shards of {shards}", primaries.len()))?;
    let owned: SlotSet = primaries.iter().flat_map(|node| node.own_slots().ranges().to_vec()).collect();
    check(owned.len() == SLOT_COUNT, || format!("{cluster} serves {} slots", owned.len()))?;
    let epochs: BTreeSet<u64> = primaries.iter().map(|node| node.epoch).collect();
    check(epochs.len() == primaries.len(), || format!("{cluster} has two primaries of one epoch"))?;
    for node in members {
        let mut known: BTreeSet<NodeId> = node.peers.keys().copied().collect();
        known.insert(node.id);
        let name = &node.home.pod;
        let more: Vec<_> = known.difference(&ids).collect();
        check(known == ids, || {
            format!("{name} knows {} nodes of {}, and {more:?} besides", known.len(), ids.len())
        })?;
        let failing = node.peers.values().any(super::super::world::valkey::node::Peer::failing);
        check(!failing, || format!("{name} believes that somebody failed"))?;
        for primary in &primaries {
            check(node.slots_of(primary.id) == primary.own_slots(), || {
                format!("{name} and {} disagree about its slots", primary.home.pod)
            })?;
        }
    }
    for node in members {
        check(node.handshakes.is_empty(), || format!("{} is still greeting somebody", node.home.pod))?;
    }
    for primary in primaries {
        let synced = members.iter().filter(|node| node.primary == Some(primary.id) && node.link.up).count();
        check(i32::try_from(synced) == Ok(replicas), || {
            format!("{} has {synced} replicas of {replicas}", primary.home.pod)
        })?;
    }
    Ok(())
}

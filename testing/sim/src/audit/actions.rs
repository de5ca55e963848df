//! Verdicts on writes to Kubernetes: what is created, deleted and released.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use shared::api::{Lifecycle, ValkeyCluster, ValkeyNode};

use super::commands::ON_ITS_WAY;
use crate::world::World;
use crate::world::apiserver::owner;
use crate::world::valkey::node::Node;

impl World {
    /// Whether any member of the cluster has left `Joining`.
    pub fn formed(&self, cluster: &str) -> bool {
        let nodes = self.api.list::<ValkeyNode>();
        nodes
            .iter()
            .any(|node| node.spec.cluster_name == cluster && node.spec.lifecycle != Lifecycle::Joining)
    }

    /// A node is made: only where the shard lacks one.
    pub fn judge_create(&mut self, node: &ValkeyNode) {
        let cluster = &node.spec.cluster_name;
        let Some(spec) = self.api.get::<ValkeyCluster>(cluster) else { return };
        self.judge_loss(node);
        let snapshot = spec.status.as_ref().and_then(|status| status.target_spec.as_ref());
        let replicas = snapshot.map_or(0, |spec| spec.replicas_per_shard).max(spec.spec.replicas_per_shard);
        let retry = node.annotations().contains_key(shared::names::ANNOTATION_START_ATTEMPT);
        let present = self
            .api
            .list::<ValkeyNode>()
            .iter()
            .filter(|other| {
                other.spec.cluster_name == *cluster && other.spec.shard_index == node.spec.shard_index
            })
            .filter(|other| other.metadata.deletion_timestamp.is_none() && !self.has_ended(other))
            .filter(|other| other.spec.lifecycle != Lifecycle::Leaving && !self.was_reset(other))
            .count();
        // A successor comes before what it replaces goes.
        let rolls = i64::from(self.rolls(cluster) || self.is_troubled(cluster));
        // Two operators may both find the place empty; what is too many goes again.
        // Decided before an edit, done after it.
        let edited = self.audit.edited.get(cluster).is_some_and(|at| self.now - at < 5_000);
        if self.twins || retry || edited {
            return;
        }
        if i64::try_from(present).unwrap_or(i64::MAX) > i64::from(replicas) + rolls {
            self.violated(format!(
                "{} is made although shard {} has {present} nodes",
                node.name_any(),
                node.spec.shard_index
            ));
        }
    }

    /// The heir of a lost shard is made: nobody of the shard lives who owns its slots or holds a copy of them.
    fn judge_loss(&mut self, heir: &ValkeyNode) {
        let join = heir.labels().get(shared::names::LABEL_JOIN_TYPE);
        if join.map(String::as_str) != Some("primary") {
            return;
        }
        let of_shard = |node: &&Node| {
            let object = self.api.get::<ValkeyNode>(&node.home.pod);
            object.is_some_and(|object| object.spec.shard_index == heir.spec.shard_index)
        };
        let keeps = |node: &&Node| match node.primary {
            None => !node.own_slots().is_empty(),
            Some(primary) => node.stream.synced && !node.slots_of(primary).is_empty(),
        };
        let keeper = self.valkey.of_cluster(&heir.spec.cluster_name).filter(of_shard).find(keeps);
        if let Some(keeper) = keeper {
            let words = format!(
                "{} is made for a lost shard although {} of it lives with its slots",
                heir.name_any(),
                keeper.home.pod
            );
            self.violated(words);
        }
    }

    /// Some node of the cluster is not what would be made now.
    pub(super) fn rolls(&self, cluster: &str) -> bool {
        let image =
            self.menu.images.values().next().map(|image| format!("{}:{}", image.repository, image.tag));
        let nodes = self.api.list::<ValkeyNode>();
        nodes.iter().any(|node| node.spec.cluster_name == cluster && Some(&node.spec.image) != image.as_ref())
    }

    /// Something of the cluster was hurt and may still count as lost.
    fn is_troubled(&self, cluster: &str) -> bool {
        self.audit.hurt.contains_key(cluster)
    }

    /// The Pod of the node has ended, or is told to go, or is gone.
    fn has_ended(&self, node: &ValkeyNode) -> bool {
        let Some(record) = node.status.as_ref().and_then(|status| status.pod.as_ref()) else { return false };
        let pod = self.api.get::<Pod>(&node.name_any());
        let told_to_go = pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
        told_to_go
            || record.terminated_at.is_some()
            || self.valkey.in_pod(&record.uid).is_none() && self.pod_ran(&node.name_any())
    }

    /// Its process is under another ID than the recorded one: nobody's member any more.
    fn was_reset(&self, node: &ValkeyNode) -> bool {
        let Some(status) = node.status.as_ref() else { return false };
        let process = status.pod.as_ref().and_then(|record| self.valkey.in_pod(&record.uid));
        process.is_some_and(|process| status.node_id.as_ref().is_some_and(|id| *id != process.id.to_string()))
    }

    /// The Pod of this name has or had a process; gone counts.
    fn pod_ran(&self, name: &str) -> bool {
        let Some(pod) = self.api.get::<Pod>(name) else { return true };
        let status = pod.status.as_ref();
        status.and_then(|status| status.pod_ip.as_ref()).is_some()
    }

    /// A node is deleted: it owns nothing and is nobody's member, unless the whole cluster goes.
    pub fn judge_delete(&mut self, name: &str, uid: &str) {
        let Some(node) = self.api.get::<ValkeyNode>(name).filter(|node| node.uid().as_deref() == Some(uid))
        else {
            return;
        };
        let cluster = self.api.get::<ValkeyCluster>(&node.spec.cluster_name);
        let controller = cluster.as_ref().and_then(|cluster| cluster.uid());
        if controller.is_some() && owner(&node.metadata) != controller.as_deref() {
            self.violated(format!("deletes {name}, which is not of its cluster"));
        }
        if cluster.is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some()) {
            return;
        }
        let record = node.status.as_ref().and_then(|status| status.pod.as_ref());
        let Some(process) = record.and_then(|record| self.valkey.in_pod(&record.uid)) else { return };
        let id = process.id;
        let mut words = Vec::new();
        if process.primary.is_none() && !process.own_slots().is_empty() {
            words.push(format!("deletes {name}, which lives and owns {}", process.own_slots()));
        }
        let others =
            self.valkey.of_cluster(&node.spec.cluster_name).filter(|other| other.id != id && !other.frozen);
        for other in others {
            // Met on the way of the command, or out of the operator's sight: it is forgotten there as a dead one.
            let unseen = self.valkey.network.cut_of(other.id).operator;
            let known = other.peers.get(&id).filter(|peer| self.now - peer.met > ON_ITS_WAY && !unseen);
            if other.slots.contains_key(&id) {
                words.push(format!("deletes {name}, which owns slots in the view of {}", other.home.pod));
            } else if known.is_some() {
                words.push(format!("deletes {name}, which lives and is known to {}", other.home.pod));
            }
        }
        if let Some(words) = words.into_iter().next() {
            self.violated(words);
        }
    }

    /// The cluster is let go: none of its nodes is left.
    pub fn judge_release(&mut self, cluster: &str) {
        let Some(object) = self.api.get::<ValkeyCluster>(cluster) else { return };
        let uid = object.uid();
        let left = self.api.list::<ValkeyNode>();
        let left: Vec<String> = left
            .iter()
            .filter(|node| owner(&node.metadata) == uid.as_deref())
            .map(|node| node.name_any())
            .collect();
        if !left.is_empty() {
            self.violated(format!("{cluster} is let go although {} are left", left.join(", ")));
        }
    }

    /// A Pod was created for the node of this UID: once ever.
    pub fn note_pod(&mut self, node_uid: &str) {
        let count = self.audit.pods.entry(node_uid.to_owned()).or_default();
        *count += 1;
        // Of two node-ctls one may create while the other takes away: the node goes, and both Pods with it.
        if *count > 1 && !self.twins {
            self.violated(format!("a second Pod is made for the node of UID {node_uid}"));
        }
    }

    /// A Pod is deleted by cluster-ctl: only that of a member whom neither the operator nor any peer reaches, and that
    /// owns nothing or has a replica with its data; or of one that leaves and has nothing that is not another's.
    pub fn judge_pod_end(&mut self, name: &str, uid: &str) {
        let Some(node) = self.valkey.in_pod(uid) else { return };
        let cut = self.valkey.network.cut_of(node.id);
        let silent = node.frozen || (cut.peers && cut.operator);
        let copied = self
            .valkey
            .of_cluster(&node.home.cluster)
            .any(|other| other.primary == Some(node.id) && other.stream.synced && other.id != node.id);
        // One that came back a moment ago was decided on when it was away.
        let lately = self.audit.hurt.get(&node.home.cluster).is_some_and(|at| self.now - at < 60_000);
        let others = || self.valkey.of_cluster(&node.home.cluster).filter(|other| other.id != node.id);
        let idle = others().next().is_some() && others().all(|other| other.slots_of(node.id).is_empty());
        if self.leaves_nothing(node) {
            return;
        }
        if !(copied || idle) || !(silent || lately) {
            self.violated(format!("deletes the Pod {name}, whose process lives (copied: {copied})"));
        }
    }

    /// It is Leaving, owns nothing, is followed by nobody, and a living primary owns the slot of each of its keys.
    fn leaves_nothing(&self, node: &Node) -> bool {
        let object = self.api.get::<ValkeyNode>(&node.home.pod);
        let leaves = object.is_some_and(|object| object.spec.lifecycle == Lifecycle::Leaving);
        let others: Vec<&Node> =
            self.valkey.of_cluster(&node.home.cluster).filter(|other| other.id != node.id).collect();
        let owned =
            |slot: &u16| others.iter().any(|it| it.primary.is_none() && it.own_slots().contains(*slot));
        leaves
            && node.primary.is_none()
            && node.own_slots().is_empty()
            && others.iter().all(|other| other.primary != Some(node.id))
            && node.stream.keys.keys().all(owned)
    }

    /// A Pod is deleted by node-ctl: only one whose node goes or is gone.
    pub fn judge_pod_delete(&mut self, name: &str) {
        let Some(pod) = self.api.get::<Pod>(name) else { return };
        let ours = pod.metadata.owner_references.iter().flatten().any(|it| it.kind == "ValkeyNode");
        let node = self.api.get::<ValkeyNode>(name);
        let node = node.filter(|node| node.uid().as_deref() == owner(&pod.metadata));
        let stays = node.is_some_and(|node| node.metadata.deletion_timestamp.is_none());
        if stays || !ours {
            self.violated(format!("deletes the Pod {name}, whose node stays or is not its own"));
        }
    }
}

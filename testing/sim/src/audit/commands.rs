//! Verdicts on commands to Valkey nodes, at the moment at which the node carries them out.

use std::net::IpAddr;

use cluster_ctl::ports::Command;
use shared::api::{ValkeyCluster, ValkeyNode};
use shared::slots::SlotSet;
use shared::valkey::commands::FailoverKind;
use shared::valkey::types::NodeId;

use crate::world::World;
use crate::world::valkey::network::{Contact, Cut, End};
use crate::world::valkey::node::Node;

/// A command is carried out within this time after its node was looked at, milliseconds.
pub(super) const ON_ITS_WAY: crate::clock::Ms = 1_000;
/// A trouble is over after this time, milliseconds.
const CALM: crate::clock::Ms = 15_000;

impl World {
    /// The process `id` is about to carry out `command`.
    pub fn judge_command(&mut self, id: NodeId, command: &Command) {
        let Some(node) = self.valkey.nodes.get(&id) else { return };
        let mut words = self.unrecorded(node, command);
        words.extend(match command {
            Command::SetConfigEpoch(epoch) => self.epoch_in_use(node, epoch.0),
            Command::AddSlots(ranges) => {
                let slots = SlotSet::from_ranges(ranges.iter().copied());
                let mut words = self.slots_in_use(node, &slots);
                words.extend(self.claims_in_vain(node, &slots));
                words
            }
            Command::Meet(ip) => self.meets_stranger(node, *ip),
            Command::Replicate(primary) => self.follows_stranger(node, *primary),
            Command::Forget(other) => self.forgets_member(node, *other),
            Command::Failover(FailoverKind::Planned) => self.hands_over_wrongly(node),
            Command::Reset => self.resets_wrongly(node),
            Command::MigrateSlots(_, target) => self.moves_wrongly(node, *target),
            Command::Failover(kind) => self.promotes_wrongly(node, *kind),
        });
        for word in words {
            self.violated(word);
        }
    }

    /// Its ID and its Pod's UID are on its `ValkeyNode` before the first command that changes it.
    fn unrecorded(&self, node: &Node, command: &Command) -> Vec<String> {
        let status = self.api.get::<ValkeyNode>(&node.home.pod).and_then(|object| object.status.clone());
        let status = status.unwrap_or_default();
        let mut words = Vec::new();
        // One that was reset has a new ID; greeted by somebody it is reset again.
        let again = *command == Command::Reset && node.own_slots().is_empty();
        if !again && status.node_id.as_deref() != Some(node.id.to_string().as_str()) {
            words.push(format!("a command goes to {}, whose ID is not recorded", node.home.pod));
        }
        if status.pod.as_ref().map(|pod| pod.uid.as_str()) != Some(node.home.pod_uid.as_str()) {
            words.push(format!("a command goes to {}, whose Pod is not recorded", node.home.pod));
        }
        words
    }

    fn siblings<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = &'a Node> {
        self.valkey.of_cluster(&node.home.cluster).filter(|other| other.id != node.id)
    }

    fn epoch_in_use(&self, node: &Node, epoch: u64) -> Vec<String> {
        // Of one that nobody reaches the epoch may be unknown, and one may draw it while the command is on its way: the
        // engine settles such a collision, and a story must not end with one.
        let just_drawn = |other: &Node| other.drawn.is_some_and(|at| self.now - at < ON_ITS_WAY);
        let user = self
            .siblings(node)
            .filter(|other| other.primary.is_none() && other.epoch == epoch && self.is_reachable(other))
            .filter(|other| !other.peers.is_empty() || !self.is_deleted(other))
            .find(|other| !just_drawn(other));
        user.map(|other| format!("{} gets epoch {epoch} of {}", node.home.pod, other.home.pod))
            .into_iter()
            .collect()
    }

    /// Its `ValkeyNode` is gone or told to go.
    fn is_deleted(&self, node: &Node) -> bool {
        let object = self.api.get::<ValkeyNode>(&node.home.pod);
        object.is_none_or(|object| object.metadata.deletion_timestamp.is_some())
    }

    /// A slot that a living process owns, by its own account or by a view in which its owner lives.
    fn slots_in_use(&self, node: &Node, slots: &SlotSet) -> Vec<String> {
        let mut words = Vec::new();
        for other in self.siblings(node) {
            if other.primary.is_none() && other.own_slots().intersects(slots) {
                words.push(format!("{} gets slots that {} owns", node.home.pod, other.home.pod));
            }
            let owners = other.slots.iter().filter(|(_, owned)| owned.intersects(slots));
            for (owner, _) in owners {
                if *owner != node.id && *owner != other.id && self.valkey.nodes.contains_key(owner) {
                    let owner = self.valkey.name(*owner);
                    words.push(format!(
                        "{} gets slots that {owner} owns for {}",
                        node.home.pod, other.home.pod
                    ));
                }
            }
        }
        words
    }

    /// With an epoch that is not above that of the owner before it the slots would fall back to the dead (facts §9).
    fn claims_in_vain(&self, node: &Node, slots: &SlotSet) -> Option<String> {
        let pod = &node.home.pod;
        if node.epoch == 0 {
            return Some(format!("{pod} gets slots at epoch 0"));
        }
        let before = self.siblings(node).filter(|it| self.is_reachable(it)).find_map(|other| {
            let owner = other.slots.iter().find(|(id, owned)| **id != node.id && owned.intersects(slots))?;
            let epoch = other.epoch_of(*owner.0);
            (epoch >= node.epoch).then(|| (self.valkey.name(*owner.0), epoch))
        });
        before.map(|(owner, epoch)| {
            format!("{pod} gets slots at epoch {}, which {owner} owned at epoch {epoch}", node.epoch)
        })
    }

    fn meets_stranger(&self, node: &Node, ip: IpAddr) -> Vec<String> {
        let Contact::Answers(found) = self.valkey.network.dial(End::Operator, ip) else { return Vec::new() };
        let stranger = self.valkey.known.get(&found).is_none_or(|home| home.cluster != node.home.cluster);
        if stranger {
            vec![format!("{} is told to meet {} of another cluster", node.home.pod, self.valkey.name(found))]
        } else {
            Vec::new()
        }
    }

    fn follows_stranger(&self, node: &Node, primary: NodeId) -> Vec<String> {
        let home = self.valkey.known.get(&primary);
        if home.is_none_or(|home| home.cluster != node.home.cluster) {
            return vec![format!("{} is told to follow a stranger", node.home.pod)];
        }
        if !node.own_slots().is_empty() {
            return vec![format!("{}, which owns slots, is told to follow another", node.home.pod)];
        }
        Vec::new()
    }

    /// Never a slot owner in the node's view, never one that a living node follows. Whoever was forgotten by all itself is
    /// taken in anew, whomever it follows.
    fn forgets_member(&self, node: &Node, other: NodeId) -> Vec<String> {
        let name = self.valkey.name(other);
        let mut words = Vec::new();
        if node.slots.contains_key(&other) {
            words.push(format!("{} is told to forget {name}, which owns slots there", node.home.pod));
        }
        let listed = |it: &Node| self.siblings(it).any(|by| by.peers.contains_key(&it.id));
        let follows = |it: &&Node| it.primary == Some(other) && self.is_reachable(it) && listed(it);
        let follower = self.siblings(node).find(follows);
        if let Some(follower) = follower {
            words.push(format!("{name} is forgotten although {} follows it", follower.home.pod));
        }
        let owner = self.valkey.nodes.get(&other).filter(|it| it.votes() && self.is_reachable(it));
        // One that was succeeded meanwhile and has come back a moment ago does not know it yet.
        let succeeded = |owner: &Node| {
            self.siblings(owner).any(|it| it.votes() && it.own_slots().intersects(&owner.own_slots()))
        };
        if let Some(owner) = owner.filter(|owner| !succeeded(owner)) {
            words.push(format!("{name}, which lives and owns {}, is forgotten", owner.own_slots()));
        }
        words
    }

    /// A planned hand-over goes to a replica in sync with its living primary.
    fn hands_over_wrongly(&self, node: &Node) -> Vec<String> {
        let pod = &node.home.pod;
        if !node.stream.synced || (node.primary.is_some() && !node.link.up && self.is_calm(node)) {
            return vec![format!("{pod} is to take over, but is not in sync")];
        }
        Vec::new()
    }

    /// Who leaves owns nothing, nobody follows it, and its shard keeps its replicas.
    fn resets_wrongly(&self, node: &Node) -> Vec<String> {
        let pod = &node.home.pod;
        let mut words = Vec::new();
        // Elected since its role was read, on the way of the command; where a key could be lost the engine refuses.
        let just_elected = node.promoted.is_some_and(|at| self.now - at < ON_ITS_WAY);
        if just_elected && node.stream.keys.is_empty() {
            return words;
        }
        if node.primary.is_none() && !node.own_slots().is_empty() {
            words.push(format!("{pod} is reset although it owns {}", node.own_slots()));
        }
        let follower = self.siblings(node).find(|it| it.primary == Some(node.id) && self.is_reachable(it));
        if let Some(follower) = follower {
            words.push(format!("{pod} is reset although {} follows it", follower.home.pod));
        }
        let cluster = self.api.get::<ValkeyCluster>(&node.home.cluster);
        let wanted = cluster.map_or(0, |cluster| cluster.spec.replicas_per_shard);
        let primary = node.primary.and_then(|id| self.valkey.nodes.get(&id));
        let serves = primary.is_some_and(|primary| !primary.own_slots().is_empty());
        let left = self
            .siblings(node)
            .filter(|it| it.primary == node.primary && it.link.up && self.is_reachable(it))
            .count();
        if serves && self.is_calm(node) && i64::try_from(left).unwrap_or(0) < i64::from(wanted) {
            words.push(format!("{pod} is reset although its shard has {left} other replicas of {wanted}"));
        }
        words
    }

    /// Nothing of the cluster was hurt lately: what is seen now was so when it was decided.
    fn is_calm(&self, node: &Node) -> bool {
        self.audit.hurt.get(&node.home.cluster).is_none_or(|at| self.now - at > CALM)
    }

    /// Slots move within the cluster only.
    fn moves_wrongly(&self, node: &Node, target: NodeId) -> Vec<String> {
        let home = self.valkey.known.get(&target);
        if home.is_none_or(|home| home.cluster != node.home.cluster) {
            return vec![format!("{} is to give slots to a stranger", node.home.pod)];
        }
        Vec::new()
    }

    pub(super) fn is_reachable(&self, node: &Node) -> bool {
        !node.frozen && self.valkey.network.cut_of(node.id) == Cut::default()
    }

    /// A majority of the slot owners calls `dead` failed and has not heard of it for long.
    fn missed_by_majority(&self, candidate: &Node, dead: NodeId) -> bool {
        let misses = |voter: &&Node| {
            let peer = voter.peers.get(&dead).filter(|peer| peer.fail.is_some());
            voter.votes() && peer.is_some_and(|peer| self.now - peer.pong > CALM)
        };
        self.siblings(candidate).filter(misses).count() >= candidate.majority()
    }

    /// The promotion gate: the primary is dead, nobody has its slots yet, and this is its best living copy.
    fn promotes_wrongly(&self, node: &Node, kind: FailoverKind) -> Vec<String> {
        let Some(dead) = node.primary else { return Vec::new() };
        let (pod, name) = (&node.home.pod, self.valkey.name(dead));
        let mut words = Vec::new();
        // One that a majority has called failed for long is succeeded by vote, dead or not.
        let given_up = kind == FailoverKind::Force && self.missed_by_majority(node, dead);
        if self.valkey.nodes.contains_key(&dead) && !given_up {
            words.push(format!("{kind:?} on {pod} although {name} lives"));
        }
        let (slots, epoch) = (node.slots_of(dead), node.epoch_of(dead));
        // One with a lower epoch is whom the dead one had succeeded, and has not heard of it.
        let owns = |it: &&Node| it.primary.is_none() && it.own_slots().intersects(&slots);
        let successor = self.siblings(node).find(|it| it.id != dead && owns(it) && it.epoch > epoch);
        if let Some(successor) = successor {
            words.push(format!("{kind:?} on {pod} although {} has succeeded {name}", successor.home.pod));
        }
        // A copy of what was written before the first replica came is at offset 0.
        if !node.stream.synced || (node.stream.offset <= 1 && node.stream.keys.is_empty()) {
            words.push(format!("{kind:?} on {pod}, which holds no copy of {name}"));
        }
        // One that never copied from the dead one holds older data than any that did.
        let copied = |it: &Node| {
            let something = it.stream.offset > 1 || !it.stream.keys.is_empty();
            something && (it.link.up || it.link.down_since.is_some())
        };
        let real = self
            .siblings(node)
            .find(|it| it.primary == Some(dead) && self.is_reachable(it) && it.stream.synced && copied(it));
        if let Some(real) = real.filter(|_| !copied(node)) {
            words.push(format!("{kind:?} on {pod} although {} holds a copy of {name}", real.home.pod));
        }
        let better = self.siblings(node).find(|it| {
            it.primary == Some(dead)
                && self.is_reachable(it)
                && it.stream.synced
                && it.stream.id == node.stream.id
                && it.stream.offset > node.stream.offset
        });
        if let Some(better) = better {
            words.push(format!("{kind:?} on {pod} although {} has more of {name}", better.home.pod));
        }
        let doubts = node.peers.iter().any(|(id, peer)| *id != dead && peer.failing());
        let voters = node.voters();
        let living =
            voters.iter().filter(|id| self.valkey.nodes.get(*id).is_some_and(|it| self.is_reachable(it)));
        if kind == FailoverKind::Takeover && !doubts && living.count() >= node.majority() {
            words.push(format!("TAKEOVER on {pod} although a majority can vote"));
        }
        words
    }
}

//! Clients that write numbered values, and what was acknowledged to them.
//!
//! What a fault destroyed nobody can give back: when a process is hurt, what no other living copy holds is written
//! off. What is missing beyond that at the end was lost by somebody's decision.

use std::collections::BTreeMap;

use shared::slots::SLOT_COUNT;
use shared::valkey::types::NodeId;

use super::World;
use super::valkey::node::Node;

/// Keys of each cluster, one in each of as many slots, evenly spread.
const KEYS: u16 = 24;
/// Bytes that a write adds to the stream.
const BYTES: i64 = 40;

/// What was acknowledged.
#[derive(Debug, Default)]
pub struct Clients {
    written: u64,
    /// Clients of clusters write.
    pub active: bool,
    /// By cluster and slot: the last acknowledged value that some copy should hold.
    acknowledged: BTreeMap<(String, u16), u64>,
}

impl World {
    /// Each cluster gets a write, to whoever thinks that it owns the slot.
    pub(crate) fn write_keys(&mut self) {
        if !self.clients.active {
            return;
        }
        let now = self.now;
        let clusters: std::collections::BTreeSet<String> =
            self.valkey.nodes.values().map(|node| node.home.cluster.clone()).collect();
        for cluster in clusters {
            let slot = self.rng.u16(0..KEYS) * (SLOT_COUNT / KEYS);
            let owner = self.valkey.nodes.values().find(|node| {
                node.home.cluster == cluster
                    && node.primary.is_none()
                    && node.own_slots().contains(slot)
                    && self.is_whole(node)
                    && node.serves(now)
            });
            let Some(id) = owner.map(|node| node.id) else { continue };
            self.clients.written += 1;
            let value = self.clients.written;
            if let Some(node) = self.valkey.nodes.get_mut(&id) {
                node.stream.keys.insert(slot, value);
                node.stream.feed(BYTES);
            }
            self.clients.acknowledged.insert((cluster, slot), value);
        }
    }

    /// Neither stopped nor cut off from anybody: what it acknowledges counts.
    fn is_whole(&self, node: &Node) -> bool {
        !node.frozen && self.valkey.network.cut_of(node.id) == super::valkey::network::Cut::default()
    }

    /// A process is about to be hurt: what only it holds is written off.
    pub fn before_end(&mut self, victim: NodeId) {
        let Some(home) = self.valkey.known.get(&victim) else { return };
        let cluster = home.cluster.clone();
        self.audit.hurt.insert(cluster.clone(), self.now);
        self.new_turn();
        for ((of, slot), value) in &mut self.clients.acknowledged {
            if *of != cluster {
                continue;
            }
            let copies = self.valkey.nodes.values().filter(|node| {
                node.id != victim
                    && node.home.cluster == cluster
                    && !node.frozen
                    && node.stream.synced
                    && self.valkey.network.cut_of(node.id) == super::valkey::network::Cut::default()
            });
            let best = copies.filter_map(|node| node.stream.keys.get(slot).copied()).max().unwrap_or(0);
            *value = best.min(*value);
        }
    }

    /// Acknowledged values that the owners of their slots do not hold: slot, value, what is held.
    pub fn lost_keys(&self, cluster: &str) -> Vec<(u16, u64, u64)> {
        let held = |slot: u16| {
            let owners = self.valkey.of_cluster(cluster).filter(|node| node.own_slots().contains(slot));
            owners.filter_map(|node| node.stream.keys.get(&slot).copied()).max().unwrap_or(0)
        };
        let expected = self.clients.acknowledged.iter().filter(|((of, _), _)| of == cluster);
        expected
            .map(|((_, slot), value)| (*slot, *value, held(*slot)))
            .filter(|(_, value, held)| held < value)
            .collect()
    }
}

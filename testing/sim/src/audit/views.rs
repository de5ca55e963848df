//! The truth at the end of a failed run, one line for each node: what a person needs to see why it is stuck.

use kube::ResourceExt;
use shared::api::ValkeyNode;

use crate::world::World;
use crate::world::valkey::node::Node;

impl World {
    /// Every `ValkeyNode` with its process, and processes without a node.
    pub fn views(&self) -> String {
        let nodes = self.api.list::<ValkeyNode>();
        let mut lines: Vec<String> = nodes.iter().map(|node| self.view_of(node)).collect();
        let named = |node: &&Node| nodes.iter().any(|object| object.name_any() == node.home.pod);
        let others = self.valkey.nodes.values().filter(|node| !named(node));
        lines.extend(others.map(|node| format!("{} (no ValkeyNode): {}", node.home.pod, self.process(node))));
        lines.join("\n")
    }

    fn view_of(&self, node: &ValkeyNode) -> String {
        let status = node.status.clone().unwrap_or_default();
        let record = status.pod.as_ref();
        let process = record.and_then(|record| self.valkey.in_pod(&record.uid));
        let end = record.and_then(|record| record.reason.clone()).map(|reason| format!(", ended {reason}"));
        let going = if node.metadata.deletion_timestamp.is_some() { ", deleting" } else { "" };
        let said = process.map_or_else(|| "no process".to_owned(), |process| self.process(process));
        let (name, shard, stage) = (node.name_any(), node.spec.shard_index, node.spec.lifecycle);
        format!("{name}: shard {shard}, {stage}{going}{}; {said}", end.unwrap_or_default())
    }

    fn process(&self, node: &Node) -> String {
        let role = match node.primary {
            Some(primary) => {
                let link = if node.link.up { "up" } else { "down" };
                format!(
                    "replica of {}, link {link}, offset {}",
                    self.valkey.name(primary),
                    node.stream.offset
                )
            }
            None => format!("primary of {}, epoch {}", node.own_slots(), node.epoch),
        };
        let owners = node.slots.iter().filter(|(id, _)| **id != node.id);
        let owners: Vec<String> =
            owners.map(|(id, slots)| format!("{} {slots}", self.valkey.name(*id))).collect();
        let peers = node.peers.iter().map(|(id, peer)| {
            let flag = match (peer.fail.is_some(), peer.pfail) {
                (true, _) => "!",
                (_, true) => "?",
                _ => "",
            };
            format!("{}{flag}", self.valkey.name(*id))
        });
        let peers: Vec<String> = peers.collect();
        format!(
            "{role}; sees [{}]; knows [{}], greets {}",
            owners.join(", "),
            peers.join(" "),
            node.handshakes.len()
        )
    }
}

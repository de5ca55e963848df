//! The commands that the operator sends, with the refusals measured on 9.1.2 (facts §2, §3, §4d, §5).

use cluster_ctl::ports::Command;
use shared::slots::{SlotRange, SlotSet};
use shared::valkey::commands::FailoverKind;
use shared::valkey::types::NodeId;

use super::Valkey;
use super::node::{BAN, Node};
use crate::clock::Ms;

pub(super) type Reply = Result<(), String>;

impl Valkey {
    /// Carries out a command on a process; its words when it refuses.
    pub fn execute(&mut self, id: NodeId, command: &Command, now: Ms) -> Reply {
        let fresh = self.draw_id();
        let Some(mut node) = self.nodes.remove(&id) else { return Err("ERR no such process".to_owned()) };
        let reply = match command {
            Command::SetConfigEpoch(epoch) => set_config_epoch(&mut node, epoch.0),
            Command::AddSlots(ranges) => add_slots(&mut node, ranges),
            Command::Meet(ip) => {
                node.greet(*ip, true, now, fresh);
                Ok(())
            }
            Command::Replicate(primary) => self.replicate_command(&mut node, *primary, now),
            Command::Forget(id) => forget(&mut node, *id, now),
            Command::Failover(kind) => self.failover(&mut node, *kind, now),
            Command::Reset => self.reset(&mut node, fresh, now),
            Command::MigrateSlots(ranges, target) => self.start_migration(&mut node, ranges, *target, now),
        };
        self.nodes.insert(node.id, node);
        reply
    }

    fn replicate_command(&mut self, node: &mut Node, primary: NodeId, now: Ms) -> Reply {
        if primary == node.id {
            return refuse("Can't replicate myself");
        }
        let Some(peer) = node.peers.get(&primary) else {
            return Err(format!("ERR Unknown node {primary}"));
        };
        if peer.primary.is_some() {
            return refuse("I can only replicate a master, not a replica.");
        }
        let full = node.slots.contains_key(&node.id) || !node.stream.keys.is_empty();
        if node.primary.is_none() && full {
            return refuse("To set a master the node must be empty and without assigned slots.");
        }
        if node.primary != Some(primary) {
            // A fresh replica holds nothing of its primary yet: offset 1 until the first sync.
            node.stream.synced = false;
            node.stream.offset = 1;
            node.follow(primary);
            self.broadcast(node, now);
        }
        Ok(())
    }

    /// RESET HARD: another node, alone and empty, at the same address. A primary goes on with its history, so that who
    /// replicates it stays linked; a replica begins another, and counts its bytes on.
    fn reset(&mut self, node: &mut Node, fresh: NodeId, now: Ms) -> Reply {
        if node.primary.is_none() && !node.stream.keys.is_empty() {
            return refuse("CLUSTER RESET can't be called with master nodes containing keys");
        }
        self.log(now, node, "is reset");
        let fresh = self.ordained.take().unwrap_or(fresh);
        let stream = self.draw_stream();
        let history = node.stream.clone();
        let was_primary = node.primary.is_none();
        *node = Node::new(fresh, node.home.clone(), node.login.clone(), stream, node.started);
        (node.stream.offset, node.stream.fed) = (history.offset, history.fed);
        if was_primary {
            (node.stream.id, node.stream.second) = (history.id, history.second);
        }
        self.network.listen(node.home.ip, fresh);
        self.known.insert(fresh, node.home.clone());
        Ok(())
    }

    fn failover(&mut self, node: &mut Node, kind: FailoverKind, now: Ms) -> Reply {
        let Some(primary) = node.primary else {
            return refuse("You should send CLUSTER FAILOVER to a replica");
        };
        match kind {
            FailoverKind::Planned => {
                let failing = node.peers.get(&primary).is_none_or(|peer| peer.failing() || peer.refused);
                if failing {
                    return refuse("Master is down or failed, please use CLUSTER FAILOVER FORCE");
                }
                self.hand_over(node, now);
            }
            FailoverKind::Force => self.force(node, now),
            FailoverKind::Takeover => self.take_over(node, now),
        }
        Ok(())
    }
}

pub(super) fn refuse(words: &str) -> Reply {
    Err(format!("ERR {words}"))
}

fn set_config_epoch(node: &mut Node, epoch: u64) -> Reply {
    if !node.peers.is_empty() || !node.handshakes.is_empty() {
        return refuse("The user can assign a config epoch only when the node does not know any other node.");
    }
    if node.epoch != 0 {
        return refuse("Node config epoch is already non-zero");
    }
    node.epoch = epoch;
    node.current_epoch = node.current_epoch.max(epoch);
    Ok(())
}

fn add_slots(node: &mut Node, ranges: &[SlotRange]) -> Reply {
    let wanted = SlotSet::from_ranges(ranges.iter().copied());
    if let Some(slot) = wanted.intersection(&node.assigned()).iter().next() {
        return Err(format!("ERR Slot {slot} is already busy"));
    }
    node.set_slots(node.id, node.own_slots().union(&wanted));
    Ok(())
}

fn forget(node: &mut Node, id: NodeId, now: Ms) -> Reply {
    if id == node.id {
        return refuse("I tried hard but I can't forget myself...");
    }
    if node.primary == Some(id) {
        return refuse("Can't forget my master!");
    }
    // An ID that it does not know is success to the port, as one that is banned already is to the engine.
    if node.peers.contains_key(&id) {
        node.drop_peer(id, now + BAN);
    }
    Ok(())
}

//! What every process does on its own, ten times a second: introductions, pings, failure detection, MEET to silent
//! addresses (facts §3, §5, §9).

use shared::valkey::types::NodeId;

use super::Valkey;
use super::network::{Contact, End};
use super::node::{NODE_TIMEOUT, Node};
use crate::clock::Ms;

/// Time between two steps, milliseconds.
pub const STEP: Ms = 100;
/// An introduction takes at least this long.
const HANDSHAKE: Ms = 100;

impl Valkey {
    /// One step of every process.
    pub fn step(&mut self, now: Ms) {
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            // Out of the map while it acts: it meets the others there.
            let Some(mut node) = self.nodes.remove(&id) else { continue };
            if !node.frozen {
                node.banned.retain(|_, until| *until > now);
                self.introduce(&mut node, now);
                self.ping_all(&mut node, now);
                for failed in node.detect(now) {
                    self.tell_failed(&node, failed, now);
                }
                self.replicate(&mut node, now);
                self.stand(&mut node, now);
                self.migrate(&mut node, now);
            }
            self.nodes.insert(id, node);
        }
    }

    /// Each introduction: whoever sits at the address is met, whoever that is.
    fn introduce(&mut self, node: &mut Node, now: Ms) {
        for handshake in std::mem::take(&mut node.handshakes) {
            if now - handshake.since >= NODE_TIMEOUT {
                continue;
            }
            let contact = self.network.dial(End::Node(node.id), handshake.ip);
            let Contact::Answers(other) = contact else {
                node.handshakes.push(handshake);
                continue;
            };
            if now - handshake.since < HANDSHAKE || !self.awake(other) {
                node.handshakes.push(handshake);
                continue;
            }
            if other == node.id {
                continue;
            }
            self.meet(node, other, handshake.meet, now);
        }
    }

    /// `node` and `other` are introduced: `node` learns its name; with MEET `other` learns of `node`, too.
    fn meet(&mut self, node: &mut Node, other: NodeId, meet: bool, now: Ms) {
        let hello = node.message(meet, &mut self.rng);
        let fresh = self.draw_id();
        let Some(peer) = self.nodes.get_mut(&other) else { return };
        peer.receive(&hello, now, fresh);
        let reply = peer.message(false, &mut self.rng);
        let ip = peer.home.ip;
        node.add_peer(other, ip, now);
        let fresh = self.draw_id();
        node.receive(&reply, now, fresh);
        node.answered(other, now);
    }

    fn ping_all(&mut self, node: &mut Node, now: Ms) {
        let peers: Vec<NodeId> = node.peers.keys().copied().collect();
        for other in peers {
            let Some(peer) = node.peers.get_mut(&other) else { continue };
            let Some(ip) = peer.ip else { continue };
            if peer.ping_sent.is_none() && now < peer.next_ping {
                continue;
            }
            let contact = self.network.dial(End::Node(node.id), ip);
            // A silent address, or one that no longer calls, gets MEET with the next connect.
            let quiet = now - peer.inbound > NODE_TIMEOUT + STEP;
            if quiet && contact != Contact::Refuses {
                peer.meet = true;
            }
            match contact {
                Contact::Answers(found) if found == other && self.awake(other) => {
                    peer.next_ping = now + 1_000 + self.rng.i64(0..1_500);
                    let meet = std::mem::take(&mut peer.meet);
                    self.exchange(node, other, meet, now);
                }
                Contact::Answers(found) if found != other && self.awake(found) => {
                    if std::mem::take(&mut peer.meet) {
                        // The engine itself introduces us to a stranger.
                        self.greeted.insert(found);
                        self.meet(node, found, true, now);
                    }
                    if let Some(peer) = node.peers.get_mut(&other) {
                        peer.ip = None;
                        peer.pfail = true;
                        peer.fail.get_or_insert(now);
                    }
                }
                Contact::Refuses => {
                    peer.refused = true;
                    peer.ping_sent.get_or_insert(now);
                }
                Contact::Answers(_) | Contact::Silent => {
                    peer.silent = contact == Contact::Silent;
                    peer.ping_sent.get_or_insert(now);
                }
            }
        }
    }

    /// A ping and its pong.
    fn exchange(&mut self, node: &mut Node, other: NodeId, meet: bool, now: Ms) {
        let ping = node.message(meet, &mut self.rng);
        let fresh = self.draw_id();
        let Some(peer) = self.nodes.get_mut(&other) else { return };
        let corrections = peer.receive(&ping, now, fresh);
        if let Some(us) = peer.peers.get_mut(&node.id) {
            us.inbound = now;
        }
        let pong = peer.message(false, &mut self.rng);
        let fresh = self.draw_id();
        node.answered(other, now);
        let back = node.receive(&pong, now, fresh);
        for correction in &corrections {
            node.corrected(correction);
        }
        if let Some(peer) = self.nodes.get_mut(&other) {
            for correction in &back {
                peer.corrected(correction);
            }
        }
    }

    fn tell_failed(&mut self, node: &Node, failed: NodeId, now: Ms) {
        self.log(now, node, &format!("marks {} as failed", self.name(failed)));
        for other in node.peers.keys() {
            if self.reaches(node, *other)
                && let Some(peer) = self.nodes.get_mut(other)
            {
                peer.told_failed(node.id, failed, now);
            }
        }
    }

    /// Sends the header to everybody at once: after a promotion or a change of primary.
    pub(super) fn broadcast(&mut self, node: &mut Node, now: Ms) {
        let message = node.message(false, &mut self.rng);
        let peers: Vec<NodeId> = node.peers.keys().copied().collect();
        for other in peers {
            if !self.reaches(node, other) {
                continue;
            }
            let fresh = self.draw_id();
            let Some(peer) = self.nodes.get_mut(&other) else { continue };
            for correction in peer.receive(&message, now, fresh) {
                node.corrected(&correction);
            }
        }
    }

    /// Whether `node` reaches `other` at the address that it knows.
    pub(super) fn reaches(&self, node: &Node, other: NodeId) -> bool {
        let ip = node.peers.get(&other).and_then(|peer| peer.ip);
        ip.is_some_and(|ip| self.network.dial(End::Node(node.id), ip) == Contact::Answers(other))
            && self.awake(other)
    }

    /// Whether a process answers what reaches it.
    pub(super) fn awake(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| !node.frozen)
    }
}

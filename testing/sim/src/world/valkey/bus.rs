//! The cluster bus: headers, gossip, and what a node makes of them. Follows facts §3, §5, §6 and §9.

use std::net::IpAddr;

use shared::slots::SlotSet;
use shared::valkey::types::NodeId;

use super::node::{BAN, Handshake, NODE_TIMEOUT, Node, Peer};
use crate::clock::Ms;

/// Peers that a message tells of besides those in trouble.
const GOSSIP: usize = 3;

/// A message on the bus.
#[derive(Clone, Debug)]
pub struct Message {
    /// Sender.
    pub from: NodeId,
    /// Its address.
    pub ip: IpAddr,
    /// Highest epoch that it has seen.
    pub current_epoch: u64,
    /// Its configuration epoch, or its primary's.
    pub epoch: u64,
    /// Its primary.
    pub primary: Option<NodeId>,
    /// Its shard.
    pub shard: u64,
    /// Its slots, or its primary's.
    pub slots: SlotSet,
    /// MEET: an unknown sender is to be added.
    pub meet: bool,
    /// What it tells of others.
    pub gossip: Vec<Rumour>,
    /// Whom it was told to forget, and until when.
    pub forgotten: Vec<(NodeId, Ms)>,
}

/// What one node tells of another.
#[derive(Clone, Debug)]
pub struct Rumour {
    /// Of whom.
    pub id: NodeId,
    /// Its address.
    pub ip: Option<IpAddr>,
    /// `fail?`.
    pub doubted: bool,
    /// `fail`.
    pub failed: bool,
}

/// A correction: a slot that the sender claims belongs to another with a higher epoch.
#[derive(Clone, Debug)]
pub struct Update {
    /// The owner.
    pub id: NodeId,
    /// Its epoch.
    pub epoch: u64,
    /// Its slots.
    pub slots: SlotSet,
}

impl Node {
    /// The message that it sends now.
    pub fn message(&self, meet: bool, rng: &mut fastrand::Rng) -> Message {
        let mut gossip: Vec<Rumour> = Vec::new();
        let all: Vec<NodeId> = self.peers.keys().copied().collect();
        let chosen = rng.choose_multiple(all.iter().copied(), GOSSIP);
        for (id, peer) in &self.peers {
            // Of who failed, is not connected and owns nothing, nobody speaks.
            let hushed = peer.fail.is_some() && peer.refused && !self.slots.contains_key(id);
            if (peer.failing() || chosen.contains(id)) && !hushed {
                let failed = peer.fail.is_some();
                gossip.push(Rumour { id: *id, ip: peer.ip, doubted: peer.pfail && !failed, failed });
            }
        }
        Message {
            from: self.id,
            ip: self.home.ip,
            current_epoch: self.current_epoch,
            epoch: self.header_epoch(),
            primary: self.primary,
            shard: self.shard,
            slots: self.slots_of(self.primary.unwrap_or(self.id)),
            meet,
            gossip,
            forgotten: self.banned.iter().map(|(id, until)| (*id, *until)).collect(),
        }
    }

    /// Takes in a message; corrections go back to its sender.
    pub fn receive(&mut self, message: &Message, now: Ms, handshake: NodeId) -> Vec<Update> {
        if !self.peers.contains_key(&message.from) {
            if message.meet {
                self.greet(message.ip, false, now, handshake);
            }
            return Vec::new();
        }
        self.current_epoch = self.current_epoch.max(message.current_epoch).max(message.epoch);
        self.take_header(message);
        let claimant = message.primary.unwrap_or(message.from);
        let updates = self.corrections(claimant, message);
        if message.primary.is_none() {
            self.claim(message.from, message.epoch, &message.slots);
            self.settle_collision(message, now);
        }
        self.take_gossip(message, now);
        self.take_forgotten(message);
        updates
    }

    /// Starts an introduction at `ip`, unless one is under way there.
    pub fn greet(&mut self, ip: IpAddr, meet: bool, now: Ms, id: NodeId) {
        if ip != self.home.ip && self.handshakes.iter().all(|it| it.ip != ip) {
            self.handshakes.push(Handshake { id, ip, since: now, meet });
        }
    }

    fn take_header(&mut self, message: &Message) {
        let Some(peer) = self.peers.get_mut(&message.from) else { return };
        let was_primary = peer.primary.is_none();
        peer.ip = Some(message.ip);
        peer.primary = message.primary;
        peer.shard = Some(message.shard);
        if message.primary.is_none() {
            peer.epoch = message.epoch;
        } else if was_primary {
            // A primary that turned replica has no slots.
            self.slots.remove(&message.from);
        }
        if self.primary == Some(message.from) {
            self.shard = message.shard;
        }
        // Where nobody owns a slot to tell it by, a shard follows its new primary by the epoch alone.
        let new = message.primary.is_none() && self.primary != Some(message.from);
        let bare = message.slots.is_empty() && self.slots_of(self.primary.unwrap_or(self.id)).is_empty();
        if new && bare && message.shard == self.shard && self.header_epoch() < message.epoch {
            self.follow(message.from);
        }
        // A replica of a node that turned replica follows that one's primary.
        if let Some(primary) = message.primary
            && self.primary == Some(message.from)
            && primary != self.id
            && self.peers.contains_key(&primary)
        {
            self.follow(primary);
        }
    }

    fn corrections(&self, claimant: NodeId, message: &Message) -> Vec<Update> {
        if message.slots.is_empty() || self.slots.get(&claimant) == Some(&message.slots) {
            return Vec::new();
        }
        self.slots
            .iter()
            .filter(|(owner, slots)| {
                **owner != claimant && slots.difference(&self.unclaimed).intersects(&message.slots)
            })
            .map(|(owner, slots)| Update { id: *owner, epoch: self.epoch_of(*owner), slots: slots.clone() })
            .filter(|update| update.epoch > message.epoch)
            .collect()
    }

    /// Takes in a correction.
    pub fn corrected(&mut self, update: &Update) {
        if update.id == self.id {
            return;
        }
        let Some(peer) = self.peers.get_mut(&update.id) else { return };
        if peer.epoch > update.epoch {
            return;
        }
        peer.primary = None;
        self.claim(update.id, update.epoch, &update.slots);
    }

    /// `sender` claims slots: of two claims the one with the higher epoch counts. A shard that lost its last slots to
    /// one of its own follows it; with replica migration off nobody else moves (facts §0, §2).
    pub fn claim(&mut self, sender: NodeId, epoch: u64, claimed: &SlotSet) {
        if let Some(peer) = self.peers.get_mut(&sender) {
            peer.epoch = epoch;
        }
        let given_up = self.slots_of(sender).difference(claimed);
        let free = self.unclaimed.difference(&self.slots_of(sender)).intersection(claimed);
        self.unclaimed = self.unclaimed.union(&given_up).difference(claimed);
        if claimed.is_empty() || self.slots.get(&sender) == Some(claimed) {
            return;
        }
        let primary = self.primary.unwrap_or(self.id);
        let mut taken = claimed.difference(&self.assigned());
        let mut robbed = false;
        let owners: Vec<NodeId> = self.slots.keys().copied().filter(|owner| *owner != sender).collect();
        for owner in owners {
            let contested = self.slots_of(owner).intersection(claimed);
            let lost = if self.epoch_of(owner) >= epoch { contested.intersection(&free) } else { contested };
            if lost.is_empty() {
                continue;
            }
            taken = taken.union(&lost);
            robbed |= owner == primary;
            if owner == self.id {
                for slot in lost.iter() {
                    self.stream.keys.remove(&slot);
                }
            }
            self.set_slots(owner, self.slots_of(owner).difference(&lost));
        }
        if !taken.is_empty() {
            self.set_slots(sender, self.slots_of(sender).union(&taken));
        }
        let ours = self.peers.get(&sender).is_some_and(|peer| peer.shard == Some(self.shard));
        if robbed && ours && !self.slots.contains_key(&primary) && sender != primary {
            self.follow(sender);
        }
    }

    /// Writes down who owns `slots`.
    pub fn set_slots(&mut self, owner: NodeId, slots: SlotSet) {
        if slots.is_empty() {
            self.slots.remove(&owner);
        } else {
            self.slots.insert(owner, slots);
        }
    }

    /// Of two primaries with one epoch the one with the smaller ID draws a new one (facts §3).
    fn settle_collision(&mut self, message: &Message, now: Ms) {
        if self.primary.is_none() && self.epoch == message.epoch && self.id < message.from {
            self.current_epoch += 1;
            self.epoch = self.current_epoch;
            self.drawn = Some(now);
        }
    }

    fn take_gossip(&mut self, message: &Message, now: Ms) {
        let voter = message.primary.is_none() && self.slots.contains_key(&message.from);
        for rumour in &message.gossip {
            if rumour.id == self.id {
                continue;
            }
            let failing = rumour.doubted || rumour.failed;
            if let Some(peer) = self.peers.get_mut(&rumour.id) {
                if voter && failing {
                    peer.reports.insert(message.from, now);
                } else if voter {
                    peer.reports.remove(&message.from);
                }
                continue;
            }
            let banned = self.banned.get(&rumour.id).is_some_and(|until| *until > now);
            if let Some(ip) = rumour.ip.filter(|_| !banned) {
                // By its ID, not by its address, where somebody else may sit; with the judgement of who tells.
                let fail = rumour.failed.then_some(now);
                let peer = Peer { pfail: rumour.doubted, fail, ..Peer::new(ip, now) };
                self.peers.insert(rumour.id, peer);
            }
        }
    }

    /// FORGET spreads: whoever hears of it forgets, too, but for a replica its primary. A member that was met again
    /// since then stays; servers drop it and take it again until the ban is over.
    fn take_forgotten(&mut self, message: &Message) {
        for (id, until) in &message.forgotten {
            let known = self.peers.get(id).is_some_and(|peer| peer.met <= until - BAN);
            if known && self.primary != Some(*id) {
                self.drop_peer(*id, *until);
            }
        }
    }

    /// Forgets a peer and what it owned, and bars it from gossip.
    pub fn drop_peer(&mut self, id: NodeId, until: Ms) {
        self.peers.remove(&id);
        self.slots.remove(&id);
        self.banned.insert(id, until);
    }

    /// Marks what is unanswered for too long as `fail?`, and what a majority of voters finds so as `fail`. The new
    /// failures, to be told to all.
    pub fn detect(&mut self, now: Ms) -> Vec<NodeId> {
        let majority = self.majority();
        let voting = self.votes();
        let voters = self.voters();
        let mut failed = Vec::new();
        for (id, peer) in &mut self.peers {
            if peer.ping_sent.is_some_and(|since| now - since > NODE_TIMEOUT) {
                peer.pfail = true;
            }
            peer.reports.retain(|by, at| now - *at <= 2 * NODE_TIMEOUT && voters.contains(by));
            let votes = peer.reports.len() + usize::from(voting);
            if peer.pfail && peer.fail.is_none() && votes >= majority {
                peer.fail = Some(now);
                failed.push(*id);
            }
        }
        if self.primary.is_none() && !self.sees_majority() {
            self.minority = Some(now);
        }
        failed
    }

    /// Somebody it knows says that `id` failed.
    pub fn told_failed(&mut self, by: NodeId, id: NodeId, now: Ms) {
        if self.peers.contains_key(&by)
            && let Some(peer) = self.peers.get_mut(&id)
        {
            peer.fail.get_or_insert(now);
        }
    }

    /// `id` has answered: `fail?` is over, `fail` too unless it owns slots and failed a moment ago (facts §10).
    pub fn answered(&mut self, id: NodeId, now: Ms) {
        let owns = self.slots.contains_key(&id);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.pong = now;
        peer.ping_sent = None;
        peer.pfail = false;
        peer.refused = false;
        peer.silent = false;
        if peer.fail.is_some_and(|since| !owns || peer.primary.is_some() || now - since > 2 * NODE_TIMEOUT) {
            peer.fail = None;
            peer.reports.clear();
        }
    }

    /// Adds the node that was met, from its first message.
    pub fn add_peer(&mut self, id: NodeId, ip: IpAddr, now: Ms) {
        self.peers.entry(id).or_insert_with(|| Peer::new(ip, now));
    }
}

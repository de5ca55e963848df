//! Promotion: the engine's own elections, FORCE, TAKEOVER, the planned hand-over and the one at SIGTERM (facts §4, §8,
//! §9).

use std::collections::BTreeSet;

use shared::slots::SlotSet;
use shared::valkey::types::NodeId;

use super::node::{Election, NODE_TIMEOUT, Node};
use super::{Promotion, Valkey};
use crate::clock::Ms;

/// `cluster-manual-failover-timeout`, milliseconds.
const MANUAL: Ms = 5_000;
/// A replica cut off for longer does not stand of its own accord (validity factor 10, ping period 10 s).
const VALIDITY: Ms = 60_000;

impl Valkey {
    /// A replica's part in the election of its primary's successor.
    pub(super) fn stand(&mut self, node: &mut Node, now: Ms) {
        let Some(primary) = node.primary else {
            node.election = None;
            return;
        };
        let failed = node.peers.get(&primary).is_some_and(|peer| peer.fail.is_some());
        if node.election.is_none() && failed && self.may_stand(node, now) {
            let rank = self.rank(node, primary);
            let start = now + 500 + self.rng.i64(0..500) + rank * 1_000;
            node.election = Some(Election::new(false, start, start + 2 * NODE_TIMEOUT));
        }
        let Some(election) = &node.election else { return };
        if !election.forced && !failed {
            node.election = None;
        } else if now >= election.start {
            self.ask_votes(node, primary, now);
        }
    }

    fn may_stand(&self, node: &Node, now: Ms) -> bool {
        let age = if node.link.up { Some(0) } else { node.link.down_since.map(|since| now - since) };
        now >= node.next_election
            && node.stream.synced
            && age.is_some_and(|age| age <= VALIDITY)
            && self.nodes.values().all(|other| other.primary != Some(node.id))
    }

    /// Replicas of the same primary that have more of its data.
    fn rank(&self, node: &Node, primary: NodeId) -> i64 {
        let better = self.nodes.values().filter(|other| {
            other.primary == Some(primary)
                && node.peers.contains_key(&other.id)
                && other.stream.offset > node.stream.offset
        });
        i64::try_from(better.count()).unwrap_or(0)
    }

    /// Asks every voter that it reaches and has not asked yet.
    fn ask_votes(&mut self, node: &mut Node, primary: NodeId, now: Ms) {
        let Some(mut election) = node.election.take() else { return };
        if election.epoch.is_none() {
            node.current_epoch += 1;
            election.epoch = Some(node.current_epoch);
        }
        let epoch = election.epoch.unwrap_or_default();
        for voter in node.voters() {
            if voter == primary || election.asked.contains(&voter) || !self.reaches(node, voter) {
                continue;
            }
            election.asked.insert(voter);
            let claimed = node.slots_of(primary);
            let claim_epoch = node.epoch_of(primary);
            let Some(other) = self.nodes.get_mut(&voter) else { continue };
            let request = Request {
                candidate: node.id,
                primary,
                epoch,
                forced: election.forced,
                claimed: &claimed,
                claim_epoch,
            };
            match other.vote(&request, now) {
                Ok(()) => election.votes += 1,
                Err(why) => {
                    let words = format!("does not vote for {}: {why}", node.home.pod);
                    self.lines.push((now, other.home.pod.clone(), words));
                }
            }
        }
        if election.votes >= node.majority() {
            let how = if election.forced { Promotion::Forced } else { Promotion::Elected };
            self.promote(node, epoch, how, now);
        } else if now > election.deadline {
            let pause = if election.forced { 0 } else { 2 * NODE_TIMEOUT };
            node.next_election = now + pause;
            self.log(now, node, "its election failed: no majority");
        } else {
            node.election = Some(election);
        }
    }

    /// `FORCE`: votes are asked for at once, and for five seconds.
    pub(super) fn force(&mut self, node: &mut Node, now: Ms) {
        let Some(primary) = node.primary else { return };
        node.election = Some(Election::new(true, now, now + MANUAL));
        self.ask_votes(node, primary, now);
    }

    /// `TAKEOVER`: no vote at all.
    pub(super) fn take_over(&mut self, node: &mut Node, now: Ms) {
        let seen = node.peers.values().map(|peer| peer.epoch).max().unwrap_or_default();
        node.current_epoch = node.current_epoch.max(seen) + 1;
        self.promote(node, node.current_epoch, Promotion::TakenOver, now);
    }

    /// The coordinated hand-over: the living primary waits for the replica.
    pub(super) fn hand_over(&mut self, node: &mut Node, now: Ms) {
        let Some(primary) = node.primary else { return };
        if !node.link.up || !self.reaches(node, primary) {
            return;
        }
        if let Some(old) = self.nodes.get(&primary) {
            node.stream.offset = old.stream.offset;
            node.stream.keys = old.stream.keys.clone();
        }
        node.current_epoch += 1;
        self.promote(node, node.current_epoch, Promotion::Planned, now);
    }

    fn promote(&mut self, node: &mut Node, epoch: u64, how: Promotion, now: Ms) {
        let Some(primary) = node.primary.take() else { return };
        let slots = node.slots.remove(&primary).unwrap_or_default();
        node.epoch = epoch;
        node.drawn = Some(now);
        node.promoted = Some(now);
        node.current_epoch = node.current_epoch.max(epoch);
        node.set_slots(node.id, slots.clone());
        node.election = None;
        let history = self.draw_stream();
        node.stream.second = Some((node.stream.id, node.stream.offset));
        node.stream.id = history;
        self.log(
            now,
            node,
            &format!("is promoted ({how:?}) in the place of {}, epoch {epoch}", self.name(primary)),
        );
        self.promotions.push((node.id, primary, how));
        self.broadcast(node, now);
    }

    /// SIGTERM with `shutdown-on-sigterm nosave failover`: the primary asks its replica, if one has everything, to
    /// stand before it goes; without a majority besides it nobody is promoted.
    pub fn end_gracefully(&mut self, id: NodeId, now: Ms) {
        let Some(node) = self.nodes.get(&id) else { return };
        let heir = (!node.frozen && node.votes()).then(|| {
            let attached = self.nodes.values().find(|other| {
                other.primary == Some(id)
                    && other.link.up
                    && !other.frozen
                    && other.stream.offset == node.stream.offset
            });
            attached.map(|other| other.id)
        });
        self.end(id, now);
        if let Some(heir) = heir.flatten()
            && let Some(mut node) = self.nodes.remove(&heir)
        {
            self.force(&mut node, now);
            self.nodes.insert(heir, node);
        }
    }
}

impl Election {
    fn new(forced: bool, start: Ms, deadline: Ms) -> Self {
        Self { forced, start, deadline, epoch: None, asked: BTreeSet::new(), votes: 0 }
    }
}

/// A request for a vote.
struct Request<'a> {
    candidate: NodeId,
    primary: NodeId,
    epoch: u64,
    forced: bool,
    claimed: &'a SlotSet,
    claim_epoch: u64,
}

impl Node {
    /// Whether it votes for a candidate in the place of its primary: once per epoch, only for one that knows the
    /// latest owner of the slots, and unless forced only if the primary failed and once in two node timeouts.
    fn vote(&mut self, request: &Request<'_>, now: Ms) -> Result<(), &'static str> {
        if !self.votes() {
            return Err("it owns no slots");
        }
        let Some(candidate) = self.peers.get(&request.candidate) else {
            return Err("it does not know it");
        };
        if candidate.primary != Some(request.primary) {
            return Err("it knows it as no replica of that primary");
        }
        if request.epoch < self.current_epoch || self.last_vote >= request.epoch {
            return Err("the epoch is over");
        }
        self.current_epoch = request.epoch;
        let newer = self.slots.iter().any(|(owner, slots)| {
            slots.intersects(request.claimed) && self.epoch_of(*owner) > request.claim_epoch
        });
        if newer {
            return Err("it knows a later owner of the slots");
        }
        let Some(primary) = self.peers.get_mut(&request.primary) else {
            return Err("it does not know the primary");
        };
        let recent = primary.voted.is_some_and(|at| now - at < 2 * NODE_TIMEOUT);
        if !request.forced && recent {
            return Err("it voted for another replica a moment ago");
        }
        if !request.forced && primary.fail.is_none() {
            return Err("the primary has not failed");
        }
        primary.voted = Some(now);
        self.last_vote = request.epoch;
        Ok(())
    }
}

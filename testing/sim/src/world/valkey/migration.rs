//! Slot migration in atomic jobs (facts §2): one after the other at the giver, all or nothing, and what ends a job.

use shared::slots::{SlotRange, SlotSet};
use shared::valkey::types::NodeId;

use super::Valkey;
use super::commands::{Reply, refuse};
use super::node::{Job, Node};
use crate::clock::Ms;

/// Jobs that a node lists.
const LOG: usize = 50;

impl Valkey {
    /// `CLUSTER MIGRATESLOTS` on the giver.
    pub(super) fn start_migration(
        &mut self,
        node: &mut Node,
        ranges: &[SlotRange],
        target: NodeId,
        now: Ms,
    ) -> Reply {
        let slots = SlotSet::from_ranges(ranges.iter().copied());
        if node.primary.is_some() {
            return refuse("Slot migration can only be used on primary nodes.");
        }
        let owners = node.slots.values().filter(|owned| owned.intersects(&slots)).count();
        if owners > 1 {
            return refuse("Requested slots span multiple shards");
        }
        if let Some(slot) = slots.difference(&node.assigned()).iter().next() {
            return Err(format!("ERR Slot {slot} has no node served."));
        }
        if !slots.difference(&node.own_slots()).is_empty() {
            return refuse("Slots are not served by this node.");
        }
        if target == node.id {
            return refuse("Target node can not be this node.");
        }
        if !node.peers.contains_key(&target) {
            return Err(format!("ERR Unknown node name: {target}"));
        }
        if let Some(slot) = open(node).find_map(|job| job.slots.intersection(&slots).iter().next()) {
            return Err(format!("ERR I am already migrating slot {slot}."));
        }
        self.jobs += 1;
        let before = open(node).filter_map(|job| job.ends).max().unwrap_or(now);
        let took = 100 + self.rng.i64(0..900);
        let job = Job {
            number: self.jobs,
            slots,
            source: node.id,
            target,
            created: now,
            updated: now,
            ends: Some(before + took),
            failure: None,
        };
        add(node, job.clone());
        if let Some(other) = self.nodes.get_mut(&target) {
            add(other, job);
        }
        Ok(())
    }

    /// The jobs of a node: the giver ends what is due, both ends notice what cannot go on.
    pub(super) fn migrate(&mut self, node: &mut Node, now: Ms) {
        let jobs: Vec<Job> = open(node).cloned().collect();
        for job in jobs {
            if job.source == node.id {
                self.give(node, &job, now);
            } else if job.target == node.id {
                let lost = !self.reaches(node, job.source)
                    || self.nodes.get(&job.source).is_none_or(|source| source.primary.is_some());
                if lost {
                    end(node, job.number, Some("Connection lost to source"), now);
                }
            }
        }
    }

    fn give(&mut self, node: &mut Node, job: &Job, now: Ms) {
        let problem = if node.primary.is_some() || !job.slots.difference(&node.own_slots()).is_empty() {
            Some("Slots are no longer owned by myself")
        } else if !self.reaches(node, job.target) {
            Some("Connection lost to target. Check CLUSTER GETSLOTMIGRATIONS on the target node")
        } else if self
            .nodes
            .get(&job.target)
            .is_none_or(|target| target.primary.is_some() || !target.peers.contains_key(&node.id))
        {
            Some(
                "Received error during handshake to target: -ERR Slot migration can only be used on primary nodes.",
            )
        } else {
            None
        };
        if let Some(problem) = problem {
            end(node, job.number, Some(problem), now);
            if let Some(target) = self.nodes.get_mut(&job.target) {
                end(target, job.number, Some("Connection lost to source"), now);
            }
            return;
        }
        if job.ends.is_some_and(|ends| ends > now) {
            return;
        }
        let Some(mut target) = self.nodes.remove(&job.target) else { return };
        for slot in job.slots.iter() {
            if let Some(value) = node.stream.keys.get(&slot) {
                target.stream.keys.insert(slot, *value);
            }
        }
        target.stream.feed(1 + i64::from(job.slots.len()));
        // The receiver draws a new epoch without a vote, so that its claim counts.
        target.current_epoch = target.current_epoch.max(node.current_epoch) + 1;
        target.epoch = target.current_epoch;
        target.drawn = Some(now);
        target.set_slots(node.id, target.slots_of(node.id).difference(&job.slots));
        target.set_slots(target.id, target.own_slots().union(&job.slots));
        end(&mut target, job.number, None, now);
        end(node, job.number, None, now);
        self.log(now, &target, &format!("has received {} from {}", job.slots, node.home.pod));
        let message = target.message(false, &mut self.rng);
        let fresh = self.draw_id();
        node.receive(&message, now, fresh);
        self.broadcast(&mut target, now);
        self.nodes.insert(target.id, target);
    }
}

fn open(node: &Node) -> impl Iterator<Item = &Job> {
    node.jobs.iter().filter(|job| job.ends.is_some())
}

fn add(node: &mut Node, job: Job) {
    node.jobs.insert(0, job);
    node.jobs.truncate(LOG);
}

fn end(node: &mut Node, number: u64, failure: Option<&str>, now: Ms) {
    if let Some(job) = node.jobs.iter_mut().find(|job| job.number == number && job.ends.is_some()) {
        job.ends = None;
        job.updated = now;
        job.failure = failure.map(str::to_owned);
    }
}

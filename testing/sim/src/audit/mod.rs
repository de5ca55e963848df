//! The invariants of the specification (spec, "Invariants"), judged at the moment at which something is done, against
//! the truth and not against what the operator believes.
//!
//! Owns the verdicts. Changes nothing of the world.

mod actions;
mod commands;
pub mod converged;
mod views;

use std::collections::{BTreeMap, BTreeSet};

use cluster_ctl::ports::Command;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use shared::api::{ValkeyCluster, ValkeyNode};
use shared::valkey::types::NodeId;

use crate::clock::Ms;
use crate::world::World;
use crate::world::valkey::Promotion;

/// Two owners of a slot who reach each other settle it within this time, milliseconds.
const SETTLING: Ms = 40_000;

/// A failed member of no use is forgotten within this time where no call fails, milliseconds.
const FORGETTING: Ms = 30_000;

/// A process that the engine greeted at the address of a dead member of another cluster is gone, and forgotten by all of that
/// cluster, within this time where no call fails, milliseconds.
const PARTING: Ms = 60_000;

/// No story needs as many actions on one cluster.
const MANY: u32 = 700;

/// The kind of a mutating action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A `ValkeyNode` is created.
    Create,
    /// A `ValkeyNode` is deleted.
    Delete,
    /// The Pod of a silent primary is deleted.
    EndPod,
    /// A lifecycle moves.
    Lifecycle,
    /// Finalizers of the cluster go.
    Release,
    /// CLUSTER SET-CONFIG-EPOCH.
    SetConfigEpoch,
    /// CLUSTER ADDSLOTSRANGE.
    AddSlots,
    /// CLUSTER MEET.
    Meet,
    /// CLUSTER REPLICATE.
    Replicate,
    /// CLUSTER FORGET.
    Forget,
    /// CLUSTER FAILOVER.
    Failover,
    /// CLUSTER RESET.
    Reset,
    /// CLUSTER MIGRATESLOTS.
    MigrateSlots,
}

impl Kind {
    /// The kind of a command.
    pub fn of(command: &Command) -> Self {
        match command {
            Command::SetConfigEpoch(_) => Self::SetConfigEpoch,
            Command::AddSlots(_) => Self::AddSlots,
            Command::Meet(_) => Self::Meet,
            Command::Replicate(_) => Self::Replicate,
            Command::Forget(_) => Self::Forget,
            Command::Failover(_) => Self::Failover,
            Command::Reset => Self::Reset,
            Command::MigrateSlots(..) => Self::MigrateSlots,
        }
    }
}

/// What the operator did, as far as a verdict needs it.
#[derive(Debug, Default)]
pub struct Audit {
    /// What was violated.
    pub violations: Vec<String>,
    /// Writes to the API and commands to nodes so far.
    pub writes: u64,
    /// When the size of a cluster was last edited, by cluster.
    pub edited: BTreeMap<String, Ms>,
    /// Actions by kind.
    pub actions: BTreeMap<String, u32>,
    /// Commands that a stopped process will carry out when it continues.
    pub late: Vec<(NodeId, Command)>,
    ticks: BTreeMap<(String, String, u64), Tick>,
    pods: BTreeMap<String, u32>,
    deposed: BTreeMap<NodeId, NodeId>,
    overlaps: BTreeMap<(NodeId, NodeId), Ms>,
    /// Failed members of no use that are still listed, and since when.
    unforgotten: BTreeMap<NodeId, Ms>,
    /// Who knows whom of another cluster, and since when.
    strangers: BTreeMap<(NodeId, NodeId), Ms>,
    intents: BTreeMap<String, u32>,
    /// Number of the latest action by cluster.
    numbers: BTreeMap<String, i64>,
    /// When something was last hurt, by cluster.
    pub hurt: BTreeMap<String, Ms>,
    /// Planned hand-overs by cluster and shard index since the last edit or trouble.
    hand_overs: BTreeMap<(String, i32), u32>,
}

#[derive(Debug, Default)]
struct Tick {
    intent: bool,
    kinds: BTreeSet<Kind>,
    targets: BTreeSet<String>,
    promotions: u32,
}

impl World {
    /// An invariant does not hold.
    pub fn violated(&mut self, what: String) {
        self.say("INVARIANT", &what);
        self.audit.violations.push(what);
    }

    /// The intent of tick `number` was recorded.
    pub fn note_intent(&mut self, operator: &str, (cluster, number): (&str, u64), action: i64, kind: String) {
        *self.audit.actions.entry(kind).or_default() += 1;
        let last = self.audit.numbers.entry(cluster.to_owned()).or_default();
        if action <= *last {
            let words = format!(
                "{operator} records action {action} of {cluster} after {last}: the lock does not hold"
            );
            self.violated(words);
        } else {
            *last = action;
        }
        let tick = self.audit.ticks.entry((operator.to_owned(), cluster.to_owned(), number)).or_default();
        let twice = std::mem::replace(&mut tick.intent, true);
        let count = self.audit.intents.entry(cluster.to_owned()).or_default();
        *count += 1;
        if *count > MANY {
            self.violated(format!("{cluster} took {MANY} actions: something is done and undone for ever"));
        }
        if twice {
            self.violated(format!("{operator} records two intents in one tick of {cluster}"));
        }
    }

    /// A mutating action of a tick: one kind, after the intent.
    pub fn judge_action(&mut self, operator: &str, cluster: &str, number: u64, kind: Kind) {
        let tick = self.audit.ticks.entry((operator.to_owned(), cluster.to_owned(), number)).or_default();
        tick.kinds.insert(kind);
        let (intent, kinds) = (tick.intent, tick.kinds.clone());
        if !intent {
            self.violated(format!("{operator} does {kind:?} to {cluster} without a recorded intent"));
        }
        if kinds.len() > 1 {
            self.violated(format!("{operator} does {kinds:?} to {cluster} in one tick"));
        }
    }

    /// A command is sent in a tick; beyond bootstrap one command goes to one node, but for FORGET.
    pub fn judge_send(&mut self, operator: &str, number: u64, pod: &str, to: NodeId, command: &Command) {
        self.audit.writes += 1;
        let cluster = crate::ports::valkey::cluster_of(pod).to_owned();
        let kind = Kind::of(command);
        self.judge_action(operator, &cluster, number, kind);
        let formed = self.formed(&cluster);
        let tick = self.audit.ticks.entry((operator.to_owned(), cluster.clone(), number)).or_default();
        tick.targets.insert(pod.to_owned());
        tick.promotions += u32::from(kind == Kind::Failover);
        let again = tick.promotions > 1;
        let many = tick.targets.len() > 1 && kind != Kind::Forget;
        if many && formed {
            self.violated(format!(
                "{operator} sends {kind:?} to several nodes of the formed {cluster} in one tick"
            ));
        }
        if again {
            self.violated(format!("{operator} sends FAILOVER again in one tick of {cluster}, to {pod}"));
        }
        if self.valkey.known.get(&to).is_some_and(|home| home.pod != pod) {
            self.violated(format!("a command for {pod} reaches {}", self.valkey.name(to)));
        }
    }

    /// Judged ten times a second: no strangers among the members, no slot with two owners for long.
    pub fn judge_step(&mut self) {
        self.judge_strangers();
        self.judge_owners();
        self.judge_promotions();
    }

    /// No member knows one of another cluster. What no operator can prevent is that the engine greets whoever sits at the
    /// address of a dead member whose death is not proved yet: it must stay apart, and go soon.
    fn judge_strangers(&mut self) {
        let limit = if self.rates == crate::faults::Rates::default() { PARTING } else { 4 * PARTING };
        let (mut found, mut strangers) = (Vec::new(), BTreeMap::new());
        for node in self.valkey.nodes.values() {
            let of_another = |id: &&NodeId| {
                self.valkey.known.get(id).is_some_and(|home| home.cluster != node.home.cluster)
            };
            for id in node.peers.keys().filter(of_another) {
                let since = self.audit.strangers.get(&(node.id, *id)).copied().unwrap_or(self.now);
                strangers.insert((node.id, *id), since);
                let greeted = [node.id, *id].into_iter().find(|id| self.valkey.greeted.contains(id));
                let names = (&node.home.pod, self.valkey.name(*id));
                if !greeted.is_some_and(|id| self.is_apart(id)) {
                    found.push(format!("{} knows {} of another cluster", names.0, names.1));
                } else if self.now - since > limit {
                    let seconds = limit / 1000;
                    found.push(format!("{} knows {} of another cluster for {seconds} s", names.0, names.1));
                }
            }
        }
        self.audit.strangers = strangers;
        for words in found {
            self.violated(words);
        }
    }

    /// It has ended, or holds nothing, owns nothing, follows nobody, and neither knows anybody of its own cluster nor is known
    /// to any: nothing can go from one cluster to the other through it.
    fn is_apart(&self, id: NodeId) -> bool {
        let Some(node) = self.valkey.nodes.get(&id) else { return true };
        let ours = |other: &NodeId| {
            self.valkey.known.get(other).is_some_and(|home| home.cluster == node.home.cluster)
        };
        let empty = node.primary.is_none() && node.own_slots().is_empty() && node.stream.keys.is_empty();
        let known = self.valkey.of_cluster(&node.home.cluster).any(|other| other.peers.contains_key(&id));
        empty && !known && !node.peers.keys().any(ours)
    }

    fn judge_owners(&mut self) {
        let whole: Vec<_> = self
            .valkey
            .nodes
            .values()
            .filter(|node| !node.frozen && node.votes())
            .filter(|node| {
                self.valkey.network.cut_of(node.id) == crate::world::valkey::network::Cut::default()
            })
            .collect();
        let mut now = BTreeMap::new();
        for (number, left) in whole.iter().enumerate() {
            for right in whole.iter().skip(number + 1) {
                let (Some(ours), Some(theirs)) = (left.slots.get(&left.id), right.slots.get(&right.id))
                else {
                    continue;
                };
                if left.home.cluster == right.home.cluster && ours.intersects(theirs) {
                    let pair = (left.id, right.id);
                    // One that carries out late that it was to forget the other takes no word of it for a minute:
                    // nobody can bring the two together before.
                    let banned = left.banned.contains_key(&right.id) || right.banned.contains_key(&left.id);
                    let since = self.audit.overlaps.get(&pair).copied().filter(|_| !banned);
                    now.insert(pair, since.unwrap_or(self.now));
                }
            }
        }
        let old: Vec<_> =
            now.iter().filter(|(_, since)| self.now - **since > SETTLING).map(|(pair, _)| *pair).collect();
        self.audit.overlaps = now;
        for (left, right) in old {
            self.audit.overlaps.remove(&(left, right));
            let (left, right) = (self.valkey.name(left), self.valkey.name(right));
            self.violated(format!("{left} and {right} own the same slots for {} s", SETTLING / 1000));
        }
    }

    /// A member that a majority calls failed, that owns nothing and that nobody follows is forgotten soon: the engine greets
    /// its address, which may be given to another cluster's Pod (facts §9).
    pub fn judge_forgetting(&mut self) {
        let mut found: BTreeSet<NodeId> = BTreeSet::new();
        for cluster in self.api.list::<ValkeyCluster>() {
            if cluster.metadata.deletion_timestamp.is_none() {
                found.extend(self.useless(&cluster.name_any()));
            }
        }
        self.audit.unforgotten.retain(|id, _| found.contains(id));
        let limit = if self.rates == crate::faults::Rates::default() { FORGETTING } else { 4 * FORGETTING };
        // One of two operators that is cut off leaves the other to act.
        let blind = !self.twins && self.without_api.values().any(|until| *until > self.now);
        for id in found {
            let since = self.audit.unforgotten.entry(id).or_insert(self.now);
            if blind {
                // Without the API server nobody may act.
                *since = self.now;
            }
            let since = *since;
            if self.now - since > limit {
                let name = self.valkey.name(id);
                let seconds = limit / 1000;
                self.violated(format!(
                    "{name} has failed and is of no use, and after {seconds} s not forgotten"
                ));
            }
        }
    }

    fn useless(&self, cluster: &str) -> Vec<NodeId> {
        let heard: Vec<_> = self.valkey.of_cluster(cluster).filter(|node| self.is_reachable(node)).collect();
        let owners: BTreeSet<NodeId> = heard.iter().flat_map(|node| node.slots.keys().copied()).collect();
        let mut votes: BTreeMap<NodeId, usize> = BTreeMap::new();
        for node in heard.iter().filter(|node| node.votes()) {
            let failed = node.peers.iter().filter(|(_, peer)| peer.fail.is_some());
            failed.for_each(|(id, _)| *votes.entry(*id).or_default() += 1);
        }
        let of_no_use = |id: &NodeId| {
            !owners.contains(id) && heard.iter().all(|node| node.primary != Some(*id) && node.id != *id)
        };
        let failed = votes.into_iter().filter(|(_, votes)| *votes > owners.len() / 2);
        failed.map(|(id, _)| id).filter(of_no_use).collect()
    }

    /// At most one planned hand-over for each shard of a roll.
    fn judge_hand_over(&mut self, winner: NodeId, from: NodeId) {
        let Some(home) = self.valkey.known.get(&winner).cloned() else { return };
        // That of an evicted primary comes besides what its shard does in a roll.
        let pod = self.valkey.known.get(&from).and_then(|home| self.api.get::<Pod>(&home.pod));
        if pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some()) {
            return;
        }
        let Some(node) = self.api.get::<ValkeyNode>(&home.pod) else { return };
        let key = (home.cluster, node.spec.shard_index);
        let count = self.audit.hand_overs.entry(key).or_default();
        *count += 1;
        if *count > 1 {
            let (winner, from) = (self.valkey.name(winner), self.valkey.name(from));
            self.violated(format!(
                "{winner} takes over from {from}: the second hand-over of its shard in one roll"
            ));
        }
    }

    /// Something changed that may ask for a hand-over more.
    pub fn new_turn(&mut self) {
        self.audit.hand_overs.clear();
    }

    fn judge_promotions(&mut self) {
        for (winner, from, how) in std::mem::take(&mut self.valkey.promotions) {
            if how == Promotion::Planned {
                self.judge_hand_over(winner, from);
                continue;
            }
            // A primary again: what it lost before is another story.
            self.audit.deposed.remove(&winner);
            let before = self.audit.deposed.insert(from, winner);
            if let Some(before) = before.filter(|before| *before != winner) {
                let names = (self.valkey.name(before), self.valkey.name(winner), self.valkey.name(from));
                self.violated(format!(
                    "{} and {} were promoted ({how:?}) for one death of {}",
                    names.0, names.1, names.2
                ));
            }
        }
    }
}

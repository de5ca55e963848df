//! A model of Valkey as far as the operator can see it: views that differ, gossip, failure detection, elections,
//! replication. What it does was measured on 8.1.1 and 9.1.2; each file names the sections of the facts it follows.
//!
//! Owns the processes and the network between them. Knows nothing of Kubernetes or of who sends a command.

pub mod bus;
pub mod commands;
mod election;
pub mod engine;
mod migration;
pub mod network;
pub mod node;
mod replication;
pub mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use shared::valkey::types::NodeId;

use self::network::Network;
use self::node::{Home, Login, Node};
use crate::clock::Ms;

/// How a replica was promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// By the engine's own election.
    Elected,
    /// By FORCE, or by the hand-over at SIGTERM.
    Forced,
    /// By TAKEOVER.
    TakenOver,
    /// By a planned FAILOVER.
    Planned,
}

/// All Valkey processes.
#[derive(Debug)]
pub struct Valkey {
    /// Living processes by ID.
    pub nodes: BTreeMap<NodeId, Node>,
    /// The network between them.
    pub network: Network,
    /// Pod and cluster of every ID that ever was.
    pub known: BTreeMap<NodeId, Home>,
    /// Promotions not looked at yet: who, in whose place, how.
    pub promotions: Vec<(NodeId, NodeId, Promotion)>,
    /// Processes that another introduced itself to, of its own accord, when it found them at the address of a dead peer (facts
    /// §9).
    pub greeted: BTreeSet<NodeId>,
    lines: Vec<(Ms, String, String)>,
    rng: fastrand::Rng,
    /// The ID of the next process, where chance does not draw it.
    ordained: Option<NodeId>,
    streams: u64,
    jobs: u64,
}

impl Valkey {
    /// No process yet.
    pub fn new(rng: fastrand::Rng) -> Self {
        Self {
            nodes: BTreeMap::new(),
            network: Network::default(),
            known: BTreeMap::new(),
            promotions: Vec::new(),
            greeted: BTreeSet::new(),
            lines: Vec::new(),
            rng,
            ordained: None,
            streams: 0,
            jobs: 0,
        }
    }

    /// The next process that starts, or is reset, gets this ID: the order of IDs decides between equal epochs.
    pub fn ordain(&mut self, id: NodeId) {
        self.ordained = Some(id);
    }

    /// A process starts.
    pub fn start(&mut self, home: Home, login: Login, now: Ms) -> NodeId {
        let drawn = self.draw_id();
        let id = self.ordained.take().unwrap_or(drawn);
        let stream = self.draw_stream();
        self.network.listen(home.ip, id);
        self.known.insert(id, home.clone());
        self.nodes.insert(id, Node::new(id, home, login, stream, now));
        id
    }

    /// A process ends; its address refuses from now on.
    pub fn end(&mut self, id: NodeId, now: Ms) {
        if let Some(node) = self.nodes.remove(&id) {
            self.network.refuse(node.home.ip);
            self.log(now, &node, "has ended");
        }
    }

    /// A process goes with its machine: its address falls silent.
    pub fn vanish(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.remove(&id) {
            self.network.vanish(node.home.ip);
        }
    }

    /// Stops or continues a process.
    pub fn freeze(&mut self, id: NodeId, frozen: bool) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.frozen = frozen;
        }
    }

    /// The process in the Pod of this UID.
    pub fn in_pod(&self, pod_uid: &str) -> Option<&Node> {
        self.nodes.values().find(|node| node.home.pod_uid == pod_uid)
    }

    /// Living processes of a cluster.
    pub fn of_cluster<'a>(&'a self, cluster: &'a str) -> impl Iterator<Item = &'a Node> {
        self.nodes.values().filter(move |node| node.home.cluster == cluster)
    }

    /// Name of the Pod of an ID, for people.
    pub fn name(&self, id: NodeId) -> String {
        self.known.get(&id).map_or_else(|| id.to_string(), |home| home.pod.clone())
    }

    /// What the processes had to say since the last call.
    pub fn take_lines(&mut self) -> Vec<(Ms, String, String)> {
        std::mem::take(&mut self.lines)
    }

    /// Another address than the process knows of itself is never used: pods announce their IP.
    pub fn ip_of(&self, id: NodeId) -> Option<IpAddr> {
        self.nodes.get(&id).map(|node| node.home.ip)
    }

    fn log(&mut self, now: Ms, node: &Node, what: &str) {
        self.lines.push((now, node.home.pod.clone(), what.to_owned()));
    }

    fn draw_id(&mut self) -> NodeId {
        let mut bytes = [0; 20];
        self.rng.fill(&mut bytes);
        NodeId::from_bytes(bytes)
    }

    fn draw_stream(&mut self) -> u64 {
        self.streams += 1;
        self.streams
    }
}

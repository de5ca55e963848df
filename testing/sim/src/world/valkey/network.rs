//! Who reaches whom: addresses that answer, refuse or stay silent, and parts of the network that are cut off.
//!
//! A dead process's address refuses while its sandbox is there and is silent afterwards (facts §9): only the silent
//! one makes the engine send MEET to whoever gets it next.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use shared::valkey::types::NodeId;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A Valkey node.
    Node(NodeId),
    /// The operator.
    Operator,
    /// A client of the cluster.
    Client,
}

/// What a dialled address does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// This node answers.
    Answers(NodeId),
    /// The connection is refused.
    Refuses,
    /// Nothing comes back.
    Silent,
}

/// What a node is cut off from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// From other nodes.
    pub peers: bool,
    /// From the operator.
    pub operator: bool,
    /// From clients.
    pub clients: bool,
}

/// The network between pods, operator and clients.
#[derive(Debug, Default)]
pub struct Network {
    listening: BTreeMap<IpAddr, NodeId>,
    refusing: BTreeSet<IpAddr>,
    cuts: BTreeMap<NodeId, Cut>,
}

impl Network {
    /// A process listens.
    pub fn listen(&mut self, ip: IpAddr, id: NodeId) {
        self.refusing.remove(&ip);
        self.listening.insert(ip, id);
    }

    /// Nobody listens any more; the address still exists.
    pub fn refuse(&mut self, ip: IpAddr) {
        self.listening.remove(&ip);
        self.refusing.insert(ip);
    }

    /// The address is nobody's, unless a process listens there by now.
    pub fn silence(&mut self, ip: IpAddr) {
        self.refusing.remove(&ip);
    }

    /// The address is nobody's at once: its machine is gone.
    pub fn vanish(&mut self, ip: IpAddr) {
        self.listening.remove(&ip);
        self.refusing.remove(&ip);
    }

    /// Cuts a node off.
    pub fn cut(&mut self, id: NodeId, cut: Cut) {
        if cut == Cut::default() {
            self.cuts.remove(&id);
        } else {
            self.cuts.insert(id, cut);
        }
    }

    /// What a node is cut off from.
    pub fn cut_of(&self, id: NodeId) -> Cut {
        self.cuts.get(&id).copied().unwrap_or_default()
    }

    /// Dials `ip`.
    pub fn dial(&self, from: End, ip: IpAddr) -> Contact {
        match self.listening.get(&ip) {
            Some(id) if self.reaches(from, *id) => Contact::Answers(*id),
            None if self.refusing.contains(&ip) => Contact::Refuses,
            Some(_) | None => Contact::Silent,
        }
    }

    fn reaches(&self, from: End, to: NodeId) -> bool {
        let target = self.cut_of(to);
        match from {
            End::Operator => !target.operator,
            End::Client => !target.clients,
            End::Node(id) => id == to || (!target.peers && !self.cut_of(id).peers),
        }
    }
}

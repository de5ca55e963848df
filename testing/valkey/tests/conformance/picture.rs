//! What the model and a server must agree on when nothing moves: one node's view, by names instead of IDs.
//!
//! Owns what is compared, and so what is not:
//!
//! * **Absolute epochs**: only their order within a view. Elections that fail draw epochs as often as they are tried.
//! * **The highest epoch seen** (`cluster_current_epoch`): the same reason; the operator does not read it.
//! * **Offsets**, but for none, the 1 of a replica that was never in sync, and more: the model counts bytes roughly.
//! * **Times**: how long a change takes. Both get the same time, and must then be at rest in the same picture.
//! * **CLUSTER SHARDS**: the model sorts nodes into shards by whom they follow. A server does so after some seconds.
//! * **Links to a stopped process**: a server drops and renews them all the time, because each is taken.
//! * **CLUSTER LINKS, ROLE, RESET SOFT, BUMPEPOCH, DELSLOTS, SETSLOT**: the operator never sends them.
//! * **A living member that was forgotten**: it comes back by itself, or is met again, and each server that still bans it
//!   has the others drop it again for up to a minute. The model keeps who is met again.
//! * **Addresses that are silent**, not refusing: on the loopback only a stopped process is silent.

use std::collections::{BTreeMap, BTreeSet};

use shared::valkey::{NodeId, NodeLine, NodeReport, Role};

/// A node in one of its lives: `2`, and after a reset or restart `2'`.
pub(crate) type Name = String;

/// The views of all nodes that answer, by place.
pub(crate) type Pictures = BTreeMap<usize, Picture>;

/// One node's view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture {
    /// Whom it follows.
    pub(crate) follows: Option<Name>,
    /// Everybody that it lists, itself included, but for nodes in handshake.
    pub(crate) lines: BTreeMap<Name, Line>,
    /// Somebody is in handshake.
    pub(crate) greets: bool,
    /// `cluster_state:ok`.
    pub(crate) serves: bool,
    /// Slots assigned, ok, of owners that may have failed, of owners that have.
    pub(crate) slots: [u16; 4],
    /// Primaries with slots.
    pub(crate) size: u32,
    /// The link of a replica is up.
    pub(crate) linked: Option<bool>,
    /// Its offset: 0, 1, or 2 for anything above.
    pub(crate) offset: i64,
    /// Known of the model only: bytes are counted, which none may have been yet, so 0 is as good as 2.
    pub(crate) counts: bool,
    /// Keys that it holds.
    pub(crate) keys: u64,
    /// Replicas that it counts to another shard than their primary.
    pub(crate) parted: BTreeSet<Name>,
}

/// What a node says of one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a node")]
pub(crate) struct Line {
    /// Whom it follows; `None` for a primary.
    pub(crate) follows: Option<Name>,
    /// Its slots.
    pub(crate) slots: String,
    /// Place of its epoch among those of all primaries in this view; 0 is epoch 0. Of replicas: 0.
    pub(crate) rank: usize,
    /// `fail`.
    pub(crate) failed: bool,
    /// `fail?`.
    pub(crate) doubted: bool,
    /// `noaddr`.
    pub(crate) nowhere: bool,
    /// The link to it is up.
    pub(crate) connected: bool,
}

impl Picture {
    /// What `report` says.
    pub(crate) fn of(report: &NodeReport, names: &BTreeMap<NodeId, Name>) -> Self {
        let name = |id: NodeId| names.get(&id).cloned().unwrap_or_else(|| "a stranger".to_owned());
        let lines: Vec<&NodeLine> = report.nodes.iter().filter(|line| !line.flags.handshake).collect();
        let primaries = lines.iter().filter(|line| line.primary.is_none());
        let epochs: BTreeSet<u64> = primaries.map(|line| line.epoch.0).filter(|epoch| *epoch > 0).collect();
        let line = |line: &NodeLine| Line {
            follows: line.primary.map(name),
            slots: line.slots.to_string(),
            rank: match line.primary {
                Some(_) => 0,
                None => epochs.range(..=line.epoch.0).count(),
            },
            failed: line.flags.fail,
            doubted: line.flags.pfail,
            nowhere: line.flags.noaddr,
            connected: line.link_connected,
        };
        let (info, cluster) = (&report.info, &report.cluster);
        Self {
            follows: report.myself().and_then(|line| line.primary).map(name),
            greets: report.nodes.handshakes() > 0,
            serves: cluster.ok,
            slots: [cluster.slots_assigned, cluster.slots_ok, cluster.slots_pfail, cluster.slots_fail],
            size: cluster.size,
            linked: info.link.as_ref().map(|link| link.up && !link.sync_in_progress),
            offset: match info.role {
                Role::Primary => info.offset.0.min(2),
                Role::Replica => info.link.as_ref().map_or(-1, |link| link.offset.0.min(2)),
            },
            counts: false,
            keys: info.keys,
            parted: report.parted.iter().copied().map(name).collect(),
            lines: lines.iter().map(|it| (name(it.id), line(it))).collect(),
        }
    }

    /// Its line of `name`.
    pub(crate) fn line(&self, name: &str) -> Option<&Line> {
        self.lines.get(name)
    }

    /// Whether it says that `name` failed.
    pub(crate) fn fails(&self, name: &str) -> bool {
        self.line(name).is_some_and(|line| line.failed)
    }

    /// Whether it says that `name` owns slots.
    pub(crate) fn owns(&self, name: &str) -> bool {
        self.line(name).is_some_and(|line| !line.slots.is_empty())
    }

    /// Where it says something else than `other`, in words; this is what the servers say.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let names: BTreeSet<&Name> = self.lines.keys().chain(other.lines.keys()).collect();
        for name in names {
            let (server, model) = (self.lines.get(name), other.lines.get(name));
            if server != model {
                found.push(format!("of {name}: server {server:?}, model {model:?}"));
            }
        }
        let counted = other.counts && [self.offset, other.offset].iter().all(|offset| *offset != 1);
        let bare = |picture: &Self| Self {
            lines: BTreeMap::new(),
            offset: if counted { 2 } else { picture.offset },
            counts: false,
            ..picture.clone()
        };
        if bare(self) != bare(other) {
            found.push(format!("itself: server {:?}, model {:?}", bare(self), bare(other)));
        }
        found
    }

    /// Says nothing of the links to these.
    pub(crate) fn forget_links(&mut self, to: &[Name]) {
        for (_, line) in self.lines.iter_mut().filter(|(name, _)| to.contains(name)) {
            line.connected = true;
        }
    }

    /// Of the epochs only says whether two are the same.
    pub(crate) fn forget_order(&mut self) {
        let ranks: Vec<usize> = self.lines.values().map(|line| line.rank).collect();
        for line in self.lines.values_mut().filter(|line| line.rank > 0) {
            line.rank = ranks.iter().filter(|rank| **rank == line.rank).count();
        }
    }
}

/// Whether `holds` for every picture.
pub(crate) fn everywhere(pictures: &Pictures, holds: impl Fn(&Picture) -> bool) -> bool {
    pictures.values().all(holds)
}

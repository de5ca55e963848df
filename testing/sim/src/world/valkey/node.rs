//! One Valkey process: identity, its view of the others, its data.
//!
//! The view is the node's own and may be wrong: nothing here is shared between nodes. Follows facts §3 to §6.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use shared::slots::SlotSet;
use shared::valkey::types::NodeId;

use crate::clock::Ms;

/// `cluster-node-timeout` of pods.md, milliseconds.
pub const NODE_TIMEOUT: Ms = 5_000;
/// How long a FORGET bars an ID from gossip (facts §5).
pub const BAN: Ms = 60_000;

/// Who may log in to a process, from the files that it read at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// users.acl.
    pub users_acl: Arc<str>,
    /// The replication password, its own as primary and the one that it sends as replica.
    pub repl: Arc<str>,
}

/// Where and as what a process runs.
#[derive(Clone, Debug)]
pub struct Home {
    /// Name of its Pod.
    pub pod: String,
    /// UID of its Pod.
    pub pod_uid: String,
    /// Name of the cluster that its Pod belongs to: the truth, which the process does not know.
    pub cluster: String,
    /// Its machine.
    pub machine: String,
    /// Its address.
    pub ip: IpAddr,
}

/// A process.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its ID.
    pub id: NodeId,
    /// Where it runs.
    pub home: Home,
    /// Its files.
    pub login: Login,
    /// When it started.
    pub started: Ms,
    /// Stopped by a signal: it neither answers nor acts.
    pub frozen: bool,
    /// Configuration epoch; of no meaning on a replica.
    pub epoch: u64,
    /// When it last drew its configuration epoch by itself.
    pub drawn: Option<Ms>,
    /// Highest epoch seen.
    pub current_epoch: u64,
    /// Epoch of the last vote given.
    pub last_vote: u64,
    /// The primary that it replicates.
    pub primary: Option<NodeId>,
    /// Its shard: its own from its start on, its primary's while it has one; a promotion changes nothing.
    pub shard: u64,
    /// Everybody it knows by their real ID, but itself.
    pub peers: BTreeMap<NodeId, Peer>,
    /// Introductions under way.
    pub handshakes: Vec<Handshake>,
    /// Owners of slots in its view, itself included. No owner without a slot.
    pub slots: BTreeMap<NodeId, SlotSet>,
    /// Slots whose owner in its view does not claim them any more: they are anybody's who does.
    pub unclaimed: SlotSet,
    /// IDs that gossip may not bring back, and until when.
    pub banned: BTreeMap<NodeId, Ms>,
    /// Its data.
    pub stream: Stream,
    /// Its link to the primary, on a replica.
    pub link: Link,
    /// An attempt to be promoted.
    pub election: Option<Election>,
    /// No election of its own accord before this moment.
    pub next_election: Ms,
    /// When it was last promoted.
    pub promoted: Option<Ms>,
    /// When it last found itself in a minority.
    pub minority: Option<Ms>,
    /// Slot migrations that it gives or receives, newest first.
    pub jobs: Vec<Job>,
}

/// What a node knows of another.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a peer")]
pub struct Peer {
    /// Where it is; `None` once somebody else was found there.
    pub ip: Option<IpAddr>,
    /// Its configuration epoch.
    pub epoch: u64,
    /// The primary that it replicates; `None` for a primary.
    pub primary: Option<NodeId>,
    /// Its shard, once it has said so itself.
    pub shard: Option<u64>,
    /// Since when a ping is unanswered.
    pub ping_sent: Option<Ms>,
    /// Since when it is known.
    pub met: Ms,
    /// When it last answered.
    pub pong: Ms,
    /// When it last called.
    pub inbound: Ms,
    /// When to call it next.
    pub next_ping: Ms,
    /// `fail?`.
    pub pfail: bool,
    /// `fail`, since when.
    pub fail: Option<Ms>,
    /// Primaries that say it does not answer, and when they last said so.
    pub reports: BTreeMap<NodeId, Ms>,
    /// MEET goes to its address with the next connect (facts §9).
    pub meet: bool,
    /// The address refused the last connect.
    pub refused: bool,
    /// Nothing came back from the address at the last connect.
    pub silent: bool,
    /// When a replica of it last got our vote.
    pub voted: Option<Ms>,
}

/// An introduction under way.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// The random ID under which it is listed.
    pub id: NodeId,
    /// The address.
    pub ip: IpAddr,
    /// Since when.
    pub since: Ms,
    /// With MEET: the other side adds us. Without: it has introduced itself.
    pub meet: bool,
}

/// The data of a node and its place in a replication history.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// The history.
    pub id: u64,
    /// The history that it went on from, and where.
    pub second: Option<(u64, i64)>,
    /// Bytes of it processed.
    pub offset: i64,
    /// Value of the key in each slot that has one.
    pub keys: BTreeMap<u16, u64>,
    /// Holds the data of a primary: its first sync is over. True on a primary.
    pub synced: bool,
    /// It has had a replica, or been one: only then bytes are counted.
    pub fed: bool,
}

impl Stream {
    /// Something is written.
    pub fn feed(&mut self, bytes: i64) {
        if self.fed {
            self.offset += bytes;
        }
    }
}

/// The link of a replica.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// Where the primary was found last: whoever sits there is followed, also when nobody knows its address any more.
    pub host: Option<IpAddr>,
    /// Up.
    pub up: bool,
    /// A full sync ends at this moment.
    pub syncing_until: Option<Ms>,
    /// Down since; `None` while it is up or was never up.
    pub down_since: Option<Ms>,
    /// Last byte from the primary.
    pub last_io: Ms,
    /// It applies nothing before this moment: a slow replica.
    pub lagging_until: Ms,
}

/// A slot migration, as one end lists it.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its number.
    pub number: u64,
    /// The slots.
    pub slots: SlotSet,
    /// Giver.
    pub source: NodeId,
    /// Receiver.
    pub target: NodeId,
    /// Since when.
    pub created: Ms,
    /// Last change.
    pub updated: Ms,
    /// When it is done, if nothing happens; `None` once it has ended.
    pub ends: Option<Ms>,
    /// The engine's words when it failed.
    pub failure: Option<String>,
}

/// An attempt to be promoted.
#[derive(Clone, Debug)]
pub struct Election {
    /// Asked for by FORCE: voters need not agree that the primary failed.
    pub forced: bool,
    /// Votes are asked for from this moment on.
    pub start: Ms,
    /// Given up at this moment.
    pub deadline: Ms,
    /// Its epoch, once it has started.
    pub epoch: Option<u64>,
    /// Who was asked.
    pub asked: BTreeSet<NodeId>,
    /// Votes so far.
    pub votes: usize,
}

impl Peer {
    /// A peer just met.
    pub fn new(ip: IpAddr, now: Ms) -> Self {
        Self {
            ip: Some(ip),
            epoch: 0,
            primary: None,
            shard: None,
            ping_sent: None,
            met: now,
            pong: now,
            inbound: now,
            next_ping: now,
            pfail: false,
            fail: None,
            reports: BTreeMap::new(),
            meet: false,
            refused: false,
            silent: false,
            voted: None,
        }
    }

    /// It does not answer, by anybody's judgement.
    pub fn failing(&self) -> bool {
        self.pfail || self.fail.is_some()
    }
}

impl Node {
    /// A fresh process: alone, empty, epoch 0.
    pub fn new(id: NodeId, home: Home, login: Login, stream_id: u64, now: Ms) -> Self {
        Self {
            id,
            home,
            login,
            started: now,
            frozen: false,
            epoch: 0,
            drawn: None,
            current_epoch: 0,
            last_vote: 0,
            primary: None,
            shard: stream_id,
            peers: BTreeMap::new(),
            handshakes: Vec::new(),
            slots: BTreeMap::new(),
            unclaimed: SlotSet::new(),
            banned: BTreeMap::new(),
            stream: Stream { id: stream_id, synced: true, ..Stream::default() },
            link: Link::default(),
            election: None,
            next_election: 0,
            promoted: None,
            minority: None,
            jobs: Vec::new(),
        }
    }

    /// Slots of `id` in its view.
    pub fn slots_of(&self, id: NodeId) -> SlotSet {
        self.slots.get(&id).cloned().unwrap_or_default()
    }

    /// Slots that it owns by its own account.
    pub fn own_slots(&self) -> SlotSet {
        self.slots_of(self.id)
    }

    /// Every slot that has an owner in its view.
    pub fn assigned(&self) -> SlotSet {
        self.slots.values().flat_map(|slots| slots.ranges().iter().copied()).collect()
    }

    /// Configuration epoch of `id` in its view.
    pub fn epoch_of(&self, id: NodeId) -> u64 {
        if id == self.id { self.epoch } else { self.peers.get(&id).map_or(0, |peer| peer.epoch) }
    }

    /// Epoch that its header carries: its own, or its primary's.
    pub fn header_epoch(&self) -> u64 {
        self.primary.map_or(self.epoch, |id| self.epoch_of(id))
    }

    /// Primaries with slots in its view, itself included.
    pub fn voters(&self) -> Vec<NodeId> {
        self.slots.keys().copied().collect()
    }

    /// Votes that an election needs in its view.
    pub fn majority(&self) -> usize {
        self.slots.len() / 2 + 1
    }

    /// Whether it sees a majority of the slot-holding primaries, itself included.
    pub fn sees_majority(&self) -> bool {
        let alive = self.slots.keys().filter(|id| self.peers.get(*id).is_none_or(|peer| !peer.failing()));
        alive.count() >= self.majority()
    }

    /// Whether it is a primary that owns slots.
    pub fn votes(&self) -> bool {
        self.primary.is_none() && self.slots.contains_key(&self.id)
    }

    /// Follows `primary` from now on; what it holds stays until the first sync.
    pub fn follow(&mut self, primary: NodeId) {
        if self.primary != Some(primary) {
            let host = self.peers.get(&primary).and_then(|peer| peer.ip);
            self.link = Link { host, last_io: self.link.last_io, ..Link::default() };
        }
        self.primary = Some(primary);
        self.shard = self.peers.get(&primary).and_then(|peer| peer.shard).unwrap_or(self.shard);
        self.slots.remove(&self.id);
        self.election = None;
    }

    /// Whether the cluster serves in its view: `cluster_state:ok` (facts §3: not in the first two seconds of a
    /// primary's life, nor within five seconds of a minority).
    pub fn serves(&self, now: Ms) -> bool {
        let whole = self.assigned().len() == shared::slots::SLOT_COUNT;
        let failed = self.slots.keys().any(|id| self.peers.get(id).is_some_and(|peer| peer.fail.is_some()));
        let young = self.primary.is_none() && now - self.started < 2_000;
        let returning =
            self.primary.is_none() && self.minority.is_some_and(|since| now - since < NODE_TIMEOUT);
        whole && !failed && !young && !returning && self.sees_majority()
    }
}

//! Replication: links, full and partial syncs, offsets (facts §4e, §5, §9). It has no cluster id check: whoever sits
//! at the primary's address and takes the password is followed.

use shared::valkey::types::NodeId;

use super::Valkey;
use super::network::{Contact, End};
use super::node::Node;
use crate::clock::Ms;

/// A primary pings its replicas this often, milliseconds; the ping counts as bytes.
const PING: Ms = 10_000;
/// `repl-timeout`, milliseconds.
const TIMEOUT: Ms = 60_000;
/// Bytes of a ping in the stream.
const PING_BYTES: i64 = 14;

impl Valkey {
    /// A primary's pings, or a replica's link.
    pub(super) fn replicate(&mut self, node: &mut Node, now: Ms) {
        let Some(primary) = node.primary else {
            let attached = self.nodes.values().any(|other| other.primary == Some(node.id) && other.link.up);
            let due = (now - node.started) % PING < super::engine::STEP;
            if attached && due {
                node.stream.feed(PING_BYTES);
            }
            return;
        };
        node.link.host = node.peers.get(&primary).and_then(|peer| peer.ip).or(node.link.host);
        match self.source(node) {
            Source::Found(source) => self.follow_source(node, source, now),
            Source::Refused => lose(node, now),
            Source::Silent => {
                if node.link.up && now - node.link.last_io > TIMEOUT {
                    lose(node, now);
                }
                node.link.syncing_until = None;
            }
        }
    }

    /// Who sits at the primary's address, if it lets the replica in.
    fn source(&self, node: &Node) -> Source {
        let Some(ip) = node.link.host else { return Source::Refused };
        match self.network.dial(End::Node(node.id), ip) {
            Contact::Answers(id) if self.awake(id) => match self.nodes.get(&id) {
                Some(other) if other.login.repl == node.login.repl => Source::Found(id),
                _ => Source::Refused,
            },
            Contact::Answers(_) | Contact::Silent => Source::Silent,
            Contact::Refuses => Source::Refused,
        }
    }

    fn follow_source(&mut self, node: &mut Node, source: NodeId, now: Ms) {
        let Some(primary) = self.nodes.get(&source) else { return };
        let continues = node.stream.synced && continues(&node.stream, &primary.stream);
        if node.link.up && !continues {
            lose(node, now);
        }
        if node.link.up {
            if now < node.link.lagging_until {
                return;
            }
            if node.stream.offset != primary.stream.offset || (now - primary.started) % PING < 200 {
                node.link.last_io = now;
            }
        } else if continues {
            node.link.up = true;
            node.link.last_io = now;
        } else if let Some(end) = node.link.syncing_until {
            if now < end {
                return;
            }
            node.link.up = true;
            node.link.last_io = now;
            node.link.syncing_until = None;
        } else {
            if primary.primary.is_some() && !primary.link.up {
                return;
            }
            let took = 100 + self.rng.i64(0..1_500);
            node.link.syncing_until = Some(now + took);
            return;
        }
        node.link.down_since = None;
        node.stream.fed = true;
        node.stream.synced = true;
        node.stream.id = primary.stream.id;
        node.stream.second = primary.stream.second;
        node.stream.offset = primary.stream.offset;
        if node.stream.keys != primary.stream.keys {
            node.stream.keys = primary.stream.keys.clone();
        }
        if let Some(primary) = self.nodes.get_mut(&source) {
            primary.stream.fed = true;
        }
    }
}

/// The link is down.
fn lose(node: &mut Node, now: Ms) {
    node.link.syncing_until = None;
    if node.link.up {
        node.link.up = false;
        node.link.down_since = Some(now);
    }
}

/// Whether what the replica holds is a beginning of what the primary holds: a partial sync is enough.
fn continues(replica: &super::node::Stream, primary: &super::node::Stream) -> bool {
    let same = replica.id == primary.id && replica.offset <= primary.offset;
    let before = primary.second.is_some_and(|(id, end)| replica.id == id && replica.offset <= end);
    same || before
}

enum Source {
    Found(NodeId),
    Refused,
    Silent,
}

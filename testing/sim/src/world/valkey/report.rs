//! What a process says when asked: CLUSTER NODES, CLUSTER INFO and INFO as the operator reads them (facts §4e, §6).

use std::collections::BTreeSet;

use shared::names;
use shared::slots::SlotSet;
use shared::valkey::info::{Info, PrimaryLink, ReplicaLink, Role};
use shared::valkey::report::{ClusterInfo, MigrationState, NodeReport, Operation, SlotMigration};
use shared::valkey::types::{EngineVersion, Epoch, NodeAddress, NodeFlags, NodeId, NodeLine, Offset};

use super::node::{Job, NODE_TIMEOUT, Node, Peer};
use crate::clock::Ms;

/// A connection to a silent address is given up after half a node timeout, and shows as down from then on.
const LINK_PATIENCE: Ms = NODE_TIMEOUT / 2;

/// All that `node` says at this moment.
pub fn report(node: &Node, now: Ms) -> NodeReport {
    let mut nodes = vec![own_line(node)];
    nodes.extend(node.peers.iter().map(|(id, peer)| peer_line(node, *id, peer, now)));
    nodes.extend(node.handshakes.iter().map(|handshake| NodeLine {
        flags: NodeFlags { handshake: true, ..NodeFlags::default() },
        address: Some(address(&handshake.ip.to_string())),
        link_connected: false,
        ..blank(handshake.id)
    }));
    NodeReport {
        id: node.id,
        nodes: nodes.into(),
        cluster: cluster_info(node, now),
        info: info(node, now),
        migrations: Some(node.jobs.iter().map(|job| migration(node, job)).collect()),
        parted: BTreeSet::new(),
    }
}

fn migration(node: &Node, job: &Job) -> SlotMigration {
    SlotMigration {
        name: format!("{:040x}", job.number),
        operation: if job.source == node.id { Operation::Export } else { Operation::Import },
        slots: job.slots.clone(),
        target: Some(job.target),
        source: Some(job.source),
        created: job.created / 1000,
        updated: job.updated / 1000,
        state: match (job.ends, &job.failure) {
            (Some(_), _) => MigrationState::Open("snapshotting".to_owned()),
            (None, None) => MigrationState::Success,
            (None, Some(_)) => MigrationState::Failed,
        },
        message: job.failure.clone().unwrap_or_default(),
        remaining_bytes: 0,
    }
}

fn blank(id: NodeId) -> NodeLine {
    NodeLine {
        id,
        address: None,
        hostname: None,
        flags: NodeFlags::default(),
        primary: None,
        ping_sent: 0,
        pong_recv: 0,
        epoch: Epoch(0),
        link_connected: true,
        slots: SlotSet::new(),
        open_slots: Vec::new(),
    }
}

fn address(host: &str) -> NodeAddress {
    NodeAddress { host: host.to_owned(), port: names::CLIENT_PORT, bus_port: names::BUS_PORT }
}

fn own_line(node: &Node) -> NodeLine {
    NodeLine {
        address: Some(address(&node.home.ip.to_string())),
        flags: NodeFlags {
            myself: true,
            primary: node.primary.is_none(),
            replica: node.primary.is_some(),
            ..NodeFlags::default()
        },
        primary: node.primary,
        epoch: Epoch(node.header_epoch()),
        slots: node.own_slots(),
        ..blank(node.id)
    }
}

fn peer_line(node: &Node, id: NodeId, peer: &Peer, now: Ms) -> NodeLine {
    // A stopped process takes connections.
    let patient = !peer.silent || peer.ping_sent.is_none_or(|since| now - since < LINK_PATIENCE);
    // A primary that was forgotten has no name any more.
    let primary = peer.primary.filter(|id| *id == node.id || node.peers.contains_key(id));
    NodeLine {
        address: peer.ip.map(|ip| address(&ip.to_string())),
        flags: NodeFlags {
            primary: peer.primary.is_none(),
            replica: peer.primary.is_some(),
            fail: peer.fail.is_some(),
            pfail: peer.pfail && peer.fail.is_none(),
            noaddr: peer.ip.is_none(),
            ..NodeFlags::default()
        },
        primary,
        ping_sent: peer.ping_sent.map_or(0, unsigned),
        pong_recv: unsigned(peer.pong),
        epoch: Epoch(primary.map_or(peer.epoch, |primary| node.epoch_of(primary))),
        link_connected: peer.ip.is_some() && !peer.refused && patient,
        slots: node.slots_of(id),
        ..blank(id)
    }
}

fn cluster_info(node: &Node, now: Ms) -> ClusterInfo {
    let count = |select: &dyn Fn(&Peer) -> bool| -> u16 {
        node.slots
            .iter()
            .filter(|(id, _)| node.peers.get(*id).is_some_and(select))
            .map(|(_, slots)| slots.len())
            .sum()
    };
    let assigned = node.assigned().len();
    let fail = count(&|peer| peer.fail.is_some());
    let pfail = count(&|peer| peer.fail.is_none() && peer.pfail);
    let known = node.peers.len() + node.handshakes.len() + 1;
    ClusterInfo {
        ok: node.serves(now),
        slots_assigned: assigned,
        slots_ok: assigned - fail - pfail,
        slots_pfail: pfail,
        slots_fail: fail,
        known_nodes: u32::try_from(known).unwrap_or(u32::MAX),
        size: u32::try_from(node.slots.len()).unwrap_or(u32::MAX),
        current_epoch: Epoch(node.current_epoch),
        my_epoch: Epoch(node.header_epoch()),
    }
}

fn info(node: &Node, now: Ms) -> Info {
    let stream = &node.stream;
    Info {
        version: EngineVersion::new(9, 1, 2),
        run_id: format!("{}", node.id),
        uptime_seconds: unsigned((now - node.started) / 1000),
        server_time_usec: unsigned(now * 1000),
        loading: false,
        used_memory: 1 << 20,
        maxmemory: 1 << 30,
        keys: u64::try_from(stream.keys.len()).unwrap_or(u64::MAX),
        role: if node.primary.is_some() { Role::Replica } else { Role::Primary },
        replication_id: format!("{:040x}", stream.id),
        offset: Offset(stream.offset),
        replicas: if node.primary.is_some() { Vec::new() } else { replicas(node) },
        link: node.primary.map(|_| link(node, now)),
        tls: None,
    }
}

/// Attached replicas as far as gossip tells: the model has no connection of a replica at its primary's end.
fn replicas(node: &Node) -> Vec<ReplicaLink> {
    let following = |peer: &&Peer| peer.primary == Some(node.id) && peer.fail.is_none() && !peer.pfail;
    let attached = node.peers.values().filter(following);
    attached
        .map(|peer| ReplicaLink {
            host: peer.ip.map(|ip| ip.to_string()).unwrap_or_default(),
            port: names::CLIENT_PORT,
            online: true,
            offset: Offset(node.stream.offset),
            lag: 0,
        })
        .collect()
}

fn link(node: &Node, now: Ms) -> PrimaryLink {
    let link = &node.link;
    let host = link.host.map(|ip| ip.to_string());
    PrimaryLink {
        host: host.unwrap_or_default(),
        port: names::CLIENT_PORT,
        up: link.up,
        sync_in_progress: link.syncing_until.is_some(),
        last_io_seconds: if link.up { (now - link.last_io) / 1000 } else { -1 },
        offset: Offset(node.stream.offset),
        down_since_seconds: (!link.up).then(|| link.down_since.map_or(-1, |since| (now - since) / 1000)),
    }
}

fn unsigned(value: Ms) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

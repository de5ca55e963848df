//! A truth to plan on: nodes with their Pods, slots and acquaintances; views are rendered from it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use cluster_ctl::action::{Action, Decision};
use cluster_ctl::model::{
    Answer, Cluster, Container, Desired, Ending, Limits, Member, Millis, Objects, Observed, Ownership,
    Patience, Pod, PodRecord, Shape,
};
use cluster_ctl::plan::{plan, safety};
use shared::api::{JoinType, Lifecycle, ValkeyNodeSpec};
use shared::slots::{SLOT_COUNT, SlotSet, contiguous_spread};
use shared::valkey::info::{Info, PrimaryLink, ReplicaLink, Role};
use shared::valkey::report::{ClusterInfo, NodeReport, SlotMigration};
use shared::valkey::types::{EngineVersion, Epoch, NodeAddress, NodeFlags, NodeId, NodeLine, Offset};
use shared::valkey::view::Sharing;

/// One node of the truth.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a node")]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) spec: ValkeyNodeSpec,
    pub(crate) deleting: bool,
    pub(crate) created: Millis,
    pub(crate) start_attempt: u32,
    pub(crate) confirmed_dead: bool,
    pub(crate) recorded_id: Option<NodeId>,
    pub(crate) recorded_end: Option<Ending>,
    pub(crate) recorded_slots: u16,
    pub(crate) pod: Option<Pod>,
    pub(crate) pod_vanished: bool,
    pub(crate) unrecorded_pod: bool,
    pub(crate) voice: Voice,
    pub(crate) id: NodeId,
    pub(crate) epoch: u64,
    pub(crate) slots: SlotSet,
    /// The others know it, and not yet what it owns.
    pub(crate) slots_unseen: bool,
    pub(crate) primary: Option<String>,
    /// Offset of the replication stream; a replica's below its primary's means lag.
    pub(crate) offset: i64,
    /// The link to its primary is up.
    pub(crate) link_up: bool,
    /// Replicas that it still counts to another shard than their primary.
    pub(crate) parts: Vec<String>,
    /// Its primary has no acknowledgement of it yet.
    pub(crate) unacknowledged: bool,
    /// Since when it is down, seconds.
    pub(crate) link_down_seconds: i64,
    /// Its replication history.
    pub(crate) history: String,
    /// Nobody has heard of it for so long, milliseconds.
    pub(crate) unheard_millis: Option<u64>,
    pub(crate) silent_millis: i64,
    pub(crate) keys_kept_millis: i64,
    pub(crate) keys: u64,
    pub(crate) knows: BTreeSet<String>,
    /// IDs that it knows and that are nobody's of this truth.
    pub(crate) strangers: Vec<NodeId>,
    /// Others flag it: `fail` by vote, or only `fail?`.
    pub(crate) flagged: Option<Flag>,
    pub(crate) state_ok: bool,
    pub(crate) handshake: bool,
    pub(crate) join: Option<JoinType>,
    pub(crate) jobs: Vec<SlotMigration>,
    pub(crate) clock_seconds: u64,
    pub(crate) used_memory: u64,
    pub(crate) version: EngineVersion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    Answers,
    Silent,
    AuthRejected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    Fail,
    Pfail,
}

/// The truth, and what is wanted.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) objects: Objects,
    pub(crate) want: Desired,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) now: Millis,
    pub(crate) last_failover: Option<(NodeId, Millis)>,
    /// Members that were forgotten less than a minute ago.
    pub(crate) banned: BTreeSet<NodeId>,
    /// IDs that everybody but the named node still lists although nobody answers under them.
    pub(crate) ghosts: Vec<(String, NodeId)>,
    /// Slots of a node that only it does not know of.
    pub(crate) disowned: Option<(String, SlotSet)>,
}

/// An ID made of one byte.
pub(crate) fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 20])
}

/// The ID of node `number`: of one byte for the first 254, which tests name.
fn numbered_id(number: usize) -> NodeId {
    u8::try_from(number + 1).map_or_else(
        |_| {
            let mut bytes = [0; 20];
            bytes[..8].copy_from_slice(&number.to_be_bytes());
            NodeId::from_bytes(bytes)
        },
        id,
    )
}

pub(crate) fn template() -> ValkeyNodeSpec {
    ValkeyNodeSpec {
        cluster_name: "c".to_owned(),
        image: "valkey:9".to_owned(),
        lifecycle: Lifecycle::Joining,
        ..ValkeyNodeSpec::default()
    }
}

/// A cluster of this size of which nothing exists yet but its own object and the cluster-level ones.
pub(crate) fn world(shards: u16, replicas: u16) -> World {
    let shape = Shape { shards, replicas };
    World {
        cluster: Cluster {
            namespace: "ns".to_owned(),
            name: "c".to_owned(),
            uid: "cluster-uid".to_owned(),
            deleting: false,
            finalizer: true,
            snapshot: None,
        },
        objects: Objects { service: Ownership::Ours, auth: Ownership::Ours, acl: Ownership::Ours },
        want: Desired {
            shape,
            template: Ok(template()),
            acl: Ok(()),
            notices: Vec::new(),
            hold: None,
            tls: Ok(()),
            certificate: None,
            names: (0..64).map(|number| format!("c-new{number:02}")).collect(),
            patience: Patience::default(),
            limits: Limits::default(),
        },
        nodes: BTreeMap::new(),
        now: Millis(1_000_000_000),
        last_failover: None,
        banned: BTreeSet::new(),
        ghosts: Vec::new(),
        disowned: None,
    }
}

impl World {
    pub(crate) fn snapshot(mut self) -> Self {
        self.cluster.snapshot = Some(self.want.shape);
        self
    }

    /// Every node exists, Joining, without a Pod. Node `i` is `c-0i`, shard by shard.
    pub(crate) fn created(self) -> Self {
        let mut world = self.snapshot();
        let shape = world.want.shape;
        for number in 0..shape.members() {
            let shard = number / shape.per_shard();
            world.add(number, u16::try_from(shard).unwrap());
        }
        world
    }

    pub(crate) fn add(&mut self, number: usize, shard: u16) -> &mut Node {
        // By name as by number, so that shards are runs of names.
        let width = if self.want.shape.members() > 100 { 4 } else { 2 };
        let name = format!("c-{number:0width$}");
        let node = Node {
            spec: ValkeyNodeSpec { shard_index: i32::from(shard), ..template() },
            deleting: false,
            created: self.now,
            start_attempt: 0,
            confirmed_dead: false,
            recorded_id: None,
            recorded_end: None,
            recorded_slots: 0,
            pod: None,
            pod_vanished: false,
            unrecorded_pod: false,
            voice: Voice::Silent,
            id: numbered_id(number),
            epoch: 0,
            slots: SlotSet::new(),
            slots_unseen: false,
            primary: None,
            offset: 0,
            link_up: true,
            parts: Vec::new(),
            unacknowledged: false,
            link_down_seconds: 1,
            history: "replid".to_owned(),
            unheard_millis: None,
            silent_millis: 0,
            keys_kept_millis: 0,
            keys: 0,
            knows: BTreeSet::new(),
            strangers: Vec::new(),
            flagged: None,
            state_ok: false,
            handshake: false,
            join: None,
            jobs: Vec::new(),
            clock_seconds: 0,
            used_memory: 0,
            version: EngineVersion::new(9, 1, 2),
            name: name.clone(),
        };
        self.nodes.entry(name).or_insert(node)
    }

    /// Every Pod runs on a machine of its own, and every server answers.
    pub(crate) fn answering(self) -> Self {
        let mut world = self.created();
        let numbered: Vec<String> = world.nodes.keys().cloned().collect();
        for (number, name) in numbered.iter().enumerate() {
            world.start(name, number);
        }
        world
    }

    /// The Pod of `name` runs on machine `m{number}` and its server answers.
    pub(crate) fn start(&mut self, name: &str, number: usize) {
        let node = self.nodes.get_mut(name).unwrap();
        node.pod = Some(pod(name, number));
        node.recorded_id = Some(node.id);
        node.voice = Voice::Answers;
    }

    pub(crate) fn with_epochs(self) -> Self {
        let mut world = self.answering();
        for (epoch, node) in (1..).zip(world.nodes.values_mut()) {
            node.epoch = epoch;
        }
        world
    }

    /// The first node of each shard owns the shard's slots.
    pub(crate) fn with_slots(self) -> Self {
        let mut world = self.with_epochs();
        let ranges = contiguous_spread(world.want.shape.shards);
        for (shard, range) in ranges.iter().enumerate() {
            let first = world.name(shard * world.want.shape.per_shard());
            world.node(&first).slots = SlotSet::from_ranges([*range]);
        }
        world
    }

    pub(crate) fn met(self) -> Self {
        let mut world = self.with_slots();
        world.all_know_all();
        world
    }

    pub(crate) fn replicating(self) -> Self {
        let mut world = self.met();
        let per_shard = world.want.shape.per_shard();
        let names: Vec<String> = world.nodes.keys().cloned().collect();
        for shard in names.chunks(per_shard) {
            for replica in &shard[1..] {
                world.node(replica).primary = Some(shard[0].clone());
            }
        }
        for node in world.nodes.values_mut() {
            node.offset = 100;
        }
        world
    }

    /// Whole and ok, still Joining.
    pub(crate) fn whole(self) -> Self {
        let mut world = self.replicating();
        for node in world.nodes.values_mut() {
            node.state_ok = true;
        }
        world
    }

    /// Settled: formed, whole, Active.
    pub(crate) fn formed(self) -> Self {
        let mut world = self.whole();
        world.cluster.snapshot = None;
        for node in world.nodes.values_mut() {
            node.spec.lifecycle = Lifecycle::Active;
        }
        world.all_published();
        world
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub(crate) fn name(&self, number: usize) -> String {
        self.nodes.keys().nth(number).unwrap().clone()
    }

    pub(crate) fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.get_mut(name).unwrap()
    }

    /// Its process ended and Kubernetes shows it.
    pub(crate) fn kill(&mut self, name: &str) {
        let node = self.node(name);
        node.voice = Voice::Silent;
        node.pod.as_mut().unwrap().container = Container::Ended(ending());
        for replica in self.nodes.values_mut().filter(|node| node.primary.as_deref() == Some(name)) {
            replica.link_up = false;
        }
    }

    /// It stops answering; nothing proves its death.
    pub(crate) fn silence(&mut self, name: &str, flag: Option<Flag>) {
        let node = self.node(name);
        node.voice = Voice::Silent;
        node.flagged = flag;
        for replica in self.nodes.values_mut().filter(|node| node.primary.as_deref() == Some(name)) {
            replica.link_up = false;
        }
    }

    pub(crate) fn all_know_all(&mut self) {
        let all: BTreeSet<String> = self.nodes.keys().cloned().collect();
        for node in self.nodes.values_mut() {
            node.knows = all.iter().filter(|name| **name != node.name).cloned().collect();
        }
    }

    pub(crate) fn all_published(&mut self) {
        for pod in self.nodes.values_mut().filter_map(|node| node.pod.as_mut()) {
            (pod.joined, pod.published) = (true, true);
        }
    }

    pub(crate) fn everyone_forgets(&mut self, name: &str) {
        for node in self.nodes.values_mut() {
            node.knows.remove(name);
        }
    }

    pub(crate) fn observed(&self) -> Observed {
        let mut sharing = Sharing::default();
        self.seen(self.members().map(|mut member| {
            if let Answer::Said(report) = &mut member.answer {
                sharing.share(&mut report.nodes);
            }
            member
        }))
    }

    /// An observation of these members.
    pub(crate) fn seen(&self, members: impl Iterator<Item = Member>) -> Observed {
        let members = members.map(|member| (member.name.clone(), member)).collect();
        let mut seen = Observed::new(self.now, self.cluster.clone(), self.objects.clone(), members);
        seen.last_failover = self.last_failover;
        seen.banned.clone_from(&self.banned);
        seen
    }

    /// Every member, its view for itself.
    pub(crate) fn members(&self) -> impl Iterator<Item = Member> {
        self.nodes.values().map(|node| self.member(node))
    }

    /// Plans, and checks what every decision must satisfy.
    pub(crate) fn plan(&self) -> Decision {
        let seen = self.observed();
        let decision = plan(&seen, &self.want);
        assert_eq!(plan(&seen, &self.want), decision, "the plan is deterministic");
        if let Some(action) = &decision.action {
            assert_eq!(safety::check(action, &seen), Ok(()), "the gate passes what the rules decide");
        }
        decision
    }

    /// Plans and returns the action; panics with the whole decision when there is none.
    pub(crate) fn action(&self) -> Action {
        let decision = self.plan();
        decision.action.clone().unwrap_or_else(|| panic!("no action: {decision:?}"))
    }

    fn member(&self, node: &Node) -> Member {
        Member {
            name: node.name.clone(),
            uid: format!("uid-{}", node.name),
            spec: node.spec.clone(),
            join: node.join,
            deleting: node.deleting,
            created: node.created,
            start_attempt: node.start_attempt,
            confirmed_dead: node.confirmed_dead,
            machine: node.pod.as_ref().and_then(|pod| pod.machine.clone()),
            ended_with_machine: false,
            recorded_id: node.recorded_id,
            recorded_pod: node
                .pod
                .as_ref()
                .filter(|_| !node.unrecorded_pod)
                .map(|pod| PodRecord { uid: pod.uid.clone(), ended: node.recorded_end.clone() }),
            recorded_slots: node.recorded_slots,
            pod: node.pod.clone(),
            pod_vanished: node.pod_vanished,
            silent_millis: node.silent_millis,
            keys_kept_millis: node.keys_kept_millis,
            answer: match node.voice {
                Voice::Answers => Answer::Said(Box::new(self.report(node))),
                Voice::Silent => Answer::Silent("connection refused".to_owned()),
                Voice::AuthRejected => Answer::AuthRejected,
            },
        }
    }

    fn report(&self, node: &Node) -> NodeReport {
        let known: Vec<&Node> =
            std::iter::once(node).chain(node.knows.iter().filter_map(|name| self.nodes.get(name))).collect();
        let mut nodes: Vec<NodeLine> =
            known.iter().map(|other| self.line(other, other.name == node.name, node.clock_seconds)).collect();
        nodes.extend(
            node.strangers.iter().map(|id| line(*id, NodeFlags { primary: true, ..NodeFlags::default() })),
        );
        let ghosts = self.ghosts.iter().filter(|(name, _)| *name != node.name);
        nodes.extend(
            ghosts.map(|(_, id)| line(*id, NodeFlags { replica: true, fail: true, ..NodeFlags::default() })),
        );
        if node.handshake {
            nodes.push(line(id(250), NodeFlags { handshake: true, ..NodeFlags::default() }));
        }
        let assigned: SlotSet = known.iter().flat_map(|other| other.slots.ranges().iter().copied()).collect();
        let ok: SlotSet = known
            .iter()
            .filter(|other| other.flagged.is_none())
            .flat_map(|other| other.slots.ranges().iter().copied())
            .collect();
        let replica = node.primary.is_some();
        NodeReport {
            id: node.id,
            nodes: nodes.into(),
            cluster: ClusterInfo {
                ok: node.state_ok && ok.len() == SLOT_COUNT,
                slots_assigned: assigned.len(),
                slots_ok: ok.len(),
                slots_pfail: 0,
                slots_fail: assigned.len() - ok.len(),
                known_nodes: u32::try_from(known.len()).unwrap(),
                size: u32::try_from(known.iter().filter(|other| !other.slots.is_empty()).count()).unwrap(),
                current_epoch: Epoch(known.iter().map(|other| other.epoch).max().unwrap()),
                my_epoch: Epoch(node.epoch),
            },
            info: Info {
                version: node.version,
                run_id: node.name.clone(),
                uptime_seconds: 100,
                server_time_usec: node.clock_seconds * 1_000_000,
                loading: false,
                used_memory: node.used_memory,
                maxmemory: 0,
                keys: node.keys,
                role: if replica { Role::Replica } else { Role::Primary },
                replication_id: node.history.clone(),
                offset: Offset(node.offset),
                replicas: self.attached(node),
                link: replica.then(|| PrimaryLink {
                    host: String::new(),
                    port: 6379,
                    up: node.link_up,
                    sync_in_progress: false,
                    last_io_seconds: 0,
                    offset: Offset(node.offset),
                    down_since_seconds: (!node.link_up).then_some(node.link_down_seconds),
                }),
                tls: None,
            },
            migrations: Some(node.jobs.clone()),
            parted: node.parts.iter().map(|name| self.nodes[name].id).collect(),
        }
    }

    /// The replicas whose link is up; each has just acknowledged, unless its primary has not heard from it yet.
    fn attached(&self, node: &Node) -> Vec<ReplicaLink> {
        let replicas = self.nodes.values().filter(|other| other.primary.as_ref() == Some(&node.name));
        replicas
            .filter(|other| other.link_up)
            .map(|other| ReplicaLink {
                host: "10.0.0.1".to_owned(),
                port: 6379,
                online: !other.unacknowledged,
                offset: Offset(other.offset),
                lag: 0,
            })
            .collect()
    }

    fn line(&self, node: &Node, myself: bool, clock_seconds: u64) -> NodeLine {
        let primary =
            node.primary.as_ref().map(|name| self.nodes.get(name).map_or(id(251), |primary| primary.id));
        let flags = NodeFlags {
            myself,
            primary: primary.is_none(),
            replica: primary.is_some(),
            fail: !myself && node.flagged == Some(Flag::Fail),
            pfail: !myself && node.flagged == Some(Flag::Pfail),
            ..NodeFlags::default()
        };
        let pong_recv = node.unheard_millis.map_or(0, |age| clock_seconds * 1000 - age);
        let denied = self.disowned.as_ref().filter(|(name, _)| myself && *name == node.name);
        let shown = if node.slots_unseen && !myself { SlotSet::new() } else { node.slots.clone() };
        let slots = denied.map_or_else(|| shown.clone(), |(_, slots)| shown.difference(slots));
        let epoch = Epoch(node.epoch);
        NodeLine { primary, epoch, slots, pong_recv, ..line(node.id, flags) }
    }
}

pub(crate) fn line(id: NodeId, flags: NodeFlags) -> NodeLine {
    NodeLine {
        id,
        address: Some(NodeAddress { host: "10.0.0.1".to_owned(), port: 6379, bus_port: 16379 }),
        hostname: None,
        flags,
        primary: None,
        ping_sent: 0,
        pong_recv: 0,
        epoch: Epoch(0),
        link_connected: true,
        slots: SlotSet::new(),
        open_slots: Vec::new(),
    }
}

pub(crate) fn pod(name: &str, number: usize) -> Pod {
    Pod {
        uid: format!("pod-{name}"),
        ip: Some(IpAddr::from(Ipv4Addr::from_bits(0x0a00_0001 + u32::try_from(number).unwrap()))),
        machine: Some(format!("m{number}")),
        zone: None,
        deleting: false,
        overdue: false,
        container: Container::Running,
        unschedulable: None,
        joined: false,
        published: false,
        role_label: None,
    }
}

pub(crate) fn ending() -> Ending {
    Ending { exit_code: 137, reason: "Error".to_owned(), message: "killed".to_owned(), at: None }
}

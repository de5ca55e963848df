//! How long a decision on a settled cluster takes, and reading one view of it: both happen in each tick.
//!
//! A settled cluster is the worst case of the plan: every rule is asked and none acts.

#![expect(clippy::unwrap_used, reason = "a benchmark")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use cluster_ctl::model::{
    Answer, Cluster, Container, Desired, Limits, Member, Millis, Objects, Observed, Ownership, Patience, Pod,
    PodRecord, Shape,
};
use cluster_ctl::plan::plan;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use shared::api::{Lifecycle, ValkeyNodeSpec};
use shared::slots::{SLOT_COUNT, contiguous_spread};
use shared::valkey::info::{Info, Role};
use shared::valkey::parse;
use shared::valkey::report::{ClusterInfo, NodeReport};
use shared::valkey::types::{EngineVersion, Epoch, NodeId, Offset};

/// Shards; no replicas, so that the largest still fits into memory: each of the nodes lists all of them.
const SHARDS: [u16; 3] = [3, 100, 1_000];

fn id(number: usize) -> NodeId {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    NodeId::from_bytes(bytes)
}

fn ip(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + u32::try_from(number).unwrap())
}

/// CLUSTER NODES as node `me` of `shards` primaries says it.
fn nodes_text(me: usize, shards: u16) -> String {
    let mut text = String::new();
    for (number, range) in contiguous_spread(shards).into_iter().enumerate() {
        let myself = if number == me { "myself," } else { "" };
        let (id, ip) = (id(number), ip(number));
        let epoch = number + 1;
        writeln!(text, "{id} {ip}:6379@16379 {myself}master - 0 1 {epoch} connected {range}").unwrap();
    }
    text
}

fn template() -> ValkeyNodeSpec {
    ValkeyNodeSpec {
        cluster_name: "c".to_owned(),
        image: "valkey:9".to_owned(),
        lifecycle: Lifecycle::Joining,
        ..ValkeyNodeSpec::default()
    }
}

fn report(me: usize, shards: u16) -> NodeReport {
    let epoch = Epoch(u64::try_from(me + 1).unwrap());
    NodeReport {
        id: id(me),
        nodes: parse::cluster_nodes(&nodes_text(me, shards)).unwrap().into(),
        cluster: ClusterInfo {
            ok: true,
            slots_assigned: SLOT_COUNT,
            slots_ok: SLOT_COUNT,
            slots_pfail: 0,
            slots_fail: 0,
            known_nodes: u32::from(shards),
            size: u32::from(shards),
            current_epoch: Epoch(u64::from(shards)),
            my_epoch: epoch,
        },
        info: Info {
            version: EngineVersion::new(9, 1, 2),
            run_id: format!("run {me}"),
            uptime_seconds: 100,
            server_time_usec: 1_000_000,
            loading: false,
            used_memory: 0,
            maxmemory: 0,
            keys: 0,
            role: Role::Primary,
            replication_id: "replid".to_owned(),
            offset: Offset(0),
            replicas: Vec::new(),
            link: None,
            tls: None,
        },
        migrations: Some(Vec::new()),
    }
}

fn member(number: usize, shards: u16) -> Member {
    let name = format!("c-{number:05}");
    let uid = format!("pod-{number}");
    Member {
        uid: format!("uid-{number}"),
        spec: ValkeyNodeSpec {
            shard_index: i32::try_from(number).unwrap(),
            lifecycle: Lifecycle::Active,
            ..template()
        },
        join: None,
        deleting: false,
        created: Millis(0),
        start_attempt: 0,
        confirmed_dead: false,
        machine: Some(format!("m{}", number % 50)),
        ended_with_machine: false,
        recorded_slots: 0,
        recorded_id: Some(id(number)),
        recorded_pod: Some(PodRecord { uid: uid.clone(), ended: None }),
        pod: Some(Pod {
            uid,
            ip: Some(IpAddr::from(ip(number))),
            machine: Some(format!("m{}", number % 50)),
            zone: None,
            deleting: false,
            overdue: false,
            container: Container::Running,
            unschedulable: None,
            joined: true,
            role_label: Some("primary".to_owned()),
        }),
        pod_vanished: false,
        answer: Answer::Said(Box::new(report(number, shards))),
        name,
    }
}

fn settled(shards: u16) -> (Observed, Desired) {
    let members: BTreeMap<String, Member> = (0..usize::from(shards))
        .map(|number| member(number, shards))
        .map(|member| (member.name.clone(), member))
        .collect();
    let cluster = Cluster {
        namespace: "ns".to_owned(),
        name: "c".to_owned(),
        uid: "cluster-uid".to_owned(),
        deleting: false,
        finalizer: true,
        snapshot: None,
    };
    let objects = Objects { service: Ownership::Ours, auth: Ownership::Ours, acl: Ownership::Ours };
    let want = Desired {
        shape: Shape { shards, replicas: 0 },
        template: Ok(template()),
        acl: Ok(()),
        notices: Vec::new(),
        hold: None,
        tls: Ok(()),
        certificate: None,
        names: vec!["c-new".to_owned()],
        patience: Patience::default(),
        limits: Limits::default(),
    };
    (Observed { now: Millis(1_000_000), cluster, objects, members, last_failover: None }, want)
}

fn decide(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan a settled cluster");
    group.sample_size(10);
    for shards in SHARDS {
        let (seen, want) = settled(shards);
        assert!(plan(&seen, &want).action.is_none(), "a settled cluster needs no action");
        group.bench_function(BenchmarkId::from_parameter(shards), |bencher| {
            bencher.iter(|| plan(black_box(&seen), black_box(&want)));
        });
    }
    group.finish();
}

fn read(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read one view");
    group.sample_size(10);
    for shards in SHARDS {
        let text = nodes_text(0, shards);
        group.bench_function(BenchmarkId::from_parameter(shards), |bencher| {
            bencher.iter(|| parse::cluster_nodes(black_box(&text)));
        });
    }
    group.finish();
}

criterion_group!(benches, decide, read);
criterion_main!(benches);

//! The parsers on texts that real servers gave, and on texts that none would give.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::info::info;
use super::parse::{
    self, ParseError, Reply, cluster_info, cluster_nodes, node_line, shards, slot_migrations,
};
use super::report::parted;
use super::*;
use crate::slots::{SlotRange, SlotSet};

const A: &str = "07c37dfeb235213a872192d90877d0cd55635b91";
const B: &str = "e7d1eecce10fd6bb5eb35b9f99a514335d9ba9ca";

fn id(text: &str) -> NodeId {
    text.parse().unwrap()
}

fn slots(ranges: &[(u16, u16)]) -> SlotSet {
    SlotSet::from_ranges(ranges.iter().map(|(start, end)| SlotRange { start: *start, end: *end }))
}

#[test]
fn a_line_of_every_form_is_read() {
    let line = node_line(&format!(
        "{A} 10.0.0.1:6379@16379,my-cluster-3f8a1.my-cluster.ns.svc.cluster.local myself,master - 0 1795987599123 7 connected 0-5460 9000 [5->-{B}] [6-<-{B}]"
    ))
    .unwrap();
    assert_eq!(line.id, id(A));
    assert_eq!(line.address, Some(NodeAddress { host: "10.0.0.1".to_owned(), port: 6379, bus_port: 16379 }));
    assert_eq!(line.hostname.as_deref(), Some("my-cluster-3f8a1.my-cluster.ns.svc.cluster.local"));
    assert_eq!(line.flags, NodeFlags { myself: true, primary: true, ..NodeFlags::default() });
    assert_eq!(
        (line.primary, line.ping_sent, line.pong_recv, line.epoch),
        (None, 0, 1_795_987_599_123, Epoch(7))
    );
    assert!(line.link_connected);
    assert_eq!(line.slots, slots(&[(0, 5460), (9000, 9000)]));
    assert_eq!(
        line.open_slots,
        [OpenSlot::Migrating { slot: 5, to: id(B) }, OpenSlot::Importing { slot: 6, from: id(B) }]
    );

    let line = node_line(&format!("{B} ::1:7001@17001 slave,fail?,nofailover,newer {A} 1 2 3 disconnected"))
        .unwrap();
    assert_eq!(line.address.as_ref().and_then(NodeAddress::ip), Some("::1".parse().unwrap()));
    assert_eq!(
        line.flags,
        NodeFlags { replica: true, pfail: true, nofailover: true, ..NodeFlags::default() }
    );
    assert_eq!((line.primary, line.link_connected, line.hostname), (Some(id(A)), false, None));

    let gone = node_line(&format!("{B} :0@0 master,fail,noaddr - 0 0 3 disconnected")).unwrap();
    assert!(gone.address.is_none() && gone.flags.noaddr && gone.flags.fail && !gone.flags.pfail);

    let fresh = node_line(&format!("{A} :6379@16379 myself,master - 0 0 0 connected")).unwrap();
    assert_eq!(fresh.address.unwrap().ip(), None);

    let auxiliary =
        node_line(&format!("{A} 10.0.0.1:6379@16379,,tls-port=0,shard-id={B} master - 0 0 0 connected"));
    assert_eq!(auxiliary.unwrap().hostname, None);
}

#[test]
fn a_malformed_line_is_an_error_that_quotes_it() {
    let good = format!("{A} 10.0.0.1:6379@16379 master - 0 0 0 connected 0-10");
    assert!(node_line(&good).is_ok());
    for (from, to) in [
        (A, "07c3"),
        ("10.0.0.1:6379@16379", "10.0.0.1"),
        ("6379@", "66379@"),
        (" - ", " x "),
        ("connected", "maybe"),
        ("0-10", "10-0"),
        ("0-10", "0-16384"),
        ("0-10", "[0-10"),
        ("0-10", "[0-1->-x]"),
    ] {
        let line = good.replace(from, to);
        let error = node_line(&line).unwrap_err();
        assert!(matches!(&error, ParseError::NodeLine { .. }), "{line}: {error}");
        assert!(error.to_string().contains(to), "{error}");
    }
}

#[test]
fn cluster_info_is_read_and_nothing_is_defaulted() {
    let text = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:16380\r\ncluster_slots_pfail:3\r\ncluster_slots_fail:1\r\ncluster_nodes_pfail:0\r\ncluster_known_nodes:6\r\ncluster_size:3\r\ncluster_current_epoch:9\r\ncluster_my_epoch:2\r\ncluster_stats_messages_sent:0\r\n";
    let info = cluster_info(text).unwrap();
    assert!(info.ok);
    assert_eq!((info.slots_assigned, info.slots_ok, info.slots_pfail, info.slots_fail), (16384, 16380, 3, 1));
    assert_eq!((info.known_nodes, info.size, info.current_epoch, info.my_epoch), (6, 3, Epoch(9), Epoch(2)));
    let missing = cluster_info(&text.replace("cluster_size:3\r\n", "")).unwrap_err();
    assert_eq!(missing, ParseError::Missing { reply: "CLUSTER INFO", field: "cluster_size" });
    assert!(cluster_info(&text.replace("state:ok", "state:maybe")).is_err());
}

const INFO_REPLICA: &str = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:9.1.2\r\nrun_id:ef08\r\nserver_time_usec:1795987599123557\r\nuptime_in_seconds:61\r\n\r\n# Memory\r\nused_memory:2588240\r\nmaxmemory:100\r\n# Persistence\r\nloading:0\r\nasync_loading:0\r\n# Replication\r\nrole:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6379\r\nmaster_link_status:down\r\nmaster_last_io_seconds_ago:-1\r\nmaster_sync_in_progress:1\r\nslave_repl_offset:1\r\nmaster_link_down_since_seconds:-1\r\nconnected_slaves:0\r\nmaster_replid:c0b3\r\nmaster_repl_offset:14\r\n# Keyspace\r\ndb0:keys=3,expires=0,avg_ttl=0\r\ndb7:keys=4,expires=1,avg_ttl=9\r\n# TLS\r\ntls_server_cert_serial:none\r\n";

#[test]
fn info_of_a_replica_that_never_synced_shows_it() {
    let info = info(INFO_REPLICA).unwrap();
    assert_eq!(info.version, EngineVersion::new(9, 1, 2));
    assert_eq!((info.keys, info.role, info.loading, info.tls.is_none()), (7, Role::Replica, false, true));
    let link = info.link.unwrap();
    assert!(!link.up && link.sync_in_progress);
    assert_eq!((link.offset, link.down_since_seconds), (Offset(1), Some(-1)));
}

#[test]
fn info_of_a_primary_lists_its_replicas_and_its_certificates() {
    let text = INFO_REPLICA
        .replace("role:slave", "role:master\r\nslave0:ip=10.0.0.2,port=6379,state=online,offset=14,lag=1,type=replica\r\nslave1:ip=::1,port=1,state=wait_bgsave,offset=0,lag=0")
        .replace("serial:none", "serial:0A1B\r\ntls_server_cert_expires_in_seconds:-5\r\ntls_ca_cert_serial:FF");
    let info = info(&text).unwrap();
    assert_eq!(info.link, None);
    assert_eq!(info.replicas.iter().map(|replica| replica.online).collect::<Vec<_>>(), [true, false]);
    assert_eq!(info.replicas[1].host, "::1");
    let tls = info.tls.unwrap();
    assert_eq!((tls.server_cert_serial.as_str(), tls.server_cert_expires_in_seconds), ("0A1B", Some(-5)));
    assert_eq!(tls.ca_cert_serial.as_deref(), Some("FF"));
}

#[test]
fn a_key_count_that_cannot_be_read_is_an_error_and_never_an_empty_node() {
    for wrong in ["db0:keys=many", "db0:expires=0", "db0:"] {
        let text = INFO_REPLICA.replace("db0:keys=3", wrong);
        assert!(matches!(info(&text), Err(ParseError::Value { field: "db", .. })), "{wrong}");
    }
    for line in INFO_REPLICA.lines().filter(|line| line.contains(':')) {
        let (name, _) = line.split_once(':').unwrap();
        let optional = ["redis_version", "valkey_version", "async_loading", "connected_slaves"];
        let optional = optional.contains(&name) || name.starts_with("db") || name.starts_with("tls");
        if !optional && name != "master_link_down_since_seconds" {
            assert!(info(&INFO_REPLICA.replace(line, "")).is_err(), "{name} was not missed");
        }
    }
}

fn job(fields: &[(&str, &str)], map: bool) -> Reply {
    let text = |text: &str| Reply::Text(text.as_bytes().to_vec());
    if map {
        Reply::Map(fields.iter().map(|(name, value)| (text(name), text(value))).collect())
    } else {
        Reply::Array(fields.iter().flat_map(|(name, value)| [text(name), text(value)]).collect())
    }
}

#[test]
fn slot_migrations_are_read_from_both_protocols() {
    let fields = [
        ("name", "abc"),
        ("operation", "EXPORT"),
        ("slot_ranges", "0-9 30-39"),
        ("target_node", B),
        ("source_node", A),
        ("create_time", "1795987599"),
        ("last_update_time", "1795987600"),
        ("last_ack_time", "1795987600"),
        ("state", "waiting-to-pause"),
        ("message", ""),
        ("cow_size", "0"),
        ("remaining_repl_size", "12"),
    ];
    let flat = slot_migrations(&Reply::Array(vec![job(&fields, false)])).unwrap();
    assert_eq!(flat, slot_migrations(&Reply::Array(vec![job(&fields, true)])).unwrap());
    let only = &flat[0];
    assert_eq!((only.operation, only.source, only.target), (Operation::Export, Some(id(A)), Some(id(B))));
    assert_eq!((only.slots.clone(), only.remaining_bytes), (slots(&[(0, 9), (30, 39)]), 12));
    assert!(only.state.is_open());

    // On a replica of the target neither end is named.
    let mut watched: Vec<(&str, &str)> =
        fields.iter().copied().filter(|(name, _)| !name.ends_with("_node")).collect();
    watched.iter_mut().filter(|(name, _)| *name == "state").for_each(|field| field.1 = "failed");
    let watched = slot_migrations(&Reply::Array(vec![job(&watched, false)])).unwrap();
    assert_eq!(
        (watched[0].source, watched[0].target, &watched[0].state),
        (None, None, &MigrationState::Failed)
    );

    assert!(slot_migrations(&Reply::Nil).is_err());
    assert!(slot_migrations(&Reply::Array(vec![Reply::Int(1)])).is_err());
    assert!(slot_migrations(&Reply::Array(vec![job(&fields[1..], true)])).is_err());
}

#[test]
fn a_replica_in_another_group_than_its_primary_stands_apart() {
    let text = |text: &str| Reply::Text(text.as_bytes().to_vec());
    let shard = |ids: &[&str]| {
        let node = |id: &&str| Reply::Array(vec![text("id"), text(id), text("port"), Reply::Int(6379)]);
        let nodes = Reply::Array(ids.iter().map(node).collect());
        Reply::Array(vec![text("slots"), Reply::Array(vec![]), text("nodes"), nodes, text("id"), text("c0")])
    };
    let nodes = [
        format!("{A} 10.0.0.1:6379@16379 myself,master - 0 0 1 connected 0-9"),
        format!("{B} 10.0.0.2:6379@16379 slave {A} 0 0 1 connected"),
    ];
    let nodes = cluster_nodes(&nodes.join("\n")).unwrap();
    let found = |reply: &Reply| parted(&nodes, &shards(reply).unwrap());
    assert_eq!(found(&Reply::Array(vec![shard(&[A, B])])), BTreeSet::new());
    assert_eq!(found(&Reply::Array(vec![shard(&[A]), shard(&[B])])), BTreeSet::from([id(B)]));
    assert_eq!(found(&Reply::Array(vec![])), BTreeSet::new(), "nothing is known of their shards");
    assert!(shards(&Reply::Nil).is_err());
    assert!(shards(&Reply::Array(vec![Reply::Int(1)])).is_err());
}

/// Text made of the pieces that the parsers look at, so that it gets past their first checks.
fn near_miss() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(A.to_owned()),
        Just(" ".to_owned()),
        Just("\n".to_owned()),
        "[0-9@:,\\[\\]<>=-]{1,6}",
        Just("myself,master".to_owned()),
        Just("connected".to_owned()),
        Just("10.0.0.1:6379@16379".to_owned()),
        Just("role:slave\r\n".to_owned()),
        Just("slave0:ip=".to_owned()),
        Just("db0:keys=".to_owned()),
        ".{0,3}",
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

fn any_reply() -> impl Strategy<Value = Reply> {
    let word = prop_oneof![
        Just("operation".to_owned()),
        Just("EXPORT".to_owned()),
        Just("slot_ranges".to_owned()),
        Just("0-9 5-4".to_owned()),
        ".{0,6}",
    ];
    let leaf = prop_oneof![
        Just(Reply::Nil),
        any::<i64>().prop_map(Reply::Int),
        word.prop_map(|text| Reply::Text(text.into_bytes())),
        prop::collection::vec(any::<u8>(), 0..8).prop_map(Reply::Text),
        Just(Reply::Error("ERR x".to_owned())),
    ];
    leaf.prop_recursive(3, 32, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Reply::Array),
            prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Reply::Map),
        ]
    })
}

fn written(line: &NodeLine) -> String {
    let flags = [
        (line.flags.myself, "myself"),
        (line.flags.primary, "master"),
        (line.flags.replica, "slave"),
        (line.flags.pfail, "fail?"),
        (line.flags.fail, "fail"),
        (line.flags.handshake, "handshake"),
        (line.flags.noaddr, "noaddr"),
        (line.flags.nofailover, "nofailover"),
    ];
    let flags: Vec<&str> = flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
    let flags = if flags.is_empty() { "noflags".to_owned() } else { flags.join(",") };
    let address = line.address.as_ref().map_or_else(
        || ":0@0".to_owned(),
        |address| format!("{}:{}@{}", address.host, address.port, address.bus_port),
    );
    let hostname = line.hostname.as_ref().map(|name| format!(",{name}")).unwrap_or_default();
    let primary = line.primary.map_or_else(|| "-".to_owned(), |id| id.to_string());
    let state = if line.link_connected { "connected" } else { "disconnected" };
    let slots = line.slots.ranges().iter().fold(String::new(), |text, range| format!("{text} {range}"));
    let numbers = format!("{} {} {}", line.ping_sent, line.pong_recv, line.epoch);
    format!("{} {address}{hostname} {flags} {primary} {numbers} {state}{slots}", line.id)
}

prop_compose! {
    fn any_line()(
        id in any::<[u8; 20]>(), primary in any::<Option<[u8; 20]>>(), bits in any::<[bool; 8]>(), up in any::<bool>(),
        numbers in any::<[u64; 3]>(), ranges in prop::collection::vec((0..16384_u16, 0..16384_u16), 0..6),
        host in prop_oneof![any::<std::net::Ipv4Addr>().prop_map(|ip| ip.to_string()), any::<std::net::Ipv6Addr>().prop_map(|ip| ip.to_string())],
        ports in any::<(u16, u16)>(), known in any::<bool>(), hostname in prop::option::of("[a-z][a-z0-9.-]{0,20}"),
    ) -> NodeLine {
        let [myself, primary_flag, replica, pfail, fail, handshake, noaddr, nofailover] = bits;
        NodeLine {
            id: NodeId::from_bytes(id),
            address: known.then_some(NodeAddress { host, port: ports.0, bus_port: ports.1 }),
            hostname,
            flags: NodeFlags { myself, primary: primary_flag, replica, fail, pfail, handshake, noaddr, nofailover },
            primary: primary.map(NodeId::from_bytes),
            ping_sent: numbers[0],
            pong_recv: numbers[1],
            epoch: Epoch(numbers[2]),
            link_connected: up,
            slots: SlotSet::from_ranges(ranges.into_iter().map(|(a, b)| SlotRange { start: a.min(b), end: a.max(b) })),
            open_slots: Vec::new(),
        }
    }
}

proptest! {
    #[test]
    fn what_the_engine_writes_reads_back(line in any_line()) {
        prop_assert_eq!(node_line(&written(&line)), Ok(line));
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in prop_oneof![near_miss(), ".*"]) {
        let lines = cluster_nodes(&text);
        if let Ok(lines) = lines {
            prop_assert!(lines.len() <= text.lines().count());
        }
        drop((cluster_info(&text), info(&text), text.parse::<EngineVersion>(), text.parse::<NodeId>()));
        drop(info(&format!("{INFO_REPLICA}{text}")));
    }

    #[test]
    fn no_reply_makes_the_migration_parser_panic(reply in any_reply()) {
        drop(slot_migrations(&reply));
        drop(parse::slot_migrations(&Reply::Array(vec![reply])));
    }
}

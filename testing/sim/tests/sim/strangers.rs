//! What the audit says of clusters that come to know each other: only by the engine's own greeting, and without harm.

use std::net::IpAddr;

use cluster_ctl::ports::Command;
use shared::slots::SlotRange;
use shared::valkey::types::NodeId;
use sim::clock::Ms;
use sim::faults::Rates;
use sim::world::valkey::node::{Home, Login};
use sim::world::{Tempo, World};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn carry_out(world: &mut World, on: NodeId, command: &Command) {
    let now = world.now;
    world.valkey.execute(on, command, now).unwrap_or_else(|words| panic!("{command:?}: {words}"));
}

fn start(world: &mut World, cluster: &str, pod: &str, ip: &str) -> NodeId {
    let home = Home {
        pod: pod.to_owned(),
        pod_uid: format!("uid-{pod}"),
        cluster: cluster.to_owned(),
        machine: "m0".to_owned(),
        ip: address(ip),
    };
    let now = world.now;
    world.valkey.start(home, Login { users_acl: "".into(), repl: "".into() }, now)
}

fn passes(world: &mut World, time: Ms) {
    for _ in 0..time / 100 {
        world.now += 100;
        world.valkey.step(world.now);
        world.judge_step();
    }
}

/// A member of cluster `a` has found one of cluster `b` at the address of another that vanished.
fn greeted() -> (World, NodeId) {
    let mut world = World::new(1, 3, Tempo { pod_start: 1_000 }, Rates::default());
    let (one, ip) = (start(&mut world, "a", "a-1", "10.0.0.1"), "10.0.0.2");
    let gone = start(&mut world, "a", "a-2", ip);
    carry_out(&mut world, one, &Command::Meet(address(ip)));
    passes(&mut world, 2_000);
    world.valkey.vanish(gone);
    passes(&mut world, 6_000);
    let stranger = start(&mut world, "b", "b-1", ip);
    passes(&mut world, 3_000);
    let knows = world.valkey.nodes.get(&one).is_some_and(|node| node.peers.contains_key(&stranger));
    assert!(knows, "the engine has not greeted it");
    (world, stranger)
}

#[test]
fn a_greeting_of_the_engine_is_borne_while_the_greeted_one_is_apart_and_for_a_minute() {
    let (mut world, _) = greeted();
    assert_eq!(world.audit.violations, Vec::<String>::new());
    passes(&mut world, 60_000);
    assert!(world.audit.violations.iter().any(|words| words.contains("for 60 s")), "too long");
}

#[test]
fn a_greeted_one_that_gets_slots_or_joins_its_own_cluster_is_not_borne() {
    for joins in [false, true] {
        let (mut world, stranger) = greeted();
        let command = if joins {
            start(&mut world, "b", "b-2", "10.0.0.3");
            Command::Meet(address("10.0.0.3"))
        } else {
            Command::AddSlots(vec![SlotRange { start: 0, end: 9 }])
        };
        carry_out(&mut world, stranger, &command);
        passes(&mut world, 1_000);
        assert!(world.audit.violations.iter().any(|words| words.contains("of another cluster")), "{joins}");
    }
}

#[test]
fn a_stranger_that_somebody_was_told_to_meet_is_never_borne() {
    let mut world = World::new(1, 3, Tempo { pod_start: 1_000 }, Rates::default());
    let one = start(&mut world, "a", "a-1", "10.0.0.1");
    start(&mut world, "b", "b-1", "10.0.0.2");
    carry_out(&mut world, one, &Command::Meet(address("10.0.0.2")));
    passes(&mut world, 1_000);
    assert!(!world.audit.violations.is_empty());
}

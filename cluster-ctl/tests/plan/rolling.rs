//! Rolling of a formed cluster.

use cluster_ctl::action::Action;
use cluster_ctl::model::{Answer, Millis};
use cluster_ctl::plan::plan;
use cluster_ctl::words::Reason;
use shared::api::{JoinType, Lifecycle};
use shared::valkey::commands::FailoverKind;
use shared::valkey::info::Role;

use crate::world::{World, id, world};

/// A settled, published cluster whose config now resolves to another image.
fn outdated(shards: u16, replicas: u16) -> World {
    world(shards, replicas).formed().with(|world| {
        world.all_published();
        world.want.template.as_mut().unwrap().image = String::from("valkey:next");
    })
}

/// A member of `shard` with the new spec, Active and in sync behind `primary`.
fn add_successor(world: &mut World, number: usize, shard: u16, primary: &str) {
    let name = world.add(number, shard).name.clone();
    world.start(&name, number);
    let node = world.node(&name);
    node.spec.image = String::from("valkey:next");
    node.spec.lifecycle = Lifecycle::Active;
    (node.primary, node.offset, node.state_ok) = (Some(primary.to_owned()), 100, true);
    world.all_know_all();
    world.all_published();
}

#[test]
fn given_an_outdated_shard_then_a_successor_is_made_before_anybody_goes() {
    let Action::CreateNodes { nodes, .. } = outdated(3, 1).action() else { panic!("not created") };
    assert_eq!((nodes.len(), nodes[0].spec.shard_index, nodes[0].join), (1, 0, Some(JoinType::Replica)));
    assert_eq!(nodes[0].spec.image, "valkey:next");
}

#[test]
fn given_a_successor_that_is_joining_then_no_second_one_is_made() {
    let world = outdated(3, 1).with(|world| {
        let node = world.add(6, 0);
        node.spec.image = String::from("valkey:next");
        node.join = Some(JoinType::Replica);
    });
    assert_eq!(world.plan().action, None);
}

#[test]
fn given_a_successor_in_sync_then_an_outdated_replica_leaves_before_the_primary_hands_over() {
    let world = outdated(3, 1).with(|world| add_successor(world, 6, 0, "c-00"));
    assert!(matches!(world.action(), Action::MarkLeaving { node } if node.name == "c-01"));
}

#[test]
fn given_only_the_primary_outdated_then_it_hands_over_once_to_an_up_to_date_replica() {
    let mut world = outdated(3, 1).with(|world| {
        world.nodes.remove("c-01");
        world.everyone_forgets("c-01");
        add_successor(world, 6, 0, "c-00");
        add_successor(world, 7, 0, "c-00");
    });
    let Action::Failover { kind, on, from } = world.action() else { panic!("no hand-over") };
    assert_eq!((kind, from), (FailoverKind::Planned, id(1)));
    assert!(["c-06", "c-07"].contains(&on.node.name.as_str()));
    world.last_failover = Some((id(1), Millis(world.now.0 - 3_000)));
    assert_eq!(
        (world.plan().action, world.plan().reason),
        (None, Reason::Rolling),
        "it is not asked for again"
    );
}

/// The outdated primary of the first shard has handed over to a new member.
fn handed_over() -> World {
    outdated(3, 1).with(|world| {
        world.nodes.remove("c-01");
        world.everyone_forgets("c-01");
        add_successor(world, 6, 0, "c-00");
        add_successor(world, 7, 0, "c-00");
        let slots = std::mem::take(&mut world.node("c-00").slots);
        world.node("c-06").slots = slots;
        world.node("c-06").primary = None;
        for name in ["c-00", "c-07"] {
            world.node(name).primary = Some("c-06".to_owned());
        }
    })
}

#[test]
fn given_a_primary_that_handed_over_then_it_leaves_as_a_replica() {
    assert!(matches!(handed_over().action(), Action::MarkLeaving { node } if node.name == "c-00"));
}

#[test]
fn given_a_look_in_the_moment_of_a_hand_over_then_the_next_shard_is_not_begun() {
    let world = handed_over();
    // What the old primary says of itself, and its view, are from before and after.
    for (role, follows) in [(Role::Primary, Some(id(7))), (Role::Replica, None)] {
        let mut members: Vec<_> = world.members().collect();
        let old = members.iter_mut().find(|member| member.name == "c-00").unwrap();
        let Answer::Said(report) = &mut old.answer else { panic!("silent") };
        report.info.role = role;
        let mut lines: Vec<_> = report.nodes.iter().cloned().collect();
        lines.iter_mut().find(|line| line.id == id(1)).unwrap().primary = follows;
        report.nodes = lines.into();
        let decision = plan(&world.seen(members.into_iter()), &world.want);
        assert_eq!((decision.action, decision.reason), (None, Reason::Rolling), "{role:?}");
        assert!(decision.message.contains("until c-00 has become its replica"), "{}", decision.message);
    }
}

#[test]
fn given_no_replicas_then_a_temporary_one_takes_over_and_no_copy_is_lost() {
    assert!(matches!(outdated(3, 0).action(), Action::CreateNodes { .. }));
    let with_successor = outdated(3, 0).with(|world| add_successor(world, 6, 0, "c-00"));
    assert!(matches!(with_successor.action(), Action::Failover { on, .. } if on.node.name == "c-06"));
}

#[test]
fn given_a_replica_that_its_primary_has_not_heard_from_yet_then_the_hand_over_waits() {
    let world = outdated(3, 0).with(|world| {
        add_successor(world, 6, 0, "c-00");
        world.node("c-06").unacknowledged = true;
    });
    let decision = world.plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::Rolling));
}

#[test]
fn given_a_successor_that_is_not_published_then_the_hand_over_waits() {
    let world = outdated(3, 0).with(|world| {
        add_successor(world, 6, 0, "c-00");
        world.node("c-06").pod.as_mut().unwrap().published = false;
    });
    assert_eq!(world.plan().action, None);
}

#[test]
fn given_a_node_that_counts_the_successor_to_another_shard_then_the_hand_over_waits() {
    let world = outdated(3, 1).with(|world| {
        world.nodes.remove("c-01");
        world.everyone_forgets("c-01");
        add_successor(world, 6, 0, "c-00");
        add_successor(world, 7, 0, "c-00");
        world.node("c-06").parts = vec!["c-07".to_owned()];
        world.node("c-07").parts = vec!["c-06".to_owned()];
    });
    let decision = world.plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::Rolling));
    let sorted = world.with(|world| {
        world.node("c-06").parts.clear();
        world.node("c-07").parts.clear();
    });
    assert!(matches!(sorted.action(), Action::Failover { .. }));
}

#[test]
fn given_two_outdated_shards_then_only_the_lowest_is_in_motion() {
    let world = outdated(3, 1).with(|world| add_successor(world, 6, 0, "c-00"));
    let Action::MarkLeaving { node } = world.action() else { panic!("no step") };
    assert_eq!(node.name, "c-01", "shard 0 is finished before shard 1 begins");
}

#[test]
fn given_an_unresolved_config_then_nothing_rolls() {
    let decision = outdated(3, 1).with(|world| world.want.template = Err("gone".to_owned())).plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::ReferencesUnresolved));
}

#[test]
fn given_a_fault_in_the_middle_of_a_roll_then_it_is_repaired_first() {
    let world = outdated(3, 1).with(|world| {
        add_successor(world, 6, 0, "c-00");
        world.kill("c-02");
    });
    assert!(matches!(world.action(), Action::Failover { kind: FailoverKind::Force, .. }));
}

#[test]
fn given_a_new_release_with_other_defaults_then_nothing_rolls() {
    let world = world(3, 1).formed().with(|world| {
        let template = world.want.template.as_mut().unwrap();
        template.version = Some("other".to_owned());
        template.placement = Some(shared::api::Placement {
            zone_spread: Some(shared::api::ZoneSpread::Required),
            ..shared::api::Placement::default()
        });
    });
    assert_eq!(world.plan().reason, Reason::Settled);
}

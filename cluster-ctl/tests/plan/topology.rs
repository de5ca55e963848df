//! Scaling of a formed cluster.

use cluster_ctl::action::Action;
use cluster_ctl::model::Shape;
use cluster_ctl::words::Reason;
use shared::api::{JoinType, Lifecycle};
use shared::slots::{SlotRange, SlotSet};
use shared::valkey::report::{MigrationState, Operation, SlotMigration};
use shared::valkey::types::EngineVersion;

use crate::world::{World, id, world};

fn sized(world: World, shards: u16, replicas: u16) -> World {
    world.with(|world| world.want.shape = Shape { shards, replicas })
}

/// A settled cluster with a further, empty, whole shard at index `shards`.
fn with_empty_shard(shards: u16, replicas: u16) -> World {
    sized(world(shards, replicas).formed(), shards + 1, replicas).with(|world| {
        let first = world.nodes.len();
        let names: Vec<String> = (0..=usize::from(replicas))
            .map(|number| world.add(first + number, shards).name.clone())
            .collect();
        for (number, name) in names.iter().enumerate() {
            world.start(name, first + number);
            let node = world.node(name);
            node.spec.lifecycle = Lifecycle::Active;
            (node.offset, node.state_ok) = (100, true);
            node.primary = (number > 0).then(|| names[0].clone());
        }
        world.all_know_all();
        world.all_published();
    })
}

fn job(source: u8, target: u8, range: (u16, u16), state: MigrationState) -> SlotMigration {
    SlotMigration {
        name: "job".to_owned(),
        operation: Operation::Export,
        slots: SlotSet::from_ranges([SlotRange { start: range.0, end: range.1 }]),
        target: Some(id(target)),
        source: Some(id(source)),
        created: 0,
        updated: 100,
        state,
        message: "Connection lost to target".to_owned(),
        remaining_bytes: 0,
    }
}

#[test]
fn given_more_shards_wanted_then_the_nodes_of_a_new_shard_are_made_one_a_tick() {
    let mut world = sized(world(3, 1).formed(), 4, 1);
    for _ in 0..2 {
        let Action::CreateNodes { nodes, .. } = world.action() else { panic!("not created") };
        assert_eq!((nodes.len(), nodes[0].spec.shard_index, nodes[0].join), (1, 3, Some(JoinType::Shard)));
        let number = world.nodes.len();
        world.add(number, 3).join = Some(JoinType::Shard);
    }
    assert!(world.plan().action.is_none(), "no third node: {:?}", world.plan());
}

#[test]
fn given_a_new_shard_then_one_node_becomes_its_empty_primary_and_the_other_its_replica() {
    let mut world = sized(world(3, 1).formed(), 4, 1);
    for number in [6, 7] {
        world.add(number, 3).join = Some(JoinType::Shard);
        world.start(&format!("c-0{number}"), number);
    }
    assert!(matches!(world.action(), Action::Meet { others, .. } if others[0].node.name == "c-06"));
    world.all_know_all();
    assert!(
        matches!(world.action(), Action::Activate { nodes, clear_join_type: true, .. } if nodes[0].name == "c-06")
    );
    world.node("c-06").spec.lifecycle = Lifecycle::Active;
    assert!(matches!(world.action(), Action::Replicate { links } if links[0].1 == id(7)));
}

#[test]
fn given_replicas_of_a_shard_that_died_before_it_owned_a_slot_then_one_of_them_founds_it_anew() {
    let mut world = sized(world(2, 1).formed(), 3, 1);
    for number in [4, 5] {
        world.add(number, 2).join = Some(JoinType::Replica);
        world.start(&format!("c-0{number}"), number);
    }
    assert!(matches!(world.action(), Action::Meet { others, .. } if others[0].node.name == "c-04"));
    world.node("c-00").slots = SlotSet::new();
    let waits = world.plan();
    assert!(
        !matches!(waits.action, Some(Action::Meet { .. })),
        "a slot without owner may be theirs: {waits:?}"
    );
}

#[test]
fn given_an_empty_shard_in_sync_and_published_then_slots_flow_to_it() {
    let Action::MigrateSlots { source, target, slots } = with_empty_shard(3, 1).action() else {
        panic!("no migration")
    };
    assert_eq!((target.node.name.as_str(), slots.len()), ("c-06", 1024));
    assert_eq!(source.node.name, "c-00", "the fullest gives first");
}

#[test]
fn given_a_new_primary_whose_replica_is_not_in_sync_then_no_slot_flows() {
    let world = with_empty_shard(3, 1).with(|world| world.node("c-07").link_up = false);
    assert!(!matches!(world.plan().action, Some(Action::MigrateSlots { .. })));
}

#[test]
fn given_a_new_primary_that_does_not_serve_yet_then_no_slot_flows() {
    let mut world = with_empty_shard(3, 1);
    world.all_published();
    let empty = world.nodes.values().find(|node| node.slots.is_empty() && node.primary.is_none());
    let name = empty.unwrap().name.clone();
    world.node(&name).state_ok = false;
    let decision = world.plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::Scaling));
    assert!(decision.message.contains("cluster_state:ok"), "{}", decision.message);
}

#[test]
fn given_a_member_that_is_not_published_then_no_slot_flows() {
    let decision = with_empty_shard(3, 1)
        .with(|world| world.node("c-06").pod.as_mut().unwrap().published = false)
        .plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::Scaling));
}

#[test]
fn given_a_job_under_way_then_only_another_giver_to_another_receiver_may_start() {
    let open = |target| vec![job(1, target, (0, 1023), MigrationState::Open("snapshotting".to_owned()))];
    let one_receiver = with_empty_shard(3, 0).with(|world| world.node("c-00").jobs = open(4));
    let decision = one_receiver.plan();
    assert_eq!(
        (decision.action, decision.reason),
        (None, Reason::Scaling),
        "a shard receives from one at a time"
    );
    let Action::MigrateSlots { source, target, .. } = two_empty_shards(3).action() else { panic!("no move") };
    assert_ne!((source.node.name.as_str(), target.node.name.as_str()), ("c-00", "c-03"));
    assert!(
        source.node.name != "c-00" && target.node.name != "c-03",
        "{} to {}",
        source.node.name,
        target.node.name
    );
}

/// Two shards more than there were, both empty; the first of the old gives to the first of the new already.
fn two_empty_shards(shards: u16) -> World {
    let world = with_empty_shard(shards, 0).with(|world| {
        let (number, index) = (world.nodes.len(), shards + 1);
        let name = world.add(number, index).name.clone();
        world.start(&name, number);
        let node = world.node(&name);
        node.spec.lifecycle = Lifecycle::Active;
        (node.offset, node.state_ok) = (100, true);
        world.all_know_all();
        world.all_published();
        let target = u8::try_from(shards + 1).unwrap();
        world.node("c-00").jobs =
            vec![job(1, target, (0, 1023), MigrationState::Open("snapshotting".to_owned()))];
    });
    sized(world, shards + 2, 0)
}

#[test]
fn given_three_jobs_under_way_then_no_fourth_starts() {
    let open =
        |source, target| vec![job(source, target, (0, 99), MigrationState::Open("snapshotting".to_owned()))];
    let mut world = two_empty_shards(6);
    assert!(matches!(world.action(), Action::MigrateSlots { .. }));
    world.node("c-01").jobs = open(2, 12);
    world.node("c-02").jobs = open(3, 13);
    assert_eq!(world.plan().action, None);
}

#[test]
fn given_a_primary_that_has_just_given_its_last_slots_then_it_stays_for_a_moment_to_redirect_clients() {
    let drained = |seconds: u64| {
        sized(world(3, 0).formed(), 2, 0).with(|world| {
            world.all_published();
            world.node("c-00").slots = SlotSet::from_ranges([SlotRange { start: 0, end: 8191 }]);
            world.node("c-01").slots = SlotSet::from_ranges([SlotRange { start: 8192, end: 16383 }]);
            world.node("c-02").slots = SlotSet::new();
            world.node("c-02").jobs = vec![job(3, 1, (13_000, 13_100), MigrationState::Success)];
            world.node("c-02").clock_seconds = seconds;
        })
    };
    for just_now in [100, 101] {
        let decision = drained(just_now).plan();
        assert_eq!((decision.action, decision.reason), (None, Reason::Scaling));
        assert!(decision.message.contains("redirects its clients"), "{}", decision.message);
    }
    // A clock that was set back keeps nobody.
    for later in [102, 50] {
        assert!(matches!(drained(later).action(), Action::MarkLeaving { node } if node.name == "c-02"));
    }
}

#[test]
fn given_a_failed_migration_then_it_is_tried_again_only_after_a_pause() {
    let failed = |seconds: u64| {
        with_empty_shard(1, 0).with(|world| {
            world.node("c-00").jobs = vec![job(1, 2, (0, 99), MigrationState::Failed); 3];
            world.node("c-00").clock_seconds = seconds;
        })
    };
    let early = failed(103).plan();
    assert_eq!((early.action, early.reason), (None, Reason::MigrationFailed));
    assert!(early.message.contains("Connection lost to target"), "{}", early.message);
    assert!(matches!(failed(104).action(), Action::MigrateSlots { .. }));
}

#[test]
fn given_large_data_then_a_batch_is_cut_to_its_bytes() {
    let world = with_empty_shard(1, 0).with(|world| world.node("c-00").used_memory = 16384 * 1024 * 1024);
    assert!(matches!(world.action(), Action::MigrateSlots { slots, .. } if slots.len() == 8));
}

#[test]
fn given_an_engine_that_cannot_move_slots_then_that_is_said() {
    let world = with_empty_shard(3, 0).with(|world| world.node("c-01").version = EngineVersion::new(8, 1, 1));
    let decision = world.plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::EngineTooOld));
}

#[test]
fn given_fewer_shards_wanted_then_the_smallest_with_the_highest_index_is_drained() {
    let world = sized(world(3, 1).formed(), 2, 1).with(World::all_published);
    let Action::MigrateSlots { source, .. } = world.action() else { panic!("no migration") };
    assert_eq!(source.node.name, "c-04");
}

#[test]
fn given_a_drained_shard_then_its_replica_goes_before_its_primary() {
    let mut world = sized(world(3, 1).formed(), 2, 1).with(|world| {
        world.all_published();
        world.node("c-00").slots = SlotSet::from_ranges([SlotRange { start: 0, end: 8191 }]);
        world.node("c-02").slots = SlotSet::from_ranges([SlotRange { start: 8192, end: 16383 }]);
        world.node("c-04").slots = SlotSet::new();
    });
    assert!(matches!(world.action(), Action::MarkLeaving { node } if node.name == "c-05"));
    world.node("c-05").spec.lifecycle = Lifecycle::Leaving;
    assert!(matches!(world.action(), Action::Reset { on } if on.node.name == "c-05"));
    let node = world.node("c-05");
    (node.id, node.primary, node.knows) = (id(77), None, std::collections::BTreeSet::new());
    world.nodes.get_mut("c-05").unwrap().recorded_id = Some(id(6));
    world.ghosts = vec![("c-05".to_owned(), id(6))];
    assert!(matches!(world.action(), Action::Forget { id: gone, on } if gone == id(6) && on.len() == 5));
    world.ghosts.clear();
    world.everyone_forgets("c-05");
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-05"));
    world.nodes.remove("c-05");
    assert!(matches!(world.action(), Action::MarkLeaving { node } if node.name == "c-04"));
}

#[test]
fn given_a_scale_out_that_is_taken_back_then_its_joiners_leave_and_no_real_shard_does() {
    let world = sized(world(3, 1).formed(), 4, 1).with(|world| {
        world.add(6, 3).join = Some(JoinType::Shard);
        world.want.shape.shards = 3;
    });
    assert!(matches!(world.action(), Action::MarkLeaving { node } if node.name == "c-06"));
}

#[test]
fn given_fewer_replicas_wanted_then_one_excess_replica_leaves_and_never_the_last_synced_one() {
    let world = sized(world(3, 2).formed(), 3, 1).with(|world| world.node("c-02").link_up = false);
    assert!(matches!(world.action(), Action::MarkLeaving { node } if node.name == "c-02"));
    let world = sized(world_with_one_synced(), 3, 1);
    assert!(matches!(world.plan().action, Some(Action::MarkLeaving { node }) if node.name != "c-01"));
}

/// 3×2 where c-01 is the only replica of shard 0 in sync.
fn world_with_one_synced() -> World {
    world(3, 2).formed().with(|world| world.node("c-02").link_up = false)
}

#[test]
fn given_a_member_that_came_back_as_a_primary_of_nothing_then_it_goes_and_a_replica_is_made() {
    let mut world = world(3, 1).formed().with(|world| {
        world.all_published();
        world.node("c-03").primary = None;
    });
    assert!(matches!(world.action(), Action::MarkLeaving { node } if node.name == "c-03"));
    world.nodes.remove("c-03");
    world.everyone_forgets("c-03");
    let Action::CreateNodes { nodes, .. } = world.action() else { panic!("no replica") };
    assert_eq!(nodes[0].spec.shard_index, 1);
}

#[test]
fn given_more_replicas_wanted_then_each_shard_gets_one() {
    let Action::CreateNodes { nodes, .. } = sized(world(3, 1).formed(), 3, 2).action() else {
        panic!("not created")
    };
    assert_eq!((nodes.len(), nodes[0].join), (1, Some(JoinType::Replica)));
}

#[test]
fn given_a_leaving_replica_when_more_are_wanted_again_then_it_goes_only_after_its_successor_has_come() {
    let mut world = sized(world(3, 1).formed(), 3, 1).with(|world| {
        world.node("c-03").spec.lifecycle = Lifecycle::Leaving;
    });
    let Action::CreateNodes { nodes, .. } = world.action() else { panic!("not created: {:?}", world.plan()) };
    assert_eq!((nodes.len(), nodes[0].spec.shard_index), (1, 1));
    let name = world.add(8, 1).name.clone();
    world.start(&name, 8);
    assert!(!matches!(world.plan().action, Some(Action::Reset { .. })));
    let node = world.node(&name);
    node.spec.lifecycle = Lifecycle::Active;
    (node.primary, node.offset, node.state_ok) = (Some("c-02".to_owned()), 100, true);
    world.all_know_all();
    assert!(matches!(world.action(), Action::Reset { on } if on.node.name == "c-03"));
}

#[test]
fn given_an_uneven_cluster_then_it_is_evened_out_without_a_third_shard() {
    let world = world(2, 0).formed().with(|world| {
        world.all_published();
        world.node("c-00").slots = SlotSet::from_ranges([SlotRange { start: 0, end: 8291 }]);
        world.node("c-01").slots = SlotSet::from_ranges([SlotRange { start: 8292, end: 16383 }]);
    });
    let Action::MigrateSlots { source, slots, .. } = world.action() else { panic!("no migration") };
    assert_eq!((source.node.name.as_str(), slots.len()), ("c-00", 100));
}

#[test]
fn given_a_shard_that_is_lost_then_no_slot_moves_before_it_is_repaired() {
    let world = with_empty_shard(3, 0).with(|world| world.kill("c-01"));
    assert!(!matches!(world.plan().action, Some(Action::MigrateSlots { .. })));
}

#[test]
fn given_slots_under_way_to_a_shard_then_the_choice_of_the_one_that_goes_does_not_turn_with_them() {
    // Both ways at once, as two edits in short order leave it: what has arrived decides.
    let world = sized(world(3, 0).formed(), 2, 0).with(|world| {
        let range = |start, end| SlotSet::from_ranges([SlotRange { start, end }]);
        world.node("c-00").slots = range(0, 7999);
        world.node("c-01").slots = range(8000, 12_099);
        world.node("c-02").slots = range(12_100, 16_383);
        let open = || MigrationState::Open("snapshotting".to_owned());
        world.node("c-02").jobs = vec![job(3, 2, (12_100, 13_123), open())];
    });
    // Counted as they are, shard 1 would be the smaller one, and give back what it is about to get.
    let decision = world.plan();
    assert!(
        !matches!(&decision.action, Some(Action::MigrateSlots { source, .. }) if source.node.name == "c-01"),
        "{decision:?}"
    );
}

#[test]
fn given_a_failed_migration_and_a_clock_that_was_set_back_then_it_does_not_wait_for_the_clock() {
    let failed = |seconds: u64| {
        with_empty_shard(1, 0).with(|world| {
            world.node("c-00").jobs = vec![job(1, 2, (0, 99), MigrationState::Failed); 3];
            world.node("c-00").clock_seconds = seconds;
        })
    };
    let decision = failed(10).plan();
    assert!(matches!(decision.action, Some(Action::MigrateSlots { .. })), "{decision:?}");
}

#[test]
fn given_a_job_under_way_then_no_job_starts_the_other_way() {
    // 2x1: shards had been set to 1, c-02 (shard 1) is giving to c-00 (shard 0); now 2 again.
    let mut world = sized(world(2, 1).formed(), 2, 1).with(World::all_published);
    world.node("c-00").slots = SlotSet::from_ranges([SlotRange { start: 0, end: 12_287 }]);
    world.node("c-02").slots = SlotSet::from_ranges([SlotRange { start: 12_288, end: 16_383 }]);
    let name = |world: &World, node: &str| world.nodes[node].id;
    let (zero, two) = (name(&world, "c-00"), name(&world, "c-02"));
    let mut open = job(3, 1, (12_288, 13_311), MigrationState::Open("snapshotting".to_owned()));
    (open.source, open.target) = (Some(two), Some(zero));
    world.node("c-02").jobs = vec![open];
    let decision = world.plan();
    assert!(!matches!(decision.action, Some(Action::MigrateSlots { .. })), "{decision:?}");
}

#[test]
fn given_a_job_under_way_then_the_gate_refuses_one_the_other_way() {
    let mut world = sized(world(2, 1).formed(), 1, 1).with(World::all_published);
    let decision = world.plan();
    let Some(action @ Action::MigrateSlots { source, target, .. }) = &decision.action else {
        panic!("{decision:?}")
    };
    assert_eq!(cluster_ctl::plan::safety::check(action, &world.observed()), Ok(()));
    let (giver, receiver) = (source.id, target.id);
    let mut open = job(0, 0, (0, 9), MigrationState::Open("snapshotting".to_owned()));
    (open.source, open.target) = (Some(receiver), Some(giver));
    world.node(&target.node.name.clone()).jobs = vec![open];
    let refused = cluster_ctl::plan::safety::check(action, &world.observed()).unwrap_err();
    assert!(refused.to_string().contains("moving the other way"), "{refused}");
}

#[test]
fn given_a_drained_primary_whose_replica_is_not_heard_then_it_does_not_leave_before_it() {
    let world = sized(world(3, 1).formed(), 2, 1).with(|world| {
        world.all_published();
        world.node("c-00").slots = SlotSet::from_ranges([SlotRange { start: 0, end: 8191 }]);
        world.node("c-02").slots = SlotSet::from_ranges([SlotRange { start: 8192, end: 16383 }]);
        world.node("c-04").slots = SlotSet::new();
        world.silence("c-05", None);
    });
    let decision = world.plan();
    assert!(!matches!(decision.action, Some(Action::MarkLeaving { .. })), "{decision:?}");
}

//! Lost shards, slots that nobody owns, and what the dead leave behind.

use cluster_ctl::action::{Action, Pace};
use cluster_ctl::model::Millis;
use cluster_ctl::words::Reason;
use shared::api::{JoinType, Lifecycle};
use shared::slots::{SlotRange, SlotSet};

use crate::world::{Voice, World, id, world};

fn slots(start: u16, end: u16) -> SlotSet {
    SlotSet::from_ranges(SlotRange::new(start, end))
}

/// Two shards without replicas, formed; the owner of the second is dead and nobody lists it any more.
fn forgotten_owner() -> World {
    world(2, 0).formed().with(|world| {
        world.kill("c-01");
        world.node("c-01").recorded_slots = 8192;
        world.everyone_forgets("c-01");
    })
}

/// A node that runs, alone, and was made for shard `index`.
fn newcomer(world: &mut World, index: u16) -> String {
    let name = world.add(8, index).name.clone();
    world.start(&name, 8);
    world.node(&name).join = Some(JoinType::Primary);
    name
}

#[test]
fn given_slots_that_nobody_lists_then_the_shard_without_owner_gets_them_step_by_step() {
    let mut world = forgotten_owner();
    let Action::CreateNodes { nodes, .. } = world.action() else { panic!("no heir is made") };
    assert_eq!((nodes[0].spec.shard_index, nodes[0].join), (1, Some(JoinType::Primary)));
    let heir = newcomer(&mut world, 1);
    let Action::SetConfigEpochs { epochs } = world.action() else { panic!("no epoch") };
    assert_eq!(epochs[0].1.0, 2, "above every epoch in use");
    world.node(&heir).epoch = 2;
    let Action::AssignSlots { slots: given } = world.action() else { panic!("no slots") };
    assert_eq!((given[0].0.node.name.as_str(), &given[0].1), (heir.as_str(), &slots(8192, 16383)));
    world.node(&heir).slots = slots(8192, 16383);
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-01"));
}

#[test]
fn given_all_members_dead_then_the_last_record_that_the_cluster_was_formed_stays_until_an_heir_is_active() {
    let mut world = world(1, 0).formed().with(|world| {
        world.kill("c-00");
        world.node("c-00").recorded_slots = 16384;
    });
    let heir = newcomer(&mut world, 0);
    world.node(&heir).epoch = 2;
    assert!(matches!(world.action(), Action::AssignSlots { .. }));
    world.node(&heir).slots = SlotSet::all();
    // Another size meanwhile must not make a bootstrap of it whose slots are given already.
    world.want.shape.shards = 2;
    assert!(matches!(world.action(), Action::Activate { nodes, .. } if nodes[0].name == heir));
    world.node(&heir).spec.lifecycle = Lifecycle::Active;
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-00"));
}

#[test]
fn given_slots_that_nobody_lists_and_a_member_that_is_not_heard_then_nothing_is_given_away() {
    let mut world = world(3, 0).formed().with(|world| {
        world.kill("c-01");
        world.node("c-01").recorded_slots = 5461;
        world.everyone_forgets("c-01");
        world.silence("c-02", None);
    });
    let decision = world.plan();
    assert_eq!(decision.action, None, "{decision:?}");
    assert!(decision.message.contains("c-02"), "{}", decision.message);
    newcomer(&mut world, 1);
    assert!(!matches!(world.plan().action, Some(Action::AssignSlots { .. })));
}

#[test]
fn given_an_empty_primary_of_the_shard_that_has_joined_then_it_gets_the_slots_that_nobody_lists() {
    let mut world = forgotten_owner();
    let name = newcomer(&mut world, 1);
    world.node(&name).spec.lifecycle = Lifecycle::Active;
    world.all_know_all();
    world.everyone_forgets("c-01");
    world.node(&name).epoch = 3;
    assert!(matches!(world.action(), Action::AssignSlots { slots } if slots[0].0.node.name == name));
    // The engine gives one that knows others no epoch any more.
    world.node(&name).epoch = 0;
    assert!(matches!(world.action(), Action::AssignSlots { slots } if slots[0].0.node.name == "c-00"));
}

#[test]
fn given_a_dead_owner_whose_slots_nobody_has_then_its_object_stays() {
    let mut world = forgotten_owner();
    newcomer(&mut world, 1);
    world.node("c-08").voice = Voice::Silent;
    world.node("c-08").recorded_id = None;
    let decision = world.plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::ShardLost));
}

#[test]
fn given_a_successor_that_only_itself_knows_then_it_has_not_joined() {
    let mut world = forgotten_owner();
    let heir = newcomer(&mut world, 1);
    world.node(&heir).epoch = 3;
    world.node(&heir).slots = slots(8192, 16383);
    world.nodes.remove("c-01");
    world.silence("c-00", None);
    let decision = world.plan();
    assert_eq!(decision.action, None, "{decision:?}");
}

#[test]
fn given_a_successor_whose_slots_clients_have_filled_before_anybody_met_it_then_it_is_not_replaced() {
    let mut world = forgotten_owner();
    let heir = newcomer(&mut world, 1);
    let node = world.node(&heir);
    (node.epoch, node.slots, node.keys) = (3, slots(8192, 16383), 5);
    world.nodes.remove("c-01");
    let decision = world.plan();
    let replaced = matches!(&decision.action, Some(Action::DeleteNodes { nodes, .. }) if nodes.iter().any(|it| it.name == heir));
    assert!(!replaced, "{decision:?}");
}

#[test]
fn given_two_lost_shards_then_each_gets_a_primary_that_takes_the_slots_over_and_no_empty_one() {
    let mut world = world(6, 0).formed().with(|world| {
        world.kill("c-02");
        world.kill("c-04");
    });
    let Action::CreateNodes { nodes, .. } = world.action() else { panic!("no heir") };
    assert_eq!((nodes[0].spec.shard_index, nodes[0].join), (2, Some(JoinType::Primary)));
    world.add(8, 2).join = Some(JoinType::Primary);
    let Action::CreateNodes { nodes, .. } = world.action() else { panic!("no second heir") };
    assert_eq!((nodes[0].spec.shard_index, nodes[0].join), (4, Some(JoinType::Primary)));
}

#[test]
fn given_an_heir_whose_reply_is_lost_then_no_epoch_is_given_that_it_may_have_already() {
    let mut world = world(6, 0).formed().with(|world| {
        world.kill("c-02");
        world.kill("c-04");
    });
    for (number, shard) in [(8, 2), (9, 4)] {
        world.add(number, shard).join = Some(JoinType::Primary);
        world.start(&format!("c-0{number}"), number);
    }
    let given = |world: &World| match world.plan().action {
        Some(Action::SetConfigEpochs { epochs }) => Some((epochs[0].0.node.name.clone(), epochs[0].1.0)),
        _ => None,
    };
    assert_eq!(given(&world), Some(("c-08".to_owned(), 7)));
    world.node("c-08").epoch = 7;
    world.silence("c-08", None);
    assert_eq!(given(&world), None);
    world.node("c-08").voice = Voice::Answers;
    assert_ne!(given(&world).map(|(_, epoch)| epoch), Some(7));
}

#[test]
fn given_a_successor_that_learned_of_the_others_by_itself_then_it_makes_room_for_another() {
    let mut world = world(3, 0).formed().with(|world| world.kill("c-01"));
    let name = newcomer(&mut world, 1);
    world.all_know_all();
    assert!(matches!(world.action(), Action::Reset { on } if on.node.name == name));
    world.node(&name).spec.lifecycle = Lifecycle::Active;
    assert!(matches!(world.action(), Action::MarkLeaving { node } if node.name == name));
}

#[test]
fn given_a_dead_owner_whose_only_sibling_nobody_met_has_a_lower_epoch_then_one_above_all_takes_the_slots() {
    let mut world = world(2, 1).with_slots();
    (world.node("c-02").epoch, world.node("c-03").epoch, world.node("c-01").epoch) = (4, 2, 3);
    world.all_know_all();
    world.node("c-03").knows.clear();
    world.everyone_forgets("c-03");
    world.kill("c-02");
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-03"));
    world.nodes.remove("c-03");
    let Action::CreateNodes { nodes, .. } = world.action() else { panic!("no heir is made") };
    assert_eq!(nodes[0].spec.shard_index, 1);
    let heir = newcomer(&mut world, 1);
    assert!(matches!(world.action(), Action::SetConfigEpochs { epochs } if epochs[0].1.0 == 5));
    world.node(&heir).epoch = 5;
    let Action::AssignSlots { slots: given } = world.action() else { panic!("no slots") };
    assert_eq!((given[0].0.node.name.as_str(), &given[0].1), (heir.as_str(), &slots(8192, 16383)));
}

#[test]
fn given_a_dead_owner_whose_sibling_is_not_heard_then_the_shard_is_held_and_says_so() {
    let decision = world(3, 1)
        .formed()
        .with(|world| {
            world.kill("c-02");
            world.silence("c-03", None);
        })
        .plan();
    let held = decision.waits.iter().find(|wait| wait.reason == Reason::PrimaryUnreachable);
    assert!(held.is_some_and(|wait| wait.message.contains("c-03")), "{:?}", decision.waits);
    assert!(!matches!(decision.action, Some(Action::AssignSlots { .. } | Action::SetConfigEpochs { .. })));
}

#[test]
fn given_a_dead_primary_without_slots_then_its_replicas_are_reset_so_that_it_can_be_forgotten() {
    // Two shards and one more that is drained.
    let mut world = world(3, 1).formed().with(|world| {
        world.node("c-00").slots = slots(0, 8191);
        world.node("c-02").slots = slots(8192, 16383);
        world.node("c-04").slots = SlotSet::new();
        world.want.shape.shards = 2;
        world.kill("c-04");
    });
    assert!(matches!(world.action(), Action::Reset { on } if on.node.name == "c-05"));
    let node = world.node("c-05");
    (node.recorded_id, node.id, node.primary) = (Some(id(6)), id(88), None);
    node.knows.clear();
    world.everyone_forgets("c-05");
    assert!(matches!(world.action(), Action::Forget { id: forgotten, .. } if forgotten == id(5)));
}

#[test]
fn given_a_dead_primary_without_slots_whose_replica_does_not_answer_for_a_moment_then_it_is_not_forgotten_yet()
 {
    let mut world = world(3, 1).formed().with(|world| {
        world.node("c-00").slots = slots(0, 8191);
        world.node("c-02").slots = slots(8192, 16383);
        world.node("c-04").slots = SlotSet::new();
        world.want.shape.shards = 2;
        world.kill("c-04");
        world.silence("c-05", None);
    });
    let decision = world.plan();
    assert!(!matches!(decision.action, Some(Action::Forget { .. })), "{decision:?}");
    world.silence("c-05", Some(crate::world::Flag::Fail));
    assert!(matches!(world.action(), Action::Forget { .. }), "both have failed");
}

#[test]
fn given_a_member_that_nobody_knows_then_it_is_introduced_again() {
    let world = world(3, 1).formed().with(|world| {
        world.everyone_forgets("c-05");
        world.node("c-05").knows.clear();
        world.node("c-05").primary = None;
    });
    assert!(matches!(world.action(), Action::Meet { others, .. } if others[0].node.name == "c-05"));
}

#[test]
fn given_a_member_that_was_forgotten_less_than_a_minute_ago_then_it_is_introduced_after_that() {
    let mut world = world(3, 1).formed().with(|world| {
        world.everyone_forgets("c-05");
        world.node("c-05").knows.clear();
        world.node("c-05").primary = None;
        world.banned.insert(id(6));
    });
    let decision = world.plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::ForgottenLately));
    world.node("c-05").spec.lifecycle = Lifecycle::Joining;
    let decision = world.plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::ForgottenLately), "a joiner, too");
    world.banned.clear();
    assert!(matches!(world.action(), Action::Meet { others, .. } if others[0].node.name == "c-05"));
}

#[test]
fn given_two_islands_that_own_the_same_slots_then_they_are_not_merged() {
    let decision = world(2, 0)
        .formed()
        .with(|world| {
            world.node("c-00").knows.clear();
            world.node("c-01").knows.clear();
            world.node("c-00").slots = SlotSet::all();
        })
        .plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::SlotConflict));
}

#[test]
fn given_a_joiner_of_a_shard_that_is_to_go_then_it_stays_while_the_shard_owns_slots() {
    let world = world(3, 1).formed().with(|world| {
        world.want.shape.shards = 2;
        world.node("c-05").spec.lifecycle = Lifecycle::Joining;
    });
    assert!(matches!(world.action(), Action::Activate { nodes, .. } if nodes[0].name == "c-05"));
}

#[test]
fn given_a_reset_member_that_gossip_brought_back_then_it_is_reset_again_before_it_goes() {
    let mut world = world(3, 1).formed().with(|world| {
        let node = world.node("c-03");
        (node.recorded_id, node.id, node.primary) = (Some(id(4)), id(88), None);
    });
    assert!(matches!(world.action(), Action::Reset { on } if on.id == id(88)));
    world.everyone_forgets("c-03");
    world.node("c-03").knows.clear();
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-03"));
}

#[test]
fn given_an_heir_whose_pod_vanished_then_it_is_not_removed_before_its_death_is_proved() {
    let mut world = forgotten_owner();
    let heir = newcomer(&mut world, 1);
    world.node(&heir).voice = Voice::Silent;
    world.node(&heir).pod_vanished = true;
    assert_eq!(world.plan().action, None, "it may own slots that only it shows");
    world.node(&heir).join = Some(JoinType::Replica);
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == heir));
}

/// `c-08`, in the place of the lost `c-03`, ended before it ever answered.
fn never_started(join: JoinType) -> World {
    world(3, 1).formed().with(|world| {
        world.nodes.remove("c-03");
        world.everyone_forgets("c-03");
        let name = world.add(8, 1).name.clone();
        world.start(&name, 8);
        world.kill(&name);
        let node = world.node(&name);
        (node.recorded_id, node.join) = (None, Some(join));
    })
}

#[test]
fn given_a_joiner_that_did_not_start_then_it_is_tried_again_after_a_pause_and_then_removed() {
    let mut world = never_started(JoinType::Replica);
    let early = world.plan();
    assert_eq!((early.action, early.reason), (None, Reason::PodNotStarting), "kept as evidence");
    world.now = Millis(world.now.0 + 31_000);
    let Action::CreateNodes { nodes, .. } = world.action() else { panic!("not tried again") };
    assert_eq!((nodes[0].start_attempt, nodes[0].join), (1, Some(JoinType::Replica)));
    world.add(9, 1).start_attempt = 1;
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-08"));
}

#[test]
fn given_an_heir_that_did_not_start_and_another_that_took_its_place_then_it_is_removed_and_not_tried_again() {
    let mut world = never_started(JoinType::Primary);
    world.now = Millis(world.now.0 + 31_000);
    let decision = world.plan();
    assert!(
        matches!(&decision.action, Some(Action::DeleteNodes { nodes, .. }) if nodes[0].name == "c-08"),
        "{decision:?}"
    );
}

#[test]
fn given_slots_that_their_named_owner_denies_then_the_cluster_is_not_called_settled() {
    let decision = world(2, 0)
        .formed()
        .with(|world| world.disowned = Some(("c-01".to_owned(), slots(9000, 9999))))
        .plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::ClusterForming));
}

#[test]
fn given_passwords_that_no_node_knows_then_they_are_told_and_not_the_silence_that_follows() {
    let world = world(1, 1).formed().with(|world| {
        for node in world.nodes.values_mut() {
            node.voice = Voice::AuthRejected;
        }
        world.want.notices.push(cluster_ctl::desired::unknown_passwords());
    });
    let decision = world.plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::AuthSecretChanged));
}

#[test]
fn given_a_dead_owner_that_a_view_still_gives_slots_then_it_is_looked_at_again_soon() {
    let world = world(2, 0).formed().with(|world| {
        world.all_published();
        world.kill("c-01");
        let heir = newcomer(world, 1);
        let node = world.node(&heir);
        (node.join, node.spec.lifecycle, node.slots, node.epoch) =
            (None, Lifecycle::Active, slots(8192, 16383), 3);
        node.state_ok = true;
        world.all_know_all();
        world.all_published();
    });
    let decision = world.plan();
    assert_eq!((decision.action, decision.pace), (None, Pace::Quick), "{}", decision.message);
    assert_eq!(decision.reason, Reason::ForgettingNode);
    assert!(decision.message.contains("c-01"), "{}", decision.message);
}

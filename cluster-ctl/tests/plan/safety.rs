//! The last gate refuses what a wrong rule could decide.

use cluster_ctl::action::{Action, NodeRef, Target};
use cluster_ctl::plan::safety::{Violation, check};
use shared::api::Lifecycle;
use shared::slots::{SlotRange, SlotSet};
use shared::valkey::commands::FailoverKind;
use shared::valkey::types::Epoch;

use crate::world::{World, id, world};

fn target(world: &World, number: usize) -> Target {
    let name = world.name(number);
    let seen = world.observed();
    let member = &seen.members[&name];
    Target {
        node: NodeRef { name, uid: member.uid.clone() },
        pod_uid: member.pod.as_ref().unwrap().uid.clone(),
        id: member.id().unwrap(),
        ip: member.ip().unwrap(),
    }
}

fn slots(start: u16, end: u16) -> SlotSet {
    SlotSet::from_ranges([SlotRange { start, end }])
}

#[test]
fn owned_slots_are_not_assigned_to_another() {
    let world = world(3, 1).formed();
    let action = Action::AssignSlots { slots: vec![(target(&world, 1), slots(0, 3))] };
    assert!(
        matches!(check(&action, &world.observed()), Err(Violation::SlotsOwned { owner, .. }) if owner == id(1))
    );
}

#[test]
fn slots_of_the_dead_are_not_given_at_an_epoch_that_is_not_above_theirs() {
    let mut world = world(3, 0).formed();
    world.kill("c-00");
    world.node("c-00").epoch = 2;
    let give = |world: &World| {
        let action = Action::AssignSlots { slots: vec![(target(world, 1), slots(0, 3))] };
        check(&action, &world.observed())
    };
    for (epoch, allowed) in [(1, false), (2, false), (3, true)] {
        world.node("c-01").epoch = epoch;
        assert_eq!(give(&world).is_ok(), allowed, "epoch {epoch}: {:?}", give(&world));
    }
    world.node("c-01").epoch = 2;
    let stale = Violation::StaleClaim { receiver: id(2), epoch: 2, owner: id(1) };
    assert_eq!(give(&world), Err(stale));
}

#[test]
fn one_slot_is_not_given_to_two() {
    let world = world(3, 1).with_epochs();
    let action = Action::AssignSlots {
        slots: vec![(target(&world, 0), slots(0, 9)), (target(&world, 1), slots(9, 12))],
    };
    assert_eq!(check(&action, &world.observed()), Err(Violation::SlotsTwice { slots: slots(9, 9) }));
}

#[test]
fn a_slot_owner_is_not_deleted() {
    let world = world(3, 1).formed();
    let nodes = vec![NodeRef { name: "c-00".to_owned(), uid: "uid-c-00".to_owned() }];
    let action = Action::DeleteNodes { nodes, cluster_deleted: false };
    assert!(matches!(check(&action, &world.observed()), Err(Violation::DeletesOwner { .. })));
}

#[test]
fn a_listed_member_is_not_deleted() {
    let world = world(3, 1).formed();
    let nodes = vec![NodeRef { name: "c-01".to_owned(), uid: "uid-c-01".to_owned() }];
    let action = Action::DeleteNodes { nodes, cluster_deleted: false };
    assert!(matches!(check(&action, &world.observed()), Err(Violation::DeletesListed { .. })));
}

#[test]
fn the_nodes_of_a_living_cluster_are_not_all_deleted() {
    let action = Action::DeleteNodes { nodes: Vec::new(), cluster_deleted: true };
    assert!(matches!(check(&action, &world(3, 1).formed().observed()), Err(Violation::WrongTime { .. })));
}

#[test]
fn a_slot_owner_a_replicated_or_a_living_node_is_not_forgotten() {
    let world = world(3, 1).formed();
    for (number, what) in [(1, "slot owner"), (2, "living replica")] {
        let action = Action::Forget { id: id(number), on: Vec::new() };
        assert!(matches!(check(&action, &world.observed()), Err(Violation::ForgetsUsed { .. })), "{what}");
    }
}

#[test]
fn a_living_primary_is_not_deposed() {
    let world = world(3, 1).formed();
    let failover = |kind| Action::Failover { kind, on: target(&world, 1), from: id(1) };
    for kind in [FailoverKind::Force, FailoverKind::Takeover] {
        assert_eq!(check(&failover(kind), &world.observed()), Err(Violation::DeposesLiving { id: id(1) }));
    }
    assert_eq!(check(&failover(FailoverKind::Planned), &world.observed()), Ok(()));
}

#[test]
fn an_epoch_is_not_given_twice() {
    let world = world(3, 0).answering();
    let epochs = vec![(target(&world, 0), Epoch(4)), (target(&world, 1), Epoch(4))];
    assert_eq!(
        check(&Action::SetConfigEpochs { epochs }, &world.observed()),
        Err(Violation::EpochTwice { epoch: 4 })
    );
}

#[test]
fn a_cluster_with_nodes_is_not_released() {
    let world = world(3, 0).formed().with(|world| world.cluster.deleting = true);
    assert!(matches!(check(&Action::ReleaseCluster, &world.observed()), Err(Violation::WrongTime { .. })));
}

#[test]
fn nobody_is_deleted_while_a_member_that_may_list_it_is_silent() {
    let mut world = world(3, 1).formed().with(|world| world.silence("c-03", None));
    world.everyone_forgets("c-05");
    let nodes = vec![NodeRef { name: "c-05".to_owned(), uid: "uid-c-05".to_owned() }];
    let action = Action::DeleteNodes { nodes, cluster_deleted: false };
    assert!(
        matches!(check(&action, &world.observed()), Err(Violation::DeletesUnheard { silent, .. }) if silent == "c-03")
    );
}

#[test]
fn a_member_that_may_hold_the_only_copy_is_not_deleted() {
    let mut world = world(1, 1).formed();
    world.node("c-01").keys = 5;
    let primary = world.node("c-00");
    primary.voice = crate::world::Voice::Silent;
    primary.pod_vanished = true;
    let nodes = vec![NodeRef { name: "c-01".to_owned(), uid: "uid-c-01".to_owned() }];
    let action = Action::DeleteNodes { nodes, cluster_deleted: false };
    assert!(matches!(
        check(&action, &world.observed()),
        Err(Violation::DeletesCopy { node, primary }) if node == "c-01" && primary == id(1)
    ));
}

#[test]
fn one_that_holds_nothing_is_not_promoted_and_one_that_holds_older_data_is_not_reset() {
    let world = |offset, keys| {
        world(3, 1).formed().with(|world| {
            world.kill("c-00");
            let heir = world.node("c-01");
            (heir.link_down_seconds, heir.offset, heir.keys) = (-1, offset, keys);
        })
    };
    for (offset, keys, holds) in [(1, 0, false), (0, 0, false), (40, 0, true), (1, 7, true)] {
        let world = world(offset, keys);
        let (on, seen) = (target(&world, 1), world.observed());
        for kind in [FailoverKind::Force, FailoverKind::Takeover] {
            let failover = Action::Failover { kind, on: on.clone(), from: id(1) };
            assert_eq!(check(&failover, &seen).is_ok(), holds, "{kind:?} at {offset}, {keys}");
        }
        assert_eq!(check(&Action::Reset { on: on.clone() }, &seen).is_ok(), !holds, "at {offset}, {keys}");
    }
    let strange = Action::Failover { kind: FailoverKind::Force, on: target(&world(40, 0), 3), from: id(1) };
    assert!(matches!(check(&strange, &world(40, 0).observed()), Err(Violation::PromotesEmpty { .. })));
}

#[test]
fn a_pod_with_keys_is_ended_only_when_it_leaves_and_every_slot_is_anothers() {
    let leaving = || {
        world(3, 0).formed().with(|world| {
            let slots = std::mem::take(&mut world.node("c-02").slots);
            let taken = world.node("c-00").slots.union(&slots);
            world.node("c-00").slots = taken;
            (world.node("c-02").spec.lifecycle, world.node("c-02").keys) = (Lifecycle::Leaving, 9);
        })
    };
    let ends = |world: World| {
        let node = NodeRef { name: "c-02".to_owned(), uid: "uid-c-02".to_owned() };
        let action = Action::EndPod { node, pod_uid: "pod-c-02".to_owned(), id: id(3) };
        check(&action, &world.observed()).is_ok()
    };
    assert!(ends(leaving()));
    assert!(!ends(leaving().with(|world| world.node("c-02").spec.lifecycle = Lifecycle::Active)), "stays");
    assert!(!ends(leaving().with(|world| world.node("c-02").slots = slots(16_383, 16_383))), "owns a slot");
    assert!(!ends(leaving().with(|world| world.silence("c-01", None))), "an owner is silent");
    assert!(!ends(leaving().with(|world| world.node("c-01").slots = slots(6_000, 9_000))), "nobody's slots");
    assert!(
        !ends(leaving().with(|world| world.node("c-01").primary = Some("c-02".to_owned()))),
        "is followed"
    );
}

#[test]
fn a_leaving_replica_is_not_reset_while_the_owner_that_it_follows_is_silent() {
    let mut world = world(3, 1).formed().with(|world| {
        world.node("c-01").spec.lifecycle = Lifecycle::Leaving;
        world.silence("c-00", None);
    });
    let reset = Action::Reset { on: target(&world, 1) };
    assert!(matches!(check(&reset, &world.observed()), Err(Violation::ResetsUsed { .. })));
    world.node("c-00").voice = crate::world::Voice::Answers;
    assert_eq!(check(&reset, &world.observed()), Ok(()));
}

//! A silent primary that nothing proves dead, and the choice of the copy that takes over.

use cluster_ctl::action::Action;
use cluster_ctl::model::{Container, Ending, Millis};
use cluster_ctl::words::Reason;
use shared::slots::{SlotRange, SlotSet};
use shared::valkey::commands::FailoverKind;

use crate::world::{Flag, World, ending, id, world};

/// The primary `name` has been silent for so long, by everybody's clock.
fn silent_for(world: &mut World, name: &str, flag: Flag, millis: u64) {
    world.silence(name, Some(flag));
    for node in world.nodes.values_mut() {
        node.clock_seconds = 1_000_000;
        node.link_down_seconds = i64::try_from(millis / 1000).unwrap();
    }
    world.node(name).unheard_millis = Some(millis);
}

fn failed_for(millis: u64) -> World {
    world(3, 1).formed().with(|world| silent_for(world, "c-02", Flag::Fail, millis))
}

#[test]
fn given_a_primary_that_failed_for_longer_than_the_patience_then_its_copy_is_elected_by_force() {
    let Action::Failover { kind, on, from } = failed_for(21_000).action() else { panic!("not promoted") };
    assert_eq!((kind, on.node.name.as_str(), from), (FailoverKind::Force, "c-03", id(3)));
    let early = failed_for(19_000).plan();
    assert_eq!((early.action, early.reason), (None, Reason::AwaitingFailover));
}

#[test]
fn given_a_primary_that_is_only_suspected_then_it_is_not_succeeded_by_force() {
    let world = world(3, 1).formed().with(|world| silent_for(world, "c-02", Flag::Pfail, 60_000));
    assert_eq!(world.plan().action, None);
}

#[test]
fn given_a_copy_that_was_cut_off_before_its_primary_fell_silent_then_it_is_not_promoted_by_force() {
    let world = failed_for(21_000).with(|world| world.node("c-03").link_down_seconds = 40);
    assert_eq!(world.plan().action, None);
}

#[test]
fn given_a_force_that_was_sent_a_moment_ago_then_it_is_not_sent_again_yet() {
    let mut world = failed_for(40_000);
    world.last_failover = Some((id(3), Millis(world.now.0 - 15_000)));
    assert_eq!(world.plan().action, None);
    world.last_failover = Some((id(3), Millis(world.now.0 - 21_000)));
    assert!(matches!(world.action(), Action::Failover { .. }));
}

#[test]
fn given_a_silent_primary_whose_pod_is_being_deleted_then_it_is_left_to_its_own_hand_over() {
    let world = failed_for(21_000).with(|world| world.node("c-02").pod.as_mut().unwrap().deleting = true);
    assert_eq!(world.plan().action, None);
}

#[test]
fn given_another_replica_that_does_not_answer_then_a_silent_primary_is_not_succeeded_by_force() {
    let world = world(3, 2).formed().with(|world| {
        silent_for(world, "c-03", Flag::Fail, 30_000);
        world.silence("c-05", None);
    });
    assert_eq!(world.plan().action, None);
}

#[test]
fn given_a_silent_primary_and_nobody_to_vote_then_its_pod_is_ended_after_the_patience() {
    let silent = |millis| world(1, 1).formed().with(|world| silent_for(world, "c-00", Flag::Pfail, millis));
    let Action::EndPod { node, pod_uid, .. } = silent(21_000).action() else { panic!("not ended") };
    assert_eq!((node.name.as_str(), pod_uid.as_str()), ("c-00", "pod-c-00"));
    let early = silent(19_000).plan();
    assert_eq!((early.action, early.reason), (None, Reason::PrimaryUnreachable));
    let going = silent(21_000).with(|world| world.node("c-00").pod.as_mut().unwrap().deleting = true).plan();
    assert_eq!((going.action, going.reason), (None, Reason::PrimaryUnreachable), "once");
}

#[test]
fn given_a_silent_primary_without_copy_then_its_pod_is_never_ended() {
    for (shards, replicas) in [(1, 0), (1, 1), (3, 0)] {
        let world = world(shards, replicas).formed().with(|world| {
            silent_for(world, "c-00", Flag::Fail, 600_000);
            for node in world.nodes.values_mut().filter(|node| node.primary.is_some()) {
                node.offset = 1;
            }
        });
        assert_eq!(world.plan().action, None, "{shards}x{replicas}");
    }
}

#[test]
fn given_a_pod_that_does_not_run_then_it_is_not_ended_once_more() {
    let world = world(1, 1).formed().with(|world| {
        silent_for(world, "c-00", Flag::Pfail, 60_000);
        let waiting = Container::Waiting { reason: String::new(), message: String::new() };
        world.node("c-00").pod.as_mut().unwrap().container = waiting;
    });
    assert_eq!(world.plan().action, None);
}

#[test]
fn given_copies_of_different_histories_then_the_one_that_was_linked_last_counts_not_the_higher_offset() {
    let world = world(3, 2).formed().with(|world| {
        world.kill("c-00");
        let stale = world.node("c-01");
        (stale.offset, stale.link_down_seconds, stale.history) = (9_000, 300, "older".to_owned());
        world.node("c-02").offset = 500;
    });
    assert!(matches!(world.action(), Action::Failover { on, .. } if on.node.name == "c-02"));
}

#[test]
fn given_only_a_stale_copy_then_it_is_promoted_and_its_age_is_said() {
    let dead_since = |seconds: i64| {
        world(3, 1).formed().with(|world| {
            world.kill("c-02");
            let at = Some(Millis(world.now.0 - 5_000));
            world.node("c-02").pod.as_mut().unwrap().container = Container::Ended(Ending { at, ..ending() });
            world.node("c-03").link_down_seconds = seconds;
        })
    };
    let stale = dead_since(305).plan();
    assert!(matches!(stale.action, Some(Action::Failover { .. })));
    assert!(stale.message.contains("300 s older"), "{}", stale.message);
    assert!(stale.reason.is_trouble(), "told as a warning");
    assert!(!dead_since(6).plan().message.contains("older"));
}

/// The shard's old primary follows its successor, which is dead, and never came to copy from it.
fn only_older_data(replicas: u16) -> World {
    world(3, replicas).formed().with(|world| {
        world.kill("c-00");
        let old = world.node("c-01");
        (old.link_down_seconds, old.keys, old.offset) = (-1, 7, 40);
    })
}

#[test]
fn given_only_older_data_than_the_dead_primarys_then_it_is_promoted_and_the_loss_is_said() {
    let plan = only_older_data(1).plan();
    let Some(Action::Failover { kind, on, from }) = plan.action else { panic!("not promoted: {plan:?}") };
    assert_eq!((kind, on.node.name.as_str(), from), (FailoverKind::Force, "c-01", id(1)));
    assert!(
        plan.message.contains("the only data left") && plan.message.contains("is lost"),
        "{}",
        plan.message
    );
    assert!(plan.reason.is_trouble(), "told as a warning");
}

#[test]
fn given_a_whole_data_set_whose_place_in_the_stream_is_gone_then_it_is_promoted_too() {
    let world = only_older_data(1).with(|world| world.node("c-01").offset = 1);
    assert!(matches!(world.action(), Action::Failover { on, .. } if on.node.name == "c-01"));
}

#[test]
fn given_a_copy_of_what_was_written_before_the_first_replica_came_then_it_counts_by_its_keys() {
    let world = world(3, 1).formed().with(|world| {
        world.kill("c-00");
        (world.node("c-01").offset, world.node("c-01").keys) = (0, 1);
    });
    let plan = world.plan();
    assert!(matches!(plan.action, Some(Action::Failover { on, .. }) if on.node.name == "c-01"));
    assert!(!plan.message.contains("lost"), "{}", plan.message);
}

#[test]
fn given_a_newcomer_before_its_first_sync_then_it_is_reset_and_never_promoted() {
    let world =
        only_older_data(1).with(|world| (world.node("c-01").offset, world.node("c-01").keys) = (1, 0));
    assert!(matches!(world.action(), Action::Reset { on } if on.node.name == "c-01"));
}

#[test]
fn given_a_copy_beside_older_data_then_the_copy_is_promoted_whatever_the_offsets() {
    let world =
        only_older_data(2).with(|world| (world.node("c-02").offset, world.node("c-02").keys) = (5, 0));
    assert!(matches!(world.action(), Action::Failover { on, .. } if on.node.name == "c-02"));
}

#[test]
fn given_older_data_while_a_member_of_the_shard_is_silent_then_it_is_not_promoted() {
    let world = only_older_data(2).with(|world| {
        world.silence("c-02", None);
        world.node("c-02").primary = None;
    });
    let decision = world.plan();
    let by_record = decision.waits.iter().find(|wait| wait.reason == Reason::AwaitingFailover);
    assert!(by_record.is_some_and(|wait| wait.message.contains("c-02")), "{decision:?}");
    assert!(
        matches!(decision.action, Some(Action::CreateNodes { .. })),
        "a lost member is replaced meanwhile"
    );
}

#[test]
fn given_only_older_data_of_a_silent_primary_then_nothing_is_decided_by_it() {
    for flag in [Flag::Fail, Flag::Pfail] {
        let world = world(3, 1).formed().with(|world| {
            silent_for(world, "c-00", flag, 600_000);
            (world.node("c-01").link_down_seconds, world.node("c-01").keys) = (-1, 7);
        });
        let decision = world.plan();
        assert_eq!((decision.action, decision.reason), (None, Reason::PrimaryUnreachable));
    }
}

/// Slots have just moved from the first shard to the second, and some view has not heard of it; both primaries are dead.
fn both_ends_of_a_move_dead() -> World {
    world(4, 1).formed().with(|world| {
        let moved = SlotSet::from_ranges(SlotRange::new(0, 1023));
        let taker = world.node("c-02");
        (taker.epoch, taker.slots) = (20, taker.slots.union(&moved));
        world.kill("c-00");
        world.kill("c-02");
    })
}

#[test]
fn given_both_ends_of_a_move_dead_then_the_claim_of_the_giver_does_not_hold_up_who_succeeds_the_receiver() {
    let world = both_ends_of_a_move_dead();
    let Action::Failover { from, on, .. } = world.action() else { panic!("not succeeded") };
    assert_eq!((from, on.node.name.as_str()), (id(3), "c-03"));
}

#[test]
fn given_a_later_claim_of_another_then_the_dead_primary_is_not_succeeded_by_its_older_copy() {
    let world = both_ends_of_a_move_dead().with(|world| {
        world.node("c-02").slots = SlotSet::all();
        world.nodes.remove("c-03");
        world.everyone_forgets("c-03");
    });
    let decision = world.plan();
    assert!(!matches!(decision.action, Some(Action::Failover { from, .. }) if from == id(1)), "{decision:?}");
}

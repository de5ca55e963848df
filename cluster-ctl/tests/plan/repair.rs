//! Repair of a formed cluster.

use cluster_ctl::action::Action;
use cluster_ctl::model::Container;
use cluster_ctl::words::Reason;
use shared::api::Lifecycle;
use shared::valkey::commands::FailoverKind;

use crate::world::{Flag, id, pod, world};

#[test]
fn given_a_settled_cluster_then_nothing_is_done() {
    for (shards, replicas) in [(1, 0), (1, 1), (3, 0), (3, 2), (7, 1)] {
        let decision = world(shards, replicas).formed().plan();
        assert_eq!((decision.action, decision.reason), (None, Reason::Settled), "{shards}x{replicas}");
    }
}

#[test]
fn given_a_member_that_the_service_does_not_show_then_the_cluster_is_not_settled() {
    let mut world = world(3, 1).formed();
    let name = world.name(4);
    world.node(&name).pod.as_mut().unwrap().published = false;
    let decision = world.plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::Publishing));
    assert!(decision.message.contains(&name), "{}", decision.message);
}

#[test]
fn given_a_dead_primary_and_a_majority_then_its_replica_is_elected_at_once() {
    let world = world(3, 1).formed().with(|world| world.kill("c-02"));
    let Action::Failover { kind, on, from } = world.action() else { panic!("no failover") };
    assert_eq!((kind, on.node.name.as_str(), from), (FailoverKind::Force, "c-03", id(3)));
}

#[test]
fn given_a_dead_primary_and_no_possible_majority_then_its_replica_takes_over() {
    for shards in [1, 2] {
        let world = world(shards, 1).formed().with(|world| world.kill("c-00"));
        assert!(
            matches!(world.action(), Action::Failover { kind: FailoverKind::Takeover, .. }),
            "{shards} shards"
        );
    }
}

#[test]
fn given_a_member_that_learned_of_a_primary_after_its_death_then_its_replica_takes_over_all_the_same() {
    let world = world(2, 1).formed().with(|world| {
        world.kill("c-00");
        // Gossip says who failed, not what it owned.
        let newcomer = world.node("c-03");
        newcomer.knows.remove("c-00");
        newcomer.strangers.push(id(1));
    });
    assert!(matches!(world.action(), Action::Failover { on, .. } if on.node.name == "c-01"));
}

#[test]
fn given_several_replicas_then_the_one_with_most_data_is_promoted() {
    let world = world(3, 2).formed().with(|world| {
        world.kill("c-00");
        world.node("c-01").offset = 500;
        world.node("c-02").offset = 900;
    });
    assert!(matches!(world.action(), Action::Failover { on, .. } if on.node.name == "c-02"));
}

#[test]
fn given_a_replica_that_never_finished_its_first_sync_then_it_is_no_copy() {
    let world = world(3, 1).formed().with(|world| {
        world.kill("c-02");
        world.node("c-03").offset = 1;
    });
    assert!(!matches!(world.plan().action, Some(Action::Failover { .. })));
}

#[test]
fn given_a_silent_primary_that_is_not_proved_dead_then_the_engines_failover_is_awaited() {
    let decision = world(3, 1).formed().with(|world| world.silence("c-02", Some(Flag::Fail))).plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::AwaitingFailover));
    assert!(decision.message.starts_with("primary unhealthy but replicas exist"), "{}", decision.message);
}

#[test]
fn given_a_silent_primary_and_nobody_to_vote_then_it_is_held_for_a_person() {
    let decision = world(1, 1).formed().with(|world| world.silence("c-00", Some(Flag::Pfail))).plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::PrimaryUnreachable));
}

#[test]
fn given_another_replica_of_the_shard_that_is_unknown_then_no_promotion_is_forced() {
    let decision = world(3, 2)
        .formed()
        .with(|world| {
            world.kill("c-00");
            world.silence("c-02", None);
        })
        .plan();
    assert!(!matches!(decision.action, Some(Action::Failover { .. })), "{decision:?}");
}

#[test]
fn given_a_dead_replica_then_it_is_forgotten_on_every_live_node() {
    let world = world(3, 1).formed().with(|world| world.kill("c-03"));
    let Action::Forget { id: forgotten, on } = world.action() else { panic!("not forgotten") };
    assert_eq!((forgotten, on.len()), (id(4), 5));
}

#[test]
fn given_a_silent_replica_that_only_some_suspect_then_it_is_not_forgotten() {
    let decision = world(3, 1).formed().with(|world| world.silence("c-03", Some(Flag::Pfail))).plan();
    assert_eq!(decision.action, None);
}

#[test]
fn given_a_replica_that_is_not_heard_then_it_is_told_after_a_moment_and_what_ends_the_wait() {
    let silent = world(3, 1).formed().with(|world| world.silence("c-03", None));
    assert_eq!(silent.plan().reason, Reason::Settled, "one lost reply is not told");
    let long = silent.clone().with(|world| world.node("c-03").silent_millis = 10_000).plan();
    assert_eq!((long.action.as_ref(), long.reason), (None, Reason::ReplicaMissing), "{long:?}");
    assert!(
        long.message.starts_with("c-03 does not answer") && long.message.contains("confirmed-dead"),
        "{long:?}"
    );
    let vanished = silent.with(|world| {
        let node = world.node("c-03");
        (node.pod, node.pod_vanished) = (None, true);
    });
    let vanished = vanished.plan();
    assert_eq!((vanished.action.as_ref(), vanished.reason), (None, Reason::ReplicaMissing), "{vanished:?}");
    assert!(vanished.message.starts_with("c-03 lost its Pod"), "{vanished:?}");
}

#[test]
fn given_a_dead_member_that_nobody_lists_then_its_object_goes_and_a_replica_is_made() {
    let mut world = world(3, 1).formed().with(|world| world.kill("c-03"));
    world.everyone_forgets("c-03");
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-03"));
    world.nodes.remove("c-03");
    let Action::CreateNodes { nodes, .. } = world.action() else { panic!("not replaced") };
    assert_eq!((nodes.len(), nodes[0].spec.shard_index), (1, 1));
}

#[test]
fn given_a_replacement_then_it_is_introduced_attached_and_activated_step_by_step() {
    let mut world = world(3, 1).formed().with(|world| {
        world.nodes.remove("c-03");
        world.everyone_forgets("c-03");
        world.add(8, 1);
    });
    assert_eq!(world.plan().reason, Reason::PodsStarting);
    world.start("c-08", 8);
    assert!(matches!(world.action(), Action::Meet { others, .. } if others[0].node.name == "c-08"));
    let names: Vec<String> = world.nodes.keys().cloned().collect();
    for name in &names {
        let others = names.iter().filter(|other| *other != name).cloned().collect();
        world.node(name).knows = others;
    }
    assert!(matches!(world.action(), Action::Replicate { links } if links[0].1 == id(3)));
    let node = world.node("c-08");
    (node.primary, node.link_up, node.offset) = (Some("c-02".to_owned()), false, 100);
    assert_eq!(world.plan().reason, Reason::ReplicasSyncing);
    world.node("c-08").link_up = true;
    assert!(matches!(world.action(), Action::Activate { nodes, .. } if nodes[0].name == "c-08"));
    world.node("c-08").spec.lifecycle = Lifecycle::Active;
    assert_eq!(world.plan().reason, Reason::Publishing);
    world.all_published();
    assert_eq!(world.plan().reason, Reason::Settled);
}

#[test]
fn given_a_shard_that_is_lost_then_a_fresh_primary_is_made_for_it() {
    let world = world(3, 0).formed().with(|world| world.kill("c-01"));
    let decision = world.plan();
    assert_eq!(decision.reason, Reason::ShardLost);
    assert!(
        matches!(decision.action, Some(Action::CreateNodes { nodes, .. }) if nodes[0].spec.shard_index == 1)
    );
}

#[test]
fn given_a_silent_primary_without_copy_then_its_slots_are_given_to_nobody() {
    let decision = world(3, 0).formed().with(|world| world.silence("c-01", Some(Flag::Fail))).plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::PrimaryUnreachable));
    assert!(decision.message.contains("c-01"), "{}", decision.message);
}

#[test]
fn given_a_container_that_kubernetes_lost_sight_of_then_that_proves_no_death() {
    let decision = world(3, 1)
        .formed()
        .with(|world| {
            world.kill("c-02");
            let Container::Ended(ending) = &mut world.node("c-02").pod.as_mut().unwrap().container else {
                return;
            };
            ending.reason = "ContainerStatusUnknown".to_owned();
        })
        .plan();
    assert_eq!(decision.action, None);
}

#[test]
fn given_a_pod_on_a_new_address_then_identity_is_still_the_node_id() {
    let world = world(3, 1).formed().with(|world| {
        world.node("c-02").pod = Some(pod("c-02", 77));
        world.all_published();
    });
    assert_eq!(world.plan().reason, Reason::Settled);
}

/// The Pod of the primary `c-02` was told to stop, and its server still answers.
fn evicted(shards: u16) -> crate::world::World {
    world(shards, 1).formed().with(|world| {
        world.all_published();
        world.node("c-02").pod.as_mut().unwrap().deleting = true;
    })
}

#[test]
fn given_a_pod_of_a_replica_that_is_being_deleted_then_planned_work_waits() {
    let decision = world(3, 1)
        .formed()
        .with(|world| {
            world.all_published();
            world.node("c-03").pod.as_mut().unwrap().deleting = true;
            world.want.shape.shards = 4;
        })
        .plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::PodTerminating));
}

#[test]
fn given_an_evicted_primary_that_still_answers_then_it_hands_over_in_shapes_without_a_majority_too() {
    for shards in [2, 3] {
        let action = evicted(shards).action();
        let Action::Failover { kind, on, from } = action else { panic!("{action:?}") };
        assert_eq!((kind, on.node.name.as_str(), from), (FailoverKind::Planned, "c-03", id(3)));
    }
}

#[test]
fn given_an_evicted_primary_whose_replica_goes_too_or_is_not_in_sync_then_nobody_takes_over() {
    let both = evicted(3).with(|world| world.node("c-03").pod.as_mut().unwrap().deleting = true).plan();
    assert_eq!((both.action, both.reason), (None, Reason::PodTerminating));
    let behind = evicted(3).with(|world| world.node("c-03").link_up = false).plan();
    assert_eq!((behind.action, behind.reason), (None, Reason::PodTerminating));
}

#[test]
fn given_an_evicted_primary_that_is_silent_then_it_is_left_to_its_end() {
    assert_eq!(evicted(3).with(|world| world.silence("c-02", None)).plan().action, None);
}

#[test]
fn given_a_pod_whose_deletion_is_stuck_then_its_primary_is_evacuated_by_a_successor_and_a_hand_over() {
    let mut world = world(3, 1).formed().with(|world| {
        world.all_published();
        let pod = world.node("c-02").pod.as_mut().unwrap();
        (pod.deleting, pod.overdue) = (true, true);
    });
    assert!(matches!(world.action(), Action::CreateNodes { nodes, .. } if nodes[0].spec.shard_index == 1));
    let name = world.add(8, 1).name.clone();
    world.start(&name, 8);
    let node = world.node(&name);
    node.spec.lifecycle = Lifecycle::Active;
    (node.primary, node.offset, node.state_ok) = (Some("c-02".to_owned()), 100, true);
    world.all_know_all();
    world.all_published();
    assert!(
        matches!(world.action(), Action::Failover { kind: FailoverKind::Planned, from, .. } if from == id(3))
    );
}

#[test]
fn given_a_replica_whose_deletion_is_stuck_then_it_leaves_as_soon_as_its_one_successor_is_in_sync() {
    let mut world = world(3, 1).formed().with(|world| {
        let pod = world.node("c-03").pod.as_mut().unwrap();
        (pod.deleting, pod.overdue) = (true, true);
    });
    assert!(matches!(world.action(), Action::CreateNodes { nodes, .. } if nodes[0].spec.shard_index == 1));
    let name = world.add(8, 1).name.clone();
    assert_eq!(world.plan().action, None, "one successor is enough");
    world.start(&name, 8);
    let node = world.node(&name);
    node.spec.lifecycle = Lifecycle::Active;
    (node.primary, node.offset, node.state_ok) = (Some("c-02".to_owned()), 100, true);
    world.all_know_all();
    world.all_published();
    assert!(matches!(world.action(), Action::MarkLeaving { node } if node.name == "c-03"));
}

#[test]
fn given_a_silent_primary_that_a_person_confirmed_dead_then_its_shard_is_released() {
    let confirmed = |world: &mut crate::world::World| {
        world.silence("c-01", Some(Flag::Fail));
        world.node("c-01").confirmed_dead = true;
    };
    assert_eq!(world(3, 0).formed().with(confirmed).plan().reason, Reason::ShardLost);
    let answering = world(3, 0).formed().with(|world| world.node("c-01").confirmed_dead = true).plan();
    assert_eq!((answering.action, answering.reason), (None, Reason::Settled), "what answers is not dead");
}

#[test]
fn given_a_retired_node_whose_pod_still_goes_then_the_cluster_is_not_settled_yet() {
    let decision = world(3, 1)
        .formed()
        .with(|world| {
            world.everyone_forgets("c-05");
            let node = world.node("c-05");
            node.deleting = true;
            node.voice = crate::world::Voice::Silent;
            world.want.shape.replicas = 1;
            let name = world.add(9, 2).name.clone();
            world.start(&name, 9);
            let node = world.node(&name);
            node.spec.lifecycle = Lifecycle::Active;
            (node.primary, node.offset, node.state_ok) = (Some("c-04".to_owned()), 100, true);
            world.all_know_all();
            world.everyone_forgets("c-05");
        })
        .plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::Retiring));
}

#[test]
fn given_a_pod_that_is_not_on_record_then_no_command_goes_to_its_node() {
    let decision = world(3, 0).answering().with(|world| world.node("c-01").unrecorded_pod = true).plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::NodesStarting));
}

#[test]
fn given_a_pod_that_went_before_it_started_then_its_node_is_replaced() {
    let world = world(1, 0).created().with(|world| world.node("c-00").pod_vanished = true);
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-00"));
}

#[test]
fn given_an_id_of_nobody_that_one_view_still_lists_as_failed_then_it_is_forgotten_there() {
    let ghost = |world: &mut crate::world::World| world.ghosts = vec![("c-00".to_owned(), id(99))];
    let Action::Forget { id: forgotten, on } = world(2, 0).formed().with(ghost).action() else {
        panic!("kept")
    };
    assert_eq!((forgotten, on.len(), on[0].node.name.as_str()), (id(99), 1, "c-01"));
}

#[test]
fn given_a_lost_owner_whose_replicas_never_synced_then_they_are_reset_and_the_shard_is_made_anew() {
    let mut world = world(3, 1).formed().with(|world| {
        world.kill("c-02");
        world.node("c-03").offset = 1;
    });
    assert!(matches!(world.action(), Action::Reset { on } if on.node.name == "c-03"));
    let node = world.node("c-03");
    (node.recorded_id, node.id, node.primary) = (Some(id(4)), id(88), None);
    node.knows.clear();
    world.ghosts = vec![("c-03".to_owned(), id(4))];
    assert!(matches!(world.action(), Action::Forget { id: forgotten, .. } if forgotten == id(4)));
}

#[test]
fn given_a_leaving_member_that_gossip_brought_back_under_its_new_id_then_it_is_reset_again() {
    let world = world(3, 1).formed().with(|world| {
        let node = world.node("c-03");
        (node.recorded_id, node.id, node.primary) = (Some(id(4)), id(88), None);
        node.spec.lifecycle = Lifecycle::Leaving;
        world.want.shape.replicas = 0;
    });
    assert!(matches!(world.action(), Action::Reset { on } if on.node.name == "c-03" && on.id == id(88)));
}

#[test]
fn given_a_syncing_joiner_whose_only_lister_is_silent_then_it_is_not_deleted_for_its_keys() {
    let decision = world(1, 1)
        .formed()
        .with(|world| {
            let node = world.node("c-01");
            (node.spec.lifecycle, node.keys, node.link_up) = (Lifecycle::Joining, 5, false);
            world.silence("c-00", None);
        })
        .plan();
    assert_eq!(decision.action, None, "{decision:?}");
}

#[test]
fn given_slots_that_no_view_assigns_then_the_cluster_is_not_called_settled() {
    let decision = world(2, 0)
        .formed()
        .with(|world| world.node("c-01").slots = shared::slots::SlotSet::new())
        .with(|world| world.want.shape.shards = 2)
        .plan();
    assert_eq!(decision.reason, Reason::ShardLost);
}

/// A replica that hangs: it answers nobody, and everybody has forgotten it.
fn hung(millis: i64) -> crate::world::World {
    world(3, 1).formed().with(|world| {
        world.silence("c-03", None);
        world.everyone_forgets("c-03");
        world.node("c-03").silent_millis = millis;
    })
}

#[test]
fn given_a_hung_replica_that_all_have_forgotten_then_its_pod_is_ended_after_the_patience() {
    let early = hung(29_000).plan();
    assert_eq!((early.action, early.reason), (None, Reason::ReplacingNode));
    let Action::EndPod { node, pod_uid, .. } = hung(31_000).action() else { panic!("not ended") };
    assert_eq!((node.name.as_str(), pod_uid.as_str()), ("c-03", "pod-c-03"));
    let going = hung(31_000).with(|world| world.node("c-03").pod.as_mut().unwrap().deleting = true);
    assert!(matches!(going.action(), Action::CreateNodes { nodes, .. } if nodes[0].spec.shard_index == 1));
}

#[test]
fn given_a_hung_member_that_somebody_lists_or_whose_slots_nobody_took_over_then_its_pod_is_not_ended() {
    let listed = hung(600_000).with(|world| {
        world.node("c-00").knows.insert("c-03".to_owned());
    });
    let owner = hung(600_000).with(|world| {
        world.node("c-03").recorded_slots = 1;
        world.node("c-04").slots = shared::slots::SlotSet::new();
    });
    for world in [listed, owner] {
        assert!(!matches!(world.plan().action, Some(Action::EndPod { .. })), "{:?}", world.plan());
    }
}

#[test]
fn given_a_hung_member_whose_slots_were_taken_over_then_its_pod_is_ended() {
    let world = hung(31_000).with(|world| world.node("c-03").recorded_slots = 1);
    assert!(matches!(world.action(), Action::EndPod { .. }));
}

/// One that gave its slots away and leaves, and still holds keys of them, for so long.
fn leaving_with_keys(millis: i64) -> crate::world::World {
    world(3, 0).formed().with(|world| {
        let slots = std::mem::take(&mut world.node("c-02").slots);
        let taken = world.node("c-00").slots.union(&slots);
        world.node("c-00").slots = taken;
        let node = world.node("c-02");
        (node.spec.lifecycle, node.keys, node.keys_kept_millis) = (Lifecycle::Leaving, 9, millis);
        world.want.shape.shards = 2;
    })
}

#[test]
fn given_a_leaving_primary_that_keeps_keys_of_what_others_own_then_its_pod_is_ended_after_the_patience() {
    let early = leaving_with_keys(29_000).plan();
    assert_eq!((early.action, early.reason), (None, Reason::Retiring), "a reset would be refused");
    assert!(early.message.contains("9 keys"), "{}", early.message);
    let Action::EndPod { node, pod_uid, .. } = leaving_with_keys(31_000).action() else {
        panic!("not ended")
    };
    assert_eq!((node.name.as_str(), pod_uid.as_str()), ("c-02", "pod-c-02"));
    let going = leaving_with_keys(31_000)
        .with(|world| world.node("c-02").pod.as_mut().unwrap().deleting = true)
        .plan();
    assert_eq!((going.action, going.reason), (None, Reason::PodTerminating), "once");
    let ended = leaving_with_keys(31_000).with(|world| world.kill("c-02"));
    assert!(matches!(ended.action(), Action::Forget { id: forgotten, .. } if forgotten == id(3)));
    let empty = leaving_with_keys(31_000).with(|world| world.node("c-02").keys = 0);
    assert!(matches!(empty.action(), Action::Reset { on } if on.node.name == "c-02"));
}

#[test]
fn given_a_slot_whose_owner_does_not_answer_then_a_leaving_primary_with_keys_is_not_ended() {
    let world = leaving_with_keys(600_000).with(|world| world.silence("c-01", None));
    let decision = world.plan();
    assert!(!matches!(decision.action, Some(Action::EndPod { .. } | Action::Reset { .. })), "{decision:?}");
}

#[test]
fn given_a_leaving_replica_whose_primary_did_not_answer_in_this_tick_then_it_is_not_reset() {
    let mut world = world(3, 1).formed().with(|world| {
        world.want.shape.replicas = 0;
        world.node("c-01").spec.lifecycle = Lifecycle::Leaving;
        world.silence("c-00", None);
    });
    let decision = world.plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::Retiring), "it may be the only copy soon");
    world.node("c-00").voice = crate::world::Voice::Answers;
    assert!(matches!(world.action(), Action::Reset { on } if on.node.name == "c-01"));
}

#[test]
fn given_a_late_view_that_shows_a_replica_of_a_leaving_member_then_it_leaves_when_that_is_over() {
    let world = world(3, 2).formed().with(|world| {
        world.want.shape.replicas = 1;
        world.node("c-01").spec.lifecycle = Lifecycle::Leaving;
    });
    let mut members: Vec<_> = world.members().collect();
    let late = members.iter_mut().find(|member| member.name == "c-03").unwrap();
    let cluster_ctl::model::Answer::Said(report) = &mut late.answer else { panic!("silent") };
    let mut lines: Vec<_> = report.nodes.iter().cloned().collect();
    lines.iter_mut().find(|line| line.id == id(3)).unwrap().primary = Some(id(2));
    report.nodes = lines.into();
    let seen = world.seen(members.into_iter());
    let decision = cluster_ctl::plan::plan(&seen, &world.want);
    assert_eq!((decision.action, decision.reason), (None, Reason::Retiring), "the gate would refuse");
    assert!(matches!(world.action(), Action::Reset { on } if on.node.name == "c-01"));
}

#[test]
fn given_a_replica_that_was_away_when_its_drained_primary_was_reset_then_it_is_reset_too() {
    let world = world(2, 1).formed().with(|world| {
        world.want.shape.shards = 1;
        world.node("c-00").slots = shared::slots::SlotSet::all();
        world.node("c-02").slots = shared::slots::SlotSet::new();
        let reset = world.node("c-02");
        (reset.spec.lifecycle, reset.id) = (Lifecycle::Leaving, id(88));
        reset.knows.clear();
        world.everyone_forgets("c-02");
    });
    // It still follows the ID that nobody answers under any more.
    let mut members: Vec<_> = world.members().collect();
    let away = members.iter_mut().find(|member| member.name == "c-03").unwrap();
    let cluster_ctl::model::Answer::Said(report) = &mut away.answer else { panic!("silent") };
    let mut lines: Vec<_> = report.nodes.iter().cloned().collect();
    lines.iter_mut().find(|line| line.id == id(4)).unwrap().primary = Some(id(3));
    lines.push(crate::world::line(id(3), shared::valkey::types::NodeFlags::default()));
    report.nodes = lines.into();
    let seen = world.seen(members.into_iter());
    let decision = cluster_ctl::plan::plan(&seen, &world.want);
    let Some(action) = decision.action else { panic!("{decision:?}") };
    assert!(matches!(&action, Action::Reset { on } if on.node.name == "c-03"), "{action:?}");
    assert_eq!(cluster_ctl::plan::safety::check(&action, &seen), Ok(()));
}

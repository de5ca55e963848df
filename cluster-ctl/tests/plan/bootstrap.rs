//! Bootstrap, from nothing to Active.

use std::collections::BTreeSet;

use cluster_ctl::action::{Action, Pace};
use cluster_ctl::model::{Container, Ownership, Shape};
use cluster_ctl::words::Reason;
use shared::slots::{SlotRange, SlotSet};
use shared::valkey::types::Epoch;

use crate::world::{Voice, ending, id, pod, world};

fn waiting(container_reason: &str) -> Container {
    Container::Waiting { reason: container_reason.to_owned(), message: "words of the kubelet".to_owned() }
}

#[test]
fn given_a_new_cluster_then_its_size_is_recorded_first() {
    assert_eq!(world(3, 1).action(), Action::TakeSnapshot { shape: Shape { shards: 3, replicas: 1 } });
}

#[test]
fn given_objects_that_are_still_being_made_then_no_node_is_created() {
    let world = world(3, 1).snapshot().with(|world| world.objects.auth = Ownership::Missing);
    let decision = world.plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::PreparingObjects));
}

#[test]
fn given_a_cluster_without_our_finalizer_then_no_node_is_created() {
    let decision = world(1, 0).snapshot().with(|world| world.cluster.finalizer = false).plan();
    assert_eq!(decision.action, None);
}

#[test]
fn given_somebody_elses_secret_then_nothing_is_done_and_the_message_names_it() {
    let decision = world(3, 1)
        .with(|world| world.objects.auth = Ownership::Foreign("a Secret named \"x\"".to_owned()))
        .plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::ObjectNotOwned));
    assert!(decision.message.contains("a Secret named \"x\""), "{}", decision.message);
}

#[test]
fn given_an_unresolved_config_then_no_node_is_created_and_the_exact_words_are_shown() {
    let words = "ValkeyConfig \"small\" not found";
    let decision = world(3, 1).snapshot().with(|world| world.want.template = Err(words.to_owned())).plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::ReferencesUnresolved));
    assert_eq!(decision.message, words);
}

#[test]
fn given_an_invalid_tls_secret_then_nothing_is_done() {
    let decision = world(3, 1).with(|world| world.want.tls = Err("no".to_owned())).plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::TlsInvalid));
}

#[test]
fn given_no_node_then_all_are_created_in_one_step_spread_evenly_over_the_shards() {
    let Action::CreateNodes { nodes, known } = world(3, 2).snapshot().action() else { panic!("not created") };
    let shards: Vec<i32> = nodes.iter().map(|node| node.spec.shard_index).collect();
    assert_eq!(shards, [0, 0, 0, 1, 1, 1, 2, 2, 2]);
    assert_eq!(nodes.iter().map(|node| &node.name).collect::<BTreeSet<_>>().len(), 9, "names differ");
    assert!(known.is_empty());
}

#[test]
fn given_a_crash_after_some_creates_then_only_the_missing_nodes_are_created() {
    let mut world = world(3, 1).created();
    world.nodes.remove("c-03");
    let Action::CreateNodes { nodes, known } = world.action() else { panic!("not created") };
    assert_eq!(nodes.iter().map(|node| node.spec.shard_index).collect::<Vec<_>>(), [1]);
    assert_eq!(known.len(), 5, "the live set must be exactly the five that were seen");
}

#[test]
fn given_nodes_without_pods_then_it_waits_for_them() {
    let decision = world(3, 1).created().plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::PodsStarting));
}

#[test]
fn given_a_pod_that_cannot_be_scheduled_then_the_schedulers_words_are_shown() {
    let decision = world(1, 1)
        .answering()
        .with(|world| {
            let mut pod = pod("c-01", 1);
            (pod.ip, pod.container) = (None, waiting(""));
            pod.unschedulable = Some("0/3 nodes are available".to_owned());
            let node = world.node("c-01");
            (node.pod, node.recorded_id, node.voice) = (Some(pod), None, Voice::Silent);
        })
        .plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::PodUnschedulable));
    assert!(
        decision.message.starts_with("bootstrap blocked: pod cannot be scheduled"),
        "{}",
        decision.message
    );
    assert!(decision.message.contains("0/3 nodes are available"), "{}", decision.message);
}

#[test]
fn given_a_pod_that_takes_very_long_to_start_then_a_person_is_told_where_to_look_and_the_node_is_kept() {
    let world = world(1, 1).answering().with(|world| {
        let node = world.node("c-01");
        node.pod.as_mut().unwrap().container = waiting("ContainerCreating");
        (node.recorded_id, node.voice) = (None, Voice::Silent);
    });
    assert_eq!(world.plan().reason, Reason::PodsStarting);
    let late = world.with(|world| world.now.0 += 120_000).plan();
    assert_eq!((late.action.as_ref(), late.reason), (None, Reason::PodNotStarting), "{late:?}");
    assert!(late.message.contains("kubectl describe pod c-01"), "{}", late.message);
}

#[test]
fn given_an_image_that_cannot_be_pulled_then_the_node_is_kept_and_the_kubelets_words_are_shown() {
    let decision = world(1, 1)
        .answering()
        .with(|world| {
            let node = world.node("c-01");
            node.pod.as_mut().unwrap().container = waiting("ErrImagePull");
            (node.recorded_id, node.voice) = (None, Voice::Silent);
        })
        .plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::PodNotStarting));
    assert!(decision.message.contains("ErrImagePull: words of the kubelet"), "{}", decision.message);
}

#[test]
fn given_a_failed_start_with_an_outdated_spec_then_it_is_replaced_at_once() {
    let world = world(1, 1).answering().with(|world| {
        let node = world.node("c-01");
        node.spec.image = "valkey:wrong".to_owned();
        node.pod.as_mut().unwrap().container = waiting("ErrImagePull");
        (node.recorded_id, node.voice) = (None, Voice::Silent);
    });
    let Action::DeleteNodes { nodes, cluster_deleted: false } = world.action() else { panic!("not deleted") };
    assert_eq!(nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["c-01"]);
}

#[test]
fn given_a_failed_start_with_a_current_spec_then_the_next_attempt_comes_after_its_pause() {
    let crashed = world(1, 1).answering().with(|world| {
        world.kill("c-01");
        world.node("c-01").recorded_id = None;
    });
    let early = crashed.clone().with(|world| world.now.0 += 29_000).plan();
    assert_eq!((early.action.as_ref(), early.reason), (None, Reason::PodNotStarting));
    assert!(early.message.contains("exit code 137"), "{}", early.message);
    let Action::CreateNodes { nodes, .. } = crashed.with(|world| world.now.0 += 30_000).action() else {
        panic!("no retry")
    };
    assert_eq!((nodes.len(), nodes[0].start_attempt, nodes[0].spec.shard_index), (1, 1, 0));
}

#[test]
fn given_a_further_attempt_then_the_older_failed_one_is_removed() {
    let world = world(1, 1).answering().with(|world| {
        world.kill("c-01");
        world.node("c-01").recorded_id = None;
        world.add(7, 0).start_attempt = 1;
    });
    let Action::DeleteNodes { nodes, .. } = world.action() else { panic!("not deleted") };
    assert_eq!(nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["c-01"]);
}

#[test]
fn given_a_node_that_answered_and_died_then_it_is_replaced_at_once() {
    let world = world(3, 1).answering().with(|world| world.kill("c-02"));
    let Action::DeleteNodes { nodes, .. } = world.action() else { panic!("not deleted") };
    assert_eq!(nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["c-02"]);
}

#[test]
fn given_a_silent_server_in_a_running_pod_then_it_waits_and_deletes_nothing() {
    let decision = world(3, 1).answering().with(|world| world.silence("c-02", None)).plan();
    assert_eq!((decision.action, decision.reason, decision.pace), (None, Reason::NodesStarting, Pace::Quick));
}

#[test]
fn given_a_node_that_refuses_our_password_then_that_is_told_apart_from_silence() {
    let decision =
        world(3, 1).answering().with(|world| world.node("c-02").voice = Voice::AuthRejected).plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::AuthRejected));
}

#[test]
fn given_a_fresh_node_that_holds_keys_then_it_is_replaced_not_merged() {
    let world = world(3, 1).answering().with(|world| world.node("c-02").keys = 5);
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-02"));
}

#[test]
fn given_a_replica_whose_primary_lost_its_pod_before_all_were_active_then_the_copy_is_kept() {
    let world = world(1, 1).formed().with(|world| {
        for name in ["c-00", "c-01"] {
            world.node(name).spec.lifecycle = shared::api::Lifecycle::Joining;
        }
        world.node("c-01").keys = 5;
        let primary = world.node("c-00");
        primary.voice = Voice::Silent;
        primary.pod_vanished = true;
    });
    let decision = world.snapshot().plan();
    assert_eq!(decision.action, None, "{decision:?}");
}

#[test]
fn given_a_fresh_node_that_knows_a_stranger_then_it_is_replaced_not_merged() {
    let world = world(3, 1).answering().with(|world| world.node("c-02").strangers = vec![id(99)]);
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-02"));
}

#[test]
fn given_a_smaller_size_before_the_first_slot_then_the_snapshot_is_taken_again_and_the_rest_goes() {
    let smaller = world(3, 1).answering().with(|world| world.want.shape = Shape { shards: 2, replicas: 1 });
    assert_eq!(smaller.action(), Action::TakeSnapshot { shape: Shape { shards: 2, replicas: 1 } });
    let Action::DeleteNodes { nodes, .. } = smaller.snapshot().action() else { panic!("not deleted") };
    assert_eq!(nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["c-04", "c-05"]);
}

#[test]
fn given_a_new_size_after_the_first_slot_then_the_snapshot_stays() {
    let world = world(3, 1).with_slots().with(|world| world.want.shape = Shape { shards: 5, replicas: 1 });
    assert!(!matches!(world.action(), Action::TakeSnapshot { .. } | Action::CreateNodes { .. }));
}

#[test]
fn given_every_node_alone_and_empty_then_each_gets_an_epoch_of_its_own() {
    let Action::SetConfigEpochs { epochs } = world(3, 1).answering().action() else { panic!("no epochs") };
    assert_eq!(epochs.iter().map(|(_, epoch)| epoch.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn given_some_epochs_set_before_a_crash_then_the_rest_gets_free_ones() {
    let world = world(3, 0).answering().with(|world| world.node("c-01").epoch = 2);
    let Action::SetConfigEpochs { epochs } = world.action() else { panic!("no epochs") };
    let given: Vec<(&str, Epoch)> =
        epochs.iter().map(|(target, epoch)| (target.node.name.as_str(), *epoch)).collect();
    assert_eq!(given, [("c-00", Epoch(1)), ("c-02", Epoch(3))]);
}

#[test]
fn given_epochs_then_all_slots_are_assigned_each_once_before_anybody_meets() {
    let Action::AssignSlots { slots } = world(3, 1).with_epochs().action() else { panic!("no slots") };
    let given: Vec<(&str, String)> =
        slots.iter().map(|(target, set)| (target.node.name.as_str(), set.to_string())).collect();
    assert_eq!(
        given,
        [
            ("c-00", "0-5461".to_owned()),
            ("c-02", "5462-10922".to_owned()),
            ("c-04", "10923-16383".to_owned())
        ]
    );
}

#[test]
fn given_machines_that_hold_several_nodes_then_primaries_go_to_different_machines() {
    let world = world(3, 1).with_epochs().with(|world| {
        for (name, machine) in
            [("c-00", "a"), ("c-01", "b"), ("c-02", "a"), ("c-03", "b"), ("c-04", "a"), ("c-05", "c")]
        {
            world.node(name).pod.as_mut().unwrap().machine = Some(machine.to_owned());
        }
    });
    let Action::AssignSlots { slots } = world.action() else { panic!("no slots") };
    assert_eq!(
        slots.iter().map(|(target, _)| target.node.name.as_str()).collect::<Vec<_>>(),
        ["c-00", "c-03", "c-05"]
    );
}

#[test]
fn given_slots_that_a_view_shows_as_owned_then_they_are_not_assigned_again() {
    let decision = world(3, 0)
        .with_slots()
        .with(|world| {
            world.node("c-00").slots = SlotSet::new();
            world.node("c-01").slots.insert_range(SlotRange { start: 7, end: 7 });
        })
        .plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::SlotConflict));
}

#[test]
fn given_slots_on_every_primary_then_all_others_meet_one_seed() {
    let Action::Meet { seed, others } = world(3, 1).with_slots().action() else { panic!("no meet") };
    assert_eq!(seed.node.name, "c-00");
    assert_eq!(
        others.iter().map(|other| other.node.name.as_str()).collect::<Vec<_>>(),
        ["c-01", "c-02", "c-03", "c-04", "c-05"]
    );
}

#[test]
fn given_introductions_under_way_then_it_waits_and_introduces_nobody_again() {
    let decision = world(3, 1).with_slots().with(|world| world.node("c-00").handshake = true).plan();
    assert_eq!((decision.action, decision.reason, decision.pace), (None, Reason::NodesMeeting, Pace::Quick));
}

#[test]
fn given_a_half_done_introduction_then_whoever_knows_most_goes_on() {
    let world = world(3, 0).with_slots().with(|world| {
        world.node("c-01").knows.insert("c-02".to_owned());
        world.node("c-02").knows.insert("c-01".to_owned());
    });
    let Action::Meet { seed, others } = world.action() else { panic!("no meet") };
    assert_eq!((seed.node.name.as_str(), others.len(), others[0].node.name.as_str()), ("c-01", 1, "c-00"));
}

#[test]
fn given_a_seed_that_knows_all_then_whoever_lacks_acquaintances_makes_them_itself() {
    let world = world(3, 0).with_slots().with(|world| {
        world.node("c-00").knows = ["c-01", "c-02"].map(String::from).into();
        world.node("c-01").knows = ["c-00"].map(String::from).into();
        world.node("c-02").knows = ["c-00"].map(String::from).into();
    });
    let Action::Meet { seed, others } = world.action() else { panic!("no meet") };
    assert_eq!((seed.node.name.as_str(), others.len(), others[0].node.name.as_str()), ("c-01", 1, "c-02"));
}

#[test]
fn given_all_know_all_then_every_replica_is_attached_to_the_slot_owner_of_its_shard() {
    let Action::Replicate { links } = world(3, 1).met().action() else { panic!("no replicas") };
    let links: Vec<(&str, _)> =
        links.iter().map(|(target, primary)| (target.node.name.as_str(), *primary)).collect();
    assert_eq!(links, [("c-01", id(1)), ("c-03", id(3)), ("c-05", id(5))]);
}

#[test]
fn given_a_replica_that_still_copies_then_it_waits() {
    let decision = world(3, 1).whole().with(|world| world.node("c-03").link_up = false).plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::ReplicasSyncing));
}

#[test]
fn given_slots_that_the_others_do_not_see_yet_then_their_owner_greets_once_more() {
    let mut world = world(3, 1).replicating().with(|world| world.node("c-02").slots_unseen = true);
    let Action::Meet { seed, others } = world.action() else { panic!("not announced") };
    assert_eq!((seed.node.name.as_str(), others.len()), ("c-02", 5));
    world.node("c-02").handshake = true;
    assert_eq!(world.plan().action, None, "the greeting is under way");
}

#[test]
fn given_a_node_that_is_not_ok_yet_then_it_waits() {
    let decision = world(3, 1).whole().with(|world| world.node("c-03").state_ok = false).plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::ClusterForming));
}

#[test]
fn given_everything_in_place_then_all_nodes_become_active_in_one_step() {
    let Action::Activate { nodes, forms_cluster: true, .. } = world(3, 1).whole().action() else {
        panic!("not active")
    };
    assert_eq!(nodes.len(), 6);
}

#[test]
fn given_one_shard_without_replicas_then_no_introduction_is_needed() {
    assert!(matches!(
        world(1, 0).with_slots().with(|world| world.node("c-00").state_ok = true).action(),
        Action::Activate { .. }
    ));
}

#[test]
fn given_a_member_that_dies_after_the_introduction_then_it_is_forgotten_before_it_is_replaced() {
    let dead = world(3, 1).met().with(|world| world.kill("c-03"));
    let Action::Forget { id: forgotten, on } = dead.action() else { panic!("not forgotten") };
    assert_eq!((forgotten, on.len()), (id(4), 5));
    let mut forgotten_by_all = dead;
    forgotten_by_all.everyone_forgets("c-03");
    assert!(
        matches!(forgotten_by_all.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-03")
    );
}

#[test]
fn given_a_newcomer_beside_members_then_its_epoch_is_above_all_in_use() {
    let world = world(3, 1).met().with(|world| {
        let node = world.node("c-03");
        (node.epoch, node.knows) = (0, BTreeSet::new());
        for node in world.nodes.values_mut() {
            node.knows.remove("c-03");
        }
    });
    let Action::SetConfigEpochs { epochs } = world.action() else { panic!("no epoch") };
    assert_eq!(epochs.iter().map(|(_, epoch)| epoch.0).collect::<Vec<_>>(), [7]);
}

#[test]
fn given_a_recorded_end_then_the_node_counts_as_dead_even_when_its_pod_is_gone() {
    let world = world(3, 1).answering().with(|world| {
        let node = world.node("c-02");
        node.recorded_end = Some(ending());
        node.voice = Voice::Silent;
    });
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-02"));
}

#[test]
fn given_an_acl_that_does_not_resolve_then_its_exact_words_are_shown_and_nothing_is_made() {
    let words = "ValkeyRole \"reader\" not found (referenced by user \"app\")";
    let decision = world(3, 1)
        .snapshot()
        .with(|world| {
            world.want.acl = Err(words.to_owned());
            world.objects.acl = Ownership::Missing;
        })
        .plan();
    assert_eq!((decision.action.as_ref(), decision.reason), (None, Reason::ReferencesUnresolved));
    assert_eq!(decision.message, words);
}

#[test]
fn given_a_fresh_node_whose_pod_is_being_deleted_then_it_is_replaced_before_it_gets_slots() {
    let world =
        world(3, 1).with_epochs().with(|world| world.node("c-00").pod.as_mut().unwrap().deleting = true);
    assert!(matches!(world.action(), Action::DeleteNodes { nodes, .. } if nodes[0].name == "c-00"));
}

#[test]
fn given_a_member_whose_pod_is_being_deleted_then_the_cluster_is_not_called_formed() {
    let decision =
        world(3, 1).whole().with(|world| world.node("c-00").pod.as_mut().unwrap().deleting = true).plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::PodTerminating));
}

#[test]
fn given_a_slot_owner_that_died_after_the_introduction_then_its_successor_is_made_once_and_kept() {
    let mut world = world(3, 0).met().with(|world| world.kill("c-01"));
    let Action::CreateNodes { nodes, .. } = world.action() else { panic!("no successor") };
    assert_eq!((nodes.len(), nodes[0].spec.shard_index), (1, 1));
    world.add(9, 1);
    assert_eq!(world.plan().action, None, "the successor starts; it is not one too many: {:?}", world.plan());
    world.start("c-09", 9);
    assert!(matches!(world.action(), Action::SetConfigEpochs { epochs } if epochs[0].1.0 == 4));
    world.node("c-09").epoch = 4;
    let Action::AssignSlots { slots } = world.action() else { panic!("no slots") };
    assert_eq!((slots.len(), slots[0].0.node.name.as_str()), (1, "c-09"));
}

#[test]
fn given_a_silent_owner_before_the_introductions_then_it_is_not_deleted_and_the_size_stays() {
    let silent = world(3, 0).with_slots().with(|world| {
        world.silence("c-02", None);
        world.add(9, 2);
        world.start("c-09", 9);
    });
    assert_eq!(silent.plan().action, None, "{:?}", silent.plan());
    let resized = world(3, 0).with_slots().with(|world| {
        world.silence("c-00", None);
        for name in ["c-01", "c-02"] {
            world.node(name).slots = SlotSet::new();
        }
        world.want.shape = Shape { shards: 5, replicas: 0 };
    });
    assert!(!matches!(resized.plan().action, Some(Action::TakeSnapshot { .. })));
}

#[test]
fn given_machines_on_which_three_primaries_fit_apart_then_no_two_share_one() {
    // Seen on the local Kubernetes: shard 0 on n3 n2, shard 1 on n1 n2, shard 2 on n1 n3.
    let machines =
        [("c-00", "n3"), ("c-01", "n2"), ("c-02", "n1"), ("c-03", "n2"), ("c-04", "n1"), ("c-05", "n3")];
    let world = world(3, 1).with_epochs().with(|world| {
        for (name, machine) in machines {
            world.node(name).pod.as_mut().unwrap().machine = Some(machine.to_owned());
        }
    });
    let Action::AssignSlots { slots } = world.action() else { panic!("no slots") };
    let names: Vec<&str> = slots.iter().map(|(target, _)| target.node.name.as_str()).collect();
    let on: std::collections::BTreeSet<&str> =
        machines.iter().filter(|(name, _)| names.contains(name)).map(|(_, on)| *on).collect();
    assert_eq!(on.len(), 3, "{names:?} on {on:?}");
}

proptest::proptest! {
    /// Beside every choice that there is.
    #[test]
    fn the_fullest_machine_has_as_few_primaries_as_possible(
        places in proptest::collection::vec([0usize..4, 0..4], 1..6),
    ) {
        let shards = u16::try_from(places.len()).unwrap();
        let machine = |number: usize| format!("n{number}");
        let world = world(shards, 1).with_epochs().with(|world| {
            for (number, place) in places.iter().flatten().enumerate() {
                let name = world.name(number);
                world.node(&name).pod.as_mut().unwrap().machine = Some(machine(*place));
            }
        });
        let Action::AssignSlots { slots } = world.action() else { panic!("no slots") };
        let fullest = |machines: &[String]| {
            machines.iter().map(|one| machines.iter().filter(|other| *other == one).count()).max().unwrap()
        };
        let on = |name: &str| world.nodes[name].pod.as_ref().unwrap().machine.clone().unwrap();
        let chosen: Vec<String> = slots.iter().map(|(target, _)| on(&target.node.name)).collect();
        let choices = (0..1usize << places.len()).map(|bits| {
            let of = |(shard, place): (usize, &[usize; 2])| machine(place[bits >> shard & 1]);
            fullest(&places.iter().enumerate().map(of).collect::<Vec<_>>())
        });
        proptest::prop_assert_eq!(fullest(&chosen), choices.min().unwrap());
    }
}

//! What is done next in each situation.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use shared::api::{Lifecycle, PodRecord};

use crate::observe::{ConfigMapView, End, Observed, Owner, PodView, Seen};
use crate::plan::{Refusal, Step, Wait, plan};

fn joining() -> Observed {
    Observed {
        lifecycle: Lifecycle::Joining,
        deleting: false,
        finalizer: true,
        record: None,
        pod: Seen::Absent,
        config_map: Seen::Absent,
        owner: Owner::Present,
    }
}

fn config_map() -> Seen<ConfigMapView> {
    Seen::Ours(ConfigMapView { uid: "cm".to_owned(), terminating: false })
}

fn pod(uid: &str) -> PodView {
    PodView { uid: uid.to_owned(), terminating: false, held: false, end: None }
}

fn end() -> End {
    End {
        at: Time(Timestamp::UNIX_EPOCH),
        exit_code: 137,
        reason: Some("OOMKilled".to_owned()),
        message: None,
    }
}

fn record(uid: &str) -> PodRecord {
    PodRecord { uid: uid.to_owned(), ..PodRecord::default() }
}

fn ended_record(uid: &str) -> PodRecord {
    PodRecord {
        terminated_at: Some(end().at),
        exit_code: Some(137),
        reason: Some("OOMKilled".to_owned()),
        ..record(uid)
    }
}

/// A running member: everything is there and recorded.
fn running() -> Observed {
    Observed {
        lifecycle: Lifecycle::Active,
        record: Some(record("p")),
        pod: Seen::Ours(pod("p")),
        config_map: config_map(),
        owner: Owner::Unread,
        ..joining()
    }
}

#[test]
fn a_new_node_gets_its_finalizer_then_its_config_map_then_its_pod() {
    let bare = Observed { finalizer: false, ..joining() };
    assert_eq!(plan(&bare), Step::AddFinalizer);
    assert_eq!(plan(&joining()), Step::CreateConfigMap);
    assert_eq!(plan(&Observed { config_map: config_map(), ..joining() }), Step::CreatePod);
}

#[test]
fn after_a_crash_behind_the_create_the_pod_is_recorded_not_made_again() {
    let seen = Observed { config_map: config_map(), pod: Seen::Ours(pod("p")), ..joining() };
    assert_eq!(plan(&seen), Step::RecordPod(record("p")));
}

#[test]
fn a_pod_that_ever_existed_is_never_made_again() {
    for lifecycle in Lifecycle::ALL {
        for pod in [Seen::Absent, Seen::Foreign("Pod \"x\" belongs to nobody".to_owned())] {
            for record in [record("p"), ended_record("p")] {
                let seen = Observed {
                    lifecycle,
                    pod: pod.clone(),
                    record: Some(record),
                    config_map: config_map(),
                    ..joining()
                };
                assert_eq!(plan(&seen), Step::Rest, "{seen:?}");
            }
        }
    }
}

#[test]
fn only_a_joining_node_gets_a_pod() {
    for lifecycle in [Lifecycle::Active, Lifecycle::Leaving] {
        assert_eq!(plan(&Observed { lifecycle, ..joining() }), Step::Rest);
    }
}

#[test]
fn the_end_of_the_container_is_recorded_once() {
    let dead = Seen::Ours(PodView { end: Some(end()), ..pod("p") });
    let seen = Observed { pod: dead, ..running() };
    assert_eq!(plan(&seen), Step::RecordPod(ended_record("p")));
    assert_eq!(plan(&Observed { record: Some(ended_record("p")), ..seen }), Step::Rest);
}

#[test]
fn a_pod_that_ended_before_it_was_recorded_is_recorded_with_its_end() {
    let dead = Seen::Ours(PodView { end: Some(end()), ..pod("p") });
    assert_eq!(plan(&Observed { pod: dead, ..joining() }), Step::RecordPod(ended_record("p")));
}

#[test]
fn the_end_is_recorded_even_while_the_node_goes() {
    let dead = Seen::Ours(PodView { end: Some(end()), terminating: true, ..pod("p") });
    let seen = Observed { pod: dead, deleting: true, ..running() };
    assert_eq!(plan(&seen), Step::RecordPod(ended_record("p")));
}

#[test]
fn at_rest_nothing_is_done() {
    assert_eq!(plan(&running()), Step::Rest);
    assert!(!plan(&running()).needs_live());
}

#[test]
fn a_missing_config_map_of_a_living_pod_is_made_again_but_not_of_a_dead_one() {
    let lost = Observed { config_map: Seen::Absent, ..running() };
    assert_eq!(plan(&lost), Step::CreateConfigMap);
    assert_eq!(plan(&Observed { owner: Owner::Deleting, ..lost.clone() }), Step::Rest);
    let dead = Seen::Ours(PodView { end: Some(end()), ..pod("p") });
    let seen = Observed { pod: dead, record: Some(ended_record("p")), ..lost.clone() };
    assert_eq!(plan(&seen), Step::Rest);
    let leaving = Seen::Ours(PodView { terminating: true, ..pod("p") });
    assert_eq!(plan(&Observed { pod: leaving, ..lost }), Step::Rest);
}

#[test]
fn foreign_objects_are_refused_and_never_touched() {
    let whose = "Pod \"cart-3f8a1\" belongs to ReplicaSet \"web\"".to_owned();
    let taken = Step::Refuse(Refusal::NameTaken(whose.clone()));
    assert_eq!(plan(&Observed { pod: Seen::Foreign(whose.clone()), ..joining() }), taken);
    assert_eq!(plan(&Observed { config_map: Seen::Foreign(whose.clone()), ..joining() }), taken);
    // The node's own deletion leaves them alone and goes on.
    let seen = Observed {
        deleting: true,
        pod: Seen::Foreign(whose.clone()),
        config_map: Seen::Foreign(whose),
        ..joining()
    };
    assert_eq!(plan(&seen), Step::RemoveFinalizer);
}

#[test]
fn a_pod_is_released_once_it_is_recorded_and_not_before() {
    let held = |uid: &str| Seen::Ours(PodView { held: true, ..pod(uid) });
    let release = |uid: &str| Step::ReleasePod { uid: uid.to_owned() };
    assert_eq!(plan(&Observed { pod: held("p"), record: None, ..running() }), Step::RecordPod(record("p")));
    assert_eq!(plan(&Observed { pod: held("p"), ..running() }), release("p"));
    // Its end is recorded before it may go.
    let ended = Seen::Ours(PodView { held: true, end: Some(end()), terminating: true, ..pod("p") });
    let seen = Observed { pod: ended, ..running() };
    assert_eq!(plan(&seen), Step::RecordPod(ended_record("p")));
    assert_eq!(plan(&Observed { record: Some(ended_record("p")), ..seen }), release("p"));
    // A second one is evidence while the node stays, and goes with it.
    let second = Observed { pod: held("other"), ..running() };
    assert_eq!(plan(&second), Step::Refuse(Refusal::SecondPod("other".to_owned())));
    assert_eq!(plan(&Observed { deleting: true, ..second }), release("other"));
}

#[test]
fn a_second_pod_of_ours_is_refused() {
    let seen = Observed { pod: Seen::Ours(pod("other")), ..running() };
    assert_eq!(plan(&seen), Step::Refuse(Refusal::SecondPod("other".to_owned())));
    // It goes with the node: it is the node's.
    let seen = Observed { deleting: true, owner: Owner::Present, ..seen };
    assert_eq!(plan(&seen), Step::DeletePod { uid: "other".to_owned(), grace: None });
}

#[test]
fn without_its_cluster_a_node_gets_nothing() {
    assert_eq!(plan(&Observed { owner: Owner::Nobody, ..joining() }), Step::Refuse(Refusal::NoCluster));
    for owner in [Owner::Deleting, Owner::Gone] {
        assert_eq!(plan(&Observed { owner, ..joining() }), Step::Wait(Wait::ClusterDeleting));
    }
}

#[test]
fn a_node_takes_its_pod_then_its_config_map_then_its_finalizer_away() {
    let going = Observed { deleting: true, owner: Owner::Present, ..running() };
    assert_eq!(plan(&going), Step::DeletePod { uid: "p".to_owned(), grace: None });
    let leaving = Seen::Ours(PodView { terminating: true, ..pod("p") });
    assert_eq!(plan(&Observed { pod: leaving, ..going.clone() }), Step::Wait(Wait::PodTerminating));
    let gone = Observed { pod: Seen::Absent, ..going };
    assert_eq!(plan(&gone), Step::DeleteConfigMap { uid: "cm".to_owned() });
    assert_eq!(plan(&Observed { config_map: Seen::Absent, ..gone.clone() }), Step::RemoveFinalizer);
    let held = Seen::Ours(ConfigMapView { uid: "cm".to_owned(), terminating: true });
    assert_eq!(plan(&Observed { config_map: held, ..gone.clone() }), Step::RemoveFinalizer);
    let ours_is_off = Observed { finalizer: false, ..gone };
    assert_eq!(plan(&ours_is_off), Step::Rest);
}

#[test]
fn a_retired_node_has_one_second_for_it_has_nothing_to_hand_over() {
    let retired =
        Observed { deleting: true, lifecycle: Lifecycle::Leaving, owner: Owner::Present, ..running() };
    assert_eq!(plan(&retired), Step::DeletePod { uid: "p".to_owned(), grace: Some(1) });
}

#[test]
fn a_pod_has_one_second_when_its_whole_cluster_goes() {
    for owner in [Owner::Deleting, Owner::Gone] {
        let seen = Observed { deleting: true, owner, ..running() };
        assert_eq!(plan(&seen), Step::DeletePod { uid: "p".to_owned(), grace: Some(1) });
    }
}

#[test]
fn with_a_deletion_timestamp_nothing_is_created() {
    for owner in [Owner::Present, Owner::Deleting, Owner::Gone, Owner::Nobody, Owner::Unread] {
        let seen = Observed { deleting: true, owner, ..joining() };
        assert_eq!(plan(&seen), Step::RemoveFinalizer);
    }
}

fn any_seen<T: Clone + std::fmt::Debug + 'static>(
    ours: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Seen<T>> {
    prop_oneof![Just(Seen::Absent), ours.prop_map(Seen::Ours), Just(Seen::Foreign("taken".to_owned()))]
}

prop_compose! {
    fn any_observed()(
        lifecycle in prop::sample::select(Lifecycle::ALL.to_vec()),
        deleting: bool,
        finalizer: bool,
        record in prop::option::of(prop::sample::select(vec![record("p"), ended_record("p")])),
        pod in any_seen((prop::sample::select(vec!["p", "q"]), any::<[bool; 3]>()).prop_map(
            |(uid, [terminating, held, ended])| PodView { terminating, held, end: ended.then(end), ..pod(uid) }
        )),
        config_map in any_seen(any::<bool>().prop_map(
            |terminating| ConfigMapView { uid: "cm".to_owned(), terminating }
        )),
        owner in prop::sample::select(
            vec![Owner::Unread, Owner::Present, Owner::Deleting, Owner::Gone, Owner::Nobody]
        ),
    ) -> Observed {
        Observed { lifecycle, deleting, finalizer, record, pod, config_map, owner }
    }
}

proptest! {
    #[test]
    fn no_situation_breaks_a_rule(seen in any_observed()) {
        match plan(&seen) {
            Step::CreatePod => {
                prop_assert!(seen.lifecycle == Lifecycle::Joining && !seen.deleting && seen.finalizer);
                prop_assert!(seen.record.is_none() && seen.pod == Seen::Absent);
                prop_assert!(matches!(seen.owner, Owner::Present | Owner::Unread));
            }
            Step::CreateConfigMap => {
                prop_assert!(!seen.deleting && seen.finalizer && seen.config_map == Seen::Absent);
            }
            Step::ReleasePod { uid } => {
                prop_assert!(matches!(&seen.pod, Seen::Ours(pod) if pod.uid == uid && pod.held));
                prop_assert!(seen.deleting || seen.record.is_some_and(|record| record.uid == uid));
            }
            Step::DeletePod { uid, .. } => {
                prop_assert!(seen.deleting && seen.finalizer);
                prop_assert!(matches!(&seen.pod, Seen::Ours(pod) if pod.uid == uid && !pod.terminating));
            }
            Step::DeleteConfigMap { uid } => {
                prop_assert!(seen.deleting && !matches!(seen.pod, Seen::Ours(_)));
                prop_assert!(matches!(&seen.config_map, Seen::Ours(found) if found.uid == uid));
            }
            Step::RemoveFinalizer => {
                prop_assert!(seen.deleting && seen.finalizer && !matches!(seen.pod, Seen::Ours(_)));
            }
            Step::RecordPod(new) => {
                prop_assert!(Some(&new) != seen.record.as_ref(), "a write that changes nothing");
                if let Some(old) = &seen.record {
                    prop_assert_eq!(&old.uid, &new.uid);
                    prop_assert!(old.terminated_at.is_none() && new.terminated_at.is_some());
                }
            }
            Step::AddFinalizer => prop_assert!(!seen.deleting && !seen.finalizer),
            Step::Refuse(_) | Step::Wait(_) | Step::Rest => {}
        }
    }
}

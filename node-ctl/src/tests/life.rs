//! Whole lives of a node against the model: crashes at every call, stale caches, other people's objects.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use shared::api::Lifecycle;

use super::model::{Fault, Model};
use super::{NODE_UID, controlled_by, node};
use crate::execute::{ExecuteError, REASON_INVALID_SETTING, REASON_NAME_TAKEN, REASON_OVERRIDDEN};
use crate::plan::{Step, plan};
use crate::ports::Key;
use crate::reconcile::{AT_REST, Look, WHILE_BLOCKED, reconcile, release_orphan};

const POD: &str = "cart-3f8a1";

/// One pass on a look; a lost call ends it as a crash would.
async fn pass(model: &Model, look: Look) -> Result<Duration, ExecuteError> {
    reconcile(model, look, || false, |_| {}).await
}

/// Passes as a restarted process with fresh caches makes them, until one ends at rest without an error.
async fn settle(model: &Model) {
    for _ in 0..20 {
        let Some(look) = model.cached() else { return };
        if let Ok(AT_REST) = pass(model, look).await {
            return;
        }
    }
    panic!("never came to rest; told: {:?}", model.with(|state| state.told.clone()));
}

/// Passes and a working kubelet until the node is gone.
async fn go(model: &Model) {
    for _ in 0..20 {
        let Some(look) = model.cached() else { return };
        drop(pass(model, look).await);
        model.kubelet();
    }
    panic!("the node never went: {:?}", model.with(|state| state.node.clone()));
}

fn foreign_pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(POD.to_owned());
    pod.metadata.uid = Some("theirs".to_owned());
    pod.metadata.owner_references = Some(controlled_by("ReplicaSet", "web", "web-uid"));
    pod
}

/// The container of the pod ends.
fn end(model: &Model, reason: &str) {
    model.with(|state| {
        let terminated = ContainerStateTerminated {
            exit_code: 137,
            reason: Some(reason.to_owned()),
            finished_at: Some(Time(Timestamp::UNIX_EPOCH)),
            ..ContainerStateTerminated::default()
        };
        let status = ContainerStatus {
            name: "valkey".to_owned(),
            state: Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() }),
            ..ContainerStatus::default()
        };
        state.pods.get_mut(POD).unwrap().status =
            Some(PodStatus { container_statuses: Some(vec![status]), ..PodStatus::default() });
    });
}

#[tokio::test]
async fn a_node_gets_everything_once_and_then_a_pass_costs_no_call() {
    let model = Model::new();
    settle(&model).await;
    model.with(|state| {
        let node = state.node.as_ref().unwrap();
        assert_eq!(node.finalizers(), ["valkey.gomomento.com/node-cleanup"]);
        let pod = &state.pods[POD];
        assert_eq!(
            node.status.as_ref().unwrap().pod.as_ref().map(|record| &record.uid),
            pod.metadata.uid.as_ref()
        );
        assert_eq!(pod.annotations().get("team.example/owner").map(String::as_str), Some("checkout"));
        assert!(state.config_maps.contains_key("cart-3f8a1-config"));
        state.calls = 0;
    });
    settle(&model).await;
    assert_eq!(model.with(|state| state.calls), 0);
}

#[tokio::test]
async fn a_crash_at_any_call_makes_neither_two_pods_nor_none_and_leaves_nothing_behind() {
    for fault in [Fault::RequestLost, Fault::ReplyLost] {
        let mut hit_all = false;
        for at in 1..40 {
            let model = Model::new();
            model.with(|state| state.fault = Some((at, fault)));
            settle(&model).await;
            model.with(|state| {
                assert_eq!(state.pods_created, 1, "{fault:?} at call {at}");
                assert!(state.node.as_ref().unwrap().status.as_ref().unwrap().pod.is_some());
            });
            model.delete_node();
            go(&model).await;
            model.with(|state| {
                assert!(state.pods.is_empty() && state.config_maps.is_empty(), "{fault:?} at call {at}");
                assert_eq!(state.pods_created, 1, "{fault:?} at call {at}");
                hit_all = state.calls < at;
            });
            if hit_all {
                break;
            }
        }
        assert!(hit_all, "a life has more calls than were broken");
    }
}

#[tokio::test]
async fn a_pod_deleted_while_we_are_away_between_two_calls_is_recorded_not_made_again() {
    for fault in [Fault::RequestLost, Fault::ReplyLost] {
        let mut missed = 0;
        for at in 1..40 {
            let model = Model::new();
            model.with(|state| state.fault = Some((at, fault)));
            // The process dies at that call, somebody deletes what there is by force, the process comes back.
            let died = pass(&model, model.cached().unwrap()).await.is_err();
            model.delete_pods();
            settle(&model).await;
            model.kubelet();
            model.with(|state| {
                assert_eq!(state.pods_created, 1, "{fault:?} at call {at}");
                let record = state.node.as_ref().unwrap().status.as_ref().unwrap().pod.as_ref();
                assert_eq!(record.map(|record| record.uid.as_str()), Some("uid-2"), "{fault:?} at call {at}");
                let held = state.pods.values().any(|pod| !pod.finalizers().is_empty());
                assert!(!held, "a Pod is held for ever, {fault:?} at call {at}");
            });
            missed += usize::from(!died);
            if missed > 1 {
                break;
            }
        }
        assert!(missed > 1, "a first pass has more calls than were broken");
    }
}

/// The look of caches that have the node and its ConfigMap as they were right before the Pod was made.
async fn before_the_pod(model: &Model) -> Look {
    settle(model).await;
    let mut node = model.with(|state| state.node.clone()).unwrap();
    node.status = None;
    let config_map = model.with(|state| state.config_maps["cart-3f8a1-config"].metadata.clone());
    Look::cached(node.into(), None, Some(&config_map))
}

#[tokio::test]
async fn a_stale_cache_makes_no_second_pod() {
    let model = Model::new();
    let stale = before_the_pod(&model).await;
    assert_eq!(plan(&stale.seen), Step::CreatePod, "the look must be one that would make a Pod");
    pass(&model, stale.clone()).await.unwrap();
    assert_eq!(model.with(|state| state.pods_created), 1);

    // Not even when the Pod is gone meanwhile: it existed.
    model.with(|state| state.pods.clear());
    pass(&model, stale).await.unwrap();
    settle(&model).await;
    assert_eq!(model.with(|state| state.pods_created), 1);
}

#[tokio::test]
async fn a_stale_cache_lets_no_node_go_before_its_pod() {
    let model = Model::new();
    settle(&model).await;
    model.delete_node();
    // The watches of Pods and ConfigMaps are behind: they have seen nothing yet.
    let node = model.with(|state| state.node.clone()).unwrap();
    let stale = Look::cached(node.into(), None, None);
    assert_eq!(plan(&stale.seen), Step::RemoveFinalizer, "the look must be one that would let the node go");
    pass(&model, stale).await.unwrap();
    model.with(|state| {
        assert!(state.node.is_some(), "the node went before its Pod");
        assert_eq!(state.graces, [None]);
    });
    go(&model).await;
}

#[tokio::test]
async fn a_stale_cache_makes_nothing_for_a_node_that_left_joining() {
    let model = Model::new();
    let stale = before_the_pod(&model).await;
    model.with(|state| {
        state.pods.clear();
        let node = state.node.as_mut().unwrap();
        node.status = None;
        node.spec.lifecycle = Lifecycle::Leaving;
    });
    pass(&model, stale).await.unwrap();
    assert_eq!(model.with(|state| state.pods_created), 1);
}

#[tokio::test]
async fn a_cache_that_holds_a_former_node_of_the_name_touches_nothing() {
    let model = Model::new();
    let mut former = node();
    former.metadata.uid = Some("former".to_owned());
    former.metadata.finalizers = Some(vec!["valkey.gomomento.com/node-cleanup".to_owned()]);
    settle(&model).await;
    for deleting in [false, true] {
        former.metadata.deletion_timestamp = deleting.then_some(Time(Timestamp::UNIX_EPOCH));
        drop(pass(&model, Look::cached(former.clone().into(), None, None)).await);
    }
    model.with(|state| {
        assert_eq!((state.pods_created, state.pods.len(), state.config_maps.len()), (1, 1, 1));
        assert_eq!(state.node.as_ref().unwrap().finalizers().len(), 1);
    });
}

#[tokio::test]
async fn the_end_of_the_container_is_recorded_but_not_a_lost_status() {
    let model = Model::new();
    settle(&model).await;
    end(&model, "ContainerStatusUnknown");
    settle(&model).await;
    let record = |model: &Model| model.with(|state| state.node.clone().unwrap().status.unwrap().pod.unwrap());
    assert_eq!(record(&model).terminated_at, None);
    end(&model, "OOMKilled");
    settle(&model).await;
    let recorded = record(&model);
    assert_eq!((recorded.exit_code, recorded.reason.as_deref()), (Some(137), Some("OOMKilled")));
    assert_eq!(model.with(|state| state.pods_created), 1);
}

#[tokio::test]
async fn another_s_pod_of_the_name_is_refused_told_once_and_left_alone() {
    let model = Model::new();
    model.with(|state| state.pods.insert(POD.to_owned(), foreign_pod()));
    for _ in 0..3 {
        assert_eq!(pass(&model, model.cached().unwrap()).await.unwrap(), WHILE_BLOCKED);
    }
    model.with(|state| {
        let told: Vec<&str> = state.told.iter().map(|notice| notice.reason.as_str()).collect();
        assert_eq!(told, [REASON_NAME_TAKEN]);
        assert!(state.told[0].note.contains("ReplicaSet \"web\""), "{}", state.told[0].note);
        assert_eq!(state.pods[POD], foreign_pod());
        // It goes by another's hand.
        state.pods.clear();
    });
    settle(&model).await;
    assert_eq!(model.with(|state| state.pods_created), 1);
}

#[tokio::test]
async fn a_name_taken_between_look_and_create_is_refused() {
    let model = Model::new();
    model.with(|state| state.intruder = Some(foreign_pod()));
    assert_eq!(pass(&model, model.cached().unwrap()).await.unwrap(), WHILE_BLOCKED);
    model.with(|state| {
        assert_eq!((state.pods_created, &state.pods[POD]), (0, &foreign_pod()));
        assert_eq!(state.node.as_ref().unwrap().status, None);
    });
    model.delete_node();
    go(&model).await;
    model.with(|state| assert_eq!(state.pods[POD], foreign_pod()));
}

#[tokio::test]
async fn the_finalizer_stays_until_the_pod_is_gone() {
    let model = Model::new();
    settle(&model).await;
    model.delete_node();
    for _ in 0..3 {
        drop(pass(&model, model.cached().unwrap()).await);
    }
    model.with(|state| assert_eq!((state.pods.len(), state.graces.clone()), (1, vec![None])));
    go(&model).await;
}

#[tokio::test]
async fn others_finalizers_survive_ours() {
    let model = Model::new();
    model.with(|state| state.node.as_mut().unwrap().metadata.finalizers = Some(vec!["other/one".to_owned()]));
    settle(&model).await;
    model.delete_node();
    for _ in 0..6 {
        drop(pass(&model, model.cached().unwrap()).await);
        model.kubelet();
    }
    model.with(|state| assert_eq!(state.node.as_ref().unwrap().finalizers(), ["other/one"]));
}

#[tokio::test]
async fn a_pod_has_a_second_to_stop_when_its_cluster_is_deleted_or_replaced() {
    for gone in [false, true] {
        let model = Model::new();
        settle(&model).await;
        model.with(|state| {
            let cluster = state.cluster.as_mut().unwrap();
            if gone {
                cluster.metadata.uid = Some("another".to_owned());
            } else {
                cluster.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            }
        });
        model.delete_node();
        go(&model).await;
        assert_eq!(model.with(|state| state.graces.clone()), [Some(1)]);
    }
}

#[tokio::test]
async fn a_setting_that_cannot_be_written_is_told_once_and_makes_no_pod() {
    let model = Model::new();
    model.with(|state| {
        let node = state.node.as_mut().unwrap();
        node.spec.valkey_settings.insert("include".to_owned(), "/etc/passwd".to_owned());
    });
    for _ in 0..3 {
        let failed = pass(&model, model.cached().unwrap()).await.unwrap_err();
        assert!(matches!(failed, ExecuteError::Render(_)), "{failed:?}");
    }
    model.with(|state| {
        let told: Vec<&str> = state.told.iter().map(|notice| notice.reason.as_str()).collect();
        assert_eq!((told, state.pods_created), (vec![REASON_INVALID_SETTING], 0));
    });
    model.delete_node();
    go(&model).await;
}

#[tokio::test]
async fn settings_without_effect_are_named_in_an_event() {
    let model = Model::new();
    model.with(|state| {
        let node = state.node.as_mut().unwrap();
        node.spec.valkey_settings.insert("port".to_owned(), "7000".to_owned());
    });
    settle(&model).await;
    model.with(|state| {
        let told = state.told.iter().find(|notice| notice.reason == REASON_OVERRIDDEN).unwrap();
        assert!(told.note.ends_with(": port"), "{}", told.note);
    });
}

#[tokio::test]
async fn after_the_wish_to_stop_an_end_is_still_recorded() {
    let model = Model::new();
    settle(&model).await;
    end(&model, "Completed");
    reconcile(&model, model.cached().unwrap(), || true, |_| {}).await.unwrap();
    let record = model.with(|state| state.node.clone().unwrap().status.unwrap().pod.unwrap());
    assert_eq!(record.reason.as_deref(), Some("Completed"));
}

#[tokio::test]
async fn after_the_wish_to_stop_no_call_is_made() {
    let model = Model::new();
    reconcile(&model, model.cached().unwrap(), || true, |_| {}).await.unwrap();
    assert_eq!(model.with(|state| state.calls), 0);
}

#[tokio::test]
async fn an_active_node_without_a_record_gets_no_pod() {
    let model = Model::new();
    model.with(|state| state.node.as_mut().unwrap().spec.lifecycle = Lifecycle::Active);
    settle(&model).await;
    model.with(|state| {
        assert_eq!((state.pods_created, state.node.as_ref().unwrap().uid().as_deref()), (0, Some(NODE_UID)));
    });
}

/// The Pod of the node, made and not recorded yet.
fn unrecorded_pod(model: &Model) -> Key {
    model.with(|state| {
        let mut pod = crate::pod::build(&node(), &std::collections::BTreeMap::new());
        pod.metadata.uid = Some("late".to_owned());
        assert!(!pod.finalizers().is_empty(), "a Pod is held until it is recorded");
        state.pods.insert(POD.to_owned(), pod);
    });
    Key::new("shop", POD)
}

#[tokio::test]
async fn a_pod_that_was_made_while_its_node_went_is_let_go() {
    let model = Model::new();
    let key = unrecorded_pod(&model);
    assert!(!release_orphan(&model, &key).await.unwrap(), "its node is there, and records it first");
    model.with(|state| state.node = None);
    for at in 1..=3 {
        model.with(|state| (state.calls, state.fault) = (0, Some((at, Fault::RequestLost))));
        assert!(release_orphan(&model, &key).await.is_err(), "call {at} was lost");
        assert!(model.with(|state| !state.pods[POD].finalizers().is_empty()));
    }
    model.with(|state| state.fault = None);
    assert!(release_orphan(&model, &key).await.unwrap());
    assert!(model.with(|state| state.pods[POD].finalizers().is_empty()));
    assert!(!release_orphan(&model, &key).await.unwrap(), "once");
}

#[tokio::test]
async fn the_pod_of_a_namesake_that_is_gone_does_not_block_a_node_for_ever() {
    let model = Model::new();
    unrecorded_pod(&model);
    model.with(|state| {
        let pod = state.pods.get_mut(POD).unwrap();
        pod.metadata.owner_references.as_mut().unwrap()[0].uid = "another".to_owned();
        pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    });
    for _ in 0..4 {
        drop(pass(&model, model.cached().unwrap()).await);
        model.kubelet();
    }
    model.with(|state| {
        assert_eq!(
            state.pods[POD].uid().as_deref(),
            state.node.as_ref().unwrap().status.as_ref().unwrap().pod.as_ref().map(|it| it.uid.as_str())
        );
    });
}

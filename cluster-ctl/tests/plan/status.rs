//! What people see of a world.

use cluster_ctl::status::derive;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use shared::api::conditions::{self, ConditionType};
use shared::api::{ClusterState, ValkeyCluster, ValkeyClusterSpec, ValkeyClusterStatus};

use crate::world::{Flag, World, world};

fn status(world: &World) -> ValkeyClusterStatus {
    let spec = ValkeyClusterSpec { shards: 3, replicas_per_shard: 1, ..ValkeyClusterSpec::default() };
    let cluster = ValkeyCluster::new("c", spec);
    derive(&cluster, &world.observed(), &world.want, &world.plan(), &Time(jiff::Timestamp::UNIX_EPOCH))
}

fn condition(status: &ValkeyClusterStatus, kind: ConditionType) -> (String, String) {
    let condition = conditions::find(&status.conditions, kind).unwrap();
    (condition.status.clone(), condition.reason.clone())
}

fn words(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn a_settled_cluster_is_active_ready_and_counts_everything() {
    let status = status(&world(3, 1).formed());
    assert_eq!(status.state, ClusterState::Active);
    assert_eq!(
        (status.shards, status.slots_assigned, status.ready.as_deref()),
        (Some(3), Some(16384), Some("6/6"))
    );
    assert_eq!(condition(&status, ConditionType::Ready), words("True", "Serving"));
    assert_eq!(condition(&status, ConditionType::Progressing), words("False", "Settled"));
    assert_eq!(condition(&status, ConditionType::Degraded), words("False", "Settled"));
    assert_eq!((status.message, status.nodes.len()), (None, 6));
}

#[test]
fn a_starting_cluster_is_creating_and_says_what_it_waits_for() {
    let status = status(&world(3, 1).created());
    assert_eq!((status.state, status.ready.as_deref()), (ClusterState::Creating, Some("0/6")));
    assert_eq!(condition(&status, ConditionType::Ready), words("False", "PodsStarting"));
    assert_eq!(condition(&status, ConditionType::Progressing), words("True", "PodsStarting"));
    assert_eq!(status.message, None, "a start that takes its time needs no message");
}

#[test]
fn a_missing_config_is_one_word_in_every_condition_and_the_message() {
    let text = "ValkeyConfig \"small\" not found";
    let status = status(&world(3, 1).snapshot().with(|world| world.want.template = Err(text.to_owned())));
    assert_eq!(condition(&status, ConditionType::ReferencesResolved), words("False", "ReferencesUnresolved"));
    assert_eq!(condition(&status, ConditionType::Progressing), words("True", "ReferencesUnresolved"));
    assert_eq!(status.message.as_deref(), Some(text));
}

#[test]
fn an_invalid_tls_secret_makes_the_cluster_invalid() {
    let status = status(&world(3, 1).formed().with(|world| world.want.tls = Err("no".to_owned())));
    assert_eq!(status.state, ClusterState::Invalid);
}

#[test]
fn a_suspected_primary_is_not_ready_and_degraded() {
    let status = status(&world(3, 1).formed().with(|world| world.silence("c-02", Some(Flag::Pfail))));
    assert_eq!(condition(&status, ConditionType::Ready).0, "False");
    assert_eq!(condition(&status, ConditionType::Degraded), words("True", "AwaitingFailover"));
    assert_eq!(status.state, ClusterState::Active, "a fault does not unform a cluster");
}

#[test]
fn a_missing_replica_is_not_ready() {
    let mut world = world(3, 1).formed();
    world.nodes.remove("c-03");
    world.everyone_forgets("c-03");
    assert_eq!(condition(&status(&world), ConditionType::Ready), words("False", "ReplicaMissing"));
}

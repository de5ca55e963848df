//! Deletion of a cluster.

use cluster_ctl::action::Action;
use cluster_ctl::words::Reason;

use crate::world::world;

#[test]
fn given_a_deleted_cluster_then_every_node_is_deleted_whatever_it_owns() {
    let world = world(3, 1).formed().with(|world| world.cluster.deleting = true);
    let Action::DeleteNodes { nodes, cluster_deleted: true } = world.action() else { panic!("not deleted") };
    assert_eq!(nodes.len(), 6);
}

#[test]
fn given_nodes_that_are_going_then_it_waits_and_keeps_its_finalizer() {
    let decision = world(3, 1)
        .formed()
        .with(|world| {
            world.cluster.deleting = true;
            world.nodes.values_mut().for_each(|node| node.deleting = true);
        })
        .plan();
    assert_eq!((decision.action, decision.reason), (None, Reason::Deleting));
}

#[test]
fn given_no_node_left_then_the_cluster_is_released() {
    assert_eq!(world(3, 1).with(|world| world.cluster.deleting = true).action(), Action::ReleaseCluster);
}

#[test]
fn given_a_deleted_cluster_that_never_started_then_nothing_is_created() {
    let decision = world(3, 1).snapshot().with(|world| world.cluster.deleting = true).plan();
    assert_eq!(decision.action, Some(Action::ReleaseCluster));
}

#[test]
fn given_only_finalizers_of_others_then_nothing_is_done() {
    let decision = world(3, 1)
        .with(|world| {
            world.cluster.deleting = true;
            world.cluster.finalizer = false;
        })
        .plan();
    assert_eq!(decision.action, None);
}

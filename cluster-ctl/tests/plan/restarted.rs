//! A server that was started anew in its Pod, without its memory: it answers under another ID than the one on record, and
//! what is recorded does not say that the former process ended.

use cluster_ctl::action::{Action, NodeRef, Target};
use cluster_ctl::model::{Answer, Observed};
use cluster_ctl::plan::plan;
use cluster_ctl::plan::safety::{Violation, check};
use shared::api::{JoinType, Lifecycle};
use shared::valkey::commands::FailoverKind;

use crate::world::{Flag, World, id, world};

/// What is seen when the server of `name` was started anew and the others miss the former one.
fn seen(world: &World, name: &str) -> Observed {
    let mut world = world.clone();
    world.silence(name, Some(Flag::Fail));
    let fresh = crate::world::world(1, 0).answering().with(|fresh| fresh.node("c-00").id = id(88));
    let answer = fresh.members().next().unwrap().answer;
    assert!(matches!(answer, Answer::Said(_)));
    let mut members: Vec<_> = world.members().collect();
    members.iter_mut().find(|member| member.name == name).unwrap().answer = answer;
    world.seen(members.into_iter())
}

/// The action for what is seen; the gate must agree.
fn action(world: &World, name: &str) -> Action {
    let seen = seen(world, name);
    let decision = plan(&seen, &world.want);
    let action = decision.action.clone().unwrap_or_else(|| panic!("no action: {decision:?}"));
    assert_eq!(check(&action, &seen), Ok(()));
    action
}

#[test]
fn given_a_primary_started_anew_then_its_copy_takes_over_by_vote_or_where_nobody_can_vote_without_one() {
    for (shards, wanted) in
        [(3, FailoverKind::Force), (2, FailoverKind::Takeover), (1, FailoverKind::Takeover)]
    {
        let Action::Failover { kind, on, from } = action(&world(shards, 1).formed(), "c-00") else {
            panic!("not succeeded in {shards} shards")
        };
        assert_eq!((kind, on.node.name.as_str(), from), (wanted, "c-01", id(1)));
    }
}

#[test]
fn given_a_primary_without_copy_started_anew_then_an_heir_comes_and_gets_its_slots() {
    let mut world = world(3, 0).formed();
    let Action::CreateNodes { nodes, .. } = action(&world, "c-02") else { panic!("no heir") };
    assert_eq!((nodes[0].spec.shard_index, nodes[0].join), (2, Some(JoinType::Primary)));
    world.add(8, 2).join = Some(JoinType::Primary);
    world.start("c-08", 8);
    let Action::SetConfigEpochs { epochs } = action(&world, "c-02") else { panic!("no epoch") };
    world.node("c-08").epoch = epochs[0].1.0;
    let Action::AssignSlots { slots } = action(&world, "c-02") else { panic!("no slots") };
    assert_eq!((slots[0].0.node.name.as_str(), &slots[0].1), ("c-08", &world.nodes["c-02"].slots));
}

#[test]
fn given_a_leaving_primary_that_was_reset_then_views_that_still_show_its_slots_call_for_no_successor() {
    let world = world(2, 1).formed().with(|world| world.node("c-00").spec.lifecycle = Lifecycle::Leaving);
    let seen = seen(&world, "c-00");
    let decision = plan(&seen, &world.want);
    assert!(!matches!(decision.action, Some(Action::Failover { .. })), "{decision:?}");
    let copy = &seen.members["c-01"];
    let on = Target {
        node: NodeRef { name: copy.name.clone(), uid: copy.uid.clone() },
        pod_uid: copy.pod.as_ref().unwrap().uid.clone(),
        ip: copy.ip().unwrap(),
        id: copy.id().unwrap(),
    };
    let takeover = Action::Failover { kind: FailoverKind::Takeover, on, from: id(1) };
    assert_eq!(check(&takeover, &seen), Err(Violation::DeposesLiving { id: id(1) }));
}

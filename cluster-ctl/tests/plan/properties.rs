//! What holds of every decision, over generated worlds.

use cluster_ctl::action::Action;
use cluster_ctl::plan::plan;
use proptest::prelude::*;
use shared::api::Lifecycle;

use crate::world::{Flag, Voice, World, world};

/// A world at some stage of its life in which some nodes then die, fall silent, or lose acquaintances.
pub(crate) fn worlds() -> impl Strategy<Value = World> {
    let trouble = prop::collection::vec((0usize..12, 0u8..6), 0..4);
    (1u16..5, 0u16..3, 0u8..8, trouble).prop_map(|(shards, replicas, stage, trouble)| {
        let fresh = world(shards, replicas);
        let mut world = match stage {
            0 => fresh.created(),
            1 => fresh.answering(),
            2 => fresh.with_epochs(),
            3 => fresh.with_slots(),
            4 => fresh.met(),
            5 => fresh.replicating(),
            6 => fresh.whole(),
            _ => fresh.formed(),
        };
        for (number, kind) in trouble {
            let name = world.name(number % world.nodes.len());
            let has_pod = world.node(&name).pod.is_some();
            match kind {
                0 if has_pod => world.kill(&name),
                1 if has_pod => world.silence(&name, Some(Flag::Fail)),
                2 if has_pod => world.silence(&name, Some(Flag::Pfail)),
                3 if has_pod => world.node(&name).voice = Voice::AuthRejected,
                4 => world.node(&name).knows.clear(),
                _ => drop(world.nodes.remove(&name)),
            }
            if world.nodes.is_empty() {
                break;
            }
        }
        world
    })
}

proptest! {
    /// `World::plan` asserts determinism and that the gate passes.
    #[test]
    fn every_decision_is_deterministic_and_passes_the_gate(world in worlds()) {
        let decision = world.plan();
        prop_assert!(decision.action.is_some() || !decision.waits.is_empty() || decision.reason.as_str() == "Settled");
    }

    #[test]
    fn no_action_targets_a_node_that_did_not_answer(world in worlds()) {
        let seen = world.observed();
        let answers = |name: &str| seen.members.get(name).is_some_and(|member| member.report().is_some());
        let silent: Vec<String> = match plan(&seen, &world.want).action {
            Some(Action::SetConfigEpochs { epochs }) => epochs.into_iter().map(|(target, _)| target.node.name).collect(),
            Some(Action::AssignSlots { slots }) => slots.into_iter().map(|(target, _)| target.node.name).collect(),
            Some(Action::Replicate { links }) => links.into_iter().map(|(target, _)| target.node.name).collect(),
            Some(Action::Forget { on, .. }) => on.into_iter().map(|target| target.node.name).collect(),
            Some(Action::Failover { on, .. }) => vec![on.node.name],
            Some(Action::Meet { seed, others }) => others.into_iter().chain([seed]).map(|target| target.node.name).collect(),
            _ => Vec::new(),
        }.into_iter().filter(|name| !answers(name)).collect();
        prop_assert!(silent.is_empty(), "{silent:?}");
    }

    #[test]
    fn nothing_is_created_in_a_cluster_that_is_being_deleted(world in worlds()) {
        let decision = world.with(|world| world.cluster.deleting = true).plan();
        let creates = matches!(
            decision.action,
            Some(Action::CreateNodes { .. } | Action::TakeSnapshot { .. } | Action::Meet { .. })
        );
        prop_assert!(!creates);
    }

    /// Otherwise making it and taking it away would follow each other for ever.
    #[test]
    fn a_node_that_is_made_is_not_unwanted_in_the_world_that_contains_it(
        world in worlds(),
        (shards, replicas) in (1u16..5, 0u16..3),
        joining in prop::collection::vec(0usize..12, 0..3),
        drained in prop::option::of(0usize..12),
    ) {
        let mut world = world;
        world.want.shape = cluster_ctl::model::Shape { shards, replicas };
        let joining = if world.nodes.len() > 3 { joining } else { Vec::new() };
        for number in joining {
            let name = world.name(number % world.nodes.len());
            world.node(&name).spec.lifecycle = Lifecycle::Joining;
        }
        if let Some(number) = drained.filter(|_| !world.nodes.is_empty()) {
            let name = world.name(number % world.nodes.len());
            let slots = std::mem::take(&mut world.node(&name).slots);
            let heir = world.name(0);
            let node = world.node(&heir);
            node.slots = node.slots.union(&slots);
        }
        let Some(Action::CreateNodes { nodes, .. }) = world.plan().action else { return Ok(()) };
        let made: Vec<String> = nodes
            .iter()
            .zip(20..)
            .map(|(node, number)| {
                let added = world.add(number, u16::try_from(node.spec.shard_index).unwrap());
                added.join = node.join;
                added.name.clone()
            })
            .collect();
        match world.plan().action {
            Some(Action::MarkLeaving { node }) => prop_assert!(!made.contains(&node.name), "{} leaves again", node.name),
            Some(Action::DeleteNodes { nodes, .. }) => {
                prop_assert!(nodes.iter().all(|node| !made.contains(&node.name)), "{nodes:?} go again");
            }
            _ => {}
        }
    }
}

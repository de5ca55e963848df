//! Where a pod may and should run: affinity, spread, toleration. Fixed at creation from the `ValkeyNode` alone.

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Toleration,
    TopologySpreadConstraint,
};
use shared::api::{Placement, ValkeyNode, ZoneSpread};

use crate::meta;

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
const ANYWAY: &str = "ScheduleAnyway";
const REQUIRED: &str = "DoNotSchedule";

/// Zones are a hard limit: the pod runs in one of them or not at all.
pub fn affinity(placement: &Placement) -> Option<Affinity> {
    if placement.zones.is_empty() {
        return None;
    }
    // A set: order and repetition mean nothing.
    let mut zones = placement.zones.clone();
    zones.sort();
    zones.dedup();
    let requirement =
        NodeSelectorRequirement { key: ZONE.to_owned(), operator: "In".to_owned(), values: Some(zones) };
    let term = NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None };
    Some(Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    })
}

/// The members of a shard on different machines and in different zones; with `required`, the zones by force and the
/// whole cluster even as far as possible.
pub fn spread(node: &ValkeyNode) -> Vec<TopologySpreadConstraint> {
    let required = node.spec.placement.as_ref().and_then(|placement| placement.zone_spread)
        == Some(ZoneSpread::Required);
    let shard = || meta::selector(meta::shard_labels(node));
    let mut constraints = vec![
        TopologySpreadConstraint {
            topology_key: HOST.to_owned(),
            max_skew: 1,
            when_unsatisfiable: ANYWAY.to_owned(),
            label_selector: Some(shard()),
            ..TopologySpreadConstraint::default()
        },
        TopologySpreadConstraint {
            when_unsatisfiable: if required { REQUIRED } else { ANYWAY }.to_owned(),
            label_selector: Some(shard()),
            ..zone()
        },
    ];
    if required {
        constraints.push(TopologySpreadConstraint {
            when_unsatisfiable: ANYWAY.to_owned(),
            label_selector: Some(meta::selector(meta::cluster_labels(node))),
            ..zone()
        });
    }
    constraints
}

/// A zone all of whose machines are tainted (lost, drained) does not count: it must not block a replacement elsewhere.
fn zone() -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        topology_key: ZONE.to_owned(),
        max_skew: 1,
        node_taints_policy: Some("Honor".to_owned()),
        ..TopologySpreadConstraint::default()
    }
}

/// Machines with ARM processors are often tainted so; Valkey runs on both.
pub fn tolerations() -> Vec<Toleration> {
    vec![Toleration {
        key: Some("kubernetes.io/arch".to_owned()),
        operator: Some("Equal".to_owned()),
        value: Some("arm64".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        toleration_seconds: None,
    }]
}

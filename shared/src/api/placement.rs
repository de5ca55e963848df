//! Where the pods of a cluster may and should run.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the pods of a cluster may run, and how they spread over zones.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct Placement {
    /// Zones in which pods may run: values of the Kubernetes node label "topology.kubernetes.io/zone". Unset or empty:
    /// any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))
    )]
    pub zones: Vec<String>,

    /// How strictly the members of a shard spread over zones: "bestEffort" prefers it, "required" leaves a pod
    /// unscheduled rather than unbalance a shard. Unset: the operator's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_spread: Option<ZoneSpread>,

    /// Labels that a Kubernetes node must have to run a pod of the cluster.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(
        extend("maxProperties" = 32),
        extend("additionalProperties" = {"type": "string", "maxLength": 63, "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"})
    )]
    #[x_kube(validation = Rule::new("self.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))")
        .message("a nodeSelector key must be a label key: an optional DNS prefix with a slash, then at most 63 letters, digits, dashes, dots or underscores"))]
    pub node_selector: BTreeMap<String, String>,
}

/// How strictly the members of a shard spread over zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ZoneSpread {
    /// Prefer different zones, but schedule anyway.
    BestEffort,
    /// Never more than one member difference between zones; a pod may stay unscheduled.
    Required,
}

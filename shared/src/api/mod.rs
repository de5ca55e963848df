//! The five custom resources of `valkey.gomomento.com/v1alpha1`, as Rust types and as their CRDs.
//!
//! Owns every field, its bounds and its admission rules. Validation lives in the schema and in CEL rules that the API
//! server enforces; there is no webhook. Rules use nothing newer than the CEL of Kubernetes 1.27, and every string,
//! list and map is bounded so that their cost fits the server's budget. Doc comments on fields are what
//! `kubectl explain` prints. Nothing here talks to a server or decides anything.
//!
//! A field that is absent is never serialised as `null`: server-side apply and CEL's `has()` would see a difference.

#![expect(unreachable_pub, reason = "KubeSchema expands each struct a second time inside a function")]
#![expect(
    clippy::duplicated_attributes,
    reason = "the arguments of different printer columns are no duplicates"
)]
#![expect(
    clippy::doc_markdown,
    reason = "field docs are printed by `kubectl explain`, where backticks are noise"
)]

pub mod acl;
pub mod cluster;
pub mod conditions;
pub mod config;
pub mod image;
pub mod node;
pub mod placement;
pub mod role;
mod schema;
#[cfg(test)]
mod tests;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

pub use acl::{AclBinding, KeyAccess, KeyPattern, Permission};
pub use cluster::{ClusterState, LastAction, TlsSpec, ValkeyCluster, ValkeyClusterSpec, ValkeyClusterStatus};
pub use config::{Resources, ValkeyConfig, ValkeyConfigSpec};
pub use image::{ValkeyImage, ValkeyImageSpec, ValkeyImageStatus};
pub use node::{JoinType, Lifecycle, NodeRole, PodRecord, ValkeyNode, ValkeyNodeSpec, ValkeyNodeStatus};
pub use placement::{Placement, ZoneSpread};
pub use role::{Access, CategoryRule, CommandRule, ValkeyRole, ValkeyRoleSpec};

/// The CRDs of all five kinds, in the order in which the documentation presents them.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![ValkeyImage::crd(), ValkeyConfig::crd(), ValkeyRole::crd(), ValkeyCluster::crd(), ValkeyNode::crd()]
}

//! node-ctl: makes the ConfigMap and the Pod of a `ValkeyNode`, exactly once, and takes them away with it.
//!
//! One pass looks (`observe`), decides (`plan`, a pure function), does (`execute`). What a Pod looks like is in `pod`
//! and `placement`, what it reads at its start in `configmap`. It knows nothing of Valkey's protocol and nothing of a
//! cluster beyond the node in hand; whether a node should exist is cluster-ctl's business.
//!
//! "Exactly once" rests on three things, none of them a cache: the Pod's name is the node's, so that two creates cannot
//! both succeed; the UID is recorded once on the `ValkeyNode`, and nothing is created where there is a record; and from
//! the create to the record a finalizer keeps the Pod from vanishing, whoever deletes it and wherever we crash.

pub mod api;
pub mod caches;
pub mod configmap;
pub mod controller;
pub mod execute;
pub mod meta;
pub mod observe;
pub mod placement;
pub mod plan;
pub mod pod;
pub mod ports;
pub mod reconcile;

#[cfg(test)]
mod tests;

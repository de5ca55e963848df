//! The operator on a real Kubernetes, one file a promise. A few tests run side by side; those that stop or kill the one
//! operator, or measure it, run alone (`Scene::alone`).
//!
//! Modules named `local_…` need what only the local Kubernetes has.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "an assumption that fails is a failed test"
)]

mod clients;
mod collisions;
mod debug_overlay;
mod deletion;
mod failed_starts;
mod local_at_rest;
mod local_container_crashes;
mod local_credentials;
mod local_reused_addresses;
mod local_under_load;
mod lost_pods;
mod operator_crashes;
mod passwords;
mod pod_security;
mod presentation;
mod references;
mod shapes;
mod tls;
mod tree;

//! The custom resources on a real API server. One program, so that it is linked once and installs the CRDs once.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "an assumption that fails is a failed test"
)]

mod conformance;
mod floor;
mod injection;
mod install;
mod node_loop;
mod placement;
mod presentation;
mod rules;
mod storage;
mod tenants;
mod updates;

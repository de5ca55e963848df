//! The operator on a real Kubernetes, one file a promise. Tests run one at a time: they stop and kill the one operator.
//!
//! Modules named `local_…` need what only the local Kubernetes has.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "an assumption that fails is a failed test"
)]

mod shapes;

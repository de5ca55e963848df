//! What is kept right on every pass, written only where it differs: cluster-level objects, nodes' status, live pods.
//!
//! None of this is an action: it changes no topology, and each write is safe to repeat.

pub mod nodes;
pub mod objects;
pub mod pods;
pub mod rotation;

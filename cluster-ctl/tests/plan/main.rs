//! The planner, case by case: given a world, when it is planned, then this one step.
//!
//! Worlds are made by `world::World`: a small truth of who is there, from which every node's own view is rendered.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking, like the tests themselves"
)]

mod bootstrap;
mod deletion;
mod failover;
mod lost;
mod machines;
mod properties;
mod repair;
mod restarted;
mod rolling;
mod rotation;
mod safety;
mod status;
mod tls;
mod topology;
mod views;
mod world;

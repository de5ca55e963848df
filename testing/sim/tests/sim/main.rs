//! The operator against the model: fixed and fresh seeds, a crash at every call, and mutants that must be caught.

#![expect(
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking, and say what they tried"
)]

mod crashes;
mod mutants;
mod proofs;
mod seeds;
mod strangers;

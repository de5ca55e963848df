//! The real cluster-ctl ticks and node-ctl passes against a model of Kubernetes and Valkey: seeded, deterministic, on
//! one thread and in virtual time.
//!
//! `world` is the model: `apiserver`, `kubelet`, `valkey` (by the measured facts), `clients`, `people`. `ports` puts it
//! behind the operator's ports; each call is under way for some time, may be lost, and is a point to crash at.
//! `operator` and `node_loop` are the processes around the real code. `scenario` draws a story from a seed, `events`
//! makes it happen, `audit` judges every step against the truth, `simulation` runs it all.
//!
//! The model is no second implementation of the operator: it knows what is true, the operator what it is told.

pub mod audit;
pub mod clock;
mod events;
pub mod faults;
pub mod node_loop;
pub mod operator;
pub mod ports;
pub mod scenario;
pub mod simulation;
pub mod task;
pub mod trace;
pub mod world;

//! The life of a Valkey cluster: bootstrap, repair, scaling, rolling, deletion.
//!
//! One tick: `observe` reads the world into a [`model::Observed`], [`plan::plan`] decides, [`plan::safety`] checks once
//! more, `execute` does one thing, `status` and `upkeep` show and maintain. Only `controller` and the ports know
//! Kubernetes and Valkey clients.

pub mod action;
pub mod ages;
pub mod build;
pub mod caches;
pub mod controller;
pub mod desired;
pub mod execute;
pub mod kube_api;
pub mod machines;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod observe;
pub mod passwords;
pub mod plan;
pub mod ports;
pub mod publish;
pub mod reconcile;
pub mod rotation;
pub mod status;
pub mod tell;
pub mod upkeep;
pub mod valkey_api;
pub mod words;

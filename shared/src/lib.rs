//! What the three binaries of the Valkey operator have in common.
//!
//! Everything here is either plain data, a pure function over it, or a thin port to the outside. Input and output
//! live in `valkey::client` (the only file that names the `redis` crate), `api_client` and `events` (the
//! Kubernetes API), the modules around a process (`run`, `settings`, `telemetry`, `metrics`, `health`), and nowhere else.

pub mod acl;
pub mod api;
pub mod api_client;
pub mod backoff;
pub mod conf;
pub mod crd_check;
pub mod events;
pub mod health;
pub mod metrics;
pub mod names;
pub mod resolve;
pub mod run;
pub mod secret;
pub mod settings;
pub mod slots;
pub mod synced;
pub mod telemetry;
pub mod tls;
pub mod valkey;
pub mod versioned;

//! What tests against a Kubernetes cluster have in common: finding it, a namespace of one's own, kubectl, and waiting;
//! and certificates for tests of any kind.
//!
//! Owns no assertion and no knowledge of the operator. A missing cluster is an error with the command that makes one,
//! never a reason to skip.

pub mod certs;
pub mod cluster;
pub mod kubectl;
pub mod namespace;
pub mod wait;

pub use certs::{Authority, Issued, Request};
pub use cluster::Cluster;
pub use kubectl::{Kubectl, Said};
pub use namespace::TestNamespace;
pub use wait::{Probe, eventually};

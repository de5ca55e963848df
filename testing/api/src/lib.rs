//! The custom resources on a real API server: every rule accepted and refused, what is stored, and what people see.
//!
//! Owns the server under test with our CRDs on it, and the list of cases. The tests in `tests/` run them. Nothing here
//! evaluates a rule itself: only a real kube-apiserver says whether a rule works and fits its cost budget.

pub mod case;
pub mod cases;
pub mod server;

pub use case::{Case, Verdict, accept, reject};
pub use server::Server;

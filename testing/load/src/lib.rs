//! Valkey clusters under load: what a cluster-aware application sees while the operator works, and what is left of its
//! data afterwards.
//!
//! [`Load`] writes numbered values of every data type over all slots and keeps an account of each: which numbers were
//! acknowledged, which failed, how long each took. It ends in a [`Verdict`]: which acknowledged writes are lost. Three
//! kinds of clients run at once: the application's long-lived connections ([`writer`]), newcomers that start from the
//! name of the Service again and again ([`newcomer`]), and [`probe`], which measures how long a slot was not served
//! without a client library's pauses between attempts.
//!
//! [`scenario`] plays operations and faults on a Kubernetes cluster under such a load. The rest knows nothing of
//! Kubernetes or of the operator.

pub mod data;
pub mod interruptions;
pub mod keys;
pub mod ledger;
pub mod newcomer;
pub mod plot;
pub mod probe;
pub mod record;
pub mod report;
pub mod resolve;
pub mod run;
pub mod scenario;
pub mod store;
pub mod writer;

pub use ledger::Verdict;
pub use record::Recorder;
pub use run::{Load, Options};

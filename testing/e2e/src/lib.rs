//! What the end-to-end tests share: the operator as it is installed, a scene to play in, clusters, clients.
//!
//! Everything goes through the Kubernetes API, kubectl and a client Pod inside the cluster, so that the tests run on
//! any cluster in `$KUBECONFIG`. What only the local Kubernetes has (the audit log, the machine's processes) is in
//! [`audit`] and [`processes`]; tests that use them are in modules whose names start with `local_`.

pub mod addresses;
pub mod audit;
pub mod deployed;
pub mod objects;
pub mod operator;
pub mod processes;
pub mod random;
pub mod scene;
pub mod tls;
pub mod turn;
pub mod valkey;

pub use deployed::{Blueprint, Deployed};
pub use objects::{Kind, Objects};
pub use operator::Operator;
pub use random::Random;
pub use scene::Scene;
pub use support::{Authority, Issued, Probe, Request, eventually};
pub use tls::{Forward, TlsSecret};

/// Prints a line of a test's report. Cargo shows it for tests that fail, and with `--nocapture`.
#[expect(clippy::print_stdout, reason = "the report of a test")]
pub fn say(line: &str) {
    println!("{line}");
}

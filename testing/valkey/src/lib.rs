//! Real valkey-server processes for tests.
//!
//! Owns starting and ending them, the configuration of a plain or TLS node as the operator renders it, and polling
//! with a deadline. Each server gets a loopback address and a directory of its own, and is killed by its process id
//! when dropped. A missing binary is a failure, never a skip.

pub mod cluster;
pub mod node;
pub mod server;
pub mod wait;

pub use cluster::{Cluster, Layout};
pub use node::{Node, Setup};
pub use server::{Options, Server, Version};
pub use support::{Authority, Issued, Request};
pub use wait::eventually;

use std::collections::BTreeMap;
use std::time::Duration;

use shared::acl::{AclFile, AclInput, PasswordHash, render};
use shared::api::AclBinding;
use shared::names;
use shared::secret::Redacted;
use shared::valkey::{Credentials, Limits};

/// Limits that a loaded two-core machine keeps.
pub const LIMITS: Limits = Limits { connect: Duration::from_secs(2), response: Duration::from_secs(5) };

/// Password of the operator's user in tests.
pub const OPERATOR_PASSWORD: &str = "operator-secret";
/// Password of the replication user in tests.
pub const REPL_PASSWORD: &str = "repl-secret";

/// Login of the operator.
pub fn operator() -> Credentials {
    Credentials {
        user: names::USER_OPERATOR.to_owned(),
        password: Redacted::new(OPERATOR_PASSWORD.to_owned()),
    }
}

/// The users.acl that the operator renders for `bindings` (whose roles are `roles`) and this version.
pub fn users_acl(
    version: Version,
    bindings: &[AclBinding],
    roles: &BTreeMap<String, shared::api::ValkeyRoleSpec>,
) -> anyhow::Result<AclFile> {
    let hash = |password: &str| [PasswordHash::of(&Redacted::new(password.to_owned()))];
    Ok(render(&AclInput {
        config: &[],
        cluster: bindings,
        roles,
        operator_passwords: &hash(OPERATOR_PASSWORD),
        repl_passwords: &hash(REPL_PASSWORD),
        engine: version.engine(),
    })?)
}

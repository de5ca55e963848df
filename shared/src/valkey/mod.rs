//! Everything that speaks to Valkey.
//!
//! `types` and `parse` are plain data and total parsers; `report` is what one node says of itself and of the others;
//! `client` dials, logs in and frames (the only file that names the `redis` crate); `commands` is the closed list of
//! what the operator sends; `pool` keeps one connection per node. Nothing here decides anything.

pub mod certificate;
pub mod client;
pub mod commands;
pub mod error;
pub mod info;
pub mod parse;
pub mod pool;
pub mod report;
pub mod types;
pub mod view;

#[cfg(test)]
mod tests;

pub use client::{Connection, Credentials, Endpoint, Limits, TlsTarget, connect, prove_revision};
pub use commands::{FailoverKind, Forgot};
pub use error::{LostCause, ValkeyError};
pub use info::{Info, PrimaryLink, ReplicaLink, Role, TlsInfo};
pub use parse::ParseError;
pub use pool::Pool;
pub use report::{ClusterInfo, MigrationState, NodeReport, Operation, SlotMigration};
pub use types::{EngineVersion, Epoch, NodeAddress, NodeFlags, NodeId, NodeLine, Offset, OpenSlot, ShardId};

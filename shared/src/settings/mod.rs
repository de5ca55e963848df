//! Settings of the operator: compiled defaults, then the mounted ConfigMap, then a local file, then the environment.
//!
//! Owns the keys, their types and bounds, and the one line that says what is wrong with a bad one. Read once at start;
//! nothing else in the project reads a setting from the environment. All three binaries share all keys: a key that
//! only another binary uses is accepted.

mod layers;
mod types;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use figment::Figment;
use figment::error::Kind;
use figment::providers::Serialized;
use serde::{Deserialize, Serialize};

pub use types::ByteSize;

use crate::api::ZoneSpread;
use crate::names;

/// Where the ConfigMap `valkey-operator-config` is mounted, unless `--config-dir` says otherwise.
pub const DEFAULT_CONFIG_DIR: &str = "/etc/valkey-operator";

/// One of the three processes of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// Owns the life of clusters.
    ClusterCtl,
    /// Creates the ConfigMap and the Pod of a node.
    NodeCtl,
    /// Reloads ACLs and certificates.
    ReconcileLoops,
}

impl Binary {
    /// Name of the executable and of its container.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterCtl => "cluster-ctl",
            Self::NodeCtl => "node-ctl",
            Self::ReconcileLoops => "reconcile-loops",
        }
    }

    /// Field manager of its writes, also the controller named in its events.
    pub const fn manager(self) -> &'static str {
        match self {
            Self::ClusterCtl => names::MANAGER_CLUSTER,
            Self::NodeCtl => names::MANAGER_NODE,
            Self::ReconcileLoops => names::MANAGER_LOOPS,
        }
    }

    /// Port of `/livez`, `/readyz` and `/metrics`: one each, since the three share a pod.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::ClusterCtl => 8081,
            Self::NodeCtl => 8082,
            Self::ReconcileLoops => 8083,
        }
    }
}

/// All settings, with their defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Zone spread of clusters that do not set `placement.zoneSpread`.
    #[serde(deserialize_with = "types::zone_spread")]
    pub default_zone_spread: ZoneSpread,
    /// Time between two ACL passes.
    #[serde(serialize_with = "types::show_duration", deserialize_with = "types::duration")]
    pub acl_tick: Duration,
    /// Time between two TLS passes.
    #[serde(serialize_with = "types::show_duration", deserialize_with = "types::duration")]
    pub tls_tick: Duration,
    /// Time between two looks at a settled cluster.
    #[serde(serialize_with = "types::show_duration", deserialize_with = "types::duration")]
    pub heartbeat: Duration,
    /// Time between two looks at a cluster that waits for something.
    #[serde(serialize_with = "types::show_duration", deserialize_with = "types::duration")]
    pub wait_requeue: Duration,
    /// Limit for opening a connection to a Valkey node, TLS and login included.
    #[serde(serialize_with = "types::show_duration", deserialize_with = "types::duration")]
    pub valkey_connect_timeout: Duration,
    /// Limit for one reply of a Valkey node.
    #[serde(serialize_with = "types::show_duration", deserialize_with = "types::duration")]
    pub valkey_timeout: Duration,
    /// Limit for one answer of the Kubernetes API.
    #[serde(serialize_with = "types::show_duration", deserialize_with = "types::duration")]
    pub api_timeout: Duration,
    /// How long a primary must be flagged failed before an election is forced.
    #[serde(serialize_with = "types::show_duration", deserialize_with = "types::duration")]
    pub failover_patience: Duration,
    /// How long a failed member must be unreachable before it is replaced.
    #[serde(serialize_with = "types::show_duration", deserialize_with = "types::duration")]
    pub node_loss_patience: Duration,
    /// Most slots moved in one migration job, 1 to 16384.
    #[serde(deserialize_with = "types::slot_batch")]
    pub slot_batch: u16,
    /// Most data, as estimated, moved in one migration job.
    #[serde(deserialize_with = "types::byte_size")]
    pub slot_batch_bytes: ByteSize,
    /// Nodes asked at once in a pass, 1 to 1024.
    #[serde(deserialize_with = "types::fan_out")]
    pub node_fan_out: u16,
    /// Address of the one listener.
    #[serde(deserialize_with = "types::address")]
    pub listen_address: SocketAddr,
}

impl Settings {
    /// The compiled defaults of one binary.
    pub const fn defaults(binary: Binary) -> Self {
        Self {
            default_zone_spread: ZoneSpread::BestEffort,
            acl_tick: Duration::from_secs(30),
            tls_tick: Duration::from_secs(30),
            heartbeat: Duration::from_secs(15),
            wait_requeue: Duration::from_millis(500),
            valkey_connect_timeout: Duration::from_secs(1),
            valkey_timeout: Duration::from_secs(1),
            api_timeout: Duration::from_secs(10),
            failover_patience: Duration::from_secs(20),
            node_loss_patience: Duration::from_secs(30),
            slot_batch: 1024,
            slot_batch_bytes: ByteSize(8 << 20),
            node_fan_out: 32,
            listen_address: SocketAddr::new(
                std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
                binary.default_port(),
            ),
        }
    }

    /// Reads all layers. `env` yields environment variables; those of no setting are ignored.
    ///
    /// # Errors
    /// A source cannot be read, or a key or value in it is wrong. The message is one line and names all of it.
    pub fn load(
        binary: Binary,
        sources: &Sources,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, SettingsError> {
        let entries = layers::read(sources, env)?;
        let mut figment = Figment::from(Serialized::defaults(Self::defaults(binary)));
        for entry in &entries {
            figment = figment.merge(entry);
        }
        figment.extract().map_err(|error| describe(&error, &figment))
    }
}

/// Where settings come from, besides the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// The mounted ConfigMap: one file a key. Absent means defaults.
    pub directory: PathBuf,
    /// A YAML file with the same keys, for local work.
    pub file: Option<PathBuf>,
}

impl Default for Sources {
    fn default() -> Self {
        Self { directory: PathBuf::from(DEFAULT_CONFIG_DIR), file: None }
    }
}

/// What is wrong with the settings, in one line.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A key that no binary knows.
    #[error("setting {key} ({from}) is unknown: known are {known}")]
    Unknown {
        /// The key as written.
        key: String,
        /// Where it was found.
        from: String,
        /// All known keys.
        known: String,
    },
    /// A value that its key does not allow.
    #[error("setting {key}: {value} ({from}) is not allowed: {allowed}")]
    Value {
        /// The key.
        key: String,
        /// The value as written.
        value: String,
        /// Where it was found.
        from: String,
        /// What is allowed.
        allowed: String,
    },
    /// A source exists but cannot be read.
    #[error("cannot read settings from {path}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The local file is no YAML map.
    #[error("{path} is no YAML map of settings: {problem}")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// What the parser says, in one line.
        problem: String,
    },
}

/// One line for the first thing that is wrong.
fn describe(error: &figment::Error, figment: &Figment) -> SettingsError {
    if let Kind::UnknownField(key, known) = &error.kind {
        return SettingsError::Unknown {
            key: key.clone(),
            from: origin(figment, key),
            known: known.join(", "),
        };
    }
    let key = error.path.last().cloned().unwrap_or_default();
    SettingsError::Value {
        value: figment.find_value(&key).map_or_else(|_| "nothing".to_owned(), |value| layers::show(&value)),
        from: origin(figment, &key),
        allowed: error.kind.to_string(),
        key,
    }
}

fn origin(figment: &Figment, key: &str) -> String {
    figment.find_metadata(key).map_or_else(|| "unknown source".to_owned(), |from| from.name.to_string())
}

#[cfg(test)]
mod tests;

//! Renders valkey.conf: forced settings, our defaults, and what people wrote.
//!
//! Pure and deterministic: the same input gives the same bytes, for ever (a new release must not make running nodes
//! differ from their file). Owns which settings are forced. Must not hold a credential: the replication password comes
//! by the include in the last line.

mod quantity;
mod quote;

use std::collections::BTreeMap;

pub use quantity::whole_units;

use crate::names;
use crate::valkey::EngineVersion;

/// Where the node's ConfigMap is mounted.
pub const CONF_DIR: &str = "/etc/valkey";
/// Where the ACL ConfigMap is mounted.
pub const ACL_DIR: &str = "/etc/valkey/acl";
/// Where the node's part of the auth Secret is mounted.
pub const AUTH_DIR: &str = "/etc/valkey/auth";
/// Where the TLS Secret is mounted.
pub const TLS_DIR: &str = "/etc/valkey/tls";
/// The one writable directory.
pub const DATA_DIR: &str = "/var/lib/valkey";

/// The engine that a declared version which does not parse is treated as: the oldest that is supported.
pub const OLDEST_ENGINE: EngineVersion = EngineVersion::new(8, 1, 0);

/// Settings that would break authentication, membership or the process. The schema of `ValkeyConfig` refuses them; one
/// that slipped past is an error here.
const REFUSED: [&str; 13] = [
    "cluster-port",
    "cluster-replica-no-failover",
    "cluster-slave-no-failover",
    "daemonize",
    "enable-protected-configs",
    "include",
    "pidfile",
    "rename-command",
    "replicaof",
    "requirepass",
    "slaveof",
    "supervised",
    "user",
];
/// Groups of refused settings; forced ones among them are overridden instead.
const REFUSED_PREFIXES: [&str; 4] = ["syslog-", "replica-announce-", "slave-announce-", "cluster-announce-"];

/// Longest name of a setting, in characters.
const MAX_KEY: usize = 128;
/// Longest value of a setting, in characters.
const MAX_VALUE: usize = 4096;

/// What a node's valkey.conf depends on.
#[derive(Debug, Clone)]
pub struct ConfInput<'a> {
    /// The settings that people wrote, resolved.
    pub settings: &'a BTreeMap<String, String>,
    /// The memory limit as a Kubernetes quantity, if there is one.
    pub memory: Option<&'a str>,
    /// Whether the node serves TLS only.
    pub tls: bool,
    /// The engine that the image declares; [`OLDEST_ENGINE`] when it declares nothing that parses.
    pub version: EngineVersion,
    /// The name that the node announces: `{pod}.{cluster}.{namespace}.svc.cluster.local`.
    pub host: &'a str,
}

/// A rendered valkey.conf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conf {
    /// The file.
    pub text: String,
    /// Settings that people wrote and that have no effect because the operator forces them, in order.
    pub overridden: Vec<String>,
}

/// Why a valkey.conf cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfError {
    /// The setting would break the node's authentication, membership or process.
    #[error("setting {key:?} is not allowed")]
    Refused {
        /// The setting.
        key: String,
    },
    /// The name is no directive name.
    #[error(
        "setting {key:?} is no name of a Valkey setting: lower-case letters, digits and hyphens, at most 128"
    )]
    Key {
        /// The setting.
        key: String,
    },
    /// The value cannot be written on one line.
    #[error("value of setting {key:?} has control characters or more than 4096 characters")]
    Value {
        /// The setting.
        key: String,
    },
    /// The memory limit is no Kubernetes quantity.
    #[error("memory {memory:?} is no Kubernetes quantity")]
    Memory {
        /// The limit as written.
        memory: String,
    },
}

/// Renders valkey.conf.
///
/// # Errors
/// A setting or the memory limit cannot be expressed safely; nothing is guessed or left out silently.
pub fn render(input: &ConfInput<'_>) -> Result<Conf, ConfError> {
    let forced = forced(input);
    let mut lines = defaults(input)?;
    let mut overridden = Vec::new();
    for (key, value) in input.settings {
        check(key, value)?;
        if forced.contains_key(canonical(key)) || !has_effect(key, value) {
            overridden.push(key.clone());
        } else if is_refused(key) {
            return Err(ConfError::Refused { key: key.clone() });
        } else {
            lines.insert(key.clone(), value.clone());
        }
    }
    lines.extend(forced.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));

    let lines = lines.iter().filter_map(|(key, value)| quote::line(key, value));
    // Last, so that it wins over everything.
    let include = format!("include {AUTH_DIR}/{}", names::KEY_PRIMARYAUTH_CONF);
    let text = lines.chain([include]).map(|line| line + "\n").collect();
    Ok(Conf { text, overridden })
}

/// Arguments of `valkey-server` behind the file: what is known only when the pod runs. `POD_IP` is an environment
/// variable of the container; Kubernetes expands it.
pub fn pod_arguments() -> [String; 2] {
    ["--cluster-announce-ip".to_owned(), "$(POD_IP)".to_owned()]
}

/// Forced settings. One without a value is not written: it is given elsewhere (by the include, on the command line), or
/// the engine's own default is meant and an engine may be built without knowing it.
fn forced(input: &ConfInput<'_>) -> BTreeMap<&'static str, Option<String>> {
    let port = names::CLIENT_PORT.to_string();
    let (plain_port, endpoint) = if input.tls { ("0", "hostname") } else { (port.as_str(), "ip") };
    let acl_file = format!("{ACL_DIR}/{}", names::KEY_USERS_ACL);
    let config_file = format!("{DATA_DIR}/nodes.conf");
    let mut forced: BTreeMap<&'static str, Option<String>> = [
        ("aclfile", acl_file.as_str()),
        // Both families.
        ("bind", "* -::*"),
        // A drained primary and its replicas would attach themselves to another shard.
        ("cluster-allow-replica-migration", "no"),
        ("cluster-announce-hostname", input.host),
        ("cluster-config-file", &config_file),
        ("cluster-enabled", "yes"),
        ("cluster-node-timeout", "5000"),
        ("cluster-preferred-endpoint-type", endpoint),
        ("cluster-replica-no-failover", "no"),
        ("daemonize", "no"),
        ("dir", DATA_DIR),
        ("logfile", ""),
        ("port", plain_port),
        ("primaryuser", names::USER_REPL),
        ("protected-mode", "no"),
    ]
    .into_iter()
    .map(|(key, value)| (key, Some(value.to_owned())))
    .collect();
    if input.tls {
        let file = |name: &str| Some(format!("{TLS_DIR}/{name}"));
        forced.extend([
            ("tls-auth-clients", Some("no".to_owned())),
            ("tls-ca-cert-file", file("ca.crt")),
            ("tls-cert-file", file("tls.crt")),
            ("tls-cluster", Some("yes".to_owned())),
            ("tls-key-file", file("tls.key")),
            ("tls-port", Some(port)),
            ("tls-replication", Some("yes".to_owned())),
            // More authorities than the file's: the cluster bus trusts whom these vouch for.
            ("tls-ca-cert-dir", None),
        ]);
    } else {
        // A second door, or members that speak TLS to plaintext ports. Other tls-* settings have no effect without these.
        forced.extend([("tls-cluster", None), ("tls-port", None), ("tls-replication", None)]);
    }
    // Never encrypted, and beside the one port.
    forced.insert("rdma-port", None);
    forced.insert("cluster-announce-ip", None);
    forced.insert("primaryauth", None);
    forced
}

/// Defaults that a config may override, for this engine: one that it does not know would stop it at its start.
fn defaults(input: &ConfInput<'_>) -> Result<BTreeMap<String, String>, ConfError> {
    let mut defaults = BTreeMap::from([
        // The engine's five seconds dominate bootstrap and every re-attach.
        ("repl-diskless-sync-delay".to_owned(), "0".to_owned()),
        ("save".to_owned(), String::new()),
    ]);
    let on_sigterm = if input.version.migrates_slots() { "nosave failover" } else { "nosave" };
    defaults.insert("shutdown-on-sigterm".to_owned(), on_sigterm.to_owned());
    if input.version.migrates_slots() {
        // The engine's 0 starves the hand-over of slots under constant writes.
        defaults.insert("slot-migration-max-failover-repl-bytes".to_owned(), "64mb".to_owned());
    }
    if let Some(memory) = input.memory {
        let limit = whole_units(memory).ok_or_else(|| ConfError::Memory { memory: memory.to_owned() })?;
        // Three quarters: without a limit of its own the kernel kills the only copy in a full sync. 0 would mean none.
        let most = limit / 4 * 3 + limit % 4 * 3 / 4;
        defaults.insert("maxmemory".to_owned(), most.max(1).to_string());
    }
    Ok(defaults)
}

/// The name under which a setting is forced, where the engine knows it by an older one too.
fn canonical(key: &str) -> &str {
    match key {
        "masterauth" => "primaryauth",
        "masteruser" => "primaryuser",
        "cluster-slave-no-failover" => "cluster-replica-no-failover",
        key => key,
    }
}

/// Of `repl-diskless-load` only these two are safe in a cluster: the others can leave a replica without any data.
fn has_effect(key: &str, value: &str) -> bool {
    key != "repl-diskless-load" || ["disabled", "swapdb"].contains(&value.to_ascii_lowercase().as_str())
}

fn is_refused(key: &str) -> bool {
    REFUSED.contains(&key) || REFUSED_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

fn check(key: &str, value: &str) -> Result<(), ConfError> {
    let first = key.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    let rest = key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !first || !rest || key.len() > MAX_KEY {
        return Err(ConfError::Key { key: key.to_owned() });
    }
    if value.chars().any(char::is_control) || value.chars().count() > MAX_VALUE {
        return Err(ConfError::Value { key: key.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests;

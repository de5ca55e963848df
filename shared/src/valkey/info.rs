//! INFO (Valkey 8.1 and 9.1): the fields that the operator uses, parsed.
//!
//! Owns the mapping from the engine's field names to ours (the engine says master and slave). Total like `parse`.

use serde::Serialize;

use super::parse::{Fields, ParseError, cut};
use super::types::{EngineVersion, Offset};

/// The sections asked for in one INFO command; an engine that does not know one leaves it out.
pub const SECTIONS: [&str; 6] = ["server", "memory", "persistence", "replication", "keyspace", "tls"];

/// A node's role by its own account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Role {
    /// Serves writes, if it owns slots.
    Primary,
    /// Follows a primary.
    Replica,
}

impl Role {
    /// `primary` or `replica`, as labels and messages say it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
        }
    }
}

/// A replica's link to its primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PrimaryLink {
    /// Address of the primary as configured.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// `master_link_status:up`.
    pub up: bool,
    /// A full sync is under way.
    pub sync_in_progress: bool,
    /// Seconds since the last interaction; -1 when there was none.
    pub last_io_seconds: i64,
    /// Offset processed by the replica. 1 before the first sync, so a positive offset proves nothing.
    pub offset: Offset,
    /// Seconds since the link went down; `None` while it is up. -1 when it was never up.
    pub down_since_seconds: Option<i64>,
}

/// A primary's entry for one attached replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplicaLink {
    /// Address of the replica.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// `state=online`: the full sync is over and the stream flows.
    pub online: bool,
    /// Offset that the replica acknowledged, once a second: under load up to a second old.
    pub offset: Offset,
    /// Seconds since that acknowledgement.
    pub lag: i64,
}

/// TLS material in use (section `tls`, since 9.1; absent on 8.1 and without TLS).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TlsInfo {
    /// Serial number of the server certificate, upper-case hexadecimal as the engine writes it.
    pub server_cert_serial: String,
    /// Seconds until it expires; negative afterwards.
    pub server_cert_expires_in_seconds: Option<i64>,
    /// Serial number of the CA certificate.
    pub ca_cert_serial: Option<String>,
}

/// INFO, sections server, memory, persistence, replication, keyspace and tls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Info {
    /// `valkey_version`.
    pub version: EngineVersion,
    /// Identity of the running process: another one means a restart.
    pub run_id: String,
    /// Age of the process in seconds.
    pub uptime_seconds: u64,
    /// The node's own clock, Unix microseconds; compare its view's pong times with this, never with ours.
    pub server_time_usec: u64,
    /// A data set is being loaded from disk or from the primary.
    pub loading: bool,
    /// Memory in use, bytes.
    pub used_memory: u64,
    /// Limit of the data set, bytes; 0 means none.
    pub maxmemory: u64,
    /// Keys in all databases; on a replica the ones it holds.
    pub keys: u64,
    /// Role.
    pub role: Role,
    /// `master_replid`: two nodes with the same one have comparable offsets.
    pub replication_id: String,
    /// `master_repl_offset`: on a primary the end of its stream.
    pub offset: Offset,
    /// Attached replicas, on a primary.
    pub replicas: Vec<ReplicaLink>,
    /// The link to the primary, on a replica.
    pub link: Option<PrimaryLink>,
    /// TLS material, where reported.
    pub tls: Option<TlsInfo>,
}

/// Parses the reply of INFO with at least [`SECTIONS`].
pub fn info(text: &str) -> Result<Info, ParseError> {
    let fields = Fields::new("INFO", text);
    // Other engines of the family report redis_version only.
    let version_field =
        if fields.by_name.contains_key("valkey_version") { "valkey_version" } else { "redis_version" };
    let version = fields.text(version_field)?;
    let version = version.parse().map_err(|source| ParseError::Text { reply: "INFO", source })?;
    let role = match fields.text("role")? {
        "master" => Role::Primary,
        "slave" => Role::Replica,
        other => {
            return Err(ParseError::Value { reply: "INFO", field: "role", value: cut(other, 80) });
        }
    };
    Ok(Info {
        version,
        run_id: fields.text("run_id")?.to_owned(),
        uptime_seconds: fields.number("uptime_in_seconds")?,
        server_time_usec: fields.number("server_time_usec")?,
        loading: flag(&fields, "loading")?,
        used_memory: fields.number("used_memory")?,
        maxmemory: fields.number("maxmemory")?,
        keys: keys(&fields)?,
        role,
        replication_id: fields.text("master_replid")?.to_owned(),
        offset: Offset(fields.number("master_repl_offset")?),
        replicas: replicas(&fields)?,
        link: match role {
            Role::Primary => None,
            Role::Replica => Some(link(&fields)?),
        },
        tls: tls(&fields)?,
    })
}

fn flag(fields: &Fields<'_>, field: &'static str) -> Result<bool, ParseError> {
    // Loading states above 1 exist (2: asynchronous loading of a replica).
    fields.number::<u8>(field).map(|value| value != 0)
}

fn link(fields: &Fields<'_>) -> Result<PrimaryLink, ParseError> {
    Ok(PrimaryLink {
        host: fields.text("master_host")?.to_owned(),
        port: fields.number("master_port")?,
        up: fields.text("master_link_status")? == "up",
        sync_in_progress: flag(fields, "master_sync_in_progress")?,
        last_io_seconds: fields.number("master_last_io_seconds_ago")?,
        offset: Offset(fields.number("slave_repl_offset")?),
        down_since_seconds: fields.optional("master_link_down_since_seconds")?,
    })
}

/// Fields named `prefix` and a number, with `read` applied to each value; one that cannot be read is an error, since a
/// skipped one would make a node look emptier than it is.
fn numbered<T>(
    fields: &Fields<'_>,
    prefix: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, ParseError> {
    let is_entry = |name: &str| {
        let digits = name.strip_prefix(prefix);
        digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let entries = fields.by_name.iter().filter(|(name, _)| is_entry(name)).map(|(_, value)| *value);
    let bad = |value| ParseError::Value { reply: "INFO", field: prefix, value: cut(value, 80) };
    entries.map(|value| read(value).ok_or_else(|| bad(value))).collect()
}

/// `slave0:ip=127.0.1.4,port=6379,state=online,offset=14,lag=1,type=replica`.
fn replicas(fields: &Fields<'_>) -> Result<Vec<ReplicaLink>, ParseError> {
    numbered(fields, "slave", |entry| {
        let value =
            |name| entry.split(',').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
        let value = |name| value(name).map(|(_, value)| value);
        Some(ReplicaLink {
            host: value("ip")?.to_owned(),
            port: value("port")?.parse().ok()?,
            online: value("state")? == "online",
            offset: Offset(value("offset")?.parse().ok()?),
            lag: value("lag")?.parse().ok()?,
        })
    })
}

/// Sum of `keys=` over `db0`, `db1`, …
fn keys(fields: &Fields<'_>) -> Result<u64, ParseError> {
    let counts = numbered(fields, "db", |entry| {
        entry.split(',').find_map(|pair| pair.strip_prefix("keys="))?.parse::<u64>().ok()
    })?;
    Ok(counts.into_iter().fold(0, u64::saturating_add))
}

fn tls(fields: &Fields<'_>) -> Result<Option<TlsInfo>, ParseError> {
    // Without TLS 9.1 still prints the section, with the word none for each serial.
    let serial = |field| fields.by_name.get(field).filter(|serial| !matches!(**serial, "" | "none"));
    let Some(server) = serial("tls_server_cert_serial") else { return Ok(None) };
    Ok(Some(TlsInfo {
        server_cert_serial: (*server).to_owned(),
        server_cert_expires_in_seconds: fields.optional("tls_server_cert_expires_in_seconds")?,
        ca_cert_serial: serial("tls_ca_cert_serial").map(|serial| (*serial).to_owned()),
    }))
}

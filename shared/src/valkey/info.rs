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
        keys: keys(&fields),
        role,
        replication_id: fields.text("master_replid")?.to_owned(),
        offset: Offset(fields.number("master_repl_offset")?),
        replicas: replicas(&fields),
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

/// `slave0:ip=127.0.1.4,port=6379,state=online,offset=14,lag=1,type=replica`; other entries are skipped.
fn replicas(fields: &Fields<'_>) -> Vec<ReplicaLink> {
    let is_entry = |name: &str| {
        let digits = name.strip_prefix("slave");
        digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    fields.by_name.iter().filter(|(name, _)| is_entry(name)).filter_map(|(_, entry)| replica(entry)).collect()
}

fn replica(entry: &str) -> Option<ReplicaLink> {
    let mut link = ReplicaLink { host: String::new(), port: 0, online: false, offset: Offset(0), lag: -1 };
    for (name, value) in entry.split(',').filter_map(|pair| pair.split_once('=')) {
        match name {
            "ip" => value.clone_into(&mut link.host),
            "port" => link.port = value.parse().ok()?,
            "state" => link.online = value == "online",
            "offset" => link.offset = Offset(value.parse().ok()?),
            "lag" => link.lag = value.parse().ok()?,
            _ => {}
        }
    }
    Some(link)
}

/// Sum of `keys=` over `db0`, `db1`, …
fn keys(fields: &Fields<'_>) -> u64 {
    let is_db = |name: &str| {
        let digits = name.strip_prefix("db");
        digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let count = |entry: &str| {
        entry
            .split(',')
            .filter_map(|pair| pair.strip_prefix("keys="))
            .find_map(|count| count.parse::<u64>().ok())
    };
    let per_db = fields.by_name.iter().filter(|(name, _)| is_db(name)).filter_map(|(_, entry)| count(entry));
    per_db.fold(0, u64::saturating_add)
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

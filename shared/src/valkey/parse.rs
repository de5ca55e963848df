//! Total parsers for CLUSTER NODES, CLUSTER INFO and GETSLOTMIGRATIONS (Valkey 8.1 and 9.1).
//!
//! A parser never panics and never guesses: text that does not have the documented shape is an error that quotes it.
//! Words added by later versions (flags, fields, job states) are tolerated. `info` has the parser for INFO.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use super::report::{ClusterInfo, MigrationState, Operation, SlotMigration};
use super::types::{Epoch, InvalidText, NodeAddress, NodeFlags, NodeId, NodeLine, OpenSlot};
use crate::slots::{SlotRange, SlotSet};

/// A reply that does not have the documented form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A line of CLUSTER NODES.
    #[error("CLUSTER NODES: {problem} in line {line:?}")]
    NodeLine {
        /// What is wrong.
        problem: &'static str,
        /// The line, cut to 200 characters.
        line: String,
    },
    /// A reply lacks a field that every supported version sends.
    #[error("{reply} lacks field {field}")]
    Missing {
        /// Which reply.
        reply: &'static str,
        /// Which field.
        field: &'static str,
    },
    /// A field has a value out of its domain.
    #[error("{reply} has field {field} with value {value:?}")]
    Value {
        /// Which reply.
        reply: &'static str,
        /// Which field.
        field: &'static str,
        /// The value, cut to 80 characters.
        value: String,
    },
    /// A reply has another structure than documented.
    #[error("{reply} is not {expected}")]
    Shape {
        /// Which reply.
        reply: &'static str,
        /// What was expected, with its article.
        expected: &'static str,
    },
    /// An id or version inside a reply.
    #[error("{reply} holds a malformed value")]
    Text {
        /// Which reply.
        reply: &'static str,
        /// What is malformed.
        #[source]
        source: InvalidText,
    },
}

/// A reply as the protocol carries it, RESP2 or RESP3, without the client library's types.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// A number.
    Int(i64),
    /// A simple, bulk or verbatim string. Not necessarily UTF-8.
    Text(Vec<u8>),
    /// An array, set or push.
    Array(Vec<Reply>),
    /// A map (RESP3).
    Map(Vec<(Reply, Reply)>),
    /// The server's error, code included: `ERR unknown subcommand …`.
    Error(String),
}

impl Reply {
    /// The reply as text, if it is a string or a number.
    pub fn as_text(&self) -> Option<String> {
        match self {
            Self::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Self::Int(number) => Some(number.to_string()),
            Self::Nil | Self::Array(_) | Self::Map(_) | Self::Error(_) => None,
        }
    }
}

/// Cuts a quotation so that a hostile or broken reply cannot fill the log.
pub(super) fn cut(text: &str, limit: usize) -> String {
    text.chars().take(limit).collect()
}

/// Reads the fields of a `name:value` reply that a reader cares about; lines of another form are skipped.
pub(super) struct Fields<'a> {
    pub(super) reply: &'static str,
    pub(super) by_name: BTreeMap<&'a str, &'a str>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(reply: &'static str, text: &'a str) -> Self {
        let by_name =
            text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(':'));
        Self { reply, by_name: by_name.collect() }
    }

    pub(super) fn text(&self, field: &'static str) -> Result<&'a str, ParseError> {
        self.by_name.get(field).copied().ok_or(ParseError::Missing { reply: self.reply, field })
    }

    pub(super) fn number<T: FromStr>(&self, field: &'static str) -> Result<T, ParseError> {
        let value = self.text(field)?;
        value.parse().map_err(|_| ParseError::Value { reply: self.reply, field, value: cut(value, 80) })
    }

    pub(super) fn optional<T: FromStr>(&self, field: &'static str) -> Result<Option<T>, ParseError> {
        if self.by_name.contains_key(field) { self.number(field).map(Some) } else { Ok(None) }
    }
}

/// Parses the reply of CLUSTER NODES. Empty lines are skipped; the order is kept.
pub fn cluster_nodes(text: &str) -> Result<Vec<NodeLine>, ParseError> {
    text.lines().filter(|line| !line.trim().is_empty()).map(node_line).collect()
}

/// Parses one line of CLUSTER NODES.
pub fn node_line(line: &str) -> Result<NodeLine, ParseError> {
    let bad = |problem| ParseError::NodeLine { problem, line: cut(line, 200) };
    let mut words = line.split_ascii_whitespace();
    let mut word = |problem| words.next().ok_or_else(|| bad(problem));
    let id = word("no id")?.parse().map_err(|_| bad("malformed id"))?;
    let (address, hostname) = node_address(word("no address")?).ok_or_else(|| bad("malformed address"))?;
    let flags = node_flags(word("no flags")?);
    let primary = match word("no primary")? {
        "-" => None,
        other => Some(other.parse().map_err(|_| bad("malformed primary id"))?),
    };
    let ping_sent = word("no ping time")?.parse().map_err(|_| bad("malformed ping time"))?;
    let pong_recv = word("no pong time")?.parse().map_err(|_| bad("malformed pong time"))?;
    let epoch = Epoch(word("no epoch")?.parse().map_err(|_| bad("malformed epoch"))?);
    let link_connected = match word("no link state")? {
        "connected" => true,
        "disconnected" => false,
        _ => return Err(bad("unknown link state")),
    };
    let mut ranges = Vec::new();
    let mut open_slots = Vec::new();
    for word in words {
        match word.strip_prefix('[') {
            Some(open) => open_slots.push(open_slot(open).ok_or_else(|| bad("malformed open slot"))?),
            None => ranges.push(slot_range(word).ok_or_else(|| bad("malformed slot range"))?),
        }
    }
    let slots = SlotSet::from_ranges(ranges);
    Ok(NodeLine {
        id,
        address,
        hostname,
        flags,
        primary,
        ping_sent,
        pong_recv,
        epoch,
        link_connected,
        slots,
        open_slots,
    })
}

/// `ip:port@bus[,hostname[,name=value…]]`; an IPv6 address has no brackets, so the last colon splits.
fn node_address(text: &str) -> Option<(Option<NodeAddress>, Option<String>)> {
    let mut fields = text.split(',');
    let (host, ports) = fields.next()?.rsplit_once(':')?;
    // Auxiliary fields come after the hostname in newer versions; an empty hostname keeps its comma.
    let hostname =
        fields.next().filter(|name| !name.is_empty() && !name.contains('=')).map(ToOwned::to_owned);
    let (port, bus_port) = ports.split_once('@')?;
    let (port, bus_port) = (port.parse().ok()?, bus_port.parse().ok()?);
    let unknown = host.is_empty() && port == 0;
    Some(((!unknown).then(|| NodeAddress { host: host.to_owned(), port, bus_port }), hostname))
}

fn node_flags(text: &str) -> NodeFlags {
    let mut flags = NodeFlags::default();
    for word in text.split(',') {
        match word {
            "myself" => flags.myself = true,
            "master" => flags.primary = true,
            "slave" => flags.replica = true,
            "fail" => flags.fail = true,
            "fail?" => flags.pfail = true,
            "handshake" => flags.handshake = true,
            "noaddr" => flags.noaddr = true,
            "nofailover" => flags.nofailover = true,
            _ => {}
        }
    }
    flags
}

/// `5` or `0-5460`.
fn slot_range(text: &str) -> Option<SlotRange> {
    let (start, end) = text.split_once('-').unwrap_or((text, text));
    SlotRange::new(start.parse().ok()?, end.parse().ok()?)
}

/// `5->-id]` or `5-<-id]`, the opening bracket gone.
fn open_slot(text: &str) -> Option<OpenSlot> {
    let text = text.strip_suffix(']')?;
    let slot_number =
        |text: &str| slot_range(text).filter(|range| range.start == range.end).map(|range| range.start);
    if let Some((slot, to)) = text.split_once("->-") {
        return Some(OpenSlot::Migrating { slot: slot_number(slot)?, to: to.parse().ok()? });
    }
    let (slot, from) = text.split_once("-<-")?;
    Some(OpenSlot::Importing { slot: slot_number(slot)?, from: from.parse().ok()? })
}

/// Parses the reply of CLUSTER INFO.
pub fn cluster_info(text: &str) -> Result<ClusterInfo, ParseError> {
    let fields = Fields::new("CLUSTER INFO", text);
    let ok = match fields.text("cluster_state")? {
        "ok" => true,
        "fail" => false,
        other => {
            let (reply, field) = (fields.reply, "cluster_state");
            return Err(ParseError::Value { reply, field, value: cut(other, 80) });
        }
    };
    Ok(ClusterInfo {
        ok,
        slots_assigned: fields.number("cluster_slots_assigned")?,
        slots_ok: fields.number("cluster_slots_ok")?,
        slots_pfail: fields.number("cluster_slots_pfail")?,
        slots_fail: fields.number("cluster_slots_fail")?,
        known_nodes: fields.number("cluster_known_nodes")?,
        size: fields.number("cluster_size")?,
        current_epoch: Epoch(fields.number("cluster_current_epoch")?),
        my_epoch: Epoch(fields.number("cluster_my_epoch")?),
    })
}

const MIGRATIONS: &str = "CLUSTER GETSLOTMIGRATIONS";

/// Parses the reply of CLUSTER GETSLOTMIGRATIONS (since 9.0): one flat array (RESP2) or map (RESP3) a job, newest first.
pub fn slot_migrations(reply: &Reply) -> Result<Vec<SlotMigration>, ParseError> {
    let Reply::Array(jobs) = reply else {
        return Err(ParseError::Shape { reply: MIGRATIONS, expected: "an array of jobs" });
    };
    jobs.iter().map(slot_migration).collect()
}

fn slot_migration(job: &Reply) -> Result<SlotMigration, ParseError> {
    let owned: Vec<(String, String)> = match job {
        Reply::Map(pairs) => {
            pairs.iter().filter_map(|(name, value)| name.as_text().zip(value.as_text())).collect()
        }
        Reply::Array(flat) => flat
            .chunks(2)
            .filter_map(|pair| match pair {
                [name, value] => name.as_text().zip(value.as_text()),
                _ => None,
            })
            .collect(),
        _ => return Err(ParseError::Shape { reply: MIGRATIONS, expected: "an array of maps" }),
    };
    let by_name = owned.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let fields = Fields { reply: MIGRATIONS, by_name };
    let value_error =
        |field, value: &str| ParseError::Value { reply: MIGRATIONS, field, value: cut(value, 80) };
    let operation = match fields.text("operation")? {
        "EXPORT" => Operation::Export,
        "IMPORT" => Operation::Import,
        other => return Err(value_error("operation", other)),
    };
    let ranges = fields.text("slot_ranges")?;
    let slots = ranges.split_ascii_whitespace().map(slot_range).collect::<Option<Vec<_>>>();
    let slots = slots.ok_or_else(|| value_error("slot_ranges", ranges))?;
    let node = |field| fields.optional::<String>(field).map(|text| text.filter(|text| !text.is_empty()));
    let id = |text: Option<String>| -> Result<Option<NodeId>, ParseError> {
        text.map(|text| text.parse().map_err(|source| ParseError::Text { reply: MIGRATIONS, source }))
            .transpose()
    };
    Ok(SlotMigration {
        name: fields.text("name")?.to_owned(),
        operation,
        slots: SlotSet::from_ranges(slots),
        // A replica of the target shows the job without either end.
        target: id(node("target_node")?)?,
        source: id(node("source_node")?)?,
        created: fields.number("create_time")?,
        updated: fields.number("last_update_time")?,
        state: match fields.text("state")? {
            "success" => MigrationState::Success,
            "failed" => MigrationState::Failed,
            "cancelled" | "canceled" => MigrationState::Cancelled,
            open => MigrationState::Open(open.to_owned()),
        },
        message: fields.by_name.get("message").map(|text| (*text).to_owned()).unwrap_or_default(),
        remaining_bytes: fields.optional("remaining_repl_size")?.unwrap_or(0),
    })
}

const SHARDS: &str = "CLUSTER SHARDS";

/// Parses the reply of CLUSTER SHARDS: the nodes of each shard, as the answering node groups them. Everything else that
/// it says is in CLUSTER NODES too.
pub fn shards(reply: &Reply) -> Result<Vec<BTreeSet<NodeId>>, ParseError> {
    let shape = |expected| ParseError::Shape { reply: SHARDS, expected };
    let Reply::Array(groups) = reply else { return Err(shape("an array of shards")) };
    groups
        .iter()
        .map(|group| {
            let Some(Reply::Array(nodes)) = field(group, "nodes") else {
                return Err(shape("an array of maps with nodes"));
            };
            nodes
                .iter()
                .map(|node| {
                    let id =
                        field(node, "id").and_then(Reply::as_text).ok_or(shape("a map of nodes with ids"))?;
                    id.parse().map_err(|source| ParseError::Text { reply: SHARDS, source })
                })
                .collect()
        })
        .collect()
}

/// The value under `name` of a map, which RESP2 writes as a flat array.
fn field<'a>(map: &'a Reply, name: &str) -> Option<&'a Reply> {
    let is_named = |reply: &Reply| matches!(reply, Reply::Text(text) if text == name.as_bytes());
    match map {
        Reply::Map(pairs) => pairs.iter().find(|(key, _)| is_named(key)).map(|(_, value)| value),
        Reply::Array(flat) => flat.chunks_exact(2).find_map(|pair| match pair {
            [key, value] if is_named(key) => Some(value),
            _ => None,
        }),
        _ => None,
    }
}

//! The closed list of commands that the operator sends; the ACL of its user permits exactly these.
//!
//! Each maps the replies measured on Valkey 8.1.1 and 9.1.2. None decides whether it is wise to send it. Unless a
//! method says otherwise a refusal is [`ValkeyError::Refused`] with the server's words and without any effect.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::client::{Connection, Request, expect_ok, expect_success};
use super::error::ValkeyError;
use super::parse::{self, ParseError, Reply};
use super::report::{self, ClusterInfo, NodeReport, SlotMigration, YOUNG_SECONDS};
use super::types::{Epoch, NodeId, NodeLine};
use super::{Info, info};
use crate::slots::SlotRange;

/// How to promote a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailoverKind {
    /// Coordinated with the living primary: it pauses writes until the replica has all. Loses nothing.
    Planned,
    /// Without the primary, but elected by a majority of primaries.
    Force,
    /// Without the primary and without a vote.
    Takeover,
}

impl FailoverKind {
    /// `planned`, `force` or `takeover`, for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Force => "force",
            Self::Takeover => "takeover",
        }
    }
}

/// What a FORGET found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgot {
    /// The node knew the id and dropped it, or had dropped it within the last minute.
    Forgotten,
    /// The node did not know the id: as good as done.
    Unknown,
}

const NODES: &str = "CLUSTER NODES";
const CLUSTER_INFO: &str = "CLUSTER INFO";
const INFO: &str = "INFO";
const MIGRATIONS: &str = "CLUSTER GETSLOTMIGRATIONS";
const SHARDS: &str = "CLUSTER SHARDS";

impl Connection {
    /// Everything a tick needs to know of a node, in one round trip; of a young one in two.
    ///
    /// `migrations` adds GETSLOTMIGRATIONS (since 9.0); an engine that does not know it, or a node that is loading its
    /// data set (the other commands answer then), gives `None`, not an error.
    pub async fn report(&self, migrations: bool) -> Result<NodeReport, ValkeyError> {
        let mut requests = vec![
            Request::new(NODES, []),
            Request::new(CLUSTER_INFO, []),
            Request::new(INFO, info::SECTIONS.map(ToOwned::to_owned)),
        ];
        if migrations {
            requests.push(Request::new(MIGRATIONS, []));
        }
        let mut replies = self.pipeline("report", requests).await?.into_iter();
        let nodes = parsed(NODES, &text(NODES, replies.next())?, parse::cluster_nodes)?;
        let cluster = parsed(CLUSTER_INFO, &text(CLUSTER_INFO, replies.next())?, parse::cluster_info)?;
        let info = parsed(INFO, &text(INFO, replies.next())?, info::info)?;
        let migrations = match replies.next() {
            None => None,
            // NOPERM: while a node before 9.0 runs in the cluster, its file cannot name the subcommand for the others.
            Some(Reply::Error(error))
                if unknown_subcommand(&error)
                    || error.starts_with("LOADING")
                    || error.starts_with("NOPERM") =>
            {
                None
            }
            Some(reply) => Some(migration_list(reply)?),
        };
        let young = info.uptime_seconds < YOUNG_SECONDS && nodes.iter().any(|line| line.primary.is_some());
        let parted = if young { report::parted(&nodes, &self.shards().await?) } else { BTreeSet::new() };
        Ok(NodeReport { id: own_id(&nodes)?, nodes: nodes.into(), cluster, info, migrations, parted })
    }

    /// CLUSTER SHARDS: which nodes it counts to one shard. Nothing while it loads its data, and while its ACL, which an
    /// earlier release of the operator wrote, does not name the command yet.
    pub async fn shards(&self) -> Result<Vec<BTreeSet<NodeId>>, ValkeyError> {
        match self.request(Request::new(SHARDS, [])).await? {
            Reply::Error(error) if error.starts_with("NOPERM") || error.starts_with("LOADING") => {
                Ok(Vec::new())
            }
            reply => parse::shards(&expect_success(SHARDS, reply)?)
                .map_err(|source| ValkeyError::Unreadable { command: SHARDS, source }),
        }
    }

    /// CLUSTER NODES alone.
    pub async fn nodes(&self) -> Result<Vec<NodeLine>, ValkeyError> {
        let reply = self.request(Request::new(NODES, [])).await?;
        parsed(NODES, &text(NODES, Some(reply))?, parse::cluster_nodes)
    }

    /// CLUSTER INFO alone.
    pub async fn cluster_info(&self) -> Result<ClusterInfo, ValkeyError> {
        let reply = self.request(Request::new(CLUSTER_INFO, [])).await?;
        parsed(CLUSTER_INFO, &text(CLUSTER_INFO, Some(reply))?, parse::cluster_info)
    }

    /// INFO alone, with the sections that [`Info`] needs.
    pub async fn info(&self) -> Result<Info, ValkeyError> {
        let reply = self.request(Request::new(INFO, info::SECTIONS.map(ToOwned::to_owned))).await?;
        parsed(INFO, &text(INFO, Some(reply))?, info::info)
    }

    /// `CLUSTER MYID`: who answers at this address.
    pub async fn my_id(&self) -> Result<NodeId, ValkeyError> {
        const COMMAND: &str = "CLUSTER MYID";
        let reply = self.request(Request::new(COMMAND, [])).await?;
        parsed(COMMAND, &text(COMMAND, Some(reply))?, |text| {
            text.parse().map_err(|source| ParseError::Text { reply: COMMAND, source })
        })
    }

    /// `CLUSTER SET-CONFIG-EPOCH`: only on a node whose epoch is 0 and that knows no other node.
    ///
    /// Refusals: `ERR The user can assign a config epoch only when the node does not know any other node.`,
    /// `ERR Node config epoch is already non-zero`, `ERR Invalid config epoch specified: …`.
    pub async fn set_config_epoch(&self, epoch: Epoch) -> Result<(), ValkeyError> {
        self.ok("CLUSTER SET-CONFIG-EPOCH", [epoch.to_string()]).await
    }

    /// `CLUSTER ADDSLOTSRANGE`: claims unowned slots, all or none. Refusals: `ERR Slot n is already busy`,
    /// `ERR Invalid or out of range slot`. Other nodes learn of it by gossip only.
    pub async fn add_slots_range(&self, ranges: &[SlotRange]) -> Result<(), ValkeyError> {
        let bounds = ranges.iter().flat_map(|range| [range.start.to_string(), range.end.to_string()]);
        self.ok("CLUSTER ADDSLOTSRANGE", bounds).await
    }

    /// `CLUSTER MEET`: `OK` means only that the handshake was queued, even for a dead address.
    ///
    /// Merges two clusters when a foreign node answers there: ask the target first who it is.
    pub async fn meet(&self, ip: IpAddr, port: u16) -> Result<(), ValkeyError> {
        self.ok("CLUSTER MEET", [ip.to_string(), port.to_string()]).await
    }

    /// `CLUSTER REPLICATE`: become a replica of `primary` (no effect when it already is).
    ///
    /// Refusals: `ERR Unknown node …` (also shortly after MEET), `ERR Can't replicate myself`, `ERR I can only
    /// replicate a master, not a replica.`, `ERR To set a master the node must be empty and without assigned slots.`
    pub async fn replicate(&self, primary: NodeId) -> Result<(), ValkeyError> {
        self.ok("CLUSTER REPLICATE", [primary.to_string()]).await
    }

    /// `CLUSTER FORGET`: drops `node` and bans it for a minute. `ERR Unknown node …` is [`Forgot::Unknown`].
    ///
    /// Refusals: `ERR I tried hard but I can't forget myself...`, `ERR Can't forget my master!`.
    pub async fn forget(&self, node: NodeId) -> Result<Forgot, ValkeyError> {
        match self.ok("CLUSTER FORGET", [node.to_string()]).await {
            Ok(()) => Ok(Forgot::Forgotten),
            Err(ValkeyError::Refused { reply, .. }) if reply.contains("Unknown node") => Ok(Forgot::Unknown),
            Err(error) => Err(error),
        }
    }

    /// `CLUSTER FAILOVER [FORCE|TAKEOVER]` on the replica to promote. `OK` means only that it was started.
    ///
    /// Refusals: `ERR You should send CLUSTER FAILOVER to a replica`, `ERR Master is down or failed, please use
    /// CLUSTER FAILOVER FORCE` (planned only). The engine does not check that the replica has any data.
    pub async fn failover(&self, kind: FailoverKind) -> Result<(), ValkeyError> {
        let option = match kind {
            FailoverKind::Planned => None,
            FailoverKind::Force => Some("FORCE".to_owned()),
            FailoverKind::Takeover => Some("TAKEOVER".to_owned()),
        };
        self.ok("CLUSTER FAILOVER", option).await
    }

    /// `CLUSTER RESET HARD`: forget every peer and slot, drop a replica's data, take a new id and epoch 0.
    ///
    /// Refusal: `ERR CLUSTER RESET can't be called with master nodes containing keys`.
    pub async fn reset_hard(&self) -> Result<(), ValkeyError> {
        self.ok("CLUSTER RESET", ["HARD".to_owned()]).await
    }

    /// `CLUSTER MIGRATESLOTS` (since 9.0) on the primary that owns all of `ranges`: starts one atomic job to `target`.
    ///
    /// Among the refusals: `ERR Slots are not served by this node.`, `ERR Unknown node name: …`, `ERR Target node can
    /// not be this node.`, `ERR I am already migrating slot n.`, `ERR Slot migration can only be used on primary
    /// nodes.`; before 9.0 `ERR unknown subcommand …`. A job may still fail: read [`Self::slot_migrations`].
    pub async fn migrate_slots(&self, ranges: &[SlotRange], target: NodeId) -> Result<(), ValkeyError> {
        let bounds = ranges.iter().flat_map(|range| [range.start.to_string(), range.end.to_string()]);
        let words = ["SLOTSRANGE".to_owned()].into_iter().chain(bounds);
        self.ok("CLUSTER MIGRATESLOTS", words.chain(["NODE".to_owned(), target.to_string()])).await
    }

    /// `CLUSTER GETSLOTMIGRATIONS` (since 9.0), newest first; before 9.0 `ERR unknown subcommand …`.
    pub async fn slot_migrations(&self) -> Result<Vec<SlotMigration>, ValkeyError> {
        migration_list(self.request(Request::new(MIGRATIONS, [])).await?)
    }

    /// `CLUSTER CANCELSLOTMIGRATIONS` (since 9.0): cancels every job that this node exports; `ERR No migrations
    /// ongoing` (also on the receiving end) is success, since nothing is left to cancel.
    pub async fn cancel_slot_migrations(&self) -> Result<(), ValkeyError> {
        match self.ok("CLUSTER CANCELSLOTMIGRATIONS", []).await {
            Err(ValkeyError::Refused { reply, .. }) if reply.contains("No migrations ongoing") => Ok(()),
            outcome => outcome,
        }
    }

    /// `ACL LOAD`: re-reads users.acl, all or nothing. A bad line is refused with its number and reason, ending in
    /// `WARNING: ACL errors detected, no change to the previously active ACL rules was performed`.
    pub async fn acl_load(&self) -> Result<(), ValkeyError> {
        self.ok("ACL LOAD", []).await
    }

    /// `CONFIG SET` of all pairs at once, all or nothing. Refusal: `ERR CONFIG SET failed (possibly related to
    /// argument '…') - …`. Setting a TLS path, also to its present value, re-reads the files.
    pub async fn config_set(&self, settings: &[(&str, &str)]) -> Result<(), ValkeyError> {
        let words = settings.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]);
        self.ok("CONFIG SET", words).await
    }

    /// `PING`.
    pub async fn ping(&self) -> Result<(), ValkeyError> {
        match expect_success("PING", self.request(Request::new("PING", [])).await?)? {
            Reply::Text(text) if text == b"PONG" => Ok(()),
            other => {
                Err(ValkeyError::Protocol { command: "PING", problem: format!("{other:?} instead of PONG") })
            }
        }
    }

    async fn ok(
        &self,
        command: &'static str,
        arguments: impl IntoIterator<Item = String>,
    ) -> Result<(), ValkeyError> {
        expect_ok(command, self.request(Request::new(command, arguments)).await?)
    }
}

fn unknown_subcommand(error: &str) -> bool {
    error.to_ascii_lowercase().contains("unknown subcommand")
}

fn text(command: &'static str, reply: Option<Reply>) -> Result<String, ValkeyError> {
    let reply = reply.map(|reply| expect_success(command, reply)).transpose()?;
    let problem = || "no text".to_owned();
    reply
        .and_then(|reply| reply.as_text())
        .ok_or_else(|| ValkeyError::Protocol { command, problem: problem() })
}

fn parsed<T>(
    command: &'static str,
    text: &str,
    parser: impl FnOnce(&str) -> Result<T, ParseError>,
) -> Result<T, ValkeyError> {
    parser(text).map_err(|source| ValkeyError::Unreadable { command, source })
}

fn migration_list(reply: Reply) -> Result<Vec<SlotMigration>, ValkeyError> {
    let reply = expect_success(MIGRATIONS, reply)?;
    parse::slot_migrations(&reply).map_err(|source| ValkeyError::Unreadable { command: MIGRATIONS, source })
}

fn own_id(nodes: &[NodeLine]) -> Result<NodeId, ValkeyError> {
    let mut own = nodes.iter().filter(|line| line.flags.myself);
    if let (Some(line), None) = (own.next(), own.next()) {
        return Ok(line.id);
    }
    let problem = "not exactly one line is marked myself".to_owned();
    Err(ValkeyError::Protocol { command: NODES, problem })
}

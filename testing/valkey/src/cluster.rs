//! A bootstrapped cluster of real servers, built with the operator's own commands, user and order.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shared::names::CLIENT_PORT;
use shared::slots::contiguous_spread;
use shared::valkey::{Connection, Epoch, NodeId, NodeReport};

use crate::server::{Options, Server, Version};
use crate::users_acl;
use crate::wait::eventually;

/// Shape of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Engine of every member.
    pub version: Version,
    /// Primaries with slots.
    pub shards: u16,
    /// Replicas of each.
    pub replicas: u16,
    /// Members without slots, primaries by engine default, already known to all.
    pub spare: u16,
}

/// A member and the operator's connection to it.
pub struct Member {
    /// The process.
    pub server: Server,
    /// Logged in as the operator.
    pub connection: Connection,
    /// Its id.
    pub id: NodeId,
    /// Index of the member that it replicates.
    pub primary: Option<usize>,
}

/// A formed cluster: first the primaries in slot order, then the replicas shard by shard, then the spare ones.
pub struct Cluster {
    /// Its members.
    pub members: Vec<Member>,
}

impl Cluster {
    /// Starts and forms a cluster with the rendered users.acl and an open default user.
    pub async fn form(layout: Layout) -> Result<Self> {
        let acl = users_acl(layout.version, &[], &BTreeMap::new())?.text;
        Self::form_with(layout, |_| Options { acl: Some(acl.clone()), ..Options::default() }).await
    }

    /// Starts and forms a cluster, each member with its own options.
    pub async fn form_with(layout: Layout, options: impl Fn(u16) -> Options) -> Result<Self> {
        let count = layout.shards * (1 + layout.replicas) + layout.spare;
        let mut members = Vec::new();
        for index in 0..count {
            let server = Server::start(layout.version, options(index)).await?;
            let connection = server.operator().await?;
            let id = connection.my_id().await?;
            let replica =
                index.checked_sub(layout.shards).filter(|place| *place < layout.shards * layout.replicas);
            let primary = replica.map(|place| usize::from(place % layout.shards));
            members.push(Member { server, connection, id, primary });
        }
        let cluster = Self { members };
        cluster.bootstrap(layout.shards).await?;
        Ok(cluster)
    }

    /// The bootstrap order: epochs, slots, MEET from one seed, all know all, REPLICATE, all healthy.
    async fn bootstrap(&self, shards: u16) -> Result<()> {
        for (epoch, member) in (1..).zip(&self.members) {
            member.connection.set_config_epoch(Epoch(epoch)).await?;
        }
        for (range, member) in contiguous_spread(shards).into_iter().zip(&self.members) {
            member.connection.add_slots_range(&[range]).await?;
        }
        let (seed, others) = self.members.split_first().context("an empty cluster")?;
        for member in others {
            seed.connection.meet(member.server.ip, CLIENT_PORT).await?;
        }
        self.until("all know all", |report| {
            let handshake = report.nodes.iter().any(|line| line.flags.handshake);
            (report.nodes.len() == self.members.len() && !handshake)
                .then_some(())
                .ok_or_else(|| format!("{} nodes, handshake {handshake}", report.nodes.len()))
        })
        .await?;
        for member in &self.members {
            if let Some(primary) = member.primary.and_then(|index| self.members.get(index)) {
                member.connection.replicate(primary.id).await?;
            }
        }
        self.until_healthy().await
    }

    /// Waits until every member sees 16384 slots served and every replica is in sync.
    pub async fn until_healthy(&self) -> Result<()> {
        self.until("healthy", |report| {
            let linked = report.info.link.as_ref().is_none_or(|link| link.up && !link.sync_in_progress);
            // A primary calls a replica online when it has heard from it, up to a second after the link is up.
            let heard = report.info.replicas.iter().all(|replica| replica.online);
            let healthy = report.cluster.ok && report.cluster.slots_ok == 16384 && linked && heard;
            let seen = || format!("{:?} {:?} {:?}", report.cluster, report.info.link, report.info.replicas);
            healthy.then_some(()).ok_or_else(seen)
        })
        .await
    }

    /// Waits until `condition` holds for every member's report.
    pub async fn until(
        &self,
        what: &str,
        condition: impl Fn(&NodeReport) -> Result<(), String>,
    ) -> Result<()> {
        for member in &self.members {
            eventually(what, Duration::from_secs(30), || async {
                let report = member.connection.report(false).await.map_err(|error| error.to_string())?;
                condition(&report)
            })
            .await
            .with_context(|| format!("member at {}", member.server.ip))?;
        }
        Ok(())
    }

    /// The members' reports.
    pub async fn reports(&self) -> Result<Vec<NodeReport>> {
        let mut reports = Vec::new();
        for member in &self.members {
            reports.push(member.connection.report(true).await?);
        }
        ensure!(!reports.is_empty(), "an empty cluster");
        Ok(reports)
    }
}

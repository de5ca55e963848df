//! Every command's documented refusals, on both engines.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shared::names::CLIENT_PORT;
use shared::slots::SlotRange;
use shared::valkey::{Epoch, FailoverKind, Forgot, NodeId, ValkeyError};
use test_valkey::{Cluster, Layout, Options, Server, Version, eventually, users_acl};

use crate::{on_every_version, refusal};

on_every_version!(
    a_lone_node_refuses_what_makes_no_sense,
    members_refuse_what_would_break_the_cluster,
    every_node_comes_to_count_a_replica_to_the_shard_of_its_primary,
    a_node_that_loads_its_data_still_reports_and_refuses_the_rest,
);

const NOBODY: NodeId = NodeId::from_bytes([7; 20]);

/// Fails unless `outcome` is a refusal that contains `words`.
fn refused<T>(outcome: Result<T, ValkeyError>, words: &str) -> Result<()> {
    let reply = refusal(outcome).with_context(|| format!("expected: {words}"))?;
    ensure!(reply.contains(words), "{reply} instead of {words}");
    Ok(())
}

async fn a_lone_node_refuses_what_makes_no_sense(version: Version) -> Result<()> {
    let acl = users_acl(version, &[], &std::collections::BTreeMap::new())?.text;
    let server = Server::start(version, Options { acl: Some(acl), ..Options::default() }).await?;
    let node = server.operator().await?;
    node.ping().await?;
    let id = node.my_id().await?;
    let report = node.report(true).await?;
    ensure!(report.id == id && report.nodes.len() == 1 && report.info.keys == 0, "{report:?}");
    ensure!(report.cluster.known_nodes == 1 && report.cluster.my_epoch == Epoch(0), "{:?}", report.cluster);

    node.set_config_epoch(Epoch(5)).await?;
    refused(node.set_config_epoch(Epoch(6)).await, "Node config epoch is already non-zero")?;
    let range = SlotRange { start: 10, end: 20 };
    node.add_slots_range(&[range, SlotRange { start: 30, end: 30 }]).await?;
    refused(node.add_slots_range(&[SlotRange { start: 20, end: 25 }]).await, "Slot 20 is already busy")?;
    ensure!(node.report(false).await?.cluster.slots_assigned == 12, "all or nothing");

    ensure!(node.forget(NOBODY).await? == Forgot::Unknown, "an unknown node is forgotten already");
    refused(node.forget(id).await, "I tried hard but I can't forget myself...")?;
    refused(node.replicate(NOBODY).await, "Unknown node")?;
    refused(node.replicate(id).await, "Can't replicate myself")?;
    for kind in [FailoverKind::Planned, FailoverKind::Force, FailoverKind::Takeover] {
        refused(node.failover(kind).await, "You should send CLUSTER FAILOVER to a replica")?;
    }
    // MEET of a dead address is accepted: it proves nothing.
    node.meet("127.9.9.9".parse()?, CLIENT_PORT).await?;
    refused(node.config_set(&[("no-such-setting", "1")]).await, "ERR")?;
    node.config_set(&[("repl-diskless-sync-delay", "0"), ("maxmemory", "100mb")]).await?;
    ensure!(node.info().await?.maxmemory == 100 << 20, "CONFIG SET took effect");

    match version {
        Version::V9_1 => {
            refused(node.migrate_slots(&[range], id).await, "Target node can not be this node")?;
            refused(node.migrate_slots(&[range], NOBODY).await, "Unknown node name")?;
            ensure!(node.slot_migrations().await?.is_empty(), "a refusal leaves no job");
            node.cancel_slot_migrations().await?;
        }
        Version::V8_1 => {
            refused(node.migrate_slots(&[range], NOBODY).await, "unknown subcommand")?;
            refused(node.slot_migrations().await, "unknown subcommand")?;
            ensure!(report.migrations.is_none(), "{:?}", report.migrations);
        }
    }
    node.reset_hard().await?;
    ensure!(node.my_id().await? != id, "RESET HARD gives a new id");
    Ok(())
}

async fn members_refuse_what_would_break_the_cluster(version: Version) -> Result<()> {
    let cluster = Cluster::form(Layout { version, shards: 2, replicas: 1, spare: 1 }).await?;
    let [first, second, replica, _, spare] = cluster.members.as_slice() else {
        anyhow::bail!("{} members", cluster.members.len());
    };
    refused(
        spare.connection.set_config_epoch(Epoch(99)).await,
        "only when the node does not know any other node",
    )?;
    refused(replica.connection.forget(first.id).await, "Can't forget my master!")?;
    refused(second.connection.replicate(replica.id).await, "replica")?;
    refused(second.connection.replicate(first.id).await, "must be empty and without assigned slots")?;
    replica.connection.replicate(first.id).await.context("to the present primary: no effect")?;

    let mut data = first.server.raw(None).await?;
    let stored: redis::RedisResult<()> = redis::cmd("SET").arg("{06S}").arg("v").query_async(&mut data).await;
    stored.context("slot 0 is in the first shard")?;
    ensure!(first.connection.info().await?.keys == 1, "the key count shows it");
    refused(first.connection.reset_hard().await, "can't be called with master nodes containing keys")?;
    ensure!(first.connection.my_id().await? == first.id, "a refused reset changes nothing");
    if version == Version::V9_1 {
        let range = SlotRange { start: 0, end: 5 };
        refused(
            replica.connection.migrate_slots(&[range], spare.id).await,
            "can only be used on primary nodes",
        )?;
        refused(
            second.connection.migrate_slots(&[range], spare.id).await,
            "Slots are not served by this node",
        )?;
    }
    Ok(())
}

/// A node that has just come learns of most peers by gossip, which names no shard, and sorts them for some seconds.
async fn every_node_comes_to_count_a_replica_to_the_shard_of_its_primary(version: Version) -> Result<()> {
    let cluster = Cluster::form(Layout { version, shards: 2, replicas: 1, spare: 1 }).await?;
    let [first, second, replica, other, spare] = cluster.members.as_slice() else {
        anyhow::bail!("{} members", cluster.members.len());
    };
    let wanted = [
        BTreeSet::from([first.id, replica.id]),
        BTreeSet::from([second.id, other.id]),
        BTreeSet::from([spare.id]),
    ];
    for member in &cluster.members {
        eventually("shards to be sorted", Duration::from_secs(20), || async {
            let report = member.connection.report(true).await.map_err(|error| error.to_string())?;
            let shards = member.connection.shards().await.map_err(|error| error.to_string())?;
            let sorted = wanted.iter().all(|shard| shards.contains(shard)) && shards.len() == wanted.len();
            (sorted && report.parted.is_empty()).then_some(()).ok_or_else(|| format!("{shards:?} {report:?}"))
        })
        .await?;
    }
    Ok(())
}

async fn a_node_that_loads_its_data_still_reports_and_refuses_the_rest(version: Version) -> Result<()> {
    let acl = users_acl(version, &[], &std::collections::BTreeMap::new())?.text;
    let options = |extra: Vec<String>| Options { acl: Some(acl.clone()), extra, ..Options::default() };
    let mut first = Server::start(version, options(vec![])).await?;
    first.operator().await?.add_slots_range(&[SlotRange { start: 0, end: 16383 }]).await?;
    let mut data = first.raw(None).await?;
    eventually("serves", Duration::from_secs(10), || {
        let mut data = data.clone();
        async move {
            let set = redis::cmd("SET").arg("k").arg("v").query_async::<()>(&mut data).await;
            set.map_err(|error| error.to_string())
        }
    })
    .await?;
    let mut pipe = redis::pipe();
    for number in 0..1000 {
        pipe.cmd("SET").arg(format!("{{k}}{number}")).arg("x".repeat(200)).ignore();
    }
    let stored: redis::RedisResult<()> = pipe.query_async(&mut data).await;
    stored?;
    let saved: redis::RedisResult<()> = redis::cmd("SAVE").query_async(&mut data).await;
    saved?;
    first.kill()?;
    // 3 ms a key: about three seconds of loading.
    let slow = [
        "key-load-delay 3000",
        "loading-process-events-interval-bytes 1024",
        "cluster-config-file other.conf",
    ];
    let mut extra: Vec<String> = slow.map(ToOwned::to_owned).to_vec();
    extra.push(format!("dir {}", first.path("")));
    let second = Server::start(version, options(extra)).await?;
    let node = second.operator().await?;
    let report = node.report(true).await?;
    ensure!(report.info.loading && report.migrations.is_none(), "{report:?}");
    let outcome = node.reset_hard().await;
    ensure!(matches!(outcome, Err(ValkeyError::Loading { .. })), "{outcome:?}");
    eventually("loaded", Duration::from_secs(20), || async {
        let report = node.report(true).await.map_err(|error| error.to_string())?;
        let done = !report.info.loading && report.info.keys == 1001;
        done.then_some(()).ok_or_else(|| format!("{:?}", report.info))
    })
    .await
}

//! Forming a cluster, and what its members then report.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shared::valkey::{Epoch, FailoverKind, Forgot, Role};
use test_valkey::{Cluster, Layout, Version, eventually};

use crate::on_every_version;

on_every_version!(
    three_shards_with_a_replica_each_form_with_exactly_the_rendered_grants,
    a_planned_failover_swaps_the_roles_and_a_reset_replica_leaves,
    a_killed_primary_is_replaced_by_force_at_once,
);

fn layout(version: Version) -> Layout {
    Layout { version, shards: 3, replicas: 1, spare: 0 }
}

async fn three_shards_with_a_replica_each_form_with_exactly_the_rendered_grants(
    version: Version,
) -> Result<()> {
    let cluster = Cluster::form(layout(version)).await?;
    let reports = cluster.reports().await?;
    for (member, report) in cluster.members.iter().zip(&reports) {
        ensure!(report.id == member.id && report.nodes.len() == 6, "{report:?}");
        ensure!(report.cluster.slots_assigned == 16384 && report.cluster.size == 3, "{:?}", report.cluster);
        ensure!(report.info.version.major == version.engine().major, "{}", report.info.version);
        ensure!(report.migrations.is_some() == (version == Version::V9_1), "{:?}", report.migrations);
        let own = report.myself().context("no own line")?;
        let address = own.address.as_ref().context("no own address")?;
        ensure!(address.ip() == Some(member.server.ip), "{address:?}");
        ensure!(own.flags.myself && !own.flags.handshake, "{:?}", own.flags);
        match member.primary.and_then(|index| cluster.members.get(index)) {
            None => {
                ensure!(
                    report.info.role == Role::Primary && own.flags.primary && own.primary.is_none(),
                    "{own:?}"
                );
                ensure!(matches!(own.slots.len(), 5461 | 5462), "{}", own.slots.len());
                ensure!(report.info.replicas.len() == 1, "{:?}", report.info.replicas);
                ensure!(
                    report.info.replicas.iter().all(|replica| replica.online),
                    "{:?}",
                    report.info.replicas
                );
            }
            Some(primary) => {
                ensure!(report.info.role == Role::Replica && own.primary == Some(primary.id), "{own:?}");
                let link = report.info.link.as_ref().context("no link")?;
                ensure!(link.up && link.down_since_seconds.is_none(), "{link:?}");
                ensure!(link.host == primary.server.ip.to_string(), "{link:?}");
            }
        }
        // All views agree on owners and on epochs that never collided.
        for (other, theirs) in cluster.members.iter().zip(&reports) {
            let seen = report.line(other.id).context("a member is missing in a view")?;
            let own = theirs.myself().context("no own line")?;
            ensure!(seen.slots == own.slots && seen.primary == own.primary, "{seen:?} against {own:?}");
        }
    }
    let mut epochs: Vec<Epoch> = reports.iter().take(3).map(|report| report.cluster.my_epoch).collect();
    epochs.dedup();
    ensure!(epochs == [Epoch(1), Epoch(2), Epoch(3)], "{epochs:?}");
    Ok(())
}

async fn a_planned_failover_swaps_the_roles_and_a_reset_replica_leaves(version: Version) -> Result<()> {
    let cluster = Cluster::form(layout(version)).await?;
    let [old, .., new] = cluster.members.as_slice() else { anyhow::bail!("too few members") };
    let old = new.primary.and_then(|index| cluster.members.get(index)).unwrap_or(old);
    new.connection.failover(FailoverKind::Planned).await?;
    let (new_id, old_id) = (new.id, old.id);
    cluster
        .until("roles swapped", |report| {
            let swapped = report.line(old_id).is_some_and(|line| line.primary == Some(new_id));
            swapped.then_some(()).ok_or_else(|| format!("{:?}", report.line(old_id)))
        })
        .await?;
    cluster.until_healthy().await?;
    // Retire the demoted one: RESET HARD on it, FORGET everywhere, and it stays away.
    old.connection.reset_hard().await?;
    ensure!(old.connection.my_id().await? != old_id, "RESET HARD must give a new id");
    for member in cluster.members.iter().filter(|member| member.id != old_id) {
        let forgot = member.connection.forget(old_id).await?;
        ensure!(matches!(forgot, Forgot::Forgotten | Forgot::Unknown), "{forgot:?}");
    }
    for member in cluster.members.iter().filter(|member| member.id != old_id) {
        eventually("the departed is gone from every view", Duration::from_secs(10), || async {
            let nodes = member.connection.nodes().await.map_err(|error| error.to_string())?;
            let gone = nodes.iter().all(|line| line.id != old_id);
            (gone && nodes.len() == 5).then_some(()).ok_or_else(|| format!("{nodes:?}"))
        })
        .await?;
        ensure!(member.connection.forget(old_id).await.is_ok(), "a second FORGET is as good");
    }
    Ok(())
}

async fn a_killed_primary_is_replaced_by_force_at_once(version: Version) -> Result<()> {
    let mut cluster = Cluster::form(layout(version)).await?;
    let dead = cluster.members.first_mut().context("no member")?;
    let dead_id = dead.id;
    dead.server.kill()?;
    let heir = cluster.members.iter().find(|member| member.primary == Some(0)).context("no replica")?;
    // The operator waits until the replica's own link is down, as its promotion gate demands.
    eventually("link down", Duration::from_secs(5), || async {
        let info = heir.connection.info().await.map_err(|error| error.to_string())?;
        info.link
            .as_ref()
            .is_some_and(|link| !link.up)
            .then_some(())
            .ok_or_else(|| format!("{:?}", info.link))
    })
    .await?;
    heir.connection.failover(FailoverKind::Force).await?;
    // Well below the node timeout of 5 s: nobody has marked the dead one as failed yet.
    eventually("promoted", Duration::from_secs(3), || async {
        let report = heir.connection.report(false).await.map_err(|error| error.to_string())?;
        let own = report.myself().cloned();
        let owns = own.as_ref().is_some_and(|line| line.flags.primary && line.slots.len() > 5000);
        owns.then_some(()).ok_or_else(|| format!("{own:?}"))
    })
    .await?;
    let report = heir.connection.report(false).await?;
    ensure!(report.line(dead_id).is_some_and(|line| line.slots.is_empty()), "the dead still owns slots");
    Ok(())
}

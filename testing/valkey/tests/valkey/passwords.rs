//! Changing the passwords of the system users on a running primary and its replica: no link breaks, and new ones work.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shared::acl::{AclFile, AclInput, PasswordHash, render};
use shared::names::{USER_OPERATOR, USER_REPL};
use shared::secret::Redacted;
use shared::valkey::{Credentials, ValkeyError, connect, prove_revision};
use test_valkey::{Cluster, LIMITS, Layout, OPERATOR_PASSWORD, REPL_PASSWORD, Version, eventually, operator};

use crate::on_every_version;

on_every_version!(a_rotation_breaks_no_link_and_every_new_link_uses_the_new_password);

/// users.acl that accepts these passwords of both system users, the operator's with the prefix `o-`.
fn file(version: Version, words: &[&str]) -> Result<AclFile> {
    let hashes = |of: fn(&str) -> String| -> Vec<PasswordHash> {
        words.iter().map(|word| PasswordHash::of(&Redacted::new(of(word)))).collect()
    };
    Ok(render(&AclInput {
        config: &[],
        cluster: &[],
        roles: &BTreeMap::new(),
        operator_passwords: &hashes(operator_of),
        repl_passwords: &hashes(repl_of),
        engine: version.engine(),
    })?)
}

fn operator_of(word: &str) -> String {
    if word == "old" { OPERATOR_PASSWORD.to_owned() } else { format!("operator-{word}") }
}

fn repl_of(word: &str) -> String {
    if word == "old" { REPL_PASSWORD.to_owned() } else { format!("repl-{word}") }
}

fn login(user: &str, password: String) -> Credentials {
    Credentials { user: user.to_owned(), password: Redacted::new(password) }
}

/// Publishes the file to every member as the kubelet would, and has it loaded and proved.
async fn load(cluster: &Cluster, file: &AclFile, as_operator: &Credentials) -> Result<()> {
    for member in &cluster.members {
        member.server.write("users.acl", &file.text)?;
        let endpoint = member.server.endpoint();
        connect(&endpoint, as_operator, &LIMITS).await?.acl_load().await?;
        ensure!(prove_revision(&endpoint, &file.revision, &LIMITS).await?, "not proved");
    }
    Ok(())
}

async fn a_rotation_breaks_no_link_and_every_new_link_uses_the_new_password(version: Version) -> Result<()> {
    let cluster = Cluster::form(Layout { version, shards: 1, replicas: 1, spare: 0 }).await?;
    let replica = cluster.members.get(1).context("no replica")?;
    let full_syncs = async || -> Result<String> {
        let mut raw = cluster.members.first().context("no primary")?.server.raw(None).await?;
        let stats: String = redis::cmd("INFO").arg("stats").query_async(&mut raw).await?;
        Ok(stats.lines().filter(|line| line.starts_with("sync_")).collect::<Vec<_>>().join(" "))
    };
    let before = full_syncs().await?;
    let new = login(USER_OPERATOR, operator_of("new"));
    load(&cluster, &file(version, &["old", "new"])?, &operator()).await?;
    for member in &cluster.members {
        member.connection.config_set(&[("primaryauth", &repl_of("new"))]).await?;
    }
    for member in &cluster.members {
        connect(&member.server.endpoint(), &new, &LIMITS).await?.ping().await?;
    }
    load(&cluster, &file(version, &["new"])?, &new).await?;
    // The login that was there before stays; a new one with the old password is refused.
    replica.connection.ping().await?;
    for user in [USER_OPERATOR, USER_REPL] {
        let old = if user == USER_REPL { repl_of("old") } else { operator_of("old") };
        let outcome = connect(&replica.server.endpoint(), &login(user, old), &LIMITS).await;
        ensure!(matches!(outcome, Err(ValkeyError::AuthRejected { .. })), "{user}: {outcome:?}");
    }
    ensure!(full_syncs().await? == before, "the link broke: {before} became {}", full_syncs().await?);
    // A link that is cut comes back with the new password.
    let mut raw = cluster.members.first().context("no primary")?.server.raw(None).await?;
    let cut: i64 = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("replica").query_async(&mut raw).await?;
    ensure!(cut == 1, "{cut} links were cut");
    eventually("the replica is linked again", Duration::from_secs(20), || {
        let connection = &replica.connection;
        async move {
            let link = connection.info().await.map_err(|error| error.to_string())?.link;
            if link.as_ref().is_some_and(|link| link.up) { Ok(()) } else { Err(format!("{link:?}")) }
        }
    })
    .await
}

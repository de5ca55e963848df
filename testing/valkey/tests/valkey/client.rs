//! Login, limits and what is known when a call fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shared::secret::Redacted;
use shared::valkey::{Credentials, Endpoint, Limits, LostCause, Pool, ValkeyError, connect};
use test_valkey::{LIMITS, Options, Server, Version, eventually, operator, users_acl};
use tokio::io::AsyncReadExt;

use crate::on_every_version;

on_every_version!(
    a_wrong_password_is_told_and_never_replaced_by_the_open_default_user,
    a_frozen_server_costs_the_limit_and_leaves_the_outcome_unknown,
    the_pool_reuses_a_good_connection_and_replaces_a_dead_one,
);

async fn open_server(version: Version) -> Result<Server> {
    let acl = users_acl(version, &[], &BTreeMap::new())?.text;
    Server::start(version, Options { acl: Some(acl), ..Options::default() }).await
}

async fn a_wrong_password_is_told_and_never_replaced_by_the_open_default_user(
    version: Version,
) -> Result<()> {
    let server = open_server(version).await?;
    for (user, password) in [("_momento_operator", "wrong"), ("nobody", "x"), ("_momento_operator", "")] {
        let credentials = Credentials { user: user.to_owned(), password: Redacted::new(password.to_owned()) };
        let outcome = connect(&server.endpoint(), &credentials, &LIMITS).await;
        ensure!(matches!(outcome, Err(ValkeyError::AuthRejected { .. })), "{user}: {outcome:?}");
        let said = format!("{outcome:?}");
        ensure!(password.is_empty() || !said.contains("wrong"), "the password shows: {said}");
    }
    Ok(())
}

async fn a_frozen_server_costs_the_limit_and_leaves_the_outcome_unknown(version: Version) -> Result<()> {
    let server = open_server(version).await?;
    let limits = Limits { response: Duration::from_millis(300), ..LIMITS };
    let connection = connect(&server.endpoint(), &operator(), &limits).await?;
    server.freeze()?;
    let start = Instant::now();
    let outcome = connection.reset_hard().await;
    ensure!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let Err(error) = outcome else { anyhow::bail!("a frozen server answered") };
    ensure!(error.outcome_unknown() && error.kind() == "lost_reply", "{error:?}");
    ensure!(!connection.is_usable(), "a late reply could be taken for another one");
    // A new login cannot have changed anything: that is plainly no answer.
    let outcome = connect(&server.endpoint(), &operator(), &limits).await;
    ensure!(matches!(outcome, Err(ValkeyError::Timeout { .. })), "{outcome:?}");
    server.thaw()?;
    Ok(())
}

async fn the_pool_reuses_a_good_connection_and_replaces_a_dead_one(version: Version) -> Result<()> {
    let mut server = open_server(version).await?;
    let pool = Pool::new(LIMITS, 2);
    let endpoint = server.endpoint();
    let first = pool.get("uid-1", &endpoint, &operator()).await?;
    let again = pool.get("uid-1", &endpoint, &operator()).await?;
    ensure!(Arc::ptr_eq(&first, &again), "dialled twice");
    let wrong = Credentials { password: Redacted::new("wrong".to_owned()), ..operator() };
    let outcome = pool.get("uid-1", &endpoint, &wrong).await;
    ensure!(
        matches!(outcome, Err(ValkeyError::AuthRejected { .. })),
        "an old login answered for a new password"
    );

    let first = pool.get("uid-1", &endpoint, &operator()).await?;
    server.kill()?;
    eventually("the end of the peer is noticed", Duration::from_secs(5), || {
        let usable = first.is_usable();
        async move { if usable { Err("still usable".to_owned()) } else { Ok(()) } }
    })
    .await?;
    let outcome = pool.get("uid-1", &endpoint, &operator()).await;
    ensure!(matches!(outcome, Err(ValkeyError::Unreachable { .. })), "{outcome:?}");

    let acl = users_acl(version, &[], &BTreeMap::new())?.text;
    let options = Options { acl: Some(acl), ..Options::default() };
    let _server = Server::start_at(version, options, server.ip).await?;
    pool.get("uid-1", &endpoint, &operator()).await?.ping().await?;
    for key in ["uid-2", "uid-3", "uid-4"] {
        pool.get(key, &endpoint, &operator()).await?.ping().await?;
    }
    ensure!(pool.len() == 2, "the bound is {} and not 2", pool.len());
    pool.retain(|key| key == "uid-4");
    ensure!(pool.len() == 1, "{}", pool.len());
    Ok(())
}

#[tokio::test]
async fn nobody_there_is_told_at_once_and_a_silent_peer_after_the_limit() -> Result<()> {
    let endpoint = Endpoint { ip: "127.250.250.250".parse()?, port: 6379, tls: None };
    let outcome = connect(&endpoint, &operator(), &LIMITS).await;
    ensure!(matches!(outcome, Err(ValkeyError::Unreachable { .. })), "{outcome:?}");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let endpoint = Endpoint { ip: address.ip(), port: address.port(), tls: None };
    let limits = Limits { connect: Duration::from_millis(200), response: Duration::from_millis(200) };
    let outcome = connect(&endpoint, &operator(), &limits).await;
    ensure!(matches!(outcome, Err(ValkeyError::Timeout { .. })), "{outcome:?}");
    Ok(())
}

#[tokio::test]
async fn a_peer_that_hangs_up_after_a_command_leaves_its_outcome_unknown() -> Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let peer = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let mut buffer = [0; 1024];
        // The login is answered, the command after it is swallowed.
        let _login = stream.read(&mut buffer).await?;
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"+OK\r\n").await?;
        let _command = stream.read(&mut buffer).await?;
        std::io::Result::Ok(())
    });
    let endpoint = Endpoint { ip: address.ip(), port: address.port(), tls: None };
    let connection = connect(&endpoint, &operator(), &LIMITS).await?;
    let outcome = connection.acl_load().await;
    let lost = matches!(&outcome, Err(ValkeyError::LostReply { cause: LostCause::Closed, .. }));
    ensure!(lost, "{outcome:?}");
    peer.await.context("peer")??;
    Ok(())
}

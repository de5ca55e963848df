//! What the ACL and TLS loops do at a node, step by step.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::{join_all, lazy};
use reconcile_loops::nodes::{Nodes, WantedTls};
use reconcile_loops::plan::NodeResult;
use shared::acl::AclFile;
use shared::api::{Access, AclBinding, CommandRule, Permission, ValkeyRoleSpec};
use shared::metrics::Metrics;
use shared::secret::Redacted;
use shared::tls::Authorities;
use shared::valkey::{Credentials, Limits, certificate};
use test_valkey::{Authority, Issued, Options, Server, Version, operator, users_acl};

use crate::on_every_version;

on_every_version!(
    a_node_is_asked_to_reload_only_when_it_does_not_run_what_is_published,
    a_refused_file_is_told_in_the_servers_words,
    a_node_that_cannot_be_asked_is_a_result_within_the_limits_and_delays_no_other,
    a_renewed_certificate_counts_only_when_it_is_served,
    whom_a_server_trusts_is_taken_for_shown_only_where_it_is,
);

const LIMITS: Limits = Limits { connect: Duration::from_millis(500), response: Duration::from_millis(500) };

fn nodes() -> Nodes {
    Nodes::new(LIMITS, 8, Metrics::new("test", "0").valkey)
}

/// A file with one user, whose role allows `command`.
fn file(version: Version, command: &str) -> Result<AclFile> {
    let rule = CommandRule { name: command.to_owned(), subcommand: None, access: Access::Allow };
    let role = ValkeyRoleSpec { categories: vec![], commands: vec![rule] };
    let permission = Permission { role_ref: "role".to_owned(), keys: vec![], channels: vec![] };
    let binding = AclBinding {
        username: "app".to_owned(),
        password_hashes: vec!["0".repeat(64)],
        permissions: vec![permission],
    };
    users_acl(version, &[binding], &BTreeMap::from([("role".to_owned(), role)]))
}

async fn server(version: Version, acl: &AclFile) -> Result<Server> {
    Server::start(version, Options { acl: Some(acl.text.clone()), ..Options::default() }).await
}

/// The login, counting how often it was asked for.
fn login(asked: &AtomicU32) -> impl Future<Output = Result<Credentials, String>> {
    lazy(|_| {
        asked.fetch_add(1, Ordering::Relaxed);
        Ok(operator())
    })
}

async fn a_node_is_asked_to_reload_only_when_it_does_not_run_what_is_published(
    version: Version,
) -> Result<()> {
    let (old, new) = (file(version, "get")?, file(version, "set")?);
    let server = server(version, &old).await?;
    let (nodes, endpoint, asked) = (nodes(), server.endpoint(), AtomicU32::new(0));

    let result = nodes.acl(&endpoint, &old.revision, login(&asked)).await;
    ensure!(result == NodeResult::Current { reloaded: false }, "{result:?}");
    ensure!(
        asked.load(Ordering::Relaxed) == 0,
        "a current node costs no Secret and no login of the operator"
    );

    // Published, but the kubelet has not refreshed the file: reloading the old one proves nothing.
    let result = nodes.acl(&endpoint, &new.revision, login(&asked)).await;
    ensure!(result == NodeResult::Stale, "{result:?}");

    server.write("users.acl", &new.text)?;
    let result = nodes.acl(&endpoint, &new.revision, login(&asked)).await;
    ensure!(result == NodeResult::Current { reloaded: true }, "{result:?}");
    let result = nodes.acl(&endpoint, &new.revision, login(&asked)).await;
    ensure!(result == NodeResult::Current { reloaded: false }, "{result:?}");
    Ok(())
}

async fn a_refused_file_is_told_in_the_servers_words(version: Version) -> Result<()> {
    let (old, bad) = (file(version, "get")?, file(version, "nosuchcommand")?);
    let server = server(version, &old).await?;
    server.write("users.acl", &bad.text)?;
    let asked = AtomicU32::new(0);
    let result = nodes().acl(&server.endpoint(), &bad.revision, login(&asked)).await;
    let NodeResult::Refused(words) = &result else { anyhow::bail!("{result:?}") };
    ensure!(words.contains("nosuchcommand"), "{words}");
    // What it ran before, it still runs.
    let result = nodes().acl(&server.endpoint(), &old.revision, login(&asked)).await;
    ensure!(result == NodeResult::Current { reloaded: false }, "{result:?}");
    Ok(())
}

async fn a_node_that_cannot_be_asked_is_a_result_within_the_limits_and_delays_no_other(
    version: Version,
) -> Result<()> {
    let acl = file(version, "get")?;
    let (good, frozen, mut dead) =
        (server(version, &acl).await?, server(version, &acl).await?, server(version, &acl).await?);
    frozen.freeze()?;
    dead.kill()?;
    let (nodes, asked) = (nodes(), AtomicU32::new(0));
    let endpoints = [frozen.endpoint(), dead.endpoint(), good.endpoint()];
    let start = Instant::now();
    let results = join_all(endpoints.iter().map(|endpoint| {
        let asking = nodes.acl(endpoint, &acl.revision, login(&asked));
        async move { (asking.await, start.elapsed()) }
    }))
    .await;
    let kind = |index: usize| match results.get(index) {
        Some((NodeResult::Failed { kind, .. }, _)) => *kind,
        _ => "none",
    };
    ensure!(kind(0) == "timeout" && kind(1) == "unreachable", "{results:?}");
    let last = results.last().map(|(result, took)| (result.clone(), *took));
    let quick = last.is_some_and(|(result, took)| {
        result == NodeResult::Current { reloaded: false } && took < LIMITS.response
    });
    ensure!(quick, "{results:?}");
    ensure!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    frozen.thaw()?;

    let wrong =
        async { Ok::<_, String>(Credentials { password: Redacted::new("wrong".to_owned()), ..operator() }) };
    let result = nodes.acl(&good.endpoint(), &"0".repeat(64), wrong).await;
    ensure!(matches!(result, NodeResult::Failed { kind: "auth_rejected", .. }), "{result:?}");
    Ok(())
}

const HOST: &str = "c-00000.c.ns.svc.cluster.local";

fn tls_options(version: Version, issued: &Issued, authorities: &str) -> Result<Options> {
    Ok(Options {
        acl: Some(file(version, "get")?.text),
        tls: Some((issued.clone(), authorities.to_owned())),
        hostname: Some(HOST.to_owned()),
        ..Options::default()
    })
}

/// What the TLS loop tells of a server that is to serve `leaf` and to trust `authorities`; `trusted` are all that may be
/// in use.
pub(crate) async fn tls(
    server: &Server,
    leaf: &[u8],
    authorities: &str,
    trusted: &str,
) -> Result<NodeResult> {
    let names = ["tls-cert-file", "tls-key-file", "tls-ca-cert-file"];
    let paths = ["tls.crt", "tls.key", "ca.crt"].map(|name| server.path(name));
    let settings: Vec<(&str, &str)> = names.into_iter().zip(paths.iter().map(String::as_str)).collect();
    let of = |text: &str| Authorities::from_pem(text.as_bytes());
    let first = of(authorities)?.first_to_expire();
    let wanted = WantedTls {
        certificate: leaf,
        settings: &settings,
        authority: first.as_deref(),
        conclusive: of(authorities)?.shown_by_first_to_expire(&of(trusted)?),
    };
    let mut endpoint = server.endpoint();
    if let Some(target) = &mut endpoint.tls {
        trusted.clone_into(&mut target.ca_pem);
    }
    Ok(nodes().tls(&endpoint, &wanted, &operator()).await)
}

async fn a_renewed_certificate_counts_only_when_it_is_served(version: Version) -> Result<()> {
    let authority = Authority::new("ours")?;
    let (old, new) = (authority.issue(&[HOST], 1)?, authority.issue(&[HOST], 2)?);
    let ca = authority.pem();
    let server = Server::start(version, tls_options(version, &old, &ca)?).await?;
    let (old_leaf, new_leaf) = (certificate::leaf(&old.certificate)?, certificate::leaf(&new.certificate)?);
    // One authority, and no other that might be in use: 9.1 shows that it has read it.
    let good = |reloaded| match version {
        Version::V9_1 => NodeResult::Current { reloaded },
        Version::V8_1 => NodeResult::Told { reloaded },
    };
    let result = tls(&server, &old_leaf, &ca, &ca).await?;
    ensure!(result == good(false), "{result:?}");
    let result = tls(&server, &new_leaf, &ca, &ca).await?;
    ensure!(result == NodeResult::Stale, "before the kubelet refreshed the files: {result:?}");
    server.write("tls.crt", &new.certificate)?;
    let result = tls(&server, &new_leaf, &ca, &ca).await?;
    ensure!(matches!(result, NodeResult::Refused(_)), "certificate and key do not match: {result:?}");
    server.write("tls.key", &new.key)?;
    let result = tls(&server, &new_leaf, &ca, &ca).await?;
    ensure!(result == good(true), "{result:?}");
    let result = tls(&server, &new_leaf, &ca, &ca).await?;
    ensure!(result == good(false), "{result:?}");
    Ok(())
}

async fn whom_a_server_trusts_is_taken_for_shown_only_where_it_is(version: Version) -> Result<()> {
    let (old, new) = (Authority::until("old", 2040)?, Authority::until("new", 2050)?);
    let both = old.pem() + &new.pem();
    let issued = old.issue(&[HOST], 1)?;
    let leaf = certificate::leaf(&issued.certificate)?;
    let server = Server::start(version, tls_options(version, &issued, &old.pem())?).await?;
    let told = NodeResult::Told { reloaded: false };
    // An authority that was added: read or not, a server shows the same, and so it proves nothing.
    let before = tls(&server, &leaf, &both, &both).await?;
    server.write("ca.crt", &both)?;
    let after = tls(&server, &leaf, &both, &both).await?;
    ensure!(before == told && after == told, "{before:?}, {after:?}");
    // The older one is taken out: 9.1 shows whether it has read that. The certificate stays, for the comparison alone.
    let before = tls(&server, &leaf, &new.pem(), &both).await?;
    server.write("ca.crt", &new.pem())?;
    let after = tls(&server, &leaf, &new.pem(), &both).await?;
    let expected = match version {
        Version::V9_1 => (NodeResult::Stale, NodeResult::Current { reloaded: false }),
        Version::V8_1 => (told.clone(), told),
    };
    ensure!((before.clone(), after.clone()) == expected, "{before:?}, {after:?}");
    Ok(())
}

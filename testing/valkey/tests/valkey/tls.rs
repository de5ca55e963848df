//! TLS: the certificate is verified for the member's name while its IP is dialled, and reloads are visible.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reconcile_loops::plan::NodeResult;
use shared::names::{CLIENT_PORT, pod_host};
use shared::valkey::{Endpoint, TlsTarget, ValkeyError, certificate, connect, prove_revision};
use test_valkey::cluster::Member;
use test_valkey::{
    Authority, Cluster, LIMITS, Layout, Options, Request, Server, Version, operator, users_acl,
};

use crate::loops::tls;
use crate::{on_every_version, refusal};

on_every_version!(
    the_name_is_verified_and_not_the_address,
    a_reload_serves_the_new_certificate_and_a_bad_one_is_refused,
    a_cluster_forms_over_tls,
    a_server_whose_certificate_expires_stays_within_reach_of_the_operator,
    a_cluster_whose_authority_is_replaced_at_once_comes_together_under_the_new_one_with_all_keys,
);

fn host(index: u16) -> String {
    pod_host(&format!("c-{index:05x}"), "c", "ns")
}

fn options(version: Version, authority: &Authority, index: u16, serial: u64) -> Result<Options> {
    Ok(Options {
        acl: Some(users_acl(version, &[], &BTreeMap::new())?.text),
        tls: Some((
            authority.issue(&["c.ns.svc.cluster.local", "*.c.ns.svc.cluster.local"], serial)?,
            authority.pem(),
        )),
        hostname: Some(host(index)),
        ..Options::default()
    })
}

async fn the_name_is_verified_and_not_the_address(version: Version) -> Result<()> {
    let authority = Authority::new("ours")?;
    let server = Server::start(version, options(version, &authority, 0, 1)?).await?;
    let good = server.endpoint();
    connect(&good, &operator(), &LIMITS).await?.ping().await?;
    let target = |name: &str, ca_pem: String| Endpoint {
        tls: Some(TlsTarget { server_name: name.to_owned(), ca_pem }),
        ..good.clone()
    };
    let stranger = Authority::new("theirs")?.pem();
    for (what, endpoint) in [
        ("another cluster's name", target("c-00000.d.ns.svc.cluster.local", authority.pem())),
        ("the address", target(&server.ip.to_string(), authority.pem())),
        ("another authority", target(&host(0), stranger.clone())),
        ("no authority", target(&host(0), String::new())),
    ] {
        let outcome = connect(&endpoint, &operator(), &LIMITS).await;
        ensure!(matches!(outcome, Err(ValkeyError::TlsRejected { .. })), "{what}: {outcome:?}");
    }
    // An overlap bundle: either authority counts.
    let bundle = target(&host(0), format!("{stranger}{}", authority.pem()));
    connect(&bundle, &operator(), &LIMITS).await?.ping().await?;
    // Plaintext to a TLS port is no login.
    let outcome = connect(&Endpoint { tls: None, ..good.clone() }, &operator(), &LIMITS).await;
    ensure!(outcome.is_err(), "plaintext was accepted");
    // The throw-away login of the marker goes the same way.
    let revision = users_acl(version, &[], &BTreeMap::new())?.revision;
    ensure!(prove_revision(&good, &revision, &LIMITS).await?, "not proved over TLS");
    Ok(())
}

async fn a_reload_serves_the_new_certificate_and_a_bad_one_is_refused(version: Version) -> Result<()> {
    let authority = Authority::new("ours")?;
    let server = Server::start(version, options(version, &authority, 0, 0x0a01)?).await?;
    let connection = server.operator().await?;
    let names = ["tls-cert-file", "tls-key-file", "tls-ca-cert-file"];
    let paths = [server.path("tls.crt"), server.path("tls.key"), server.path("ca.crt")];
    let settings: Vec<(&str, &str)> = names.into_iter().zip(paths.iter().map(String::as_str)).collect();
    let serial = async || -> Result<Option<String>> {
        Ok(connection.info().await?.tls.map(|tls| tls.server_cert_serial))
    };
    let before = serial().await?;
    let renewed = authority.issue(&["*.c.ns.svc.cluster.local"], 0x0b02)?;
    server.write("tls.crt", &renewed.certificate)?;
    server.write("tls.key", &renewed.key)?;
    ensure!(serial().await? == before, "the files alone change nothing");
    connection.config_set(&settings).await?;
    let after = serial().await?;
    match version {
        Version::V9_1 => {
            ensure!(before.as_deref().is_some_and(|serial| serial.contains("A01")), "{before:?}");
            ensure!(after.as_deref().is_some_and(|serial| serial.contains("B02")), "{after:?}");
        }
        // 8.1 does not report its certificate.
        Version::V8_1 => ensure!(before.is_none() && after.is_none(), "{before:?} {after:?}"),
    }
    // A pair that does not match is refused as a whole, and the old one goes on.
    server.write("tls.key", &authority.issue(&["x"], 3)?.key)?;
    let words = refusal(connection.config_set(&settings).await)?;
    ensure!(words.contains("CONFIG SET failed"), "{words}");
    connect(&server.endpoint(), &operator(), &LIMITS).await?.ping().await?;
    Ok(())
}

async fn a_cluster_forms_over_tls(version: Version) -> Result<()> {
    let authority = Authority::new("ours")?;
    let all = (0..4).map(|index| options(version, &authority, index, 1)).collect::<Result<Vec<_>>>()?;
    let layout = Layout { version, shards: 2, replicas: 1, spare: 0 };
    let pick = |index: u16| all.get(usize::from(index)).cloned().unwrap_or_default();
    let cluster = Cluster::form_with(layout, pick).await?;
    for (report, index) in cluster.reports().await?.iter().zip(0..) {
        let own = report.myself().context("no own line")?;
        ensure!(own.hostname == Some(host(index)), "{own:?}");
        let address = own.address.as_ref().context("no address")?;
        ensure!(address.port == 6379 && address.bus_port == 16379, "{address:?}");
    }
    Ok(())
}

async fn a_server_whose_certificate_expires_stays_within_reach_of_the_operator(
    version: Version,
) -> Result<()> {
    const LIFE: Duration = Duration::from_secs(4);
    let authority = Authority::new("ours")?;
    let short = Request::new([host(0)]).seconds(LIFE);
    let options = Options {
        tls: Some((authority.sign(&short)?, authority.pem())),
        ..options(version, &authority, 0, 1)?
    };
    let server = Server::start(version, options).await?;
    tokio::time::sleep(LIFE + Duration::from_secs(1)).await;
    let connection = connect(&server.endpoint(), &operator(), &LIMITS).await?;
    let expired = connection.served_certificate().context("none served")?.to_vec();
    // So it can be told of the renewed one.
    let renewed = authority.issue(&[&host(0)], 2)?;
    server.write("tls.crt", &renewed.certificate)?;
    server.write("tls.key", &renewed.key)?;
    let names = ["tls-cert-file", "tls-key-file", "tls-ca-cert-file"];
    let paths = [server.path("tls.crt"), server.path("tls.key"), server.path("ca.crt")];
    let settings: Vec<(&str, &str)> = names.into_iter().zip(paths.iter().map(String::as_str)).collect();
    connection.config_set(&settings).await?;
    let again = connect(&server.endpoint(), &operator(), &LIMITS).await?;
    ensure!(again.served_certificate().is_some_and(|served| served != expired), "still the expired one");
    Ok(())
}

/// Keys that are written before anything happens.
const KEYS: u64 = 500;

/// Sends each key to each server: it takes those of its slots and refuses the others.
fn write_keys(version: Version, servers: &[&Server]) -> Result<()> {
    let commands: Vec<String> = (0..KEYS).map(|key| format!("SET key:{key} {key}\n")).collect();
    for server in servers {
        let mut cli = Command::new(version.cli()?)
            .args([
                "-h",
                &server.ip.to_string(),
                "--tls",
                "--cacert",
                &server.path("ca.crt"),
                "--sni",
                &host(0),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        cli.stdin.take().context("no input")?.write_all(commands.concat().as_bytes())?;
        ensure!(cli.wait()?.success(), "valkey-cli");
    }
    Ok(())
}

/// Keys that the members have, each shard counted once.
async fn keys(members: &[&Member]) -> Result<u64> {
    let mut sum = 0;
    for member in members {
        sum += member.connection.info().await?.keys;
    }
    Ok(sum)
}

async fn a_cluster_whose_authority_is_replaced_at_once_comes_together_under_the_new_one_with_all_keys(
    version: Version,
) -> Result<()> {
    let (old, new) = (Authority::until("old", 2040)?, Authority::until("new", 2050)?);
    let both = old.pem() + &new.pem();
    let all = (0..4).map(|index| options(version, &old, index, 1)).collect::<Result<Vec<_>>>()?;
    let layout = Layout { version, shards: 2, replicas: 1, spare: 0 };
    let pick = |index: u16| all.get(usize::from(index)).cloned().unwrap_or_default();
    let mut cluster = Cluster::form_with(layout, pick).await?;
    let primaries: Vec<&Server> = cluster.members.iter().take(2).map(|member| &member.server).collect();
    write_keys(version, &primaries)?;
    let primaries: Vec<&Member> = cluster.members.iter().take(2).collect();
    ensure!(keys(&primaries).await? == KEYS, "not all keys were written");

    let renewed = new.issue(&["c.ns.svc.cluster.local", "*.c.ns.svc.cluster.local"], 2)?;
    let leaf = certificate::leaf(&renewed.certificate)?;
    let mut told = Vec::new();
    for (index, member) in cluster.members.iter().enumerate() {
        for (name, text) in
            [("tls.crt", &renewed.certificate), ("tls.key", &renewed.key), ("ca.crt", &new.pem())]
        {
            member.server.write(name, text)?;
        }
        // Who trusts what is in the files, and nothing else, cannot tell a member to read them.
        let result = tls(&member.server, &leaf, &new.pem(), &new.pem()).await?;
        ensure!(matches!(result, NodeResult::Failed { kind: "tls_rejected", .. }), "{result:?}");
        told.push(tls(&member.server, &leaf, &new.pem(), &both).await?);
        // A quarter, half, three quarters have read them: nobody refuses another, since links that exist stay.
        if index < 3 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            cluster.until_healthy().await?;
        }
    }
    let expected = match version {
        Version::V9_1 => NodeResult::Current { reloaded: true },
        Version::V8_1 => NodeResult::Told { reloaded: true },
    };
    ensure!(told.iter().all(|result| *result == expected), "{told:?}");

    // Links are cut by silence and made anew by all, under the new authority.
    let frozen = cluster.members.get(3).context("four members")?;
    frozen.server.freeze()?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    frozen.server.thaw()?;
    cluster.until_healthy().await?;
    // A replica is lost, and another that never knew the old authority takes its place.
    let mut lost = cluster.members.remove(2);
    lost.server.kill()?;
    let primary = cluster.members.first().context("a primary")?.id;
    let server = Server::start(version, options(version, &new, 4, 3)?).await?;
    let connection = server.operator().await?;
    let id = connection.my_id().await?;
    for member in &cluster.members {
        member.connection.forget(lost.id).await?;
    }
    cluster.members.first().context("a primary")?.connection.meet(server.ip, CLIENT_PORT).await?;
    cluster.members.push(Member { server, connection, id, primary: Some(0) });
    cluster
        .until("all know the new member, and nobody else", |report| {
            let handshake = report.nodes.iter().any(|line| line.flags.handshake);
            let known =
                report.nodes.len() == 4 && !handshake && report.nodes.iter().any(|line| line.id == id);
            known.then_some(()).ok_or_else(|| format!("{} nodes, handshake {handshake}", report.nodes.len()))
        })
        .await?;
    cluster.members.last().context("the new member")?.connection.replicate(primary).await?;
    cluster.until_healthy().await?;
    let (primaries, replicas) = cluster.members.split_at(2);
    for members in [primaries, replicas] {
        let members: Vec<&Member> = members.iter().collect();
        ensure!(keys(&members).await? == KEYS, "keys are missing");
    }
    Ok(())
}

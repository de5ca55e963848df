//! TLS: the certificate is verified for the member's name while its IP is dialled, and reloads are visible.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shared::names::pod_host;
use shared::valkey::{Endpoint, TlsTarget, ValkeyError, connect, prove_revision};
use test_valkey::{
    Authority, Cluster, LIMITS, Layout, Options, Request, Server, Version, operator, users_acl,
};

use crate::{on_every_version, refusal};

on_every_version!(
    the_name_is_verified_and_not_the_address,
    a_reload_serves_the_new_certificate_and_a_bad_one_is_refused,
    a_cluster_forms_over_tls,
    a_server_whose_certificate_expires_stays_within_reach_of_the_operator,
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

//! The rendered valkey.conf as a whole: a server starts with it, and what the operator forces is in effect.

use anyhow::{Result, ensure};
use shared::conf::ConfError;
use shared::valkey::EngineVersion;
use test_valkey::node::{HOST, config_get};
use test_valkey::{Authority, Node, REPL_PASSWORD, Setup, Version};

use crate::on_every_version;

on_every_version!(
    a_plaintext_node_starts_and_what_is_forced_is_in_effect,
    a_tls_node_starts_and_what_is_forced_is_in_effect,
    what_people_set_of_what_is_forced_is_named_and_without_effect,
    defaults_can_be_overridden,
    tls_settings_open_no_second_door_in_plaintext,
    what_stops_a_start_is_in_the_server_s_last_words,
);

/// What each node must say of the settings that are the same for all.
fn forced(node: &Node) -> Vec<(&'static str, String)> {
    let (conf, data) = (node.conf_dir(), node.data_dir());
    [
        ("aclfile", format!("{conf}/acl/users.acl")),
        ("bind", "* -::*".to_owned()),
        ("cluster-allow-replica-migration", "no".to_owned()),
        ("cluster-announce-hostname", HOST.to_owned()),
        ("cluster-announce-ip", "127.0.0.1".to_owned()),
        ("cluster-config-file", format!("{data}/nodes.conf")),
        ("cluster-enabled", "yes".to_owned()),
        ("cluster-node-timeout", "5000".to_owned()),
        ("cluster-replica-no-failover", "no".to_owned()),
        ("daemonize", "no".to_owned()),
        ("dir", data),
        ("logfile", String::new()),
        ("primaryauth", REPL_PASSWORD.to_owned()),
        ("primaryuser", "_momento_repl".to_owned()),
        ("protected-mode", "no".to_owned()),
        ("rdma-port", "0".to_owned()),
    ]
    .into()
}

fn forced_in_plaintext(node: &Node) -> Vec<(&'static str, String)> {
    let own = [
        ("port", node.port.to_string()),
        ("tls-port", "0".to_owned()),
        ("tls-cluster", "no".to_owned()),
        ("tls-replication", "no".to_owned()),
        ("cluster-preferred-endpoint-type", "ip".to_owned()),
    ];
    forced(node).into_iter().chain(own).collect()
}

fn forced_with_tls(node: &Node) -> Vec<(&'static str, String)> {
    let conf = node.conf_dir();
    let own = [
        ("port", "0".to_owned()),
        ("tls-port", node.port.to_string()),
        ("tls-cluster", "yes".to_owned()),
        ("tls-replication", "yes".to_owned()),
        ("tls-auth-clients", "no".to_owned()),
        ("tls-cert-file", format!("{conf}/tls/tls.crt")),
        ("tls-key-file", format!("{conf}/tls/tls.key")),
        ("tls-ca-cert-file", format!("{conf}/tls/ca.crt")),
        ("tls-ca-cert-dir", String::new()),
        ("cluster-preferred-endpoint-type", "hostname".to_owned()),
    ];
    forced(node).into_iter().chain(own).collect()
}

/// What the node says of each setting is what it must. A setting that this engine does not know counts as unset.
async fn ensure_in_effect(node: &Node, wanted: &[(&'static str, String)]) -> Result<()> {
    let mut connection = node.connect().await?;
    let mut wrong = Vec::new();
    for (key, value) in wanted {
        let got = config_get(&mut connection, key).await?;
        let unknown_and_off = got.is_none() && *key == "rdma-port";
        if got.as_ref() != Some(value) && !unknown_and_off {
            wrong.push(format!("{key}: {value:?} wanted, {got:?} in effect"));
        }
    }
    ensure!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), node.output());
    Ok(())
}

fn tls() -> Result<Setup> {
    let authority = Authority::new("ours")?;
    let issued = authority.issue(&["127.0.0.1"], 1)?;
    Ok(Setup { tls: Some((issued, authority.pem())), ..Setup::default() })
}

async fn a_plaintext_node_starts_and_what_is_forced_is_in_effect(version: Version) -> Result<()> {
    let setup = Setup { memory: Some("1Gi".to_owned()), ..Setup::default() };
    let node = Node::start(version, &setup).await?;
    ensure_in_effect(&node, &forced_in_plaintext(&node)).await?;
    let on_sigterm = if version == Version::V9_1 { "nosave failover" } else { "nosave" };
    let defaults = [
        ("repl-diskless-sync-delay", "0"),
        ("save", ""),
        ("shutdown-on-sigterm", on_sigterm),
        ("maxmemory", "805306368"),
    ];
    let defaults = defaults.map(|(key, value)| (key, value.to_owned()));
    ensure_in_effect(&node, &defaults).await?;
    if version == Version::V9_1 {
        let bytes = node.get("slot-migration-max-failover-repl-bytes").await?;
        ensure!(bytes.as_deref() == Some("67108864"), "{bytes:?}");
    }
    // The log goes to where the container's log is read.
    ensure!(node.output().contains("Ready to accept connections"), "{}", node.output());
    Ok(())
}

async fn a_tls_node_starts_and_what_is_forced_is_in_effect(version: Version) -> Result<()> {
    let node = Node::start(version, &tls()?).await?;
    ensure_in_effect(&node, &forced_with_tls(&node)).await
}

async fn what_people_set_of_what_is_forced_is_named_and_without_effect(version: Version) -> Result<()> {
    let people = [
        ("aclfile", "/etc/passwd"),
        ("bind", "127.0.0.2"),
        ("cluster-allow-replica-migration", "yes"),
        ("cluster-announce-hostname", "else.where"),
        ("cluster-announce-ip", "10.0.0.1"),
        ("cluster-config-file", "other.conf"),
        ("cluster-enabled", "no"),
        ("cluster-node-timeout", "15000"),
        ("cluster-preferred-endpoint-type", "unknown-endpoint"),
        ("cluster-replica-no-failover", "yes"),
        ("cluster-slave-no-failover", "yes"),
        ("daemonize", "yes"),
        ("dir", "/tmp"),
        ("logfile", "/tmp/log"),
        ("masterauth", "theirs"),
        ("masteruser", "they"),
        ("port", "7000"),
        ("primaryauth", "theirs"),
        ("primaryuser", "they"),
        ("protected-mode", "yes"),
        ("rdma-port", "6380"),
        ("repl-diskless-load", "on-empty-db"),
        ("tls-cluster", "yes"),
        ("tls-port", "6380"),
        ("tls-replication", "yes"),
    ];
    let with_tls = [
        ("tls-auth-clients", "yes"),
        ("tls-ca-cert-dir", "/etc/ssl/certs"),
        ("tls-ca-cert-file", "/etc/ssl/certs/ca-certificates.crt"),
        ("tls-cert-file", "/nowhere.crt"),
        ("tls-key-file", "/nowhere.key"),
    ];
    let names = |settings: &[(&str, &str)]| -> Vec<String> {
        let mut names: Vec<String> = settings.iter().map(|(key, _)| (*key).to_owned()).collect();
        names.sort();
        names
    };
    let plaintext = Setup::of(people);
    ensure!(
        plaintext.render(version)?.overridden == names(&people),
        "{:?}",
        plaintext.render(version)?.overridden
    );
    let node = Node::start(version, &plaintext).await?;
    ensure_in_effect(&node, &forced_in_plaintext(&node)).await?;

    let people = [people.as_slice(), &with_tls].concat();
    let secure = Setup { settings: Setup::of(people.iter().copied()).settings, ..tls()? };
    ensure!(secure.render(version)?.overridden == names(&people), "{:?}", secure.render(version)?.overridden);
    let node = Node::start(version, &secure).await?;
    ensure_in_effect(&node, &forced_with_tls(&node)).await
}

async fn defaults_can_be_overridden(version: Version) -> Result<()> {
    let people = [
        ("maxmemory", "123456789"),
        ("repl-diskless-sync-delay", "3"),
        ("save", "60 1"),
        ("shutdown-on-sigterm", "now"),
    ];
    let newer = [("slot-migration-max-failover-repl-bytes", "1000")];
    let newer = if version == Version::V9_1 { newer.as_slice() } else { &[] };
    let people = [people.as_slice(), newer].concat();
    let setup = Setup { memory: Some("1Gi".to_owned()), ..Setup::of(people.iter().copied()) };
    ensure!(setup.render(version)?.overridden.is_empty(), "{:?}", setup.render(version)?.overridden);
    let node = Node::start(version, &setup).await?;
    let wanted: Vec<_> = people.into_iter().map(|(key, value)| (key, value.to_owned())).collect();
    ensure_in_effect(&node, &wanted).await
}

/// Without a TLS port, bus or link nothing reads the files that these name, so that a config made for both kinds of
/// cluster works in both.
async fn tls_settings_open_no_second_door_in_plaintext(version: Version) -> Result<()> {
    let people = [
        ("tls-auth-clients", "yes"),
        ("tls-ca-cert-dir", "/nowhere"),
        ("tls-ca-cert-file", "/nowhere.crt"),
        ("tls-cert-file", "/nowhere.crt"),
        ("tls-cluster", "yes"),
        ("tls-dh-params-file", "/nowhere.dh"),
        ("tls-key-file", "/nowhere.key"),
        ("tls-port", "6390"),
        ("tls-protocols", "TLSv1.3"),
        ("tls-replication", "yes"),
        ("tls-session-caching", "no"),
        ("unixsocket", "valkey.sock"),
    ];
    let node = Node::start(version, &Setup::of(people)).await?;
    ensure_in_effect(&node, &forced_in_plaintext(&node)).await?;
    let output = node.output();
    let doors: Vec<&str> =
        output.lines().filter(|line| line.contains("eady to accept connections")).collect();
    ensure!(doors.len() == 2 && doors.iter().any(|line| line.contains("unix")), "{doors:?}");
    Ok(())
}

async fn what_stops_a_start_is_in_the_server_s_last_words(version: Version) -> Result<()> {
    for (key, value, why) in [
        (
            "maxmemory-policy",
            "nonsense",
            ["maxmemory-policy nonsense", "argument(s) must be one of the following"],
        ),
        ("no-such-setting", "1", ["no-such-setting 1", "Bad directive"]),
        ("hz", "many", ["hz many", "argument couldn't be parsed into an integer"]),
        ("loadmodule", "/no/such/module.so", ["/no/such/module.so", "aborting"]),
        ("unixsocket", "/no/such/socket", ["Failed opening Unix socket", "No such file or directory"]),
    ] {
        let words = Node::last_words(version, &Setup::of([(key, value)])).await?;
        // Kubernetes keeps 2048 bytes, or 80 lines, of the end.
        let kept = words.len() <= 2048 && words.lines().count() <= 80;
        ensure!(kept && why.iter().all(|why| words.contains(why)), "{key} {value}: {words}");
    }
    Ok(())
}

/// A file of a newer engine would stop an older one, so that an image of which nothing is known gets the oldest's.
#[tokio::test]
async fn an_engine_before_9_gets_nothing_that_it_does_not_know() -> Result<()> {
    let rendered_for_9 = Setup { declared: Some(EngineVersion::new(9, 0, 0)), ..Setup::default() };
    let words = Node::last_words(Version::V8_1, &rendered_for_9).await?;
    ensure!(words.contains("shutdown-on-sigterm") || words.contains("slot-migration"), "{words}");
    let oldest = Setup { declared: Some(shared::conf::OLDEST_ENGINE), ..Setup::default() };
    Node::start(Version::V8_1, &oldest).await?;
    Node::start(Version::V9_1, &oldest).await?;
    Ok(())
}

#[test]
fn what_breaks_a_member_is_refused_before_any_server_sees_it() {
    for key in ["include", "requirepass", "rename-command", "user", "replicaof", "supervised", "cluster-port"]
    {
        let error = Setup::of([(key, "x")]).render(Version::V9_1).err();
        let refused = error.as_ref().and_then(|error| error.downcast_ref::<ConfError>());
        assert_eq!(refused, Some(&ConfError::Refused { key: key.to_owned() }));
    }
}

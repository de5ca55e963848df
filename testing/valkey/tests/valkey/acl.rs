//! The rendered users.acl on real servers: it loads, grants enough and no more, and its revision can be proved.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use shared::api::{
    Access, AclBinding, CategoryRule, CommandRule, KeyAccess, KeyPattern, Permission, ValkeyRoleSpec,
};
use shared::valkey::{ValkeyError, prove_revision};
use test_valkey::{LIMITS, OPERATOR_PASSWORD, Options, REPL_PASSWORD, Server, Version, users_acl};

use crate::{on_every_version, refusal};

const PASSWORD: &str = "password";
/// SHA-256 of [`PASSWORD`].
const HASH: &str = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";

fn allow(name: &str) -> CategoryRule {
    CategoryRule { name: name.to_owned(), access: Access::Allow }
}

fn roles() -> BTreeMap<String, ValkeyRoleSpec> {
    let command = |name: &str, subcommand: Option<&str>, access| CommandRule {
        name: name.to_owned(),
        subcommand: subcommand.map(ToOwned::to_owned),
        access,
    };
    let app = ValkeyRoleSpec {
        categories: vec![allow("all"), CategoryRule { name: "dangerous".to_owned(), access: Access::Deny }],
        commands: vec![command("config", Some("get"), Access::Allow), command("GETDEL", None, Access::Deny)],
    };
    let reader = ValkeyRoleSpec { categories: vec![allow("read"), allow("connection")], commands: vec![] };
    BTreeMap::from([("app".to_owned(), app), ("reader".to_owned(), reader)])
}

fn key(pattern: &str, access: KeyAccess) -> KeyPattern {
    KeyPattern { pattern: pattern.to_owned(), access }
}

fn binding(username: &str) -> AclBinding {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    AclBinding {
        username: username.to_owned(),
        password_hashes: vec![HASH.to_owned()],
        permissions: vec![
            Permission {
                role_ref: "app".to_owned(),
                keys: vec![key("{app}:*", KeyAccess::ReadWrite), key("a(b[c]?\\*#%", KeyAccess::Write)],
                channels: texts(&["news.*", "a(b"]),
            },
            Permission {
                role_ref: "reader".to_owned(),
                keys: vec![key("shared:*", KeyAccess::Read), key("*", KeyAccess::ReadWrite)],
                channels: texts(&["x", "*"]),
            },
        ],
    }
}

on_every_version!(
    a_rendered_file_starts_a_server_and_grants_what_it_says,
    without_bindings_the_default_user_is_open_and_with_any_it_is_off,
    a_binding_named_default_needs_its_password,
    the_operator_may_run_its_own_commands_and_nothing_else,
    only_the_loaded_revision_is_proved,
    a_refused_file_leaves_the_old_users,
);

async fn ask(server: &Server, user: Option<(&str, &str)>, command: &str) -> Result<String> {
    let mut connection = server.raw(user).await?;
    let mut words = command.split(' ');
    let mut request = redis::cmd(words.next().unwrap_or_default());
    request.arg(words.collect::<Vec<_>>());
    Ok(match request.query_async::<redis::Value>(&mut connection).await {
        Ok(value) => format!("{value:?}"),
        Err(error) => {
            format!("error {} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default())
        }
    })
}

async fn a_rendered_file_starts_a_server_and_grants_what_it_says(version: Version) -> Result<()> {
    let acl = users_acl(version, &[binding("app")], &roles())?;
    // A config may open channels by default; a selector must not inherit that.
    let extra =
        vec!["acl-pubsub-default allchannels".to_owned(), "cluster-require-full-coverage no".to_owned()];
    let server = Server::start(version, Options { acl: Some(acl.text), extra, ..Options::default() }).await?;
    server.operator().await?.add_slots_range(&[shared::slots::SlotRange { start: 0, end: 16383 }]).await?;
    for (command, allowed) in [
        ("SET {app}:1 v", true),
        ("GET other", true),
        ("SET other v", false),
        ("SET a(bcx\\*#% v", false),
        ("GETDEL {app}:1", false),
        ("FLUSHALL", false),
        ("CONFIG GET maxmemory", true),
        ("CONFIG SET maxmemory 0", false),
        ("PUBLISH news.x 1", true),
        ("PUBLISH other 1", false),
        ("ACL LIST", false),
    ] {
        let reply = ask(&server, Some(("app", PASSWORD)), command).await?;
        ensure!(reply.contains("NOPERM") != allowed, "{command}: {reply}");
    }
    Ok(())
}

async fn without_bindings_the_default_user_is_open_and_with_any_it_is_off(version: Version) -> Result<()> {
    let open = users_acl(version, &[], &roles())?.text;
    let server = Server::start(version, Options { acl: Some(open), ..Options::default() }).await?;
    let reply = ask(&server, None, "ACL WHOAMI").await?;
    ensure!(reply.contains("default"), "{reply}");
    server.write("users.acl", &users_acl(version, &[binding("app")], &roles())?.text)?;
    server.operator().await?.acl_load().await?;
    let reply = ask(&server, None, "ACL WHOAMI").await?;
    ensure!(reply.contains("NOAUTH"), "{reply}");
    Ok(())
}

async fn a_binding_named_default_needs_its_password(version: Version) -> Result<()> {
    let acl = users_acl(version, &[binding("default")], &roles())?.text;
    let server = Server::start(version, Options { acl: Some(acl), ..Options::default() }).await?;
    let reply = ask(&server, None, "PING").await?;
    ensure!(reply.contains("NOAUTH"), "{reply}");
    let reply = ask(&server, Some(("default", PASSWORD)), "PING").await?;
    ensure!(reply.contains("PONG"), "{reply}");
    Ok(())
}

async fn the_operator_may_run_its_own_commands_and_nothing_else(version: Version) -> Result<()> {
    let acl = users_acl(version, &[], &BTreeMap::new())?.text;
    let server = Server::start(version, Options { acl: Some(acl), ..Options::default() }).await?;
    let operator = Some((shared::names::USER_OPERATOR, OPERATOR_PASSWORD));
    let mut forbidden = vec![
        "FLUSHALL",
        "FLUSHDB",
        "CONFIG GET maxmemory",
        "CONFIG REWRITE",
        "ACL LIST",
        "ACL SETUSER x on",
        "SHUTDOWN",
        "SET k v",
        "GET k",
        "KEYS *",
        "DBSIZE",
        "CLUSTER SETSLOT 1 STABLE",
        "CLUSTER DELSLOTS 1",
        "CLUSTER FLUSHSLOTS",
        "CLUSTER BUMPEPOCH",
        "REPLICAOF NO ONE",
        "CLIENT KILL ID 1",
        "EVAL return 0",
        "FUNCTION FLUSH",
    ];
    if version == Version::V9_1 {
        forbidden.push("CLUSTER FLUSHSLOT 1");
    }
    for command in forbidden {
        let reply = ask(&server, operator, command).await?;
        ensure!(reply.contains("NOPERM"), "{command}: {reply}");
    }
    let repl = Some((shared::names::USER_REPL, REPL_PASSWORD));
    for command in [
        "FLUSHALL",
        "FLUSHDB",
        "CONFIG GET maxmemory",
        "CLUSTER NODES",
        "ACL LIST",
        "GET k",
        "FUNCTION FLUSH",
        "CLUSTER RESET",
    ] {
        let reply = ask(&server, repl, command).await?;
        ensure!(reply.contains("NOPERM"), "{command} as the replication user: {reply}");
    }
    Ok(())
}

async fn only_the_loaded_revision_is_proved(version: Version) -> Result<()> {
    let first = users_acl(version, &[], &roles())?;
    let second = users_acl(version, &[binding("app")], &roles())?;
    let options = Options { acl: Some(first.text.clone()), ..Options::default() };
    let server = Server::start(version, options).await?;
    let proved = async |revision: &str| prove_revision(&server.endpoint(), revision, &LIMITS).await;
    ensure!(proved(&first.revision).await? && !proved(&second.revision).await?, "at start");
    // The file alone changes nothing: only what the server loaded counts.
    server.write("users.acl", &second.text)?;
    ensure!(proved(&first.revision).await? && !proved(&second.revision).await?, "after the write");
    server.operator().await?.acl_load().await?;
    ensure!(!proved(&first.revision).await? && proved(&second.revision).await?, "after ACL LOAD");
    // A login with the marker proves the file and gives nothing.
    let marker = Some((shared::names::USER_REVISION, second.revision.as_str()));
    for command in ["PING", "INFO", "GET k", "ACL WHOAMI", "CLUSTER NODES"] {
        let reply = ask(&server, marker, command).await?;
        ensure!(reply.contains("NOPERM"), "{command}: {reply}");
    }
    // Without the user there is nothing to prove, which is an answer and not an error.
    let plain = Server::start(version, Options::default()).await?;
    ensure!(!prove_revision(&plain.endpoint(), &first.revision, &LIMITS).await?, "no marker");
    Ok(())
}

async fn a_refused_file_leaves_the_old_users(version: Version) -> Result<()> {
    let good = users_acl(version, &[binding("app")], &roles())?;
    let server =
        Server::start(version, Options { acl: Some(good.text.clone()), ..Options::default() }).await?;
    let operator = server.operator().await?;
    let unknown = CommandRule { name: "nosuchcommand".to_owned(), subcommand: None, access: Access::Allow };
    let mut roles = roles();
    roles.insert("app".to_owned(), ValkeyRoleSpec { categories: vec![], commands: vec![unknown] });
    let bad = users_acl(version, &[binding("app")], &roles)?;
    server.write("users.acl", &bad.text)?;
    let words = refusal(operator.acl_load().await)?;
    ensure!(words.contains("nosuchcommand") && words.contains("no change"), "{words}");
    ensure!(prove_revision(&server.endpoint(), &good.revision, &LIMITS).await?, "the old file is gone");
    let reply = ask(&server, Some(("app", PASSWORD)), "PING").await?;
    ensure!(reply.contains("PONG"), "{reply}");
    // The same file ends a server that starts with it.
    let error = Server::start_refused(version, Options { acl: Some(bad.text), ..Options::default() }).await?;
    ensure!(error.contains("nosuchcommand"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_file_for_9_ends_a_server_of_8_which_is_why_the_lowest_version_counts() -> Result<()> {
    let newer = users_acl(Version::V9_1, &[], &BTreeMap::new())?.text;
    let error =
        Server::start_refused(Version::V8_1, Options { acl: Some(newer), ..Options::default() }).await?;
    ensure!(error.contains("migrateslots") || error.contains("syncslots"), "{error}");
    let older = users_acl(Version::V8_1, &[], &BTreeMap::new())?.text;
    Server::start(Version::V9_1, Options { acl: Some(older), ..Options::default() }).await?;
    Ok(())
}

#[tokio::test]
async fn a_command_that_is_not_granted_is_told_as_such() -> Result<()> {
    // The file for 8.1 grants no job commands, which a 9.1 server knows.
    let older = users_acl(Version::V8_1, &[], &BTreeMap::new())?.text;
    let server = Server::start(Version::V9_1, Options { acl: Some(older), ..Options::default() }).await?;
    let error = server.operator().await?.slot_migrations().await;
    ensure!(matches!(error, Err(ValkeyError::NoPermission { .. })), "{error:?}");
    Ok(())
}

//! What a binding says is what a running server allows: users × commands × keys × channels, each judged once by the
//! rules of the API, written down here anew, and once by the server (`ACL DRYRUN`; a sample by real connections too).
//!
//! The rules: a command is allowed if one permission allows it with all the keys and channels that it uses; categories
//! first, then commands, the last word wins; a pattern grants reading, writing or both.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use shared::api::{
    Access, AclBinding, CategoryRule, CommandRule, KeyAccess, KeyPattern, Permission, ValkeyRoleSpec,
};
use test_valkey::{Options, Server, Version, users_acl};

use crate::on_every_version;

const PASSWORD: &str = "password";
/// SHA-256 of [`PASSWORD`].
const HASH: &str = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";

/// What a command does to its arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
    Both,
    Channel,
    /// Neither a key nor a channel.
    Other,
}

/// A command, its categories of those that the roles name, and its arguments.
struct Command {
    words: &'static str,
    categories: &'static [&'static str],
    uses: &'static [Use],
}

/// Arguments of which the server's tables (Valkey 8.1 and 9.1) say the same.
const COMMANDS: [Command; 14] = [
    Command { words: "get", categories: &["read", "string", "fast"], uses: &[Use::Read] },
    Command {
        words: "getrange",
        categories: &["read", "string", "slow"],
        uses: &[Use::Read, Use::Other, Use::Other],
    },
    Command { words: "set", categories: &["write", "string", "slow"], uses: &[Use::Write, Use::Other] },
    Command { words: "append", categories: &["write", "string", "fast"], uses: &[Use::Write, Use::Other] },
    Command { words: "getdel", categories: &["write", "string", "fast"], uses: &[Use::Both] },
    Command { words: "del", categories: &["keyspace", "write", "slow"], uses: &[Use::Write] },
    Command { words: "mget", categories: &["read", "string", "fast"], uses: &[Use::Read, Use::Read] },
    Command { words: "copy", categories: &["keyspace", "write", "slow"], uses: &[Use::Read, Use::Write] },
    Command { words: "hget", categories: &["read", "hash", "fast"], uses: &[Use::Read, Use::Other] },
    Command { words: "publish", categories: &["pubsub", "fast"], uses: &[Use::Channel, Use::Other] },
    Command { words: "subscribe", categories: &["pubsub", "slow"], uses: &[Use::Channel] },
    Command { words: "ping", categories: &["fast", "connection"], uses: &[] },
    Command { words: "flushall", categories: &["keyspace", "write", "slow", "dangerous"], uses: &[] },
    Command { words: "config get", categories: &["admin", "slow", "dangerous"], uses: &[Use::Other] },
];

/// Patterns with the names below that they match, by the engine's glob rules.
const PATTERNS: [(&str, &[&str]); 5] = [
    ("*", &["app:1", "app:", "a", "b:1", "x"]),
    ("app:*", &["app:1", "app:"]),
    ("[ab]*", &["app:1", "app:", "a", "b:1"]),
    ("?", &["a", "x"]),
    ("b\\:1", &["b:1"]),
];
const NAMES: [&str; 5] = ["app:1", "app:", "a", "b:1", "x"];

fn matches(pattern: &str, name: &str) -> bool {
    PATTERNS.iter().any(|(known, names)| *known == pattern && names.contains(&name))
}

fn roles() -> BTreeMap<String, ValkeyRoleSpec> {
    let category = |word: &str| {
        let (access, name) = match word.strip_prefix('-') {
            Some(name) => (Access::Deny, name),
            None => (Access::Allow, word),
        };
        CategoryRule { name: name.to_owned(), access }
    };
    let command = |word: &str| {
        let (access, name) = match word.strip_prefix('-') {
            Some(name) => (Access::Deny, name),
            None => (Access::Allow, word),
        };
        let (name, subcommand) = name.split_once(' ').map_or((name, None), |(a, b)| (a, Some(b.to_owned())));
        CommandRule { name: name.to_owned(), subcommand, access }
    };
    let role = |categories: &[&str], commands: &[&str]| ValkeyRoleSpec {
        categories: categories.iter().map(|word| category(word)).collect(),
        commands: commands.iter().map(|word| command(word)).collect(),
    };
    [
        ("nothing", role(&[], &[])),
        ("reader", role(&["read", "connection"], &[])),
        ("writer", role(&["write"], &["-getdel"])),
        ("strings", role(&["string"], &["copy"])),
        ("talker", role(&["pubsub"], &[])),
        ("most", role(&["all", "-dangerous", "-hash"], &["config get", "-copy"])),
        ("last-word", role(&["all", "-write", "string"], &["-set", "set", "-get"])),
    ]
    .map(|(name, role)| (name.to_owned(), role))
    .into()
}

/// Whether a role allows a command: categories in order, then commands in order, the last word wins.
fn grants(role: &ValkeyRoleSpec, command: &Command) -> bool {
    let in_category =
        |rule: &CategoryRule| rule.name == "all" || command.categories.contains(&rule.name.as_str());
    let is_named = |rule: &CommandRule| {
        let words = rule.subcommand.as_ref().map_or(rule.name.clone(), |sub| format!("{} {sub}", rule.name));
        words == command.words
    };
    let categories = role.categories.iter().filter(|rule| in_category(rule)).map(|rule| rule.access);
    let commands = role.commands.iter().filter(|rule| is_named(rule)).map(|rule| rule.access);
    categories.chain(commands).last() == Some(Access::Allow)
}

fn allowed(binding: &AclBinding, command: &Command, arguments: &[&str]) -> bool {
    let roles = roles();
    binding.permissions.iter().any(|permission| {
        let covers = |(used, name): (&Use, &&str)| {
            let key = |reads: bool, writes: bool| {
                let granting = |access: KeyAccess| {
                    permission.keys.iter().any(|key| {
                        (key.access == access || key.access == KeyAccess::ReadWrite)
                            && matches(&key.pattern, name)
                    })
                };
                // What is read and written at once needs one pattern that grants both.
                if reads && writes {
                    return permission
                        .keys
                        .iter()
                        .any(|key| key.access == KeyAccess::ReadWrite && matches(&key.pattern, name));
                }
                (!reads || granting(KeyAccess::Read)) && (!writes || granting(KeyAccess::Write))
            };
            match used {
                Use::Read => key(true, false),
                Use::Write => key(false, true),
                Use::Both => key(true, true),
                Use::Channel => permission.channels.iter().any(|pattern| matches(pattern, name)),
                Use::Other => true,
            }
        };
        let role = roles.get(&permission.role_ref);
        role.is_some_and(|role| grants(role, command)) && command.uses.iter().zip(arguments).all(covers)
    })
}

fn permission(role: &str, keys: &[(&str, KeyAccess)], channels: &[&str]) -> Permission {
    Permission {
        role_ref: role.to_owned(),
        keys: keys
            .iter()
            .map(|(pattern, access)| KeyPattern { pattern: (*pattern).to_owned(), access: *access })
            .collect(),
        channels: channels.iter().map(|pattern| (*pattern).to_owned()).collect(),
    }
}

fn bindings() -> Vec<AclBinding> {
    use KeyAccess::{Read, ReadWrite, Write};
    let users: Vec<Vec<Permission>> = vec![
        vec![permission("nothing", &[("*", ReadWrite)], &["*"])],
        vec![permission("reader", &[("app:*", Read)], &[])],
        vec![permission("reader", &[("app:*", Write)], &[])],
        vec![permission("writer", &[("[ab]*", Write)], &["*"])],
        vec![permission("writer", &[("app:*", ReadWrite), ("?", Read)], &[])],
        vec![permission("strings", &[("app:*", Read), ("b\\:1", Write)], &[])],
        vec![permission("talker", &[], &["app:*", "?"])],
        vec![permission("most", &[("*", ReadWrite)], &["[ab]*"])],
        vec![permission("most", &[], &[])],
        vec![permission("last-word", &[("[ab]*", ReadWrite)], &["*"])],
        // A second permission adds what it allows as a whole, and lends nothing to the first.
        vec![
            permission("reader", &[("app:*", Read)], &["app:*"]),
            permission("writer", &[("?", Write)], &[]),
            permission("talker", &[], &["b\\:1"]),
        ],
        vec![permission("writer", &[("*", Read)], &[]), permission("reader", &[("*", Write)], &[])],
    ];
    (0..)
        .zip(users)
        .map(|(number, permissions)| AclBinding {
            username: format!("user{number}"),
            password_hashes: vec![HASH.to_owned()],
            permissions,
        })
        .collect()
}

/// Every combination of names for the arguments that are keys or channels.
fn arguments(command: &Command) -> Vec<Vec<&'static str>> {
    let mut all = vec![Vec::new()];
    for used in command.uses {
        let choices: &[&'static str] = if *used == Use::Other { &["other"] } else { &NAMES };
        all = all
            .iter()
            .flat_map(|so_far: &Vec<&str>| {
                choices.iter().map(|choice| so_far.iter().copied().chain([*choice]).collect())
            })
            .collect();
    }
    all
}

on_every_version!(a_running_server_allows_exactly_what_the_bindings_say,);

async fn a_running_server_allows_exactly_what_the_bindings_say(version: Version) -> Result<()> {
    let bindings = bindings();
    let mut text = users_acl(version, &bindings, &roles())?.text;
    // The judge; a user of the test alone.
    text.push_str("user judge on nopass +@all\n");
    let extra = vec!["cluster-require-full-coverage no".to_owned()];
    let server = Server::start(version, Options { acl: Some(text), extra, ..Options::default() }).await?;
    let mut judge = server.raw(Some(("judge", "any"))).await?;
    let (mut cases, mut granted, mut wrong) = (0, 0, Vec::new());
    for binding in &bindings {
        for command in &COMMANDS {
            for arguments in arguments(command) {
                let expected = allowed(binding, command, &arguments);
                let words: Vec<&str> = command.words.split(' ').collect();
                let reply = redis::cmd("ACL")
                    .arg("DRYRUN")
                    .arg(&binding.username)
                    .arg(&words)
                    .arg(&arguments)
                    .query_async::<String>(&mut judge)
                    .await?;
                cases += 1;
                granted += u32::from(expected);
                if (reply == "OK") != expected {
                    let user = &binding.username;
                    wrong.push(format!(
                        "{user} {} {arguments:?}: {reply}, expected {expected}",
                        command.words
                    ));
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "{} of {cases} wrong:\n{}", wrong.len(), wrong.join("\n"));
    // The figures of docs/security/evidence.md.
    ensure!((cases, granted) == (1176, 197), "{granted} of {cases} granted");
    sample(&server, &bindings).await
}

/// Real connections meet the same answers as the dry run.
async fn sample(server: &Server, bindings: &[AclBinding]) -> Result<()> {
    let slots = [shared::slots::SlotRange { start: 0, end: 16383 }];
    server.operator().await?.add_slots_range(&slots).await?;
    for binding in bindings {
        let mut connection = server.raw(Some((&binding.username, PASSWORD))).await?;
        for command in
            COMMANDS.iter().filter(|command| command.uses.len() <= 2 && command.words != "subscribe")
        {
            // Keys of one slot: a second key would be refused for another reason.
            let arguments: Vec<&str> =
                command.uses.iter().map(|used| if *used == Use::Other { "other" } else { "app:1" }).collect();
            let words: Vec<&str> = command.words.split(' ').collect();
            let mut request = redis::Cmd::new();
            request.arg(&words).arg(&arguments);
            let reply = request.query_async::<redis::Value>(&mut connection).await;
            let denied = reply.as_ref().err().is_some_and(|error| error.code() == Some("NOPERM"));
            let expected = allowed(binding, command, &arguments);
            ensure!(denied != expected, "{} {}: {reply:?}", binding.username, command.words);
        }
    }
    Ok(())
}

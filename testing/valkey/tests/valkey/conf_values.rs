//! What people write in a `ValkeyConfig` has the effect that `CONFIG SET` of the same string has.
//!
//! Each value is set by `CONFIG SET` on one server and rendered into the file of another; `CONFIG GET` must say the same
//! on both. What `CONFIG SET` cannot set is given to the first server on its command line.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, ensure};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use redis::aio::MultiplexedConnection;
use test_valkey::node::config_get;
use test_valkey::{Node, Options, Server, Setup, Version};

use crate::on_every_version;

on_every_version!(
    what_the_file_sets_is_what_config_set_sets,
    what_only_a_start_can_set_is_what_the_command_line_sets,
    every_setting_takes_what_the_server_says_of_it,
    any_string_arrives_as_it_was_written,
    what_config_set_refuses_stops_a_start_too,
);

/// Set by `CONFIG SET` and by the file. A setting that comes again is tried again, with another server.
const RUNTIME: &[(&str, &str)] = &[
    // Memory: units of both kinds and either case, percentages, bare numbers.
    ("maxmemory", "100mb"),
    ("maxmemory", "1GB"),
    ("maxmemory", "512M"),
    ("maxmemory", "104857600"),
    ("maxmemory", "2G"),
    ("maxmemory", "104857600b"),
    ("maxmemory", "0"),
    ("maxmemory", ""),
    ("maxmemory-clients", "5%"),
    ("maxmemory-clients", "128mb"),
    ("client-query-buffer-limit", "2Mb"),
    ("proto-max-bulk-len", "1g"),
    ("repl-backlog-size", "33KB"),
    ("repl-backlog-size", "64k"),
    ("auto-aof-rewrite-min-size", "32mb"),
    ("active-defrag-ignore-bytes", "1kb"),
    ("cluster-link-sendbuf-limit", "10mb"),
    ("stream-node-max-bytes", "8kb"),
    ("hll-sparse-max-bytes", "3000"),
    // Words of a closed list, in any case.
    ("maxmemory-policy", "allkeys-lru"),
    ("maxmemory-policy", "ALLKEYS-LFU"),
    ("maxmemory-policy", "Volatile-TTL"),
    ("appendfsync", "No"),
    ("loglevel", "WARNING"),
    ("repl-diskless-load", "swapdb"),
    ("repl-diskless-load", "SwapDB"),
    ("acl-pubsub-default", "allchannels"),
    ("propagation-error-behavior", "panic"),
    ("oom-score-adj", "Relative"),
    ("log-format", "logfmt"),
    ("log-timestamp-format", "iso8601"),
    // Yes and no, in any case.
    ("activerehashing", "no"),
    ("lazyfree-lazy-eviction", "YES"),
    ("lazyfree-lazy-user-del", "No"),
    ("appendonly", "no"),
    ("cluster-require-full-coverage", "no"),
    ("cluster-allow-reads-when-down", "Yes"),
    ("replica-serve-stale-data", "no"),
    ("stop-writes-on-bgsave-error", "no"),
    ("latency-tracking", "no"),
    ("hide-user-data-from-log", "no"),
    // Numbers: negative, zero, signed, large.
    ("timeout", "300"),
    ("tcp-keepalive", "0"),
    ("list-max-listpack-size", "-3"),
    ("slowlog-log-slower-than", "-1"),
    ("commandlog-execution-slower-than", "20000"),
    ("slowlog-max-len", "4096"),
    ("cluster-replica-validity-factor", "0"),
    ("cluster-migration-barrier", "2"),
    ("repl-timeout", "30"),
    ("repl-backlog-ttl", "0"),
    ("min-replicas-to-write", "1"),
    ("maxclients", "500"),
    ("hz", "50"),
    ("busy-reply-threshold", "1000"),
    ("shutdown-timeout", "20"),
    ("tracking-table-max-keys", "0"),
    ("repl-diskless-sync-delay", "7"),
    ("replica-priority", "10"),
    // Names from before the word replica, and other old ones.
    ("slave-priority", "20"),
    ("lua-time-limit", "1234"),
    ("hash-max-ziplist-entries", "64"),
    ("min-slaves-max-lag", "5"),
    // Free text, with everything that a quoting gets wrong.
    ("availability-zone", "eu-west-1a"),
    ("availability-zone", ""),
    ("availability-zone", " "),
    ("availability-zone", " leading and trailing "),
    ("availability-zone", "two  blanks"),
    ("availability-zone", "#no comment"),
    ("availability-zone", "a # b"),
    ("availability-zone", "\"quoted\""),
    ("availability-zone", "'quoted'"),
    ("availability-zone", "\""),
    ("availability-zone", "'"),
    ("availability-zone", "\\"),
    ("availability-zone", "\\\\"),
    ("availability-zone", "\\n \\t \\x41 \\\" \\'"),
    ("availability-zone", "ends with \\"),
    ("availability-zone", "\"\""),
    ("availability-zone", "$(POD_IP) ${HOME} `id` %s"),
    ("availability-zone", "--port 1"),
    ("availability-zone", "é 日本 🦀"),
    ("availability-zone", "a;b|c&d<e>f(g){h}[i]~!?^"),
    ("proc-title-template", "{title} \"{listen-addr}\" it's #1 back\\slash"),
    ("proc-title-template", "{listen-addr}"),
    ("ignore-warnings", "ARM64-COW-BUG"),
    ("tls-ciphers", "DEFAULT:!MEDIUM"),
    ("tls-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256 x"),
    ("tls-protocols", "TLSv1.2 TLSv1.3"),
    ("tls-key-file-pass", "p\"a\\s#s w'ord"),
    ("bind-source-addr", ""),
    // Flags and classes.
    ("notify-keyspace-events", "KEA"),
    ("notify-keyspace-events", "Ex$"),
    ("notify-keyspace-events", ""),
    // Several arguments.
    ("save", "900 1 300 10 60 10000"),
    ("save", "3600 1"),
    ("save", ""),
    ("client-output-buffer-limit", "normal 0 0 0 replica 256mb 64mb 60 pubsub 32MB 8mb 60"),
    ("client-output-buffer-limit", "slave 512mb 128mb 60"),
    ("client-output-buffer-limit", "PubSub 1gb 0 0"),
    ("client-output-buffer-limit", ""),
    ("latency-tracking-info-percentiles", "50 99 99.9 100"),
    ("latency-tracking-info-percentiles", "99.99"),
    ("latency-tracking-info-percentiles", ""),
    ("oom-score-adj-values", "0 100 800"),
    ("oom-score-adj-values", "-10 +20 30"),
    ("shutdown-on-sigterm", "nosave now"),
    ("shutdown-on-sigterm", "DEFAULT"),
    ("shutdown-on-sigterm", "save force"),
    ("shutdown-on-sigint", "Now Force"),
];

/// As [`RUNTIME`], known since 9.0.
const RUNTIME_9: &[(&str, &str)] = &[
    ("slot-migration-max-failover-repl-bytes", "16mb"),
    ("slot-migration-max-failover-repl-bytes", "-1"),
    ("cluster-slot-migration-log-max-len", "7"),
    ("cluster-manual-failover-timeout", "4000"),
    ("shutdown-on-sigterm", "failover nosave"),
    ("shutdown-on-sigint", "safe force"),
    ("tls-auto-reload-interval", "60"),
    ("io-threads", "2"),
];

/// Set at a start only, on the command line and by the file.
const AT_START: &[(&str, &str)] = &[
    ("always-show-logo", "YES"),
    ("aof-rewrite-cpulist", "0"),
    ("appenddirname", "append"),
    ("appendfilename", "a b#c.aof"),
    ("bgsave-cpulist", "0"),
    ("bio-cpulist", "0"),
    ("disable-thp", "no"),
    ("enable-debug-command", "Local"),
    ("enable-module-command", "yes"),
    ("locale-collate", "C"),
    ("rdbchecksum", "no"),
    ("server-cpulist", "0-1"),
    ("set-proc-title", "No"),
    ("socket-mark-id", "0"),
    ("tcp-backlog", "200"),
    ("unixsocketperm", "770"),
    ("io-threads", "2"),
];

/// As [`AT_START`], but beyond what the command line can carry: the server must say the string itself.
const TEXT_AT_START: &[(&str, &str)] = &[
    ("appenddirname", "it's \"my\" #1 dir"),
    ("appendfilename", "'a' \"b\" #c"),
    ("dbfilename", " it's \"my\" #1 dump.rdb "),
];

/// As [`TEXT_AT_START`], known since 9.0.
const TEXT_AT_START_9: &[(&str, &str)] = &[("hash-seed", "a \"seed\" # of \\ it's")];

/// As [`AT_START`], known since 9.0.
const AT_START_9: &[(&str, &str)] = &[("cluster-databases", "4"), ("hash-seed", "a seed")];

/// Settings of the sweep that the tests' own server needs otherwise.
const NOT_SWEPT: &[&str] = &["cluster-announce-ip", "unixsocket"];

/// Settings that take any string at run time and, without TLS, do nothing with it.
const ANY_STRING: [&str; 12] = [
    "availability-zone",
    "tls-ca-cert-dir",
    "tls-ca-cert-file",
    "tls-cert-file",
    "tls-ciphers",
    "tls-ciphersuites",
    "tls-client-cert-file",
    "tls-client-key-file",
    "tls-client-key-file-pass",
    "tls-dh-params-file",
    "tls-key-file",
    "tls-key-file-pass",
];

type Settings<'a> = BTreeMap<&'a str, &'a str>;

fn all<'a>(
    version: Version,
    both: &[(&'a str, &'a str)],
    newer: &[(&'a str, &'a str)],
) -> Vec<(&'a str, &'a str)> {
    let newer = if version == Version::V9_1 { newer } else { &[] };
    both.iter().chain(newer).copied().collect()
}

/// The cases in as few groups as possible with no setting twice in one.
fn rounds<'a>(cases: &[(&'a str, &'a str)]) -> Vec<Settings<'a>> {
    let mut rounds: Vec<Settings<'a>> = Vec::new();
    for (key, value) in cases {
        match rounds.iter_mut().find(|round| !round.contains_key(key)) {
            Some(round) => drop(round.insert(key, value)),
            None => rounds.push(BTreeMap::from([(*key, *value)])),
        }
    }
    rounds
}

async fn set(connection: &mut MultiplexedConnection, key: &str, value: &str) -> Result<()> {
    Ok(redis::cmd("CONFIG").arg("SET").arg(key).arg(value).query_async(connection).await?)
}

/// Fails with every setting whose value differs.
async fn ensure_same(expected: &BTreeMap<&str, Option<String>>, node: &Node) -> Result<()> {
    let mut connection = node.connect().await?;
    let mut differ = Vec::new();
    for (key, expected) in expected {
        let got = config_get(&mut connection, key).await?;
        if got != *expected || got.is_none() {
            differ.push(format!("{key}: {expected:?} expected, {got:?} from the file"));
        }
    }
    ensure!(differ.is_empty(), "{}", differ.join("\n"));
    Ok(())
}

async fn what_the_file_sets_is_what_config_set_sets(version: Version) -> Result<()> {
    for round in rounds(&all(version, RUNTIME, RUNTIME_9)) {
        let server = Server::start(version, Options::default()).await?;
        let mut connection = server.raw(None).await?;
        let mut expected = BTreeMap::new();
        for (key, value) in &round {
            set(&mut connection, key, value).await.with_context(|| format!("CONFIG SET {key} {value:?}"))?;
        }
        for key in round.keys() {
            expected.insert(*key, config_get(&mut connection, key).await?);
        }
        ensure_same(&expected, &Node::start(version, &Setup::of(round)).await?).await?;
    }
    Ok(())
}

async fn what_only_a_start_can_set_is_what_the_command_line_sets(version: Version) -> Result<()> {
    for round in rounds(&all(version, AT_START, AT_START_9)) {
        let arguments =
            round.iter().flat_map(|(key, value)| [format!("--{key}"), (*value).to_owned()]).collect();
        let server = Server::start(version, Options { arguments, ..Options::default() }).await?;
        let mut connection = server.raw(None).await?;
        let mut expected = BTreeMap::new();
        for key in round.keys() {
            expected.insert(*key, config_get(&mut connection, key).await?);
        }
        ensure_same(&expected, &Node::start(version, &Setup::of(round)).await?).await?;
    }
    for round in rounds(&all(version, TEXT_AT_START, TEXT_AT_START_9)) {
        let expected = round.iter().map(|(key, value)| (*key, Some((*value).to_owned()))).collect();
        ensure_same(&expected, &Node::start(version, &Setup::of(round)).await?).await?;
    }
    Ok(())
}

/// A sweep over all that the engine knows, so that no setting of a kind of its own is missed.
async fn every_setting_takes_what_the_server_says_of_it(version: Version) -> Result<()> {
    let server = Node::start(version, &Setup::default()).await?;
    let mut connection = server.connect().await?;
    let said: BTreeMap<String, String> =
        redis::cmd("CONFIG").arg("GET").arg("*").query_async(&mut connection).await?;
    let mut own = BTreeMap::new();
    let mut own_aliases = 0;
    for (key, value) in &said {
        let alone = Setup::of([(key.as_str(), value.as_str())]);
        // Refused and forced settings, and names that no ValkeyConfig can hold.
        let written = alone.render(version).is_ok_and(|conf| conf.overridden.is_empty());
        // An empty value of a setting for a start can be one that the setting's own parser refuses.
        let refused = value.is_empty() && Node::start(version, &alone).await.is_err();
        if written && !refused && !NOT_SWEPT.contains(&key.as_str()) {
            own_aliases += usize::from(key.contains("slave") || key.contains("ziplist"));
            own.insert(key.as_str(), Some(value.clone()));
        }
    }
    ensure!(own.len() > 150 && own_aliases > 5, "only {} settings: {own:?}", own.len());
    let settings = own.iter().filter_map(|(key, value)| Some((*key, value.as_deref()?)));
    ensure_same(&own, &Node::start(version, &Setup::of(settings)).await?).await
}

async fn any_string_arrives_as_it_was_written(version: Version) -> Result<()> {
    let server = Server::start(version, Options::default()).await?;
    let runtime = tokio::runtime::Handle::current();
    let text = prop_oneof![
        "[ \"'\\\\#x]{0,12}",
        "\\PC{0,60}",
        "[ -~]{0,60}",
        "(\\\\[nrtabx0\"'\\\\]|x4[0-9a-f]| ){0,10}",
    ]
    .prop_filter("admission refuses control characters", |text| !text.chars().any(char::is_control));
    let values = prop::array::uniform12(text);
    // Seventeen starts with twelve values each.
    let config = Config { cases: 17, max_shrink_iters: 60, failure_persistence: None, ..Config::default() };
    let one = async |values: &[String; 12]| -> Result<()> {
        let settings = ANY_STRING.into_iter().zip(values.iter().map(String::as_str));
        let mut connection = server.raw(None).await?;
        let mut expected = BTreeMap::new();
        for (key, value) in settings.clone() {
            set(&mut connection, key, value).await?;
            let got = config_get(&mut connection, key).await?;
            ensure!(got.as_deref() == Some(value), "CONFIG SET {key} {value:?} gives {got:?}");
            expected.insert(key, got);
        }
        ensure_same(&expected, &Node::start(version, &Setup::of(settings)).await?).await
    };
    tokio::task::block_in_place(|| {
        let run = TestRunner::new(config).run(&values, |values| {
            runtime.block_on(one(&values)).map_err(|error| TestCaseError::fail(format!("{error:#}")))
        });
        run.map_err(|failure| anyhow!("{failure}"))
    })
}

async fn what_config_set_refuses_stops_a_start_too(version: Version) -> Result<()> {
    let server = Server::start(version, Options::default()).await?;
    let mut connection = server.raw(None).await?;
    for (key, value) in [
        ("maxmemory", "1 gb"),
        ("maxmemory", "100mib"),
        ("maxmemory", "-1"),
        ("maxmemory-policy", "allkeys lru"),
        ("maxmemory-policy", " allkeys-lru"),
        ("activerehashing", "true"),
        ("timeout", "10s"),
        ("save", "900"),
        ("save", "900  1"),
        ("save", "900 one"),
        ("save", "\"900 1\""),
        ("client-output-buffer-limit", "normal 0 0"),
        ("client-output-buffer-limit", "nobody 0 0 0"),
        ("shutdown-on-sigterm", "save nosave"),
        ("latency-tracking-info-percentiles", "101"),
        ("proc-title-template", "{no-such-word}"),
        ("notify-keyspace-events", "KEA#"),
        ("no-such-setting", "yes"),
    ] {
        let refused = set(&mut connection, key, value).await;
        ensure!(refused.is_err(), "CONFIG SET {key} {value:?} was accepted");
        let words = Node::last_words(version, &Setup::of([(key, value)])).await?;
        ensure!(words.contains(key), "{key} {value:?}: {words}");
    }
    Ok(())
}

//! `ValkeyConfig`.

use serde_json::{Map, Value, json};

use super::PATTERN;
use crate::case::{Case, accept, object, reject, text};

pub(super) fn config() -> Vec<Case> {
    [references(), sizes(), settings(), forbidden_settings()].concat()
}

fn base() -> Value {
    let spec = json!({
        "imageRef": "v9",
        "baseRef": "base",
        "resources": { "cpu": "500m", "memory": "2Gi" },
        "valkey": { "maxmemory-policy": "allkeys-lru" },
    });
    object("ValkeyConfig", "case-config", &spec)
}

#[rustfmt::skip]
fn references() -> Vec<Case> {
    let base = &base();
    vec![
        accept("a config", base, &json!({})),
        accept("an empty config", &object("ValkeyConfig", "empty", &json!({})), &json!({})),
        accept("references with dots", base, &json!({ "spec": { "imageRef": "v9.1", "baseRef": "a.b-c" } })),
        reject("an empty imageRef", base, &json!({ "spec": { "imageRef": "" } }), "spec.imageRef"),
        reject("an imageRef that is a path", base, &json!({ "spec": { "imageRef": "../v9" } }), PATTERN),
        reject("a huge imageRef", base, &json!({ "spec": { "imageRef": text(254) } }), "spec.imageRef: Too long"),
        reject("an empty baseRef", base, &json!({ "spec": { "baseRef": "" } }), "spec.baseRef"),
        reject("a baseRef in capitals", base, &json!({ "spec": { "baseRef": "Base" } }), PATTERN),
        reject("a huge baseRef", base, &json!({ "spec": { "baseRef": text(254) } }), "spec.baseRef: Too long"),
    ]
}

#[rustfmt::skip]
fn sizes() -> Vec<Case> {
    let base = &base();
    let size = |key: &str, value: &Value| json!({ "spec": { "resources": { key: value } } });
    let mut cases = Vec::new();
    for key in ["cpu", "memory"] {
        for good in [
            "1", "500m", "2Gi", "0.5", ".5", "1.", "+1", "1e3", "1E3", "12E-1", "100M", "1k", "1n", "3Ei",
            "0100",
        ] {
            cases.push(accept(&format!("{key} {good}"), base, &size(key, &json!(good))));
        }
        for bad in [
            "", "0", "0.0", "0Gi", "-1", "1 Gi", "1gi", "1GiB", "Gi", "1e", "lots", "1,5", "1Gi\n", "0e5",
            "1K",
        ] {
            cases.push(reject(&format!("{key} {bad:?}"), base, &size(key, &json!(bad)), PATTERN));
        }
        cases.push(reject(
            &format!("a number for {key}"),
            base,
            &size(key, &json!(1)),
            "must be of type string",
        ));
        cases.push(reject(&format!("a huge {key}"), base, &size(key, &json!("1".repeat(33))), "Too long"));
    }
    cases
}

fn many(count: usize, key_length: usize, value: &str) -> Value {
    let key = |n: usize| format!("k{n:0width$}", width = key_length - 1);
    let entries: Map<String, Value> = (0..count).map(|n| (key(n), json!(value))).collect();
    json!({ "spec": { "valkey": entries } })
}

fn one(key: &str, value: &str) -> Value {
    json!({ "spec": { "valkey": { key: value } } })
}

#[rustfmt::skip]
fn settings() -> Vec<Case> {
    let base = &base();
    let directive = "a valkey setting is a directive name in lower case";
    vec![
        accept("a setting with an empty value", base, &one("save", "")),
        accept("a value with quotes, a hash and a backslash", base, &one("proc-title-template", r#"a "b" #c \d 'e'"#)),
        accept("a value in any script", base, &one("proc-title-template", "größe 大きさ")),
        reject("a value with a line break", base, &one("save", "\nuser x on nopass"), PATTERN),
        reject("a value with a carriage return", base, &one("save", "a\r"), PATTERN),
        reject("a value that ends in a line break", base, &one("save", "a\n"), PATTERN),
        reject("a value with a tabulator", base, &one("save", "900\t1"), PATTERN),
        reject("a value with NUL", base, &one("save", "a\u{0}"), PATTERN),
        reject("a value with DEL", base, &one("save", "a\u{7f}"), PATTERN),
        reject("a value with a C1 control character", base, &one("save", "a\u{85}"), PATTERN),
        reject("a value that is a number", base, &json!({ "spec": { "valkey": { "hz": 10 } } }), "must be of type string"),
        accept("a value of 4096 characters", base, &one("save", &text(4096))),
        reject("a value of 4097 characters", base, &one("save", &text(4097)), "Too long"),
        accept("a name of 128 characters", base, &one(&text(128), "1")),
        reject("a name of 129 characters", base, &one(&text(129), "1"), directive),
        reject("a name in capitals", base, &one("Requirepass", "x"), directive),
        reject("a name with a space", base, &one("save 1", "x"), directive),
        reject("a name with a line break", base, &one("hz\nuser", "x"), directive),
        reject("a name that starts with a digit", base, &one("1hz", "x"), directive),
        reject("an empty name", base, &one("", "x"), directive),
        accept("256 settings of 128 and 4096 characters", base, &with_no_other(&many(256, 128, &text(4096)))),
        reject("257 settings", base, &with_no_other(&many(257, 8, "1")), "must have at most 256 items"),
    ]
}

/// `patch` on a base whose own setting is removed, so that counts are exact.
fn with_no_other(patch: &Value) -> Value {
    let mut patch = patch.clone();
    if let Some(entries) = patch.pointer_mut("/spec/valkey").and_then(Value::as_object_mut) {
        entries.insert("maxmemory-policy".to_owned(), Value::Null);
    }
    patch
}

#[rustfmt::skip]
fn forbidden_settings() -> Vec<Case> {
    let base = &base();
    let mut cases = Vec::new();
    let forbidden: [(&str, &[&str]); 4] = [
        ("users come from ACL bindings", &["include", "user", "requirepass", "rename-command"]),
        (
            "the operator manages the server process",
            &[
                "daemonize",
                "supervised",
                "pidfile",
                "enable-protected-configs",
                "syslog-enabled",
                "syslog-ident",
                "syslog-facility",
            ],
        ),
        (
            "the operator manages replication and failover",
            &[
                "replicaof",
                "slaveof",
                "cluster-port",
                "cluster-replica-no-failover",
                "cluster-slave-no-failover",
            ],
        ),
        (
            "the operator manages the addresses that nodes announce",
            &[
                "cluster-announce-port",
                "cluster-announce-tls-port",
                "cluster-announce-bus-port",
                "cluster-announce-human-nodename",
                "cluster-announce-client-ipv4",
                "replica-announce-ip",
                "replica-announce-port",
                "slave-announce-ip",
                "slave-announce-port",
            ],
        ),
    ];
    for (message, keys) in forbidden {
        for key in keys {
            cases.push(reject(&format!("the setting {key}"), base, &one(key, "1"), message));
        }
    }
    for forced in [
        "cluster-announce-ip",
        "cluster-announce-hostname",
        "port",
        "bind",
        "aclfile",
        "dir",
        "logfile",
        "primaryauth",
        "cluster-enabled",
    ] {
        cases.push(accept(&format!("{forced}, which is overridden"), base, &one(forced, "1")));
    }
    cases.extend([
        accept("a name that only starts like a forbidden one", base, &one("replica-announced", "no")),
        accept("repl-diskless-load on-empty-db, which is overridden", base, &one("repl-diskless-load", "on-empty-db")),
    ]);
    cases
}

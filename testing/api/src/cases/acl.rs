//! ACL bindings, the same in `ValkeyConfig` and `ValkeyCluster`.

use serde_json::{Value, json};

use super::PATTERN;
use crate::case::{Case, accept, object, reject, text, with};

pub(super) fn bindings() -> Vec<Case> {
    let config = object("ValkeyConfig", "case-config", &json!({}));
    let spec = json!({ "configRef": "small", "shards": 3, "replicasPerShard": 1 });
    let cluster = object("ValkeyCluster", "cache", &spec);
    [lists(&config), lists(&cluster), users(&cluster), grants(&cluster), patterns(&cluster)].concat()
}

fn binding() -> Value {
    json!({
        "username": "app",
        "passwordHashes": ["0f".repeat(32)],
        "permissions": [{ "roleRef": "reader", "keys": [{ "pattern": "app:*", "access": "read" }], "channels": ["news.*"] }],
    })
}

fn acl(entries: &[Value]) -> Value {
    json!({ "spec": { "acl": entries } })
}

/// One binding, changed by `patch`.
fn one(patch: &Value) -> Value {
    acl(&[with(&binding(), patch)])
}

/// One binding with one permission, changed by `patch`.
fn permission(patch: &Value) -> Value {
    let whole = binding();
    let base = whole.pointer("/permissions/0").unwrap_or(&Value::Null);
    one(&json!({ "permissions": [with(base, patch)] }))
}

fn named(names: impl Iterator<Item = String>) -> Vec<Value> {
    names.map(|name| with(&binding(), &json!({ "username": name }))).collect()
}

/// The largest legal binding, `n` of them apart.
fn largest(n: usize) -> Value {
    let key = |n: usize| json!({ "pattern": format!("{n:0>256}"), "access": "readwrite" });
    let permission = json!({
        "roleRef": text(253),
        "keys": (0..16).map(key).collect::<Vec<_>>(),
        "channels": vec![text(128); 16],
    });
    json!({
        "username": format!("{n:0>128}"),
        "passwordHashes": vec!["0f".repeat(32); 8],
        "permissions": vec![permission; 16],
    })
}

#[rustfmt::skip]
fn lists(base: &Value) -> Vec<Case> {
    let twice = named(["a", "b", "a"].into_iter().map(str::to_owned));
    let kind = base.get("kind").and_then(Value::as_str).unwrap_or_default();
    let what = |text: &str| format!("{kind}: {text}");
    // Each is about 105 kB; an API server takes objects of 1.5 MB at most, so the count and the size meet apart.
    vec![
        accept(&what("no binding"), base, &acl(&[])),
        accept(&what("a binding"), base, &acl(&[binding()])),
        accept(&what("64 bindings with the longest names"), base, &acl(&named((0..64).map(|n| format!("{n:0>128}"))))),
        accept(&what("8 of the largest bindings"), base, &acl(&(0..8).map(largest).collect::<Vec<_>>())),
        reject(&what("65 bindings"), base, &acl(&named((0..65).map(|n| format!("u{n}")))), "must have at most 64 items"),
        reject(&what("a username twice"), base, &acl(&twice), "duplicate username in ACL bindings"),
        accept(&what("usernames that differ in case"), base, &acl(&named(["a", "A"].into_iter().map(str::to_owned)))),
        reject(&what("a reserved username"), base, &one(&json!({ "username": "_momento_operator" })), "reserved for the operator"),
    ]
}

#[rustfmt::skip]
fn users(base: &Value) -> Vec<Case> {
    let hashes = |hashes: &[&str]| one(&json!({ "passwordHashes": hashes }));
    let good = &*"0f".repeat(32);
    vec![
        accept("the default user", base, &one(&json!({ "username": "default" }))),
        accept("a username of all legal characters", base, &one(&json!({ "username": "aZ_0-9" }))),
        accept("a name close to the reserved ones", base, &one(&json!({ "username": "momento_x" }))),
        reject("the bare reserved prefix", base, &one(&json!({ "username": "_momento_" })), "reserved for the operator"),
        reject("an empty username", base, &one(&json!({ "username": "" })), "at least 1 chars long"),
        reject("a username with a space", base, &one(&json!({ "username": "a on" })), PATTERN),
        reject("a username with a line break", base, &one(&json!({ "username": "a\nuser" })), PATTERN),
        reject("a username of 129 characters", base, &one(&json!({ "username": text(129) })), "Too long"),
        reject("no username", base, &one(&json!({ "username": null })), "username: Required value"),
        reject("no password hash", base, &hashes(&[]), "should have at least 1 items"),
        reject("no password hashes", base, &one(&json!({ "passwordHashes": null })), "passwordHashes: Required value"),
        accept("8 password hashes", base, &hashes(&[good; 8])),
        reject("9 password hashes", base, &hashes(&[good; 9]), "must have at most 8 items"),
        reject("a hash with its sign", base, &hashes(&[&format!("#{good}")]), PATTERN),
        reject("a hash in capitals", base, &hashes(&[&good.to_uppercase()]), PATTERN),
        reject("a hash that is too short", base, &hashes(&[good.get(1..).unwrap_or_default()]), PATTERN),
        reject("a clear password", base, &hashes(&["hunter2"]), PATTERN),
        reject("no permissions", base, &one(&json!({ "permissions": null })), "permissions: Required value"),
        reject("an empty list of permissions", base, &one(&json!({ "permissions": [] })), "should have at least 1 items"),
    ]
}

#[rustfmt::skip]
fn grants(base: &Value) -> Vec<Case> {
    let keys = |count: usize| permission(&json!({ "keys": vec![json!({ "pattern": "a" }); count] }));
    let channels = |count: usize| permission(&json!({ "channels": vec!["a"; count] }));
    let permissions =
        |count: usize| one(&json!({ "permissions": vec![json!({ "roleRef": "a", "keys": [] }); count] }));
    vec![
        accept("16 permissions", base, &permissions(16)),
        reject("17 permissions", base, &permissions(17), "must have at most 16 items"),
        reject("no role", base, &permission(&json!({ "roleRef": null })), "roleRef: Required value"),
        reject("a role that is a path", base, &permission(&json!({ "roleRef": "a/b" })), PATTERN),
        reject("a huge role", base, &permission(&json!({ "roleRef": text(254) })), "Too long"),
        reject("no keys", base, &permission(&json!({ "keys": null })), "keys: Required value"),
        accept("an empty list of keys", base, &keys(0)),
        accept("16 keys", base, &keys(16)),
        reject("17 keys", base, &keys(17), "must have at most 16 items"),
        accept("no channels", base, &permission(&json!({ "channels": null }))),
        accept("16 channels", base, &channels(16)),
        reject("17 channels", base, &channels(17), "must have at most 16 items"),
        accept(
            "each access",
            base,
            &permission(&json!({ "keys": [
            { "pattern": "a", "access": "read" }, { "pattern": "b", "access": "write" },
            { "pattern": "c", "access": "readwrite" }, { "pattern": "d" },
        ] })),
        ),
        reject("an unknown access", base, &permission(&json!({ "keys": [{ "pattern": "a", "access": "rw" }] })), "Unsupported value: \"rw\""),
    ]
}

/// What a pattern of keys or channels may not hold, for each the same but for its own sign.
#[rustfmt::skip]
fn patterns(base: &Value) -> Vec<Case> {
    let key = |pattern: &str| permission(&json!({ "keys": [{ "pattern": pattern }] }));
    let channel = |pattern: &str| permission(&json!({ "channels": [pattern] }));
    let mut cases = patterns_of(base, "key", &key, ["~", "&"], 256);
    cases.extend(patterns_of(base, "channel", &channel, ["&", "~"], 128));
    cases
}

#[rustfmt::skip]
fn patterns_of(base: &Value, kind: &str, patch: &dyn Fn(&str) -> Value, signs: [&str; 2], longest: usize) -> Vec<Case> {
    let [own_sign, other_sign] = signs;
    let mut cases = Vec::new();
    for good in
        ["*", "app:{42}:*", "a[b-c]?", "(a", "a)b", "a\\*", "#1", "größe:*", other_sign, &text(longest)]
    {
        cases.push(accept(&format!("the {kind} pattern {good:?}"), base, &patch(good)));
    }
    let signed = [format!("{own_sign}a"), format!("a{own_sign}")];
    let odd = ["a b", "a\n", "\nuser x", "a\t", "a\r", "a\u{0}", "a\u{7f}", "a\u{85}", "a\"", "'a", "a)", ")"];
    for bad in odd.into_iter().chain(signed.iter().map(String::as_str)) {
        cases.push(reject(&format!("the {kind} pattern {bad:?}"), base, &patch(bad), PATTERN));
    }
    cases.push(reject(&format!("an empty {kind} pattern"), base, &patch(""), "at least 1 chars long"));
    cases.push(reject(&format!("a huge {kind} pattern"), base, &patch(&text(longest + 1)), "Too long"));
    cases
}

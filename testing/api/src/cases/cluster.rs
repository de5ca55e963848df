//! `ValkeyCluster`, but for its ACL bindings.

use serde_json::{Map, Value, json};

use super::PATTERN;
use crate::case::{Case, accept, object, reject, text};

pub(super) fn cluster() -> Vec<Case> {
    [names(), counts(), references(), placement(), annotations()].concat()
}

fn base() -> Value {
    object("ValkeyCluster", "cache", &json!({ "configRef": "small", "shards": 3, "replicasPerShard": 1 }))
}

#[rustfmt::skip]
fn names() -> Vec<Case> {
    let base = &base();
    let named = |name: &str| json!({ "metadata": { "name": name } });
    let rule = "must be a DNS label of at most 48 characters that starts with a letter";
    vec![
        accept("a name of 48 characters", base, &named(&text(48))),
        reject("a name of 49 characters", base, &named(&text(49)), rule),
        accept("a name of one letter", base, &named("a")),
        accept("a name with digits and dashes", base, &named("a-1-b2")),
        reject("a name that starts with a digit", base, &named("1a"), rule),
        reject("a name with a dot", base, &named("a.b"), rule),
    ]
}

#[rustfmt::skip]
fn counts() -> Vec<Case> {
    let base = &base();
    let spec = |key: &str, value: Value| json!({ "spec": { key: value } });
    vec![
        accept("a cluster", base, &json!({})),
        accept("one shard without replicas", base, &json!({ "spec": { "shards": 1, "replicasPerShard": 0 } })),
        accept("a shard a slot", base, &spec("shards", json!(16384))),
        reject("more shards than slots", base, &spec("shards", json!(16385)), "less than or equal to 16384"),
        reject("no shard", base, &spec("shards", json!(0)), "greater than or equal to 1"),
        reject("less than no shard", base, &spec("shards", json!(-1)), "greater than or equal to 1"),
        reject("half a shard", base, &spec("shards", json!(1.5)), "must be of type integer"),
        reject("shards as text", base, &spec("shards", json!("3")), "must be of type integer"),
        reject("shards unset", base, &spec("shards", Value::Null), "spec.shards: Required value"),
        reject("less than no replica", base, &spec("replicasPerShard", json!(-1)), "greater than or equal to 0"),
        reject("too many replicas", base, &spec("replicasPerShard", json!(16385)), "less than or equal to 16384"),
        reject("replicas unset", base, &spec("replicasPerShard", Value::Null), "spec.replicasPerShard: Required value"),
    ]
}

#[rustfmt::skip]
fn references() -> Vec<Case> {
    let base = &base();
    let config = |name: &str| json!({ "spec": { "configRef": name } });
    let tls = |value: Value| json!({ "spec": { "tls": value } });
    vec![
        reject("no config", base, &json!({ "spec": { "configRef": null } }), "spec.configRef: Required value"),
        reject("an empty config", base, &config(""), "spec.configRef"),
        reject("a config that is a path", base, &config("a/../b"), PATTERN),
        reject("a huge config", base, &config(&text(254)), "spec.configRef: Too long"),
        accept("TLS", base, &tls(json!({ "secretRef": "cache-tls" }))),
        reject("TLS without a Secret", base, &tls(json!({})), "spec.tls.secretRef: Required value"),
        reject("an empty Secret", base, &tls(json!({ "secretRef": "" })), "spec.tls.secretRef"),
        reject("the Secret of another namespace", base, &tls(json!({ "secretRef": "../../other/secrets/x" })), PATTERN),
        reject("a huge Secret", base, &tls(json!({ "secretRef": text(254) })), "spec.tls.secretRef: Too long"),
    ]
}

fn entries(count: usize, value: &str) -> Map<String, Value> {
    (0..count).map(|n| (format!("{}/{}", text(253), format_args!("{n:0>63}")), json!(value))).collect()
}

#[rustfmt::skip]
fn placement() -> Vec<Case> {
    let base = &base();
    let zones = |zones: &[&str]| json!({ "spec": { "placement": { "zones": zones } } });
    let spread = |spread: &str| json!({ "spec": { "placement": { "zoneSpread": spread } } });
    let selector =
        |key: &str, value: &str| json!({ "spec": { "placement": { "nodeSelector": { key: value } } } });
    let selectors =
        |entries: Map<String, Value>| json!({ "spec": { "placement": { "nodeSelector": entries } } });
    let key_rule = "a nodeSelector key must be a label key";
    vec![
        accept("an empty placement", base, &json!({ "spec": { "placement": {} } })),
        accept("zones", base, &zones(&["eu-west-1a", "Zone_B.1"])),
        accept("an empty list of zones", base, &zones(&[])),
        accept("64 zones", base, &zones(&[&*text(63); 64])),
        reject("65 zones", base, &zones(&["a"; 65]), "must have at most 64 items"),
        reject("an empty zone", base, &zones(&[""]), "at least 1 chars long"),
        reject("a zone with a space", base, &zones(&["a b"]), PATTERN),
        reject("a huge zone", base, &zones(&[&*text(64)]), "Too long"),
        accept("zoneSpread bestEffort", base, &spread("bestEffort")),
        accept("zoneSpread required", base, &spread("required")),
        reject("an unknown zoneSpread", base, &spread("Required"), "Unsupported value: \"Required\""),
        accept("a nodeSelector", base, &selector("example.com/pool", "memory")),
        accept("a nodeSelector with an empty value", base, &selector("pool", "")),
        reject("a nodeSelector value with a slash", base, &selector("pool", "a/b"), PATTERN),
        reject("a huge nodeSelector value", base, &selector("pool", &text(64)), "Too long"),
        reject("a nodeSelector key with a space", base, &selector("a b", "c"), key_rule),
        reject("an empty nodeSelector key", base, &selector("", "c"), key_rule),
        reject("a nodeSelector key with two slashes", base, &selector("a/b/c", "c"), key_rule),
        reject("a nodeSelector key whose name is huge", base, &selector(&text(64), "c"), key_rule),
        accept("32 of the longest nodeSelector entries", base, &selectors(entries(32, &text(63)))),
        reject("33 nodeSelector entries", base, &selectors(entries(33, "a")), "must have at most 32 items"),
    ]
}

#[rustfmt::skip]
fn annotations() -> Vec<Case> {
    let base = &base();
    let one = |key: &str, value: &str| json!({ "spec": { "podAnnotations": { key: value } } });
    let many = |entries: Map<String, Value>| json!({ "spec": { "podAnnotations": entries } });
    let key_rule = "a podAnnotations key must be an annotation key";
    let profile = "the operator sets the security profile of pods";
    vec![
        accept("a pod annotation", base, &one("prometheus.io/scrape", "true")),
        accept("a value of any text", base, &one("note", "a\nb \"c\" é")),
        reject("a reserved prefix", base, &one("valkey.gomomento.com/x", "1"), "the annotation prefix valkey.gomomento.com/ is reserved"),
        accept("a prefix close to the reserved one", base, &one("valkey.gomomento.com.example/x", "1")),
        reject("an AppArmor profile", base, &one("container.apparmor.security.beta.kubernetes.io/valkey", "unconfined"), profile),
        reject("a seccomp profile", base, &one("seccomp.security.alpha.kubernetes.io/pod", "unconfined"), profile),
        reject("a key with a space", base, &one("a b", "c"), key_rule),
        reject("an empty key", base, &one("", "c"), key_rule),
        reject("a key whose name is huge", base, &one(&text(64), "c"), key_rule),
        reject("a huge value", base, &one("a", &text(16385)), "Too long"),
        accept("64 of the longest keys", base, &many(entries(64, &text(1024)))),
        reject("65 annotations", base, &many(entries(65, "a")), "must have at most 64 items"),
    ]
}

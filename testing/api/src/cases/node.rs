//! `ValkeyNode`. The operator alone writes it; bounds are there so that a mistake of ours cannot be stored.

use serde_json::{Value, json};

use crate::case::{Case, accept, object, reject, text};

#[rustfmt::skip]
pub(super) fn node() -> Vec<Case> {
    let spec = json!({ "clusterName": "cache", "image": "valkey:9", "shardIndex": 0 });
    let base = &object("ValkeyNode", "cache-0a1b2", &spec);
    let set = |key: &str, value: Value| json!({ "spec": { key: value } });
    let full = json!({ "spec": {
        "cpu": "1", "memory": "1Gi", "version": "9.1.0", "valkeySettings": { "hz": "10" }, "tlsSecret": "tls",
        "placement": { "zones": ["a"], "zoneSpread": "required", "nodeSelector": { "pool": "x" } },
        "lifecycle": "Joining",
    } });
    vec![
        accept("a minimal node", base, &json!({})),
        accept("a full node", base, &full),
        reject("no cluster", base, &set("clusterName", Value::Null), "spec.clusterName: Required value"),
        reject("an empty cluster", base, &set("clusterName", json!("")), "at least 1 chars long"),
        reject("a huge cluster", base, &set("clusterName", json!(text(49))), "spec.clusterName: Too long"),
        reject("no image", base, &set("image", Value::Null), "spec.image: Required value"),
        reject("an empty image", base, &set("image", json!("")), "at least 1 chars long"),
        reject("no shardIndex", base, &set("shardIndex", Value::Null), "spec.shardIndex: Required value"),
        reject("a negative shardIndex", base, &set("shardIndex", json!(-1)), "greater than or equal to 0"),
        reject("a huge shardIndex", base, &set("shardIndex", json!(16384)), "less than or equal to 16383"),
        accept("lifecycle Leaving at birth", base, &set("lifecycle", json!("Leaving"))),
        reject("an unknown lifecycle", base, &set("lifecycle", json!("joining")), "Unsupported value: \"joining\""),
        reject("an empty tlsSecret", base, &set("tlsSecret", json!("")), "at least 1 chars long"),
    ]
}

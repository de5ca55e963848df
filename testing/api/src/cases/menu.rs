//! `ValkeyImage` and `ValkeyRole`.

use serde_json::{Value, json};

use super::PATTERN;
use crate::case::{Case, accept, object, reject, text};

#[rustfmt::skip]
pub(super) fn image() -> Vec<Case> {
    let spec = json!({ "repository": "docker.io/valkey/valkey", "tag": "9.1.0", "version": "9.1.0" });
    let base = &object("ValkeyImage", "v9", &spec);
    let digest = format!("sha256:{}", "0a".repeat(32));
    vec![
        accept("an image by tag", base, &json!({})),
        accept("an image by digest", base, &json!({ "spec": { "tag": digest } })),
        accept("an image by tag and digest", base, &json!({ "spec": { "tag": format!("9.1@{digest}") } })),
        accept("a version that is none", base, &json!({ "spec": { "version": "nightly build" } })),
        reject("no repository", base, &json!({ "spec": { "repository": null } }), "spec.repository: Required value"),
        reject("an empty repository", base, &json!({ "spec": { "repository": "" } }), "at least 1 chars long"),
        reject("a repository with a space", base, &json!({ "spec": { "repository": "a b" } }), PATTERN),
        reject("a huge repository", base, &json!({ "spec": { "repository": text(513) } }), "spec.repository: Too long"),
        reject("no tag", base, &json!({ "spec": { "tag": null } }), "spec.tag: Required value"),
        reject("an empty tag", base, &json!({ "spec": { "tag": "" } }), "at least 1 chars long"),
        reject("a tag with a line break", base, &json!({ "spec": { "tag": "9\n" } }), PATTERN),
        reject("a huge tag", base, &json!({ "spec": { "tag": text(257) } }), "spec.tag: Too long"),
        reject("no version", base, &json!({ "spec": { "version": null } }), "spec.version: Required value"),
        reject("a huge version", base, &json!({ "spec": { "version": text(129) } }), "spec.version: Too long"),
        reject("no spec", base, &json!({ "spec": null }), "spec: Required value"),
    ]
}

#[rustfmt::skip]
pub(super) fn role() -> Vec<Case> {
    let spec = json!({
        "categories": [{ "name": "read", "access": "allow" }],
        "commands": [
            { "name": "config", "subcommand": "get", "access": "allow" },
            { "name": "flushall", "access": "deny" },
        ],
    });
    let base = &object("ValkeyRole", "reader", &spec);
    let category = |patch: Value| json!({ "spec": { "categories": [patch] } });
    let command = |patch: Value| json!({ "spec": { "commands": [patch] } });
    let many = |count: usize| vec![json!({ "name": "get", "access": "allow" }); count];
    vec![
        accept("a role", base, &json!({})),
        accept("a role that allows nothing", base, &json!({ "spec": { "categories": null, "commands": null } })),
        accept("64 categories", base, &json!({ "spec": { "categories": many(64) } })),
        reject("65 categories", base, &json!({ "spec": { "categories": many(65) } }), "at most 64 items"),
        accept("256 commands", base, &json!({ "spec": { "commands": many(256) } })),
        reject("257 commands", base, &json!({ "spec": { "commands": many(257) } }), "at most 256 items"),
        accept("a name with dashes", base, &category(json!({ "name": "My-cat_1", "access": "deny" }))),
        reject("a category with its sign", base, &category(json!({ "name": "@read", "access": "allow" })), PATTERN),
        reject("a category without access", base, &category(json!({ "name": "read" })), "access: Required value"),
        reject("a category without name", base, &category(json!({ "access": "allow" })), "name: Required value"),
        reject("an access in capitals", base, &category(json!({ "name": "read", "access": "Allow" })), "Unsupported value: \"Allow\""),
        reject("a huge category", base, &category(json!({ "name": text(65), "access": "allow" })), "Too long"),
        reject("a command with its subcommand", base, &command(json!({ "name": "config|get", "access": "allow" })), PATTERN),
        reject("a command with a rule after it", base, &command(json!({ "name": "get +@all", "access": "allow" })), PATTERN),
        reject("a command with a line after it", base, &command(json!({ "name": "get\nuser", "access": "allow" })), PATTERN),
        reject("a command that starts with a digit", base, &command(json!({ "name": "1get", "access": "allow" })), PATTERN),
        reject("an empty command", base, &command(json!({ "name": "", "access": "allow" })), "at least 1 chars long"),
        reject("a subcommand with a bar", base, &command(json!({ "name": "a", "subcommand": "b|c", "access": "allow" })), PATTERN),
        reject("an empty subcommand", base, &command(json!({ "name": "a", "subcommand": "", "access": "allow" })), "at least 1 chars long"),
        reject("a command without access", base, &command(json!({ "name": "get" })), "access: Required value"),
    ]
}

//! Hostile text in every field that people may write: refused by the API server with a message that names the field,
//! or stored and harmless: no line more in valkey.conf or users.acl, no user more, nothing forced out of its place.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use shared::acl::{self, AclInput, PasswordHash};
use shared::api::{AclBinding, ValkeyRoleSpec};
use shared::conf::{self, ConfInput};
use shared::names;
use shared::secret::Redacted;
use shared::valkey::EngineVersion;
use test_api::{Server, case};

/// What breaks out of lines, quotes, patterns, paths, shells and templates elsewhere.
fn hostile() -> Vec<String> {
    let fixed = [
        "",
        " ",
        "\n",
        "a\nuser evil on nopass ~* &* +@all",
        "a\r\nrequirepass \"\"",
        "x\u{0}y",
        "tab\there",
        "a b",
        "~* &* +@all",
        ">password",
        "#0f",
        "nopass",
        "(~* +@all)",
        "a) (+@all",
        "\"; include /etc/passwd; \"",
        "'single'",
        "back\\slash",
        "\\n\\r",
        "${POD_IP}",
        "$(id)",
        "`id`",
        "{{ .Values }}",
        "--requirepass",
        "-flag",
        "../../other/secrets/x",
        "other-namespace/name",
        "kube-system",
        "_momento_operator",
        "default",
        "Größe",
        "👾",
        "\u{202e}gnp",
        "\u{2028}line",
        "ａdmin",
        "%s%n",
        "0x7fffffff",
        "true",
        "null",
    ];
    fixed.iter().map(|text| (*text).to_owned()).chain([case::text(20_000)]).collect()
}

/// A field: how the message of a refusal names it, and the object with the text in it.
struct Field {
    path: &'static str,
    object: fn(&str) -> Value,
}

fn cluster(spec: &Value) -> Value {
    let base = json!({ "configRef": "small", "shards": 1, "replicasPerShard": 0 });
    case::object("ValkeyCluster", "cache", &case::with(&base, spec))
}

fn config(spec: &Value) -> Value {
    case::object("ValkeyConfig", "case-config", spec)
}

fn binding() -> Value {
    json!({
        "username": "app",
        "passwordHashes": ["0f".repeat(32)],
        "permissions": [{ "roleRef": "reader", "keys": [{ "pattern": "app:*" }], "channels": ["news.*"] }],
    })
}

fn bound(change: &Value) -> Value {
    json!({ "acl": [case::with(&binding(), change)] })
}

fn permitted(change: &Value) -> Value {
    let base = json!({ "roleRef": "reader", "keys": [{ "pattern": "app:*" }], "channels": ["news.*"] });
    bound(&json!({ "permissions": [case::with(&base, change)] }))
}

#[rustfmt::skip]
const FIELDS: &[Field] = &[
    Field { path: "name", object: |text| case::with(&cluster(&json!({})), &json!({ "metadata": { "name": text } })) },
    Field { path: "spec.configRef", object: |text| cluster(&json!({ "configRef": text })) },
    Field { path: "spec.tls.secretRef", object: |text| cluster(&json!({ "tls": { "secretRef": text } })) },
    Field { path: "spec.placement.zones", object: |text| cluster(&json!({ "placement": { "zones": [text] } })) },
    Field { path: "spec.placement.zoneSpread", object: |text| cluster(&json!({ "placement": { "zoneSpread": text } })) },
    Field { path: "spec.placement.nodeSelector", object: |text| cluster(&json!({ "placement": { "nodeSelector": { text: "a" } } })) },
    Field { path: "spec.placement.nodeSelector", object: |text| cluster(&json!({ "placement": { "nodeSelector": { "a": text } } })) },
    Field { path: "spec.podAnnotations", object: |text| cluster(&json!({ "podAnnotations": { text: "a" } })) },
    Field { path: "spec.podAnnotations", object: |text| cluster(&json!({ "podAnnotations": { "a": text } })) },
    Field { path: "spec.acl", object: |text| cluster(&bound(&json!({ "username": text }))) },
    Field { path: "spec.acl", object: |text| cluster(&bound(&json!({ "passwordHashes": [text] }))) },
    Field { path: "spec.acl", object: |text| cluster(&permitted(&json!({ "roleRef": text }))) },
    Field { path: "spec.acl", object: |text| cluster(&permitted(&json!({ "keys": [{ "pattern": text }] }))) },
    Field { path: "spec.acl", object: |text| cluster(&permitted(&json!({ "keys": [{ "pattern": "a", "access": text }] }))) },
    Field { path: "spec.acl", object: |text| cluster(&permitted(&json!({ "channels": [text] }))) },
    Field { path: "spec.imageRef", object: |text| config(&json!({ "imageRef": text })) },
    Field { path: "spec.baseRef", object: |text| config(&json!({ "baseRef": text })) },
    Field { path: "spec.resources.cpu", object: |text| config(&json!({ "resources": { "cpu": text } })) },
    Field { path: "spec.resources.memory", object: |text| config(&json!({ "resources": { "memory": text } })) },
    Field { path: "spec.valkey", object: |text| config(&json!({ "valkey": { text: "a" } })) },
    Field { path: "spec.valkey", object: |text| config(&json!({ "valkey": { "proc-title-template": text } })) },
    Field { path: "spec.valkey", object: |text| config(&json!({ "valkey": { "save": text } })) },
    Field { path: "spec.acl", object: |text| config(&bound(&json!({ "username": text }))) },
    Field { path: "spec.acl", object: |text| config(&permitted(&json!({ "channels": [text] }))) },
    Field { path: "spec.repository", object: |text| case::object("ValkeyImage", "case-image", &json!({ "repository": text, "tag": "9", "version": "9.1" })) },
    Field { path: "spec.tag", object: |text| case::object("ValkeyImage", "case-image", &json!({ "repository": "valkey/valkey", "tag": text, "version": "9.1" })) },
    Field { path: "spec.version", object: |text| case::object("ValkeyImage", "case-image", &json!({ "repository": "valkey/valkey", "tag": "9", "version": text })) },
    Field { path: "spec.categories", object: |text| role(&json!({ "categories": [{ "name": text, "access": "allow" }] })) },
    Field { path: "spec.categories", object: |text| role(&json!({ "categories": [{ "name": "read", "access": text }] })) },
    Field { path: "spec.commands", object: |text| role(&json!({ "commands": [{ "name": text, "access": "allow" }] })) },
    Field { path: "spec.commands", object: |text| role(&json!({ "commands": [{ "name": "config", "subcommand": text, "access": "allow" }] })) },
];

fn role(spec: &Value) -> Value {
    case::object("ValkeyRole", "case-role", spec)
}

/// What is wrong with a stored object, if anything.
fn harm(stored: &Value) -> Option<String> {
    let spec = &stored["spec"];
    match stored["kind"].as_str().unwrap_or_default() {
        "ValkeyRole" => role_harm(spec),
        "ValkeyConfig" => conf_harm(spec).or_else(|| bindings_harm(spec)),
        "ValkeyCluster" => bindings_harm(spec),
        _ => None,
    }
}

fn role_harm(spec: &Value) -> Option<String> {
    let (Ok(role), Ok(binding)) = (serde_json::from_value(spec.clone()), serde_json::from_value(binding()))
    else {
        return Some("what was stored cannot be read".to_owned());
    };
    acl_harm(&[binding], &BTreeMap::from([("reader".to_owned(), role)]))
}

fn bindings_harm(spec: &Value) -> Option<String> {
    let bindings: Vec<AclBinding> = serde_json::from_value(spec["acl"].clone()).unwrap_or_default();
    let referenced = bindings.iter().flat_map(|binding| &binding.permissions).map(|it| it.role_ref.clone());
    acl_harm(&bindings, &referenced.map(|name| (name, ValkeyRoleSpec::default())).collect())
}

/// The file has one line a user, exactly the users that were bound, and the system users last.
fn acl_harm(bindings: &[AclBinding], roles: &BTreeMap<String, ValkeyRoleSpec>) -> Option<String> {
    let hash = [PasswordHash::of(&Redacted::new("secret".to_owned()))];
    let input = AclInput {
        config: &[],
        cluster: bindings,
        roles,
        operator_passwords: &hash,
        repl_passwords: &hash,
        engine: EngineVersion::new(9, 1, 2),
    };
    // An error shows in the cluster's status and publishes nothing.
    let Ok(file) = acl::render(&input) else { return None };
    let users: Vec<&str> =
        file.text.split('\n').map(|line| line.split(' ').nth(1).unwrap_or_default()).collect();
    let mut expected: Vec<&str> = bindings.iter().map(|binding| binding.username.as_str()).collect();
    if !expected.contains(&"default") {
        expected.insert(0, "default");
    }
    expected.extend([names::USER_OPERATOR, names::USER_REPL, names::USER_REVISION, ""]);
    (users != expected).then(|| format!("users {users:?} instead of {expected:?}"))
}

/// The file has a line for each setting at most, none that came from nowhere, and the include last.
fn conf_harm(spec: &Value) -> Option<String> {
    let settings: BTreeMap<String, String> =
        serde_json::from_value(spec["valkey"].clone()).unwrap_or_default();
    let render = |settings: &BTreeMap<String, String>| {
        let host = "cache-00000.cache.ns.svc.cluster.local";
        let memory = spec.pointer("/resources/memory").and_then(Value::as_str);
        let version = EngineVersion::new(9, 1, 2);
        conf::render(&ConfInput { settings, memory, tls: true, version, host }).map(|conf| conf.text)
    };
    let (Ok(text), Ok(plain)) = (render(&settings), render(&BTreeMap::new())) else { return None };
    let word = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let known: Vec<String> = plain.lines().map(word).chain(settings.keys().cloned()).collect();
    let stray = text.lines().map(word).find(|word| !known.contains(word));
    let include = text.lines().last().is_some_and(|line| line.starts_with("include "));
    let forced = ["cluster-enabled yes", "port 0"].iter().all(|line| text.contains(line));
    (stray.is_some() || !include || !forced || text.lines().count() > known.len()).then_some(text)
}

#[tokio::test]
async fn hostile_text_in_any_field_is_refused_by_name_or_harmless() {
    let server = Server::ready().await.unwrap();
    let (mut refused, mut stored, mut wrong) = (0, 0, Vec::new());
    for field in FIELDS {
        for text in hostile() {
            let what = || format!("{} = {:?}", field.path, text.chars().take(60).collect::<String>());
            match server.dry_create(&(field.object)(&text)).await {
                Ok(Ok(object)) => {
                    stored += 1;
                    wrong.extend(harm(&object).map(|harm| format!("{}: {harm}", what())));
                }
                Ok(Err(refusal)) => {
                    refused += 1;
                    if !refusal.contains(field.path) {
                        wrong.push(format!("{}: refused without naming the field: {refusal}", what()));
                    }
                }
                Err(error) => wrong.push(format!("{}: no answer: {error:#}", what())),
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    // The figure of docs/security/evidence.md.
    assert_eq!(refused + stored, 1209);
    assert!(refused >= 200 && stored >= 50, "{refused} refused, {stored} stored: too few to prove a thing");
}

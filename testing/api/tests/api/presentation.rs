//! What people see: columns, explanations, short names, and no warnings.

use serde_json::{Value, json};
use support::TestNamespace;
use test_api::Server;
use test_api::case::{Verdict, object};
use test_api::cases;

/// The cells of the lines of a table, split at two or more spaces as kubectl pads them.
fn cells(table: &str) -> Vec<Vec<String>> {
    table
        .lines()
        .map(|line| {
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
        })
        .collect()
}

#[tokio::test]
async fn the_menu_is_listed_with_what_it_offers() {
    let server = Server::ready().await.unwrap();
    let kubectl = server.cluster.kubectl();
    let name = format!("api-{}", support::namespace::suffix().unwrap());
    let image = json!({ "repository": "valkey/valkey", "tag": "9.1.0", "version": "9.1" });
    for (kind, spec, header, row) in [
        (
            "ValkeyImage",
            image,
            vec!["NAME", "REPOSITORY", "TAG", "VERSION"],
            vec!["valkey/valkey", "9.1.0", "9.1"],
        ),
        (
            "ValkeyConfig",
            json!({ "imageRef": "v9", "baseRef": "b" }),
            vec!["NAME", "IMAGEREF", "BASEREF"],
            vec!["v9", "b"],
        ),
        ("ValkeyRole", json!({}), vec!["NAME", "AGE"], vec![]),
    ] {
        server.create(&object(kind, &name, &spec), "").await.unwrap();
        let listed = kubectl.run(&["get", kind, &name, "-o", "wide"]).await;
        kubectl.run(&["delete", kind, &name, "--wait=false"]).await.unwrap().success().unwrap();
        let table = cells(&listed.unwrap().success().unwrap());
        assert_eq!(table[0], header, "{kind}");
        assert_eq!(table[1][..=row.len()], [vec![&*name], row].concat(), "{kind}");
    }
}

#[tokio::test]
async fn kubectl_get_answers_the_first_questions_about_a_cluster() {
    let server = Server::ready().await.unwrap();
    let namespace = TestNamespace::create(&server.cluster, "api-columns").await.unwrap();
    let spec = json!({ "configRef": "small", "shards": 3, "replicasPerShard": 1 });
    let stored = server.create(&object("ValkeyCluster", "cache", &spec), &namespace.name).await.unwrap();
    let status = json!({ "status": {
        "state": "Active", "ready": "5/6", "readyNodes": 5, "slotsAssigned": 16384, "message": "replica is syncing",
    } });
    server.patch_status(&stored, &status).await.unwrap();
    let kubectl = server.cluster.kubectl();
    let narrow = kubectl.run(&["get", "vkc", "-n", &namespace.name]).await.unwrap().success().unwrap();
    let table = cells(&narrow);
    assert_eq!(table[0], ["NAME", "CONFIG", "SHARDS", "REPLICAS", "STATE", "READY", "AGE"]);
    assert_eq!(table[1][..6], ["cache", "small", "3", "1", "Active", "5/6"]);
    let wide = kubectl.run(&["get", "valkeycluster", "-n", &namespace.name, "-o", "wide"]).await.unwrap();
    let table = cells(&wide.success().unwrap());
    assert_eq!(table[0][7..], ["SLOTS", "MESSAGE"]);
    assert_eq!(table[1][7..], ["16384", "replica is syncing"]);
}

#[tokio::test]
async fn kubectl_get_wide_tells_who_is_primary() {
    let server = Server::ready().await.unwrap();
    let namespace = TestNamespace::create(&server.cluster, "api-roles").await.unwrap();
    let spec = json!({ "clusterName": "cache", "image": "valkey:9", "shardIndex": 2 });
    let stored = server.create(&object("ValkeyNode", "cache-0a1b2", &spec), &namespace.name).await.unwrap();
    let status =
        json!({ "status": { "role": "primary", "slots": 5461, "synced": true, "podIP": "10.0.0.7" } });
    server.patch_status(&stored, &status).await.unwrap();
    let kubectl = server.cluster.kubectl();
    let narrow = kubectl.run(&["get", "vkn", "-n", &namespace.name]).await.unwrap().success().unwrap();
    assert_eq!(cells(&narrow)[0], ["NAME", "CLUSTER", "IMAGE", "LIFECYCLE"]);
    let wide = kubectl.run(&["get", "vkn", "-n", &namespace.name, "-o", "wide"]).await.unwrap();
    let table = cells(&wide.success().unwrap());
    assert_eq!(table[0][4..], ["ROLE", "SHARD", "SLOTS", "SYNCED", "POD IP", "AGE"]);
    assert_eq!(
        table[1][..9],
        ["cache-0a1b2", "cache", "valkey:9", "Active", "primary", "2", "5461", "true", "10.0.0.7"]
    );
    let all = kubectl.run(&["get", "valkey", "-n", &namespace.name]).await.unwrap().success().unwrap();
    assert!(all.contains("valkeynode.valkey.gomomento.com/cache-0a1b2"), "the category lists it: {all}");
}

#[tokio::test]
async fn kubectl_explain_helps() {
    let server = Server::ready().await.unwrap();
    let kubectl = server.cluster.kubectl();
    for (path, expected) in [
        ("valkeycluster", "sharded Valkey cluster"),
        ("valkeycluster.spec.shards", "16384 hash slots are spread evenly"),
        ("valkeycluster.spec.tls", "cannot change after creation"),
        ("valkeycluster.spec.tls.secretRef", "\"tls.crt\", \"tls.key\" and \"ca.crt\""),
        ("valkeycluster.spec.acl.passwordHashes", "64 lowercase hex"),
        ("valkeycluster.spec.placement.zoneSpread", "ENUM: bestEffort required"),
        ("valkeycluster.status.state", "ENUM: Creating Active Updating Invalid"),
        ("valkeycluster.status.message", "what blocks progress"),
        ("valkeyconfig.spec.baseRef", "at most 10 configs"),
        ("valkeyconfig.spec.valkey", "Merged key by key"),
        ("valkeyimage.spec.tag", "pins the exact image"),
        ("valkeyrole.spec.commands.subcommand", "CONFIG GET"),
        ("valkeynode", "do not create or edit it"),
    ] {
        let said = kubectl.run(&["explain", path]).await.unwrap().success().unwrap();
        let unwrapped = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(unwrapped.contains(expected), "{path}: {said}");
    }
}

#[tokio::test]
async fn no_crd_makes_the_server_warn() {
    let server = Server::ready().await.unwrap();
    let crds = json!({ "apiVersion": "v1", "kind": "List", "items": shared::api::crds() }).to_string();
    let replace = ["replace", "--dry-run=server", "-f", "-"];
    let said = server.cluster.kubectl().run_with(&replace, &crds).await.unwrap();
    assert!(said.ok, "{}", said.err);
    assert_eq!(said.warnings(), [""; 0]);
}

#[tokio::test]
async fn no_accepted_object_makes_the_server_warn() {
    let server = Server::ready().await.unwrap();
    let accepted = cases::all().into_iter().filter(|case| matches!(case.verdict, Verdict::Accept));
    let mut items: Vec<Value> = accepted.map(|case| case.object).collect();
    for (n, item) in items.iter_mut().enumerate() {
        item["metadata"]["name"] = json!(format!("a{n}"));
        item["metadata"]["namespace"] = json!("default");
    }
    // In parts, because kubectl reads a list whole and some objects are large.
    for part in items.chunks(40) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": part }).to_string();
        let said = server
            .cluster
            .kubectl()
            .run_with(&["create", "--dry-run=server", "-f", "-"], &list)
            .await
            .unwrap();
        assert!(said.ok, "{}", said.err);
        assert_eq!(said.warnings(), [""; 0]);
    }
}

#[tokio::test]
async fn kubectl_refuses_a_field_that_does_not_exist() {
    let server = Server::ready().await.unwrap();
    let spec = json!({ "configRef": "small", "shards": 3, "replicasPerShard": 1, "image": "evil:1" });
    let object = object("ValkeyCluster", "cache", &spec).to_string();
    let said = server
        .cluster
        .kubectl()
        .run_with(&["create", "--dry-run=server", "-n", "default", "-f", "-"], &object)
        .await
        .unwrap();
    assert!(!said.ok && said.err.contains("unknown field \"spec.image\""), "{said:?}");
}

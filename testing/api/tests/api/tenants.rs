//! What a product team may do with the two roles that are shipped, bound as the onboarding manifest binds them: real
//! requests in its name. Nothing is stored by them: permission is decided before a dry run is one.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use support::{Probe, TestNamespace, eventually};
use test_api::Server;

/// Permissions and aggregated roles take effect within a second or two.
const EFFECTIVE_WITHIN: Duration = Duration::from_mins(2);

fn deployed(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file);
    fs::read_to_string(&path).with_context(|| path.display().to_string()).unwrap()
}

/// Deletes cluster-wide objects when the test ends, however it ends.
struct Cleanup {
    kubeconfig: PathBuf,
    objects: Vec<String>,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        drop(
            Command::new("kubectl")
                .arg("--kubeconfig")
                .arg(&self.kubeconfig)
                .args(["delete", "--ignore-not-found", "--wait=false"])
                .args(&self.objects)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status(),
        );
    }
}

/// A team that was let in as the manifest says.
struct Team {
    server: Server,
    namespace: TestNamespace,
    _cleanup: Cleanup,
}

impl Team {
    async fn onboarded() -> Result<Self> {
        let server = Server::ready().await?;
        let namespace = TestNamespace::create(&server.cluster, "api-team").await?;
        let cleanup = Cleanup {
            kubeconfig: server.cluster.kubeconfig.clone(),
            objects: vec![format!("clusterrolebinding/{}-valkey-menu-reader", namespace.name)],
        };
        let team = Self { server, namespace, _cleanup: cleanup };
        let shipped: Vec<Value> = serde_saphyr::from_multiple(&deployed("operator.yaml"))?;
        let of_tenants =
            |role: &&Value| role["kind"] == "ClusterRole" && role["metadata"]["name"] != "valkey-operator";
        let roles: Vec<&Value> = shipped.iter().filter(of_tenants).collect();
        assert_eq!(roles.len(), 2, "{roles:?}");
        team.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": roles }).to_string()).await?;
        // The namespace exists, by a name that no other run has; so does the group.
        team.apply(&deployed("onboarding.yaml").replace("team-a", &team.namespace.name)).await?;
        eventually("the team to be let in", EFFECTIVE_WITHIN, || async {
            let said = team.ask(&["get", "valkeyclusters", "-n", &team.namespace.name], "").await?;
            Ok(Probe::of(said.is_ok(), format!("{said:?}")))
        })
        .await?;
        Ok(team)
    }

    async fn apply(&self, manifest: &str) -> Result<()> {
        let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.server.cluster.kubectl().run_with(&arguments, manifest).await?.success().map(drop)
    }

    /// A request of one of the team: what was answered, or the refusal for want of permission.
    async fn ask(&self, arguments: &[&str], input: &str) -> Result<Result<String, String>> {
        self.ask_as(&self.namespace.name, arguments, input).await
    }

    async fn ask_as(&self, group: &str, arguments: &[&str], input: &str) -> Result<Result<String, String>> {
        let groups = format!("--as-group={group}");
        let person = ["--as=somebody", &groups, "--as-group=system:authenticated"];
        let said = self.server.cluster.kubectl().run_with(&[&person, arguments].concat(), input).await?;
        let text = format!("{}{}", said.out, said.err);
        Ok(if text.contains("is forbidden") || text.contains("(Forbidden)") { Err(text) } else { Ok(text) })
    }

    async fn may(&self, arguments: &[&str], input: &Value) {
        let said = self.ask(arguments, &text(input)).await.unwrap();
        assert!(said.is_ok(), "kubectl {arguments:?} is refused: {said:?}");
    }

    async fn may_not(&self, arguments: &[&str], input: &Value) {
        let said = self.ask(arguments, &text(input)).await.unwrap();
        assert!(said.is_err(), "kubectl {arguments:?} is allowed: {said:?}");
    }
}

fn text(object: &Value) -> String {
    if object.is_null() { String::new() } else { object.to_string() }
}

fn object(kind: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "valkey.gomomento.com/v1alpha1",
        "kind": kind,
        "metadata": { "name": "of-a-team" },
        "spec": spec,
    })
}

fn a_cluster() -> Value {
    object("ValkeyCluster", &json!({ "configRef": "small", "shards": 3, "replicasPerShard": 1 }))
}

const DRY_CREATE: [&str; 4] = ["create", "--dry-run=server", "-f", "-"];
/// A patch, and nothing else: `kubectl patch` reads first.
const DRY_PATCH: [&str; 5] = ["apply", "--server-side", "--dry-run=server", "-f", "-"];

/// An update, and nothing else, of an object of the namespace.
fn update(namespace: &str, of: &str) -> [String; 5] {
    let path = format!("/apis/valkey.gomomento.com/v1alpha1/namespaces/{namespace}/{of}?dryRun=All");
    ["replace", "--raw", &path, "-f", "-"].map(ToOwned::to_owned)
}

#[tokio::test]
async fn a_team_writes_clusters_in_its_own_namespace_and_in_no_other() {
    let team = Team::onboarded().await.unwrap();
    let own = ["-n", &team.namespace.name];
    for (write, said) in [(DRY_CREATE.as_slice(), "created"), (&DRY_PATCH, "serverside-applied")] {
        let answer = team.ask(&[write, &own].concat(), &a_cluster().to_string()).await.unwrap();
        assert!(answer.as_ref().is_ok_and(|answer| answer.contains(said)), "{answer:?}");
        team.may_not(&[write, &["-n", "default"]].concat(), &a_cluster()).await;
    }
    for verb in [["delete", "valkeycluster/x"], ["get", "valkeycluster/x"], ["get", "valkeyclusters"]] {
        team.may(&[verb, own].concat(), &Value::Null).await;
        team.may_not(&[verb, ["-n", "default"]].concat(), &Value::Null).await;
    }
    team.may_not(&["get", "valkeyclusters", "--all-namespaces"], &Value::Null).await;
    let update = |of| update(&team.namespace.name, of);
    team.may(&update("valkeyclusters/of-a-team").each_ref().map(String::as_str), &a_cluster()).await;
    team.may_not(&update("valkeyclusters/of-a-team/status").each_ref().map(String::as_str), &a_cluster())
        .await;
}

#[tokio::test]
async fn a_team_reads_the_menu_and_does_not_write_it() {
    let team = Team::onboarded().await.unwrap();
    let image = json!({ "repository": "example.invalid/valkey", "tag": "9", "version": "9.1.0" });
    for (kind, plural, spec) in [
        ("ValkeyImage", "valkeyimages", image),
        ("ValkeyConfig", "valkeyconfigs", json!({})),
        ("ValkeyRole", "valkeyroles", json!({})),
    ] {
        team.may(&["get", plural], &Value::Null).await;
        team.may(&["get", plural, "x"], &Value::Null).await;
        team.may_not(&DRY_CREATE, &object(kind, &spec)).await;
        team.may_not(&DRY_PATCH, &object(kind, &spec)).await;
        team.may_not(&["delete", plural, "x"], &Value::Null).await;
    }
}

#[tokio::test]
async fn a_team_reads_its_nodes_and_gets_nothing_else_in_its_namespace() {
    let team = Team::onboarded().await.unwrap();
    let own = ["-n", &team.namespace.name];
    team.may(&[["get", "valkeynodes"], own].concat(), &Value::Null).await;
    team.may_not(&["get", "valkeynodes", "--all-namespaces"], &Value::Null).await;
    let node = object("ValkeyNode", &json!({ "clusterName": "x", "image": "x", "shardIndex": 0 }));
    team.may_not(&[DRY_CREATE.as_slice(), &own].concat(), &node).await;
    team.may_not(&[DRY_PATCH.as_slice(), &own].concat(), &node).await;
    for of in ["valkeynodes/x", "valkeynodes/x/status"] {
        team.may_not(&update(&team.namespace.name, of).each_ref().map(String::as_str), &node).await;
    }
    for arguments in [
        ["delete", "valkeynode/x"].as_slice(),
        &["get", "secrets"],
        &["get", "secret/x-operator-auth"],
        &["create", "secret", "generic", "x", "--dry-run=server"],
        &["get", "configmaps"],
        &["delete", "configmap/x-acl"],
        &["get", "pods"],
        &["delete", "pod/x"],
        &["create", "rolebinding", "x", "--clusterrole=cluster-admin", "--user=somebody", "--dry-run=server"],
    ] {
        team.may_not(&[arguments, &own].concat(), &Value::Null).await;
    }
}

#[tokio::test]
async fn another_group_has_nothing_of_a_teams() {
    let team = Team::onboarded().await.unwrap();
    let own = ["-n", &team.namespace.name];
    for arguments in
        [["get", "valkeyclusters"].as_slice(), &["get", "valkeynodes"], &["get", "valkeyconfigs"]]
    {
        let said = team.ask_as("strangers", &[arguments, &own].concat(), "").await.unwrap();
        assert!(said.is_err(), "kubectl {arguments:?} is allowed: {said:?}");
    }
}

#[tokio::test]
async fn the_built_in_roles_have_clusters_only_where_aggregation_is_asked_for() {
    let team = Team::onboarded().await.unwrap();
    let own = ["-n", &team.namespace.name];
    for (binding, role, group) in [("editors", "edit", "editors"), ("viewers", "view", "viewers")] {
        let role = format!("--clusterrole={role}");
        let group = format!("--group={group}");
        let arguments = ["create", "rolebinding", binding, &role, &group, "-n", &team.namespace.name];
        team.server.cluster.kubectl().run(&arguments).await.unwrap().success().unwrap();
    }
    let create = [DRY_CREATE.as_slice(), &own].concat();
    let read = [["get", "valkeynodes"], own].concat();
    eventually("the bindings to count", EFFECTIVE_WITHIN, || async {
        let said = team.ask_as("editors", &[["get", "configmaps"], own].concat(), "").await?;
        Ok(Probe::of(said.is_ok(), format!("{said:?}")))
    })
    .await
    .unwrap();
    let cluster = a_cluster().to_string();
    assert!(
        team.ask_as("editors", &create, &cluster).await.unwrap().is_err(),
        "edit has clusters by default"
    );
    assert!(team.ask_as("viewers", &read, "").await.unwrap().is_err(), "view has nodes by default");

    let roles = ["clusterrole/valkey-aggregate-edit", "clusterrole/valkey-aggregate-view"];
    let kubeconfig = team.server.cluster.kubeconfig.clone();
    let _cleanup = Cleanup { kubeconfig, objects: roles.map(ToOwned::to_owned).to_vec() };
    team.apply(&deployed("aggregation.yaml")).await.context("apply deploy/aggregation.yaml").unwrap();
    eventually("the built-in roles to include ours", EFFECTIVE_WITHIN, || async {
        let editor = team.ask_as("editors", &create, &cluster).await?;
        let viewer = team.ask_as("viewers", &read, "").await?;
        Ok(Probe::of(editor.is_ok() && viewer.is_ok(), format!("{editor:?} {viewer:?}")))
    })
    .await
    .unwrap();
    assert!(team.ask_as("viewers", &create, &cluster).await.unwrap().is_err(), "view may create clusters");
}

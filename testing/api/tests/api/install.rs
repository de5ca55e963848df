//! The ways to install: what kubectl's kustomize and the real Helm make of deploy/ is the same as the single files, and
//! a real API server takes it, strictly read and without a warning. Nothing is stored.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use support::{Cluster, TestNamespace};
use test_api::Server;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Long enough to fetch and compile Helm, or Prometheus' parser, where it never was before.
const LIMIT: Duration = Duration::from_mins(15);
const NAMESPACE: &str = "valkey-operator";

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn read(file: &str) -> String {
    let path = deploy().join(file);
    fs::read_to_string(&path).with_context(|| path.display().to_string()).unwrap()
}

/// Objects by kind and name.
type Objects = BTreeMap<String, Value>;

fn objects(yaml: &str) -> Objects {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    let key = |object: &Value| {
        format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap())
    };
    let count = documents.iter().filter(|document| !document.is_null()).count();
    let objects: Objects = documents
        .into_iter()
        .filter(|document| !document.is_null())
        .map(|object| (key(&object), object))
        .collect();
    assert_eq!(objects.len(), count, "an object twice");
    objects
}

/// Whether two objects say the same: kustomize writes 1 for 1.0.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| same(value, other)))
        }
        _ => one == other,
    }
}

/// What the kustomization in a folder of deploy/ renders.
async fn kustomize(folder: &str) -> Objects {
    let path = deploy().join(folder);
    let cluster = Cluster::connect().await.unwrap();
    let said = cluster.kubectl().run(&["kustomize", &path.display().to_string()]).await.unwrap();
    objects(&said.success().unwrap())
}

/// Runs a Go program of a folder beside this test's; its output, and whether it succeeded.
async fn go(folder: &str, arguments: &[&str], input: &str) -> Result<(bool, String)> {
    let mut child = Command::new("go")
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
        .env("CGO_ENABLED", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("this test needs the Go toolchain, as does `cargo xtask up`")?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    if !input.is_empty() {
        stdin.write_all(input.as_bytes()).await.context("the program closed its standard input")?;
    }
    drop(stdin);
    let output =
        tokio::time::timeout(LIMIT, child.wait_with_output()).await.context("not done in time")??;
    let said = if output.status.success() { output.stdout } else { [output.stdout, output.stderr].concat() };
    Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

async fn helm(arguments: &[&str]) -> (bool, String) {
    go("helm", &[&["tool", "helm"], arguments].concat(), "").await.unwrap()
}

/// What the chart renders with these arguments.
async fn chart(arguments: &[&str]) -> Objects {
    let path = deploy().join("helm/valkey-operator").display().to_string();
    // The version of Kubernetes that a Helm built from its module assumes is an old one.
    let fixed = ["template", "any", path.as_str(), "--kube-version", "1.36.0", "-n", NAMESPACE];
    let (done, said) = helm(&[&fixed, arguments].concat()).await;
    assert!(done, "{said}");
    objects(&said)
}

fn containers<'a>(objects: &'a Objects, deployment: &str) -> Vec<&'a Value> {
    let pod = &objects[&format!("Deployment/{deployment}")]["spec"]["template"]["spec"];
    pod["containers"].as_array().unwrap().iter().collect()
}

fn names(containers: &[&Value]) -> Vec<String> {
    containers.iter().map(|container| container["name"].as_str().unwrap().to_owned()).collect()
}

fn environment(container: &Value) -> BTreeMap<&str, &str> {
    let variables = container["env"].as_array().unwrap().iter();
    variables
        .map(|variable| (variable["name"].as_str().unwrap(), variable["value"].as_str().unwrap()))
        .collect()
}

#[tokio::test]
async fn the_kustomize_base_is_what_the_single_files_are() {
    let mut single = objects(&read("crds.yaml"));
    single.extend(objects(&read("operator.yaml")));
    let base = kustomize("base").await;
    assert_eq!(base.keys().collect::<Vec<_>>(), single.keys().collect::<Vec<_>>());
    for (name, object) in &single {
        assert!(same(object, &base[name]), "{name} differs");
    }
}

#[tokio::test]
async fn the_debug_overlay_moves_reconcile_loops_out_of_the_pod_and_hurries_it() {
    let (base, debug) = (kustomize("base").await, kustomize("overlays/debug").await);
    let (operator, loops) =
        (containers(&debug, NAMESPACE), containers(&debug, "valkey-operator-reconcile-loops"));
    assert_eq!(names(&operator), ["cluster-ctl", "node-ctl"]);
    assert_eq!(names(&loops), ["reconcile-loops"]);
    for container in operator.iter().chain(&loops) {
        let environment = environment(container);
        assert_eq!(environment["RUST_LOG"], "debug", "{environment:?}");
        assert!(environment.contains_key("LISTEN_ADDRESS"), "{environment:?}");
    }
    assert_eq!((environment(loops[0])["ACL_TICK"], environment(loops[0])["TLS_TICK"]), ("5s", "5s"));
    let in_pod = containers(&base, NAMESPACE)[2].clone();
    for field in
        ["image", "command", "ports", "resources", "securityContext", "volumeMounts", "livenessProbe"]
    {
        assert_eq!(loops[0][field], in_pod[field], "{field}");
    }
    let others = |objects: &Objects| {
        let mut objects = objects.clone();
        objects.retain(|name, _| !name.starts_with("Deployment/"));
        objects
    };
    assert_eq!(others(&debug), others(&base));
}

/// The kustomization that the installation page shows, with `resource` as its resource.
fn kustomization_of_the_page(resource: &str) -> String {
    let page = fs::read_to_string(deploy().join("../docs/install.md")).unwrap();
    let shown = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(shown.contains("- valkey-operator/deploy/base"), "{shown}");
    shown.replace("valkey-operator/deploy/base", resource)
}

#[tokio::test]
async fn the_kustomization_that_the_page_shows_sets_namespace_image_and_settings() {
    // kustomize takes relative paths only.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kustomization-of-the-page");
    fs::create_dir_all(&folder).unwrap();
    let folder = folder.canonicalize().unwrap();
    let up = "../".repeat(folder.components().count() - 1);
    let debug = deploy().canonicalize().unwrap().join("overlays/debug");
    let resource = format!("{up}{}", debug.strip_prefix("/").unwrap().display());
    for replicas in [0, 1, 3] {
        let count = format!("replicas:\n- name: valkey-operator-reconcile-loops\n  count: {replicas}\n");
        let text = kustomization_of_the_page(&resource) + &count;
        fs::write(folder.join("kustomization.yaml"), text).unwrap();
        let objects = kustomize(&folder.display().to_string()).await;
        assert!(objects.contains_key("Namespace/platform"), "{:?}", objects.keys());
        for (name, object) in &objects {
            assert!(!object.to_string().contains(r#""namespace":"valkey-operator""#), "{name}: {object}");
        }
        assert_eq!(objects["ConfigMap/valkey-operator-config"]["data"]["slotBatch"], "256");
        let loops = "valkey-operator-reconcile-loops";
        assert_eq!(objects[&format!("Deployment/{loops}")]["spec"]["replicas"], replicas);
        for container in containers(&objects, NAMESPACE).iter().chain(&containers(&objects, loops)) {
            assert_eq!(container["image"], "registry.example.com/valkey-operator:0.1.0");
        }
    }
}

#[tokio::test]
async fn every_container_can_be_scraped_with_and_without_the_debug_overlay() {
    let (metrics, debug) = (kustomize("overlays/metrics").await, kustomize("overlays/debug").await);
    let service = &metrics["Service/valkey-operator-metrics"];
    let scraped = &metrics["ServiceMonitor/valkey-operator-metrics"];
    let selects = |selector: &Value, labels: &Value| {
        selector.as_object().unwrap().iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    assert!(selects(&scraped["spec"]["selector"]["matchLabels"], &service["metadata"]["labels"]));
    let deployments = metrics.iter().chain(&debug).filter(|(name, _)| name.starts_with("Deployment/"));
    let mut ports = Vec::new();
    for (_, deployment) in deployments {
        let template = &deployment["spec"]["template"];
        assert!(selects(&service["spec"]["selector"], &template["metadata"]["labels"]), "{template}");
        for container in template["spec"]["containers"].as_array().unwrap() {
            ports.push(container["ports"][0].clone());
        }
    }
    assert_eq!(ports.len(), 6, "{ports:?}");
    for port in ports {
        let of_service = service["spec"]["ports"].as_array().unwrap();
        let of_service = of_service.iter().find(|found| found["targetPort"] == port["name"]).unwrap();
        assert_eq!(of_service["port"], port["containerPort"]);
        let endpoints = scraped["spec"]["endpoints"].as_array().unwrap();
        assert!(endpoints.iter().any(|endpoint| endpoint["port"] == of_service["name"]), "{of_service}");
    }
    let dashboard = metrics["ConfigMap/valkey-operator-dashboard"]["data"]["valkey-operator.json"].as_str();
    assert_eq!(dashboard, Some(read("dashboards/valkey-operator.json").as_str()));
}

#[tokio::test]
async fn the_api_server_takes_every_object_strictly_read_and_without_a_warning() {
    let server = Server::ready().await.unwrap();
    let labels = [
        ("pod-security.kubernetes.io/enforce", "restricted"),
        ("pod-security.kubernetes.io/warn", "restricted"),
    ];
    let namespace = TestNamespace::create_labelled(&server.cluster, "api-install", &labels).await.unwrap();
    let mut all = kustomize("overlays/debug").await;
    all.extend(
        kustomize("overlays/metrics")
            .await
            .into_iter()
            .filter(|(name, _)| !all.contains_key(name))
            .collect::<Objects>(),
    );
    all.extend(objects(&read("aggregation.yaml")));
    all.extend(objects(&read("onboarding.yaml")));
    all.extend(objects(&read("network-policies.yaml")));
    // Kinds of others, and namespaces: the operator's own may not exist.
    all.retain(|name, object| {
        object["apiVersion"] != "monitoring.coreos.com/v1" && !name.starts_with("Namespace/")
    });
    for object in all.values_mut() {
        if object["metadata"].get("namespace").is_some() {
            object["metadata"]["namespace"] = json!(namespace.name);
        }
    }
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": all.values().collect::<Vec<_>>() });
    let arguments =
        ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"];
    let said = server.cluster.kubectl().run_with(&arguments, &list.to_string()).await.unwrap();
    assert_eq!(said.warnings(), Vec::<&str>::new());
    let taken = said.success().unwrap();
    assert_eq!(taken.lines().filter(|line| line.contains("server")).count(), all.len(), "{taken}");
}

#[tokio::test]
async fn what_the_chart_renders_by_default_is_the_single_file() {
    let mut single = objects(&read("operator.yaml"));
    let without_checksum = |mut rendered: Objects| {
        let deployment = rendered.get_mut("Deployment/valkey-operator").unwrap();
        let metadata = deployment["spec"]["template"]["metadata"].as_object_mut().unwrap();
        let annotations = metadata.remove("annotations").unwrap();
        assert_eq!(annotations.as_object().unwrap().keys().collect::<Vec<_>>(), ["checksum/settings"]);
        rendered
    };
    assert_eq!(without_checksum(chart(&["--set", "createNamespace=true"]).await), single);
    single.remove("Namespace/valkey-operator").unwrap();
    assert_eq!(without_checksum(chart(&[]).await), single);
    assert_eq!(read("helm/valkey-operator/crds/crds.yaml"), read("crds.yaml"));
}

#[tokio::test]
async fn every_value_of_the_chart_does_what_it_says() {
    let rendered = chart(&[
        "--set=namespace=elsewhere,image.repository=registry.invalid/op,image.tag=v7,image.pullPolicy=Always",
        "--set=logFilter=debug,tenants.aggregate=true,resources.node-ctl.limits.memory=1Gi",
        "--set=metrics.service=true,metrics.serviceMonitor=true,metrics.alerts=true,metrics.dashboard=true",
        "--set-string=settings.slotBatch=256",
        r#"--set-json=pod={"nodeSelector":{"a":"b"},"priorityClassName":"high"}"#,
    ])
    .await;
    let mut expected = kustomize("overlays/metrics").await;
    expected.extend(objects(&read("aggregation.yaml")));
    expected.retain(|name, _| {
        !name.starts_with("CustomResourceDefinition/") && name != "Namespace/valkey-operator"
    });
    assert_eq!(rendered.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, object) in &rendered {
        assert!(!object.to_string().contains(r#""namespace":"valkey-operator""#), "{name}: {object}");
    }
    for name in ["PrometheusRule/valkey-operator", "ServiceMonitor/valkey-operator-metrics"] {
        assert_eq!(rendered[name]["spec"], expected[name]["spec"], "{name}");
    }
    let dashboard = "ConfigMap/valkey-operator-dashboard";
    assert_eq!(rendered[dashboard]["data"], expected[dashboard]["data"]);
    let settings = json!({ "defaultZoneSpread": "bestEffort", "slotBatch": "256" });
    assert_eq!(rendered["ConfigMap/valkey-operator-config"]["data"], settings);
    let pod = &rendered["Deployment/valkey-operator"]["spec"]["template"]["spec"];
    assert_eq!((&pod["nodeSelector"]["a"], &pod["priorityClassName"]), (&json!("b"), &json!("high")));
    for container in containers(&rendered, NAMESPACE) {
        assert_eq!(container["image"], "registry.invalid/op:v7");
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(environment(container)["RUST_LOG"], "debug");
        let memory = if container["name"] == "node-ctl" { "1Gi" } else { "256Mi" };
        assert_eq!(container["resources"]["limits"]["memory"], memory);
    }
    assert!(!chart(&["--set=tenants.roles=false"]).await.contains_key("ClusterRole/valkey-menu-reader"));
}

#[tokio::test]
async fn the_chart_is_sound_and_refuses_values_that_nobody_would_read() {
    let path = deploy().join("helm/valkey-operator").display().to_string();
    let (sound, said) = helm(&["lint", "--strict", &path, "--kube-version", "1.36.0"]).await;
    assert!(sound, "{said}");
    for wrong in [
        "--set-string=settings.slotBach=1",
        "--set=settings.slotBatch=1",
        "--set=replicas=2",
        "--set=pod.hostNetwork=true",
    ] {
        let (taken, said) = helm(&["template", "any", &path, "--kube-version", "1.36.0", wrong]).await;
        assert!(!taken && said.contains("schema"), "{wrong}: {said}");
    }
}

#[tokio::test]
async fn prometheus_reads_every_expression_of_alerts_and_dashboard() {
    let rule = objects(&read("overlays/metrics/alerts.yaml"))["PrometheusRule/valkey-operator"].clone();
    let mut expressions = BTreeMap::new();
    for alert in rule["spec"]["groups"][0]["rules"].as_array().unwrap() {
        expressions
            .insert(alert["alert"].as_str().unwrap().to_owned(), alert["expr"].as_str().unwrap().to_owned());
    }
    let dashboard: Value = serde_json::from_str(&read("dashboards/valkey-operator.json")).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let name = format!("{} {}", panel["title"], target["refId"]);
            // What Grafana puts in its place.
            let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "2m");
            expressions.insert(name, expression);
        }
    }
    assert!(expressions.len() > 20, "only {}", expressions.len());
    let input = serde_json::to_string(&expressions).unwrap();
    let (done, said) = go("promql", &["run", "."], &input).await.unwrap();
    assert!(done && said.contains(&format!("{} expressions, 0 refused", expressions.len())), "{said}");
}

#[tokio::test]
async fn every_alert_fires_when_it_should_and_only_then() {
    // Not from the cache of results: it does not know of the rules, which are outside of the module.
    let (done, said) = go("promql", &["test", "-count=1", "."], "").await.unwrap();
    assert!(done, "{said}");
}

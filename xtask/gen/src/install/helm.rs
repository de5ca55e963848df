//! The Helm chart: the same objects as the single file, with holes for what may be set.
//!
//! A hole is a string `%%word%%` (or `%%word argument%%`) in an object; once the object is written as YAML, the line
//! that has it becomes lines of a template. What the chart renders by default is compared with the single file by the
//! tests against the real Helm, in testing/api.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use shared::settings::{Binary, Settings};

use super::deployment::{self, BINARIES, IMAGE, TAG};
use super::{HEADER, NAMESPACE, account, config_map, manifest, namespace, rbac, settings, tenants};
use crate::monitoring;
use crate::output::Output;

/// The namespace of every namespaced object.
const IN_NAMESPACE: &str = "{{ .Values.namespace | default .Release.Namespace }}";
const IMAGE_REFERENCE: &str =
    "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}";

pub(super) fn outputs(crds: &str) -> Result<Vec<Output>> {
    let text = |path, content: String| Output { path, content };
    Ok(vec![
        text("deploy/helm/valkey-operator/Chart.yaml", chart()),
        text("deploy/helm/valkey-operator/values.yaml", values()?),
        text("deploy/helm/valkey-operator/values.schema.json", schema()?),
        text("deploy/helm/valkey-operator/crds/crds.yaml", crds.to_owned()),
        text("deploy/helm/valkey-operator/files/valkey-operator.json", monitoring::dashboard_json()?),
        text("deploy/helm/valkey-operator/files/alerts.yaml", manifest("", &[monitoring::rules()])?),
        text(
            "deploy/helm/valkey-operator/templates/namespace.yaml",
            when(".Values.createNamespace", &[namespace()])?,
        ),
        text(
            "deploy/helm/valkey-operator/templates/rbac.yaml",
            template(&[&[account()], rbac::documents().as_slice()].concat())?,
        ),
        text(
            "deploy/helm/valkey-operator/templates/tenants.yaml",
            when(".Values.tenants.roles", &tenants::roles())?,
        ),
        text(
            "deploy/helm/valkey-operator/templates/aggregation.yaml",
            when(".Values.tenants.aggregate", &tenants::aggregation())?,
        ),
        text("deploy/helm/valkey-operator/templates/operator.yaml", template(&operator()?)?),
        text("deploy/helm/valkey-operator/templates/metrics.yaml", metrics()?),
        text("deploy/helm/valkey-operator/templates/NOTES.txt", NOTES.to_owned()),
    ])
}

fn chart() -> String {
    format!(
        "{HEADER}apiVersion: v2\nname: valkey-operator\ndescription: Valkey clusters on Kubernetes\ntype: application\n\
         version: {TAG}\nappVersion: {TAG:?}\nkubeVersion: \">=1.27.0-0\"\n"
    )
}

const NOTES: &str = "\
kubectl -n {{ .Values.namespace | default .Release.Namespace }} rollout status deployment/valkey-operator

Helm installs the CRDs once and never changes them: before an upgrade, apply deploy/crds.yaml of the new release.
";

/// The ConfigMap and the Deployment, with their holes.
fn operator() -> Result<[Value; 2]> {
    let (mut config_map, mut deployment) = (config_map(), deployment::document());
    set(&mut config_map, "", "data", "%%settings%%")?;
    set(&mut deployment, "/spec/template/metadata", "annotations", "%%settings-checksum%%")?;
    set(&mut deployment, "/spec/template/spec", "~pod", "%%pod%%")?;
    for (index, binary) in BINARIES.into_iter().enumerate() {
        let container = format!("/spec/template/spec/containers/{index}");
        set(&mut deployment, &container, "image", IMAGE_REFERENCE)?;
        set(&mut deployment, &container, "imagePullPolicy", "%%pull-policy%%")?;
        set(&mut deployment, &container, "resources", &format!("%%resources {}%%", binary.name()))?;
        let env = deployment.pointer_mut(&format!("{container}/env")).and_then(Value::as_array_mut);
        env.context("a container without env")?.push(json!("%%log-filter%%"));
    }
    Ok([config_map, deployment])
}

/// Sets a field of the object at `pointer`.
fn set(document: &mut Value, pointer: &str, key: &str, to: &str) -> Result<()> {
    let object = document.pointer_mut(pointer).and_then(Value::as_object_mut);
    object.with_context(|| format!("no object at {pointer}"))?.insert(key.to_owned(), json!(to));
    Ok(())
}

/// What a hole becomes, at the indent of its line. `key` is what the line has before the hole: `resources: `, `- `.
fn filled(key: &str, hole: &str, indent: usize) -> Result<String> {
    let (word, argument) = hole.split_once(' ').unwrap_or((hole, ""));
    let (pad, inner) = (" ".repeat(indent), indent + 2);
    Ok(match word {
        "settings" => format!(
            "{pad}{key}\n{pad}  {{{{- range $key, $value := .Values.settings }}}}\n{pad}  {{{{ $key }}}}: {{{{ $value | quote }}}}\n{pad}  {{{{- end }}}}\n"
        ),
        // Settings are read at start: a change of them must start new pods.
        "settings-checksum" => {
            format!("{pad}{key}\n{pad}  checksum/settings: {{{{ toYaml .Values.settings | sha256sum }}}}\n")
        }
        "pod" => format!(
            "{pad}{{{{- with .Values.pod }}}}\n{pad}{{{{- toYaml . | nindent {indent} }}}}\n{pad}{{{{- end }}}}\n"
        ),
        "pull-policy" => format!(
            "{pad}{{{{- with .Values.image.pullPolicy }}}}\n{pad}imagePullPolicy: {{{{ . }}}}\n{pad}{{{{- end }}}}\n"
        ),
        "resources" => {
            format!("{pad}{key} {{{{- toYaml (index .Values.resources {argument:?}) | nindent {inner} }}}}\n")
        }
        "log-filter" => format!(
            "{pad}{{{{- with .Values.logFilter }}}}\n{pad}- name: RUST_LOG\n{pad}  value: {{{{ . | quote }}}}\n{pad}{{{{- end }}}}\n"
        ),
        other => bail!("nothing fills the hole {other:?}"),
    })
}

/// Documents as a template.
fn template(documents: &[Value]) -> Result<String> {
    let mut documents = documents.to_vec();
    for document in &mut documents {
        move_namespace(document);
    }
    let mut content = String::new();
    for line in manifest("", &documents)?.lines() {
        let Some((before, rest)) = line.split_once("%%") else {
            content.push_str(line);
            content.push('\n');
            continue;
        };
        let (hole, _) = rest.split_once("%%").with_context(|| format!("half a hole: {line}"))?;
        let key = before.trim_start().trim_end_matches(['"', '\'', ' ']);
        content.push_str(&filled(key, hole, before.len() - before.trim_start().len())?);
    }
    Ok(content)
}

/// A template that renders nothing unless `value` is set.
fn when(value: &str, documents: &[Value]) -> Result<String> {
    Ok(format!("{{{{- if {value} }}}}\n{}{{{{- end }}}}\n", template(documents)?))
}

/// Puts every object, and every mention of the service account, into the chosen namespace.
fn move_namespace(value: &mut Value) {
    let is_namespace = value.get("kind").is_some_and(|kind| kind == "Namespace");
    match value {
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                if key == "namespace" && field == NAMESPACE || is_namespace && key == "metadata" {
                    set_namespace(field);
                } else {
                    move_namespace(field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(move_namespace),
        _ => {}
    }
}

/// `field` is a namespace's name, or the metadata of a Namespace.
fn set_namespace(field: &mut Value) {
    match field.get_mut("name") {
        Some(name) => *name = json!(IN_NAMESPACE),
        None => *field = json!(IN_NAMESPACE),
    }
}

/// Everything for monitoring; each part on its own switch. Alerts and dashboard have braces of their own: they come
/// from files that Helm does not read as templates.
fn metrics() -> Result<String> {
    let mut rule = monitoring::prometheus_rule();
    rule.as_object_mut().and_then(|rule| rule.remove("spec")).context("a rule without spec")?;
    let mut content = when(".Values.metrics.service", &[monitoring::service()])?;
    content.push_str(&when(".Values.metrics.serviceMonitor", &[monitoring::service_monitor()])?);
    let dashboard = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": monitoring::DASHBOARD,
            "namespace": NAMESPACE,
            "labels": monitoring::dashboard_labels(),
        },
    });
    let file = |value: &str, document: &Value, rest: &str| -> Result<String> {
        Ok(when(value, std::slice::from_ref(document))?
            .replace("{{- end }}\n", &format!("{rest}{{{{- end }}}}\n")))
    };
    content.push_str(&file(
        ".Values.metrics.alerts",
        &rule,
        "spec: {{- .Files.Get \"files/alerts.yaml\" | fromYaml | toYaml | nindent 2 }}\n",
    )?);
    content.push_str(&file(
        ".Values.metrics.dashboard",
        &dashboard,
        "data:\n  valkey-operator.json: {{ .Files.Get \"files/valkey-operator.json\" | quote }}\n",
    )?);
    Ok(content)
}

fn values() -> Result<String> {
    let mut resources = String::new();
    for binary in BINARIES {
        let yaml = serde_saphyr::to_string(&json!({ binary.name(): deployment::resources() }))?;
        for line in yaml.lines() {
            writeln!(resources, "  {line}")?;
        }
    }
    let settings = serde_saphyr::to_string(&json!({ "settings": settings() }))?;
    Ok(format!(
        "\
{HEADER}
image:
  repository: {IMAGE}
  # Default: the chart's appVersion.
  tag: \"\"
  # Default: Kubernetes' own.
  pullPolicy: \"\"

# Namespace of the operator; default: the release's. Its objects have fixed names: one operator in a Kubernetes cluster.
namespace: \"\"
# Whether the chart makes that namespace, with the labels of the restricted Pod Security Standard. Helm needs the release's
# own namespace before, so this is for another one.
createNamespace: false

# Settings of the operator, all as strings; docs/reference/settings.md has every key. A change starts a new pod.
{settings}
# Log filter (RUST_LOG), such as debug or info,cluster_ctl=debug; default: info.
logFilter: \"\"

# Requests and limits, by container.
resources:
{resources}
# Further fields of the pod: nodeSelector, tolerations, affinity, priorityClassName, imagePullSecrets.
pod: {{}}

tenants:
  # ClusterRoles valkey-cluster-editor and valkey-menu-reader, to bind for product teams.
  roles: true
  # Let the built-in roles edit, admin and view include ValkeyClusters.
  aggregate: false

# For Prometheus and Grafana; serviceMonitor and alerts need the CRDs of monitoring.coreos.com.
metrics:
  service: false
  serviceMonitor: false
  alerts: false
  dashboard: false
"
    ))
}

fn schema() -> Result<String> {
    let object = |properties: Value| json!({ "type": "object", "additionalProperties": false, "properties": properties });
    let (text, switch) = (json!({ "type": "string" }), json!({ "type": "boolean" }));
    let keys = serde_json::to_value(Settings::defaults(Binary::ClusterCtl))?;
    let keys: Vec<&String> = keys.as_object().into_iter().flatten().map(|(key, _)| key).collect();
    let containers: serde_json::Map<String, Value> =
        BINARIES.into_iter().map(|binary| (binary.name().to_owned(), json!({ "type": "object" }))).collect();
    let pod = ["nodeSelector", "tolerations", "affinity", "priorityClassName", "imagePullSecrets"];
    let mut schema = object(json!({
        "image": object(json!({ "repository": text, "tag": text, "pullPolicy": text })),
        "namespace": text,
        "createNamespace": switch,
        "settings": { "type": "object", "propertyNames": { "enum": keys }, "additionalProperties": text },
        "logFilter": text,
        "resources": object(Value::Object(containers)),
        "pod": { "type": "object", "propertyNames": { "enum": pod } },
        "tenants": object(json!({ "roles": switch, "aggregate": switch })),
        "metrics": object(json!({ "service": switch, "serviceMonitor": switch, "alerts": switch, "dashboard": switch })),
        "global": { "type": "object" },
    }));
    set(&mut schema, "", "$schema", "http://json-schema.org/draft-07/schema#")?;
    let mut content = serde_json::to_string_pretty(&schema)?;
    content.push('\n');
    Ok(content)
}

//! The kustomize base, with the same content as the single files (kustomize reads no file outside of its folder), and
//! the overlays: `debug`, and `metrics` with what the monitoring module makes.

use anyhow::Result;
use serde_json::{Value, json};
use shared::settings::Binary;

use super::deployment;
use super::{NAME, NAMESPACE, documents, manifest};
use crate::monitoring;
use crate::output::Output;

const DEBUG: &str = "\
# For a closer look: all at log level debug, and reconcile-loops out of the operator's pod, as a Deployment of its own
# with ticks of 5 s. Its replicas may be any number: `kubectl -n valkey-operator scale
# deployment/valkey-operator-reconcile-loops --replicas=0` (nothing is reloaded), `=1`, `=3` (the same work, thrice).\n";

const METRICS: &str = "\
# The base, and monitoring by a Prometheus operator and Grafana: Service, ServiceMonitor, PrometheusRule, dashboard.
# Needs the CRDs of monitoring.coreos.com.\n";

pub(super) fn outputs(crds: &str) -> Result<Vec<Output>> {
    let one = |path, comment: &str, document: &Value| {
        manifest(comment, std::slice::from_ref(document)).map(|content| Output { path, content })
    };
    Ok(vec![
        one("deploy/base/kustomization.yaml", "", &kustomization(&["crds.yaml", "operator.yaml"]))?,
        Output { path: "deploy/base/crds.yaml", content: crds.to_owned() },
        Output { path: "deploy/base/operator.yaml", content: manifest("", &documents())? },
        one("deploy/overlays/debug/kustomization.yaml", DEBUG, &debug())?,
        one("deploy/overlays/debug/operator-patch.yaml", "", &debug_patch())?,
        one("deploy/overlays/debug/reconcile-loops.yaml", "", &deployment::loops())?,
        one("deploy/overlays/metrics/kustomization.yaml", METRICS, &metrics())?,
        one("deploy/overlays/metrics/service.yaml", "", &monitoring::service())?,
        one("deploy/overlays/metrics/service-monitor.yaml", "", &monitoring::service_monitor())?,
        one("deploy/overlays/metrics/alerts.yaml", "", &monitoring::prometheus_rule())?,
        one("deploy/dashboards/kustomization.yaml", "", &dashboards())?,
        Output { path: "deploy/dashboards/valkey-operator.json", content: monitoring::dashboard_json()? },
    ])
}

fn kustomization(resources: &[&str]) -> Value {
    json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    })
}

fn debug() -> Value {
    let mut debug = kustomization(&["../../base", "reconcile-loops.yaml"]);
    if let Some(debug) = debug.as_object_mut() {
        debug.insert("patches".to_owned(), json!([{ "path": "operator-patch.yaml" }]));
    }
    debug
}

fn debug_patch() -> Value {
    let logs = |binary: Binary| json!({ "name": binary.name(), "env": [deployment::debug_log()] });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": NAME, "namespace": NAMESPACE },
        "spec": { "template": { "spec": { "containers": [
            logs(Binary::ClusterCtl),
            logs(Binary::NodeCtl),
            { "name": Binary::ReconcileLoops.name(), "$patch": "delete" },
        ] } } },
    })
}

fn metrics() -> Value {
    kustomization(&["../../base", "../../dashboards", "service.yaml", "service-monitor.yaml", "alerts.yaml"])
}

/// A ConfigMap as Grafana's sidecar finds it.
fn dashboards() -> Value {
    json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAMESPACE,
        "generatorOptions": { "disableNameSuffixHash": true, "labels": monitoring::dashboard_labels() },
        "configMapGenerator": [{ "name": monitoring::DASHBOARD, "files": ["valkey-operator.json"] }],
    })
}

#[cfg(test)]
mod tests {
    use super::deployment::LOOPS;
    use super::*;

    #[test]
    fn the_two_deployments_of_the_debug_overlay_never_select_each_others_pods() {
        let labels = |deployment: &Value, pointer: &str| deployment.pointer(pointer).unwrap().clone();
        let (operator, loops) = (deployment::document(), deployment::loops());
        for (one, other) in [(&operator, &loops), (&loops, &operator)] {
            let selector = labels(one, "/spec/selector/matchLabels");
            let pods = labels(other, "/spec/template/metadata/labels");
            let matches =
                selector.as_object().unwrap().iter().all(|(key, value)| pods.get(key) == Some(value));
            assert!(!matches, "{selector} selects {pods}");
        }
        assert_eq!(loops.pointer("/metadata/name").unwrap(), LOOPS);
    }
}

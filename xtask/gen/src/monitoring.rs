//! What a Prometheus operator and Grafana need: where to scrape, when to alert, what to show.
//!
//! Owns names and labels of these objects. Every expression uses metrics of ours only, and each of them exists: the
//! tests compare with what the code registers.

mod alerts;
mod dashboard;
#[cfg(test)]
mod registered;

use anyhow::Result;
use serde_json::{Value, json};

pub(crate) use alerts::{prometheus_rule, rules};

use crate::install::{BINARIES, NAME, PART_OF, namespaced};

/// Name of the Service, and so the value of the label `job` that Prometheus gives.
const SERVICE: &str = "valkey-operator-metrics";
/// Name of the dashboard's ConfigMap.
pub(crate) const DASHBOARD: &str = "valkey-operator-dashboard";

/// One port a container. Headless: Prometheus asks the pods, and the Service names them. It selects the pods of every
/// Deployment of the operator, and a pod without a container's port is left out of that port.
pub(crate) fn service() -> Value {
    let ports: Vec<Value> = BINARIES
        .into_iter()
        .map(|binary| json!({ "name": binary.name(), "port": binary.default_port(), "targetPort": binary.name() }))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": namespaced(SERVICE),
        // A container that is alive and not ready is the one to look at.
        "spec": { "clusterIP": "None", "publishNotReadyAddresses": true, "ports": ports, "selector": { PART_OF: NAME } },
    })
}

/// Scrapes the three ports.
pub(crate) fn service_monitor() -> Value {
    let endpoints: Vec<Value> = BINARIES
        .into_iter()
        // The label `namespace` of a metric is the cluster's, and must not become `exported_namespace`.
        .map(|binary| json!({ "port": binary.name(), "path": "/metrics", "interval": "30s", "honorLabels": true }))
        .collect();
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": namespaced(SERVICE),
        "spec": { "endpoints": endpoints, "selector": { "matchLabels": { PART_OF: NAME } } },
    })
}

/// The dashboard as a file to import.
pub(crate) fn dashboard_json() -> Result<String> {
    let mut content = serde_json::to_string_pretty(&dashboard::dashboard())?;
    content.push('\n');
    Ok(content)
}

/// What Grafana's sidecar looks for.
pub(crate) fn dashboard_labels() -> Value {
    json!({ "grafana_dashboard": "1" })
}

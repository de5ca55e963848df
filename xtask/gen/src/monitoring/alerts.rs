//! The alert rules. Each has a row of the same name in docs/monitoring.md with what to do.

use serde_json::{Value, json};

use super::SERVICE;
use crate::install::{BINARIES, namespaced};

/// An alert.
pub(super) struct Alert {
    pub(super) name: &'static str,
    pub(super) expression: String,
    /// How long it must hold before it is told.
    lasting: &'static str,
    severity: &'static str,
    /// One line; `{{ $labels.x }}` stands for a label of the expression's result.
    summary: &'static str,
}

/// Every rule.
pub(super) fn alerts() -> Vec<Alert> {
    [of_clusters(), of_the_operator()].into_iter().flatten().collect()
}

fn of_clusters() -> Vec<Alert> {
    let condition =
        |name: &str, value: u8| format!(r#"valkey_operator_cluster_condition{{name="{name}"}} == {value}"#);
    vec![
        Alert {
            name: "ValkeyClusterNotReady",
            expression: condition("Ready", 0),
            lasting: "10m",
            severity: "warning",
            summary: "ValkeyCluster {{ $labels.namespace }}/{{ $labels.cluster }} is not as specified for 10 minutes",
        },
        Alert {
            name: "ValkeyClusterDegraded",
            expression: condition("Degraded", 1),
            lasting: "5m",
            severity: "warning",
            summary: "ValkeyCluster {{ $labels.namespace }}/{{ $labels.cluster }} has lost redundancy or data",
        },
        Alert {
            name: "ValkeyClusterSlotsUncovered",
            expression: r#"valkey_operator_cluster_slots_assigned < 16384 and on (namespace, cluster) (valkey_operator_cluster_state{name="Active"} == 1)"#.to_owned(),
            lasting: "1m",
            severity: "critical",
            summary: "Only {{ $value }} of 16384 slots of ValkeyCluster {{ $labels.namespace }}/{{ $labels.cluster }} have an owner",
        },
        Alert {
            name: "ValkeyClusterInvalid",
            expression: r#"valkey_operator_cluster_state{name="Invalid"} == 1"#.to_owned(),
            lasting: "1m",
            severity: "warning",
            summary: "ValkeyCluster {{ $labels.namespace }}/{{ $labels.cluster }} is Invalid: its status message says why",
        },
        Alert {
            name: "ValkeyClusterReferencesUnresolved",
            expression: condition("ReferencesResolved", 0),
            lasting: "10m",
            severity: "warning",
            summary: "ValkeyCluster {{ $labels.namespace }}/{{ $labels.cluster }} names a config, image or role that does not resolve",
        },
        Alert {
            name: "ValkeyClusterCertificateExpiring",
            expression: condition("CertificateExpiringSoon", 1),
            lasting: "1h",
            severity: "warning",
            summary: "The certificate of ValkeyCluster {{ $labels.namespace }}/{{ $labels.cluster }} expires in less than 30 days",
        },
    ]
}

/// Results of a pass over a node that are neither success, nor waiting, nor a refusal.
const FAILED: &str = r#"{result!~"current|reloaded|stale|refused"}"#;

fn of_the_operator() -> Vec<Alert> {
    let refused = r#"valkey_operator_acl_reloads_total{result="refused"}"#;
    let absent =
        BINARIES.map(|binary| format!(r#"absent(valkey_operator_build_info{{binary="{}"}})"#, binary.name()));
    vec![
        Alert {
            name: "ValkeyOperatorDown",
            expression: absent.join(" or "),
            lasting: "5m",
            severity: "critical",
            summary: "{{ $labels.binary }} of the Valkey operator is not there: what it does for clusters does not happen",
        },
        Alert {
            name: "ValkeyOperatorReconcileErrors",
            expression: format!(
                // The name is common to many operators: the job makes it ours.
                r#"sum by (controller) (rate(controller_runtime_reconcile_total{{job="{SERVICE}",result=~"error|aborted"}}[10m])) > 0"#
            ),
            lasting: "15m",
            severity: "warning",
            summary: "The {{ $labels.controller }} loop of the Valkey operator fails again and again: its log has the cause",
        },
        Alert {
            name: "ValkeyAclRefused",
            // Not increase(): a series that begins with its first refusal has none.
            expression: format!("sum({refused}) - (sum({refused} offset 10m) or vector(0)) > 0"),
            lasting: "0m",
            severity: "warning",
            summary: "A Valkey node refused its users.acl: the condition ACLApplied of its cluster has the server's words",
        },
        Alert {
            name: "ValkeyReloadsFailing",
            expression: format!(
                "sum by (result) (rate(valkey_operator_acl_reloads_total{FAILED}[10m])) > 0 \
                 or sum by (result) (rate(valkey_operator_tls_reloads_total{FAILED}[10m])) > 0"
            ),
            lasting: "15m",
            severity: "warning",
            summary: "Users or certificates do not reach a Valkey node ({{ $labels.result }}): see ACLApplied and TLSReady of the clusters",
        },
    ]
}

/// The rules as Prometheus takes them.
pub(crate) fn rules() -> Value {
    let rules: Vec<Value> = alerts()
        .into_iter()
        .map(|Alert { name, expression, lasting, severity, summary }| {
            json!({
                "alert": name,
                "expr": expression,
                "for": lasting,
                "labels": { "severity": severity },
                "annotations": { "summary": summary },
            })
        })
        .collect();
    json!({ "groups": [{ "name": "valkey-operator", "rules": rules }] })
}

/// The rules as the Prometheus operator takes them.
pub(crate) fn prometheus_rule() -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": namespaced("valkey-operator"),
        "spec": rules(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alert_is_documented_with_what_to_do() {
        let page = include_str!("../../../../docs/monitoring.md");
        let missing: Vec<_> = alerts()
            .into_iter()
            .map(|alert| alert.name)
            .filter(|name| !page.contains(&format!("\n| `{name}` |")))
            .collect();
        assert_eq!(missing, Vec::<&str>::new(), "docs/monitoring.md");
    }
}

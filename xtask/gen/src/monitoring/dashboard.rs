//! The Grafana dashboard: clusters first, then what the operator does, then what it costs.

use serde_json::{Value, json};

use super::SERVICE;

/// Width of the grid, in Grafana's units.
const WIDTH: usize = 24;
const HEIGHT: usize = 8;

/// A panel: a title, a unit of Grafana's, its kind, and queries with their legends.
pub(super) struct Panel {
    title: &'static str,
    kind: &'static str,
    unit: &'static str,
    width: usize,
    pub(super) queries: Vec<(String, &'static str)>,
}

impl Panel {
    fn lines(title: &'static str, unit: &'static str, queries: Vec<(String, &'static str)>) -> Self {
        Self { title, kind: "timeseries", unit, width: 12, queries }
    }

    fn number(title: &'static str, query: &str) -> Self {
        Self { title, kind: "stat", unit: "none", width: 6, queries: vec![(query.to_owned(), "")] }
    }
}

/// Of the clusters that are selected.
fn selected(metric: &str, more: &str) -> String {
    format!(r#"{metric}{{namespace=~"$namespace",cluster=~"$cluster"{more}}}"#)
}

/// Every panel, in reading order.
pub(super) fn panels() -> Vec<Panel> {
    [clusters(), work(), cost()].into_iter().flatten().collect()
}

fn clusters() -> Vec<Panel> {
    let condition = |name: &str| selected("valkey_operator_cluster_condition", &format!(r#",name="{name}""#));
    vec![
        Panel::number("Clusters", r#"count(valkey_operator_cluster_condition{name="Ready"})"#),
        Panel::number(
            "Not ready",
            r#"count(valkey_operator_cluster_condition{name="Ready"} == 0) or vector(0)"#,
        ),
        Panel::number(
            "Degraded",
            r#"count(valkey_operator_cluster_condition{name="Degraded"} == 1) or vector(0)"#,
        ),
        Panel::number("Containers of the operator", "count(valkey_operator_build_info)"),
        Panel::lines("Ready", "bool_yes_no", vec![(condition("Ready"), "{{namespace}}/{{cluster}}")]),
        Panel::lines("Degraded", "bool_yes_no", vec![(condition("Degraded"), "{{namespace}}/{{cluster}}")]),
        Panel::lines(
            "Nodes that serve, and all nodes",
            "none",
            vec![
                (selected("valkey_operator_cluster_ready_nodes", ""), "{{namespace}}/{{cluster}} serve"),
                (
                    format!(
                        "sum by (namespace, cluster) ({})",
                        selected("valkey_operator_cluster_nodes", "")
                    ),
                    "{{namespace}}/{{cluster}} all",
                ),
            ],
        ),
        Panel::lines(
            "Slots with an owner",
            "none",
            vec![(selected("valkey_operator_cluster_slots_assigned", ""), "{{namespace}}/{{cluster}}")],
        ),
        Panel::lines(
            "Time until the certificate expires",
            "s",
            vec![(
                format!("{} - time()", selected("valkey_operator_certificate_expiry_timestamp_seconds", "")),
                "{{namespace}}/{{cluster}}",
            )],
        ),
    ]
}

fn work() -> Vec<Panel> {
    vec![
        Panel::lines(
            "Actions on clusters",
            "ops",
            vec![(rate("kind, outcome", "valkey_operator_actions_total", ""), "{{kind}} {{outcome}}")],
        ),
        Panel::lines(
            "Steps for nodes",
            "ops",
            vec![(rate("step", "valkey_operator_node_steps_total", ""), "{{step}}")],
        ),
        Panel::lines(
            "Users and certificates: passes over nodes",
            "ops",
            vec![
                (rate("result", "valkey_operator_acl_reloads_total", ""), "users {{result}}"),
                (rate("result", "valkey_operator_tls_reloads_total", ""), "certificates {{result}}"),
                (rate("job", "valkey_operator_authorities_replaced_total", ""), "authorities replaced"),
            ],
        ),
        Panel::lines(
            "Reconciles",
            "ops",
            vec![(
                rate("controller, result", "controller_runtime_reconcile_total", &of_ours()),
                "{{controller}} {{result}}",
            )],
        ),
    ]
}

fn cost() -> Vec<Panel> {
    vec![
        Panel::lines(
            "Reconcile, 99th percentile",
            "s",
            vec![(
                slowest("controller", "controller_runtime_reconcile_time_seconds", &of_ours()),
                "{{controller}}",
            )],
        ),
        Panel::lines(
            "Reconciles running now",
            "none",
            vec![(
                format!("sum by (controller) (controller_runtime_active_workers{})", of_ours()),
                "{{controller}}",
            )],
        ),
        Panel::lines(
            "Requests to the Kubernetes API",
            "reqps",
            vec![(
                rate("operation, result", "valkey_operator_api_requests_total", ""),
                "{{operation}} {{result}}",
            )],
        ),
        Panel::lines(
            "Answers of the Kubernetes API, 99th percentile",
            "s",
            vec![(slowest("operation", "valkey_operator_api_request_duration_seconds", ""), "{{operation}}")],
        ),
        Panel::lines(
            "Commands to Valkey nodes",
            "reqps",
            vec![(
                rate("operation, result", "valkey_operator_valkey_requests_total", ""),
                "{{operation}} {{result}}",
            )],
        ),
        Panel::lines(
            "Replies of Valkey nodes, 99th percentile",
            "s",
            vec![(
                slowest("operation", "valkey_operator_valkey_request_duration_seconds", ""),
                "{{operation}}",
            )],
        ),
    ]
}

/// Metrics with a name that other operators have too.
fn of_ours() -> String {
    format!(r#"{{job="{SERVICE}"}}"#)
}

fn rate(by: &str, counter: &str, matchers: &str) -> String {
    format!("sum by ({by}) (rate({counter}{matchers}[$__rate_interval]))")
}

fn slowest(by: &str, histogram: &str, matchers: &str) -> String {
    format!(
        "histogram_quantile(0.99, sum by ({by}, le) (rate({histogram}_bucket{matchers}[$__rate_interval])))"
    )
}

/// The dashboard as Grafana imports it.
pub(super) fn dashboard() -> Value {
    json!({
        "uid": "valkey-operator",
        "title": "Valkey operator",
        "tags": ["valkey"],
        "editable": true,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": { "from": "now-3h", "to": "now" },
        "templating": { "list": [
            { "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus" },
            variable("namespace", "label_values(valkey_operator_cluster_state, namespace)"),
            variable("cluster", r#"label_values(valkey_operator_cluster_state{namespace=~"$namespace"}, cluster)"#),
        ] },
        "panels": placed(&panels()),
    })
}

fn variable(name: &str, query: &str) -> Value {
    json!({
        "name": name,
        "type": "query",
        "datasource": source(),
        "query": { "query": query, "refId": name },
        "includeAll": true,
        "multi": true,
        "allValue": ".*",
        "current": { "text": "All", "value": "$__all" },
        "refresh": 2,
    })
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

/// Panels from left to right, row by row.
fn placed(panels: &[Panel]) -> Vec<Value> {
    let (mut x, mut y) = (0, 0);
    let place = |(index, panel): (usize, &Panel)| {
        if x + panel.width > WIDTH {
            (x, y) = (0, y + HEIGHT);
        }
        let at = json!({ "x": x, "y": y, "w": panel.width, "h": HEIGHT });
        x += panel.width;
        drawn(index + 1, panel, &at)
    };
    panels.iter().enumerate().map(place).collect()
}

fn drawn(id: usize, panel: &Panel, at: &Value) -> Value {
    let target = |(index, (query, legend)): (usize, &(String, &str))| json!({ "refId": format!("Q{index}"), "datasource": source(), "expr": query, "legendFormat": legend });
    let targets: Vec<Value> = panel.queries.iter().enumerate().map(target).collect();
    json!({
        "id": id,
        "title": panel.title,
        "type": panel.kind,
        "datasource": source(),
        "gridPos": at,
        "fieldConfig": { "defaults": { "unit": panel.unit }, "overrides": [] },
        "targets": targets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_panels_share_a_place() {
        let panels = placed(&panels());
        let mut cells = std::collections::BTreeSet::new();
        for panel in &panels {
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            for x in at("x")..at("x") + at("w") {
                assert!(x < 24 && cells.insert((x, at("y"))), "{}", panel["title"]);
            }
        }
    }
}

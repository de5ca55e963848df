//! NetworkPolicies to copy: who may reach a cluster's nodes, and who may reach the operator.
//!
//! The operator makes none itself. They are by cluster: two clusters in one namespace are kept apart too.

use serde_json::{Value, json};
use shared::names;

use super::{NAMESPACE, PART_OF, namespaced};

/// The cluster in the manifest to copy.
const CLUSTER: &str = "my-cluster";
/// The namespace of it.
const TEAM: &str = "team-a";
/// Label by which a client Pod asks to be let in.
const CLIENT: &str = "my-cluster-client";
/// Where the three containers answer probes and Prometheus; `listenAddress` in their settings.
const OPERATOR_PORTS: [u16; 3] = [8081, 8082, 8083];

/// The policies of one cluster and of the operator.
pub(super) fn documents() -> [Value; 2] {
    [cluster(), operator()]
}

fn cluster() -> Value {
    let members = json!({ "matchLabels": {
        names::LABEL_NAME: names::APP_NAME, names::LABEL_INSTANCE: CLUSTER, names::LABEL_MANAGED_BY: names::MANAGED_BY,
    } });
    let bus_and_client = ports(&[names::CLIENT_PORT, names::BUS_PORT]);
    let client = ports(&[names::CLIENT_PORT]);
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": CLUSTER, "namespace": TEAM },
        "spec": {
            "podSelector": members,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                { "from": [{ "podSelector": members }], "ports": bus_and_client },
                { "from": [{ "podSelector": { "matchLabels": { CLIENT: "true" } } }], "ports": client },
                {
                    "from": [{
                        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": NAMESPACE } },
                        "podSelector": { "matchLabels": { PART_OF: NAMESPACE } },
                    }],
                    "ports": client,
                },
            ],
            "egress": [{ "to": [{ "podSelector": members }], "ports": bus_and_client }],
        },
    })
}

fn operator() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": namespaced(NAMESPACE),
        "spec": {
            "podSelector": { "matchLabels": { PART_OF: NAMESPACE } },
            "policyTypes": ["Ingress"],
            "ingress": [{ "ports": ports(&OPERATOR_PORTS) }],
        },
    })
}

fn ports(numbers: &[u16]) -> Value {
    numbers.iter().map(|port| json!({ "port": port, "protocol": "TCP" })).collect()
}

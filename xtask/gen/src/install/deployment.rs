//! The one Deployment: three containers from one image, one replica, never two at once.

use serde_json::{Value, json};
use shared::settings::{Binary, DEFAULT_CONFIG_DIR};

use super::{CONFIG_MAP, NAME, namespaced};

/// Image of the three binaries.
const IMAGE: &str = concat!("valkey-operator:", env!("CARGO_PKG_VERSION"));
/// User of the image: numeric, so that `runAsNonRoot` can be checked.
const USER: u32 = 65532;

pub(super) fn document() -> Value {
    let labels = json!({ "app.kubernetes.io/name": NAME });
    let containers: Vec<Value> =
        [Binary::ClusterCtl, Binary::NodeCtl, Binary::ReconcileLoops].into_iter().map(container).collect();
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": namespaced(NAME),
        "spec": {
            "replicas": 1,
            // Two at once are survivable, not wanted.
            "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": NAME,
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": USER,
                        "runAsGroup": USER,
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    "containers": containers,
                    "volumes": [{ "name": "config", "configMap": { "name": CONFIG_MAP, "optional": true } }],
                },
            },
        },
    })
}

fn container(binary: Binary) -> Value {
    let port = binary.default_port();
    let probe = |path: &str, period: u32, failures: u32| {
        json!({
            "httpGet": { "path": path, "port": port },
            "periodSeconds": period,
            "failureThreshold": failures,
            "timeoutSeconds": 3,
        })
    };
    json!({
        "name": binary.name(),
        "image": IMAGE,
        "command": [format!("/usr/local/bin/{}", binary.name())],
        "env": [{ "name": "LISTEN_ADDRESS", "value": format!("0.0.0.0:{port}") }],
        "ports": [{ "name": format!("http-{port}"), "containerPort": port }],
        "startupProbe": probe("/livez", 2, 30),
        "livenessProbe": probe("/livez", 10, 3),
        "readinessProbe": probe("/readyz", 2, 3),
        "resources": {
            "requests": { "cpu": "10m", "memory": "32Mi" },
            "limits": { "memory": "256Mi" },
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "volumeMounts": [{ "name": "config", "mountPath": DEFAULT_CONFIG_DIR, "readOnly": true }],
    })
}

//! The one Deployment: three containers from one image, one replica, never two at once. And, for the debug overlay, a
//! Deployment of reconcile-loops alone.

use serde_json::{Value, json};
use shared::settings::{Binary, DEFAULT_CONFIG_DIR};

use super::{CONFIG_MAP, NAME, namespaced};

/// Image of the three binaries, without a tag.
pub(super) const IMAGE: &str = "valkey-operator";
/// The image's tag: the release.
pub(super) const TAG: &str = env!("CARGO_PKG_VERSION");
/// User of the image: numeric, so that `runAsNonRoot` can be checked.
const USER: u32 = 65532;
/// On the pods of every Deployment of the operator: what the metrics Service selects.
pub(crate) const PART_OF: &str = "app.kubernetes.io/part-of";

/// The three processes, in the order of their containers.
pub(crate) const BINARIES: [Binary; 3] = [Binary::ClusterCtl, Binary::NodeCtl, Binary::ReconcileLoops];

/// The operator.
pub(super) fn document() -> Value {
    // Two at once are survivable, not wanted.
    deployment(NAME, &json!({ "type": "Recreate" }), &BINARIES.map(container))
}

/// Name of the Deployment of reconcile-loops alone.
pub(super) const LOOPS: &str = "valkey-operator-reconcile-loops";

/// reconcile-loops on its own, with short ticks. Its work is idempotent: any number of replicas will do.
pub(super) fn loops() -> Value {
    let mut container = container(Binary::ReconcileLoops);
    if let Some(env) = container.get_mut("env").and_then(Value::as_array_mut) {
        env.extend([
            json!({ "name": "ACL_TICK", "value": "5s" }),
            json!({ "name": "TLS_TICK", "value": "5s" }),
            debug_log(),
        ]);
    }
    deployment(LOOPS, &json!({ "type": "RollingUpdate" }), &[container])
}

/// The environment variable for the debug log.
pub(super) fn debug_log() -> Value {
    json!({ "name": "RUST_LOG", "value": "debug" })
}

fn deployment(name: &str, strategy: &Value, containers: &[Value]) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": namespaced(name),
        "spec": {
            "replicas": 1,
            "strategy": strategy,
            "selector": { "matchLabels": { "app.kubernetes.io/name": name } },
            "template": {
                "metadata": { "labels": { "app.kubernetes.io/name": name, PART_OF: NAME } },
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
        "image": format!("{IMAGE}:{TAG}"),
        "command": [format!("/usr/local/bin/{}", binary.name())],
        "env": [
            { "name": "LISTEN_ADDRESS", "value": format!("0.0.0.0:{port}") },
            // One heap instead of one a thread: a fifth less memory. For glibc; others ignore it.
            { "name": "MALLOC_ARENA_MAX", "value": "1" },
        ],
        "ports": [{ "name": binary.name(), "containerPort": port }],
        "startupProbe": probe("/livez", 2, 30),
        "livenessProbe": probe("/livez", 10, 3),
        "readinessProbe": probe("/readyz", 2, 3),
        "resources": resources(),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "volumeMounts": [{ "name": "config", "mountPath": DEFAULT_CONFIG_DIR, "readOnly": true }],
    })
}

/// Requests and limits of each container.
pub(super) fn resources() -> Value {
    json!({
        "requests": { "cpu": "10m", "memory": "32Mi" },
        "limits": { "memory": "256Mi" },
    })
}

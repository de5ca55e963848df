//! The Pod of a node.
//!
//! Everything in it follows from the `ValkeyNode` and from the annotations that the cluster asks for at this moment.
//! It is created once and its spec is never changed: what is here decides how a member runs for its whole life.
//!
//! It is created with a finalizer that goes as soon as its UID is on the `ValkeyNode`. Between the create and that
//! record the Pod can be deleted but not vanish, so that a crash in between never hides that there was one.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
    EnvVarSource, ExecAction, KeyToPath, Lifecycle, LifecycleHandler, ObjectFieldSelector, Pod,
    PodReadinessGate, PodSecurityContext, PodSpec, Probe, ResourceRequirements, SeccompProfile,
    SecretVolumeSource, SecurityContext, TCPSocketAction, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use shared::api::{Placement, ValkeyNode};
use shared::{conf, names};

use crate::{meta, placement};

/// User and group of the process and of its files.
const UID: i64 = 999;
/// Time from the moment the Pod is told to go until the process is: the preStop hook, then a hand-over at SIGTERM, for
/// which Valkey's own `shutdown-timeout` is 10 seconds.
const GRACE_SECONDS: i64 = 30;
/// Before SIGTERM the operator has so long to hand the role of a primary over while the server still works, even if the
/// operator itself is evicted at the same moment. A container that has ended is not waited for.
const HAND_OVER_SECONDS: u8 = 5;
/// Secrets are for the process's group alone (0440).
const SECRET_MODE: i32 = 0o440;

/// Builds the Pod. `annotations` are the cluster's `podAnnotations`, taken verbatim.
pub fn build(node: &ValkeyNode, annotations: &BTreeMap<String, String>) -> Pod {
    let name = node.name_any();
    let mut metadata = meta::owned(node, name.clone());
    metadata.annotations = (!annotations.is_empty()).then(|| annotations.clone());
    metadata.finalizers = Some(vec![names::POD_FINALIZER.to_owned()]);
    let default = Placement::default();
    let wanted = node.spec.placement.as_ref().unwrap_or(&default);
    Pod {
        metadata,
        spec: Some(PodSpec {
            affinity: placement::affinity(wanted),
            automount_service_account_token: Some(false),
            containers: vec![container(node)],
            enable_service_links: Some(false),
            hostname: Some(name),
            node_selector: (!wanted.node_selector.is_empty()).then(|| wanted.node_selector.clone()),
            readiness_gates: Some(vec![PodReadinessGate {
                condition_type: names::READINESS_GATE.to_owned(),
            }]),
            restart_policy: Some("Never".to_owned()),
            security_context: Some(pod_security()),
            subdomain: Some(names::service(&node.spec.cluster_name)),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            tolerations: Some(placement::tolerations()),
            topology_spread_constraints: Some(placement::spread(node)),
            volumes: Some(volumes(node)),
            ..PodSpec::default()
        }),
        status: None,
    }
}

fn container(node: &ValkeyNode) -> Container {
    let mut command =
        vec!["valkey-server".to_owned(), format!("{}/{}", conf::CONF_DIR, names::KEY_VALKEY_CONF)];
    command.extend(conf::pod_arguments());
    let port = |name: &str, number: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        ..ContainerPort::default()
    };
    Container {
        name: names::CONTAINER.to_owned(),
        image: Some(node.spec.image.clone()),
        command: Some(command),
        env: Some(vec![pod_ip()]),
        ports: Some(vec![port("valkey", names::CLIENT_PORT), port("valkey-bus", names::BUS_PORT)]),
        lifecycle: Some(before_stop()),
        liveness_probe: Some(liveness(node.spec.tls_secret.is_some())),
        resources: resources(node),
        security_context: Some(container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(mounts(node)),
        ..Container::default()
    }
}

/// The pod's own address, known only when it runs.
fn pod_ip() -> EnvVar {
    EnvVar {
        name: "POD_IP".to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: "status.podIP".to_owned(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

/// A program of the image and not the kubelet's own `sleep`, which API servers before Kubernetes 1.30 refuse. Where the
/// image has none, the kubelet says so in an event and goes on with SIGTERM.
fn before_stop() -> Lifecycle {
    let sleep = vec!["sleep".to_owned(), HAND_OVER_SECONDS.to_string()];
    let exec = Some(ExecAction { command: Some(sleep) });
    Lifecycle {
        pre_stop: Some(LifecycleHandler { exec, ..LifecycleHandler::default() }),
        ..Lifecycle::default()
    }
}

/// Slow to kill: the container is not restarted, a false alarm costs the member. In plaintext any reply counts as
/// life, `NOAUTH` included (valkey-cli exits 0 on it); with TLS the port must accept.
fn liveness(tls: bool) -> Probe {
    let port = names::CLIENT_PORT;
    let ping = ["valkey-cli", "-h", "127.0.0.1", "-p", &port.to_string(), "PING"].map(str::to_owned).to_vec();
    Probe {
        exec: (!tls).then_some(ExecAction { command: Some(ping) }),
        tcp_socket: tls.then(|| TCPSocketAction { port: IntOrString::Int(i32::from(port)), host: None }),
        initial_delay_seconds: Some(10),
        period_seconds: Some(10),
        timeout_seconds: Some(5),
        failure_threshold: Some(6),
        ..Probe::default()
    }
}

/// Request and limit alike: with both cpu and memory the pod is Guaranteed and the last to be evicted.
fn resources(node: &ValkeyNode) -> Option<ResourceRequirements> {
    let amounts: BTreeMap<String, Quantity> = [("cpu", &node.spec.cpu), ("memory", &node.spec.memory)]
        .into_iter()
        .filter_map(|(name, amount)| Some((name.to_owned(), Quantity(amount.clone()?))))
        .collect();
    (!amounts.is_empty()).then(|| ResourceRequirements {
        requests: Some(amounts.clone()),
        limits: Some(amounts),
        ..ResourceRequirements::default()
    })
}

fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(UID),
        run_as_group: Some(UID),
        fs_group: Some(UID),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        ..SecurityContext::default()
    }
}

/// Whole directories: a single file mounted by subPath would never be refreshed.
fn mounts(node: &ValkeyNode) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: (name != "data").then_some(true),
        ..VolumeMount::default()
    };
    let mut mounts = vec![
        mount("config", conf::CONF_DIR),
        mount("acl", conf::ACL_DIR),
        mount("auth", conf::AUTH_DIR),
        mount("data", conf::DATA_DIR),
    ];
    if node.spec.tls_secret.is_some() {
        mounts.push(mount("tls", conf::TLS_DIR));
    }
    mounts
}

fn volumes(node: &ValkeyNode) -> Vec<Volume> {
    let cluster = &node.spec.cluster_name;
    let config_map = |volume: &str, name: String| Volume {
        name: volume.to_owned(),
        config_map: Some(ConfigMapVolumeSource { name, ..ConfigMapVolumeSource::default() }),
        ..Volume::default()
    };
    let secret = |volume: &str, name: String, items: Option<Vec<KeyToPath>>| Volume {
        name: volume.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(name),
            default_mode: Some(SECRET_MODE),
            items,
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    };
    // The operator's own password must not reach the pod: only this one item does.
    let primaryauth = KeyToPath {
        key: names::KEY_PRIMARYAUTH_CONF.to_owned(),
        path: names::KEY_PRIMARYAUTH_CONF.to_owned(),
        mode: None,
    };
    let mut volumes = vec![
        config_map("config", names::node_config_map(&node.name_any())),
        config_map("acl", names::acl_config_map(cluster)),
        secret("auth", names::auth_secret(cluster), Some(vec![primaryauth])),
        Volume {
            name: "data".to_owned(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        },
    ];
    if let Some(name) = &node.spec.tls_secret {
        volumes.push(secret("tls", name.clone(), None));
    }
    volumes
}

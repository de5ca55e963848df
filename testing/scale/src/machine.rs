//! A Kubernetes node that only pretends: its Pods are said to run at addresses on which pretended servers answer.
//!
//! Owns the Node object, its lease, what a kubelet writes of a Pod, and the route by which this machine answers for the
//! addresses. All of it is gone when it is dropped or asked to end.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::task::JoinHandle;

/// Name of the Node, and value of its label.
pub(crate) const NAME: &str = "pretended";
/// Label by which clusters are placed on it.
pub(crate) const LABEL: &str = "scale-test";
/// The addresses of its Pods. Next to the local Kubernetes' own 10.86.0.0/16, used by nothing else there.
const PREFIX: [u8; 2] = [10, 87];
/// Node controllers give up a node after 40 s.
const LEASE_EVERY: Duration = Duration::from_secs(10);
/// Kubelets write several statuses at a time.
const FAN_OUT: usize = 16;

/// The pretended machine. Dropping it takes the route away; [`Machine::end`] the objects too.
pub(crate) struct Machine {
    client: Client,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        drop(route("del"));
    }
}

impl Machine {
    /// Makes the Node and starts to run Pods on it.
    ///
    /// # Errors
    ///
    /// The API server refuses it, or the route cannot be made (it needs root).
    pub(crate) async fn start(client: &Client) -> Result<Self> {
        // One may be left from a run that was killed.
        drop(route("del"));
        let mut machine = Self { client: client.clone(), tasks: Vec::new() };
        machine.remove().await?;
        route("add")?;
        let nodes: Api<Node> = Api::all(client.clone());
        let labels =
            json!({ LABEL: NAME, "kubernetes.io/hostname": NAME, "topology.kubernetes.io/zone": NAME });
        let node = serde_json::from_value(json!({ "metadata": { "name": NAME, "labels": labels } }))?;
        nodes.create(&PostParams::default(), &node).await.context("create the node")?;
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let resources = json!({ "cpu": "100000", "memory": "100000Gi", "pods": "100000" });
        let ready = json!({ "type": "Ready", "status": "True", "reason": "Pretended",
            "lastHeartbeatTime": now, "lastTransitionTime": now });
        let status =
            json!({ "status": { "capacity": resources, "allocatable": resources, "conditions": [ready] } });
        let params = PatchParams::default();
        nodes.patch_status(NAME, &params, &Patch::Strategic(status)).await.context("status of the node")?;
        let leases = client.clone();
        machine.tasks.push(tokio::spawn(async move {
            loop {
                // A renewal that fails is made up for by the next one.
                drop(renew(&leases).await);
                tokio::time::sleep(LEASE_EVERY).await;
            }
        }));
        let pods = client.clone();
        machine.tasks.push(tokio::spawn(run_pods(pods)));
        Ok(machine)
    }

    /// Takes the Node away.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub(crate) async fn end(self) -> Result<()> {
        self.remove().await
    }

    async fn remove(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        match nodes.delete(NAME, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            result => result.map(drop).context("delete the node"),
        }
    }
}

/// Adds or deletes the route that makes every address of the prefix this machine's own.
fn route(verb: &str) -> Result<()> {
    let [a, b] = PREFIX;
    let prefix = format!("{a}.{b}.0.0/16");
    let output = Command::new("ip").args(["route", verb, "local", &prefix, "dev", "lo"]).output()?;
    ensure!(output.status.success(), "ip route {verb}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn renew(client: &Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string();
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": NAME },
        "spec": { "holderIdentity": NAME, "leaseDurationSeconds": 40, "renewTime": now } });
    leases.patch(NAME, &PatchParams::apply("scale").force(), &Patch::Apply(lease)).await.map(drop)?;
    Ok(())
}

/// What a kubelet does, as far as the API server can tell.
async fn run_pods(client: Client) {
    let pods: Api<Pod> = Api::all(client.clone());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={NAME}"));
    let mut addresses: BTreeMap<String, Ipv4Addr> = BTreeMap::new();
    let mut next: u16 = 256;
    let numbered = watcher(pods, config).default_backoff().applied_objects().filter_map(move |pod| {
        let pod = pod.ok().map(|pod| {
            let address = *addresses.entry(pod.uid().unwrap_or_default()).or_insert_with(|| {
                next = next.wrapping_add(1);
                let [c, d] = next.to_be_bytes();
                let [a, b] = PREFIX;
                Ipv4Addr::new(a, b, c, d)
            });
            (pod, address)
        });
        std::future::ready(pod)
    });
    numbered
        // A write that fails is repeated at the Pod's next event; a run that hangs on it ends at its limit.
        .for_each_concurrent(FAN_OUT, |(pod, ip)| {
            let client = client.clone();
            async move { drop(run_pod(&client, &pod, ip).await) }
        })
        .await;
}

async fn run_pod(client: &Client, pod: &Pod, ip: Ipv4Addr) -> Result<()> {
    let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    if pod.metadata.deletion_timestamp.is_some() {
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        return pods.delete(&name, &at_once).await.map(drop).context("end a Pod");
    }
    if pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some()) {
        return Ok(());
    }
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
    let conditions = ["Initialized", "ContainersReady", "Ready"].map(condition);
    let container = json!({ "name": "valkey", "image": "pretended", "imageID": "pretended", "ready": true,
        "restartCount": 0, "started": true, "state": { "running": { "startedAt": now } } });
    let status = json!({ "status": {
        "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }], "hostIP": "127.0.0.1", "startTime": now,
        "conditions": conditions,
        "containerStatuses": [container],
    } });
    let params = PatchParams::default();
    pods.patch_status(&name, &params, &Patch::Strategic(status)).await.map(drop).context("status of a Pod")
}

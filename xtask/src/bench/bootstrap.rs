//! `cargo xtask bench bootstrap`: how long a bootstrap takes beside the same cluster made by hand, in one run on one machine.
//!
//! Ratios, not times, are what such a run can tell: both sides are measured from the moment when every Pod runs.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::command;
use crate::kubeconfig::{self, Cluster};
use crate::local::packages;
use crate::paths::Paths;
use crate::ui;

const IMAGE: &str = "docker.io/valkey/valkey:9.1";
const PATIENCE: Duration = Duration::from_mins(2);

/// Measures `runs` bootstraps of `shards` × `replicas`, each beside `valkey-cli --cluster create`.
pub(crate) fn run(paths: &Paths, cluster: Cluster, shards: u16, replicas: u16, runs: u16) -> Result<()> {
    let bench = Bench {
        kubectl: packages::ensure_unpacked(paths)?.kubectl,
        kubeconfig: kubeconfig::for_cluster(paths, cluster)?,
        shards,
        replicas,
    };
    ui::line(&format!(
        "{shards}×{replicas}, seconds from the last Pod running to every node ok and linked\n"
    ));
    ui::line("  run   operator    by hand      ratio");
    let mut ratios = Vec::new();
    for number in 1..=runs {
        let namespace = format!("bench-{}-{number}", std::process::id());
        bench
            .apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }))?;
        let measured = bench.operator(&namespace).and_then(|ours| Ok((ours, bench.by_hand(&namespace)?)));
        bench.run(&["delete", "namespace", &namespace, "--wait=false"])?;
        bench.run(&["delete", "valkeyconfig,valkeyimage", &namespace])?;
        let (ours, theirs) = measured?;
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        ratios.push(ratio);
        ui::line(&format!(
            "{number:>5}{:>11.2}{:>11.2}{ratio:>11.2}",
            ours.as_secs_f64(),
            theirs.as_secs_f64()
        ));
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).context("no run")?;
    ui::line(&format!("\nmedian ratio {median:.2}"));
    Ok(())
}

struct Bench {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    shards: u16,
    replicas: u16,
}

impl Bench {
    fn members(&self) -> usize {
        usize::from(self.shards) * (usize::from(self.replicas) + 1)
    }

    fn kubectl(&self) -> Command {
        let mut kubectl = Command::new(&self.kubectl);
        kubectl.arg("--kubeconfig").arg(&self.kubeconfig);
        kubectl
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        command::output(self.kubectl().args(args))
    }

    fn apply(&self, object: &Value) -> Result<()> {
        let file = std::env::temp_dir().join(format!("valkey-operator-bench-{}.json", std::process::id()));
        std::fs::write(&file, object.to_string()).context("write the object")?;
        let applied = self.run(&["apply", "-f", &file.to_string_lossy()]);
        std::fs::remove_file(&file).context("remove the object's file")?;
        applied.map(drop)
    }

    /// Pods with `label` that run, by name, with their IPs.
    fn running(&self, namespace: &str, label: &str) -> Result<Vec<String>> {
        let pods: Value =
            serde_json::from_str(&self.run(&["-n", namespace, "get", "pods", "-l", label, "-o", "json"])?)?;
        let none = Vec::new();
        let ips =
            pods.pointer("/items").and_then(Value::as_array).unwrap_or(&none).iter().filter_map(|pod| {
                pod.pointer("/status/containerStatuses/0/state/running")?;
                pod.pointer("/status/podIP")?.as_str().map(ToOwned::to_owned)
            });
        Ok(ips.collect())
    }

    fn until<T>(&self, what: &str, mut probe: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let start = Instant::now();
        loop {
            if let Some(value) = probe()? {
                return Ok(value);
            }
            if start.elapsed() > PATIENCE {
                bail!("{what} of {}×{}: not within {} s", self.shards, self.replicas, PATIENCE.as_secs());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn await_pods(&self, namespace: &str, label: &str) -> Result<Vec<String>> {
        self.until("running Pods", || {
            let ips = self.running(namespace, label)?;
            Ok((ips.len() == self.members()).then_some(ips))
        })
    }

    fn operator(&self, namespace: &str) -> Result<Duration> {
        let group = "valkey.gomomento.com/v1alpha1";
        let (repository, tag) = IMAGE.rsplit_once(':').context("image")?;
        self.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": group, "kind": "ValkeyImage", "metadata": { "name": namespace },
              "spec": { "repository": repository, "tag": tag, "version": tag } },
            { "apiVersion": group, "kind": "ValkeyConfig", "metadata": { "name": namespace },
              "spec": { "imageRef": namespace } },
            { "apiVersion": group, "kind": "ValkeyCluster", "metadata": { "name": "ours", "namespace": namespace },
              "spec": { "configRef": namespace, "shards": self.shards, "replicasPerShard": self.replicas } },
        ] }))?;
        self.await_pods(namespace, "app.kubernetes.io/instance=ours")?;
        let start = Instant::now();
        self.until("Active", || {
            let cluster = self.run(&["-n", namespace, "get", "valkeycluster", "ours", "-o", "json"])?;
            let cluster: Value = serde_json::from_str(&cluster)?;
            let none = Vec::new();
            let mut conditions =
                cluster.pointer("/status/conditions").and_then(Value::as_array).unwrap_or(&none).iter();
            let ready = conditions.any(|it| it["type"] == "Ready" && it["status"] == "True");
            Ok((ready && cluster.pointer("/status/state").is_some_and(|it| it == "Active")).then_some(()))
        })?;
        Ok(start.elapsed())
    }

    /// The same number of servers with the settings that matter for speed, then the engine's own tool.
    fn by_hand(&self, namespace: &str) -> Result<Duration> {
        let servers: Vec<Value> = (0..self.members()).map(|number| server(namespace, number)).collect();
        self.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": servers }))?;
        let ips = self.await_pods(namespace, "bench=by-hand")?;
        let start = Instant::now();
        let (all, each) =
            (ips.iter().map(|ip| format!("{ip}:6379")).collect::<Vec<_>>().join(" "), ips.join(" "));
        let script = format!(
            "for ip in {each}; do until valkey-cli -h $ip PING >/dev/null 2>&1; do sleep 0.02; done; done; \
             valkey-cli --cluster create {all} --cluster-replicas {replicas} --cluster-yes >/dev/null || exit 1; \
             for ip in {each}; do \
               until valkey-cli -h $ip CLUSTER INFO | grep -q cluster_state:ok; do sleep 0.02; done; \
               until valkey-cli -h $ip INFO replication | grep -qE 'role:master|master_link_status:up'; do sleep 0.02; done; \
             done",
            replicas = self.replicas
        );
        self.run(&["-n", namespace, "exec", "by-hand-0", "--", "sh", "-c", &script])?;
        Ok(start.elapsed())
    }
}

/// One server as a bare Pod.
fn server(namespace: &str, number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": format!("by-hand-{number}"), "namespace": namespace, "labels": { "bench": "by-hand" } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "valkey",
                "image": IMAGE,
                "command": ["valkey-server", "--cluster-enabled", "yes", "--cluster-node-timeout", "5000",
                            "--protected-mode", "no", "--save", "", "--repl-diskless-sync-delay", "0"],
            }],
        },
    })
}

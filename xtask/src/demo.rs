//! `cargo xtask demo`: from nothing to a sample cluster that serves keys, shown as it happens.
//!
//! Owns the order of the road and what is printed of it. A second run finds everything in place and succeeds.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command;
use crate::kubeconfig::{self, Cluster};
use crate::local::{self, options::UpOptions, packages};
use crate::operator_image;
use crate::paths::Paths;
use crate::ui::{self, Part};

/// Where the sample lives; see config/samples.
const NAMESPACE: &str = "demo";
const CLUSTER: &str = "my-cluster";
/// The image that the install manifest names.
const MANIFEST_IMAGE: &str = concat!("valkey-operator:", env!("CARGO_PKG_VERSION"));
/// Keys written and read: enough to meet every shard.
const KEYS: usize = 30;
/// Longest wait for the operator and for the cluster.
const PATIENCE: Duration = Duration::from_mins(3);

/// Runs the demo on `cluster`; on an external one with the operator image `image`.
pub(crate) fn run(paths: &Paths, cluster: Cluster, image: Option<&str>) -> Result<()> {
    let start = Instant::now();
    let image = match (cluster, image) {
        (_, Some(image)) => image.to_owned(),
        (Cluster::Local, None) => {
            local::up(paths, &UpOptions::default())?;
            operator_image::build_and_import(paths)?
        }
        (Cluster::External, None) => {
            bail!("--cluster external needs --image: an operator image that it can pull")
        }
    };
    let demo = Demo {
        kubectl: packages::ensure_unpacked(paths)?.kubectl,
        kubeconfig: kubeconfig::for_cluster(paths, cluster)?,
        checkout: paths.checkout().to_owned(),
    };
    demo.install(&image)?;
    demo.sample()?;
    demo.watch()?;
    demo.keys()?;
    demo.farewell(start.elapsed());
    Ok(())
}

struct Demo {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    checkout: PathBuf,
}

impl Demo {
    fn kubectl(&self) -> Command {
        let mut kubectl = Command::new(&self.kubectl);
        kubectl.arg("--kubeconfig").arg(&self.kubeconfig).current_dir(&self.checkout);
        kubectl
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        command::output(self.kubectl().args(args))
    }

    /// CRDs and operator. The image is named by its content, so that a rebuilt one is rolled out and the same is not.
    fn install(&self, image: &str) -> Result<()> {
        let part = Part::start("CRDs");
        self.run(&["apply", "--server-side", "--force-conflicts", "-f", "deploy/crds.yaml"])?;
        self.run(&["wait", "--for=condition=Established", "--timeout=60s", "-f", "deploy/crds.yaml"])?;
        part.done("five kinds of valkey.gomomento.com/v1alpha1");
        let part = Part::start("operator");
        let manifest = fs::read_to_string(self.checkout.join("deploy/operator.yaml"))
            .context("read deploy/operator.yaml")?;
        if !manifest.contains(MANIFEST_IMAGE) {
            bail!("deploy/operator.yaml does not name the image {MANIFEST_IMAGE}: run `cargo xtask gen`");
        }
        self.apply(&manifest.replace(MANIFEST_IMAGE, image))?;
        let timeout = format!("--timeout={}s", PATIENCE.as_secs());
        self.run(&["-n", "valkey-operator", "rollout", "status", "deployment/valkey-operator", &timeout])
            .with_context(|| self.hint("-n valkey-operator describe pod"))?;
        part.done("three containers ready, caches synced");
        Ok(())
    }

    /// Applies a manifest from memory.
    fn apply(&self, manifest: &str) -> Result<()> {
        let mut child = self
            .kubectl()
            .args(["apply", "--server-side", "--force-conflicts", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("start kubectl")?;
        child
            .stdin
            .take()
            .context("kubectl's input")?
            .write_all(manifest.as_bytes())
            .context("write to kubectl")?;
        let status = child.wait().context("wait for kubectl")?;
        if status.success() { Ok(()) } else { bail!("kubectl apply: {status}") }
    }

    fn sample(&self) -> Result<()> {
        let part = Part::start("sample");
        self.run(&["apply", "-f", "config/samples/menu.yaml", "-f", "config/samples/cluster.yaml"])?;
        part.done(&format!(
            "ValkeyImage, ValkeyConfig, and ValkeyCluster {CLUSTER} in namespace {NAMESPACE}"
        ));
        Ok(())
    }

    /// Shows each change of state until the cluster is Ready.
    fn watch(&self) -> Result<()> {
        let part = Part::start("cluster");
        let mut shown = String::new();
        loop {
            let seen = self.progress()?;
            let line = seen.line();
            if line != shown {
                part.alive(&line);
                shown = line;
            }
            if seen.ready {
                part.done(&format!("Active: {} nodes ready, {} slots", seen.nodes, seen.slots));
                return Ok(());
            }
            if part.elapsed() > PATIENCE {
                let hint = self.hint(&format!("-n {NAMESPACE} describe valkeycluster {CLUSTER}"));
                bail!("the cluster is not Ready after {} s, last seen: {shown}\n{hint}", PATIENCE.as_secs());
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn progress(&self) -> Result<Progress> {
        let text = self.run(&["-n", NAMESPACE, "get", "valkeycluster", CLUSTER, "-o", "json"])?;
        Ok(Progress::read(&serde_json::from_str(&text).context("the ValkeyCluster as JSON")?))
    }

    /// A plain client is redirected; a cluster-aware one, started from the Service's name, writes and reads every key.
    fn keys(&self) -> Result<()> {
        let part = Part::start("client");
        self.run(&["apply", "-f", "config/samples/client.yaml"])?;
        self.run(&["-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/client", "--timeout=60s"])?;
        part.done("Pod client in the cluster network");
        let part = Part::start("keys");
        // The Service's name resolves a moment after the readiness gates are set.
        let script = format!(
            "host={CLUSTER}.{NAMESPACE}.svc.cluster.local; \
             for try in 1 2 3 4 5 6 7 8 9 10; do valkey-cli -h $host PING >/dev/null 2>&1 && break; sleep 0.5; done; \
             for i in $(seq {KEYS}); do valkey-cli -h $host SET demo:$i v$i; done | cut -d' ' -f1 | sort | uniq -c; \
             echo --; for i in $(seq {KEYS}); do valkey-cli -c -h $host SET demo:$i v$i; done | grep -c '^OK'; \
             for i in $(seq {KEYS}); do valkey-cli -c -h $host GET demo:$i; done | sort -u | wc -l"
        );
        let answer = self.run(&["-n", NAMESPACE, "exec", "client", "--", "sh", "-c", &script])?;
        let (plain, aware) = answer.split_once("--").context("the client's answer")?;
        let counts: Vec<&str> = aware.split_whitespace().collect();
        let expected = KEYS.to_string();
        if counts != [expected.as_str(), expected.as_str()] {
            bail!("wrote and read {KEYS} keys, but the client says {counts:?}");
        }
        let moved =
            plain.lines().find(|line| line.contains("MOVED")).and_then(|line| line.split_whitespace().next());
        part.done(&format!(
            "{KEYS} written and read back; a plain client was redirected {} times",
            moved.unwrap_or("0")
        ));
        Ok(())
    }

    fn hint(&self, command: &str) -> String {
        format!("look with: kubectl --kubeconfig {} {command}", self.kubeconfig.display())
    }

    fn farewell(&self, took: Duration) {
        ui::line(&format!(
            "\nServing after {}. Try next:\n\
             \n  export KUBECONFIG={}\
             \n  kubectl -n {NAMESPACE} get valkeyclusters,valkeynodes,pods -o wide\
             \n  kubectl -n {NAMESPACE} describe valkeycluster {CLUSTER}\
             \n  kubectl -n {NAMESPACE} exec -it client -- valkey-cli -c -h {CLUSTER}\
             \n  kubectl -n valkey-operator logs deployment/valkey-operator -c cluster-ctl\
             \n  kubectl -n {NAMESPACE} delete valkeycluster {CLUSTER}\
             \n  cargo xtask down",
            ui::duration(took),
            self.kubeconfig.display()
        ));
    }
}

/// What `kubectl get valkeycluster -o json` says, as far as it is shown.
#[derive(Debug, PartialEq, Eq)]
struct Progress {
    state: String,
    nodes: String,
    slots: i64,
    ready: bool,
    waiting: String,
}

impl Progress {
    fn read(cluster: &Value) -> Self {
        let status = &cluster["status"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let none = Vec::new();
        let conditions: BTreeMap<&str, &Value> = status["conditions"]
            .as_array()
            .unwrap_or(&none)
            .iter()
            .filter_map(|condition| Some((condition["type"].as_str()?, condition)))
            .collect();
        let is = |kind: &str, status: &str| conditions.get(kind).is_some_and(|it| it["status"] == status);
        let current =
            status["observedGeneration"] == *cluster.pointer("/metadata/generation").unwrap_or(&Value::Null);
        let waiting = conditions.get("Progressing").map_or_else(String::new, |condition| {
            format!("{}: {}", text(&condition["reason"]), text(&condition["message"]))
        });
        Self {
            state: text(&status["state"]),
            nodes: text(&status["ready"]),
            slots: status["slotsAssigned"].as_i64().unwrap_or(0),
            ready: current && is("Ready", "True") && is("Progressing", "False"),
            waiting,
        }
    }

    fn line(&self) -> String {
        let Self { state, nodes, slots, waiting, .. } = self;
        if state.is_empty() {
            "seen by nobody yet".to_owned()
        } else {
            format!("{state:<9} nodes {nodes}, slots {slots}   {waiting}")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(generation: i64, progressing: &str) -> Value {
        json!({
            "metadata": { "generation": 2 },
            "status": {
                "state": "Active", "ready": "6/6", "slotsAssigned": 16384, "observedGeneration": generation,
                "conditions": [
                    { "type": "Ready", "status": "True" },
                    { "type": "Progressing", "status": progressing, "reason": "Scaling", "message": "words" },
                ],
            },
        })
    }

    #[test]
    fn a_cluster_is_ready_only_when_nothing_progresses_on_its_newest_spec() {
        assert!(Progress::read(&cluster(2, "False")).ready);
        assert!(!Progress::read(&cluster(2, "True")).ready);
        assert!(!Progress::read(&cluster(1, "False")).ready);
        assert!(!Progress::read(&json!({ "metadata": { "generation": 2 } })).ready);
    }

    #[test]
    fn the_line_says_state_counts_and_what_is_waited_for() {
        let line = Progress::read(&cluster(2, "True")).line();
        assert_eq!(line, "Active    nodes 6/6, slots 16384   Scaling: words");
        assert_eq!(Progress::read(&json!({})).line(), "seen by nobody yet");
    }
}

//! What the operator says it does: the log of cluster-ctl, followed across restarts of its containers and Pods.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::Value;
use test_e2e::objects::{name, text};
use test_e2e::{Operator, operator};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::interruptions::OPERATOR;
use crate::record::Recorder;

/// How often it is looked whether the operator has a new Pod or a container that was started again.
const LOOK: Duration = Duration::from_millis(500);
/// The API server may be away on purpose.
const ANSWER: Duration = Duration::from_secs(5);
const CONTAINER: &str = "cluster-ctl";

/// Follows the operator's log until dropped.
pub struct Actions {
    lines: Arc<Mutex<Vec<String>>>,
    namespace: String,
    task: JoinHandle<()>,
}

impl Actions {
    /// Follows what is said from now on about clusters in `namespace`; actions become marks of `recorder`.
    pub fn follow(operator: Operator, kubeconfig: PathBuf, namespace: String, recorder: Recorder) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let followed_namespace = namespace.clone();
        let task = tokio::spawn(async move {
            let mut followed = BTreeSet::new();
            let mut followers = JoinSet::new();
            loop {
                if let Ok(Ok(pods)) = timeout(ANSWER, operator.pods()).await {
                    for pod in pods {
                        let Some(life) = life(&pod) else { continue };
                        if followed.insert((name(&pod).to_owned(), life)) {
                            let (sink, recorder) = (Arc::clone(&sink), recorder.clone());
                            let (pod, kubeconfig) = (name(&pod).to_owned(), kubeconfig.clone());
                            let namespace = namespace.clone();
                            followers.spawn(async move {
                                read(&kubeconfig, &pod, &namespace, &recorder, &sink).await;
                            });
                        }
                    }
                }
                sleep(LOOK).await;
            }
        });
        Self { lines, namespace: followed_namespace, task }
    }
}

impl Drop for Actions {
    /// The log is kept however the scenario ends: one that fails needs it most.
    fn drop(&mut self) {
        self.task.abort();
        let Some(cache) = std::env::var_os("VALKEY_OPERATOR_CACHE") else { return };
        let file = PathBuf::from(cache).join("load/logs").join(format!("{}.log", self.namespace));
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        match folder.and_then(|()| std::fs::write(&file, lines.join("\n"))) {
            Ok(()) => test_e2e::say(&format!("log of the operator: {}", file.display())),
            Err(error) => test_e2e::say(&format!("cannot write {}: {error}", file.display())),
        }
    }
}

/// How often the container was started; none when it does not run.
fn life(pod: &Value) -> Option<u64> {
    let statuses = pod.pointer("/status/containerStatuses")?.as_array()?;
    let status = statuses.iter().find(|status| text(status, "/name") == CONTAINER)?;
    status.pointer("/state/running")?;
    status.pointer("/restartCount")?.as_u64()
}

async fn read(kubeconfig: &Path, pod: &str, namespace: &str, recorder: &Recorder, sink: &Mutex<Vec<String>>) {
    let since =
        Timestamp::try_from(recorder.clock_at_start()).map_or_else(|_| String::new(), |it| it.to_string());
    let follower = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["-n", operator::NAMESPACE, "logs", "-f", pod, "-c", CONTAINER])
        .arg(format!("--since-time={since}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let Ok(mut follower) = follower else { return };
    let Some(output) = follower.stdout.take() else { return };
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(said) = serde_json::from_str::<Value>(&line) else { continue };
        if text(&said, "/fields/namespace") != namespace {
            continue;
        }
        if let Some((at, words)) = action(&said) {
            recorder.mark_at(recorder.since_start(at), format!("{OPERATOR}{words}"));
        }
        sink.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
}

/// When and what, of a line about an action.
fn action(said: &Value) -> Option<(SystemTime, String)> {
    let action = said.pointer("/fields/action")?.as_str()?;
    let at: Timestamp = text(said, "/timestamp").parse().ok()?;
    Some((at.into(), format!("{action} {} {}", text(said, "/fields/on"), text(said, "/fields/detail"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_has_a_time_and_words_and_a_wait_is_none() {
        let line = r#"{"timestamp":"2026-01-02T03:04:05.678Z","level":"INFO",
            "fields":{"message":"action","namespace":"n","action":"Failover","on":"a-1","detail":"handing over"}}"#;
        let (at, words) = action(&serde_json::from_str(line).unwrap()).unwrap();
        assert_eq!(words, "Failover a-1 handing over");
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since.subsec_millis(), 678);
        let wait =
            serde_json::json!({ "timestamp": "2026-01-02T03:04:05Z", "fields": { "reason": "Scaling" } });
        assert!(action(&wait).is_none());
    }
}

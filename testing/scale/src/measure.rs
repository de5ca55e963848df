//! What is measured of the operator: memory and processor time of its programs, requests, and the time from an edit to
//! its effect.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::json;
use test_e2e::audit::{self, AuditLog};
use test_e2e::objects::text;
use test_e2e::processes::{self, Process};
use test_e2e::{Kind, Objects, Operator, say};

const MIB: u64 = 1024 * 1024;
/// Longest wait for one edit to take effect.
const EDIT_WITHIN: Duration = Duration::from_mins(1);

/// The operator's programs.
pub(crate) struct Programs(Vec<Process>);

impl Programs {
    /// Those that run now.
    ///
    /// # Errors
    ///
    /// There are none.
    pub(crate) async fn find(operator: &Operator) -> Result<Self> {
        let mut programs = Vec::new();
        for pod in operator.pods().await? {
            programs.extend(processes::of_pod(text(&pod, "/metadata/uid"))?);
        }
        anyhow::ensure!(!programs.is_empty(), "the operator does not run");
        Ok(Self(programs))
    }

    /// Prints the memory of each.
    ///
    /// # Errors
    ///
    /// One has ended.
    pub(crate) fn say_memory(&self) -> Result<()> {
        let (mut own, mut all) = (0, 0);
        for process in &self.0 {
            let (anonymous, resident) = (process.anonymous_memory()?, process.resident_memory()?);
            say(&format!(
                "    {:<16} {:>5} MiB resident, {:>5} MiB of its own",
                process.program,
                resident / MIB,
                anonymous / MIB
            ));
            own += anonymous;
            all += resident;
        }
        say(&format!(
            "    {:<16} {:>5} MiB resident, {:>5} MiB of their own",
            "together",
            all / MIB,
            own / MIB
        ));
        Ok(())
    }

    /// Processor seconds of each since its start.
    fn processor(&self) -> Result<Vec<f64>> {
        self.0.iter().map(Process::processor_seconds).collect()
    }
}

/// Watches the operator do nothing for `time`: its requests and its processor time.
///
/// # Errors
///
/// There is no audit log, or a program ended.
pub(crate) async fn rest(programs: &Programs, time: Duration) -> Result<()> {
    let mut log = AuditLog::from_here(&audit::required()?)?;
    let before = programs.processor()?;
    tokio::time::sleep(time).await;
    let after = programs.processor()?;
    let requests = log.read()?;
    let writes = requests.iter().filter(|request| request.is_write()).count();
    let watches = requests.iter().filter(|request| request.verb == "watch").count();
    let reads = requests.len() - writes - watches;
    say(&format!("  at rest for {} s: {writes} writes, {reads} reads, {watches} watches", time.as_secs()));
    if writes + reads > 0 {
        say(&audit::summary(&requests));
    }
    for ((process, before), after) in programs.0.iter().zip(before).zip(after) {
        let share = (after - before) / time.as_secs_f64() * 100.0;
        say(&format!("    {:<16} {share:>5.1} % of one processor", process.program));
    }
    Ok(())
}

/// Edits one cluster after another and measures how long each edit takes to reach the cluster's Pod. `before` is the
/// number of edits of earlier calls: none may write what one of them wrote, or it changes nothing.
///
/// # Errors
///
/// An edit is refused or has no effect within a minute.
pub(crate) async fn edits(
    client: &kube::Client,
    objects: &Objects,
    clusters: &[String],
    before: usize,
) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), objects.namespace());
    let mut times = Vec::new();
    for (number, cluster) in (before + 1..).zip(clusters) {
        let selector = format!("app.kubernetes.io/instance={cluster}");
        let pod = pods.list(&ListParams::default().labels(&selector)).await?;
        let pod = pod.items.first().with_context(|| format!("{cluster} has no Pod"))?.name_any();
        let config = watcher::Config::default().fields(&format!("metadata.name={pod}"));
        let changes = watcher(pods.clone(), config).applied_objects();
        pin_mut!(changes);
        changes.next().await.context("no Pod to watch")??;
        let value = number.to_string();
        let patch = json!({ "spec": { "podAnnotations": { "scale-test": value } } });
        let start = Instant::now();
        objects.patch(Kind::CLUSTER, cluster, &patch).await?;
        let seen = async {
            while let Some(pod) = changes.next().await {
                if pod?.annotations().get("scale-test") == Some(&value) {
                    return anyhow::Ok(());
                }
            }
            bail!("the watch ended")
        };
        tokio::time::timeout(EDIT_WITHIN, seen).await.with_context(|| format!("edit of {cluster}"))??;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let at =
        |share: usize| times.get(times.len() * share / 100).or(times.last()).copied().unwrap_or_default();
    say(&format!(
        "  one edit until it is on the Pod: median {} ms, 95 % {} ms, longest {} ms ({} edits)",
        at(50).as_millis(),
        at(95).as_millis(),
        at(100).as_millis(),
        times.len()
    ));
    Ok(())
}

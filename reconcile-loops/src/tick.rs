//! The rhythm of a loop: a full pass each period, and early passes for what just changed.
//!
//! Owns pacing, liveness and the summary line. Knows nothing of ACL or TLS. A full pass and the early passes run beside
//! each other: a full pass that waits for dead nodes delays no change; a cluster is in one pass at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, FuturesUnordered};
use shared::health::{Health, Heartbeat, Shutdown};
use shared::metrics::ControllerMetrics;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::error;

use crate::plan::REFRESH_LIMIT;
use crate::seen::{ClusterKey, ClusterSeen};

#[cfg(test)]
mod tests;

/// Pause between early passes over one cluster.
const EARLY_PAUSE: Duration = Duration::from_secs(1);

/// Longest pass over one cluster. All its calls are bounded; this bounds their sum.
const PASS_LIMIT: Duration = Duration::from_mins(1);

/// Clusters in one pass at once. Far more than are ever slow together; only bounds memory.
const CLUSTERS_AT_ONCE: usize = 256;

/// What one pass over one cluster came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Running nodes.
    pub nodes: usize,
    /// Of these, nodes that run what is wanted.
    pub current: usize,
    /// Nodes that were made to re-read.
    pub reloaded: usize,
    /// Nodes without a result, or that refused.
    pub failed: usize,
    /// Nothing is left to wait for.
    pub settled: bool,
}

/// What a loop does.
pub trait Reload: Send + Sync + 'static {
    /// Name in metrics.
    const NAME: &'static str;

    /// The clusters that concern the loop, or one of them.
    fn clusters(&self, only: Option<&ClusterKey>) -> Vec<ClusterSeen>;

    /// One pass over one cluster, bounded in time, with every failure told and none passed on. `early` passes repeat
    /// each second and are quiet about what they still wait for.
    fn pass(&self, cluster: &ClusterSeen, early: bool) -> impl Future<Output = Count> + Send;

    /// Waits for changes, and gives the clusters that they concern.
    fn changed(&self) -> impl Future<Output = BTreeSet<ClusterKey>> + Send;

    /// Tells the end of a full pass.
    fn summary(&self, clusters: usize, total: Count);
}

/// Runs a loop in a task of its own until asked to stop; one that panics is started anew.
pub async fn supervised<R: Reload>(
    reload: Arc<R>,
    period: Duration,
    health: &Health,
    shutdown: &Shutdown,
    metrics: &ControllerMetrics,
) {
    let heartbeat = health.heartbeat(R::NAME);
    loop {
        let turn = run(Arc::clone(&reload), period, heartbeat.clone(), shutdown.clone(), metrics.clone());
        match tokio::spawn(turn).await {
            Ok(()) => return,
            Err(failure) => error!(reload = R::NAME, error = %failure, "loop panicked, starting it again"),
        }
        tokio::select! {
            biased;
            () = shutdown.wait() => return,
            () = tokio::time::sleep(EARLY_PAUSE) => {}
        }
    }
}

/// Runs a loop until asked to stop.
async fn run<R: Reload>(
    reload: Arc<R>,
    period: Duration,
    heartbeat: Heartbeat,
    shutdown: Shutdown,
    metrics: ControllerMetrics,
) {
    let busy = Busy::default();
    let full = full_passes(&*reload, period, &busy, &heartbeat, &metrics);
    let early = early_passes(&*reload, &busy);
    // Stopping cuts a pass off. Each thing that it does is one command or one write that takes effect whole or not at
    // all, and the next process begins with a full pass.
    tokio::select! {
        biased;
        () = shutdown.wait() => {}
        () = full => {}
        () = early => {}
    }
}

async fn full_passes<R: Reload>(
    reload: &R,
    period: Duration,
    busy: &Busy,
    heartbeat: &Heartbeat,
    metrics: &ControllerMetrics,
) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A long period is no sign of being stuck.
    let mut alive = interval(Duration::from_secs(10));
    loop {
        tokio::select! {
            biased;
            _ = ticks.tick() => {}
            _ = alive.tick() => {
                heartbeat.beat();
                continue;
            }
        }
        let timer = metrics.start(R::NAME);
        let clusters = reload.clusters(None);
        let number = clusters.len();
        let passes = stream::iter(clusters).map(|cluster| async move {
            let Some(_guard) = busy.enter(&cluster.key) else { return Count::default() };
            bounded(reload, &cluster, false).await
        });
        let mut counts = passes.buffer_unordered(CLUSTERS_AT_ONCE);
        let mut total = Count { settled: true, ..Count::default() };
        while let Some(count) = counts.next().await {
            // Progress, not the mere passage of time, keeps the loop alive.
            heartbeat.beat();
            total.nodes += count.nodes;
            total.current += count.current;
            total.reloaded += count.reloaded;
            total.failed += count.failed;
            total.settled &= count.settled;
        }
        reload.summary(number, total);
        timer.finish(if total.failed == 0 { "success" } else { "error" });
        heartbeat.beat();
    }
}

/// Passes over the clusters that just changed, each on its own: a slow one delays no other.
async fn early_passes<R: Reload>(reload: &R, busy: &Busy) {
    let deadlines = Mutex::new(BTreeMap::new());
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = running.next(), if !running.is_empty() => {}
            keys = reload.changed() => {
                for key in keys {
                    let deadline = Instant::now() + REFRESH_LIMIT;
                    if lock(&deadlines).insert(key.clone(), deadline).is_none() {
                        running.push(early_pass(reload, busy, &deadlines, key));
                    }
                }
            }
        }
    }
}

/// Passes over one cluster each second until settled after its last change, at most [`REFRESH_LIMIT`] after that.
async fn early_pass<R: Reload>(
    reload: &R,
    busy: &Busy,
    deadlines: &Mutex<BTreeMap<ClusterKey, Instant>>,
    key: ClusterKey,
) {
    loop {
        let before = lock(deadlines).get(&key).copied();
        let settled = match (reload.clusters(Some(&key)).pop(), busy.enter(&key)) {
            // Gone, or not one of the loop's: nothing to wait for.
            (None, _) => true,
            // In a full pass, which may have begun before the change.
            (Some(_), None) => false,
            (Some(cluster), Some(_guard)) => bounded(reload, &cluster, true).await.settled,
        };
        {
            let mut deadlines = lock(deadlines);
            let now = deadlines.get(&key).copied();
            // A change during the pass moved the deadline: what was settled is the state before it.
            let over = now.is_none_or(|deadline| Instant::now() >= deadline) || (settled && now == before);
            if over {
                deadlines.remove(&key);
                return;
            }
        }
        tokio::time::sleep(EARLY_PAUSE).await;
    }
}

/// One pass, given up after [`PASS_LIMIT`].
async fn bounded<R: Reload>(reload: &R, cluster: &ClusterSeen, early: bool) -> Count {
    timeout(PASS_LIMIT, reload.pass(cluster, early)).await.unwrap_or_else(|_| {
        let (cluster_name, namespace) = (&cluster.key.0.name, &cluster.key.0.namespace);
        error!(
            cluster_name,
            namespace,
            reload = R::NAME,
            "pass over a cluster gave up, its calls took too long"
        );
        Count { nodes: cluster.nodes.len(), failed: 1, ..Count::default() }
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clusters that are in a pass.
#[derive(Debug, Default)]
struct Busy(Mutex<BTreeSet<ClusterKey>>);

impl Busy {
    fn enter(&self, key: &ClusterKey) -> Option<Entered<'_>> {
        let mut keys = lock(&self.0);
        keys.insert(key.clone()).then(|| Entered { busy: self, key: key.clone() })
    }
}

struct Entered<'a> {
    busy: &'a Busy,
    key: ClusterKey,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        lock(&self.busy.0).remove(&self.key);
    }
}

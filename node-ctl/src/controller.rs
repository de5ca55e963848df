//! Wiring: events wake passes, one pass a node at a time, pacing after errors, health. No rule about nodes is here.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{FutureExt, Stream, StreamExt};
use kube::Resource as _;
use kube::ResourceExt;
use kube::runtime::controller::{Action, Config, Error as ControllerError, applier};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use shared::api::ValkeyNode;
use shared::backoff::{self, Backoff, Failures};
use shared::health::Shutdown;
use shared::metrics::Metrics;
use shared::run::App;
use shared::telemetry;
use tracing::{Instrument, debug, info, info_span, warn};

use crate::api::KubeApi;
use crate::caches::{Caches, Guarded};
use crate::execute::{self, ExecuteError};
use crate::plan::Step;
use crate::ports::Key;
use crate::reconcile::{Look, orphan_of, reconcile, release_orphan};

/// Name of the loop in metrics and health.
const NAME: &str = "node";
/// Nodes worked on at once. A slow API server bounds the rest; at rest a pass is arithmetic.
const CONCURRENCY: u16 = 128;
/// Waits after failures in a row of one node.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
/// Nodes whose failures are counted at most.
const MAX_FAILING: usize = 10_000;
/// How long after the wish to stop Pods may be told to stop too and still be looked after.
const LINGER: Duration = Duration::from_secs(1);
/// How long their ends are waited for, in all.
const LINGER_AT_MOST: Duration = Duration::from_secs(12);
/// Time between two looks whether all have ended.
const LINGER_LOOK: Duration = Duration::from_millis(100);
/// Time between two proofs of life at rest.
const TURN: Duration = Duration::from_secs(15);

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
enum PassError {
    /// A step failed.
    #[error(transparent)]
    Step(#[from] ExecuteError),
    /// The pass panicked or was ended; the other nodes' passes go on.
    #[error("the pass was broken off")]
    Broken(#[source] tokio::task::JoinError),
    /// The caches are gone, as at the end of the process.
    #[error("the caches are gone")]
    NoCaches(#[source] shared::synced::WatchesEnded),
}

/// The loop ended although nobody asked for it.
#[derive(Debug, thiserror::Error)]
#[error("the watches ended")]
struct WatchesEnded;

/// What each pass works with.
struct Context {
    kube: KubeApi,
    caches: Caches,
    metrics: Metrics,
    steps: Family<StepLabels, Counter>,
    failures: Mutex<Failures<String>>,
    shutdown: Shutdown,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StepLabels {
    step: &'static str,
}

/// The node loop: until the process is asked to stop and the passes under way are done.
///
/// # Errors
/// The watches ended although nobody asked for it.
pub async fn run(app: App) -> Result<(), Box<dyn Error + Send + Sync>> {
    let heartbeat = app.health.heartbeat(NAME);
    let ready = app.health.ready_flag("caches");
    let steps = Family::<StepLabels, Counter>::default();
    app.metrics.register("node_steps", "Steps taken for nodes, by kind", steps.clone());
    let (caches, wakes) = Caches::start(&app.client);
    let context = Arc::new(Context {
        kube: KubeApi::new(app.client.clone(), app.events.clone()),
        caches: caches.clone(),
        metrics: app.metrics.clone(),
        steps,
        failures: Mutex::new(Failures::new(MAX_FAILING)),
        shutdown: app.shutdown.clone(),
    });
    let synced = {
        let caches = caches.clone();
        tokio::spawn(async move {
            if caches.synced.wait().await.is_ok() {
                info!("caches synced");
                ready.set(true);
            }
        })
    };
    let (stop, watched) = (app.shutdown.clone(), caches.clone());
    let queue = wakes.take_until(async move {
        stop.wait().await;
        linger(&watched).await;
    });
    // Each pass is a task of its own: a panic of one ends that one only.
    let reconciler = |node: Arc<Guarded>, context: Arc<Context>| {
        tokio::spawn(pass(node, context))
            .map(|passed| passed.unwrap_or_else(|broken| Err(PassError::Broken(broken))))
    };
    let config = Config::default().concurrency(CONCURRENCY);
    let passes = applier(reconciler, pace, context, caches.nodes.clone(), queue, config);
    let orphans = Orphans { kube: KubeApi::new(app.client.clone(), app.events.clone()), caches };
    let passes = passes.inspect(|passed| {
        if let Err(ControllerError::ObjectNotFound(gone)) = passed {
            let namespace = gone.namespace.as_deref().unwrap_or_default();
            orphans.look_after(Key::new(namespace, gone.name.as_str()));
        }
    });
    turn(passes, || heartbeat.beat()).await;
    synced.abort();
    if app.shutdown.requested() { Ok(()) } else { Err(Box::new(WatchesEnded)) }
}

/// After the wish to stop: a machine that is emptied stops this process and members at once. Their ends are recorded
/// before it goes, because a Pod that vanishes unseen proves nothing to the next process, which must wait minutes for
/// other proof.
async fn linger(caches: &Caches) {
    let until = tokio::time::Instant::now() + LINGER_AT_MOST;
    tokio::time::sleep(LINGER).await;
    while caches.any_pod_terminating() && tokio::time::Instant::now() < until {
        tokio::time::sleep(LINGER_LOOK).await;
    }
}

/// What a node that is gone may leave behind.
struct Orphans {
    kube: KubeApi,
    caches: Caches,
}

impl Orphans {
    /// Lets go of the Pod of a node that is not there, if our finalizer holds one; tried until the API server has
    /// answered.
    fn look_after(&self, of: Key) {
        if self.caches.pod(&of).is_none_or(|pod| orphan_of(&pod).is_none()) {
            return;
        }
        let kube = self.kube.clone();
        tokio::spawn(async move {
            let mut failures = 0;
            while let Err(error) = release_orphan(&kube, &of).await {
                failures += 1;
                let pause = BACKOFF.jittered(failures, backoff::random());
                warn!(
                    pod = of.name,
                    namespace = of.namespace,
                    error = telemetry::chain(&error),
                    "releasing a Pod failed, trying again"
                );
                tokio::time::sleep(pause).await;
            }
        });
    }
}

/// Drives the passes and proves that this task turns, at rest too.
async fn turn<T, E: Error + 'static>(passes: impl Stream<Item = Result<T, E>>, beat: impl Fn()) {
    let mut passes = std::pin::pin!(passes);
    let mut interval = tokio::time::interval(TURN);
    loop {
        tokio::select! {
            biased;
            _ = interval.tick() => beat(),
            passed = passes.next() => match passed {
                None => return,
                Some(Ok(_)) => beat(),
                // Passes report their own errors; what is left are watches that are being retried.
                Some(Err(error)) => debug!(error = telemetry::chain(&error), "controller"),
            },
        }
    }
}

async fn pass(node: Arc<Guarded>, context: Arc<Context>) -> Result<Action, PassError> {
    let node = match &node.0 {
        Ok(node) => Arc::new(node.clone()),
        Err(invalid) => {
            warn!(
                node = invalid.metadata.name.as_deref(),
                namespace = invalid.metadata.namespace.as_deref(),
                error = invalid.error,
                "unreadable ValkeyNode, waiting for its change"
            );
            return Ok(Action::await_change());
        }
    };
    // Before the caches are filled nothing can be told absent. A watch that fails is retried, so they fill in any case.
    context.caches.synced.wait().await.map_err(PassError::NoCaches)?;
    let timer = context.metrics.controller.start(NAME);
    let passed = look_and_act(&node, &context).instrument(span(&node)).await;
    timer.finish(if passed.is_ok() { "success" } else { "error" });
    let again = passed?;
    context.failures.lock().unwrap_or_else(PoisonError::into_inner).reset(&key(&node));
    Ok(Action::requeue(again))
}

async fn look_and_act(node: &Arc<ValkeyNode>, context: &Context) -> Result<Duration, ExecuteError> {
    let (pod, config_map) = context.caches.objects_of(node);
    let config_map = config_map.as_deref().map(|found| &found.metadata);
    let look = Look::cached(Arc::clone(node), pod.as_deref(), config_map);
    let done = |step: &Step| {
        if !matches!(step, Step::Rest) {
            context.steps.get_or_create(&StepLabels { step: step.as_str() }).inc();
        }
    };
    reconcile(&context.kube, look, || context.shutdown.requested(), done).await
}

/// When to try a failed node again.
#[expect(clippy::needless_pass_by_value, reason = "the signature is kube's")]
fn pace(node: Arc<Guarded>, error: &PassError, context: Arc<Context>) -> Action {
    let uid = node.meta().uid.clone().unwrap_or_default();
    let failures = context.failures.lock().unwrap_or_else(PoisonError::into_inner).failed(&uid);
    let pause = BACKOFF.jittered(failures, backoff::random());
    // A first conflict is only somebody else being faster.
    let conflict = matches!(error, PassError::Step(step) if execute::is_conflict(step));
    if failures > 1 || !conflict {
        let _inside = node.0.as_ref().ok().map(|node| span(node).entered());
        warn!(
            error = telemetry::chain(error),
            failures,
            retry_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            "reconcile error, requeuing"
        );
    }
    Action::requeue(pause)
}

fn key(node: &ValkeyNode) -> String {
    node.uid().unwrap_or_default()
}

fn span(node: &ValkeyNode) -> tracing::Span {
    info_span!(
        "node",
        cluster_name = node.spec.cluster_name,
        namespace = node.namespace().unwrap_or_default(),
        node = node.name_any()
    )
}

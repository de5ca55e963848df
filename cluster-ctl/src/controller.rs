//! Runs the ticks: watches wake clusters, each cluster has at most one tick at a time, different clusters run
//! concurrently. Wiring only.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};
use kube::ResourceExt;
use kube::runtime::controller::{Action as Requeue, Config, Error as ControllerError, applier};
use shared::api::ValkeyCluster;
use shared::backoff::{self, Backoff, Failures};
use shared::health::Heartbeat;
use shared::metrics::ControllerMetrics;
use shared::run::App;
use shared::secret::{self, RandomError};
use shared::telemetry;
use tracing::{debug, warn};

use crate::caches::Caches;
use crate::kube_api::KubeApi;
use crate::metrics::ClusterMetrics;
use crate::model::Millis;
use crate::ports::{ClusterKey, Host};
use crate::reconcile::{Context, Next, TickError};
use crate::valkey_api::ValkeyApi;

/// Name of the controller in metrics and health.
const NAME: &str = "cluster";
/// First and longest pause after a failed tick.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Ticks at a time. A tick mostly waits for answers, each for a bounded time; more at once would only queue up at the
/// API server, and a thousand clusters that all begin together would find it busy with nothing else.
const TICKS: u16 = 128;
/// Clusters whose failures are counted.
const MAX_FAILING: usize = 4096;
/// How often the loop shows that it turns while nothing else does.
const TURN: Duration = Duration::from_secs(10);

/// The clocks and the system's CSPRNG.
struct System {
    started: Instant,
}

impl Host for System {
    fn now(&self) -> Millis {
        jiff::Timestamp::now().into()
    }

    fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    fn random_hex(&self, digits: usize) -> Result<String, RandomError> {
        secret::random_hex(digits)
    }
}

struct Shared {
    context: Context<KubeApi, ValkeyApi, System>,
    metrics: ControllerMetrics,
    heartbeat: Heartbeat,
    failures: Mutex<Failures<ClusterKey>>,
}

/// Runs until shutdown is asked for; a tick under way is finished.
pub async fn run(app: App) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (caches, wakes) = Caches::start(&app.client);
    let kube = KubeApi::new(app.client.clone(), Arc::clone(&caches), app.events.clone());
    let settings = app.settings.clone();
    let valkey =
        ValkeyApi::new(settings.valkey_connect_timeout, settings.valkey_timeout, app.metrics.valkey.clone());
    let host = System { started: Instant::now() };
    let shared = Arc::new(Shared {
        context: Context::new(kube, valkey, host, settings, ClusterMetrics::register(&app.metrics)),
        metrics: app.metrics.controller.clone(),
        heartbeat: app.health.heartbeat(NAME),
        failures: Mutex::new(Failures::new(MAX_FAILING)),
    });
    let ready = app.health.ready_flag("caches");
    let synced = {
        let caches = Arc::clone(&caches);
        async move {
            if caches.synced.wait().await.is_ok() {
                ready.set(true);
            }
        }
    };
    let stop = app.shutdown.clone();
    let queue = wakes.take_until(async move { stop.wait().await });
    let turning = beat(shared.heartbeat.clone());
    let reconciler = {
        let caches = Arc::clone(&caches);
        move |cluster: Arc<ValkeyCluster>, shared: Arc<Shared>| {
            let caches = Arc::clone(&caches);
            async move {
                // Nothing is decided before every cache has listed what there is: a missing object may just be unseen.
                if !caches.synced.yet() {
                    return Ok(Requeue::requeue(Duration::from_millis(50)));
                }
                reconcile(&cluster, &shared).await
            }
            .boxed()
        }
    };
    let context = Arc::clone(&shared);
    let work = applier(
        reconciler,
        on_error,
        shared,
        caches.clusters.clone(),
        queue,
        Config::default().concurrency(TICKS),
    )
    .for_each(|outcome| {
        match outcome {
            // Woken for a cluster that is not there any more.
            Err(ControllerError::ObjectNotFound(cluster)) => {
                let key = ClusterKey { namespace: cluster.namespace.unwrap_or_default(), name: cluster.name };
                context.context.gone(&key);
            }
            Err(error) => debug!(error = %telemetry::chain(&error), "controller"),
            Ok(_) => {}
        }
        futures::future::ready(())
    });
    tokio::select! {
        biased;
        () = work => Ok(()),
        () = async { futures::join!(synced, turning); } => Ok(()),
    }
}

/// Shows for ever that the loop turns.
async fn beat(heartbeat: Heartbeat) {
    let mut tick = tokio::time::interval(TURN);
    loop {
        tick.tick().await;
        heartbeat.beat();
    }
}

async fn reconcile(cluster: &ValkeyCluster, shared: &Shared) -> Result<Requeue, TickError> {
    let key = key(cluster);
    let timer = shared.metrics.start(NAME);
    shared.heartbeat.beat();
    match shared.context.tick(&key).await {
        Ok(next) => {
            timer.finish("success");
            shared.failures.lock().unwrap_or_else(PoisonError::into_inner).reset(&key);
            Ok(match next {
                Next::After(pause) => Requeue::requeue(pause),
                Next::Gone => Requeue::await_change(),
            })
        }
        Err(error) => {
            timer.finish("error");
            Err(error)
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is kube's")]
fn on_error(cluster: Arc<ValkeyCluster>, error: &TickError, shared: Arc<Shared>) -> Requeue {
    let key = key(&cluster);
    let failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner).failed(&key);
    let pause = BACKOFF.jittered(failures, backoff::random());
    warn!(
        cluster_name = %key.name,
        namespace = %key.namespace,
        error = %telemetry::chain(error),
        retry_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
        "reconcile error, requeuing"
    );
    Requeue::requeue(pause)
}

fn key(cluster: &ValkeyCluster) -> ClusterKey {
    ClusterKey { namespace: cluster.namespace().unwrap_or_default(), name: cluster.name_any() }
}

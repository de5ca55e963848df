//! Metrics in Prometheus text form: one registry per binary and the families that all binaries share.
//!
//! Owns names, help texts and labels of the generic part. Labels are bounded: every label value is a literal of the
//! code or a word of a fixed set, never the name of an object. What a binary measures besides is registered by it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

/// Prefix of every metric of ours; the generic controller metrics keep the names that dashboards know.
const PREFIX: &str = "valkey_operator";

/// Upper bounds in seconds: from a fast cache hit to the longest request limit and a little above.
const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

/// The registry of one binary with the families that all of them share. Clones are handles to the same registry.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    /// Reconciles, their results and durations.
    pub controller: ControllerMetrics,
    /// Requests to the Kubernetes API.
    pub api: RequestMetrics,
    /// Commands to Valkey nodes.
    pub valkey: RequestMetrics,
}

impl Metrics {
    /// A registry with build info and the shared families. `binary` is the name of the process, `version` its release.
    pub fn new(binary: &'static str, version: &'static str) -> Self {
        let mut registry = Registry::default();
        registry.register(
            format!("{PREFIX}_build"),
            "The running binary and its release",
            Info::new(BuildLabels { binary, version }),
        );
        let controller = ControllerMetrics::register(&mut registry);
        let api = RequestMetrics::register(&mut registry, "api", "Kubernetes API");
        let valkey = RequestMetrics::register(&mut registry, "valkey", "Valkey");
        Self { registry: Arc::new(Mutex::new(registry)), controller, api, valkey }
    }

    /// Registers a metric as `valkey_operator_{name}`. Call once per name, at start.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register(format!("{PREFIX}_{name}"), help, metric);
    }

    /// Every metric in the `OpenMetrics` text format.
    ///
    /// # Errors
    /// A metric could not be printed.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        text::encode(&mut out, &registry)?;
        Ok(out)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BuildLabels {
    binary: &'static str,
    version: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ControllerLabels {
    controller: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    operation: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
}

/// Reconciles of each control loop, under the names that controller-runtime made common.
#[derive(Debug, Clone)]
pub struct ControllerMetrics {
    total: Family<ReconcileLabels, Counter>,
    duration: Histograms<ControllerLabels>,
    active: Family<ControllerLabels, Gauge>,
}

impl ControllerMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            total: Family::default(),
            duration: Family::new_with_constructor(seconds),
            active: Family::default(),
        };
        registry.register(
            "controller_runtime_reconcile",
            "Reconciles by control loop and result",
            metrics.total.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconcile",
            metrics.duration.clone(),
        );
        registry.register(
            "controller_runtime_active_workers",
            "Reconciles running now",
            metrics.active.clone(),
        );
        metrics
    }

    /// Starts the clock of one reconcile. A timer that is dropped unfinished (a panic, a shutdown) counts as `aborted`.
    pub fn start(&self, controller: &'static str) -> ReconcileTimer {
        self.active.get_or_create(&ControllerLabels { controller }).inc();
        ReconcileTimer { metrics: self.clone(), controller, started: Instant::now(), result: "aborted" }
    }
}

/// One running reconcile; counted when it is finished or dropped.
#[must_use = "dropping the timer counts the reconcile as aborted"]
#[derive(Debug)]
pub struct ReconcileTimer {
    metrics: ControllerMetrics,
    controller: &'static str,
    started: Instant,
    result: &'static str,
}

impl ReconcileTimer {
    /// Ends the reconcile with `result`, one word of a fixed set: `success`, `requeue`, `error`.
    pub fn finish(mut self, result: &'static str) {
        self.result = result;
    }
}

impl Drop for ReconcileTimer {
    fn drop(&mut self) {
        let labels = ControllerLabels { controller: self.controller };
        self.metrics.active.get_or_create(&labels).dec();
        self.metrics.duration.get_or_create(&labels).observe(self.started.elapsed().as_secs_f64());
        let labels = ReconcileLabels { controller: self.controller, result: self.result };
        self.metrics.total.get_or_create(&labels).inc();
    }
}

/// Requests to one kind of server: how many with which result, and how long they took.
#[derive(Debug, Clone)]
pub struct RequestMetrics {
    total: Family<RequestLabels, Counter>,
    duration: Histograms<OperationLabels>,
}

impl RequestMetrics {
    fn register(registry: &mut Registry, name: &str, server: &str) -> Self {
        let metrics = Self { total: Family::default(), duration: Family::new_with_constructor(seconds) };
        registry.register(
            format!("{PREFIX}_{name}_requests"),
            format!("Requests to the {server} by operation and result"),
            metrics.total.clone(),
        );
        registry.register(
            format!("{PREFIX}_{name}_request_duration_seconds"),
            format!("Time until the {server} answered"),
            metrics.duration.clone(),
        );
        metrics
    }

    /// Counts one request. `operation` (a verb, a command) and `result` (`ok`, `timeout`, …) are words of fixed sets.
    pub fn observe(&self, operation: &'static str, result: &'static str, took: Duration) {
        self.total.get_or_create(&RequestLabels { operation, result }).inc();
        self.duration.get_or_create(&OperationLabels { operation }).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_build_reconciles_and_requests() {
        let metrics = Metrics::new("node-ctl", "1.2.3");
        metrics.controller.start("node").finish("success");
        drop(metrics.controller.start("node"));
        metrics.api.observe("get", "ok", Duration::from_millis(3));
        metrics.valkey.observe("ping", "timeout", Duration::from_secs(1));
        let own: Counter = Counter::default();
        own.inc();
        metrics.register("pods_created", "Pods created", own);

        let text = metrics.encode().unwrap();
        for line in [
            r#"valkey_operator_build_info{binary="node-ctl",version="1.2.3"} 1"#,
            r#"controller_runtime_reconcile_total{controller="node",result="success"} 1"#,
            r#"controller_runtime_reconcile_total{controller="node",result="aborted"} 1"#,
            r#"controller_runtime_active_workers{controller="node"} 0"#,
            r#"controller_runtime_reconcile_time_seconds_count{controller="node"} 2"#,
            r#"valkey_operator_api_requests_total{operation="get",result="ok"} 1"#,
            r#"valkey_operator_valkey_requests_total{operation="ping",result="timeout"} 1"#,
            "valkey_operator_pods_created_total 1",
        ] {
            assert!(text.contains(line), "no {line} in:\n{text}");
        }
    }
}
